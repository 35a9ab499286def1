"""``when_all`` completes once, when all futures are done, with the outcomes in the order of the futures."""

import asyncio
import weakref
from typing import Any

import pytest

from purgatory import DelayedFuture, OperationCancelled, Outcome, Purgatory, SystemTimer
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, Recorder, check, futures, kinds

# All are done


async def test_it_completes_when_the_last_future_is_done(purgatory: Purgatory[Any]) -> None:
    """The operation completes when the last future is done, with the outcomes in the order of the futures."""
    first, second, third = futures(3)
    waiting = purgatory.when_all([first, second, third], 10)
    for future, value in ((third, 3), (first, 1)):
        future.set_result(value)
        await asyncio.sleep(0)
        assert waiting.outcome is Outcome.PENDING
    second.set_result(2)
    assert await waiting == [1, 2, 3]
    check(purgatory, parked=0, watched=0, num_delayed=0, completed=1, immediate=0)


async def test_without_a_deadline_it_starts_no_reaper(clock: VirtualClock) -> None:
    """Only an operation with a deadline needs the task of the timer."""
    purgatory = Purgatory[Any]("test", clock=clock)
    (future,) = futures(1)
    waiting = purgatory.when_all([future], None)
    assert not purgatory.timer.running
    purgatory.when_all([future], 10)
    assert purgatory.timer.running
    future.set_result(1)
    assert await waiting == [1]
    await purgatory.aclose()


async def test_the_callback_gets_the_outcomes_once(purgatory: Purgatory[Any]) -> None:
    """The callback receives the same list as the awaiting task."""
    called: list[Any] = []
    first, second = futures(2)
    waiting = purgatory.when_all([first, second], None, called.append)
    first.set_result(1)
    second.set_result(2)
    assert await waiting == [1, 2]
    assert called == [[1, 2]]
    assert called[0] is waiting.result()


@pytest.mark.parametrize("number", [0, 1, 3])
async def test_futures_that_are_done_complete_at_once(purgatory: Purgatory[Any], number: int) -> None:
    """Futures that are done, or an empty list, complete without a turn of the loop and without parking."""
    done = futures(number)
    for value, future in enumerate(done):
        future.set_result(value)
    called: list[Any] = []
    waiting = purgatory.when_all(done, 10, called.append)
    assert waiting.result() == list(range(number))
    assert called == [list(range(number))]
    check(purgatory, parked=0, immediate=1, completed=1)


async def test_failed_and_cancelled_futures_are_done(purgatory: Purgatory[Any]) -> None:
    """After a failure or a cancellation the operation waits for the other futures; the exception is the outcome."""
    failed, cancelled, slow = futures(3)
    waiting = purgatory.when_all([failed, cancelled, slow], 10)
    failed.set_exception(Boom())
    cancelled.cancel()
    await asyncio.sleep(0)
    assert waiting.outcome is Outcome.PENDING
    slow.set_result("slow")
    assert kinds(await waiting) == [Boom, asyncio.CancelledError, "slow"]


