"""Texts about objects of the user, whose own methods may raise."""

from typing import Any

import pytest

from purgatory.texts import error_text, key_text, safe_repr, safe_str, type_name
from tests.helpers import Boom


class Odd:
    """An object without a text."""

    def __repr__(self) -> str:
        raise Boom

    def __str__(self) -> str:
        raise Boom


def test_an_object_with_a_text() -> None:
    """Its own text is used."""
    assert (safe_repr("a"), safe_str("a"), type_name("a")) == ("'a'", "a", "str")


def test_an_object_whose_text_raises() -> None:
    """Its class and the error are named instead."""
    assert safe_repr(Odd()) == "<Odd whose repr raised Boom>"
    assert safe_str(Odd()) == "<Odd whose str raised Boom>"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("order-7", "order-7"),
        ("two\nlines \x1b[31m", "two\\nlines \\x1b[31m"),
        ("é…", "é…"),
        (7, "7"),
        (("t", 1), "('t', 1)"),
        (("t",), "('t',)"),
        ((), "()"),
        (tuple(range(7)), "(0, 1, 2, 3, 4, 5, …)"),
        ((((("deep",),),),), "((((…),),),)"),
        (frozenset({1}), "frozenset({1})"),
        (frozenset(range(7)), "<frozenset of 7>"),
        (b"raw", "b'raw'"),
        (Odd(), "<Odd whose repr raised Boom>"),
    ],
)
def test_the_text_of_a_key(key: Any, text: str) -> None:
    """It is on one line, and a nested key is shown as far as a reader needs it."""
    assert key_text(key) == text


@pytest.mark.parametrize("key", ["x" * 10**6, b"x" * 10**6, ("x" * 10**6, "y"), ("x" * 200,) * 6, 10**200])
def test_the_text_of_a_long_key_is_cut(key: Any) -> None:
    """It has 120 characters, of which the last shows that more follow."""
    text = key_text(key)
    assert len(text) == 120
    assert text.endswith("…")


def test_the_text_of_an_error() -> None:
    """The class, and the message if there is one, on one line of at most 300 characters."""
    assert error_text(Boom()) == "Boom"
    assert error_text(KeyError("k")) == "KeyError: 'k'"
    assert error_text(ValueError("two\nlines")) == "ValueError: two\\nlines"
    long = error_text(ValueError("x" * 1000))
    assert (len(long), long[:13], long[-1]) == (300, "ValueError: x", "…")

    class Wordless(Boom):
        __str__ = Odd.__str__

    assert error_text(Wordless()) == "Wordless: <Wordless whose str raised Boom>"
