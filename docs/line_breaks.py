"""A MkDocs hook: where a line may break.

Not within a number, as in 1 000 000, nor between a number and its unit; in the heading of a class or a function, after
a dot rather than within a name.
"""

import re
from typing import Any

_NOT_TEXT = re.compile(r"(<pre\b.*?</pre>|<[^>]*>)", re.DOTALL)
_SPACE = re.compile(r"(?<=\d) (?=\d{3}(?!\d)|(?:[num]?s|min|h|[KMG]i?B|kB)\b|%)")
_HEADING = re.compile(r'(<span class="doc doc-object-name[^>]*>)([^<]*)')


def on_page_content(html: str, **_: Any) -> str:
    """Replace these spaces by no-break spaces, except in blocks of code, and mark where long names may break."""
    parts = _NOT_TEXT.split(html)
    parts[::2] = [_SPACE.sub("\N{NO-BREAK SPACE}", text) for text in parts[::2]]
    return _HEADING.sub(lambda found: found[1] + found[2].replace(".", ".<wbr>"), "".join(parts))
