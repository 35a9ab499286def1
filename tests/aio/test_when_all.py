"""``when_all`` completes once, when all futures are done or at its deadline."""

import asyncio
import concurrent.futures
import gc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import (
    DelayedFuture,
    OperationCancelled,
    Outcome,
    Purgatory,
    PurgatoryClosed,
    PurgatoryFull,
    SystemTimer,
)
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


# ``when_all`` at its deadline or when forced completes with the outcomes that exist


async def test_on_expiry_pending_futures_fail_and_the_callback_gets_the_outcomes(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """Exactly at the deadline, results are kept, and pending futures fail with TimeoutError."""
    called: list[Any] = []
    done, failed, late, later = futures(4)
    waiting = purgatory.when_all([done, late, failed, later], 0.5, called.append)
    done.set_result("done")
    failed.set_exception(Boom())
    await clock.advance(0.499)
    assert (called, late.done()) == ([], False)
    await clock.advance(0.001)
    assert waiting.outcome is Outcome.EXPIRED
    assert [kinds(outcomes) for outcomes in called] == [["done", TimeoutError, Boom, TimeoutError]]
    with pytest.raises(TimeoutError, match=r"not done in time \(timeout 0\.5 s\)"):
        await late
    assert isinstance(later.exception(), TimeoutError)
    check(purgatory, parked=0, watched=0, num_delayed=0, expired=1)


async def test_on_expiry_a_pending_task_is_cancelled(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """A task cannot receive an exception, so it is cancelled, and its outcome is a TimeoutError."""
    ended: list[str] = []

    async def work() -> None:
        try:
            await clock.sleep(100)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    task = asyncio.ensure_future(work())
    waiting = purgatory.when_all([task], 1)
    await clock.advance(1)
    assert kinds(waiting.result()) == [TimeoutError]
    assert ended == ["cancelled"]
    assert task.cancelled()


async def test_on_expiry_a_future_with_a_cancel_of_its_own_is_cancelled(
    purgatory: Purgatory[Any], clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """A class that overrides ``cancel()`` ends what it stands for; its outcome is a TimeoutError."""
    cancelled: list[Any] = []

    class Request(asyncio.Future[None]):
        def cancel(self, msg: Any | None = None) -> bool:
            cancelled.append(self)
            return super().cancel(msg)

    request = Request()
    waiting = purgatory.when_all([request], 1)
    await clock.advance(1)
    assert kinds(waiting.result()) == [TimeoutError]
    assert cancelled == [request]
    assert request.cancelled()
    assert reported == []


async def test_on_expiry_the_tasks_of_a_pending_gather_are_cancelled(
    purgatory: Purgatory[Any], clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """A pending ``gather`` is cancelled like a task, with all that it waits for; its outcome is a TimeoutError."""
    tasks = [asyncio.ensure_future(clock.sleep(seconds)) for seconds in (0.5, 100, 200)]
    (inner,) = futures(1)
    gathered = asyncio.gather(*tasks, asyncio.gather(inner))
    waiting = purgatory.when_all([gathered], 1)
    await clock.advance(1)
    assert kinds(waiting.result()) == [TimeoutError]
    assert [task.cancelled() for task in tasks] == [False, True, True]
    assert inner.cancelled()
    assert gathered.done()
    del gathered, waiting
    gc.collect()
    await asyncio.sleep(0)
    assert reported == []


async def test_an_error_of_a_cancelled_gather_is_reported(
    purgatory: Purgatory[Any], clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """What fails while it is cancelled is reported, as asyncio does for a task that nobody awaits."""

    async def work() -> None:
        try:
            await clock.sleep(100)
        finally:
            raise Boom

    gathered = asyncio.gather(work())
    waiting = purgatory.when_all([gathered], 1)
    await clock.advance(1)
    assert kinds(waiting.result()) == [TimeoutError]
    message = "a future of when_all() failed when it was cancelled"
    assert reported == [{"message": message, "exception": gathered.exception(), "future": gathered}]
    assert isinstance(gathered.exception(), Boom)


async def test_an_error_of_a_cancelled_task_is_left_to_its_owner(
    purgatory: Purgatory[Any], clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """asyncio reports what a task raises while it is cancelled if nobody retrieves it, so ``when_all`` does not."""

    async def work() -> None:
        try:
            await clock.sleep(100)
        finally:
            raise Boom

    task = asyncio.ensure_future(work())
    waiting = purgatory.when_all([task], 1)
    await clock.advance(1)
    assert kinds(waiting.result()) == [TimeoutError]
    assert isinstance(task.exception(), Boom)
    del task, waiting
    gc.collect()
    assert reported == []


async def test_on_expiry_a_task_cancels_the_future_of_an_executor_that_it_awaits(
    purgatory: Purgatory[Any], clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """A call in an executor has no late result to deliver, neither if it is cancelled nor if it still runs."""
    queued, running = concurrent.futures.Future[int](), concurrent.futures.Future[int]()
    running.set_running_or_notify_cancel()

    async def call(future: concurrent.futures.Future[int]) -> int:
        return await asyncio.wrap_future(future)

    waiting = purgatory.when_all([asyncio.ensure_future(call(future)) for future in (queued, running)], 1)
    await clock.advance(1)
    assert kinds(waiting.result()) == [TimeoutError, TimeoutError]
    assert queued.cancelled()
    running.set_result(1)
    await clock.settle()
    assert reported == []


async def test_a_future_done_in_the_turn_of_the_deadline_keeps_its_result(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """A future that is done in the turn of the deadline keeps its result, although its callbacks have not run."""
    (future,) = futures(1)
    waiting = purgatory.when_all([future], 1)
    future.set_result("just in time")
    purgatory.timer.expire_due(clock.now_ms() + 1000)
    assert waiting.outcome is Outcome.EXPIRED
    assert waiting.result() == ["just in time"]


async def test_exceptions_among_the_outcomes_are_not_reported(
    purgatory: Purgatory[Any], clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """Neither the TimeoutErrors nor the failures reach the loop's exception handler."""
    late, failed = futures(2)
    failed.set_exception(Boom())
    purgatory.when_all([late, failed], 1, lambda _: None)
    await clock.advance(1)
    del late, failed
    gc.collect()
    await asyncio.sleep(0)
    assert reported == []


async def test_closing_answers_with_the_outcomes_so_far(clock: VirtualClock) -> None:
    """Closing has the same effect as the deadline."""
    async with Purgatory[Any]("futures", clock=clock) as purgatory:
        first, second = futures(2)
        waiting = purgatory.when_all([first, second], None)
        first.set_result(1)
    assert kinds(waiting.result()) == [1, TimeoutError]
    assert second.done()


async def test_force_complete_answers_with_the_outcomes_so_far(purgatory: Purgatory[Any]) -> None:
    """``force_complete`` fails the pending futures."""
    first, second = futures(2)
    waiting = purgatory.when_all([first, second], None)
    first.set_result(1)
    assert waiting.force_complete()
    assert kinds(await waiting) == [1, TimeoutError]
    assert waiting.outcome is Outcome.COMPLETED


async def test_the_error_of_a_pending_future_gives_the_reason(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The error contains the timeout only after a deadline."""
    timed, forced, endless, left = (purgatory.when_all(futures(1), timeout) for timeout in (2, 3, None, 4))
    forced.force_complete()
    endless.force_complete()
    await clock.advance(2)
    await purgatory.aclose()
    assert [str(operation.result()[0]) for operation in (timed, forced, endless, left)] == [
        "it was not done in time (timeout 2 s)",
        "it was still pending when the operation ended",
        "it was still pending when the operation ended",
        "it was still pending when the purgatory closed",
    ]
    async with SystemTimer(clock=clock) as timer:
        operation = Purgatory[Any]("shared", timer=timer).when_all(futures(1), 4)
    assert str(operation.result()[0]) == "it was still pending when the timer closed"


async def test_the_deadline_can_be_moved(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """``extend`` moves the deadline, as for every operation."""
    waiting = purgatory.when_all(futures(1), 1)
    waiting.extend(5)
    await clock.advance(4.999)
    assert waiting.outcome is Outcome.PENDING
    await clock.advance(0.001)
    assert waiting.outcome is Outcome.EXPIRED


# Any order of events


@given(
    ends=st.lists(st.tuples(st.integers(0, 60), st.sampled_from(["result", "error", "cancel", "never"])), max_size=8),
    timeout=st.none() | st.integers(0, 60),
)
def test_whatever_ends_when(ends: list[tuple[int, str]], timeout: int | None) -> None:
    """In any schedule, the operation ends with its last future or at its deadline, with the outcome of each future."""

    async def run() -> None:
        clock = VirtualClock()
        async with Purgatory[Any]("futures", clock=clock) as purgatory:
            all_of_them = futures(len(ends))
            moments: list[float] = []
            waiting = purgatory.when_all(all_of_them, timeout, lambda _: moments.append(clock.time()))
            for second in range(61):
                for future, (at, how) in zip(all_of_them, ends, strict=True):
                    if at == second and not future.done():
                        _end(future, how)
                await clock.settle()
                if second < 60:
                    await clock.advance(1)
            last = max((at if how != "never" else 10**9 for at, how in ends), default=0)
            limit = 10**9 if timeout is None else timeout
            if min(last, limit) > 60:
                assert moments == []
                assert waiting.outcome is Outcome.PENDING
                return
            assert moments == [float(min(last, limit))]
            if last != limit:
                assert waiting.outcome is (Outcome.COMPLETED if last < limit or not ends else Outcome.EXPIRED)
            for outcome, (at, how) in zip(kinds(waiting.result()), ends, strict=True):
                expected = {"result": 1, "error": Boom, "cancel": asyncio.CancelledError, "never": TimeoutError}
                if at != limit:
                    assert outcome == (expected[how] if at < limit else TimeoutError)
            purgatory._check()

    asyncio.run(run())


def _end(future: "asyncio.Future[Any]", how: str) -> None:
    if how == "result":
        future.set_result(1)
    elif how == "error":
        future.set_exception(Boom())
    elif how == "cancel":
        future.cancel()


# Bad arguments of ``when_all`` are refused, nothing is parked, and the futures are unchanged


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: 5, TypeError, "iterable of futures"),
        (lambda: asyncio.get_running_loop().create_future(), TypeError, "iterable of futures"),
        (lambda: [5], TypeError, "futures or tasks"),
        (lambda: "ab", TypeError, "futures or tasks"),
    ],
)
async def test_only_futures_are_taken(
    purgatory: Purgatory[Any], make: Callable[[], Any], error: type[Exception], message: str
) -> None:
    """The error states the expected type, and nothing is parked."""
    with pytest.raises(error, match=message):
        purgatory.when_all(make(), 1)
    check(purgatory, submitted=0)


async def test_a_coroutine_is_refused(purgatory: Purgatory[Any]) -> None:
    """A coroutine is refused, because the caller must create and keep its task."""

    async def work() -> None:
        pass

    coroutine = work()
    with pytest.raises(TypeError, match="wrap a coroutine in a task"):
        purgatory.when_all([coroutine], 1)  # type: ignore[arg-type]
    coroutine.close()


async def test_a_future_of_another_loop_is_refused(purgatory: Purgatory[Any]) -> None:
    """A future of another event loop is refused, because another thread may set it."""
    other = asyncio.SelectorEventLoop()
    try:
        with pytest.raises(ValueError, match="another event loop"):
            purgatory.when_all([other.create_future()], 1)
    finally:
        other.close()


@pytest.mark.parametrize(("timeout", "error"), [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError)])
async def test_bad_timeouts_are_refused(purgatory: Purgatory[Any], timeout: Any, error: type[Exception]) -> None:
    """Bad timeouts are refused as for every operation, and the futures are unchanged."""
    (future,) = futures(1)
    with pytest.raises(error):
        purgatory.when_all([future], timeout)
    assert not future.done()


async def test_a_callback_is_callable(purgatory: Purgatory[Any]) -> None:
    """A callback that is not callable raises at once, not at the deadline."""
    with pytest.raises(TypeError, match="callback"):
        purgatory.when_all(futures(1), 1, 5)  # type: ignore[arg-type]


async def test_a_full_or_closed_purgatory_refuses_futures(clock: VirtualClock) -> None:
    """A full or closed purgatory refuses the operation, and the futures are unchanged."""
    async with Purgatory[Any]("futures", clock=clock, max_parked=1) as purgatory:
        first, second = futures(2)
        purgatory.when_all([first], None)
        with pytest.raises(PurgatoryFull):
            purgatory.when_all([second], None)
        assert not second.done()
    with pytest.raises(PurgatoryClosed):
        purgatory.when_all([second], None)


class _Unwilling(asyncio.Future[Any]):
    """A future that cannot be cancelled."""

    def cancel(self, msg: Any = None) -> bool:
        raise Boom


class _Unset(asyncio.Future[Any]):
    """A future that cannot be given an exception."""

    def set_exception(self, exception: Any) -> None:
        raise Boom


@pytest.mark.parametrize("kind", [_Unwilling, _Unset])
async def test_a_future_that_raises_at_the_deadline_does_not_affect_the_others(
    purgatory: Purgatory[Any], clock: VirtualClock, reported: list[dict[str, Any]], kind: type["asyncio.Future[Any]"]
) -> None:
    """Its outcome is TimeoutError, the error is reported, the other futures fail, and the callback runs."""
    stubborn = kind(loop=asyncio.get_running_loop())
    (other,) = futures(1)
    received: list[Any] = []
    waiting = purgatory.when_all([stubborn, other], 5, received.extend)
    await clock.advance(5)
    assert kinds(await waiting) == kinds(received) == [TimeoutError, TimeoutError]
    assert isinstance(other.exception(), TimeoutError)
    assert [(type(context["exception"]), context["future"]) for context in reported] == [(Boom, stubborn)]
    assert reported[0]["message"] == "a future of when_all() raised at the deadline"
