"""What a journal costs the loop: ``python -m benchmarks.journal [--rows 300000]``.

Operations are parked and completed, 50 in each turn of the loop, with a journal and without, by turns.  The cost is the
CPU time of the loop's own thread: what the journal does there, and nothing of its own thread.  The length of a turn is
on the wall clock, so it holds what the journal's thread keeps the loop waiting for.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from typing import Any

from purgatory import DelayedOperation, Purgatory
from purgatory.journal import Journal

__all__ = ["main"]

_PER_TURN = 50
_ROUNDS = 5
_SHARES = (0.5, 0.99, 0.999, 1)


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
    asyncio.run(_measure(parser.parse_args().rows // _ROUNDS))
    return 0


async def _measure(rows: int) -> None:
    costs: dict[str, list[float]] = {"without": [], "with": []}
    turns: dict[str, list[float]] = {"without": [], "with": []}
    with tempfile.TemporaryDirectory() as folder:
        async with Journal(folder) as journal:
            await _serve([journal], _PER_TURN * 100, [])  # everything is imported and warm
            for _ in range(_ROUNDS):
                for name, observers in (("without", []), ("with", [journal])):
                    costs[name].append(await _serve(observers, rows, turns[name]))
        statistics = journal.statistics()
    for name in ("without", "with"):
        lengths = sorted(turns[name])
        spread = "  ".join(
            f"p{share * 100:g} {lengths[int(share * (len(lengths) - 1))] * 1000:.2f} ms" for share in _SHARES
        )
        print(f"{name:8} {min(costs[name]) * 1e6:6.2f} us per operation   turns: {spread}")
    ratio = min(costs["with"]) / min(costs["without"])
    print(f"ratio {ratio:.2f}; {statistics.written:,} rows in {statistics.files} files, {statistics.dropped} dropped")


async def _serve(observers: list[Any], rows: int, turns: list[float]) -> float:
    """CPU seconds of this thread per operation."""
    keys = [f"key-{number}" for number in range(_PER_TURN)]
    async with Purgatory[_Fetch]("fetch", observers=observers) as purgatory:
        began = time.thread_time()
        for _ in range(rows // _PER_TURN):
            turn = time.perf_counter()
            operations = [_Fetch() for _ in keys]
            for operation, key in zip(operations, keys, strict=True):
                purgatory.try_complete_else_watch(operation, (key,))
            for operation, key in zip(operations, keys, strict=True):
                operation.ready = True
                purgatory.check_and_complete(key)
            await asyncio.sleep(0)
            turns.append(time.perf_counter() - turn)
        return (time.thread_time() - began) / rows


if __name__ == "__main__":
    sys.exit(main())
