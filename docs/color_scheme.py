"""A MkDocs hook that makes a picture in two color schemes follow the page's own switch between light and dark.

In Markdown, ``<picture>`` lets GitHub choose the picture by the reader's system setting, which the switch does not
change.
"""

import re
from typing import Any

_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)"\s*/?>'
    r'\s*<img alt="([^"]*)" src="([^"]+)"\s*/?>\s*</picture>'
)


def on_page_content(html: str, **_: Any) -> str:
    """Replace the element with two images, of which the theme shows one."""
    return _PICTURE.sub(r'<img alt="\2" src="\3#only-light"><img alt="\2" src="\1#only-dark">', html)
