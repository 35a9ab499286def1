"""Operations, tasks and observers for tests, and common steps."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any

import pytest

from purgatory import DelayedOperation, Event, Observer, Outcome, Purgatory, ThresholdPurgatory, TimerTask
from purgatory.core.purgatory import BasePurgatory
from purgatory.testing import VirtualClock
from purgatory.types import Alarm, Timeout

__all__ = [
    "Boom",
    "Doing",
    "Hasty",
    "Op",
    "Recorder",
    "Same",
    "Task",
    "check",
    "completed",
    "during",
    "ends_in_time_out",
    "futures",
    "kinds",
    "park",
    "park_in_tasks",
    "park_named",
    "turns_until",
    "wait_after",
    "wait_in_tasks",
    "waiting",
]


class Boom(Exception):
    """An error that tests raise on purpose."""


def nothing(_: Any) -> None:
    """Do nothing."""


class Op(DelayedOperation[Any]):
    """An operation whose condition is a flag, and whose callbacks can be given.

    ``calls`` lists the methods that ran, in order.
    """

    def __init__(
        self,
        timeout: float | None = None,
        *,
        name: str = "",
        ready: bool = False,
        on_try: Callable[["Op"], Any] = nothing,
        on_complete: Callable[["Op"], Any] = nothing,
        on_expiration: Callable[["Op"], Any] = nothing,
    ) -> None:
        super().__init__(timeout)
        self.name = name
        self.ready = ready
        self.calls: list[str] = []
        self._on_try = on_try
        self._on_complete = on_complete
        self._on_expiration = on_expiration

    def try_complete(self) -> bool:
        self.calls.append("try")
        self._on_try(self)
        return self.ready

    def on_complete(self) -> Any:
        self.calls.append("complete")
        value = self._on_complete(self)
        return self.name if value is None else value

    def on_expiration(self) -> None:
        self.calls.append("expire")
        self._on_expiration(self)

    @property
    def completions(self) -> int:
        """Return how often ``on_complete`` ran."""
        return self.calls.count("complete")


class Hasty(VirtualClock):
    """A clock whose alarms call back early, in the next turn of the loop, a given number of times."""

    hasty = 0

    def call_at(self, when_ms: int, callback: Callable[[], object]) -> Alarm:
        if self.hasty:
            self.hasty -= 1
            when_ms = self.now_ms()
        return super().call_at(when_ms, callback)


class Task(TimerTask):
    """A timer task that appends its name to a log."""

    def __init__(self, delay_ms: int, log: list[Any], name: Any = None) -> None:
        super().__init__(delay_ms)
        self.log = log
        self.name = delay_ms if name is None else name

    def run(self) -> None:
        self.log.append(self.name)


@dataclass(frozen=True)
class Same:
    """A key of its own class, with the hash of another key, and so in the same shard."""

    other: Any

    def __hash__(self) -> int:
        return hash(self.other)


class AtCollection:
    """An object in a cycle, whose finalizer calls a function whenever the garbage collector runs."""

    def __init__(self, finalizer: Callable[[], object]) -> None:
        self.finalizer = finalizer
        self.myself = self

    def __del__(self) -> None:
        self.finalizer()


class Recorder:
    """An observer that records every event as (method, operation's name)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.seen: list[Any] = []

    def _note(self, method: str, event: Any) -> None:
        self.events.append((method, event.operation.name))
        self.seen.append(event)

    def parked(self, event: Any) -> None:
        self._note("parked", event)

    def completed(self, event: Any) -> None:
        self._note("completed", event)

    def expired(self, event: Any) -> None:
        self._note("expired", event)

    def cancelled(self, event: Any) -> None:
        self._note("cancelled", event)

    def failed(self, event: Any) -> None:
        self._note("failed", event)


class Doing(Observer):
    """An observer that calls a function at one kind of event, and records the events that it received."""

    def __init__(self, **actions: Callable[[Event], object]) -> None:
        self.actions = actions
        self.seen: list[tuple[str, str]] = []

    def _act(self, method: str, event: Event) -> None:
        self.seen.append((method, event.operation.name))
        action = self.actions.get(method)
        if action is not None:
            action(event)

    def parked(self, event: Event) -> None:
        self._act("parked", event)

    def completed(self, event: Event) -> None:
        self._act("completed", event)

    def expired(self, event: Event) -> None:
        self._act("expired", event)

    def cancelled(self, event: Event) -> None:
        self._act("cancelled", event)

    def failed(self, event: Event) -> None:
        self._act("failed", event)


def check(purgatory: BasePurgatory, **expected: int) -> None:
    """Check the invariants and the given fields of the statistics."""
    purgatory._check()
    statistics = purgatory.statistics()
    found = {name: getattr(statistics, name) for name in expected}
    assert found == expected


def park(purgatory: Any, *keys: Hashable, **arguments: Any) -> Op:
    """Return an operation that waits on the keys; its ``calls`` are reset after the first try."""
    operation = Op(**arguments)
    purgatory.try_complete_else_watch(operation, keys)
    operation.calls.clear()
    return operation


def park_named(purgatory: BasePurgatory, name: str, *keys: Hashable, **arguments: Any) -> Op:
    """Return an operation with this name that waits on the keys, or on "key"."""
    return park(purgatory, *(keys or ["key"]), name=name, **arguments)


def waiting(room: Any, number: int, key: str = "key", **arguments: Any) -> list[Op]:
    """Return this number of operations that wait on the key and can complete."""
    operations = [park(room, key, name=str(index), **arguments) for index in range(number)]
    for operation in operations:
        operation.ready = True
    return operations


def completed(operations: list[Op]) -> list[int]:
    """Return the indexes of the operations that have completed."""
    return [index for index, operation in enumerate(operations) if operation.outcome is Outcome.COMPLETED]


async def park_in_tasks(purgatory: Purgatory[Op], clock: VirtualClock, *operations: Op) -> list["asyncio.Task[Any]"]:
    """Return tasks that wait for the operations, all of which are parked on "a"."""
    tasks = [asyncio.create_task(purgatory.park(operation, ["a"])) for operation in operations]
    await clock.settle()
    return tasks


async def wait_in_tasks(marks: ThresholdPurgatory, *waits: tuple[Any, ...]) -> list["asyncio.Task[Any]"]:
    """Return tasks in ``wait``, each with (key, threshold) or (key, threshold, timeout)."""
    tasks = [asyncio.ensure_future(marks.wait(key, *rest, *[None] * (2 - len(rest)))) for key, *rest in waits]
    await asyncio.sleep(0)
    return tasks


async def wait_after(begin: asyncio.Event, wait: Awaitable[Any]) -> Any:
    """Begin to wait in the turn after the event is set, even in a task that starts eagerly."""
    await begin.wait()
    return await wait


async def turns_until(done: Callable[[], bool]) -> int:
    """Return the number of loop turns that the call takes."""
    turns = 0
    while not done():
        await asyncio.sleep(0)
        turns += 1
        assert turns < 10_000
    return turns


async def during(clock: VirtualClock, seconds: float, work: Awaitable[Any]) -> Any:
    """Run the coroutine in a task while ``seconds`` pass."""
    task = asyncio.ensure_future(work)
    await clock.advance(seconds)
    assert task.done(), f"{task!r} has not ended after {seconds} s"
    return await task


async def ends_in_time_out(timeout: Timeout, clock: VirtualClock, seconds: float = 50.0) -> TimeoutError:
    """Wait for ``seconds`` in a block that times out earlier.  Return its error."""
    with pytest.raises(TimeoutError) as raised:
        async with timeout:
            await clock.sleep(seconds)
    return raised.value


def futures(number: int) -> list["asyncio.Future[Any]"]:
    """Return this number of pending futures of the running loop."""
    return [asyncio.get_running_loop().create_future() for _ in range(number)]


def kinds(outcomes: list[Any]) -> list[Any]:
    """Return results unchanged, and exceptions as their classes."""
    return [type(outcome) if isinstance(outcome, BaseException) else outcome for outcome in outcomes]
