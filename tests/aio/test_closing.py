"""``aclose``: closing answers every operation, in slices and also if it is interrupted, and ends the reaper."""

import asyncio
import itertools
import sys
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import pytest

from purgatory import Outcome, Purgatory, PurgatoryClosed, SystemTimer
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Hasty, Op, check, park_in_tasks, turns_until


async def test_every_operation_is_answered_and_the_reaper_ends(clock: VirtualClock) -> None:
    """Closing expires every parked operation, with and without a deadline, and leaves no task behind."""
    purgatory = Purgatory[Op]("test", clock=clock)
    ops = [Op(5, name="x"), Op(None, name="y")]
    tasks = await park_in_tasks(purgatory, clock, *ops)
    await purgatory.aclose()
    assert await asyncio.gather(*tasks) == ["x", "y"]
    assert [op.outcome for op in ops] == [Outcome.EXPIRED] * 2
    assert [op.calls[-1] for op in ops] == ["expire"] * 2
    assert purgatory.statistics().lateness.count == 0
    check(purgatory, parked=0, expired_by_closing=2, watched=0, num_delayed=0)
    assert not purgatory.timer.running
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert clock.next_alarm_ms is None


async def test_a_closed_purgatory_refuses_operations(clock: VirtualClock) -> None:
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
    """A second call, later or concurrent, returns when every operation is answered."""
    purgatory = Purgatory[Op]("test", clock=clock)
    op = Op(100, name="x")
    (task,) = await park_in_tasks(purgatory, clock, op)
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
    check(purgatory, expired_by_closing=1)


async def test_when_the_second_call_returns_the_reaper_is_gone_too(clock: VirtualClock) -> None:
    """Every call of aclose() waits for the complete closing."""
    purgatory = Purgatory[Op]("test", clock=clock)
    await park_in_tasks(purgatory, clock, Op(100))
    first = asyncio.create_task(purgatory.aclose())
    await asyncio.sleep(0)
    await purgatory.aclose()
    assert not purgatory.timer.running
    assert purgatory.timer.closed
    await first


async def test_a_failing_ending_does_not_stop_the_closing(clock: VirtualClock, reported: list[dict[str, Any]]) -> None:
    """An ``on_complete`` that raises while the purgatory closes fails only its own operation."""

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
    """Closing a full purgatory lets other callbacks run in between."""
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
    check(purgatory, parked=0, expired_by_closing=5000)


async def test_closing_one_purgatory_leaves_the_timer_and_the_others(clock: VirtualClock) -> None:
    """A shared timer stays open when one of its purgatories closes."""
    async with SystemTimer(clock=clock) as timer:
        one, other = Purgatory[Op]("one", timer=timer), Purgatory[Op]("other", timer=timer)
        op = Op(5, name="x")
        (task,) = await park_in_tasks(other, clock, op)
        one.try_complete_else_watch(Op(7), ["a"])
        await one.aclose()
        assert timer.running
        assert timer.size == 1
        await clock.advance(5)
        assert await task == "x"
        await other.aclose()


async def test_an_operation_whose_task_is_cancelled_is_withdrawn_not_answered(clock: VirtualClock) -> None:
    """Closing in the turn in which the parking task is cancelled withdraws its operation."""
    purgatory = Purgatory[Op]("test", clock=clock)
    op = Op(None)
    (task,) = await park_in_tasks(purgatory, clock, op)
    task.cancel()
    await purgatory.aclose()
    assert op.outcome is Outcome.CANCELLED
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_second_call_goes_on_if_the_coroutine_of_the_first_is_closed(clock: VirtualClock) -> None:
    """The calls that wait for a closing answer every operation if its coroutine is closed."""
    purgatory = Purgatory[Op]("test", clock=clock)
    tasks = await park_in_tasks(purgatory, clock, Op(5, name="x"), Op(None, name="y"))
    first = purgatory.aclose(grace=10)
    first.send(None)
    waiting = [asyncio.create_task(purgatory.aclose()) for _ in range(2)]
    await asyncio.sleep(0)
    first.close()
    check(purgatory, parked=2)
    await asyncio.gather(*waiting)
    assert await asyncio.gather(*tasks) == ["x", "y"]
    assert not purgatory.timer.running


