"""The figures of saved runs, written into the documentation.

    python -m benchmarks --json benchmarks/results/compiled.json         on a compiled core, and likewise interpreted
    python -m benchmarks.experiment --sweep --json benchmarks/results/experiment-compiled.json
    python -m benchmarks.report                  writes the tables into the pages of PAGES

A page has pairs of comments, ``<!-- figures: NAME -->`` and ``<!-- end of figures -->``; the text between them is
replaced.  NAME is a section of the table, ``budgets``, ``machine``, or ``experiment``.  For the first shape of the
``server`` section, NAME is ``headline``, or one of the shorter ``readme`` (``readme_zh`` in Chinese) and ``home``.
``everyone`` is the last shape of that section, and ``costs`` is a selection of rows from all sections.  With
``--check``, nothing is written, and the exit status is 1 if a page differs from the saved runs.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .__main__ import SECTIONS
from .row import Row, Scale, Unit, grouped, number, number_of
from .server.load import Shape
from .server.section import ANSWER, CPU, MEMORY, NAMES, OWN_CPU, ours_of, shapes

__all__ = ["RESULTS", "Results", "fill", "load"]

RESULTS = Path(__file__).parent / "results"
_ROOT = Path(__file__).parent.parent
PAGES = (
    _ROOT / "docs" / "performance.md",
    _ROOT / "docs" / "evidence" / "benchmarks.md",
    _ROOT / "docs" / "index.md",
    _ROOT / "README.md",
    _ROOT / "README.zh-CN.md",
)
KINDS = ("compiled", "interpreted")

_BLOCK = re.compile(r"(<!-- figures: (?P<name>\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)

Key = tuple[str, str, str]


@dataclass(slots=True)
class Results:
    """The saved machines, rows, and runs of the experiment, by kind of core."""

    machines: dict[str, dict[str, str]]
    rows: dict[str, list[Row]]
    runs: dict[str, list[dict[str, Any]]]

    def row(self, kind: str, key: Key) -> Row | None:
        """Return the row with this section, description, and peer, or None."""
        for row in self.rows.get(kind, []):
            if (row.section, row.what, row.peer) == key:
                return row
        return None

    def keys(self, wanted: Callable[[Row], bool]) -> list[Key]:
        """Return the keys of the rows that ``wanted`` selects, in order, without duplicates."""
        found: dict[Key, None] = {}
        for kind in KINDS:
            for row in self.rows.get(kind, []):
                if wanted(row):
                    found[row.section, row.what, row.peer] = None
        return list(found)


def load(folder: Path = RESULTS) -> Results:
    """Read the saved runs; skip missing files.  Raise ValueError for a file from a quick run."""
    results = Results({}, {}, {})
    for kind in KINDS:
        file = folder / f"{kind}.json"
        if file.is_file():
            saved = json.loads(file.read_text())
            if saved["compiled"] is not (kind == "compiled"):
                raise ValueError(f"{file} does not hold figures of a core that is {kind}")
            if saved["quick"]:
                raise ValueError(f"{file} holds figures of a quick run: measure without --quick")
            results.machines[kind] = saved["machine"]
            results.rows[kind] = [Row.from_json(row) for row in saved["rows"]]
        file = folder / f"experiment-{kind}.json"
        if file.is_file():
            results.runs[kind] = json.loads(file.read_text())["runs"]
    return results


def fill(page: str, results: Results) -> str:
    """Return the page with its tables filled.  Raise ValueError for a name without a table."""

    def replaced(match: "re.Match[str]") -> str:
        name = match["name"]
        known: Mapping[str, Callable[[], str]] = {
            "machine": lambda: _machine(results),
            "budgets": lambda: _budgets(results),
            "experiment": lambda: _experiment(results),
            "headline": lambda: _headline(results, _ENGLISH),
            "everyone": lambda: _headline(results, _ENGLISH, _WHEN_EVERYONE_IS_ANSWERED, shape=shapes(Scale())[-1]),
            "costs": lambda: _costs(results),
            "readme": lambda: _headline(results, _ENGLISH, _IN_THE_README),
            "readme_zh": lambda: _headline(results, _CHINESE, _IN_THE_README),
            "home": lambda: _home(results),
            "server": lambda: _server(results),
        }
        text = known[name]() if name in known else _section(results, name)
        return f"{match[1]}\n{text}\n\n{match[3]}"

    return _BLOCK.sub(replaced, page)


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]], left: int = 1, words: Sequence[str] = ()) -> str:
    """Return a table; leave out empty columns.

    The first ``left`` columns and those whose headings are in ``words`` hold text.
    """
    rule = ["---" if index < left else ":--" if text in words else "--:" for index, text in enumerate(head)]
    used = [index for index in range(len(head)) if index == 0 or any(cells[index] for cells in lines)]
    table = "\n".join("| " + " | ".join(cells[index] for index in used) + " |" for cells in (head, rule, *lines))
    return re.sub(r"\b__\w+__\b", r"`\g<0>`", table)  # two underscores outside code begin bold text


def _machine(results: Results) -> str:
    names = list(dict.fromkeys(name for machine in results.machines.values() for name in machine))
    kinds = list(results.machines)
    if not kinds:
        return "Not measured yet."
    lines = [[name, *(results.machines[kind].get(name, "") for kind in kinds)] for name in names if name != "core"]
    return _markdown(["", *kinds], lines, left=1 + len(kinds))


_WORDS: Mapping[str, str] = {  # in row names: the words in saved runs, and the words on the pages
    "expiries/s": "expirations/s",
    "lateness p50 at": "p50 lateness at",
    "lateness p99 at": "p99 lateness at",
    "lateness p99.9 at": "p99.9 lateness at",
    "lateness longest at": "greatest lateness at",
    "early at": "number of early expirations at",
    "the longest pause of those,": "the longest pause of these collections,",
    "full collections while they are parked,": "number of full collections while operations are being parked,",
    "all pauses of that together,": "total of all pauses during this growth,",
    "asyncio being there": "with asyncio already imported",
    "CPU of a fetch": "CPU time of a fetch",
    ",000 waiting on": ",000 requests on",
    "a publish completes": "each publish completes",
    "1,000 a turn": "1,000 in each turn",
    "expire in one instant": "expire at the same instant",
    "geometric mean of the four,": "geometric mean of the four loads,",
    "the user's own Python in each of the next rows": "the user's own Python code in each of the rows below",
    "awaits, of 1,000,000, one key each": "awaits (1,000,000 parked, one key each)",
    "a task in park(), of 100,000, one key each": "a task in park() (100,000 tasks, one key each)",
    "cancel_for_key of a key with": "cancel_for_key on a key with",
}


def _named(what: str) -> str:
    """Return the name of a row as the pages print it."""
    for saved, printed in _WORDS.items():
        what = what.replace(saved, printed)
    return what


def _budgets(results: Results) -> str:
    lines = []
    if not results.rows:
        return "Not measured yet."
    for section, what, peer in results.keys(lambda row: row.budget is not None):
        compared = f", compared with {peer}" if peer else ""
        cells = [f"{_named(what)}{compared}"]
        for kind in KINDS:
            row = results.row(kind, (section, what, peer))
            if row is None:
                cells += ["", "", ""]
                continue
            compiled = kind == "compiled"
            judged = row.judged()
            assert judged is not None, f"{what}: there is a budget and nothing to judge"
            shown = f"{number(judged)}x" if row.budget and row.budget.on == "ratio" else number_of(judged, row.unit)
            verdict = row.verdict(compiled=compiled)
            cells += [row.budget_text(compiled=compiled), shown, verdict.replace("NOT met", "**not met**")]
        lines.append(cells)
    head = ["", "budget, compiled", "measured", "verdict", "budget, interpreted", "measured", "verdict"]
    return _markdown(head, lines, words=["verdict"])


def _section(results: Results, section: str) -> str:
    if section not in SECTIONS:
        raise ValueError(f"there is no section {section!r}")
    keys = results.keys(lambda row: row.section == section)
    if not keys:
        return f"Not measured yet: `python -m benchmarks {section} --json ...`."
    lines = []
    for key in keys:
        rows = [results.row(kind, key) for kind in KINDS]
        some = next(row for row in rows if row is not None)
        theirs = "" if some.theirs is None else number_of(some.theirs, some.unit)
        cells = [_named(some.what), some.peer, theirs]
        for row in rows:
            cells += _ours(row)
        lines.append(cells)
    head = ["", "compared with", "theirs", "ours, compiled", "ratio", "ours, interpreted", "ratio"]
    return _markdown(head, lines, left=2)


def _ours(row: Row | None) -> list[str]:
    if row is None:
        return ["", ""]
    return [number_of(row.ours, row.unit), "" if row.ratio is None else f"{number(row.ratio)}x"]


@dataclass(frozen=True, slots=True)
class _Language:
    """The words for the table in a README."""

    forms: Mapping[str, str]
    program: str
    head: Sequence[str]
    missing: str


_ENGLISH = _Language(
    {
        "thresholds": "`purgatory.asgi`, with thresholds",
        "wait": "`purgatory.asgi`",
        "event": "`asyncio.timeout` + an `Event` for each key",
        "event-reader": "the same, plus a task that detects the disconnect",
        "condition": "`asyncio.timeout` + a `Condition` for each key",
    },
    "the program above",
    ("", "CPU per request", "times the first", "without the collector", "publish to answer", "memory per connection"),
    "Not measured yet: `python -m benchmarks server --json ...`.",
)
_CHINESE = _Language(
    {
        "thresholds": "`purgatory.asgi`，带阈值",
        "wait": "`purgatory.asgi`",
        "event": "`asyncio.timeout` + 每个键一个 `Event`",
        "event-reader": "同上，另加一个发现客户端断开的任务",
        "condition": "`asyncio.timeout` + 每个键一个 `Condition`",
    },
    "上面的程序",
    ("", "每个请求的 CPU 时间", "是第一行的几倍", "不计垃圾回收", "从发布到应答", "每个连接的内存"),
    "尚未测量：`python -m benchmarks server --json ...`。",
)


_IN_THE_README = ("thresholds", "event", "event-reader")  # the first is the README's program
_WHEN_EVERYONE_IS_ANSWERED = ("wait", "event", "event-reader", "condition")  # the ratios are relative to the first


def _headline(
    results: Results, language: _Language, forms: Sequence[str] = tuple(_ENGLISH.forms), shape: Shape | None = None
) -> str:
    """Return the table for one shape of the server, by default the first, on a compiled core."""
    shape = shape or shapes(Scale())[0]
    lines = []
    for form in forms:
        text = language.program if forms is _IN_THE_README and form == "thresholds" else language.forms[form]
        cpu = _of_form(results, "compiled", CPU, shape, form)
        if cpu is None:
            return language.missing
        cells = [_of_form(results, "compiled", what, shape, form) for what in (OWN_CPU, ANSWER, MEMORY)]
        lines.append([text, cpu.text, cpu.times, *("" if cell is None else cell.text for cell in cells)])
    return _markdown(language.head, lines)


def _home(results: Results) -> str:
    """Return a narrower table, with the forms that most servers use."""
    shape = shapes(Scale())[0]
    lines = []
    for form in ("thresholds", "event", "condition"):
        cpu, answer = (_of_form(results, "compiled", what, shape, form) for what in (CPU, ANSWER))
        if cpu is None or answer is None:
            return _ENGLISH.missing
        lines.append([_ENGLISH.forms[form], cpu.text, cpu.times, answer.text])
    return _markdown(["", "CPU per request", "times the first", "publish to answer"], lines)


_COSTS: Mapping[str, Key] = {  # the words on the page, and the row
    "a task that waits with a deadline and is answered": (
        "waiting",
        "park + await above the floor, asyncio",
        "asyncio.timeout + Event",
    ),
    "the same with `wait_until`": ("waiting", "park + await above the floor, asyncio", "purgatory wait_until"),
    "one check of a key with 10,000 thresholds, only one of which is reached": (
        "features",
        "one check of a key with 10,000 threshold watchers, 1 ready",
        "trying all",
    ),
    "adding and cancelling a timer, among 10,000": (
        "timers",
        "add + cancel, 10,000 outstanding",
        "asyncio call_later",
    ),
    "moving a deadline": ("features", "extend a parked operation", "asyncio cancel + call_later"),
    "memory of a waiting task": (
        "memory",
        "a task in park(), of 100,000, one key each",
        "a task in asyncio.timeout + Event",
    ),
    "memory of an operation without a task": (
        "memory",
        "a parked operation that no task awaits, of 1,000,000, one key each",
        "",
    ),
    "the longest turn of the loop while a million deadlines pass": (
        "stall",
        "longest turn, 1,000,000 expire in one instant, asyncio",
        "asyncio timers",
    ),
    "a full garbage collection with a million operations": ("collector", "a full collection, 1,000,000 parked", ""),
}


def _cell(row: Row | None, value: float | None) -> str:
    return "" if row is None or value is None else number_of(value, row.unit)


def _costs(results: Results) -> str:
    """Return the rows that a reader needs first.  The cost of ``wait_until`` is the peer in its row."""
    lines = []
    for text, key in _COSTS.items():
        rows = [results.row(kind, key) for kind in KINDS]
        if not any(rows):
            return _ENGLISH.missing
        peer = key[2]
        own = peer.startswith("purgatory ")
        ours = [_cell(row, None if row is None else row.theirs if own else row.ours) for row in rows]
        theirs = "" if own or not peer else next(f"{_cell(row, row.theirs)}, {peer}" for row in rows if row)
        lines.append([text, *ours, theirs])
    return _markdown(["", "compiled", "interpreted", "the alternative"], lines, words=["the alternative"])


_SERVER = {CPU: CPU, OWN_CPU: "without the garbage collector", ANSWER: ANSWER, MEMORY: MEMORY}


def _server(results: Results) -> str:
    """Return a table for each shape of the server: a line for each core and form, with the units in the heading."""
    tables = []
    for shape in shapes(Scale()):
        lines = []
        units = dict.fromkeys(_SERVER, "")
        for kind in KINDS:
            for form, name in NAMES.items():
                figures = {what: _of_form(results, kind, what, shape, form) for what in _SERVER}
                units |= {
                    what: f" ({'µs' if figure.unit == 'us' else figure.unit})"
                    for what, figure in figures.items()
                    if figure is not None
                }
                cells = ["" if figure is None else number(figure.value) for figure in figures.values()]
                cpu = figures[CPU]
                if any(cells):
                    lines.append([name, kind, cells[0], "" if cpu is None else cpu.times, *cells[1:]])
        if lines:
            cpu_head, *heads = (text + units[what] for what, text in _SERVER.items())
            table = _markdown(["", "core", cpu_head, "ratio", *heads], lines, left=2)
            tables.append(f"**{_heading(shape)}**\n\n{table}")
    return "\n\n".join(tables) or _ENGLISH.missing


def _heading(shape: Shape) -> str:
    keys = "one key" if shape.keys == 1 else f"{shape.keys} keys"
    completed = "one" if shape.apart else "all requests on its key"
    return f"{grouped(shape.clients)} requests wait on {keys}; each publish completes {completed}"


@dataclass(frozen=True, slots=True)
class _Figure:
    """The value that was measured for one form, and its ratio to ours."""

    value: float
    unit: Unit
    ratio: float | None = None

    @property
    def text(self) -> str:
        return number_of(self.value, self.unit)

    @property
    def times(self) -> str:
        return "" if self.ratio is None else f"{number(self.ratio)}x"


def _of_form(results: Results, kind: str, what: str, shape: Shape, form: str) -> _Figure | None:
    """Return the figure of one form, or None if it was not measured."""
    ours, name = ours_of(shape), NAMES[form]
    for row in results.rows.get(kind, []):
        if (row.section, row.what) == ("server", f"{what}, {shape.name}"):
            if name == ours:
                return _Figure(row.ours, row.unit)
            if row.peer == name and row.theirs is not None and row.ratio is not None:
                return _Figure(row.theirs, row.unit, row.ratio)
    return None


def _experiment(results: Results) -> str:
    lines = []
    if not results.runs:
        return "Not measured yet: `python -m benchmarks.experiment --sweep --json ...`."
    for kind, runs in results.runs.items():
        for run in runs:
            if kind == "interpreted" and run["design"] == "none":
                continue
            given = run["parameters"]
            lines.append(
                [
                    {"new": f"this one, {kind}", "first": "the first", "none": "none"}[run["design"]],
                    f"({given['pct75']:g}, {given['pct50']:g})",
                    grouped(given["num"]),
                    grouped(given["rate"]),
                    grouped(run["actual_rate"]) + (" (saturated)" if run["saturated"] else ""),
                    f"{run['cpu']:.1f} s",
                    f"{run['cpu'] / given['num'] * 1e6:.1f} µs",
                ]
            )
    head = ["design", "(pct75, pct50)", "num", "target rate", "actual rate", "CPU time", "per request"]
    return _markdown(head, lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__.partition("\n")[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the saved runs are (%(default)s)")
    parser.add_argument("--page", type=Path, action="append", help="a page (those that have tables)")
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if a page would change")
    options = parser.parse_args(arguments)
    paths: Sequence[Path] = options.page or PAGES
    before = {path: path.read_text(encoding="utf-8") for path in paths}
    try:
        results = load(options.results)
        after = {path: fill(page, results) for path, page in before.items()}
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.check:
        return int(after != before)
    for path, page in after.items():
        path.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
