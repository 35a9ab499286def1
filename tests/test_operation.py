"""The life of one operation: every way out of PENDING, once."""

import asyncio
import math
from typing import Any

import pytest

from purgatory import (
    DelayedOperation,
    OperationCancelled,
    Outcome,
    Purgatory,
    PurgatoryClosed,
    PurgatoryError,
    SystemTimer,
)
from purgatory.operation import new_waiter, set_running_loop
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, check


def test_a_new_operation_is_pending() -> None:
    """Before anything has happened there is no result."""
    op = Op(1.5)
    assert op.outcome is Outcome.PENDING
    assert not op.is_completed
    assert not op.expired
    assert op.timeout == 1.5
    assert op.keys == ()
    with pytest.raises(PurgatoryError, match="no result yet"):
        op.result()


def test_an_operation_without_a_condition_says_what_is_missing() -> None:
    """try_complete must be overridden, and the error says so."""
    with pytest.raises(NotImplementedError, match="override try_complete"):
        DelayedOperation[None](None).try_complete()


@pytest.mark.parametrize("timeout", [-1.0, -0.001, math.nan, math.inf, -math.inf, 1e16])
def test_a_timeout_that_cannot_be_meant_is_refused(timeout: float) -> None:
    """A timeout is finite and not negative."""
    with pytest.raises(ValueError, match="timeout is a finite number of seconds"):
        Op(timeout)


@pytest.mark.parametrize("timeout", ["1", True, [], 1j])
def test_a_timeout_is_a_number(timeout: Any) -> None:
    """A timeout is a number of seconds."""
    with pytest.raises(TypeError, match="timeout is a number of seconds"):
        Op(timeout)


@pytest.mark.parametrize(
    ("timeout", "delay_ms"), [(None, -1), (0, 0), (0.0001, 1), (0.001, 1), (0.0011, 2), (0.069, 69), (2, 2000)]
)
def test_a_timeout_is_rounded_up(timeout: float | None, delay_ms: int) -> None:
    """A part of a millisecond counts as a whole one, the noise of a float does not."""
    assert Op(timeout).delay_ms == delay_ms


def test_without_an_override_the_result_is_nothing() -> None:
    """An operation that only wants to know that its condition holds need not make anything."""

    class Bare(DelayedOperation[None]):
        def try_complete(self) -> bool:
            return True

    op = Bare(1)
    assert op.force_complete()
    assert op.result() is None


def test_forcing_completes_once() -> None:
    """The first call completes it, the second gets False, and on_complete ran once."""
    op = Op(name="done")
    assert op.force_complete()
    assert not op.force_complete()
    assert not op.cancel()
    assert not op.extend(5)
    assert op.outcome is Outcome.COMPLETED
    assert op.result() == "done"
    assert op.calls == ["complete"]


def test_withdrawing_calls_nothing() -> None:
    """A cancelled operation has run no callback, and its result is OperationCancelled."""
    op = Op(name="gone")
    assert op.cancel()
    assert not op.cancel()
    assert not op.force_complete()
    assert op.outcome is Outcome.CANCELLED
    assert not op.is_completed
    assert op.calls == []
    with pytest.raises(OperationCancelled, match="withdrawn"):
        op.result()


def test_expiring_completes_and_then_tells() -> None:
    """On expiry on_complete runs first and sees expired, then on_expiration."""
    seen: list[Any] = []
    op = Op(1, on_complete=lambda op: seen.append((op.expired, op.is_completed)))
    op.run()
    assert op.calls == ["complete", "expire"]
    assert seen == [(True, True)]
    assert op.outcome is Outcome.EXPIRED
    assert op.is_completed
    assert op.expired
    op.run()
    assert op.calls == ["complete", "expire"]


def test_completing_sees_that_it_did_not_expire() -> None:
    """Within on_complete of a completion expired is False, and on_expiration is never called."""
    seen: list[bool] = []
    op = Op(1, on_complete=lambda op: seen.append(op.expired))
    op.force_complete()
    assert seen == [False]
    assert op.calls == ["complete"]


