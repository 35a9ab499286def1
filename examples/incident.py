"""The journals of a calm hour and of an hour with an incident: ``python -m examples.incident monday tuesday``.

A shop waits for answers from two services, on one key for each customer.  In the second journal, from 14:20 to 14:30,
the payment service takes thirty times as long as usual, and at 14:40 a new version of the shop is deployed.  An hour of
virtual time takes a few real seconds.
"""

import argparse
import asyncio
import random
from datetime import UTC, datetime
from heapq import heappop, heappush
from pathlib import Path

from purgatory import DelayedOperation, Purgatory, PurgatoryFull
from purgatory.journal import Journal
from purgatory.testing import VirtualClock

CALM = datetime(2026, 11, 23, 14, tzinfo=UTC)
INCIDENT = datetime(2026, 11, 24, 14, tzinfo=UTC)
SLOW_S = range(1_200, 1_800)
DEPLOY_S = 2_400
END_S = 3_600
STEP_S = 0.2


class Answer(DelayedOperation[None]):
    """Wait for the answer from a service."""

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        """Do nothing: this example needs only the rows in the journal."""


class Payment(Answer): ...


class Stock(Answer): ...


async def serve(folder: Path, clock: VirtualClock, draw: random.Random, until_s: float, *, slow: bool) -> None:
    """Serve until the clock reaches ``until_s``, in one run of the server."""
    answers: list[tuple[float, int, Answer]] = []
    async with (
        Journal(folder, clock=clock, epoch_ms=0) as journal,
        Purgatory[Answer]("shop", clock=clock, max_parked=30, observers=[journal]) as shop,
    ):
        while (now_s := clock.now_ms() / 1000) < until_s:
            while answers and answers[0][0] <= now_s:
                heappop(answers)[2].force_complete()
            for _ in range(draw.randrange(4)):
                pays = draw.random() < 0.4
                answer = (Payment if pays else Stock)(timeout=5.0)
                wait_s = draw.lognormvariate(-1.2, 0.6) * (30 if slow and pays and is_slow(now_s) else 1)
                try:
                    shop.try_complete_else_watch(answer, [f"customer-{int(draw.paretovariate(0.7)) % 400}"])
                except PurgatoryFull:
                    continue
                heappush(answers, (now_s + wait_s, id(answer), answer))
            await clock.advance(STEP_S)


def is_slow(now_s: float) -> bool:
    return int(now_s - INCIDENT.timestamp()) in SLOW_S


async def record(folder: Path, begin: datetime, *, incident: bool) -> None:
    """Record the hour that starts at ``begin``."""
    draw, clock = random.Random(begin.day), VirtualClock(begin.timestamp())
    for until_s in (DEPLOY_S, END_S) if incident else (END_S,):
        await serve(folder, clock, draw, begin.timestamp() + until_s, slow=incident)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.incident", description=(__doc__ or "").split(":")[0])
    parser.add_argument(
        "calm", nargs="?", default="monday", type=Path, help="a directory for the journal of the calm hour"
    )
    parser.add_argument("incident", nargs="?", default="tuesday", type=Path, help="a directory for the other journal")
    options = parser.parse_args()
    asyncio.run(record(options.calm, CALM, incident=False))
    asyncio.run(record(options.incident, INCIDENT, incident=True))
    print("purgatory report", options.incident, "--compare", options.calm, "--out report")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
