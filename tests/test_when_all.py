"""``when_all``: answered when all futures are done, or with what there is when the time is up."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import purgatory as package
from purgatory import DelayedFuture, OperationCancelled, Outcome, Purgatory, PurgatoryClosed, PurgatoryFull, SystemTimer
from purgatory.lobby import _lobbies, lobby
from purgatory.testing import VirtualClock

from .helpers import Boom, Op, Recorder, check


@pytest.fixture
async def purgatory(clock: VirtualClock) -> AsyncIterator[Purgatory[Any]]:
    """An open purgatory in virtual time."""
    async with Purgatory[Any]("futures", clock=clock) as purgatory:
        yield purgatory
        purgatory._check()


def futures(number: int) -> list["asyncio.Future[Any]"]:
    return [asyncio.get_running_loop().create_future() for _ in range(number)]


def kinds(outcomes: list[Any]) -> list[Any]:
    """Results as they are, exceptions by their class."""
    return [type(outcome) if isinstance(outcome, BaseException) else outcome for outcome in outcomes]


# All are done


async def test_it_completes_when_the_last_future_is_done(purgatory: Purgatory[Any]) -> None:
    """Not before; and the outcomes are in the order in which the futures were given."""
    first, second, third = futures(3)
    waiting = purgatory.when_all([first, second, third], 10)
    for future, value in ((third, 3), (first, 1)):
        future.set_result(value)
        await asyncio.sleep(0)
        assert waiting.outcome is Outcome.PENDING
    second.set_result(2)
    assert await waiting == [1, 2, 3]
    check(purgatory, parked=0, watched=0, num_delayed=0, completed=1, immediate=0)


async def test_the_callback_gets_the_outcomes_once(purgatory: Purgatory[Any]) -> None:
    """With the very list that who awaits gets."""
    called: list[Any] = []
    first, second = futures(2)
    waiting = purgatory.when_all([first, second], None, called.append)
    first.set_result(1)
    second.set_result(2)
    assert await waiting == [1, 2]
    assert called == [[1, 2]]
    assert called[0] is waiting.result()


@pytest.mark.parametrize("number", [0, 1, 3])
async def test_what_is_done_already_completes_at_once(purgatory: Purgatory[Any], number: int) -> None:
    """Without a turn of the loop, and without being parked; no futures at all are done, too."""
    done = futures(number)
    for value, future in enumerate(done):
        future.set_result(value)
    called: list[Any] = []
    waiting = purgatory.when_all(done, 10, called.append)
    assert waiting.result() == list(range(number))
    assert called == [list(range(number))]
    check(purgatory, parked=0, immediate=1, completed=1)


async def test_failed_and_cancelled_futures_are_done(purgatory: Purgatory[Any]) -> None:
    """It waits for the others all the same; their outcome is the exception."""
    failed, cancelled, slow = futures(3)
    waiting = purgatory.when_all([failed, cancelled, slow], 10)
    failed.set_exception(Boom())
    cancelled.cancel()
    await asyncio.sleep(0)
    assert waiting.outcome is Outcome.PENDING
    slow.set_result("slow")
    assert kinds(await waiting) == [Boom, asyncio.CancelledError, "slow"]


async def test_tasks_are_futures(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Coroutines that run as tasks may be waited for."""

    async def work(seconds: float) -> float:
        await clock.sleep(seconds)
        return seconds

    waiting = purgatory.when_all([asyncio.ensure_future(work(seconds)) for seconds in (3, 1, 2)], 10)
    await clock.advance(2.999)
    assert waiting.outcome is Outcome.PENDING
    await clock.advance(0.001)
    assert waiting.result() == [3, 1, 2]


async def test_a_future_given_twice_is_waited_for_once(purgatory: Purgatory[Any]) -> None:
    """And has its place in the outcomes twice."""
    first, second = futures(2)
    waiting = purgatory.when_all([first, second, first], 10)
    assert purgatory.watched == 2
    first.set_result("a")
    second.set_result("b")
    assert await waiting == ["a", "b", "a"]


async def test_many_operations_on_one_future(purgatory: Purgatory[Any]) -> None:
    """Each is answered, and the future's end is enough for all of them."""
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


async def test_a_thousand_futures_cost_a_look_each(purgatory: Purgatory[Any]) -> None:
    """All tries together ask each future about once, not each future at every try."""
    asked = 0

    class Counted(asyncio.Future[Any]):
        def done(self) -> bool:
            nonlocal asked
            asked += 1
            return super().done()

    many = [Counted(loop=asyncio.get_running_loop()) for _ in range(1000)]
    waiting = purgatory.when_all(many, 10)
    for future in many:
        future.set_result(None)
    await waiting
    assert asked < 10_000


# The time is up


