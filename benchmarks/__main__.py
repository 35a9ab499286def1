"""One command, one table: ``python -m benchmarks [SECTION ...] [--only TEXT] [--quick] [--json FILE]``."""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .machine import compiled, describe
from .row import Row, Scale, Unavailable
from .table import print_machine, print_rows, print_verdicts

SECTIONS = {
    "server": "a long poll in Starlette on uvicorn, its wait written in five ways; needs the extra 'examples'",
    "timers": "add, cancel and churn timers, at 1,000 to 1,000,000 outstanding",
    "waiting": "park, await and complete, above the floor of a bare future",
    "locks": "a lock for each key, free and handed over; needs the extra 'bench'",
    "watching": "park and check_and_complete, callbacks only",
    "jvm": "the same load on Kafka's own purgatory on a JVM; needs Maven and a JDK",
    "features": "thresholds, observers, extend, timeouts, and the cost of a subclass without __slots__",
    "threads": "event loops in threads: what two of them do in the time of one; on a free-threaded Python",
    "workers": "one worker process, and two with a relay over Unix sockets or Redis; needs the extra 'examples'",
    "stall": "the longest turn of the loop while a million operations end at once",
    "lateness": "how late 50,000 expiries a second are",
    "memory": "resident memory per parked operation; import time",
    "collector": "what the garbage collector costs with a million operations parked",
    "broker": "the example broker beside a real Kafka; needs Maven, a JDK, and the extra 'broker'",
    "designs": "the first purgatory's design and this one, in Kafka's experiment",
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command.  The exit status is 0 even if a budget is missed, and 2 for a bad argument."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure, and print one table.")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"some of: {', '.join(SECTIONS)} (all)")
    parser.add_argument("--only", default="", metavar="TEXT", help="print only rows that contain the text")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, and not the largest sizes")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="save the rows in a file, which keeps its other sections"
    )
    parser.add_argument("--list", action="store_true", help="list the sections")
    parser.add_argument("--here", action="store_true", help="measure in this process instead of one for each section")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"there is no section {', '.join(unknown)}: choose from {', '.join(SECTIONS)}")
    if options.list:
        for name, text in SECTIONS.items():
            print(f"{name:10} {text}")
        return 0
    machine = describe()
    try:
        saved = _Saved(options.json, machine, quick=options.quick)
    except ValueError as error:
        parser.error(str(error))
    print_machine(machine)
    measured: list[Row] = []
    for name in options.sections or SECTIONS:
        try:
            _prepare(name)
        except Unavailable as error:
            print(f"{name}: not measured: {error}\n")
            continue
        source = _here(name, quick=options.quick) if options.here else _apart(name, quick=options.quick)
        section = [row for row in source if options.only in row.what or options.only in row.peer]
        print_rows(name, section, compiled=compiled())
        measured += section
        saved.replace(name, section)
    print_verdicts(measured, compiled=compiled())
    return 0


class _Saved:
    """The file given with ``--json``.  The rows of a section replace the saved ones as soon as they are measured.

    Raises ValueError if the file has figures from another machine, another kind of core, or another setting of
    ``--quick``.
    """

    def __init__(self, file: Path | None, machine: dict[str, str], *, quick: bool) -> None:
        self._file = file
        self._head: dict[str, Any] = {"machine": machine, "compiled": compiled(), "quick": quick}
        self._rows: dict[str, list[Any]] = {}
        if file is not None and file.exists():
            saved = json.loads(file.read_text())
            for name, value in self._head.items():
                if saved.get(name) != value:
                    raise ValueError(f"{file} was measured with {name} {saved.get(name)!r}, not {value!r}: remove it")
            for row in saved["rows"]:
                self._rows.setdefault(row["section"], []).append(row)

    def replace(self, section: str, rows: list[Row]) -> None:
        self._rows[section] = [row.as_json() for row in rows]
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            all_rows = [row for name in SECTIONS for row in self._rows.get(name, [])]
            self._file.write_text(json.dumps({**self._head, "rows": all_rows}, indent=1) + "\n")


def _prepare(section: str) -> None:
    """Fetch what the section needs beyond Python packages.  Raise Unavailable if this machine cannot provide it."""
    try:
        prepare = getattr(importlib.import_module(f"{__package__}.{section}"), "prepare", None)
    except ModuleNotFoundError as error:
        raise Unavailable(f"{error.name} is not installed") from error
    if prepare is not None:
        prepare()


def _here(section: str, *, quick: bool) -> Iterator[Row]:
    module = importlib.import_module(f"{__package__}.{section}")
    yield from module.rows(Scale(quick))


def _apart(section: str, *, quick: bool) -> list[Row]:
    """Measure the section in a separate process, so that garbage from other sections does not affect it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, "-m", __package__, section, "--here", "--json", str(file)]
        finished = subprocess.run([*command, *(["--quick"] if quick else [])], stdout=subprocess.DEVNULL, check=False)
        if finished.returncode:
            raise SystemExit(f"section {section} ended with status {finished.returncode}")
        return [Row.from_json(row) for row in json.loads(file.read_text())["rows"]]


if __name__ == "__main__":
    sys.exit(main())
