"""Random programs with two to five processes, and with every fault of the in-memory engine.

The tests verify this rule: if the condition of an operation becomes true in the shared table longer than the resync
bound before its deadline, the operation completes, and completes once.  If its condition never becomes true, it
expires.  The rule holds if messages are lost silently, delayed, duplicated or reordered, if connections break or become
silent, if the engine stops, if reads are slow or fail, and if processes close.
"""

import asyncio
import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from purgatory.relay import MemoryTransport
from purgatory.testing import VirtualClock
from tests.relay.kit import Reached, Worker, workers

RESYNC = 20.0
HEARTBEAT = 2.0
SLOWEST = 3.0  # seconds that a read may take
FAILURES = 3  # of reads in a row
# The resync comes while a read runs; its own read then fails repeatedly, with a pause of at most 0.4 s after each.
BOUND = RESYNC + SLOWEST + (FAILURES + 1) * (SLOWEST + 0.4) + 1.0
UNREADABLE = "unreadable"
# A read with the unreadable key is repeated three times.  A read of five keys is split at most three times until the
# unreadable key is alone: two reads each time, and one in between.  The reads of the unreadable key come in between as
# well, one for each other read.
ISOLATED = 4 * (SLOWEST + 0.8) + 3 * 3 * (SLOWEST + 0.4) + 2 * (FAILURES + 3) * SLOWEST

WORKER = st.integers(0, 4)
STEP = st.one_of(
    st.tuples(st.just("park"), WORKER, st.integers(0, 3), st.integers(0, 3), st.sampled_from([1, 10, 50, 90])),
    st.tuples(st.just("write"), WORKER, st.integers(0, 3)),
    st.tuples(st.just("write_in_transaction"), WORKER, st.integers(0, 3)),
    st.tuples(st.just("advance"), st.sampled_from([0.0, 0.01, 0.3, 3.0, 15.0])),
    st.tuples(st.just("turn"), st.integers(1, 5)),
    st.tuples(st.sampled_from(["disconnect", "silence", "restore", "close", "lose"]), WORKER),
    st.tuples(st.sampled_from(["stop", "start"])),
    st.tuples(st.just("cancel"), st.integers(0, 20)),
    st.tuples(st.just("line"), WORKER, st.sampled_from(["good", "lossy", "slow", "double", "wild", "deaf"])),
    st.tuples(st.just("reads"), WORKER, st.sampled_from([0.0, 0.2, SLOWEST]), st.integers(0, FAILURES)),
)


class Parked:
    """An operation, and the time at which it should have been completed."""

    def __init__(self, operation: Reached, task: "asyncio.Task[bool]", worker: Worker, deadline: float) -> None:
        self.operation = operation
        self.task = task
        self.worker = worker
        self.parked = worker.purgatory.timer.time()
        self.deadline = deadline


def forget(task: "asyncio.Task[Any]") -> None:
    """Retrieve the result of a task, so that asyncio logs no unretrieved exception."""
    if not task.cancelled():
        task.exception()