async def test_a_second_call_goes_on_if_the_coroutine_that_closes_the_timer_is_closed(clock: VirtualClock) -> None:
    """The calls that wait for the closing of a timer take every task off if its coroutine is closed."""
    timer = SystemTimer(clock=clock)
    timer.start()
    futures = [timer.fail_after(5) for _ in range(5000)]
    await asyncio.sleep(0)
    first = timer.aclose()
    first.send(None)
    waiting = [asyncio.create_task(timer.aclose()) for _ in range(2)]
    await asyncio.sleep(0)
    first.close()
    assert timer.size > 0
    await asyncio.gather(*waiting)
    assert timer.size == 0
    assert not timer.running
    assert {type(future.exception()) for future in futures} == {PurgatoryClosed}


# A grace period: operations that end within it end normally, and the rest expire when it is over


async def test_operations_end_normally_within_the_grace(clock: VirtualClock) -> None:
    """Operations complete and expire as usual within the grace; the rest expire when it is over."""
    purgatory = Purgatory[Op]("test", clock=clock)
    ops = [Op(2, name="due"), Op(None, name="done"), Op(100, name="rest")]
    tasks = await park_in_tasks(purgatory, clock, *ops)
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
    check(purgatory, parked=0, completed=1, expired=1, expired_by_closing=1)
    assert [op.expired_by_closing for op in ops] == [False, False, True]


async def test_a_clock_that_calls_back_early_does_not_shorten_the_grace() -> None:
    """The clock is read at each wake-up, so an operation that completes within the grace completes."""
    clock = Hasty(1000.0)
    purgatory = Purgatory[Op]("test", clock=clock)
    done, rest = Op(None, name="done"), Op(None, name="rest")
    await park_in_tasks(purgatory, clock, done, rest)
    clock.hasty = 3
    closing = asyncio.create_task(purgatory.aclose(grace=5))
    await clock.advance(4.999)
    assert (clock.hasty, closing.done()) == (0, False)
    assert done.force_complete()
    await clock.advance(0.001)
    await closing
    assert (done.outcome, rest.expired_by_closing) == (Outcome.COMPLETED, True)
    assert clock.next_alarm_ms is None


async def test_it_ends_as_soon_as_no_operation_is_parked(clock: VirtualClock) -> None:
    """Closing ends as soon as the last operation has left, before the grace period is over."""
    purgatory = Purgatory[Op]("test", clock=clock)
    op = Op(None, name="x")
    await park_in_tasks(purgatory, clock, op)
    closing = asyncio.create_task(purgatory.aclose(grace=1000))
    await clock.settle()
    assert not closing.done()
    op.force_complete()
    await closing
    assert clock.time() == 1000.0
    assert clock.next_alarm_ms is None


async def test_an_empty_purgatory_closes_at_once(clock: VirtualClock) -> None:
    """Without parked operations, closing does not wait for the grace period."""
    purgatory = Purgatory[Op]("test", clock=clock)
    await purgatory.aclose(grace=1000)
    assert clock.time() == 1000.0


async def test_deadlines_hold_though_the_purgatory_was_not_entered(clock: VirtualClock) -> None:
    """Closing starts the reaper if necessary, so that deadlines within the grace are kept."""
    timer_ran = []
    purgatory = Purgatory[Op]("test", clock=clock)
    op = Op(2, on_complete=lambda _: timer_ran.append(clock.time()))
    purgatory.try_complete_else_watch(op, ["a"])
    closing = asyncio.create_task(purgatory.aclose(grace=10))
    await clock.advance(5)
    await closing
    assert timer_ran == [1002.0]


async def test_a_grace_on_a_closed_timer_ends(clock: VirtualClock) -> None:
    """If the timer is closed, the grace period still ends, because the clock measures it."""
    async with SystemTimer(clock=clock) as timer:
        purgatory = Purgatory[Op]("test", timer=timer)
        purgatory.try_complete_else_watch(Op(None), ["a"])
    closing = asyncio.create_task(purgatory.aclose(grace=5))
    await clock.advance(4.999)
    assert not closing.done()
    await clock.advance(0.001)
    await closing
    check(purgatory, parked=0, expired_by_closing=1)


