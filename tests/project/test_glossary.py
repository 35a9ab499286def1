"""One word for one thing: the glossary has an entry for each, and the prose uses no other word for it."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import purgatory

ROOT = Path(__file__).parent.parent.parent
PACKAGE = Path(purgatory.__file__).parent
GLOSSARY = ROOT / "docs" / "glossary.md"
WORDS = (
    "Abandon",
    "Answer",
    "Cancel",
    "Check",
    "Close",
    "Engine",
    "Expire",
    "Key",
    "Notice",
    "Park",
    "Relay",
    "Threshold",
    "Turn",
    "Value",
    "Wait",
    "Watcher",
    "Withdraw",
)


@dataclass(frozen=True)
class Other:
    """Other ways to say something: the pattern that finds them, some of them, and what to write instead."""

    pattern: str
    finds: tuple[str, ...]
    write: str

    def search(self, text: str) -> Iterator[re.Match[str]]:
        return re.finditer(self.pattern, text, re.IGNORECASE)


OTHERS = (
    Other(
        r"\bloop('s)? (next )?(iteration|cycle)|\b(iterations?|cycles?) of (the|an|its) (event )?loop",
        ("one loop iteration", "the loop's next iteration", "an iteration of the event loop", "two cycles of the loop"),
        "turn of the event loop",
    ),
    Other(r"\bwait(s|ed|ing)? at (a|an|the|its|one) key\b", ("waits at the key",), "waits on the key"),
    Other(
        r"\bpark(s|ed|ing)? (requests?|an? operation|operations?) at (a |the |its )?keys?\b",
        ("park requests at keys", "parks an operation at its key"),
        "park under its keys",
    ),
    Other(
        r"\b(enqueues?|queues? up) (an?|the|its) (operation|request)\b",
        ("enqueue the operation", "queues up a request"),
        "park",
    ),
    Other(
        r"\b(listener|subscriber|observer)s? (of|on|to) (a|the|its|one) key\b", ("the listeners of a key",), "watcher"
    ),
    Other(
        r"\b(notify|notifies|signals?|pings?|pokes?) (a|the|its|every) key\b",
        ("signals the key", "notify a key"),
        "check",
    ),
    Other(
        r"\blevels? (that|which) (only )?rises?\b|\blevels? of (a|the|its) key\b|\bkey's level\b|\bvalues are levels\b",
        ("a level that only rises", "levels that rise", "the level of its key", "the key's level", "Values are levels"),
        "value",
    ),
    Other(
        r"\bminim(um|al) value (of|for) (a|an|the) (operation|request)|\b(is|are) reached by (a|the) level\b",
        ("the minimum value for an operation", "a threshold is reached by the level"),
        "threshold",
    ),
    Other(
        r"\b(operation|request|wait)s? (that )?(times?|timed|have timed|has timed) out\b",
        ("the operation timed out", "requests that time out"),
        "expire",
    ),
    Other(
        r"\bshut(s|ting)? (down )?(a|an|the|its|this) purgatory|\bpurgatory (is|was) (stopped|shut down|terminated)",
        ("shuts down the purgatory", "the purgatory is stopped"),
        "close",
    ),
    Other(r"\bcancel(ed|ing)\b", ("canceled", "canceling"), "cancelled, cancelling"),
    Other(r"\b(retract|takes? back)(s|ed)? (an?|the|its) (operation|wait)\b", ("retracts the operation",), "withdraw"),
    Other(r"\borphan(s|ed)? (operation|result|answer)s?\b", ("an orphaned result",), "abandon"),
    Other(
        r"\brelay('s)? (message|notification|event(?! loop))s?\b"
        r"|\brelays? (send|publish|receive)(s|es)? (a |the )?notification",
        ("relay messages", "a relay sends notifications"),
        "notice",
    ),
    Other(
        r"\brelay('s)? (backend|broker|bus)\b|\b(backend|broker|bus)(es|s)? of (a|the) relay\b",
        ("the relay's backend", "brokers of the relay"),
        "engine",
    ),
    Other(
        r"\b(propagator|broadcaster|bridge)s? between (the )?(workers|processes)\b",
        ("bridges between processes",),
        "relay",
    ),
    Other(r"\b(respond|repl(y|ies))s? to (a|the|each|every) waiters?\b", ("replies to every waiter",), "answer"),
    # What a copy editor has mended, so that it does not return.
    Other(r"\b(is|are) (that|those) of\b", ("its cost is that of the web stack",), "a possessive, or the noun again"),
    Other(
        r"\bcontenders take turns\b|\bis out\b(?! of)|\band so on uvloop\b|\bwithout a word\b|\bfalls? away\b"
        r"|\bharms? itself only\b|\bset beforehand\b|\bwaits? over midnight\b|\bwhose text raises\b"
        r"|\brows that would make\b|\bthe time is theirs\b|\bmeets? a house\b|\bfelt for\b",
        ("The contenders take turns", "an observer that raises is out", "nothing is lost without a word"),
        "plain words",
    ),
    # Numbers as English technical books print them.
    Other(r"(?<![\d.,:-])\d{1,3}( \d{3})+(?![\d-])", ("10 000 timers", "1 000 000"), "10,000"),
    Other(r"\d %(?!\w)", ("99.9 % of", "5 %"), "99.9%"),
    Other(r"\d ?(?-i:us|\u03bcs)\b", ("1.24 us", "3 \u03bcs"), "µs, with the micro sign"),
)
# A word of another subject: an excerpt that one of the patterns finds.
ELSEWHERE: dict[str, str] = {}


def _prose(page: str) -> str:
    """Return the page with its code and its links replaced by blanks, line for line."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    page = re.sub(r"^ *(```+|~~~+).*?^ *\1 *$", blank, page, flags=re.MULTILINE | re.DOTALL)
    page = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", blank, page)
    return re.sub(r"(?<=\])\([^)\s]*\)", blank, page)


@cache
def _texts() -> list[tuple[str, str]]:
    """Return each text with its place: the pages, and the docstrings of the package."""
    pages = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    texts = [(str(path.relative_to(ROOT)), _prose(path.read_text(encoding="utf-8"))) for path in pages]
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.AsyncFunctionDef | ast.FunctionDef):
                text = ast.get_docstring(node)
                if text is not None:
                    place = f"{path.relative_to(PACKAGE.parent)}: {getattr(node, 'name', 'module')}"
                    texts.append((place, _prose(text)))
    return texts


def test_there_is_one_entry_for_each_word() -> None:
    """The glossary lists the words in the order of the alphabet, each with a definition."""
    entries = re.findall(r"^\*\*(\w+)\*\*\n:   \S", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)
    assert entries == sorted(WORDS) == list(WORDS)


def test_pages_and_docstrings_are_read() -> None:
    """The search covers the README, the documentation, and the docstrings of every part of the package."""
    places = [place for place, _ in _texts()]
    assert {"README.md", "docs/index.md", "docs/how-to/fastapi.md"} <= set(places)
    assert sum(place.startswith("purgatory/") for place in places) > 1_000


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: other.write)
def test_a_pattern_finds_its_examples(other: Other) -> None:
    """Each pattern finds each form that it is meant for, and not what is to be written instead."""
    for example in other.finds:
        assert list(other.search(example)), example
    assert not list(other.search(other.write))


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: other.write)
def test_no_other_word_is_used(other: Other) -> None:
    """No page and no docstring uses another word for a thing that the glossary names."""
    found = [
        f"{place}: ...{text[max(0, match.start() - 40) : match.end() + 30]}..."
        for place, text in _texts()
        for match in other.search(re.sub(r"\n(?!\s*\d)", " ", text))
        if match[0] not in ELSEWHERE
    ]
    assert found == [], f"write {other.write!r}"


def test_code_is_not_prose() -> None:
    """Blocks, inline code, and addresses are left out; the words around them are not."""
    page = "a `b 5 %` c [d](e%20f)\n```python\n10 000\n```\ng 5 % h\n"
    assert _prose(page).split() == ["a", "c", "[d]", "g", "5", "%", "h"]
