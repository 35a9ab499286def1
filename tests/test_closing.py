"""The end is an answer: closing in every state."""

import asyncio
import itertools
import sys
from typing import Any

import pytest

from purgatory import Outcome, Purgatory, PurgatoryClosed, SystemTimer
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, check


async def _parked(purgatory: Purgatory[Op], clock: VirtualClock, *ops: Op) -> "list[asyncio.Task[Any]]":
    tasks = [asyncio.create_task(purgatory.park(op, ["a"])) for op in ops]
    await clock.settle()
    return tasks


async def test_everyone_is_answered_and_the_reaper_is_gone(clock: VirtualClock) -> None:
    """Closing expires those who wait, with and without a deadline, and leaves no task behind."""
    purgatory = Purgatory[Op]("test", clock=clock)
    ops = [Op(5, name="x"), Op(None, name="y")]
    tasks = await _parked(purgatory, clock, *ops)
    await purgatory.aclose()
    assert await asyncio.gather(*tasks) == ["x", "y"]
    assert [op.outcome for op in ops] == [Outcome.EXPIRED] * 2
    assert [op.calls[-1] for op in ops] == ["expire"] * 2
    assert purgatory.statistics().lateness.count == 0
    check(purgatory, parked=0, expired=2, watched=0, num_delayed=0)
    assert not purgatory.timer.running
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert clock.next_alarm_ms is None


async def test_nothing_new_is_taken(clock: VirtualClock) -> None:
    """A closed purgatory refuses operations, which stay PENDING; checks and statistics still work."""
    purgatory = Purgatory[Op]("test", clock=clock)
    await purgatory.aclose()
    op = Op(5)
    with pytest.raises(PurgatoryClosed, match="'test' is closed"):
        purgatory.try_complete_else_watch(op, ["a"])
    with pytest.raises(PurgatoryClosed):
        await purgatory.park(op, ["a"])
    with pytest.raises(PurgatoryClosed):
        async with purgatory:
            pass
    assert op.outcome is Outcome.PENDING
    assert op.calls == []
    assert purgatory.check_and_complete("a") == 0
    assert purgatory.cancel_for_key("a") == []
    check(purgatory, submitted=0)


async def test_closing_twice_is_closing_once(clock: VirtualClock) -> None:
    """A second call returns when everyone is answered, whether it comes later or meanwhile."""
    purgatory = Purgatory[Op]("test", clock=clock)
    op = Op(100, name="x")
    (task,) = await _parked(purgatory, clock, op)
    first = asyncio.create_task(purgatory.aclose(grace=10))
    second = asyncio.create_task(purgatory.aclose())
    await clock.settle()
    assert not first.done()
    assert not second.done()
    await clock.advance(10)
    await asyncio.gather(first, second)
    assert not purgatory.timer.running
    await purgatory.aclose()
    assert await task == "x"
    check(purgatory, expired=1)


async def test_when_the_second_call_returns_the_reaper_is_gone_too(clock: VirtualClock) -> None:
    """Whoever waits for the closing waits for all of it."""
    purgatory = Purgatory[Op]("test", clock=clock)
    await _parked(purgatory, clock, Op(100))
    first = asyncio.create_task(purgatory.aclose())
    await asyncio.sleep(0)
    await purgatory.aclose()
    assert not purgatory.timer.running
    assert purgatory.timer.closed
    await first


