"""Leak test: ``python -m tests.proof.leaks --operations 10000000`` runs many operations with every kind of ending.

The command prints the number of live objects and the resident memory after the first tenth of the operations and after
all of them.  It fails if either has grown.
"""

import argparse
import asyncio
import contextlib
import gc
import resource
import sys
import time
from typing import Any

from purgatory import DelayedOperation, Purgatory, PurgatoryError
from purgatory.testing import VirtualClock

__all__ = ["churn", "live_objects", "main"]

_BATCH = 500


class _Op(DelayedOperation[int]):
    ready = False
    fails = False

    def try_complete(self) -> bool:
        if self.fails:
            raise ValueError("on purpose")
        return self.ready

    def on_complete(self) -> int:
        return 1


def live_objects() -> int:
    """Return the number of objects that the collector tracks after a full collection."""
    gc.collect()
    return len(gc.get_objects())


async def churn(purgatory: Purgatory[Any], clock: VirtualClock, number: int) -> None:
    """Run ``number`` operations through the purgatory, with all kinds of endings in turn."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # failures without an awaiter are intended
    for start in range(0, number, _BATCH):
        size = min(_BATCH, number - start)
        ops = [_Op(None if at % 10 == 9 else 5.0) for at in range(size)]
        tasks = []
        for at, op in enumerate(ops):
            keys: Any = {"log": at} if at % 7 == 0 else [at, "all"] if at % 3 else [at]
            if at % 5 == 0:
                tasks.append(asyncio.create_task(purgatory.park(op, keys)))
            else:
                purgatory.try_complete_else_watch(op, keys)
        await asyncio.sleep(0)
        for at, op in enumerate(ops):
            _end(purgatory, op, at, tasks)
        purgatory.check_soon("all")
        purgatory.check_and_complete("log", 10**6)
        await clock.advance(5)
        purgatory.cancel_for_key("all")
        for op in ops:
            op.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, PurgatoryError, ValueError):
                await task


def _end(purgatory: Purgatory[Any], op: _Op, at: int, tasks: "list[asyncio.Task[Any]]") -> None:
    kind = at % 9
    if kind == 0:
        op.ready = True
        purgatory.check_and_complete(at)
    elif kind == 1:
        op.force_complete()
    elif kind == 2:
        op.cancel()
    elif kind == 3:
        purgatory.cancel_for_key(at)
    elif kind == 4:
        purgatory.fail_for_key(at, ValueError("from outside"))
    elif kind == 5:
        op.fails = True
        purgatory.check_and_complete(at)
    elif kind == 6 and at % 5 == 0:
        tasks[at // 5].cancel()
    elif kind == 7:
        op.extend(2.5)


def _rss_kib() -> int:
    if sys.platform == "linux":
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize() // 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def _measure(operations: int) -> bool:
    clock = VirtualClock()
    async with Purgatory[Any]("leaks", clock=clock) as purgatory:
        begun = time.perf_counter()
        rows = []
        for number in (operations // 10, operations - operations // 10):
            await churn(purgatory, clock, number)
            rows.append((purgatory.statistics().submitted, live_objects(), _rss_kib()))
        print(f"{'operations':>12} {'live objects':>13} {'RSS KiB':>10}")
        for row in rows:
            print(f"{row[0]:>12} {row[1]:>13} {row[2]:>10}")
        statistics = purgatory.statistics()
        print(
            f"completed {statistics.completed}, expired {statistics.expired}, cancelled {statistics.cancelled},"
            f" failed {statistics.failed}, parked {statistics.parked}; {time.perf_counter() - begun:.0f} s"
        )
        objects, memory = rows[1][1] - rows[0][1], rows[1][2] - rows[0][2]
        flat = objects < 1000 and memory < max(2048, rows[0][2] // 20)
        print(f"{'flat' if flat else 'GROWN'}: {objects:+} objects, {memory:+} KiB")
        return flat


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 0 if memory is flat."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000, help="how many (default: a million)")
    options = parser.parse_args(arguments)
    if options.operations < 100:
        parser.error("--operations: at least 100, or there is nothing to compare")
    return 0 if asyncio.run(_measure(options.operations)) else 1


if __name__ == "__main__":
    sys.exit(main())
