"""The reference: every public name has an entry."""

import ast
import re
from pathlib import Path

import pytest

import purgatory

PACKAGE = Path(purgatory.__file__).parent
REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PUBLIC = (
    "purgatory",
    "purgatory.asgi",
    "purgatory.conditions",
    "purgatory.errors",
    "purgatory.events",
    "purgatory.journal",
    "purgatory.locks",
    "purgatory.otel",
    "purgatory.relay",
    "purgatory.testing",
    "purgatory.types",
)

_ENTRY = re.compile(r"^::: (?P<path>[\w.]+)\n(?P<options>(?: +.*\n)*)", re.MULTILINE)


def source_of(module: str) -> Path | None:
    """Return the file of a module, or None.  The module is not imported, because it may need an extra."""
    place = PACKAGE.joinpath(*module.split(".")[1:])
    files = (place / "__init__.py", place.with_suffix(".py"))
    return next((file for file in files if file.is_file()), None)


def names_of(module: str) -> list[str]:
    """Return the names in ``__all__`` of a module."""
    file = source_of(module)
    assert file is not None, module
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return list(ast.literal_eval(node.value))
    raise AssertionError(f"{module} has no __all__")


def entries() -> set[str]:
    """Return the names with an entry: a name of its own, or one of a whole module or of those that it selects."""
    found: set[str] = set()
    for page in REFERENCE.glob("*.md"):
        for entry in _ENTRY.finditer(page.read_text(encoding="utf-8") + "\n"):
            path, selected = entry["path"], re.search(r"\bmembers: (?:false|\[(.*)\])", entry["options"])
            if source_of(path) is None:
                found.add(path.rpartition(".")[2])
            elif selected is None:
                found.update(names_of(path))
            else:
                found.update(re.findall(r"\w+", selected[1] or ""))
    return found


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_an_entry_in_the_reference(module: str) -> None:
    """A page of the reference shows each name in ``__all__``, by itself or with its module."""
    assert sorted(set(names_of(module)) - entries()) == []


@pytest.mark.parametrize("page", sorted(REFERENCE.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_says_what_to_use_when(page: Path) -> None:
    """Each page has some sentences of its own above its first entry, with a link to a page outside of the reference."""
    own = page.read_text(encoding="utf-8").partition("\n:::")[0]
    assert len(re.findall(r"\w+", own)) >= 50
    assert "](../" in own


def test_the_entries_are_found() -> None:
    """Entries of single names, of whole modules, and of selected members of a module."""
    assert entries() >= {"Purgatory", "OperationCancelled", "observe_relays", "Transport"}
    assert "Received" not in entries()
