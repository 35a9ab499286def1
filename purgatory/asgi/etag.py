"""Entity tags, for waiting until a version differs from the client's version: RFC 9110, sections 8.8.3 and 13.1.2.

The client sends the tag of its version in ``If-None-Match``.  Tags are compared weakly, because the comparison
decides only whether the client has the current version: ``W/"41"`` and ``"41"`` are equal.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from purgatory.texts import safe_repr

from .types import Scope

__all__ = ["entity_tag", "is_known_in"]

_TAG: Final = re.compile(r'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')
_ALLOWED: Final = re.compile(r"[\x21\x23-\x7e]+")


def entity_tag(version: object) -> str:
    """Return the entity tag of a version: an int, or a str of printable ASCII characters without quotes or spaces."""
    if isinstance(version, int) and not isinstance(version, bool):
        return f'"{version:d}"'
    if not isinstance(version, str):
        raise TypeError(f"version must be an int or a str, got {safe_repr(version)}")
    if _ALLOWED.fullmatch(version) is None:
        raise ValueError(
            f"version must consist of printable ASCII characters except quotes and spaces, got {safe_repr(version)}"
        )
    return f'"{version}"'


def is_known_in(scope: Scope) -> Callable[[str], bool]:
    """Return a function that returns whether the requesting client has the version with a given tag."""
    lines: list[Any] = [value for name, value in scope.get("headers", ()) if name == b"if-none-match"]
    header = b",".join(lines).decode("latin-1").strip()
    if header == "*":
        return _every_tag
    return frozenset(_TAG.findall(header)).__contains__


def _every_tag(_: str) -> bool:
    return True