class TestGrace:
    """What ends within the grace ends by itself."""

    async def test_what_ends_meanwhile_ends_by_itself(self, clock: VirtualClock) -> None:
        """Within the grace operations complete and expire as ever; the rest is expired when it is over."""
        purgatory = Purgatory[Op]("test", clock=clock)
        ops = [Op(2, name="due"), Op(None, name="done"), Op(100, name="rest")]
        tasks = await _parked(purgatory, clock, *ops)
        closing = asyncio.create_task(purgatory.aclose(grace=5))
        await clock.settle()
        with pytest.raises(PurgatoryClosed):
            purgatory.try_complete_else_watch(Op(1), ["a"])
        ops[1].ready = True
        await clock.advance(1)
        assert purgatory.check_and_complete("a") == 1
        assert ops[2].extend(200)
        await clock.advance(1)
        assert [op.outcome for op in ops] == [Outcome.EXPIRED, Outcome.COMPLETED, Outcome.PENDING]
        await clock.advance(2.999)
        assert not closing.done()
        await clock.advance(0.001)
        await closing
        assert await asyncio.gather(*tasks) == ["due", "done", "rest"]
        check(purgatory, parked=0, completed=1, expired=2)

    async def test_it_ends_as_soon_as_nobody_waits(self, clock: VirtualClock) -> None:
        """The grace is not waited for when the last operation has left."""
        purgatory = Purgatory[Op]("test", clock=clock)
        op = Op(None, name="x")
        await _parked(purgatory, clock, op)
        closing = asyncio.create_task(purgatory.aclose(grace=1000))
        await clock.settle()
        assert not closing.done()
        op.force_complete()
        await closing
        assert clock.time() == 1000.0
        assert clock.next_alarm_ms is None

    async def test_an_empty_room_closes_at_once(self, clock: VirtualClock) -> None:
        """Without anybody waiting there is no grace."""
        purgatory = Purgatory[Op]("test", clock=clock)
        await purgatory.aclose(grace=1000)
        assert clock.time() == 1000.0

    async def test_deadlines_hold_though_nobody_has_entered_it(self, clock: VirtualClock) -> None:
        """The reaper is started if need be, so that deadlines within the grace are kept."""
        timer_ran = []
        purgatory = Purgatory[Op]("test", clock=clock)
        op = Op(2, on_complete=lambda _: timer_ran.append(clock.time()))
        purgatory.try_complete_else_watch(op, ["a"])
        closing = asyncio.create_task(purgatory.aclose(grace=10))
        await clock.advance(5)
        await closing
        assert timer_ran == [1002.0]

    @pytest.mark.parametrize("grace", [-1, float("nan"), float("inf")])
    async def test_a_bad_grace_changes_nothing(self, clock: VirtualClock, grace: float) -> None:
        """A grace that cannot be meant is refused, and the purgatory is still open."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            with pytest.raises(ValueError, match="grace"):
                await purgatory.aclose(grace=grace)
            assert not purgatory.closed

    async def test_cancelled_during_the_grace(self, clock: VirtualClock) -> None:
        """The closing task may be cancelled: everyone is answered, and the cancellation goes on."""
        purgatory = Purgatory[Op]("test", clock=clock)
        op = Op(None, name="x")
        (task,) = await _parked(purgatory, clock, op)
        closing = asyncio.create_task(purgatory.aclose(grace=1000))
        waiting = asyncio.create_task(purgatory.aclose())
        await clock.settle()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await waiting
        assert await task == "x"
        assert not purgatory.timer.running
        check(purgatory, parked=0, expired=1)
        assert clock.next_alarm_ms is None

    async def test_the_one_who_waits_for_the_first_call_is_cancelled(self, clock: VirtualClock) -> None:
        """Cancelling a second closer does not touch the first."""
        purgatory = Purgatory[Op]("test", clock=clock)
        await _parked(purgatory, clock, Op(None))
        first = asyncio.create_task(purgatory.aclose(grace=10))
        second = asyncio.create_task(purgatory.aclose())
        await clock.settle()
        second.cancel()
        await clock.settle()
        assert second.cancelled()
        await clock.advance(10)
        await first
        check(purgatory, parked=0, expired=1)


class TestFromInside:
    """Closing from where operations end."""

    @pytest.mark.parametrize("how", ["check", "expiry", "park"])
    async def test_from_inside_on_complete(self, clock: VirtualClock, how: str) -> None:
        """on_complete starts the closing; the others are answered, it itself keeps its outcome."""
        purgatory = Purgatory[Op]("test", clock=clock)
        closing: list[asyncio.Task[None]] = []

        def close(_: Op) -> None:
            closing.append(asyncio.create_task(purgatory.aclose()))

        op = Op(5, name="closer", on_complete=close)
        others = [Op(None, name="x"), Op(100, name="y")]
        tasks = await _parked(purgatory, clock, *others)
        if how == "park":
            op.ready = True
            assert await purgatory.park(op, ["b"]) == "closer"
        else:
            (task,) = await _parked(purgatory, clock, op)
            op.ready = True
            if how == "check":
                assert purgatory.check_and_complete("a") == 1
            else:
                await clock.advance(5)
            assert await task == "closer"
        await asyncio.gather(*closing)
        assert await asyncio.gather(*tasks) == ["x", "y"]
        assert op.outcome is (Outcome.EXPIRED if how == "expiry" else Outcome.COMPLETED)
        assert not purgatory.timer.running
        purgatory._check()

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks come with 3.12")
    @pytest.mark.parametrize("how", ["check", "expiry"])
    async def test_with_an_eager_task_from_inside_on_complete(self, clock: VirtualClock, how: str) -> None:
        """An eager task runs the closing within on_complete itself, in the reaper's own turn."""
        loop = asyncio.get_running_loop()
        purgatory = Purgatory[Op]("test", clock=clock)
        closing: list[asyncio.Task[None]] = []

        def close(_: Op) -> None:
            closing.append(asyncio.Task(purgatory.aclose(), loop=loop, eager_start=True))  # type: ignore[call-arg]

        op = Op(5, name="closer", on_complete=close)
        others = [Op(None, name="x"), Op(5, name="y"), Op(100, name="z")]
        tasks = await _parked(purgatory, clock, op, *others)
        if how == "check":
            op.ready = True
            assert purgatory.check_and_complete("a") == 1
        await clock.advance(5)
        await asyncio.gather(*closing)
        assert await asyncio.gather(*tasks) == ["closer", "x", "y", "z"]
        assert not purgatory.timer.running
        purgatory._check()

    async def test_a_callback_that_parks_while_it_closes(
        self, clock: VirtualClock, reported: list[dict[str, Any]]
    ) -> None:
        """What an ending tries to park is refused; the refusal is its own affair and the closing goes on."""
        purgatory = Purgatory[Op]("test", clock=clock)
        again = Op(5)
        ops = [Op(None, on_complete=lambda _: purgatory.try_complete_else_watch(again, ["a"])), Op(None, name="x")]
        tasks = await _parked(purgatory, clock, *ops)
        await purgatory.aclose()
        with pytest.raises(PurgatoryClosed):
            await tasks[0]
        assert await tasks[1] == "x"
        assert again.outcome is Outcome.PENDING
        check(purgatory, parked=0, failed=1, expired=1)

    async def test_a_callback_that_checks_while_it_closes(self, clock: VirtualClock) -> None:
        """A check made by an ending completes whoever can be completed, before the closing comes to them."""
        purgatory = Purgatory[Op]("test", clock=clock)
        ops = [Op(None, on_complete=lambda _: purgatory.check_and_complete("b")) for _ in range(3)]
        for op in ops:
            purgatory.try_complete_else_watch(op, ["a"])
        ready = Op(None)
        purgatory.try_complete_else_watch(ready, ["b"])
        ready.ready = True
        await purgatory.aclose()
        assert {op.outcome for op in ops} == {Outcome.EXPIRED}
        assert ready.outcome in (Outcome.COMPLETED, Outcome.EXPIRED)
        check(purgatory, parked=0)

    async def test_a_parker_who_left_is_not_answered(self, clock: VirtualClock) -> None:
        """Closing in the turn in which a parker is cancelled withdraws that operation."""
        purgatory = Purgatory[Op]("test", clock=clock)
        op = Op(None)
        (task,) = await _parked(purgatory, clock, op)
        task.cancel()
        await purgatory.aclose()
        assert op.outcome is Outcome.CANCELLED
        with pytest.raises(asyncio.CancelledError):
            await task