async def test_on_expiry_the_pending_ones_fail_and_the_callback_gets_what_there_is(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """At the deadline, neither before nor after it: results stay, pending futures end with TimeoutError."""
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
    """A task cannot be given an exception; its place says TimeoutError all the same."""
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


async def test_done_in_the_turn_of_the_deadline(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """A future that has its result when the deadline strikes keeps it, though nobody has been told yet."""
    (future,) = futures(1)
    waiting = purgatory.when_all([future], 1)
    future.set_result("just in time")
    purgatory.timer.expire_due(clock.now_ms() + 1000)
    assert waiting.outcome is Outcome.EXPIRED
    assert waiting.result() == ["just in time"]


async def test_nobody_is_told_of_exceptions_that_were_handed_over(
    purgatory: Purgatory[Any], clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """Neither of the TimeoutErrors nor of the failures: both are among the outcomes."""
    late, failed = futures(2)
    failed.set_exception(Boom())
    purgatory.when_all([late, failed], 1, lambda _: None)
    await clock.advance(1)
    del late, failed
    gc.collect()
    await asyncio.sleep(0)
    assert reported == []


async def test_closing_answers_with_what_there_is(clock: VirtualClock) -> None:
    """As if the time were up."""
    async with Purgatory[Any]("futures", clock=clock) as purgatory:
        first, second = futures(2)
        waiting = purgatory.when_all([first, second], None)
        first.set_result(1)
    assert kinds(waiting.result()) == [1, TimeoutError]
    assert second.done()


async def test_forced_it_does_not_wait_any_longer(purgatory: Purgatory[Any]) -> None:
    """``force_complete`` answers with what there is; the pending ones fail."""
    first, second = futures(2)
    waiting = purgatory.when_all([first, second], None)
    first.set_result(1)
    assert waiting.force_complete()
    assert kinds(await waiting) == [1, TimeoutError]
    assert waiting.outcome is Outcome.COMPLETED


async def test_the_deadline_can_be_moved(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """It is an operation like any other."""
    waiting = purgatory.when_all(futures(1), 1)
    waiting.extend(5)
    await clock.advance(4.999)
    assert waiting.outcome is Outcome.PENDING
    await clock.advance(0.001)
    assert waiting.outcome is Outcome.EXPIRED


# Withdrawn, failed


async def test_withdrawn_it_leaves_the_futures_alone(purgatory: Purgatory[Any]) -> None:
    """They go on, the callback is not called, and whoever awaits is told."""
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


async def test_cancelling_one_who_awaits_leaves_the_operation_alone(purgatory: Purgatory[Any]) -> None:
    """Others may await it as well."""
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
    """What goes on pending does not hold the operation or its callback."""

    class Callback:
        def __call__(self, _: Any) -> None:
            pass

    (future,) = futures(1)
    callback = Callback()
    freed = weakref.ref(callback)
    purgatory.when_all([future], 10, callback).cancel()
    del callback
    await asyncio.sleep(0)
    assert freed() is None
    future.set_result(None)


async def test_a_callback_that_raises_fails_the_operation(
    purgatory: Purgatory[Any], reported: list[dict[str, Any]]
) -> None:
    """Who awaits gets the exception; where nobody does, the loop's exception handler."""

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
    """Checks made from it are queued, as from any callback."""
    other = Op(ready=False)
    purgatory.try_complete_else_watch(other, ["other"])
    other.ready = True
    (future,) = futures(1)
    waiting = purgatory.when_all([future], 10, lambda _: purgatory.check_and_complete("other"))
    future.set_result(None)
    await waiting
    assert other.outcome is Outcome.COMPLETED


# Bad input, limits


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: 5, TypeError, "iterable of futures"),
        (lambda: asyncio.get_running_loop().create_future(), TypeError, "iterable of futures"),
        (lambda: [5], TypeError, "futures or tasks"),
        (lambda: "ab", TypeError, "futures or tasks"),
    ],
)
async def test_what_is_no_future_is_refused(
    purgatory: Purgatory[Any], make: Callable[[], Any], error: type[Exception], message: str
) -> None:
    """The error says what was meant, and nothing is parked."""
    with pytest.raises(error, match=message):
        purgatory.when_all(make(), 1)
    check(purgatory, submitted=0)


async def test_a_coroutine_is_refused(purgatory: Purgatory[Any]) -> None:
    """It would have to become a task, which is for the caller to keep."""

    async def work() -> None:
        pass

    coroutine = work()
    with pytest.raises(TypeError, match="make a task of a coroutine"):
        purgatory.when_all([coroutine], 1)  # type: ignore[arg-type]
    coroutine.close()


async def test_a_future_of_another_loop_is_refused(purgatory: Purgatory[Any]) -> None:
    """It would be done in another thread's time."""
    other = asyncio.SelectorEventLoop()
    try:
        with pytest.raises(ValueError, match="another event loop"):
            purgatory.when_all([other.create_future()], 1)
    finally:
        other.close()


@pytest.mark.parametrize(("timeout", "error"), [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError)])
async def test_bad_timeouts_are_refused(purgatory: Purgatory[Any], timeout: Any, error: type[Exception]) -> None:
    """As for every operation; the futures are left alone."""
    (future,) = futures(1)
    with pytest.raises(error):
        purgatory.when_all([future], timeout)
    assert not future.done()


