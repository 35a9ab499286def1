"""A MkDocs hook: a line does not break within a number, as in 1 000 000, or between a number and its unit."""

import re
from typing import Any

_NOT_TEXT = re.compile(r"(<pre\b.*?</pre>|<[^>]*>)", re.DOTALL)
_SPACE = re.compile(r"(?<=\d) (?=\d{3}(?!\d)|(?:[num]?s|min|h|[KMG]i?B|kB)\b|%)")


def on_page_content(html: str, **_: Any) -> str:
    """Replace these spaces by no-break spaces, except in blocks of code, which readers copy."""
    parts = _NOT_TEXT.split(html)
    parts[::2] = [_SPACE.sub("\N{NO-BREAK SPACE}", text) for text in parts[::2]]
    return "".join(parts)
