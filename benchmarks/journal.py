"""The cost of a journal for the event loop: ``python -m benchmarks.journal [--rows 300000] [--rate 20000]``.

Operations are parked and completed, 50 in each turn of the loop, alternately with and without a journal in one process.
The runs without a journal are the control.  Without ``--rate``, the loop completes as many operations as it can, which
is more than the journal's thread can write, so rows wait and some are dropped.

The cost is the CPU time of the loop's thread, which does not include the journal's own thread.  The length of a turn is
wall-clock time, so it includes the time that the journal's thread makes the loop wait.  On a busy machine, it also
includes the wait for a core, which Linux counts for each thread; the second line of turns excludes that wait.
"""

import argparse
import asyncio
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from purgatory import DelayedOperation, Purgatory
from purgatory.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Turns", "main", "serve"]

_PER_TURN = 50
_ROUNDS = 10
_SHARES = (0.5, 0.99, 0.999, 1)
_LONG_S = 0.005


@dataclass(slots=True)
class Turns:
    """Lengths of turns in seconds: by the wall clock, and without the wait for a core."""

    wall: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)  # CPU seconds per operation, one value for each round


class _Fetch(DelayedOperation[None]):
    __slots__ = ("ready",)

    def __init__(self) -> None:
        super().__init__(30.0)
        self.ready = False

    def try_complete(self) -> bool:
        return self.ready


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.journal", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=300_000, help="operations of each kind (default: %(default)s)")
    parser.add_argument("--freeze", action="store_true", help="call gc.freeze() after the warm-up")
    parser.add_argument("--rate", type=int, help="operations per second (default: as many as possible)")
    parser.add_argument("--partition-by", choices=["date"], help="write the journal in folders (default: without)")
    arguments = parser.parse_args()
    if arguments.rate is not None and arguments.rate < 1:
        parser.error(f"--rate must be at least 1, got {arguments.rate}")
    asyncio.run(_measure(arguments.rows // _ROUNDS, arguments.rate, arguments.freeze, arguments.partition_by))
    return 0


async def _measure(rows: int, rate: int | None, freeze: bool, partition_by: Literal["date"] | None) -> None:
    without, written = Turns(), Turns()
    with tempfile.TemporaryDirectory() as folder, _waited_for_a_core() as waited:
        async with Journal(folder, partition_by=partition_by) as journal:
            await serve([journal], _PER_TURN * 100, rate, Turns(), waited)  # a warm-up
            if freeze:
                gc.collect()
                gc.freeze()
            for _ in range(_ROUNDS):
                await serve([], rows, rate, without, waited)
                await serve([journal], rows, rate, written, waited)
        statistics = journal.statistics()
    for name, turns in (("without", without), ("with", written)):
        print(f"{name:8} {min(turns.costs) * 1e6:6.2f} us per operation")
        print(f"         turns                       {_spread(turns.wall)}")
        if turns.running:
            print(f"         less waiting for a core     {_spread(turns.running)}")
    ratio = min(written.costs) / min(without.costs)
    print(f"ratio {ratio:.2f}; {statistics.written:,} rows in {statistics.files} files, {statistics.dropped} dropped")


def _spread(lengths: list[float]) -> str:
    ordered = sorted(lengths)
    shares = "  ".join(
        f"p{share * 100:g} {ordered[int(share * (len(ordered) - 1))] * 1000:.2f} ms" for share in _SHARES
    )
    long = sum(length > _LONG_S for length in ordered)
    return f"{shares}  over {_LONG_S * 1000:g} ms: {long} of {len(ordered):,}"


@contextmanager
def _waited_for_a_core() -> "Iterator[Callable[[], int] | None]":
    """Yield a function that returns the nanoseconds that this thread has waited for a core, or None if unknown."""
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    except OSError:
        yield None
        return
    try:
        yield lambda: int(os.pread(file, 100, 0).split()[1])
    finally:
        os.close(file)


async def serve(
    observers: list[Any], rows: int, rate: int | None, turns: Turns, waited: Callable[[], int] | None
) -> None:
    keys = [f"key-{number}" for number in range(_PER_TURN)]
    spent = 0.0
    async with Purgatory[_Fetch]("fetch", observers=observers) as purgatory:
        started = time.perf_counter()
        for number in range(rows // _PER_TURN):
            if rate is not None:
                await asyncio.sleep(started + number * _PER_TURN / rate - time.perf_counter())
            waited_ns = 0 if waited is None else waited()
            turn, began = time.perf_counter(), time.thread_time()
            operations = [_Fetch() for _ in keys]
            for operation, key in zip(operations, keys, strict=True):
                purgatory.try_complete_else_watch(operation, (key,))
            for operation, key in zip(operations, keys, strict=True):
                operation.ready = True
                purgatory.check_and_complete(key)
            await asyncio.sleep(0)
            spent += time.thread_time() - began
            took = time.perf_counter() - turn
            turns.wall.append(took)
            if waited is not None:
                turns.running.append(max(0.0, took - (waited() - waited_ns) / 1e9))
    turns.costs.append(spent / rows)


if __name__ == "__main__":
    sys.exit(main())
