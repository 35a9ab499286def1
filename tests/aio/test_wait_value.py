"""``wait_value``: a task waits for the first value that is not None."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import OperationCancelled, Purgatory, PurgatoryClosed, PurgatoryFull
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, check


class Source:
    """A source of values whose calls are counted."""

    def __init__(self, *values: Any) -> None:
        self.values = deque(values)
        self.calls = 0
        self.returned: list[Any] = []  # what on_abandoned gave back

    def take(self) -> Any:
        self.calls += 1
        return self.values.popleft() if self.values else None


@pytest.mark.parametrize("value", [5, 0, "", False, [], 0.0])
async def test_the_first_value_ends_the_wait(purgatory: Purgatory[Op], clock: VirtualClock, value: Any) -> None:
    """A value that is not None is returned, at once or after a check, and ``get`` is not called again."""
    source = Source(value)
    assert await purgatory.wait_value(source.take, key="a", timeout=5) is value
    task = asyncio.create_task(purgatory.wait_value(source.take, keys=["a", "b"], timeout=5))
    await clock.settle()
    assert source.calls == 2
    assert purgatory.check("b") == 0
    source.values.append(value)
    assert purgatory.check("a") == 1
    assert purgatory.check("b") == 0
    assert await task is value
    assert source.calls == 4
    check(purgatory, parked=0, completed=2)


async def test_the_deadline(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """At the deadline the result is None, and ``get`` is not called."""
    source = Source()
    tasks = [
        asyncio.create_task(purgatory.wait_value(source.take, key="a", timeout=5)),
        asyncio.create_task(purgatory.wait_value(source.take, key="a", deadline=1005.0)),
    ]
    await clock.settle()
    source.values.append("late")
    await clock.advance(5)
    assert [await task for task in tasks] == [None, None]
    assert source.calls == 2


async def test_closing(clock: VirtualClock) -> None:
    """When the purgatory closes, the result is None, and ``get`` is not called."""
    source = Source()
    async with Purgatory[Any]("test", clock=clock) as purgatory:
        task = asyncio.create_task(purgatory.wait_value(source.take, key="a", timeout=None))
        await clock.settle()
        source.values.append("late")
    assert await task is None
    assert source.calls == 1


@pytest.mark.parametrize("time", [{"timeout": 0}, {"deadline": 1000.0}, {"deadline": 0}])
async def test_a_wait_of_zero_does_not_park(clock: VirtualClock, time: dict[str, Any]) -> None:
    """Without time to wait ``get`` is called once; nothing is parked, counted, or refused."""
    source = Source("first", None, "third", None)
    async with Purgatory[Any]("full", clock=clock, max_parked=1) as purgatory:
        purgatory.try_complete_else_watch(Op(None), ["a"])
        with pytest.raises(PurgatoryFull):
            await purgatory.wait_value(lambda: None, key="a", timeout=1)
        for expected in ("first", "third"):
            before = purgatory.statistics()
            assert await purgatory.wait_value(source.take, key="a", **time) == expected
            assert await purgatory.wait_value(source.take, key="a", **time) is None
            assert purgatory.statistics() == before
            await purgatory.aclose()
        with pytest.raises(PurgatoryClosed):
            await purgatory.wait_value(lambda: None, key="a", timeout=1)
    assert source.calls == 4


async def test_a_value_that_the_cancelled_task_did_not_receive(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """If the task is cancelled between the check and its next turn, the value goes to ``on_abandoned``."""
    queue: deque[str] = deque()
    task = asyncio.create_task(
        purgatory.wait_value(
            lambda: queue.popleft() if queue else None, key="a", timeout=5, on_abandoned=queue.appendleft
        )
    )
    await clock.settle()
    queue.append("job")
    assert purgatory.check("a") == 1
    assert not queue
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list(queue) == ["job"]


async def test_nothing_is_taken_for_a_cancelled_task(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """If the task is cancelled first, a check does not call ``get``, and the next waiter gets the value."""
    source = Source()
    first, second = (
        asyncio.create_task(purgatory.wait_value(source.take, key="a", timeout=5, on_abandoned=source.returned.append))
        for _ in range(2)
    )
    await clock.settle()
    source.values.append("job")
    first.cancel()
    assert purgatory.check("a", limit=1) == 1
    assert source.calls == 3
    assert await second == "job"
    with pytest.raises(asyncio.CancelledError):
        await first
    assert source.returned == []


@pytest.mark.parametrize("try_it", [lambda room, _: room.check("a") == 1, lambda _, wait: wait.try_complete()])
async def test_a_wait_whose_task_was_cancelled_is_withdrawn(
    purgatory: Purgatory[Op], clock: VirtualClock, reported: list[dict[str, Any]], try_it: Callable[..., bool]
) -> None:
    """The next try withdraws it, before the task runs, and neither completes it nor reports anything."""
    task = asyncio.create_task(purgatory.wait_value(Source().take, key="a", timeout=5))
    await clock.settle()
    (event,) = purgatory.parked_events()
    task.cancel()
    assert try_it(purgatory, event.operation) is False
    check(purgatory, parked=0, cancelled=1, failed=0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reported == []


async def test_get_that_ends_its_own_wait(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """A value is given back if ``get`` itself has cancelled the task, or has ended the wait."""
    given_back: list[Any] = []
    armed = False

    def cancel_task() -> str | None:
        if armed:
            task.cancel()
            return "one"
        return None

    def end_wait() -> str | None:
        if armed:
            assert purgatory.cancel_for_key("b")
            return "two"
        return None

    task = asyncio.create_task(purgatory.wait_value(cancel_task, key="a", timeout=5, on_abandoned=given_back.append))
    other = asyncio.create_task(purgatory.wait_value(end_wait, key="b", timeout=5, on_abandoned=given_back.append))
    await clock.settle()
    armed = True
    assert purgatory.check("a") == 0
    assert purgatory.check("b") == 0
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(OperationCancelled):
        await other
    assert given_back == ["one", "two"]


@pytest.mark.parametrize("at_fault", [lambda _: 1 // 0, lambda _: _coroutine()])
async def test_a_value_is_given_back_wrongly_from_within_get(
    purgatory: Purgatory[Op], clock: VirtualClock, reported: list[dict[str, Any]], at_fault: Callable[[str], Any]
) -> None:
    """What is wrong with ``on_abandoned`` is reported, in the same way as after a cancelled task."""
    armed = False

    def end_wait() -> str | None:
        return "value" if armed and purgatory.cancel_for_key("a") else None

    task = asyncio.create_task(purgatory.wait_value(end_wait, key="a", timeout=5, on_abandoned=at_fault))
    await clock.settle()
    armed = True
    assert purgatory.check("a") == 0
    with pytest.raises(OperationCancelled):
        await task
    (context,) = reported
    assert isinstance(context["exception"], (ZeroDivisionError, TypeError))


async def test_a_value_for_a_wait_that_has_ended_is_given_back(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """An observer or a list of the parked operations may still hold the wait, and other code may try it again."""
    source = Source()
    task = asyncio.create_task(
        purgatory.wait_value(source.take, key="a", timeout=5, on_abandoned=source.returned.append)
    )
    await clock.settle()
    (event,) = purgatory.parked_events()
    await clock.advance(5)
    assert await task is None
    source.values.append("job")
    assert event.operation.try_complete() is False
    assert source.returned == ["job"]


async def test_an_expired_wait_abandons_nothing(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """``on_abandoned`` is not called with None, when the task is cancelled in the turn in which its time has passed."""
    given_back: list[Any] = []
    task = asyncio.create_task(purgatory.wait_value(lambda: None, key="a", timeout=5, on_abandoned=given_back.append))
    await clock.settle()
    purgatory.timer.expire_due(1_005_000)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert given_back == []
    check(purgatory, expired=1)


async def test_on_abandoned_that_raises_is_reported(
    purgatory: Purgatory[Op], clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """An exception of ``on_abandoned`` goes to the loop's exception handler; the task is still cancelled."""
    ready = False

    def boom(_: int) -> None:
        raise Boom

    task = asyncio.create_task(
        purgatory.wait_value(lambda: 5 if ready else None, key="a", timeout=5, on_abandoned=boom)
    )
    await clock.settle()
    ready = True
    assert purgatory.check("a") == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [type(context["exception"]) for context in reported] == [Boom]


