"""Kafka as the judge: the same scenarios at the real broker and at the example, compared line by line.

    python -m tests.kafka.judge                 the table, and every difference with its reason
    python -m tests.kafka.judge --only sync     scenarios whose name contains the text
    python -m tests.kafka.judge --transcripts   what was written down, too

A scenario that differs is run once more at both, because a busy machine may move a time from one class to another; the
second comparison counts.  The status is 1 if the differences are not those of ``tests.kafka.differences``.
"""

import argparse
import itertools
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from benchmarks.kafka_wire import Wire, make
from benchmarks.real_kafka import VERSION, RealKafka
from tests.examples.broker.clients.all_clients import CLIENTS
from tests.kafka.differences import DIFFERENCES
from tests.kafka.scenarios import CLIENT_SCENARIOS, SCENARIOS, STALLING, Side

__all__ = ["RAISED", "WIRE", "Compared", "compare", "main", "ours", "real", "table", "unexplained"]

for _subject in ("fetch", "produce", "offsets", "groups", "connections", "versions", "clients"):
    import_module(f"tests.kafka.scenarios_{_subject}")

RAISED = "raised"  # the scenario did not get to its end, which is no result
WIRE = "wire"  # requests written by hand
_THREADS = 6
_DELAY_MS = 1500


@dataclass(frozen=True, slots=True)
class Compared:
    """A scenario with one client: what was written down at the real broker and at ours."""

    scenario: str
    client: str
    real: list[str]
    ours: list[str]

    @property
    def differences(self) -> list[tuple[str, str]]:
        """Lines that are not the same, as pairs; a line that is missing is empty."""
        pairs = itertools.zip_longest(self.real, self.ours, fillvalue="")
        return [(real, ours) for real, ours in pairs if real != ours or real.startswith(RAISED)]


@contextmanager
def real() -> Iterator[Callable[[], Side]]:
    """A real broker with the settings that both have; yields what makes a side of it."""
    settings: dict[str, Any] = {
        "group_initial_rebalance_delay_ms": _DELAY_MS,
        "group_min_session_timeout_ms": 100,
        "log_segment_bytes": 1 << 20,
        "auto_create_topics_enable": "false",
        "broker_session_timeout_ms": 60_000,  # a follower that is paused counts as in sync all the while
        "replica_lag_time_max_ms": 60_000,
    }
    with RealKafka(**settings) as broker:
        _wait_for_coordinator(broker.port)
        yield lambda: Side(broker.port, broker.add_follower, broker.pause_follower)


def _wait_for_coordinator(port: int) -> None:
    """Wait until the topic of the groups is there and its leader has read it; nothing reports that it has."""
    ask = make(OffsetFetchRequest, group_id="none", topics=None)
    deadline = time.monotonic() + 60
    with Wire(port) as wire:
        while time.monotonic() < deadline:
            found = wire.ask(make(FindCoordinatorRequest, key="none", key_type=0)).error_code
            if found == 0 and wire.ask(ask).error_code == 0:
                return
            time.sleep(0.05)
    raise RuntimeError("the real broker has no coordinator")


@contextmanager
def ours() -> Iterator[Callable[[], Side]]:
    """The example broker with the same settings."""
    options = f"--port 0 --initial-rebalance-delay {_DELAY_MS / 1000} --min-session-timeout 0.1"
    options += f" --segment-bytes {1 << 20} --no-auto-create --log-level error"
    command = [sys.executable, "-m", "examples.broker", *options.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().rpartition(":")[2])
            yield lambda: Side(port)
        finally:
            process.terminate()


Make = Callable[[], Side]


def _wanted(only: str) -> list[tuple[str, str, Callable[[Side], None]]]:
    found = [(name, WIRE, function) for name, function in SCENARIOS.items() if only in name]
    for name, function in CLIENT_SCENARIOS.items():
        if only in name:
            found += [(name, client.name, partial(function, client)) for client in CLIENTS]
    return found


def _run(make: Make, function: Callable[[Side], None]) -> list[str]:
    side = make()
    try:
        function(side)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        side.note(f"{RAISED} {type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})")
    return side.lines


def compare(make_real: Make, make_ours: Make, only: str = "") -> list[Compared]:
    """Run every scenario whose name contains the text, several at once, at both."""

    def both(wanted: tuple[str, str, Callable[[Side], None]]) -> Compared:
        name, client, function = wanted
        for _ in range(2):
            compared = Compared(name, client, _run(make_real, function), _run(make_ours, function))
            if not compared.differences:
                break
        return compared

    wanted = _wanted(only)
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(both, [each for each in wanted if each[0] not in STALLING]))
    return found + [both(each) for each in wanted if each[0] in STALLING]


def table(results: Sequence[Compared]) -> str:
    """Return the table of scenarios and clients."""
    clients = [WIRE, *(client.name for client in CLIENTS)]
    by_place = {(result.scenario, result.client): result for result in results}
    names = list(dict.fromkeys(result.scenario for result in results))
    width = max(map(len, names), default=8)
    lines = [f"{'scenario':{width}}  " + "  ".join(f"{client:>15}" for client in clients)]
    for name in names:
        cells = []
        for client in clients:
            result = by_place.get((name, client))
            text = "" if result is None else "different" if result.differences else "equal"
            cells.append(f"{text:>15}")
        lines.append(f"{name:{width}}  " + "  ".join(cells))
    return "\n".join(lines)


def unexplained(results: Sequence[Compared]) -> list[str]:
    """Return where the results are not what ``DIFFERENCES`` says."""
    wrong = []
    for result in results:
        listed = DIFFERENCES.get((result.scenario, result.client))
        found = result.differences
        if any(line.startswith(RAISED) for line in (*result.real, *result.ours)):
            what = "did not get to its end"
        elif found and listed is None:
            what = "the difference is not listed"
        elif listed is not None and not found:
            what = "the listed difference is gone"
        elif listed is not None and found != listed.pairs:
            what = "it is another difference"
        else:
            continue
        wrong.append(f"{result.scenario}, {result.client}: {what}")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.kafka.judge", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="scenarios whose name contains the text")
    parser.add_argument("--transcripts", action="store_true", help="print every line of both")
    options = parser.parse_args(arguments)
    with real() as make_real, ours() as make_ours:
        results = compare(make_real, make_ours, options.only)
    clients = ", ".join(f"{name} {version(name)}" for name in ("aiokafka", "kafka-python", "confluent-kafka"))
    print(f"real: Kafka {VERSION}; clients: {clients}, java {VERSION}\n")
    print(table(results))
    for result in results:
        if options.transcripts or result.differences:
            print(f"\n{result.scenario}, {result.client}")
            for line_real, line_ours in itertools.zip_longest(result.real, result.ours, fillvalue=""):
                if line_real == line_ours:
                    if options.transcripts:
                        print(f"    = {line_real}")
                else:
                    print(f"  real: {line_real}\n  ours: {line_ours}")
            listed = DIFFERENCES.get((result.scenario, result.client))
            if listed is not None:
                print(f"  why:  {listed.reason}")
    different = sum(bool(result.differences) for result in results)
    wrong = unexplained(results)
    print(f"\n{len(results)} compared, {len(results) - different} equal, {different} different")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