class Program:
    """A program that runs the steps, and records when each key got each value."""

    def __init__(
        self,
        clock: VirtualClock,
        number: int,
        seed: int,
        max_keys: int,
        resync_every: float = RESYNC,
        unreadable: bool = False,
    ) -> None:
        self.clock = clock
        self.random = random.Random(seed)
        self.workers, self.transports = workers(
            clock, number, heartbeat=HEARTBEAT, resync_every=resync_every, max_keys=max_keys
        )
        self.table = self.workers[0].table
        self.parked: list[Parked] = []
        self.times: dict[tuple[Any, float], float] = {}
        self.closed: dict[Worker, float] = {}
        self.unreadable = unreadable
        self.bound = BOUND + ISOLATED if unreadable else BOUND

    def line(self, kind: str) -> Any:
        """Return the deliveries of one kind of connection."""
        rng = self.random
        kinds: dict[str, Any] = {
            "good": None,
            "lossy": lambda _: [] if rng.random() < 0.5 else [0.0],
            "slow": lambda _: [rng.random()],
            "double": lambda _: [0.0, rng.random()],
            "deaf": lambda _: [],
            "wild": lambda _: [rng.random() * 2 for _ in range(rng.randrange(4))],
        }
        return kinds[kind]

    async def step(self, step: tuple[Any, ...]) -> None:
        """Run one step."""
        match step:
            case ("park", number, key, ahead, timeout):
                worker = self.workers[number % len(self.workers)]
                if worker not in self.closed:
                    operation = Reached(worker, key, self.table.get(key, 0) + ahead, timeout)
                    task = asyncio.create_task(worker.relay.park(operation, [key]))
                    self.parked.append(Parked(operation, task, worker, self.clock.time() + timeout))
            case (("write" | "write_in_transaction") as how, number, key):
                worker = self.workers[number % len(self.workers)]
                if worker not in self.closed:
                    value = self.table.get(key, 0) + 1
                    self.table[key] = value
                    self.times[key, value] = self.clock.time()
                    if how == "write":
                        worker.relay.check(key, value)
                    else:
                        # If it cannot be sent, the effect is that of a process that dies at this point.
                        asyncio.create_task(worker.relay.check_in(None, [key])).add_done_callback(forget)
            case ("advance", seconds):
                await self.clock.advance(seconds)
            case ("turn", turns):
                for _ in range(turns):
                    await asyncio.sleep(0)
            case ("close", number):
                worker = self.workers[number % len(self.workers)]
                if worker not in self.closed and len(self.closed) < len(self.workers) - 1:
                    self.closed[worker] = self.clock.time()
                    closing = asyncio.create_task(worker.relay.aclose())
                    await self.clock.advance(1.0)
                    assert closing.done()
            case ("cancel", number):
                if self.parked:
                    self.parked[number % len(self.parked)].task.cancel()
            case ("lose", number):
                self.transports[number % len(self.transports)].lose(3)
            case ("line", number, kind):
                self.transports[number % len(self.transports)].deliveries = self.line(kind)
            case ("reads", number, seconds, failures):
                worker = self.workers[number % len(self.workers)]
                worker.read_takes, worker.failures = seconds, failures
            case (fault, number):
                getattr(self.transports[number % len(self.transports)], fault)()
            case (fault,):
                getattr(self.transports[0], fault)()

    async def run(self, steps: list[tuple[Any, ...]], calm: float | None = None) -> None:
        """Run all steps, wait until every deadline has passed, and compare the outcomes.

        ``calm``: first repair all faults; after this number of seconds, no operation may be left that can complete.
        """
        for worker in self.workers:
            await worker.purgatory.__aenter__()
            await worker.relay.__aenter__()
            if self.unreadable:
                worker.unreadable.add(UNREADABLE)
                worker.waits(UNREADABLE, timeout=None).add_done_callback(forget)
        for step in steps:
            await self.step(step)
        if calm is not None:
            self.transports[0].start()
            for transport in self.transports:
                transport.restore()
                transport.deliveries = None
            await self.clock.advance(calm)
            for parked in self.parked:
                operation = parked.operation
                assert parked.task.done() or self.table.get(operation.key, 0) < operation.value, "lost"
        await self.clock.advance(100.0)
        for parked in self.parked:
            self.judge(parked)
        for worker in self.workers:
            await worker.relay.aclose(grace=0.0)
            await worker.purgatory.aclose()
            worker.purgatory._check()
        left = {task for task in asyncio.all_tasks() - {asyncio.current_task()} if "check_in" not in repr(task)}
        assert not left, left

    def judge(self, parked: Parked) -> None:
        """Check that the operation ended as it must."""
        operation = parked.operation
        assert parked.task.done()
        if parked.task.cancelled():
            assert operation.completions <= 1
            return
        answer = parked.task.result()
        assert operation.completions == 1
        true_since = self.times.get((operation.key, operation.value), 0.0 if operation.value == 0 else None)
        if answer:
            assert true_since is not None, "completed, although the condition never held"
            return
        closed = self.closed.get(parked.worker, float("inf"))
        if true_since is not None and max(true_since, parked.parked) + self.bound <= min(parked.deadline, closed):
            raise AssertionError(f"lost: {operation.key} has had {operation.value} since {true_since}")


@given(
    st.integers(2, 5),
    st.lists(STEP, max_size=40),
    st.integers(0, 2**32),
    st.sampled_from([1, 2, 1000]),
    st.booleans(),
)
@example(  # a notice is lost without a sign, and then the engine is away
    2, [("park", 0, 0, 1, 90), ("turn", 5), ("lose", 0), ("write", 1, 0), ("stop",), ("advance", 15.0)], 0, 1000, False
)  # fmt: skip
@example(  # a key that cannot be read is in every read
    2, [("park", 0, 0, 1, 90), ("advance", 15.0), ("write", 1, 0)], 0, 1000, True
)  # fmt: skip
def test_no_wake_up_is_lost(
    number: int, steps: list[tuple[Any, ...]], seed: int, max_keys: int, unreadable: bool
) -> None:
    """With any faults, an operation completes within the bound and once, or expires if it could not complete.

    ``unreadable``: in each process another operation waits on a key that cannot be read.
    """

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)  # reads that fail are reported
        await Program(VirtualClock(1000.0), number, seed, max_keys, unreadable=unreadable).run(steps)

    asyncio.run(main())


