"""The hook of the documentation that keeps a number on one line."""

import importlib.util
from pathlib import Path

import pytest

NUMBERS = Path(__file__).parent.parent.parent / "docs" / "numbers.py"


@pytest.mark.parametrize(
    ("html", "shown"),
    [
        ("<p>1 000 000 tasks in 5 s, 10 % late</p>", "<p>1~000~000 tasks in 5~s, 10~% late</p>"),
        ("<td>after 250 ms or 3 MiB</td>", "<td>after 250~ms or 3~MiB</td>"),
        ("<p>at 8 seconds 12 of 20 shards</p>", "<p>at 8 seconds 12 of 20 shards</p>"),
        ('<img alt="5 000 rows" width="1 000">', '<img alt="5 000 rows" width="1 000">'),
        ("<pre><code>sleep(5 000)\n1 000</code></pre> 1 000", "<pre><code>sleep(5 000)\n1 000</code></pre> 1~000"),
    ],
)
def test_no_line_breaks_within_a_number(html: str, shown: str) -> None:
    """Groups of digits and units follow a no-break space, except in tags and in blocks of code."""
    spec = importlib.util.spec_from_file_location("numbers_hook", NUMBERS)
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    assert hook.on_page_content(html, page=None) == shown.replace("~", "\N{NO-BREAK SPACE}")
