"""Texts about objects of the user, whose own methods may raise."""

from purgatory.texts import safe_repr, safe_str, type_name
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