def test_a_failing_completion_reaches_the_caller_of_force_complete() -> None:
    """Where on_complete raises, the operation is FAILED with that exception."""

    def boom(_: Op) -> None:
        raise Boom("no")

    op = Op(on_complete=boom)
    with pytest.raises(Boom):
        op.force_complete()
    assert op.outcome is Outcome.FAILED
    assert not op.is_completed
    with pytest.raises(Boom):
        op.result()
    assert not op.force_complete()
    assert op.completions == 1


def test_completing_from_inside_on_complete_is_second() -> None:
    """Whatever on_complete tries on its own operation comes too late."""
    tried: list[bool] = []
    op = Op(on_complete=lambda op: tried.extend([op.force_complete(), op.cancel(), op.extend(1)]))
    assert op.force_complete()
    assert tried == [False, False, False]
    assert op.completions == 1


def test_the_text_of_an_operation_tells_its_state() -> None:
    """repr names class, outcome, keys, timeout and error."""
    op = Op(1.5)
    assert repr(op) == "<Op PENDING timeout=1.5>"
    assert repr(Op(None)) == "<Op PENDING for ever>"
    op.cancel()
    assert repr(op) == "<Op CANCELLED timeout=1.5>"


async def test_the_text_of_a_parked_operation_names_its_keys(clock: VirtualClock) -> None:
    """repr of a parked operation tells where it waits, and of a failed one why."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(2)
        purgatory.try_complete_else_watch(op, ["a", "b"])
        assert op.keys == ("a", "b")
        assert repr(op) == "<Op PENDING on ['a', 'b'] timeout=2>"
        purgatory.fail_for_key("a", Boom("why"))
        assert repr(op) == "<Op FAILED timeout=2 error=Boom('why')>"
        assert op.keys == ()


async def test_every_awaiter_gets_the_result(clock: VirtualClock) -> None:
    """Any number of tasks may await one operation, before and after it ends."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(10, name="answer")
        purgatory.try_complete_else_watch(op, ["key"])

        async def wait() -> Any:
            return await op

        tasks = [asyncio.create_task(wait()) for _ in range(40)]
        await clock.settle()
        op.ready = True
        assert purgatory.check_and_complete("key") == 1
        assert await asyncio.gather(*tasks) == ["answer"] * 40
        assert await op == "answer"
        assert op.completions == 1


@pytest.mark.parametrize("raises", [False, True])
async def test_whoever_awaits_it_while_its_result_is_made_gets_the_result(clock: VirtualClock, raises: bool) -> None:
    """An eager task that ``on_complete`` starts awaits the operation at once, when there is nothing yet to be had."""
    waiters: list[asyncio.Future[Any]] = []

    def look(op: Op) -> str:
        waiters.append(next(op.__await__()))
        with pytest.raises(PurgatoryError, match="no result yet"):
            op.result()
        if raises:
            raise Boom
        return "answer"

    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(10, on_complete=look)
        purgatory.try_complete_else_watch(op, ["key"])
        await clock.advance(10)
        (waiter,) = waiters
        if raises:
            assert isinstance(waiter.exception(), Boom)
        else:
            assert waiter.result() == op.result() == "answer"


async def test_cancelling_an_awaiter_does_not_touch_the_operation(clock: VirtualClock) -> None:
    """A task that awaits an operation which is not its own may leave; the others are answered."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(10, name="answer")
        purgatory.try_complete_else_watch(op, ["key"])

        async def wait() -> Any:
            return await op

        tasks = [asyncio.create_task(wait()) for _ in range(20)]
        await clock.settle()
        for task in tasks[::2]:
            task.cancel()
        await clock.settle()
        assert op.outcome is Outcome.PENDING
        check(purgatory, parked=1)
        await clock.advance(10)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert results[1::2] == ["answer"] * 10
        assert all(isinstance(result, asyncio.CancelledError) for result in results[::2])


async def test_awaiters_who_left_are_forgotten(clock: VirtualClock) -> None:
    """An operation that a thousand tasks awaited and left one after the other keeps no trace of most of them."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(10)
        purgatory.try_complete_else_watch(op, ["key"])

        async def wait() -> Any:
            return await op

        for _ in range(1000):
            task = asyncio.create_task(wait())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert op._awaiters is not None
        assert len(op._awaiters) < 20


