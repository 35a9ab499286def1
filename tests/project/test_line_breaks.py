"""The hook of the documentation that decides where a line may break."""

import importlib.util
from pathlib import Path

import pytest

HOOK = Path(__file__).parent.parent.parent / "docs" / "line_breaks.py"


@pytest.mark.parametrize(
    ("html", "shown"),
    [
        ("<p>1 000 000 tasks in 5 s, 10 % late</p>", "<p>1~000~000 tasks in 5~s, 10~% late</p>"),
        ("<td>after 250 ms or 3 MiB</td>", "<td>after 250~ms or 3~MiB</td>"),
        ("<p>at 8 seconds 12 of 20 shards</p>", "<p>at 8 seconds 12 of 20 shards</p>"),
        ('<img alt="5 000 rows" width="1 000">', '<img alt="5 000 rows" width="1 000">'),
        ("<pre><code>sleep(5 000)\n1 000</code></pre> 1 000", "<pre><code>sleep(5 000)\n1 000</code></pre> 1~000"),
        (
            '<h2><span class="doc doc-object-name doc-class-name">purgatory.asgi.Wait</span> v1.2</h2>',
            '<h2><span class="doc doc-object-name doc-class-name">purgatory.<wbr>asgi.<wbr>Wait</span> v1.2</h2>',
        ),
        (
            "<p><code>python -m tool --rows docs/a.py?b x</code>, <code>a.b(c)</code></p>",
            (
                '<p><code>python <span class="word">-m</span> tool <span class="word">--rows</span>'
                ' <span class="word">docs/a.py?b</span> x</code>, <code>a.b(c)</code></p>'
            ),
        ),
        (
            "<pre><code>tool --rows</code></pre> <code>--a &lt;b-c&gt;</code>",
            (
                '<pre><code>tool --rows</code></pre> <code><span class="word">--a</span>'
                ' <span class="word">&lt;b-c&gt;</span></code>'
            ),
        ),
        ("<code>tests/a/name/longer/than/a/line.py</code>",) * 2,
        ("<code>x-y<br>--z</code>, <code><a href='b-c'>d-e</a></code>",) * 2,
    ],
)
def test_where_a_line_may_break(html: str, shown: str) -> None:
    """Groups of digits and units follow a no-break space in text; a long name breaks at a dot, a command at a space."""
    spec = importlib.util.spec_from_file_location("line_breaks", HOOK)
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    assert hook.on_page_content(html, page=None) == shown.replace("~", "\N{NO-BREAK SPACE}")