class TestInterrupted:
    """Interrupts while closing."""

    @pytest.mark.parametrize("interrupts", [1, 2, 3])
    async def test_an_interrupt_passes_and_everyone_is_answered(self, clock: VirtualClock, interrupts: int) -> None:
        """However many operations are interrupted at their end, no other is left waiting and nobody waits for ever."""
        purgatory = Purgatory[Op]("test", clock=clock)

        def interrupt(_: Op) -> None:
            raise KeyboardInterrupt

        ops = [Op(None, name=str(number)) for number in range(10)]
        for op in ops:
            purgatory.try_complete_else_watch(op, ["a"])
        for op in ops[2 : 2 + interrupts]:
            op._on_complete = interrupt
        with pytest.raises(KeyboardInterrupt):
            await purgatory.aclose()
        await purgatory.aclose()
        check(purgatory, parked=0, failed=interrupts, expired=10 - interrupts)
        assert not purgatory.timer.running
        assert purgatory.timer.closed

    async def test_a_timer_that_is_cancelled_while_it_closes(self, clock: VirtualClock) -> None:
        """Cancelling a timer's closing half way answers everyone all the same."""
        timer = SystemTimer(clock=clock)
        timer.start()
        futures = [timer.fail_after(100) for _ in range(3000)]
        closing = asyncio.create_task(timer.aclose())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not all(future.done() for future in futures)
        assert any(future.done() for future in futures)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert all(isinstance(future.exception(), PurgatoryClosed) for future in futures)
        assert timer.size == 0

    async def test_a_second_closer_of_a_timer_waits_for_the_first(self, clock: VirtualClock) -> None:
        """When any call of aclose returns, everyone is answered."""
        timer = SystemTimer(clock=clock)
        timer.start()
        futures = [timer.fail_after(100) for _ in range(3000)]
        first = asyncio.create_task(timer.aclose())
        await asyncio.sleep(0)
        await timer.aclose()
        assert all(isinstance(future.exception(), PurgatoryClosed) for future in futures)
        assert not timer.running
        await first

    async def test_an_interrupt_while_a_timer_closes(self, clock: VirtualClock) -> None:
        """An operation that is interrupted as its timer closes does not leave the others waiting."""

        def interrupt(_: Op) -> None:
            raise KeyboardInterrupt

        timer = SystemTimer(clock=clock)
        purgatory = Purgatory[Op]("test", timer=timer)
        ops = [Op(5, on_complete=interrupt if number == 1 else lambda _: None) for number in range(4)]
        for op in ops:
            purgatory.try_complete_else_watch(op, ["a"])
        with pytest.raises(KeyboardInterrupt):
            await timer.aclose()
        check(purgatory, parked=0, expired=3, failed=1)
        await timer.aclose()
        await purgatory.aclose()


