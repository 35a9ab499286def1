"""Locks and semaphores, compared with a model of counters and lists after every step."""

import asyncio
import contextlib
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from purgatory import Purgatory, PurgatoryClosed, PurgatoryFull
from purgatory.locks import KeyedLock, KeyedSemaphore
from purgatory.testing import VirtualClock
from tests.helpers import Op
from tests.strategies import STEPS

KEYS = ["a", "b"]

closings = st.one_of(st.none(), st.tuples(st.integers(0, 60), st.sampled_from([0.0, 2.0])))
"""After which step the purgatory begins to close, and with which grace."""

numbers = st.integers(0, 7)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("acquire"), st.sampled_from(KEYS), st.sampled_from([None, None, 0, 1.0, 2.5])),
        st.tuples(st.just("acquire"), st.just("a"), st.none()),
        st.tuples(st.just("release"), numbers),
        st.tuples(st.just("release"), numbers),
        st.tuples(st.just("release in a callback"), numbers),
        st.tuples(st.just("release in a callback after a cancellation"), numbers),
        st.tuples(st.just("release and ask again in a callback"), numbers),
        st.tuples(st.just("cancel"), numbers),
        st.tuples(st.just("turn")),
        st.tuples(st.just("advance"), st.sampled_from([0.5, 1.0, 3.0])),
        st.tuples(st.just("check_all")),
    ),
    min_size=20,
    max_size=60,
)


TWO_ON_A: list[tuple[Any, ...]] = [("acquire", "a", None), ("turn",), ("acquire", "a", None), ("turn",)]


class Waiter:
    """A task that acquires a key, and where it is in the model.

    ``place``: new, waiting, granted (but the task has not run since), holding, or how it ended.
    """

    def __init__(self, key: str, timeout: float | None, number: int) -> None:
        self.key = key
        self.timeout = timeout
        self.number = number
        self.place = "new"
        self.cancelled = False
        self.deadline = float("inf")
        self.task: asyncio.Task[None] | None = None