async def test_awaiters_get_the_failure(clock: VirtualClock) -> None:
    """Whoever awaits a cancelled or failed operation gets the exception that result() raises."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        cancelled, failed = Op(10), Op(10)
        purgatory.try_complete_else_watch(cancelled, ["a"])
        purgatory.try_complete_else_watch(failed, ["b"])

        async def wait(op: Op) -> Any:
            return await op

        tasks = [asyncio.create_task(wait(op)) for op in (cancelled, failed)]
        await clock.settle()
        cancelled.cancel()
        purgatory.fail_for_key("b", Boom("b"))
        with pytest.raises(OperationCancelled):
            await tasks[0]
        with pytest.raises(Boom):
            await tasks[1]
        with pytest.raises(OperationCancelled):
            await cancelled
        with pytest.raises(Boom):
            await failed


async def test_a_stop_iteration_is_told_as_an_error_of_the_house(clock: VirtualClock) -> None:
    """A future cannot carry StopIteration, so awaiters get a PurgatoryError with that cause."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        task = asyncio.create_task(purgatory.park(Op(10, on_complete=lambda _: next(iter([]))), ["key"]))
        await clock.advance(10)
        with pytest.raises(PurgatoryError, match="StopIteration") as caught:
            await task
        assert isinstance(caught.value.__cause__, StopIteration)


@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt])
def test_without_a_purgatory_what_on_expiration_raises_reaches_the_caller(error: type[BaseException]) -> None:
    """Run by hand there is nobody to report to; the operation has expired all the same."""

    def fail(_: Op) -> None:
        raise error

    op = Op(5, name="x", on_expiration=fail)
    with pytest.raises(error):
        op.run()
    assert op.outcome is Outcome.EXPIRED
    assert op.result() == "x"


def test_an_interrupted_on_expiration_leaves_the_operation_expired(clock: VirtualClock) -> None:
    """KeyboardInterrupt passes through the purgatory's expiry, and the books balance."""

    def interrupt(_: Op) -> None:
        raise KeyboardInterrupt

    purgatory = Purgatory[Op]("test", clock=clock)
    op = Op(0, name="x", on_expiration=interrupt)
    purgatory.try_complete_else_watch(op, ["a"])
    with pytest.raises(KeyboardInterrupt):
        purgatory.timer.expire_due(clock.now_ms())
    assert op.outcome is Outcome.EXPIRED
    assert op.result() == "x"
    check(purgatory, parked=0, expired=1)


def test_awaiting_needs_a_loop() -> None:
    """Without a running event loop awaiting is a RuntimeError, not a hang."""
    with pytest.raises(RuntimeError):
        Op(1).__await__()


