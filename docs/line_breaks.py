"""A MkDocs hook that defines where a line may break.

A line does not break within a number, such as 1 000 000, or between a number and its unit.  In the heading of a class
or a function, it breaks after a dot rather than within a name.  A command in a sentence breaks at a space; extra.css
keeps its options in one piece.
"""

import re
from typing import Any

_NOT_TEXT = re.compile(r"(<pre\b.*?</pre>|<[^>]*>)", re.DOTALL)
_SPACE = re.compile(r"(?<=\d) (?=\d{3}(?!\d)|(?:[num]?s|min|h|[KMG]i?B|kB)\b|%)")
_CODE = re.compile(r"(?P<block><pre\b.*?</pre>)|<code>(?P<text>[^<]*)</code>", re.DOTALL)
# Browsers may break a line after each of these characters.  A longer word does not fit the width of every phone.
_WORD = re.compile(r"(?<!\S)(?=\S{1,32}(?!\S))\S*[-/?|]\S*")
_HEADING = re.compile(r'(<span class="doc doc-object-name[^>]*>)([^<]*)')


def on_page_content(html: str, **_: Any) -> str:
    """Replace these spaces with no-break spaces, except in code blocks, and mark where names and code may break."""
    parts = _NOT_TEXT.split(html)
    parts[::2] = [_SPACE.sub("\N{NO-BREAK SPACE}", text) for text in parts[::2]]
    html = _CODE.sub(_in_words, "".join(parts))
    return _HEADING.sub(lambda found: found[1] + found[2].replace(".", ".<wbr>"), html)


def _in_words(found: "re.Match[str]") -> str:
    if found["block"]:
        return found[0]
    words = _WORD.sub(r'<span class="word">\g<0></span>', found["text"])
    return f"<code>{words}</code>"