class TestSharedTimer:
    """Several purgatories on one timer."""

    async def test_closing_one_purgatory_leaves_the_timer_and_the_others(self, clock: VirtualClock) -> None:
        """A shared timer is not closed with any of its purgatories."""
        async with SystemTimer(clock=clock) as timer:
            one, other = Purgatory[Op]("one", timer=timer), Purgatory[Op]("other", timer=timer)
            op = Op(5, name="x")
            (task,) = await _parked(other, clock, op)
            one.try_complete_else_watch(Op(7), ["a"])
            await one.aclose()
            assert timer.running
            assert timer.size == 1
            await clock.advance(5)
            assert await task == "x"
            await other.aclose()

    async def test_the_timer_is_closed_first(self, clock: VirtualClock) -> None:
        """Operations with a deadline are answered then; those without wait on; nothing new is taken."""
        async with SystemTimer(clock=clock) as timer:
            purgatory = Purgatory[Op]("test", timer=timer)
            due, forever = Op(5, name="due"), Op(None, name="forever")
            tasks = await _parked(purgatory, clock, due, forever)
        assert await tasks[0] == "due"
        assert (due.outcome, forever.outcome) == (Outcome.EXPIRED, Outcome.PENDING)
        with pytest.raises(PurgatoryClosed, match="timer of purgatory 'test' is closed"):
            purgatory.try_complete_else_watch(Op(5), ["a"])
        check(purgatory, parked=1, expired=1)
        forever.ready = True
        assert purgatory.check_and_complete("a") == 1
        closing = asyncio.create_task(purgatory.aclose(grace=5))
        await clock.advance(5)
        await closing
        assert await tasks[1] == "forever"

    async def test_a_grace_on_a_closed_timer_ends(self, clock: VirtualClock) -> None:
        """The grace is kept by the clock, not by the timer."""
        async with SystemTimer(clock=clock) as timer:
            purgatory = Purgatory[Op]("test", timer=timer)
            purgatory.try_complete_else_watch(Op(None), ["a"])
        closing = asyncio.create_task(purgatory.aclose(grace=5))
        await clock.advance(4.999)
        assert not closing.done()
        await clock.advance(0.001)
        await closing
        check(purgatory, parked=0, expired=1)

    async def test_a_closed_timer_takes_nothing(self, clock: VirtualClock) -> None:
        """Adding, calling later, failing after and starting are refused; closing again is not."""
        timer = SystemTimer(clock=clock)
        await timer.aclose()
        with pytest.raises(PurgatoryClosed):
            timer.call_later(1, lambda: None)
        with pytest.raises(PurgatoryClosed):
            timer.fail_after(1)
        with pytest.raises(PurgatoryClosed):
            timer.start()
        with pytest.raises(PurgatoryClosed):
            async with timer:
                pass
        await timer.aclose()
        assert timer.size == 0

    async def test_plain_tasks_of_a_closing_timer_do_not_run(self, clock: VirtualClock) -> None:
        """A callback that was put off is dropped, a future of fail_after fails."""
        log: list[int] = []
        async with SystemTimer(clock=clock) as timer:
            task = timer.call_later(5, log.append, 1)
            future = timer.fail_after(5)
        assert not task.scheduled
        with pytest.raises(PurgatoryClosed, match="the timer was closed"):
            await future
        await clock.advance(10)
        assert log == []