SHARP_STEP = st.one_of(
    st.tuples(st.just("park"), WORKER, st.integers(0, 5), st.integers(0, 2), st.just(90)),
    st.tuples(st.just("write"), WORKER, st.integers(0, 5)),
    st.tuples(st.just("advance"), st.sampled_from([0.0, 0.01, 0.3, 1.0])),
    st.tuples(st.just("turn"), st.integers(1, 5)),
    st.tuples(st.sampled_from(["disconnect", "silence", "restore"]), WORKER),
    st.tuples(st.sampled_from(["stop", "start"])),
    st.tuples(st.just("cancel"), st.integers(0, 20)),
    st.tuples(st.just("line"), WORKER, st.sampled_from(["good", "slow", "double"])),
    st.tuples(st.just("reads"), WORKER, st.sampled_from([0.0, 0.2]), st.integers(0, FAILURES)),
)
# A dead line is found within two heartbeats, the pause before an attempt is at most 5 s and the attempt a heartbeat.
RECOVERY = 3 * HEARTBEAT + 5.0 + (FAILURES + 2) * (0.2 + 0.4) + 2.0


@given(
    st.integers(2, 5),
    st.lists(SHARP_STEP, max_size=40),
    st.integers(0, 2**32),
    st.sampled_from([1, 2, 1000]),
)
@example(  # the sender's line breaks under a publish
    2, [("park", 1, 0, 1, 90), ("turn", 5), ("silence", 0), ("write", 0, 0), ("turn", 5)], 0, 1000
)  # fmt: skip
@example(  # a read fails, and no notice comes again
    2, [("park", 1, 0, 1, 90), ("turn", 5), ("reads", 1, 0.0, 1), ("write", 0, 0), ("turn", 5)], 0, 1000
)  # fmt: skip
@example(  # the operation is parked after the notice
    2, [("write", 0, 0), ("turn", 5), ("park", 1, 0, 0, 90)], 0, 1000
)  # fmt: skip
@example(  # more keys in one turn than max_keys
    2, [*[("park", 1, key, 1, 90) for key in range(6)], ("turn", 20), *[("write", 0, key) for key in range(6)]], 0, 2
)  # fmt: skip
@example(  # more keys than max_keys, and two resyncs one after the other
    2, [*[("park", 1, key, 1, 90) for key in range(6)], ("turn", 5), ("reads", 1, 0.2, 0), ("disconnect", 1),
        ("advance", 0.3), ("disconnect", 1), *[("write", 0, key) for key in range(6)]], 0, 2
)  # fmt: skip
def test_nothing_has_to_wait_for_the_resync(
    number: int, steps: list[tuple[Any, ...]], seed: int, max_keys: int
) -> None:
    """Unless the engine loses messages silently, all missed changes are found when the connections are back."""

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        await Program(VirtualClock(1000.0), number, seed, max_keys, resync_every=10_000.0).run(steps, RECOVERY)

    asyncio.run(main())


@pytest.mark.parametrize("fault", ["disconnect", "stop", "silence"])
@pytest.mark.parametrize("at", range(24))
async def test_a_disconnect_at_every_point(clock: VirtualClock, fault: str, at: int) -> None:
    """A connection that breaks at any point of a notice's way, on either side, delays the answer until the
    reconnect.
    """
    for side in (0, 1):
        (first, second), transports = workers(clock, heartbeat=HEARTBEAT, resync_every=1000.0)
        began = clock.time()
        async with first, second:
            waiting = second.waits("a", timeout=60.0)
            transport: MemoryTransport = transports[side]
            for turn in range(24):
                if turn == 8:
                    first.write("a", 1)
                    first.relay.check("a")
                if turn == at:
                    getattr(transport, fault)()
                    transport.restore()
                    transport.start()
                await asyncio.sleep(0)
            await clock.advance(2 * HEARTBEAT + 1.0)
            assert waiting.done(), f"lost, side {side}, at {clock.time() - began} s"
            assert await waiting is True
