"""Mutants of a module of the core: small faults, one at a time, created with the operators of mutmut.

A mutant is the text of its module with one node replaced.  Assertions are not mutated, because they are checks
themselves.  Annotations, docstrings, f-strings and the texts of messages are not mutated either.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

__all__ = ["ROOT", "Mutant", "mutants_of"]

ROOT = Path(__file__).parent.parent.parent

_LEFT_OUT = (cst.Assert, cst.Annotation, cst.Decorator, cst.Parameters, cst.FormattedString, cst.ConcatenatedString)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault.  ``module``: for example ``timer/task``.  ``lines``: the lines of the mutated statement."""

    module: str
    function: str
    lines: range
    before: str
    after: str
    text: str

    @property
    def name(self) -> tuple[str, str, str, str]:
        """The name in the list of survivors, independent of line numbers."""
        return (self.module, self.function, self.before, self.after)


class _Finder(cst.CSTVisitor):
    """A visitor that collects every replacement within a function, with its position."""

    def __init__(self, places: Mapping[cst.CSTNode, Any], skip: frozenset[str]) -> None:
        super().__init__()
        self.found: list[tuple[Any, Any, str, int]] = []
        self._places = places
        self._skip = skip
        self._path: list[cst.CSTNode] = []
        self._raising = 0

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, _LEFT_OUT) or _is_docstring(node):
            return False
        if isinstance(node, cst.FunctionDef) and node.name.value in self._skip:
            return False
        self._path.append(node)
        self._raising += isinstance(node, cst.Raise)
        scopes = [scope for scope in self._path if isinstance(scope, (cst.ClassDef, cst.FunctionDef))]
        functions = [number for number, scope in enumerate(scopes) if isinstance(scope, cst.FunctionDef)]
        if functions and not isinstance(node, cst.FunctionDef):
            name = ".".join(scope.name.value for scope in scopes[: functions[0] + 1])
            line = self._statement_line()
            for kind, operator in mutation_operators:
                if isinstance(node, kind) and not (self._raising and isinstance(node, cst.SimpleString)):
                    self.found += [(node, new, name, line) for new in operator(node)]
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if self._path and self._path[-1] is original_node:
            self._path.pop()
            self._raising -= isinstance(original_node, cst.Raise)

    def _statement_line(self) -> int:
        for node in reversed(self._path):
            if isinstance(node, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
                line: int = self._places[node].start.line
                return line
        raise AssertionError("a node within a function is within a statement")


def _is_docstring(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Expr) and isinstance(node.value, cst.SimpleString)


def mutants_of(module: str, skip: frozenset[str] = frozenset()) -> Iterator[Mutant]:
    """Return every mutant of the module, in textual order; ``skip``: the names of functions to ignore."""
    source = (ROOT / "purgatory" / f"{module}.py").read_text()
    wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
    places = wrapper.resolve(PositionProvider)
    finder = _Finder(places, skip)
    wrapper.module.visit(finder)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    seen = {ast.dump(ast.parse(source))}
    for node, new, function, line in finder.found:
        place = places[node]
        if isinstance(node, cst.BaseCompoundStatement):
            text = wrapper.module.deep_replace(node, new).code
        else:
            begin = starts[place.start.line - 1] + place.start.column
            end = starts[place.end.line - 1] + place.end.column
            text = _joined(_joined(source[:begin], wrapper.module.code_for_node(new)), source[end:])
        meaning = ast.dump(ast.parse(text))
        if meaning in seen:
            continue
        seen.add(meaning)
        lines = range(line, place.end.line + 1)
        before, after = _difference(source, text)
        yield Mutant(module, function, lines, before, after, text)


def _joined(one: str, other: str) -> str:
    """Join two pieces of code, with a space between two words."""
    return f"{one} {other}" if one[-1:].isidentifier() and other[:1].isidentifier() else one + other


def _difference(old: str, new: str) -> tuple[str, str]:
    """Return the lines in which two texts differ, each normalized to one line."""
    one, other = old.splitlines(), new.splitlines()
    while one and other and one[0] == other[0]:
        del one[0], other[0]
    while one and other and one[-1] == other[-1]:
        del one[-1], other[-1]
    return " ".join(" ".join(one).split()), " ".join(" ".join(other).split())
