"""If a task is cancelled before it receives its result, ``on_abandoned`` receives the result."""

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import Event, Observer, Outcome, Purgatory, TimerTask
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, check, nothing


class Returned(Op):
    """An operation that records the results passed to ``on_abandoned``."""

    def __init__(self, *args: Any, on_abandoned: Callable[["Returned"], Any] = nothing, **arguments: Any) -> None:
        super().__init__(*args, **arguments)
        self.returned: list[Any] = []
        self._on_abandoned = on_abandoned

    def on_abandoned(self, result: Any) -> None:
        self.returned.append(result)
        self._on_abandoned(self)


async def _parked(purgatory: Purgatory[Op], clock: VirtualClock, op: Op) -> "asyncio.Task[Any]":
    task = asyncio.create_task(purgatory.park(op, ["a"]))
    await clock.settle()
    return task


def _end(purgatory: Purgatory[Op], clock: VirtualClock, op: Op, ending: str) -> None:
    op.ready = True
    if ending == "check":
        assert purgatory.check_and_complete("a") == 1
    elif ending == "force":
        assert op.force_complete()
    else:
        assert purgatory.timer.expire_due(clock.now_ms() + 5000) == 1


@pytest.mark.parametrize("ending", ["check", "force", "expiry"])
async def test_a_result_whose_task_is_cancelled_is_given_back(
    purgatory: Purgatory[Op], clock: VirtualClock, reported: list[dict[str, Any]], ending: str
) -> None:
    """If the operation ends and its task is cancelled in the same turn, the hook receives the result and the task
    raises.
    """
    op = Returned(5, name="job")
    task = await _parked(purgatory, clock, op)
    _end(purgatory, clock, op, ending)
    task.cancel()
    assert op.returned == []
    with pytest.raises(asyncio.CancelledError):
        await task
    assert op.returned == ["job"]
    assert op.expired is (ending == "expiry")
    assert op.result() == "job"
    check(purgatory, parked=0, cancelled=0)
    assert reported == []


