"""The serial comma: a list of three or more short items has a comma before its last "and" or "or".

The search is a heuristic.  It finds lists whose items are one or two words or a piece of code each.  It skips what only
looks like such a list: "in a task, parking and checking", "the server, which reads and writes", "with or without".
"""

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import purgatory

ROOT = Path(__file__).parent.parent.parent
PACKAGE = Path(purgatory.__file__).parent
PAGES = sorted([*(path for path in ROOT.glob("*.md") if "zh-CN" not in path.name), *(ROOT / "docs").rglob("*.md")])

# What the search finds but is no list: two things in apposition, or a pair of verbs after an insertion.
NO_LISTS = {
    "RFC 9110, sections 8.8.3 and 13.1.2",
    "`--freeze`, parking and completing",
    "`aio`, interpreted and compiled",
    "`purgatory.asgi`, awaits `receive()` and withdraws",
    "a `WatchList`, circular and doubly",
    "key, threshold or None",
    "numbers, the shortest and the longest",
    "own waits, `wait_until` and `wait_value`",
    "reached, an int or a float",
    "the Java client, reads and writes",
    "the operation failed, the status ERROR and the exception",
    "the source, `parquet` or `json`",
}

_WORD = r"(?:`[^`\s]+`|[\w'\u2019./-]*[\w'\u2019])"
_ITEM = rf"(?:(?:a|an|the) )?{_WORD}(?: {_WORD})?"
_LIST = re.compile(rf"(?<![\w`-])(?P<items>{_ITEM}(?:, {_ITEM})+) (?:and|or) (?P<last>(?:(?:a|an|the) )?{_WORD})")
_CODE = re.compile(r"(?::\w+:)?(`+)(?!`)((?:(?!\n\s*\n).)+?)(?<!`)\1(?!`)", re.DOTALL)
_FENCE = re.compile(r"^ *(```+|~~~+).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)")
_START = re.compile(r"(?:[.;:!?]\s+|[(|\u2014]|(?:^|\n)\s*)(?:(?:[-*+]|\d+\.)\s+)?")  # of a clause, an item or a cell
# No item of a list begins with, or contains, one of these words.
_NO_ITEMS = re.compile(
    r"\b(?:after|all|also|although|and|another|are|as|at|be|because|been|before|both|but|by|did|do|does|each|either|"
    r"else|empty|even|every|except|for|from|had|has|have|he|her|here|his|how|however|if|in|including|instead|"
    r"into|is|it|its|just|like|neither|no|nor|not|now|of|on|once|one|only|onto|or|other|our|out|over|see|since|"
    r"so|some|still|such|than|that|their|them|then|there|therefore|these|they|this|those|though|to|twice|under|"
    r"unless|until|up|use|was|we|were|what|when|where|whether|which|while|who|whose|with|without|yet|you|your)\b",
    re.IGNORECASE,
)
# A clause that begins with one of these words ends at its first comma.
_INTRODUCES = re.compile(
    r"\b(?:after|although|as|at|because|before|besides|beyond|both|by|despite|during|even|for|from|given|if|in|"
    r"instead|like|more|of|on|once|only|outside|over|since|through|to|under|unless|unlike|until|what|when|where|"
    r"whether|while|with|within|without)\b",
    re.IGNORECASE,
)


def _text(page: str) -> str:
    """Return the page without blocks of code; each piece of code and each link is one word, each paragraph one line."""
    page = _FENCE.sub("\n", page)
    page = _CODE.sub(lambda code: "`" + re.sub(r"[\s,]+", "_", code[2]) + "`", page)
    page = _LINK.sub(lambda link: re.sub(r"[\s,`]+", "_", link[1]), page)
    page = re.sub(r"\*+(?=\S)|(?<=\S)\*+|[\[\]]", "", page)
    return re.sub(r"[ \t]*\n(?!\s*\n|[ \t]*(?:[-*+|#]|\d+\.)\s)[ \t]*", " ", page)


