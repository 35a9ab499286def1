"""The README in its languages, and the links in the documentation."""

import ast
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from purgatory.testing import parked
from tests.testclient import TestClient

ROOT = Path(__file__).parent.parent.parent
ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)[^)]*\)|(?:src|srcset|href)=\"([^\"]+)\"")
_CODE = re.compile(r"`([^`\n]+)`")


def blocks(path: Path) -> list[tuple[str, str]]:
    """Return the code blocks of the page, by language, without comments and docstrings."""
    return [(language, _bare(language, text)) for language, text in _FENCE.findall(path.read_text(encoding="utf-8"))]


def _bare(language: str, text: str) -> str:
    if language != "python":
        return re.sub(r"[ ]+# .*$", "", text, flags=re.MULTILINE)
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
            node.body = node.body[1:]
    return ast.unparse(tree)


def prose(path: Path) -> str:
    """Return the page without its code blocks."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def links(page: str) -> list[str]:
    """Return the link targets of the page, in order."""
    return [first or second for first, second in _LINK.findall(page)]


def headings(page: str) -> list[str]:
    """Return the headings of the page, with their levels."""
    return re.findall(r"^#+ .+$", page, re.MULTILINE)


def test_both_have_the_same_code() -> None:
    """Both pages contain the same code blocks and commands in the same order; only comments differ."""
    assert blocks(ENGLISH) == blocks(CHINESE)
    assert len(blocks(ENGLISH)) >= 5


def test_both_have_the_same_sections() -> None:
    """Both pages have the same heading levels, and each section has as many paragraphs, items and rows."""

    def shape(path: Path) -> list[tuple[int, int, int, int]]:
        parts = re.split(r"^(?=#+ )", prose(path), flags=re.MULTILINE)[1:]
        return [
            (
                len(part) - len(part.lstrip("#")),
                len(re.findall(r"\n\n(?=[^\n#])", part)),
                len(re.findall(r"^(?:-|\d+\.) ", part, re.MULTILINE)),
                len(re.findall(r"^\|", part, re.MULTILINE)),
            )
            for part in parts
        ]

    assert shape(ENGLISH) == shape(CHINESE)


def test_both_lead_to_the_same_places() -> None:
    """Both pages have the same links in the same order, except those to each other, and the same names in code."""
    english, chinese = links(prose(ENGLISH)), links(prose(CHINESE))
    assert english.pop(0) == CHINESE.name
    assert chinese.pop(0) == ENGLISH.name
    assert sorted(english) == sorted(chinese)
    assert sorted(_CODE.findall(prose(ENGLISH))) == sorted(_CODE.findall(prose(CHINESE)))


def test_both_state_the_same_numbers() -> None:
    """Each section of both pages contains the same numbers outside of code, except those of list items."""

    def numbers(path: Path) -> list[list[str]]:
        page = prose(path).replace("十万", "100,000")
        page = re.sub(r"^\d+\. |<[^>]*>|\]\([^)]*\)", " ", _CODE.sub(" ", page), flags=re.MULTILINE)
        parts = re.split(r"^(?=#+ )", page, flags=re.MULTILINE)
        return [sorted(re.findall(r"\d+(?:[,.]\d+)*", part)) for part in parts]

    assert numbers(ENGLISH) == numbers(CHINESE)
    assert sum(map(len, numbers(ENGLISH))) > 20


def test_the_commands_of_the_readme_are_marked() -> None:
    """One command is marked as the test and one as the run; each is one line that needs only Python."""
    commands = [text for language, text in _FENCE.findall(ENGLISH.read_text(encoding="utf-8")) if language == "sh"]
    marked = re.findall(r"^(.*\S) +# (run|test)$", "".join(commands), re.MULTILINE)
    assert [name for _, name in marked] == ["run", "test"]
    for command, _ in marked:
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")


def test_the_home_page_has_the_example_of_the_readme() -> None:
    """The first example of the documentation is that of the README; only comments differ."""
    (readme, *_), (home, *_) = (
        [text for language, text in blocks(path) if language == "python"]
        for path in (ENGLISH, ROOT / "docs" / "index.md")
    )
    assert "FastAPI" in readme
    assert home == readme


@pytest.mark.skipif(find_spec("fastapi") is None, reason="needs fastapi")
def test_the_program_of_the_readme_answers() -> None:
    """The program answers 204 if nothing is there and the client does not wait, the order if one comes while it waits,
    and 422 for a number that no order has.
    """
    (program, *_) = (text for language, text in blocks(ENGLISH) if language == "python")
    names = vars(module := ModuleType("readme"))
    sys.modules["readme"] = module  # FastAPI looks up the types of the annotations there
    try:
        exec(compile(program, str(ENGLISH), "exec", dont_inherit=True), names)
    finally:
        del sys.modules["readme"]  # but not what the program has imported, as patch.dict() would
    with TestClient(names["app"]) as client, ThreadPoolExecutor(1) as browser:
        assert client.get("/orders").status_code == 204
        polling = browser.submit(client.get, "/orders?after=0&wait=30")
        assert client.portal is not None
        client.portal.call(parked, names["room"])
        assert client.post("/orders/apples").status_code == 200
        assert polling.result(30).json() == ["apples"]
        assert client.get("/orders?after=1").status_code == 204
        for after in ("9" * 400, "-" + "9" * 400, "-3"):
            assert client.get(f"/orders?wait=30&after={after}").status_code == 422
        assert client.get("/healthz/").json() == {"status": "open"}


def anchors(path: Path) -> set[str]:
    """Return the anchors of the page, as MkDocs and GitHub create them from its headings."""
    return {re.sub(r"[ ]+", "-", re.sub(r"[^\w\- ]", "", title.lower()).strip()) for title in _titles(prose(path))}


def _titles(page: str) -> Iterator[str]:
    for heading in headings(page):
        yield re.sub(r"[`*]|\]\([^)]*\)", "", heading.lstrip("# "))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    """Every linked page, picture and anchor exists, and only URLs are absolute."""
    dead = []
    for target in links(prose(path)):
        if re.match(r"https?://|mailto:", target):
            continue
        name, _, anchor = target.partition("#")
        place = (path.parent / name).resolve() if name else path
        is_there = place.is_relative_to(ROOT) and place.exists() and not target.startswith("/")
        if not is_there or (anchor and place.suffix == ".md" and anchor not in anchors(place)):
            dead.append(target)
    assert dead == []


def test_the_first_page_leads_to_every_other() -> None:
    """The index links to every page, and to the first page of the reference, which links to the others."""
    docs = ROOT / "docs"
    named = {(docs / target.partition("#")[0]).resolve() for target in links(prose(docs / "index.md"))}
    pages = {path for path in docs.rglob("*.md") if path.parent.name != "reference"} - {docs / "index.md"}
    assert sorted(str(path.relative_to(docs)) for path in pages - named) == []
    assert docs / "reference" / "purgatory.md" in named


def test_there_are_links_to_look_at() -> None:
    """The search finds links, pictures and anchors."""
    found = [target for path in PAGES for target in links(prose(path))]
    assert any(target.endswith(".svg") for target in found)
    assert any("#" in target for target in found)
    assert len(found) > 100
