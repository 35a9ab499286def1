"""``when_all`` at its deadline or when forced completes with the outcomes that exist."""

import asyncio
import concurrent.futures
import gc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import Outcome, Purgatory
from purgatory.testing import VirtualClock
from tests.helpers import Boom, check, futures, kinds


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
    with pytest.raises(TimeoutError, match=r"not done within 0\.5 s"):
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
    """The error contains the timeout after a deadline, and states that the future was pending after
    ``force_complete``.
    """
    timed, forced = purgatory.when_all(futures(1), 2), purgatory.when_all(futures(1), None)
    forced.force_complete()
    await clock.advance(2)
    assert [str(operation.result()[0]) for operation in (timed, forced)] == [
        "it was not done within 2 s",
        "it was still pending when the operation ended",
    ]


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