async def test_get_that_raises(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """An exception of ``get`` reaches its own waiter, at once or after a check, and no other one."""
    ready = False

    def get() -> int | None:
        if ready:
            raise Boom
        return None

    with pytest.raises(ZeroDivisionError):
        await purgatory.wait_value(lambda: 1 // 0, key="a", timeout=5)
    with pytest.raises(ZeroDivisionError):
        await purgatory.wait_value(lambda: 1 // 0, key="a", timeout=0)
    task = asyncio.create_task(purgatory.wait_value(get, key="a", timeout=5))
    other = asyncio.create_task(purgatory.wait_value(lambda: ready or None, key="a", timeout=5))
    await clock.settle()
    ready = True
    assert purgatory.check("a") == 1
    assert await other is True
    with pytest.raises(Boom):
        await task


async def test_force_complete_without_a_value(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """A wait that other code completes has the result None."""
    task = asyncio.create_task(purgatory.wait_value(Source().take, key="a", timeout=5))
    await clock.settle()
    (event,) = purgatory.parked_events()
    assert event.kind == "wait_value"
    assert event.operation.force_complete()
    assert await task is None


async def test_the_kind(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """``kind=`` is the kind of the wait."""
    task = asyncio.create_task(purgatory.wait_value(Source().take, key="a", timeout=5, kind="next job"))
    await clock.settle()
    assert [event.kind for event in purgatory.parked_events()] == ["next job"]
    await clock.advance(5)
    assert await task is None


async def _coroutine() -> int:
    return 5


@pytest.mark.parametrize(
    ("get", "arguments", "message"),
    [
        (5, {}, "get must be callable, got 5: pass a function, such as 'lambda: ...'"),
        (_coroutine, {}, "get must be a plain function, got the coroutine function"),
        (lambda: _coroutine(), {}, "get must return a value or None, got a coroutine"),
        (lambda: 1 / 0, {"on_abandoned": 5}, "on_abandoned must be callable, got 5"),
        (lambda: 1 / 0, {"on_abandoned": _coroutine}, "on_abandoned must be a plain function, got the coroutine"),
        (lambda: 1 / 0, {"timeout": 5, "deadline": 5}, r"wait_value\(\) takes a timeout or a deadline, got both"),
        (lambda: 1 / 0, {"keys": ["a"]}, r"wait_value\(\) takes key= or keys=, got both"),
    ],
)
async def test_wrong_arguments(purgatory: Purgatory[Op], get: Any, arguments: dict[str, Any], message: str) -> None:
    """The error names the parameter and what it must be."""
    wait_value: Any = purgatory.wait_value
    with pytest.raises(TypeError, match=message):
        await wait_value(get, **{"key": "a", "timeout": 5, **arguments})


async def test_the_keys_are_required(purgatory: Purgatory[Op]) -> None:
    """The error names the two parameters that can have them."""
    with pytest.raises(TypeError, match=r"^wait_value\(\) takes key= or keys=, got neither"):
        await purgatory.wait_value(lambda: None, timeout=5)