async def test_a_callback_is_something_to_call(purgatory: Purgatory[Any]) -> None:
    """Told at once, not when the time is up."""
    with pytest.raises(TypeError, match="callback"):
        purgatory.when_all(futures(1), 1, 5)  # type: ignore[arg-type]


async def test_limits_hold(clock: VirtualClock) -> None:
    """A full or closed purgatory refuses, and the futures are left alone."""
    async with Purgatory[Any]("futures", clock=clock, max_parked=1) as purgatory:
        first, second = futures(2)
        purgatory.when_all([first], None)
        with pytest.raises(PurgatoryFull):
            purgatory.when_all([second], None)
        assert not second.done()
    with pytest.raises(PurgatoryClosed):
        purgatory.when_all([second], None)


# How it looks, where it waits


async def test_repr_tells_how_many_are_pending(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """And how it ended."""
    first, second = futures(2)
    waiting = purgatory.when_all([first, second], 1.5)
    first.set_result(1)
    assert repr(waiting) == "<DelayedFuture PENDING 1 of 2 pending timeout=1.5>"
    await clock.advance(2)
    assert repr(waiting) == "<DelayedFuture EXPIRED 0 of 2 pending timeout=1.5>"
    assert repr(purgatory.when_all([first], None)) == "<DelayedFuture COMPLETED 0 of 1 pending for ever>"


async def test_observers_are_told_the_futures_as_keys(clock: VirtualClock) -> None:
    """It is parked on those that were pending when it came."""

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
    """A deadline that nobody would look at would be a trap."""
    timer = SystemTimer(clock=clock)
    async with Purgatory[Any]("futures", timer=timer) as purgatory:
        waiting = purgatory.when_all(futures(1), 1)
        await clock.advance(1)
        assert waiting.outcome is Outcome.EXPIRED
    await timer.aclose()


async def test_the_function_takes_a_purgatory(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """``purgatory.when_all`` of the package does the same in a purgatory that it is given."""
    called: list[Any] = []
    (future,) = futures(1)
    waiting = package.when_all([future], 1, called.append, purgatory=purgatory)
    assert len(purgatory) == 1
    await clock.advance(1)
    assert kinds(await waiting) == [TimeoutError]
    assert len(called) == 1


async def test_the_function_has_a_purgatory_of_its_own() -> None:
    """One per event loop, for those who have none."""
    first, second = futures(2)
    waiting = package.when_all([first, second], 60)
    assert len(lobby()) == 1
    assert lobby() is lobby()
    first.set_result(1)
    second.set_result(2)
    assert await waiting == [1, 2]
    late = package.when_all(futures(1), 0)
    assert kinds(await late) == [TimeoutError]
    assert len(lobby()) == 0
    await lobby().aclose()


def test_loops_that_have_ended_are_forgotten() -> None:
    """Their purgatories go when another loop needs its own."""

    async def use() -> list[Any]:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, 1)
        return await package.when_all([future], 60)

    for _ in range(5):
        assert asyncio.run(use()) == [1]
    assert sum(loop.is_closed() for loop in _lobbies) <= 1


# Any order of events


@given(
    ends=st.lists(st.tuples(st.integers(0, 60), st.sampled_from(["result", "error", "cancel", "never"])), max_size=8),
    timeout=st.none() | st.integers(0, 60),
)
def test_whatever_ends_when(ends: list[tuple[int, str]], timeout: int | None) -> None:
    """It ends when the last future does or when its time is up, whichever comes first, with each one's outcome."""

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


def test_the_lobby_of_a_loop_that_is_open_is_kept() -> None:
    """A second loop gets a lobby of its own; only those of closed loops are let go."""

    async def mine() -> Purgatory[Any]:
        return lobby()

    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    one = first.run_until_complete(mine())
    other = second.run_until_complete(mine())
    assert one is not other
    assert first.run_until_complete(mine()) is one
    second.close()
    third = asyncio.new_event_loop()
    third.run_until_complete(mine())
    assert _lobbies.keys() >= {first, third}
    assert second not in _lobbies
    for loop in (first, third):
        loop.close()


async def test_the_lobby_has_a_name() -> None:
    """In a dump and in the log one sees where the operation waits."""
    assert lobby().name == "lobby"
    await lobby().aclose()


async def test_why_a_future_is_late_is_said(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """After a deadline it names the time; without one, forced, it says that it was asked for too soon."""
    timed, forced = purgatory.when_all(futures(1), 2), purgatory.when_all(futures(1), None)
    forced.force_complete()
    await clock.advance(2)
    assert [str(operation.result()[0]) for operation in (timed, forced)] == [
        "it was not done within 2 s",
        "it was still pending when the others were asked for",
    ]
