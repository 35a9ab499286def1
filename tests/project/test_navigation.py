"""The navigation of the site: a reader can guess the tab of a page from its kind, and its folder from its tab."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
TABS = {  # the tabs in which the pages of a folder may be
    "tutorial": {"Start"},
    "how-to": {"How-to", "Spark"},
    "reference": {"Reference"},
    "evidence": {"Evidence"},
}


def _navigation() -> Iterator[tuple[str, str]]:
    """Yield each page in the navigation with its tab."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    (nav,) = re.findall(r"^nav:[^\n]*\n((?: +.*\n)+)", text, re.MULTILINE)
    tab = ""
    for line in nav.splitlines():
        if found := re.match(r"  - (?P<tab>[\w-]+):$", line):
            tab = found["tab"]
        elif found := re.search(r"(?P<page>[\w/-]+\.md)$", line):
            yield found["page"], tab


PAGES = list(_navigation())


def test_each_page_is_in_the_navigation_once() -> None:
    """The navigation has every page of the documentation, and none twice."""
    assert sorted(page for page, _ in PAGES) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def test_the_tabs_are_the_kinds_of_pages() -> None:
    """Tutorial, how-to, reference, explanation, and evidence are kept apart."""
    tabs = list(dict.fromkeys(tab for _, tab in PAGES))
    assert tabs == ["Start", "How-to", "Spark", "Reference", "Explanation", "Evidence", "Contributors"]


def test_the_folder_of_a_page_follows_from_its_tab() -> None:
    """The pages of a folder are in the tab of that folder; a page outside of the folders may be in any tab."""
    assert {path.name for path in DOCS.iterdir() if path.is_dir() and list(path.glob("*.md"))} == set(TABS)
    folders = {page: page.partition("/")[0] for page, _ in PAGES if "/" in page}
    assert [page for page, tab in PAGES if page in folders and tab not in TABS[folders[page]]] == []
