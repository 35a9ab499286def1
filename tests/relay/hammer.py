"""Event loops in threads, hammered: ``python -m tests.relay.hammer --threads 8 --seconds 60``.

Each thread runs an event loop with a purgatory and a relay through one engine in memory.  Waiters of each loop wait for
the next version of keys that other loops write; a key is written by one loop only.  Notices come from ``relay.check``,
from a notifier in a further thread, and from ``check_threadsafe`` of that thread.  No resync can make up for a lost
notice within the time, and a later write of the same key cannot either: several times a second, all writers pause until
no wait is left whose key has the version.

It needs nothing but the package, so it also runs on a free-threaded Python without wheels.  The exit status is 1 if a
wait was lost or answered twice, or if the state of a purgatory is inconsistent.
"""

import argparse
import asyncio
import random
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from purgatory import DelayedOperation, Purgatory
from purgatory.relay import MemoryTransport, Notifier, Relay

__all__ = ["Figures", "hammer"]

TIMEOUT = 300.0
KEYS = 16  # of each loop
WRITES_S = 0.2  # between two pauses
LOST_S = 10.0  # after which a wait that is not answered is lost


@dataclass
class Figures:
    """What happened in one loop, or in all of them."""

    answered: int = 0
    lost: int = 0
    pauses: int = 0
    longest_pause: float = 0.0
    twice: int = 0
    sent: int = 0
    received: int = 0
    losses: int = 0
    errors: list[str] = field(default_factory=list)

    def add(self, other: "Figures") -> None:
        self.answered += other.answered
        self.lost += other.lost
        self.twice += other.twice
        self.sent += other.sent
        self.received += other.received
        self.losses += other.losses
        self.errors += other.errors


class NextVersion(DelayedOperation[bool]):
    """Waits until a key has a version."""

    def __init__(self, versions: list[int], key: int, version: int) -> None:
        super().__init__(TIMEOUT)
        self.versions = versions
        self.key = key
        self.version = version
        self.ended = 0

    def try_complete(self) -> bool:
        return self.versions[self.key] >= self.version

    def on_complete(self) -> bool:
        self.ended += 1
        return not self.expired


class Loop:
    """One thread with its event loop."""

    def __init__(self, number: int, engine: MemoryTransport, versions: list[int], barrier: threading.Barrier) -> None:
        self.number = number
        self.versions = versions
        self.figures = Figures()
        self.room: Purgatory[Any] | None = None
        self.waiting: set[NextVersion] = set()
        self.writes = False
        self.has_paused = False
        self.stopping = False
        self._transport = engine.peer()
        self._barrier = barrier
        self._rng = random.Random(number)
        self.thread = threading.Thread(target=self._main, name=f"loop {number}")

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self.figures.errors.append(f"{type(error).__name__}: {error}")
            self._barrier.abort()

    async def _run(self) -> None:
        room = self.room = Purgatory[Any](f"loop {self.number}")
        async with room, Relay(room, self._transport, heartbeat=60.0, resync_every=3600.0) as relay:
            assert relay.connected
            await asyncio.to_thread(self._barrier.wait)
            writing = asyncio.create_task(self._write(relay))
            waiters = [asyncio.create_task(self._wait(relay)) for _ in range(50)]
            await writing
            for waiter in waiters:
                waiter.cancel()
            await asyncio.wait(waiters)
            statistics = relay.statistics()
            self.figures.sent, self.figures.received = statistics.sent, statistics.received
            self.figures.losses = statistics.losses
            assert len(room) == 0, len(room)
        room._check()
        room.timer._check()

    async def _wait(self, relay: Relay) -> None:
        while not self.stopping:
            key = self._rng.randrange(len(self.versions))
            operation = NextVersion(self.versions, key, self.versions[key] + 1)
            self.waiting.add(operation)
            answered = await relay.park(operation, {key: operation.version})
            self.waiting.discard(operation)
            self.figures.answered += answered
            self.figures.lost += not answered
            self.figures.twice += operation.ended != 1

    async def _write(self, relay: Relay) -> None:
        while not self.stopping:
            self.has_paused = not self.writes
            for _ in range(8 if self.writes else 0):
                key = self.number * KEYS + self._rng.randrange(KEYS)
                self.versions[key] += 1
                relay.check(key, self.versions[key])
            await asyncio.sleep(0.002)


def hammer(threads: int, seconds: float) -> Figures:
    """Run for so long, and return the figures of all loops."""
    engine = MemoryTransport()
    versions = [0] * ((threads + 1) * KEYS)
    barrier = threading.Barrier(threads + 1)
    loops = [Loop(number, engine, versions, barrier) for number in range(threads)]
    for loop in loops:
        loop.thread.start()
    total = Figures()
    try:
        barrier.wait(60.0)
    except threading.BrokenBarrierError:
        total.errors.append("a loop has not started")
    rng = random.Random(threads)
    until = time.monotonic() + seconds
    number = 0
    with Notifier(engine) as notifier:
        while time.monotonic() < until and not total.errors and not any(loop.figures.errors for loop in loops):
            pause = time.monotonic() + WRITES_S
            for loop in loops:
                loop.writes = True
            while time.monotonic() < pause:  # the keys of this thread
                number += 1
                key = threads * KEYS + rng.randrange(KEYS)
                versions[key] += 1
                if number % 2:
                    notifier.check(key, versions[key])
                else:
                    for loop in loops:
                        if loop.room is not None:
                            loop.room.check_threadsafe(key, versions[key])
                time.sleep(0.001)
            _pause(loops, versions, total)
    for loop in loops:
        loop.stopping = True
    for loop in loops:
        loop.thread.join(120.0)
        if loop.thread.is_alive():
            total.errors.append(f"{loop.thread.name} does not end")
        total.add(loop.figures)
    return total


def _pause(loops: list[Loop], versions: list[int], total: Figures) -> None:
    """Let all writers pause until every wait is answered whose key has the version."""
    for loop in loops:
        loop.writes = False
    began = time.monotonic()
    while not all(loop.has_paused or loop.figures.errors for loop in loops):
        time.sleep(0.001)
    while late := sum(versions[wait.key] >= wait.version for loop in loops for wait in list(loop.waiting)):
        if time.monotonic() - began > LOST_S:
            total.lost += late
            break
        time.sleep(0.001)
    total.pauses += 1
    total.longest_pause = max(total.longest_pause, time.monotonic() - began)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.relay.hammer", description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=8, help="event loops (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="(%(default)s)")
    options = parser.parse_args()
    began, cpu = time.monotonic(), time.process_time()
    figures = hammer(options.threads, options.seconds)
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(f"Python {sys.version.split()[0]}, {'with' if gil else 'without'} the GIL, {options.threads} loops")
    print(f"{time.monotonic() - began:.1f} s, {time.process_time() - cpu:.1f} s of CPU time")
    print(f"waits answered         {figures.answered}")
    print(f"waits lost             {figures.lost}, in {figures.pauses} pauses of at most {figures.longest_pause:.3f} s")
    print(f"waits answered twice   {figures.twice}")
    print(f"keys sent, received    {figures.sent}, {figures.received}")
    print(f"connections lost       {figures.losses}")
    for error in figures.errors:
        print(error)
    return 1 if figures.errors or figures.lost or figures.twice or not figures.answered else 0


if __name__ == "__main__":
    sys.exit(main())