async def test_a_job_goes_back_to_its_queue(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """If a worker is cancelled while it holds a job, the next worker receives the job."""
    jobs: list[str] = []

    class Take(Op):
        def try_complete(self) -> bool:
            return bool(jobs)

        def on_complete(self) -> str:
            return jobs.pop(0)

        def on_abandoned(self, result: Any) -> None:
            jobs.insert(0, result)
            purgatory.check_and_complete("a")

    first, second = await _parked(purgatory, clock, Take()), await _parked(purgatory, clock, Take())
    jobs.append("the only one")
    assert purgatory.check_and_complete("a") == 1
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await second == "the only one"
    assert jobs == []


async def test_a_task_cancelled_by_the_completion_itself(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """If ``on_complete`` cancels the waiting task, the result cannot be delivered, and ``on_abandoned`` receives it."""
    op = Returned(5, name="job", on_complete=lambda _: task.cancel() and None)
    task = await _parked(purgatory, clock, op)
    op.ready = True
    assert purgatory.check_and_complete("a") == 1
    assert op.outcome is Outcome.COMPLETED
    with pytest.raises(asyncio.CancelledError):
        await task
    assert op.returned == ["job"]


@pytest.mark.parametrize("ending", ["check", "force", "expiry"])
async def test_a_coroutine_that_is_closed_gives_its_result_back(
    purgatory: Purgatory[Op], clock: VirtualClock, ending: str
) -> None:
    """Closing the coroutine, as a shutdown does, has the same effect as cancelling its task."""
    op = Returned(5, name="job")
    coroutine = purgatory.park(op, ["a"])
    coroutine.send(None)
    _end(purgatory, clock, op, ending)
    coroutine.close()
    assert op.returned == ["job"]


@pytest.mark.parametrize("raises", [False, True])
async def test_a_coroutine_closed_by_the_completion_itself(
    purgatory: Purgatory[Op], clock: VirtualClock, reported: list[dict[str, Any]], raises: bool
) -> None:
    """If the coroutine is closed inside ``on_complete``, the hook receives the result as soon as it exists, if any."""

    def close(_: Op) -> None:
        coroutine.close()
        assert op.returned == []
        if raises:
            raise Boom

    op = Returned(5, name="job", on_complete=close)
    coroutine = purgatory.park(op, ["a"])
    coroutine.send(None)
    op.ready = True
    assert purgatory.check_and_complete("a") == (0 if raises else 1)
    await clock.settle()
    assert op.returned == ([] if raises else ["job"])
    if raises:
        with pytest.raises(Boom):
            op.result()


# When it is not called


async def test_nothing_is_given_back_that_was_received(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """If a task receives the result, at once, on a check, or on expiry, the hook is not called."""
    ops = [Returned(5, ready=True), Returned(5), Returned(5)]
    await purgatory.park(ops[0], ["b"])
    tasks = [asyncio.create_task(purgatory.park(op, [key])) for op, key in zip(ops[1:], "ab", strict=True)]
    await clock.settle()
    ops[1].ready = True
    purgatory.check_and_complete("a")
    await clock.advance(5)
    await asyncio.gather(*tasks)
    assert [op.returned for op in ops] == [[], [], []]


@pytest.mark.parametrize("ending", ["cancelled first", "withdrawn", "failed", "failed in on_complete"])
async def test_without_a_result_nothing_is_given_back(
    purgatory: Purgatory[Op], clock: VirtualClock, ending: str
) -> None:
    """An operation that ends CANCELLED or FAILED has no result."""

    def boom(_: Op) -> None:
        raise Boom

    op = Returned(5)
    task = await _parked(purgatory, clock, op)
    if ending == "cancelled first":
        task.cancel()
        op.ready = True
        assert purgatory.check_and_complete("a") == 0
    elif ending == "withdrawn":
        op.cancel()
    elif ending == "failed":
        purgatory.fail_for_key("a", Boom())
    else:
        op.ready, op._on_complete = True, boom
        assert purgatory.check_and_complete("a") == 0
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert op.returned == []


@pytest.mark.parametrize("interrupted", ["observer", "queued check"])
async def test_a_result_that_an_interrupt_keeps_from_its_task_is_given_back(
    clock: VirtualClock, interrupted: str
) -> None:
    """It completed at once, but ``park()`` and ``wait_value()`` raise the interrupt and so return no result."""
    armed = [0]

    def interrupt() -> bool:
        if armed and armed.pop():
            raise KeyboardInterrupt
        return False

    class Interrupts(Observer):
        def completed(self, event: Event) -> None:
            interrupt()

    def get() -> str:
        room.check("other")
        return jobs.pop()

    jobs = ["job"]
    observers = [Interrupts()] if interrupted == "observer" else []
    async with Purgatory[Any]("test", clock=clock, observers=observers) as room:
        other = asyncio.create_task(room.wait_until(interrupt, key="other", timeout=5.0))
        await clock.settle()
        if observers:
            assert room.check("other") == 0
        armed[:] = [1]
        with pytest.raises(KeyboardInterrupt):
            await room.wait_value(get, key="a", timeout=5.0, on_abandoned=jobs.append)
        assert jobs == ["job"]
        armed[:] = [1]
        op = Returned(5, ready=True, name="job", on_complete=lambda op: room.check("other") or op.name)
        with pytest.raises(KeyboardInterrupt):
            await room.park(op, ["a"])
        assert op.returned == ["job"]
        with pytest.raises(ValueError, match="has ended"):
            await room.park(op, ["a"])
        assert op.returned == ["job"]
        room._check()
        other.cancel()


async def test_an_awaiter_that_leaves_gives_nothing_back(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """An operation that no task owns keeps its result for the next task that awaits it."""

    async def wait() -> Any:
        return await op

    op = Returned(5, name="job")
    purgatory.try_complete_else_watch(op, ["a"])
    task = asyncio.create_task(wait())
    await clock.settle()
    _end(purgatory, clock, op, "check")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert op.returned == []
    assert await op == "job"


# What it may do


async def test_it_runs_in_the_context_of_the_cancelled_task(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """The hook sees the task and the context variables of the request that was cancelled."""
    request = contextvars.ContextVar[str]("request")
    seen: list[Any] = []
    op = Returned(5, on_abandoned=lambda _: seen.extend([request.get(), asyncio.current_task()]))

    async def handle() -> None:
        request.set("the cancelled one")
        await purgatory.park(op, ["a"])

    request.set("the other one")
    task = asyncio.create_task(handle())
    await clock.settle()
    _end(purgatory, clock, op, "check")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert seen == ["the cancelled one", task]


@pytest.mark.parametrize("error", [Boom, asyncio.CancelledError])
async def test_what_it_raises_is_reported(
    purgatory: Purgatory[Op], clock: VirtualClock, reported: list[dict[str, Any]], error: type[BaseException]
) -> None:
    """An exception of the hook is reported; the task is cancelled, and the operation keeps its outcome."""

    def fail(_: Op) -> None:
        raise error("given back")

    op = Returned(5, name="job", on_abandoned=fail)
    task = await _parked(purgatory, clock, op)
    _end(purgatory, clock, op, "check")
    task.cancel("from outside")
    with pytest.raises(asyncio.CancelledError, match="from outside"):
        await task
    assert op.result() == "job"
    assert [(type(context["exception"]), context["operation"]) for context in reported] == [(error, op)]
    assert "of purgatory 'test'" in reported[0]["message"]


async def test_an_interrupt_passes_through_it(purgatory: Purgatory[Op]) -> None:
    """A KeyboardInterrupt propagates and is not passed to the exception handler."""

    def interrupt(_: Op) -> None:
        raise KeyboardInterrupt

    op = Returned(5, on_abandoned=interrupt)
    coroutine = purgatory.park(op, ["a"])
    coroutine.send(None)
    op.force_complete()
    with pytest.raises(KeyboardInterrupt):
        coroutine.throw(asyncio.CancelledError)


async def test_it_is_called_not_awaited(
    purgatory: Purgatory[Op], clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """A coroutine function as the hook is reported as a TypeError, and its coroutine is closed."""

    class Async(Op):
        async def on_abandoned(self, result: Any) -> None:  # type: ignore[override]
            raise AssertionError("it is not awaited")

    op = Async(5)
    task = await _parked(purgatory, clock, op)
    _end(purgatory, clock, op, "check")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    (context,) = reported
    assert str(context["exception"]).startswith("Async.on_abandoned() must return None, got a coroutine")


def test_by_default_it_does_nothing() -> None:
    """An operation that does not override the hook drops the result."""
    assert Op(5).on_abandoned("job") is None  # type: ignore[func-returns-value]
    assert not hasattr(TimerTask(5), "on_abandoned")
