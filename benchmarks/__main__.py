"""One command, one table: ``python -m benchmarks [SECTION ...] [--only TEXT] [--quick] [--json FILE]``."""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .machine import compiled, describe
from .model import Row, Scale
from .table import print_machine, print_rows, print_verdicts

SECTIONS = {
    "timers": "add, cancel and churn timers, at 1 000 to 1 000 000 outstanding",
    "waiting": "park, await and complete, above the floor of a bare future",
    "watching": "park and check_and_complete, callbacks only",
    "features": "thresholds, observers, extend, timeouts, and what a subclass without __slots__ costs",
    "stall": "the longest turn of the loop while a million end at once",
    "lateness": "how late 50 000 expiries a second are",
    "memory": "resident memory per parked operation; import time",
    "collector": "what the garbage collector costs with a million parked",
    "designs": "the first purgatory's design and this one, in Kafka's experiment",
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status is 0, whatever the budgets say (2 for a bad argument)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure, and print one table.")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"some of: {', '.join(SECTIONS)} (all)")
    parser.add_argument("--only", default="", metavar="TEXT", help="print only rows that contain the text")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, and not the largest sizes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to a file")
    parser.add_argument("--list", action="store_true", help="say what the sections are")
    parser.add_argument("--here", action="store_true", help="in this process, not in one for each section")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"there is no section {', '.join(unknown)}: choose from {', '.join(SECTIONS)}")
    if options.list:
        for name, text in SECTIONS.items():
            print(f"{name:10} {text}")
        return 0
    machine = describe()
    print_machine(machine)
    measured: list[Row] = []
    for name in options.sections or SECTIONS:
        source = _here(name, quick=options.quick) if options.here else _apart(name, quick=options.quick)
        section = [row for row in source if options.only in row.what or options.only in row.peer]
        print_rows(name, section, compiled=compiled())
        measured += section
    print_verdicts(measured, compiled=compiled())
    if options.json is not None:
        saved = {"machine": machine, "compiled": compiled(), "quick": options.quick}
        options.json.write_text(json.dumps({**saved, "rows": [row.as_json() for row in measured]}, indent=1) + "\n")
    return 0


def _here(section: str, *, quick: bool) -> Iterator[Row]:
    module = importlib.import_module(f"{__package__}.{section}")
    yield from module.rows(Scale(quick))


def _apart(section: str, *, quick: bool) -> list[Row]:
    """The section in a process of its own: a heap full of another section's rubble would be measured as well."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, "-m", __package__, section, "--here", "--json", str(file)]
        finished = subprocess.run([*command, *(["--quick"] if quick else [])], stdout=subprocess.DEVNULL, check=False)
        if finished.returncode:
            raise SystemExit(f"section {section} ended with status {finished.returncode}")
        return [Row.from_json(row) for row in json.loads(file.read_text())["rows"]]


if __name__ == "__main__":
    sys.exit(main())
