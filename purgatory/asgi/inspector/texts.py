"""Texts of keys and errors for a reader in a browser or a terminal: short, printable, and never an exception.

A key is any object.  Its ``repr`` may raise, may be megabytes long, and may contain HTML, control characters, or
characters that reverse the direction of the text.
"""

from typing import Any, Final

from purgatory.core.operation.private_key import shown_key
from purgatory.texts import safe_repr, safe_str, type_name

__all__ = ["error_text", "key_text", "shortened"]

_LONGEST: Final = 120
_LONGEST_ERROR: Final = 300
_MOST_ITEMS: Final = 6
_DEEPEST: Final = 3


def key_text(key: Any) -> str:
    """Return the key as a text of at most 120 characters: a str as it is, anything else by its ``repr``.

    Characters that are not printable are escaped, as in a ``repr``.
    """
    shown = shown_key(key)
    return shortened(shown if type(shown) is str else _repr(shown, _DEEPEST))


def error_text(error: BaseException) -> str:
    """Return the class of the error and its message, at most 300 characters."""
    message = safe_str(error)
    text = type_name(error) if not message else f"{type_name(error)}: {message}"
    return shortened(text, _LONGEST_ERROR)


def shortened(text: str, longest: int = _LONGEST) -> str:
    """Return the text on one line, cut to ``longest`` characters, with characters that are not printable escaped."""
    cut = text[: longest + 1]
    if not cut.isprintable():
        cut = "".join([letter if letter.isprintable() else repr(letter)[1:-1] for letter in cut])
    return cut if len(cut) <= longest else cut[: longest - 1] + "…"


def _repr(key: Any, depth: int) -> str:
    """Return the ``repr`` of the key, without building one that is much longer than what is shown."""
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