class TestExtend:
    """Moving the deadline."""

    async def test_before_parking_it_replaces_the_timeout(self, clock: VirtualClock) -> None:
        """An operation that is not parked yet takes the new timeout with it."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            op = Op(1)
            assert op.extend(5)
            purgatory.try_complete_else_watch(op, ["key"])
            await clock.advance(4.999)
            assert op.outcome is Outcome.PENDING
            await clock.advance(0.001)
            assert op.outcome is Outcome.EXPIRED

    async def test_in_its_first_try_it_replaces_the_timeout(self, clock: VirtualClock) -> None:
        """try_complete may decide how long to wait."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            op = Op(1, on_try=lambda op: op.extend(5))
            purgatory.try_complete_else_watch(op, ["key"])
            check(purgatory, num_delayed=1)
            await clock.advance(4.999)
            assert op.outcome is Outcome.PENDING
            await clock.advance(0.001)
            assert op.outcome is Outcome.EXPIRED

    @pytest.mark.parametrize("first", [0.005, 0.3, 5.0, None])
    @pytest.mark.parametrize("second", [0.004, 0.5, 7.0, None])
    async def test_the_last_word_counts(self, clock: VirtualClock, first: float | None, second: float | None) -> None:
        """Earlier, later, none at all: the deadline is the last one given, counted from when it was given."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            op = Op(first)
            purgatory.try_complete_else_watch(op, ["key"])
            await clock.advance(0.003)
            assert op.extend(second)
            check(purgatory, parked=1, num_delayed=0 if second is None else 1)
            if second is None:
                await clock.advance(100)
                assert op.outcome is Outcome.PENDING
                return
            await clock.advance(second - 0.001)
            assert op.outcome is Outcome.PENDING
            purgatory._check()
            await clock.advance(0.001)
            assert op.outcome is Outcome.EXPIRED
            check(purgatory, parked=0, num_delayed=0, expired=1)
            assert purgatory.statistics().lateness.max == 0

    async def test_extending_again_and_again_keeps_it_alive(self, clock: VirtualClock) -> None:
        """A heartbeat moves the deadline a thousand times, and it expires when the heartbeat stops."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            op = Op(1)
            purgatory.try_complete_else_watch(op, ["key"])
            for _ in range(200):
                await clock.advance(0.7)
                assert op.extend(1)
            purgatory._check()
            await clock.advance(0.999)
            assert op.outcome is Outcome.PENDING
            await clock.advance(0.001)
            assert op.outcome is Outcome.EXPIRED

    async def test_an_operation_that_has_ended_cannot_be_extended(self, clock: VirtualClock) -> None:
        """extend tells whether the operation still waits, in every state."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            ops = [Op(1) for _ in range(4)]
            for op in ops:
                purgatory.try_complete_else_watch(op, ["key"])
            ops[0].force_complete()
            ops[1].cancel()
            ops[2].run()
            purgatory.fail_for_key("key", Boom())
            assert [op.extend(5) for op in ops] == [False] * 4
            check(purgatory, parked=0, num_delayed=0)

    async def test_it_is_extended_from_inside_a_check(self, clock: VirtualClock) -> None:
        """try_complete of a parked operation may move the deadline, to and fro."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            op = Op(1)
            purgatory.try_complete_else_watch(op, ["key"])
            op._on_try = lambda op: op.extend(3)
            assert purgatory.check_and_complete("key") == 0
            await clock.advance(2.999)
            assert op.outcome is Outcome.PENDING
            await clock.advance(0.001)
            assert op.outcome is Outcome.EXPIRED

    @pytest.mark.parametrize("timeout", [-1, math.nan, math.inf])
    async def test_a_bad_extension_changes_nothing(self, clock: VirtualClock, timeout: float) -> None:
        """A timeout that cannot be meant is refused, and the old deadline stands."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            op = Op(1)
            purgatory.try_complete_else_watch(op, ["key"])
            with pytest.raises(ValueError, match="timeout"):
                op.extend(timeout)
            check(purgatory, parked=1, num_delayed=1)
            await clock.advance(1)
            assert op.outcome is Outcome.EXPIRED

    async def test_on_a_closed_timer_it_is_refused(self, clock: VirtualClock) -> None:
        """A deadline that no timer will keep is refused and the books stay right."""
        timer = SystemTimer(clock=clock)
        async with timer:
            purgatory = Purgatory[Op]("test", timer=timer)
            op = Op(None)
            purgatory.try_complete_else_watch(op, ["key"])
        with pytest.raises(PurgatoryClosed):
            op.extend(5)
        check(purgatory, parked=1, num_delayed=0)
        assert op.extend(None)
        await purgatory.aclose()
        assert op.outcome is Outcome.EXPIRED


def test_the_longest_timeout_there_is() -> None:
    """31 million years are a timeout, and the next number is none."""
    assert Op(1e15).delay_ms == 10**18
    with pytest.raises(ValueError, match="timeout is a finite number of seconds, at least 0 and at most 1e15"):
        Op(math.nextafter(1e15, math.inf))


@pytest.mark.parametrize(("timeout", "told"), [(None, None), (0, 0.0), (0.0001, 0.001), (2.5, 2.5)])
def test_the_timeout_is_told_in_seconds(timeout: float | None, told: float | None) -> None:
    """Due at once is a deadline, too; only None is none."""
    assert Op(timeout).timeout == told


async def test_the_floor_below_is_told_how_to_find_the_loop() -> None:
    """What is told last counts; importing the package tells it asyncio's way."""
    loops: list[asyncio.AbstractEventLoop] = []

    def running_loop() -> asyncio.AbstractEventLoop:
        loops.append(asyncio.get_running_loop())
        return loops[-1]

    try:
        set_running_loop(running_loop)
        assert new_waiter().get_loop() is asyncio.get_running_loop()
    finally:
        set_running_loop(asyncio.get_running_loop)
    assert len(loops) == 1
    assert new_waiter().get_loop() is loops[0]
    assert len(loops) == 1