class Machine:
    """The model: the free permits of each key, and its waiters in the order of arrival."""

    def __init__(self, clock: VirtualClock, value: int, max_parked: int | None) -> None:
        self.clock = clock
        self.value = value
        self.max_parked = max_parked
        self.room = Purgatory[Any]("model", clock=clock, max_parked=max_parked)
        self.locks = KeyedLock(self.room) if value == 1 else KeyedSemaphore(self.room, value)
        self.free = dict.fromkeys(KEYS, value)
        self.queue: dict[str, list[Waiter]] = {key: [] for key in KEYS}
        self.waiters: list[Waiter] = []
        self.closed = False  # no wait begins any more
        self.closing: list[asyncio.Task[None]] = []

    # What the model expects

    def arrives(self, waiter: Waiter) -> None:
        """The task asks for a permit: decide in the model what the call must do."""
        key = waiter.key
        if self.free[key] and not self.queue[key]:
            self.free[key] -= 1
            waiter.place = "granted"
        elif waiter.timeout == 0:
            waiter.place = "times out"
        elif self.closed:
            waiter.place = "is refused"
        elif self.max_parked is not None and sum(map(len, self.queue.values())) >= self.max_parked:
            waiter.place = "is too many"
        else:
            waiter.place = "waiting"
            if waiter.timeout is not None:
                waiter.deadline = self.clock.time() + waiter.timeout
            self.queue[key].append(waiter)

    def gives(self, key: str) -> None:
        """A permit becomes free: it goes to the first waiter that was not cancelled."""
        while self.queue[key]:
            waiter = self.queue[key].pop(0)
            if not waiter.cancelled:
                waiter.place = "granted"
                return
            waiter.place = "withdrawn"
        self.free[key] += 1

    def leaves(self, waiter: Waiter, error: BaseException) -> None:
        """The wait has raised: it must be for a reason that the model has."""
        place = waiter.place
        if isinstance(error, asyncio.CancelledError):
            assert waiter.cancelled
            if place == "granted":
                self.gives(waiter.key)
            elif place == "waiting":
                self.queue[waiter.key].remove(waiter)
            else:
                assert place in ("withdrawn", "new"), place
        elif isinstance(error, TimeoutError):
            if place == "waiting":
                assert self.clock.time() >= waiter.deadline
                self.queue[waiter.key].remove(waiter)
            else:
                assert place == "times out", place
        elif isinstance(error, PurgatoryClosed):
            if place == "waiting":
                assert self.closed
                self.queue[waiter.key].remove(waiter)
            else:
                assert place == "is refused", place
        else:
            assert isinstance(error, PurgatoryFull)
            assert place == "is too many", place
        waiter.place = "gone"

    async def wait(self, waiter: Waiter) -> None:
        self.arrives(waiter)
        at_once = waiter.place == "granted"
        try:
            assert await self.locks.acquire(waiter.key, timeout=waiter.timeout)
        except (asyncio.CancelledError, TimeoutError, PurgatoryClosed, PurgatoryFull) as error:
            assert not at_once, "it was free"
            self.leaves(waiter, error)
        else:
            assert waiter.place == "granted", f"waiter {waiter.number} is {waiter.place}"
            waiter.place = "holding"

    # The steps

    def holders(self) -> list[Waiter]:
        return [waiter for waiter in self.waiters if waiter.place == "holding"]

    def parks(self, operation: Op) -> bool:
        """Park the operation, if the purgatory accepts it."""
        try:
            self.room.try_complete_else_watch(operation, ["k"])
        except (PurgatoryClosed, PurgatoryFull):
            return False
        return True

    async def step(self, step: tuple[Any, ...]) -> None:
        """Take one step.  Only some steps give the tasks a turn of the loop."""
        match step:
            case ("acquire", key, timeout):
                waiter = Waiter(key, timeout, len(self.waiters))
                self.waiters.append(waiter)
                waiter.task = asyncio.create_task(self.wait(waiter))
                await asyncio.sleep(0)
            case (("release" | "release in a callback") as how, number):
                if holders := self.holders():
                    waiter = holders[number % len(holders)]
                    waiter.place = "gone"
                    operation = Op(on_complete=lambda _: self.locks.release(waiter.key))
                    if how == "release" or not self.parks(operation):
                        self.locks.release(waiter.key)
                    else:
                        operation.force_complete()
                    self.gives(waiter.key)
            case ("release and ask again in a callback", number):
                holders = self.holders()
                if holders and not self.closed and self.max_parked is None:
                    before = holders[number % len(holders)]
                    waiter = Waiter(before.key, None, len(self.waiters))
                    self.waiters.append(waiter)

                    def release_and_ask(_: Op) -> None:
                        before.place = "gone"
                        self.locks.release(before.key)
                        self.gives(before.key)
                        waiter.task = asyncio.create_task(self.wait(waiter))  # an eager one asks here

                    operation = Op(on_complete=release_and_ask)
                    self.room.try_complete_else_watch(operation, ["k"])
                    operation.force_complete()
                    await asyncio.sleep(0)
            case ("release in a callback after a cancellation", number):
                await self.step(("cancel", number))
                await self.step(("release in a callback", 0))
            case ("cancel", number):
                left = [waiter for waiter in self.waiters if waiter.place in ("waiting", "granted")]
                if left:
                    waiter = left[number % len(left)]
                    waiter.cancelled = True
                    assert waiter.task is not None
                    waiter.task.cancel()
            case ("turn",):
                await asyncio.sleep(0)
            case ("advance", seconds):
                await self.clock.settle()
                await self.clock.advance(seconds)
            case ("check_all",):
                self.room.check_all()
            case ("close", grace):
                await self.clock.settle()
                self.closed = True
                self.closing.append(asyncio.create_task(self.room.aclose(grace=grace)))
                await self.clock.settle()
        self.check()

    def check(self) -> None:
        """Compare the locks with the model."""
        self.locks._check()
        self.room._check()
        for key in KEYS:
            assert self.locks.locked(key) == (not self.free[key] or bool(self.queue[key])), key
        used = [key for key in KEYS if self.free[key] < self.value or self.queue[key]]
        # Tasks that were cancelled, but have not run since, may have to forget a key.
        forgetful = any(waiter.cancelled and waiter.place == "withdrawn" for waiter in self.waiters)
        assert len(used) <= len(self.locks) <= len(used) + forgetful * len(KEYS)

    async def run(self, steps: list[tuple[Any, ...]]) -> None:
        """Take the steps; then release everything until no task waits."""
        for step in steps:
            await self.step(step)
            STEPS["locks"] += 1
        await self.clock.settle()
        while self.holders():
            await self.step(("release", 0))
            await self.clock.settle()
        assert not any(self.queue.values()), "a task waits although every permit was released"
        assert len(self.locks) == 0
        assert len(self.room) == 0
        await self.room.aclose()
        await asyncio.gather(*self.closing)
        for waiter in self.waiters:
            assert waiter.task is not None
            assert waiter.task.done()
            waiter.task.result()  # an assertion that failed inside


def new_eager_loop() -> asyncio.AbstractEventLoop:
    """Return a loop whose tasks make their first step when they are created."""
    loop = asyncio.SelectorEventLoop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined, unused-ignore]
    return loop


NEW_LOOPS: dict[str, Any] = {"asyncio": asyncio.SelectorEventLoop}
with contextlib.suppress(ImportError):  # on Windows and some free-threaded Pythons, it cannot be installed
    import uvloop

    NEW_LOOPS["uvloop"] = uvloop.new_event_loop
if sys.version_info >= (3, 12):
    NEW_LOOPS["eager"] = new_eager_loop


@pytest.mark.parametrize("new_loop", NEW_LOOPS.values(), ids=NEW_LOOPS)
@given(value=st.integers(1, 3), max_parked=st.sampled_from([None, None, 2]), steps=steps, closing=closings)
@example(1, None, [*TWO_ON_A, ("release and ask again in a callback", 0)], None)
@example(1, None, [*TWO_ON_A, ("release in a callback after a cancellation", 0)], None)
@example(2, None, [*TWO_ON_A, *TWO_ON_A, ("release", 0), ("cancel", 0), ("turn",), ("release", 0)], None)
def test_every_schedule_agrees_with_the_model(
    new_loop: Any,
    value: int,
    max_parked: int | None,
    steps: list[tuple[Any, ...]],
    closing: tuple[int, float] | None,
) -> None:
    """Permits are neither lost nor doubled, and granted in the order of arrival, whatever happens in one turn."""

    async def main() -> None:
        taken = list(steps)
        if closing is not None:
            taken.insert(closing[0], ("close", closing[1]))
        clock = VirtualClock(1000.0)
        await Machine(clock, value, max_parked).run(taken)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
