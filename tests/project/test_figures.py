"""Figures in the documentation: each is next to the command that prints it, or the test that verifies it.

A figure is a number with a unit (``1.24 us``, ``214 MiB``, ``260x``, ``95 %``, ``4 699 round trips/s``), a large number
of things (``10 000 connections``, ``a million operations``) or a row of numbers that was printed, in README or docs.
A figure is allowed in these places:

* in a section that contains, in code, a command or a test that shows it (``SHOWS``);
* in a section with a link to a page that contains the same figure, which is checked there (``LINKED``);
* between the marks of ``benchmarks.report``, which writes the figure from saved runs, as checked here;
* in the output of a Python block, which ``test_docs`` runs, or next to such a block that contains the same number;
* in the row of a table, or in the line, that names the option of a command whose default it is;
* in ``DEFINED``, with the reason, if it is a definition and not a measurement.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks.report import main as report

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md")])
LINKED = {  # the pages with figures that other pages may repeat behind a link
    path.name: path
    for path in (
        ROOT / "docs" / "performance.md",
        ROOT / "docs" / "guarantees.md",
        ROOT / "docs" / "evidence" / "benchmarks.md",
    )
}

# Commands and tests that print figures, or fail if the figures are not reached.
SHOWS = re.compile(
    r"python -m (?P<module>benchmarks(?:\.\w+)?|examples\.\w+\.(?:load|soak)"
    r"|examples\.(?:hangs|join_group|simple_wheel)"
    r"|tests\.(?:proof|relay)\.\w+|purgatory\.pipeline)\b"
    r"|\n(?:\$ )?purgatory (?P<command>report|compare|replay|estimate|stream|backfill) "
    r"|python (?P<script>(?:benchmarks|docs)/\w+\.py)"
    r"|(?P<disk>du -sh)|(?P<coverage>bash \.ci/coverage)"
    r"|(?P<test>tests/[\w/]+\.py)"
    r"|(?P<pytest>pytest tests/\w+)|(?P<page>`GET /\w+)"
)

DEFINED = {
    "README.md": {"1 ms by default": "the default of tick_ms"},
    "README.zh-CN.md": {"默认 1 毫秒": "the default of tick_ms"},
    "docs/cluster.md": {
        "with one core and 1 GB each": "the numbers in local-cluster[2,1,1024]",
        "1 GB of heap for Java, and 1 GB for Python": "a recommended setting",
        "1 GB of heap, and 0.5 GB of overhead": "a recommended setting",
    },
    "docs/faq.md": {"1 ms by default": "the default of tick_ms"},
    "docs/how-to/fastapi.md": {"holds up to 1 MiB": "a constant of purgatory/asgi/connection.py"},
    "docs/how-to/several-workers.md": {
        "random pauses that grow to at most 5 s": "a constant of purgatory/relay/timing.py",
        "a separate pause of up to 5 s": "the same constant",
        "grow to at most 5 s.": "the same constant",
        "at most 7,999 bytes": "the limit of Postgres, in purgatory/relay/postgres.py",
        "at most 32,768 bytes (the transport's limit)": "a constant of purgatory/relay/redis.py and nats.py",
        "at most 91 bytes long on Linux": "the limit of the system, in purgatory/relay/unix.py",
    },
    "docs/how-to/testing-time.md": {"parks for 5 seconds": "an example"},
    "docs/kafka-differences.md": {
        "every 1,000 completed operations": "Kafka's default",
        "a timeout of 200 ms": "a constant of Kafka's",
    },
    "docs/long-poll.md": {"is available | 4 MiB": "a default, in examples/long_poll/parameters.py"},
    "docs/evidence/benchmarks.md": {
        "(1 ms by default)": "the default of turn_budget_ms",
        "a tick of 1 ms": "the default of tick_ms",
    },
    "docs/pipeline.md": {
        "1 GB for the driver": "a setting, in purgatory/pipeline/spark/session.py",
        "wait of more than 65.536 s": "16 significant bits of a count; purgatory/pipeline/report/aggregates.py",
        "by less than 1 part in 32,000": "the same bits",
        "quantiles of 256 ms or more": "8 significant bits of a count; purgatory/pipeline/report/aggregates.py",
        "at most 2,000 of": "a constant of purgatory/pipeline/report/report.py",
        "within 5% of that": "a constant of purgatory/pipeline/replay/recommendation.py",
    },
}

_NUMBER = r"(?<![\w.,/-])\d+(?:[ ,\u00a0\u202f]\d{3}(?!\d))*(?:\.\d+)?"
_UNIT = (
    r"(?:ns|us|µs|ms|s|min|h|[KMGT]iB|[kKMGT]B|bytes|bits|x|%|percent|times"
    r"|(?:nano|micro|milli)?seconds?|minutes?|hours?|days?|纳秒|微秒|毫秒|秒|分钟|小时|天|倍|字节)(?![A-Za-z])"
)
_RATE = r"(?:[a-z]+ ){0,2}[a-z]+/s\b"
_LARGE = (
    r"(?<![\w.,/-])(?:\d{1,3}(?:[ ,\u00a0\u202f]\d{3})+|[MmBb]illions?(?: of)?)(?= [a-z])"
    r"|[一二三四五六七八九十百千两]+[万亿]"
)
FIGURE = re.compile(rf"(?P<measured>{_NUMBER} ?(?:{_UNIT}|{_RATE}))|(?P<large>{_LARGE})")

_FENCE = re.compile(r"^ *```(?P<language>\S*)")
_HEADING = re.compile(r"^#+ +(?P<title>.+)$")
_MARKS = re.compile(r"<!-- figures: \w+ -->.*?<!-- end of figures -->", re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_TARGET = re.compile(r"\]\([^)]*\)|<[a-z/][^>]*>")
_ALONE = re.compile(r"(?<!\S)\d[\d,]*(?:\.\d+)?(?!\S)")
_RUN = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_WORDS = {
    "millions of": "1000000",
    "million of": "1000000",
    "million": "1000000",
    "一百万": "1000000",
    "十万": "100000",
    "毫秒": "ms",
    "秒": "s",
}


@dataclass
class Section:
    """The text below one heading: the lines that may contain figures, and all of its text."""

    page: Path
    title: str
    lines: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)  # those that are the output of a command
    text: str = ""


def sections(path: Path, page: str) -> Iterator[Section]:
    """Yield the sections of the page."""
    section = Section(path, "")
    language: str | None = None
    after_python = False
    for line in _MARKS.sub("", page).splitlines():
        fence = _FENCE.match(line)
        if language is None and (heading := _HEADING.match(line)):
            yield section
            section = Section(path, heading["title"])
            after_python = False
        elif fence and language is None:
            language = fence["language"] + (" that is run" if after_python else "")
        elif fence:
            after_python, language = language == "python", None
        elif language in {"text", ""}:
            section.lines.append(line)
            section.printed.append(line)
        elif language is None:
            after_python = after_python and not line.strip()
            section.lines.append(line)
        section.text += line + "\n"
    yield section


def figures(section: Section) -> Iterator[tuple[str, str]]:
    """Yield each figure of the section, with its line."""
    for line in section.lines:
        prose = _TARGET.sub("]", _CODE.sub(" ", line))
        for found in FIGURE.finditer(prose):
            yield found[0], line
    for line in section.printed:
        if len(re.findall(_ALONE, line)) >= 3:
            yield "a row of numbers", line


def plain(text: str) -> str:
    """Return the text with numbers and units in a uniform format."""
    text = re.sub(r"[\s,\u00a0\u202f]+", " ", text.lower())
    for words, meaning in _WORDS.items():
        text = text.replace(words, meaning)
    return re.sub(r"(?<=\d) (?=\d{3}(?!\d))", "", text)


def has(text: str, figure: str) -> bool:
    """Return whether the text contains the whole figure."""
    return re.search(rf"(?<![\w.]){re.escape(plain(figure).strip())}(?!\w)", plain(text)) is not None


def is_shown(section: Section, figure: str, line: str) -> bool:
    """Return whether one of the rules of this file permits the figure."""
    if SHOWS.search(section.text) or re.search(r"`--[a-z]", line):
        return True
    number = re.match(_NUMBER, figure)
    if number and any(has(block, number[0]) for block in _RUN.findall(section.text)):
        return True
    links = [Path(target).name for target in re.findall(r"\]\(([^)#]+)", section.text)]
    if any(has(LINKED[name].read_text(encoding="utf-8"), figure) for name in links if name in LINKED):
        return True
    return any(phrase in line and figure in phrase for phrase in defined(section.page))


def defined(path: Path) -> dict[str, str]:
    """Return the figures that the page defines, each with the reason."""
    return DEFINED.get(path.relative_to(ROOT).as_posix(), {})


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_figure_has_its_command(path: Path) -> None:
    """Every figure has a command that prints it or a test that verifies it."""
    lonely = [
        f"{section.title!r}: {figure!r} in {line.strip()!r}"
        for section in sections(path, path.read_text(encoding="utf-8"))
        for figure, line in figures(section)
        if not is_shown(section, figure, line)
    ]
    assert not lonely, "\n" + "\n".join(lonely)


def test_nothing_is_called_defined_that_is_not_there() -> None:
    """Each entry of ``DEFINED`` is still on its page."""
    stale = [
        (name, phrase)
        for name, phrases in DEFINED.items()
        for phrase in phrases
        if phrase not in (ROOT / name).read_text()
    ]
    assert stale == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_and_test_that_is_named_is_there(path: Path) -> None:
    """Every module, script and test that the documentation names exists."""
    page = path.read_text(encoding="utf-8")
    named = set(re.findall(r"(?:tests|benchmarks|examples|purgatory|docs)/[\w/]+\.py\b", page))
    for module in re.findall(r"python -m ((?:benchmarks|examples|purgatory|tests)[\w.]*\w)", page):
        place = module.replace(".", "/")
        named.add(f"{place}.py" if (ROOT / f"{place}.py").exists() else f"{place}/__main__.py")
    missing = [name for name in named if not (ROOT / name).exists() and not name.startswith("purgatory/")]
    assert missing == []
    if (ROOT / "purgatory").is_dir():
        assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_tables_of_the_benchmarks_are_what_was_saved() -> None:
    """The text between the marks equals the output of ``python -m benchmarks.report`` for the saved runs."""
    assert report(["--check"]) == 0


LONELY = "# Page\n\nSee `python -m benchmarks timers`.\n\n## Fast\n\nIt parks an operation in {}.\n"


@pytest.mark.parametrize(
    "figure", ["1.2 us", "260x", "12 %", "3 000 rows/s", "10 000 connections", "a million operations"]
)
def test_a_lonely_figure_is_found(figure: str) -> None:
    """A command in another section does not count; one in the same section, or a default next to its option, does."""
    page = LONELY.format(figure)
    (section,) = [section for section in sections(ROOT / "docs" / "page.md", page) if section.title == "Fast"]
    ((found, line),) = figures(section)
    assert found in figure
    assert not is_shown(section, found, line)
    for shown in ("`python -m benchmarks timers` prints", "`tests/aio/test_reaper.py` holds", "`--limit`:"):
        section = list(sections(ROOT / "docs" / "page.md", page.replace("It", f"{shown} it")))[-1]
        ((found, line),) = figures(section)
        assert is_shown(section, found, line)


def test_a_table_of_bare_numbers_is_found() -> None:
    """Printed output must be in the same section as its command."""
    *_, section = sections(ROOT / "docs" / "page.md", "# A\n\n```text\n  rows   us  bytes\n 1,000  7.2   0.07\n```\n")
    ((found, line),) = figures(section)
    assert not is_shown(section, found, line)


def test_a_figure_behind_a_link_has_to_stand_there() -> None:
    """A figure with a link to the performance page must be on that page."""
    text = "# A\n\n[Measured](performance.md): {} bytes for a parked operation.\n"
    performance = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    measured = re.search(r"\| (\d{3}) bytes \|", performance)
    assert measured is not None, "the page has no figure in bytes"
    for number, there in ((measured[1], True), ("34", False), ("123456789", False)):
        *_, section = sections(ROOT / "docs" / "page.md", text.format(number))
        ((found, line),) = figures(section)
        assert has(performance, f"{number} bytes") == there
        assert is_shown(section, found, line) == there