def test_grace_for_operations_parked_before_the_loop_ran(clock: VirtualClock) -> None:
    """An operation parked without a running loop keeps its deadline even if the loop closes the purgatory first."""
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


async def test_a_grace_after_its_own_timer_was_closed(clock: VirtualClock) -> None:
    """The timer answers the operations with a deadline; the others still have the grace."""
    purgatory = Purgatory[Op]("test", clock=clock)
    due, done, rest = Op(50, name="due"), Op(None, name="done"), Op(None, name="rest")
    tasks = await park_in_tasks(purgatory, clock, due, done, rest)
    await purgatory.timer.aclose()
    assert due.expired
    closing = asyncio.create_task(purgatory.aclose(grace=5))
    await clock.advance(4)
    assert done.force_complete()
    assert not closing.done()
    await clock.advance(1)
    await closing
    assert await asyncio.gather(*tasks) == ["due", "done", "rest"]
    assert (done.outcome, rest.outcome) == (Outcome.COMPLETED, Outcome.EXPIRED)
    assert not purgatory.timer.running


# Checks that were requested before the closing


REQUESTS: dict[str, Callable[[Purgatory[Any]], None]] = {
    "check_soon": lambda purgatory: purgatory.check_soon("a"),
    "check_all": lambda purgatory: purgatory.check_all(),
    "check_threadsafe": lambda purgatory: purgatory.check_threadsafe("a"),
}
requested = pytest.mark.parametrize("request_check", REQUESTS.values(), ids=REQUESTS)


@requested
@pytest.mark.parametrize("grace", [0, 10])
async def test_a_check_requested_before_closing_completes_its_operations(
    clock: VirtualClock, request_check: Callable[[Purgatory[Any]], None], grace: int
) -> None:
    """The check is tried before the operations expire, and a subscription still receives its key."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        ready, other = Op(None, name="ready"), Op(None, name="other")
        tasks = await park_in_tasks(purgatory, clock, ready, other)
        changes = purgatory.changes(["a"])
        ready.ready = True

        async def close() -> None:
            request_check(purgatory)
            await purgatory.aclose(grace=grace)

        closing = asyncio.create_task(close())
        await clock.advance(grace)
        await closing
        assert await asyncio.gather(*tasks) == ["ready", "other"]
        assert (ready.outcome, other.outcome) == (Outcome.COMPLETED, Outcome.EXPIRED)
        assert [key async for key in changes] == ["a"]


@requested
async def test_a_check_requested_as_the_grace_ends_completes_its_operations(
    clock: VirtualClock, request_check: Callable[[Purgatory[Any]], None]
) -> None:
    """The same holds in the turn in which the grace period ends, after its end."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(None, name="x")
        (task,) = await park_in_tasks(purgatory, clock, op)

        def change() -> None:
            op.ready = True
            request_check(purgatory)

        closing = asyncio.create_task(purgatory.aclose(grace=10))
        await clock.settle()
        clock.call_at(clock.ceil_ms() + 10_000, change)  # after the alarm of the grace period
        await clock.advance(10)
        await closing
        assert await task == "x"
        assert op.outcome is Outcome.COMPLETED