def lists_without_comma(page: str) -> Iterator[str]:
    """Yield each list of short items without a comma before its last "and" or "or"."""
    text = _text(page)
    position = 0
    while found := _LIST.search(text, position):
        position = found.start() + 1
        words = re.sub(r"`[^`]*`", "", f"{found['items']} {found['last']}")
        clause = _START.split(text[max(0, found.start() - 500) : found.start()])[-1] + found["items"]
        longer = re.match(r"[^.;:|\n]*, (?:and|or)\b", text[found.end() :])  # the pair is one item of a longer list
        if not (_NO_ITEMS.search(words) or _INTRODUCES.match(clause.lstrip()) or longer):
            position = found.end()
            yield found[0]


def _comments(source: str) -> Iterator[str]:
    """Yield each block of comments."""
    block: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                yield " ".join(block)
                block = []
            block.append(token.string.lstrip("#: "))
            last = token.start[0]
    yield " ".join(block)


@functools.cache
def texts() -> list[tuple[str, str]]:
    """Return each text with its place: the pages, and the docstrings and comments of the package."""
    return list(_texts())


def _texts() -> Iterator[tuple[str, str]]:
    for path in PAGES:
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for path in sorted(PACKAGE.rglob("*.py")):
        place = str(path.relative_to(PACKAGE.parent))
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.AsyncFunctionDef | ast.FunctionDef):
                docstring = ast.get_docstring(node)
                if docstring is not None:
                    yield f"{place}: {getattr(node, 'name', 'module')}", docstring
        yield from ((f"{place}: a comment", comment) for comment in _comments(source))


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ("The commands build, test and publish the wheels.", "build, test and publish"),
        ("Postgres, Redis, Valkey or NATS carries the notices.", "Postgres, Redis, Valkey or NATS"),
        ("A check tries `a`,\n`b` and `c` in order.", "tries `a`, `b` and `c`"),
        ("It parks the request, the task\nand the timer.", "the request, the task and the timer"),
        ("| rows | red, dark red or blue |", "red, dark red or blue"),
        ("See [the page](a.md), [the other](b.md) and [FAQ](c.md).", "the_page, the_other and FAQ"),
    ],
)
def test_a_list_without_the_comma_is_found(text: str, listed: str) -> None:
    """A list of words, of code, of links, and over a line break is found if its last comma is missing."""
    assert [listed in found for found in lists_without_comma(text)] == [True]
    assert list(lists_without_comma(re.sub(r"\s(and|or)\s", r", \1 ", text))) == []


@pytest.mark.parametrize(
    "text",
    [
        "In a task, parking and checking raise nothing.",
        "Text. If the timer is closed, parking and checking raise.",
        "Text.\n- With threads, `check` and `check_soon` raise.",
        "The server, which reads and writes, stops.",
        "It runs on asyncio, with or without uvloop.",
        "The pages are locks, limits and overload, and threads.",
        "Read [locks, limits and threads](a.md).",
        "*   In a task, parking and checking raise.\n*   With threads, `check` and `check_soon` raise.",
        "```\nred, green and blue\n```",
        "`red, green and blue`",
        "one,\n\ntwo and three",
    ],
)
def test_what_only_looks_like_a_list_is_not_found(text: str) -> None:
    """Introductory phrases, clauses, pairs within a list, code, and titles are not lists without a comma."""
    assert list(lists_without_comma(text)) == []


def test_the_search_finds_most_lists_of_the_documentation() -> None:
    """If all lists lost their last commas, hundreds of them would be found."""
    found = [place for place, text in texts() for _ in lists_without_comma(re.sub(r",(\s(?:and|or)\s)", r"\1", text))]
    assert len([place for place in found if place.startswith("docs/")]) > 150
    assert len([place for place in found if place.startswith("purgatory/")]) > 100


def test_every_list_has_the_serial_comma() -> None:
    """No page, docstring or comment contains a list of short items without a comma before the last one."""
    found = [(place, listed) for place, text in texts() for listed in lists_without_comma(text)]
    assert [(place, listed) for place, listed in found if listed not in NO_LISTS] == []
