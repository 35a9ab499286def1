"""Strings that describe the user's objects, for errors and reports.

Building a message must not raise an error that hides the error to be described: ``repr`` runs the user's code, which
may raise.  A string that an operator sees in a browser, a terminal, or a metric's label must also be short and
printable: a ``repr`` may be megabytes long and may contain HTML, control characters, or characters that reverse the
direction of the text.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

__all__ = ["class_name", "names_of", "safe_repr", "safe_str", "type_name", "uncopyable"]

_NAME: Final[Any] = type.__dict__["__name__"]  # the descriptor itself: a metaclass may have another ``__name__``

_LONGEST: Final = 120
_LONGEST_ERROR: Final = 300
_MOST_ITEMS: Final = 6
_DEEPEST: Final = 3


def class_name(kind: type) -> str:
    """Return the name of the class, without running any code of its metaclass."""
    name: str = _NAME.__get__(kind)
    return name


def type_name(thing: object) -> str:
    """Return the name of the object's class, without running any code of that class."""
    return class_name(type(thing))


def safe_repr(thing: object) -> str:
    """Return ``repr(thing)`` or, if that raises an error, a string that names the class and the error."""
    try:
        return repr(thing)
    except Exception as error:
        return f"<{type_name(thing)} whose repr raised {type_name(error)}>"


def safe_str(thing: object) -> str:
    """Return ``str(thing)`` or, if that raises an error, a string that names the class and the error."""
    try:
        return str(thing)
    except Exception as error:
        return f"<{type_name(thing)} whose str raised {type_name(error)}>"


def uncopyable(thing: object, why: str) -> TypeError:
    """Return the error to raise when an object that must not be copied or pickled is copied or pickled."""
    name = type_name(thing)
    return TypeError(f"{name} must not be copied or pickled: {why}, so make a new {name}")


def key_text(key: Any) -> str:
    """Return the key as a string of at most 120 characters: a str unchanged, or the ``repr`` of any other object.

    Characters that are not printable are escaped, as in a ``repr``.
    """
    if type(key) is str:
        return shortened(key)
    return shortened(_repr(key, _DEEPEST))


def error_text(error: BaseException) -> str:
    """Return the class and the message of the error, in at most 300 characters."""
    message = safe_str(error)
    text = type_name(error) if not message else f"{type_name(error)}: {message}"
    return shortened(text, _LONGEST_ERROR)


def shortened(text: str, longest: int = _LONGEST) -> str:
    """Return the text on one line, cut to ``longest`` characters, with nonprintable characters escaped."""
    cut = text[: longest + 1]
    if not cut.isprintable():
        cut = "".join([letter if letter.isprintable() else repr(letter)[1:-1] for letter in cut])
    return cut if len(cut) <= longest else cut[: longest - 1] + "…"


def _repr(key: Any, depth: int) -> str:
    """Return the ``repr`` of the key, without building a string that is much longer than the part shown."""
    kind = type(key)
    if kind is str or kind is bytes:
        return repr(key[: _LONGEST + 1])
    if kind is tuple:
        if depth == 0:
            return "(…)"
        parts = [_repr(part, depth - 1) for part in key[:_MOST_ITEMS]]
        if len(key) > _MOST_ITEMS:
            parts.append("…")
        return f"({', '.join(parts)}{',' if len(key) == 1 else ''})"
    if kind is frozenset and len(key) > _MOST_ITEMS:
        return f"<frozenset of {len(key)}>"
    return safe_repr(key)


def names_of(module: Mapping[str, Any], without: Collection[str] = ()) -> list[str]:
    """Return the ``dir()`` of a public module, given its ``globals()``: its public names, without imports and
    submodules.

    ``without``: names that would raise ImportError if they were read now.  Tools such as ``help()`` read every name
    that ``dir()`` lists.
    """
    return sorted({*module["__all__"], *(name for name in module if name.startswith("__"))} - {*without})
