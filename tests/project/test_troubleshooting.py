"""The page on troubleshooting: the error messages that it quotes are those of the sources."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import purgatory
from purgatory import Purgatory, locks

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE)
GUESSES = re.findall(r"^\| `(?:room\.)?(\w+)[^|]*` \| (.*) \|$", PAGE, re.MULTILINE)


def _text(node: ast.AST) -> str:
    """Return the text of a string, with three dots for every value that is formatted into it."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return "..."


def _texts_in_raise(tree: ast.Module) -> list[str]:
    """Return the texts in raise statements, and those of the constants of the module, which such statements name."""
    places: list[ast.AST] = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    places += [node.value for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and node.value]
    return [
        _text(node) for place in places for node in ast.walk(place) if isinstance(node, ast.JoinedStr | ast.Constant)
    ]


@cache
def _raised() -> list[str]:
    sources = sorted(Path(purgatory.__file__).parent.rglob("*.py"))
    return [text for path in sources for text in _texts_in_raise(ast.parse(path.read_text(encoding="utf-8")))]


def test_there_are_messages() -> None:
    """The page quotes at least fifteen messages, each once."""
    assert len(MESSAGES) == len(set(MESSAGES)) >= 15


@pytest.mark.parametrize(("guess", "advice"), GUESSES)
def test_the_page_names_what_exists(guess: str, advice: str) -> None:
    """A name that readers guess does not exist, and every name beside it does."""
    places = (Purgatory, locks)
    assert not any(hasattr(place, guess) for place in (purgatory, *places))
    names = re.findall(r"`(?:await )?(?:room\.)?(\w+)(?:\(.*?\))?`", advice.replace("len(room)", "__len__"))
    assert names
    assert [name for name in names if not any(hasattr(place, name) for place in places)] == []


def test_there_are_guesses() -> None:
    """The table has the names of other libraries' methods and classes."""
    assert {guess for guess, _ in GUESSES} >= {"notify", "close", "parked", "wait", "Lock", "Semaphore"}


@pytest.mark.parametrize("message", MESSAGES)
def test_a_quoted_message_is_raised(message: str) -> None:
    """Each quoted message is part of a text that the package raises; three dots stand for a value."""
    assert [text for text in _raised() if message in text]
