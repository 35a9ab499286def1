"""The list of faults that make no difference: it names lines that exist."""

import ast
import tomllib
from pathlib import Path

import pytest

import purgatory

PACKAGE = Path(purgatory.__file__).parent
ENTRIES = tomllib.loads((Path(__file__).parent / "survivors.toml").read_text(encoding="utf-8"))["equivalent"]


def _functions(module: str) -> dict[str, str]:
    """The text of each function of a module on one line, by its qualified name."""
    found: dict[str, str] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found[f"{prefix}{child.name}"] = " ".join(" ".join(lines[child.lineno - 1 : child.end_lineno]).split())
                visit(child, f"{prefix}{child.name}.<locals>.")
            else:
                visit(child, prefix)

    lines: list[str] = []
    file = PACKAGE / f"{module}.py"
    if file.is_file():
        text = file.read_text(encoding="utf-8")
        lines = text.splitlines()
        visit(ast.parse(text), "")
    return found


@pytest.mark.parametrize("module", sorted({mutant[0] for entry in ENTRIES for mutant in entry["mutants"]}))
def test_each_entry_names_lines_that_exist(module: str) -> None:
    """An entry whose function or line was renamed, changed or removed must be updated or removed."""
    functions = _functions(module)
    listed = [mutant for entry in ENTRIES for mutant in entry["mutants"] if mutant[0] == module]
    assert [mutant for mutant in listed if mutant[2] not in functions.get(mutant[1], "")] == []


def test_each_entry_has_a_reason_and_is_listed_once() -> None:
    """The reason is a sentence, and no fault is listed twice."""
    mutants = [tuple(mutant) for entry in ENTRIES for mutant in entry["mutants"]]
    assert len(set(mutants)) == len(mutants)
    assert all(entry["why"].endswith(".") and entry["mutants"] for entry in ENTRIES)