async def test_many_requested_checks_run_in_slices_and_once(clock: VirtualClock) -> None:
    """Closing tries many operations in several turns, and checks that these request do not delay it."""
    purgatory = Purgatory[Op]("test", clock=clock)
    ops = [Op(None) for _ in range(3000)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
        op._on_try = lambda _: purgatory.check_soon("a")
    ops[-1].ready = True
    purgatory.check_soon("a")
    parked: list[int] = []
    asyncio.get_running_loop().call_soon(lambda: parked.append(len(purgatory)))
    await purgatory.aclose()
    assert parked == [3000]
    check(purgatory, parked=0, completed=1, expired_by_closing=2999)
    assert max(op.calls.count("try") for op in ops) < 10


async def test_many_checks_requested_as_the_grace_ends_run_in_slices(clock: VirtualClock) -> None:
    """The end of the grace period does not try all of the operations in one turn either."""
    purgatory = Purgatory[Op]("test", clock=clock)
    ops = [Op(None) for _ in range(3000)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
    parked: list[int] = []

    def change() -> None:
        for op in ops:
            op.ready = True
        purgatory.check_soon("a")
        asyncio.get_running_loop().call_soon(lambda: parked.append(len(purgatory)))

    closing = asyncio.create_task(purgatory.aclose(grace=10))
    await clock.settle()
    clock.call_at(clock.ceil_ms() + 10_000, change)  # after the alarm of the grace period
    await clock.advance(10)
    await closing
    assert 0 < parked[0] < 3000
    check(purgatory, parked=0, completed=3000)


async def test_a_closing_that_is_cancelled_tries_requested_checks(clock: VirtualClock) -> None:
    """Before a cancelled closing expires all operations in one turn, it runs the checks that were requested."""
    purgatory = Purgatory[Op]("test", clock=clock)
    ops = [Op(None) for _ in range(3000)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
    for op in ops:
        op.ready = True

    async def close() -> None:
        purgatory.check_soon("a")
        await purgatory.aclose()

    closing = asyncio.create_task(close())
    await turns_until(lambda: len(purgatory) < 3000)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    check(purgatory, parked=0, completed=3000)


async def test_a_requested_check_whose_key_raises_does_not_stop_the_closing(
    clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """The error is reported, and the other requested checks are tried."""

    class Key:
        broken = False

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            if Key.broken:
                raise Boom
            return isinstance(other, Key)

    purgatory = Purgatory[Op]("test", clock=clock)
    ops = [Op(None), Op(None)]
    for op, key in zip(ops, [Key(), "b"], strict=True):
        purgatory.try_complete_else_watch(op, [key])
        op.ready = True
    purgatory.check_soon("b")
    purgatory.check_soon(Key())
    ops[1]._on_complete = lambda _: setattr(Key, "broken", True)
    await purgatory.aclose()
    Key.broken = False
    assert [type(context["exception"]) for context in reported] == [Boom]
    assert reported[0]["message"] == "a key of purgatory 'test' raised, and its check was left out"
    assert [op.outcome for op in ops] == [Outcome.EXPIRED, Outcome.COMPLETED]
    purgatory._check()


async def test_an_interrupt_in_a_requested_check_leaves_the_others_their_answers(clock: VirtualClock) -> None:
    """The closing continues with the operations after the interrupted one, and then raises the interrupt."""

    def interrupt(_: Op) -> None:
        raise KeyboardInterrupt

    purgatory = Purgatory[Op]("test", clock=clock)
    ops = [Op(None, name=str(number)) for number in range(5)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
        op.ready = True
    ops[1]._on_try = ops[3]._on_try = interrupt
    purgatory.check_soon("a")
    with pytest.raises(KeyboardInterrupt):
        await purgatory.aclose()
    check(purgatory, parked=0, completed=3, expired_by_closing=2)
    assert purgatory.timer.closed


async def test_an_interrupt_in_a_requested_check_of_a_cancelled_closing_propagates(clock: VirtualClock) -> None:
    """The checks that are tried after the cancellation can be interrupted, too."""

    def interrupt(_: Op) -> None:
        raise KeyboardInterrupt

    purgatory = Purgatory[Op]("test", clock=clock)
    ops = [Op(None) for _ in range(3000)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
        op.ready = True
    ops[-2]._on_try = interrupt
    purgatory.check_soon("a")
    closing = purgatory.aclose()
    closing.send(None)
    assert 1 < len(purgatory) < 3000
    with pytest.raises(KeyboardInterrupt):
        closing.throw(asyncio.CancelledError())
    check(purgatory, parked=0, completed=2999, expired_by_closing=1)


@types.coroutine
def continue_(coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, None]:
    """Await a coroutine that has begun, as an eager task does."""
    while True:
        try:
            yielded = coroutine.send(None)
        except StopIteration:
            return
        yield yielded


async def test_closing_inside_a_callback_tries_requested_checks_after_it(clock: VirtualClock) -> None:
    """An eager task closes the purgatory in a callback: the requested checks run after the check of that callback."""
    purgatory = Purgatory[Op]("test", clock=clock)
    closing = purgatory.aclose()
    ops = [Op(None, on_complete=lambda _: closing.send(None)), Op(None, name="b"), Op(None)]
    for op, key in zip(ops, "abc", strict=True):
        purgatory.try_complete_else_watch(op, [key])
        op.ready = key != "c"
    purgatory.check_soon("b")
    assert purgatory.check("a") == 1
    assert [op.outcome for op in ops] == [Outcome.COMPLETED, Outcome.PENDING, Outcome.PENDING]
    await continue_(closing)
    assert [op.outcome for op in ops] == [Outcome.COMPLETED, Outcome.COMPLETED, Outcome.EXPIRED]
    purgatory._check()


async def test_a_closing_that_ends_inside_a_callback_tries_nothing_there(clock: VirtualClock) -> None:
    """A check does not run within another one: the operations of a requested check expire with the others."""
    purgatory = Purgatory[Op]("test", clock=clock)
    closing = purgatory.aclose()

    def begin_and_end(_: Op) -> None:
        closing.send(None)
        with pytest.raises(asyncio.CancelledError):
            closing.throw(asyncio.CancelledError())

    ops = [Op(None, on_complete=begin_and_end), Op(None)]
    for op, key in zip(ops, "ab", strict=True):
        purgatory.try_complete_else_watch(op, [key])
        op.ready = True
    purgatory.check_soon("b")
    assert purgatory.check("a") == 1
    assert [op.outcome for op in ops] == [Outcome.COMPLETED, Outcome.EXPIRED]
    purgatory._check()


# Closing started from a callback of an operation, and callbacks that act while the purgatory closes


@pytest.mark.parametrize("how", ["check", "expiry", "park"])
async def test_closing_from_inside_on_complete(clock: VirtualClock, how: str) -> None:
    """``on_complete`` starts the closing; its own operation keeps its outcome, and the others are answered."""
    purgatory = Purgatory[Op]("test", clock=clock)
    closing: list[asyncio.Task[None]] = []

    def close(_: Op) -> None:
        closing.append(asyncio.create_task(purgatory.aclose()))

    op = Op(5, name="closer", on_complete=close)
    others = [Op(None, name="x"), Op(100, name="y")]
    tasks = await park_in_tasks(purgatory, clock, *others)
    if how == "park":
        op.ready = True
        assert await purgatory.park(op, ["b"]) == "closer"
    else:
        (task,) = await park_in_tasks(purgatory, clock, op)
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
async def test_closing_with_an_eager_task_from_inside_on_complete(clock: VirtualClock, how: str) -> None:
    """An eager task closes the purgatory within ``on_complete``, in the reaper's turn."""
    loop = asyncio.get_running_loop()
    purgatory = Purgatory[Op]("test", clock=clock)
    closing: list[asyncio.Task[None]] = []

    def close(_: Op) -> None:
        closing.append(asyncio.Task(purgatory.aclose(), loop=loop, eager_start=True))  # type: ignore[call-arg]

    op = Op(5, name="closer", on_complete=close)
    others = [Op(None, name="x"), Op(5, name="y"), Op(100, name="z")]
    tasks = await park_in_tasks(purgatory, clock, op, *others)
    if how == "check":
        op.ready = True
        assert purgatory.check_and_complete("a") == 1
    await clock.advance(5)
    await asyncio.gather(*closing)
    assert await asyncio.gather(*tasks) == ["closer", "x", "y", "z"]
    assert not purgatory.timer.running
    purgatory._check()


async def test_parking_in_a_callback_during_closing_is_refused(
    clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """The refusal is an error of that callback only, and the closing continues."""
    purgatory = Purgatory[Op]("test", clock=clock)
    again = Op(5)
    ops = [Op(None, on_complete=lambda _: purgatory.try_complete_else_watch(again, ["a"])), Op(None, name="x")]
    tasks = await park_in_tasks(purgatory, clock, *ops)
    await purgatory.aclose()
    with pytest.raises(PurgatoryClosed):
        await tasks[0]
    assert await tasks[1] == "x"
    assert again.outcome is Outcome.PENDING
    check(purgatory, parked=0, failed=1, expired_by_closing=1)


async def test_a_check_in_a_callback_during_closing_completes_operations(clock: VirtualClock) -> None:
    """A check in a callback during the closing completes the operations whose condition holds, before they expire."""
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


# Closing that is cancelled or interrupted still answers every operation


# Cancelled


async def test_cancelled_during_the_grace(clock: VirtualClock) -> None:
    """If the closing task is cancelled, every operation is answered and the cancellation propagates."""
    purgatory = Purgatory[Op]("test", clock=clock)
    op = Op(None, name="x")
    (task,) = await park_in_tasks(purgatory, clock, op)
    closing = asyncio.create_task(purgatory.aclose(grace=1000))
    waiting = asyncio.create_task(purgatory.aclose())
    await clock.settle()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await waiting
    assert await task == "x"
    assert not purgatory.timer.running
    check(purgatory, parked=0, expired_by_closing=1)
    assert clock.next_alarm_ms is None


async def test_cancelling_a_second_closer_leaves_the_first_alone(clock: VirtualClock) -> None:
    """Cancelling a second call of ``aclose`` does not affect the first one."""
    purgatory = Purgatory[Op]("test", clock=clock)
    await park_in_tasks(purgatory, clock, Op(None))
    first = asyncio.create_task(purgatory.aclose(grace=10))
    second = asyncio.create_task(purgatory.aclose())
    await clock.settle()
    second.cancel()
    await clock.settle()
    assert second.cancelled()
    await clock.advance(10)
    await first
    check(purgatory, parked=0, expired_by_closing=1)


async def test_a_timer_that_is_cancelled_while_it_closes(clock: VirtualClock) -> None:
    """If the closing of a timer is cancelled halfway, every operation is still answered."""
    timer = SystemTimer(clock=clock)
    timer.start()
    futures = [timer.fail_after(100) for _ in range(3000)]
    closing = asyncio.create_task(timer.aclose())
    await turns_until(lambda: any(future.done() for future in futures))
    assert not all(future.done() for future in futures)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert all(isinstance(future.exception(), PurgatoryClosed) for future in futures)
    assert timer.size == 0


# Interrupted


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("interrupts", [1, 2, 3])
async def test_an_interrupt_passes_and_every_operation_is_answered(
    clock: VirtualClock, interrupts: int, kind: type[BaseException]
) -> None:
    """If any number of operations are interrupted while they end, all others are answered, and no task waits
    forever.
    """
    purgatory = Purgatory[Op]("test", clock=clock)

    def interrupt(_: Op) -> None:
        raise kind

    ops = [Op(None, name=str(number)) for number in range(10)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
    for op in ops[2 : 2 + interrupts]:
        op._on_complete = interrupt
    with pytest.raises(kind):
        await purgatory.aclose()
    await purgatory.aclose()
    check(purgatory, parked=0, failed=interrupts, expired_by_closing=10 - interrupts)
    assert not purgatory.timer.running
    assert purgatory.timer.closed


async def test_an_interrupt_while_a_timer_closes(clock: VirtualClock) -> None:
    """An operation that is interrupted while its timer closes does not block the others."""

    def interrupt(_: Op) -> None:
        raise KeyboardInterrupt

    timer = SystemTimer(clock=clock)
    purgatory = Purgatory[Op]("test", timer=timer)
    ops = [Op(5, on_complete=interrupt if number == 1 else lambda _: None) for number in range(4)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
    with pytest.raises(KeyboardInterrupt):
        await timer.aclose()
    check(purgatory, parked=0, expired_by_closing=3, failed=1)
    await timer.aclose()
    await purgatory.aclose()


class Interrupt(BaseException):
    """A BaseException that can end a task."""


async def test_cancelled_and_then_interrupted(clock: VirtualClock) -> None:
    """If closing is cancelled, the remaining operations expire at once; an interrupt among them ends the closing
    task.
    """

    def interrupt(_: Op) -> None:
        raise Interrupt

    purgatory = Purgatory[Op]("test", clock=clock)
    ops = [Op(None, on_complete=interrupt if number == 3999 else lambda _: None) for number in range(4000)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
    closing = asyncio.create_task(purgatory.aclose())
    await asyncio.sleep(0)
    assert 0 < len(purgatory) < 4000
    closing.cancel()
    with pytest.raises(Interrupt):
        await closing
    check(purgatory, parked=0, expired_by_closing=3999, failed=1)
    assert not purgatory.timer.running