async def test_tasks_are_futures(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """``when_all`` accepts coroutines that run as tasks."""

    async def work(seconds: float) -> float:
        await clock.sleep(seconds)
        return seconds

    waiting = purgatory.when_all([asyncio.ensure_future(work(seconds)) for seconds in (3, 1, 2)], 10)
    await clock.advance(2.999)
    assert waiting.outcome is Outcome.PENDING
    await clock.advance(0.001)
    assert waiting.result() == [3, 1, 2]


async def test_a_future_given_twice_is_waited_for_once(purgatory: Purgatory[Any]) -> None:
    """A future that is given twice has one callback and two places in the outcomes."""
    first, second = futures(2)
    waiting = purgatory.when_all([first, second, first], 10)
    assert purgatory.watched == 2
    first.set_result("a")
    second.set_result("b")
    assert await waiting == ["a", "b", "a"]


async def test_many_operations_on_one_future(purgatory: Purgatory[Any]) -> None:
    """When one future is done, all operations that wait for it are answered."""
    (shared,) = futures(1)
    others = futures(50)
    waiting = [purgatory.when_all([shared, other], 10) for other in others]
    for other in others[:25]:
        other.set_result(0)
    shared.set_result(1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [one.outcome for one in waiting] == [Outcome.COMPLETED] * 25 + [Outcome.PENDING] * 25
    for other in others[25:]:
        other.set_result(0)
    assert [await one for one in waiting] == [[1, 0]] * 50


async def test_each_of_a_thousand_futures_is_read_about_once(purgatory: Purgatory[Any]) -> None:
    """All tries together call ``done()`` of each future about once, not once per try."""
    reads = 0

    class Counted(asyncio.Future[Any]):
        def done(self) -> bool:
            nonlocal reads
            reads += 1
            return super().done()

    many = [Counted(loop=asyncio.get_running_loop()) for _ in range(1000)]
    waiting = purgatory.when_all(many, 10)
    for future in many:
        future.set_result(None)
    await waiting
    assert reads < 10_000


# Withdrawal and failure


async def test_withdrawing_leaves_the_futures_alone(purgatory: Purgatory[Any]) -> None:
    """The futures continue, the callback is not called, and the awaiting task gets OperationCancelled."""
    called: list[Any] = []
    first, second = futures(2)
    waiting = purgatory.when_all([first, second], 10, called.append)
    assert waiting.cancel()
    with pytest.raises(OperationCancelled):
        await waiting
    first.set_result(1)
    second.set_result(2)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert called == []
    check(purgatory, parked=0, watched=0, num_delayed=0, cancelled=1)


async def test_cancelling_an_awaiter_leaves_the_operation_alone(purgatory: Purgatory[Any]) -> None:
    """Cancelling an awaiting task does not cancel the operation, because other tasks may await it as well."""
    (future,) = futures(1)
    waiting = purgatory.when_all([future], 10)

    async def wait() -> list[Any]:
        return await waiting

    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    future.set_result(1)
    assert await waiting == [1]


async def test_a_future_keeps_nothing_of_an_operation_that_has_ended(purgatory: Purgatory[Any], no_gc: None) -> None:
    """A future that stays pending does not reference the operation or its callback."""

    class CallLaterTask:
        def __call__(self, _: Any) -> None:
            pass

    (future,) = futures(1)
    callback = CallLaterTask()
    freed = weakref.ref(callback)
    purgatory.when_all([future], 10, callback).cancel()
    del callback
    await asyncio.sleep(0)
    assert freed() is None
    future.set_result(None)


async def test_a_callback_that_raises_fails_the_operation(
    purgatory: Purgatory[Any], reported: list[dict[str, Any]]
) -> None:
    """The awaiting task gets the exception; without an awaiter, the loop's exception handler does."""

    def boom(_: Any) -> None:
        raise Boom

    (future,) = futures(1)
    awaited, lonely = purgatory.when_all([future], 10, boom), purgatory.when_all([future], 10, boom)
    answer = asyncio.ensure_future(_result(awaited))
    await asyncio.sleep(0)
    future.set_result(None)
    assert isinstance(await answer, Boom)
    assert lonely.outcome is Outcome.FAILED
    assert [type(context["exception"]) for context in reported] == [Boom]
    with pytest.raises(Boom):
        purgatory.when_all([future], 10, boom)


async def _result(waiting: DelayedFuture[Any]) -> Any:
    try:
        return await waiting
    except Exception as error:
        return error


async def test_a_callback_may_complete_others(purgatory: Purgatory[Any]) -> None:
    """A check in the callback is queued, as in any callback."""
    other = Op(ready=False)
    purgatory.try_complete_else_watch(other, ["other"])
    other.ready = True
    (future,) = futures(1)
    waiting = purgatory.when_all([future], 10, lambda _: purgatory.check_and_complete("other"))
    future.set_result(None)
    await waiting
    assert other.outcome is Outcome.COMPLETED


# Its repr, its keys, its timer


async def test_repr_shows_how_many_are_pending(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The ``repr`` shows the number of pending futures, and the outcome after the end."""
    first, second = futures(2)
    waiting = purgatory.when_all([first, second], 1.5)
    first.set_result(1)
    assert repr(waiting) == "<DelayedFuture PENDING 1 of 2 pending timeout=1.5>"
    await clock.advance(2)
    assert repr(waiting) == "<DelayedFuture EXPIRED 0 of 2 pending timeout=1.5>"
    assert repr(purgatory.when_all([first], None)) == "<DelayedFuture COMPLETED 0 of 1 pending timeout=None>"


async def test_observers_get_the_futures_as_keys(clock: VirtualClock) -> None:
    """The keys are the futures that were pending when the operation was parked."""

    class Keys(Recorder):
        def _note(self, method: str, event: Any) -> None:
            self.seen.append((method, event.keys))

    keys = Keys()
    async with Purgatory[Any]("futures", clock=clock, observers=[keys]) as purgatory:
        done, pending = futures(2)
        done.set_result(1)
        waiting = purgatory.when_all([done, pending], 1)
        pending.set_result(2)
        await waiting
    assert keys.seen == [("parked", (pending,)), ("completed", (pending,))]


async def test_a_shared_timer_is_started(clock: VirtualClock) -> None:
    """``when_all`` starts a shared timer, because otherwise the deadline would never be checked."""
    timer = SystemTimer(clock=clock)
    purgatory = Purgatory[Any]("futures", timer=timer)  # entering it would start the timer, too
    waiting = purgatory.when_all(futures(1), 1)
    await clock.advance(1)
    assert waiting.outcome is Outcome.EXPIRED
    await purgatory.aclose()
    await timer.aclose()