async def test_a_failing_ending_does_not_stop_the_closing(clock: VirtualClock, reported: list[dict[str, Any]]) -> None:
    """on_complete that raises while closing fails its own operation."""

    def boom(_: Op) -> None:
        raise Boom

    purgatory = Purgatory[Op]("test", clock=clock)
    ops = [Op(None, on_complete=boom), Op(None, on_expiration=boom), Op(None)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
    await purgatory.aclose()
    assert [op.outcome for op in ops] == [Outcome.FAILED, Outcome.EXPIRED, Outcome.EXPIRED]
    assert len(reported) == 2


async def test_many_are_answered_in_slices(clock: VirtualClock) -> None:
    """Closing a full room lets other callbacks run in between."""
    purgatory = Purgatory[Op]("test", clock=clock)
    for number in range(5000):
        purgatory.try_complete_else_watch(Op(None), [number])
    left: list[int] = []

    def look() -> None:
        left.append(len(purgatory))
        if len(purgatory):
            asyncio.get_running_loop().call_soon(look)

    look()
    await purgatory.aclose()
    steps = [before - after for before, after in itertools.pairwise(left)]
    assert len(steps) > 10
    assert max(steps) <= 1024
    check(purgatory, parked=0, expired=5000)


async def test_a_clock_that_fails_does_not_make_closing_spin(clock: VirtualClock) -> None:
    """An operation that cannot leave, because the clock raises, is an error for whoever closes, not a loop."""

    class Broken(VirtualClock):
        broken = False

        def now_ms(self) -> int:
            if self.broken:
                raise OSError("no clock")
            return super().now_ms()

    broken = Broken()
    purgatory = Purgatory[Op]("test", clock=broken)
    purgatory.try_complete_else_watch(Op(None), ["a"])
    broken.broken = True
    with pytest.raises(OSError, match="no clock"):
        await purgatory.aclose()
    broken.broken = False
    await purgatory.aclose()


def test_grace_for_who_was_parked_before_the_loop_ran(clock: VirtualClock) -> None:
    """Parked where no loop runs, an operation still has its deadline if the first thing the loop does is to close."""
    purgatory = Purgatory[Op]("test", clock=clock)
    op = Op(2, name="x")
    purgatory.try_complete_else_watch(op, ["a"])

    async def main() -> None:
        closing = asyncio.create_task(purgatory.aclose(grace=10))
        await clock.advance(2)
        assert op.outcome is Outcome.EXPIRED
        assert closing.done()

    asyncio.run(main())
    assert purgatory.statistics().lateness.count == 1


class Interrupt(BaseException):
    """An order to the whole program, that a task can end with."""


async def test_cancelled_and_then_interrupted(clock: VirtualClock) -> None:
    """Closing that is cancelled expires the rest at once; an interrupt among them is what its task ends with."""

    def interrupt(_: Op) -> None:
        raise Interrupt

    purgatory = Purgatory[Op]("test", clock=clock)
    ops = [Op(None, on_complete=interrupt if number == 399 else lambda _: None) for number in range(400)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
    closing = asyncio.create_task(purgatory.aclose())
    await asyncio.sleep(0)
    assert 0 < len(purgatory) < 400
    closing.cancel()
    with pytest.raises(Interrupt):
        await closing
    check(purgatory, parked=0, expired=399, failed=1)
    assert not purgatory.timer.running


async def test_a_bad_grace_is_told_by_its_name(clock: VirtualClock) -> None:
    """And nothing is closed."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        with pytest.raises(ValueError, match=r"^grace is a finite number"):
            await purgatory.aclose(grace=-1)
        assert not purgatory.closed
