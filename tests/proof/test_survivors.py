"""The list of faults that make no difference: it names functions that exist."""

import ast
import tomllib
from pathlib import Path

import pytest

import purgatory

PACKAGE = Path(purgatory.__file__).parent
ENTRIES = tomllib.loads((Path(__file__).parent / "survivors.toml").read_text(encoding="utf-8"))["equivalent"]


def _functions(module: str) -> set[str]:
    """The qualified names of the functions of a module."""
    found: set[str] = set()

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.add(f"{prefix}{child.name}")
                visit(child, f"{prefix}{child.name}.<locals>.")
            else:
                visit(child, prefix)

    file = PACKAGE / f"{module}.py"
    if file.is_file():
        visit(ast.parse(file.read_text(encoding="utf-8")), "")
    return found


@pytest.mark.parametrize("module", sorted({mutant[0] for entry in ENTRIES for mutant in entry["mutants"]}))
def test_each_entry_names_a_function_that_exists(module: str) -> None:
    """An entry of a module or function that was renamed or removed must be updated or removed."""
    listed = {mutant[1] for entry in ENTRIES for mutant in entry["mutants"] if mutant[0] == module}
    assert not listed - _functions(module)


def test_each_entry_has_a_reason_and_is_listed_once() -> None:
    """The reason is a sentence, and no fault is listed twice."""
    mutants = [tuple(mutant) for entry in ENTRIES for mutant in entry["mutants"]]
    assert len(set(mutants)) == len(mutants)
    assert all(entry["why"].endswith(".") and entry["mutants"] for entry in ENTRIES)