async def test_a_callback_that_raises_as_its_timer_closes(clock: VirtualClock, reported: list[dict[str, Any]]) -> None:
    """Closing a shared timer expires its operations; what one of them raises is reported, and the rest is answered."""

    def fail(_: Op) -> None:
        raise Boom

    timer = SystemTimer(clock=clock)
    purgatory = Purgatory[Op]("test", timer=timer)
    bad, good = Op(5, on_complete=fail), Op(6, name="x")
    for op in (bad, good):
        purgatory.try_complete_else_watch(op, ["a"])
    with pytest.raises(ValueError, match="timeout is a finite number"):
        bad.extend(-1)
    await timer.aclose()
    assert (bad.outcome, good.outcome) == (Outcome.FAILED, Outcome.EXPIRED)
    assert [type(context["exception"]) for context in reported] == [Boom]


class TestWhoIsTold:
    """A failure is told to those who wait, and reported where nobody does; never both, never neither."""

    @staticmethod
    def fail(_: Op) -> None:
        raise Boom

    @staticmethod
    async def wait(op: Op) -> Any:
        return await op

    @pytest.mark.parametrize("hook", ["_on_try", "_on_complete"])
    @pytest.mark.parametrize("waiting", ["nobody", "one", "one who has left", "one of two has left"])
    async def test_a_failing_check(
        self, clock: VirtualClock, reported: list[dict[str, Any]], hook: str, waiting: str
    ) -> None:
        """Whoever awaits gets the exception; those who were cancelled in the same turn do not count."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            op = Op(5)
            purgatory.try_complete_else_watch(op, ["a"])
            setattr(op, hook, self.fail)
            op.ready = True
            number = {"nobody": 0, "one of two has left": 2}.get(waiting, 1)
            tasks = [asyncio.create_task(self.wait(op)) for _ in range(number)]
            await clock.settle()
            if "left" in waiting:
                tasks[0].cancel()
            assert purgatory.check_and_complete("a") == 0
            told = waiting in ("one", "one of two has left")
            assert [(type(context["exception"]), context["operation"]) for context in reported] == (
                [] if told else [(Boom, op)]
            )
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(result) for result in results].count(Boom) == told
            check(purgatory, failed=1, parked=0)

    @pytest.mark.parametrize("hook", ["_on_complete", "_on_expiration"])
    async def test_a_failing_expiry(self, clock: VirtualClock, reported: list[dict[str, Any]], hook: str) -> None:
        """The handler is given the exception and the operation."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            op = Op(5)
            setattr(op, hook, self.fail)
            purgatory.try_complete_else_watch(op, ["a"])
            await clock.advance(5)
            assert [(type(context["exception"]), context["operation"]) for context in reported] == [(Boom, op)]

    def test_run_by_hand_without_a_purgatory(self) -> None:
        """It is the timer's way to expire it, so what on_complete raises stays in the operation."""
        op = Op(5, on_complete=self.fail)
        op.run()
        assert op.outcome is Outcome.FAILED
        with pytest.raises(Boom):
            op.result()

    @pytest.mark.parametrize("ending", ["force", "run"])
    async def test_a_check_within_an_ending_is_queued(self, clock: VirtualClock, ending: str) -> None:
        """However the operation ends, its callback gets 0, and the check is done before the ending returns."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            counted: list[int] = []
            other = Op(None)
            op = Op(5, on_complete=lambda _: counted.append(purgatory.check_and_complete("b")))
            purgatory.try_complete_else_watch(op, ["a"])
            purgatory.try_complete_else_watch(other, ["b"])
            other.ready = True
            if ending == "force":
                op.force_complete()
            else:
                op.run()
            assert counted == [0]
            assert other.outcome is Outcome.COMPLETED
            purgatory._check()
