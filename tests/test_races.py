"""One outcome, whatever meets in one turn of the loop, and checks from inside callbacks."""

import asyncio
import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import Observer, OperationCancelled, Outcome, Purgatory, PurgatoryClosed, PurgatoryError, SystemTimer
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, Recorder, check

ENDINGS: dict[str, Callable[[Purgatory[Op], Op], object]] = {
    "completed": lambda purgatory, op: purgatory.check_and_complete("ready"),
    "forced": lambda purgatory, op: op.force_complete(),
    "expired": lambda purgatory, op: op.run(),
    "withdrawn": lambda purgatory, op: op.cancel(),
    "cancelled by key": lambda purgatory, op: purgatory.cancel_for_key("a"),
    "failed by key": lambda purgatory, op: purgatory.fail_for_key("a", Boom()),
}


@pytest.mark.parametrize("first", ENDINGS)
@pytest.mark.parametrize("second", ENDINGS)
async def test_whoever_comes_second_finds_it_ended(clock: VirtualClock, first: str, second: str) -> None:
    """Of any two endings in one turn of the loop the first decides, and the books count one."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(5, name="x")
        purgatory.try_complete_else_watch(op, ["a", "ready"])
        op.ready = True
        ENDINGS[first](purgatory, op)
        outcome, calls = op.outcome, list(op.calls)
        assert outcome is not Outcome.PENDING
        assert not ENDINGS[second](purgatory, op)
        assert (op.outcome, op.calls) == (outcome, calls)
        assert op.completions <= 1
        purgatory._check()
        statistics = purgatory.statistics()
        assert statistics.completed + statistics.expired + statistics.cancelled + statistics.failed == 1


class TestTheParkerLeaves:
    """The task in park() is cancelled in the turn in which its operation ends."""

    async def _parked(self, purgatory: Purgatory[Op], clock: VirtualClock) -> tuple[Op, "asyncio.Task[Any]"]:
        op = Op(5, name="x")
        task = asyncio.create_task(purgatory.park(op, ["a"]))
        await clock.settle()
        return op, task

    @pytest.mark.parametrize("ending", ["check", "force", "fail", "expiry", "real expiry"])
    async def test_cancelled_then_ended(self, clock: VirtualClock, ending: str) -> None:
        """Order a): nothing is handed to a caller who has left; on_complete does not run and it ends CANCELLED."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            op, task = await self._parked(purgatory, clock)
            op.ready = True
            if ending == "real expiry":
                asyncio.get_running_loop().call_soon(task.cancel)
                clock._now_ns += 5_000_000_000
                purgatory.timer.call_later(0, lambda: None)
                await clock.settle()
            else:
                task.cancel()
                if ending == "check":
                    assert purgatory.check_and_complete("a") == 0
                elif ending == "force":
                    assert not op.force_complete()
                elif ending == "fail":
                    assert purgatory.fail_for_key("a", Boom()) == 0
                else:
                    assert purgatory.timer.expire_due(clock.now_ms() + 5000) == 1
            assert op.outcome is Outcome.CANCELLED
            assert op.completions == 0
            check(purgatory, parked=0, cancelled=1, completed=0, expired=0)
            with pytest.raises(asyncio.CancelledError):
                await task

    @pytest.mark.parametrize("ending", ["check", "expiry", "fail"])
    async def test_ended_then_cancelled(self, clock: VirtualClock, reported: list[dict[str, Any]], ending: str) -> None:
        """Order b): the outcome stands, the task is cancelled all the same, and the result can be read."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            op, task = await self._parked(purgatory, clock)
            op.ready = True
            if ending == "check":
                assert purgatory.check_and_complete("a") == 1
            elif ending == "expiry":
                assert purgatory.timer.expire_due(clock.now_ms() + 5000) == 1
            else:
                assert purgatory.fail_for_key("a", Boom()) == 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            if ending == "fail":
                assert op.outcome is Outcome.FAILED
            else:
                assert op.result() == "x"
                assert op.completions == 1
            check(purgatory, parked=0, cancelled=0)
        del task
        assert reported == []

    async def test_cancelled_while_a_callback_parks_another(self, clock: VirtualClock) -> None:
        """The parker leaves while on_complete of another operation parks a third on the same key; both stay right."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            op, task = await self._parked(purgatory, clock)
            third = Op(5, name="third")

            def leave_and_park(_: Op) -> None:
                task.cancel()
                purgatory.try_complete_else_watch(third, ["a", "b"])

            other = Op(5, on_complete=leave_and_park)
            purgatory.try_complete_else_watch(other, ["b"])
            op.ready = other.ready = True
            assert purgatory.check_and_complete("b") == 1
            check(purgatory, parked=2, watched=3)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert op.outcome is Outcome.CANCELLED
            check(purgatory, parked=1, watched=2, cancelled=1, completed=1)
            third.ready = True
            assert purgatory.check_and_complete("a") == 1

    async def test_cancelling_withdraws_at_once(self, clock: VirtualClock) -> None:
        """A parker that is cancelled leaves nothing behind, and is not answered later."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            op, task = await self._parked(purgatory, clock)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            check(purgatory, parked=0, watched=0, num_delayed=0, keys=0, cancelled=1)
            op.ready = True
            assert purgatory.check_and_complete("a") == 0
            await clock.advance(10)
            assert op.completions == 0

    async def test_a_timeout_around_park_withdraws(self, clock: VirtualClock) -> None:
        """asyncio.timeout() around park() is a cancellation like any other."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            op = Op(None)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await purgatory.park(op, ["a"])
            assert op.outcome is Outcome.CANCELLED
            check(purgatory, parked=0)

    async def test_other_awaiters_of_the_operation_are_told(self, clock: VirtualClock) -> None:
        """Who awaits an operation that its parker withdraws gets OperationCancelled."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            op, task = await self._parked(purgatory, clock)

            async def wait() -> Any:
                return await op

            other = asyncio.create_task(wait())
            await clock.settle()
            task.cancel()
            with pytest.raises(OperationCancelled):
                await other

    async def test_a_coroutine_that_is_closed_while_it_parks(
        self, clock: VirtualClock, reported: list[dict[str, Any]]
    ) -> None:
        """Closing the coroutine, as a shutdown does, withdraws the operation and complains to nobody."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            op = Op(5)
            coroutine = purgatory.park(op, ["a"])
            coroutine.send(None)
            assert len(purgatory) == 1
            coroutine.close()
            assert op.outcome is Outcome.CANCELLED
            check(purgatory, parked=0)
        assert reported == []


class TestCallbacks:
    """Checks, parks, withdrawals from inside callbacks."""

    async def test_a_check_from_a_callback_is_queued_and_counted_outside(self, clock: VirtualClock) -> None:
        """It returns 0, runs before the outermost call returns, in order, and counts there."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            order: list[str] = []

            def then(*keys: str) -> Callable[[Op], None]:
                def callback(op: Op) -> None:
                    order.append(op.name)
                    for key in keys:
                        assert purgatory.check_and_complete(key) == 0

                return callback

            tree = {"a": ("b", "c"), "b": ("d",), "c": ("e",), "d": (), "e": ()}
            for name, following in tree.items():
                op = Op(5, name=name, on_complete=then(*following))
                purgatory.try_complete_else_watch(op, [name])
                op.ready = True
            assert purgatory.check_and_complete("a") == 5
            assert order == ["a", "b", "c", "d", "e"]
            check(purgatory, parked=0, completed=5)

    @pytest.mark.parametrize("start", ["check", "park", "force", "expire", "soon"])
    async def test_a_chain_of_a_hundred_thousand_uses_constant_stack(self, clock: VirtualClock, start: str) -> None:
        """Each operation completes the next one, from whatever the chain begins with."""
        length = 100_000
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            deepest = 0

            class Link(Op):
                def __init__(self, number: int) -> None:
                    super().__init__(None)
                    self.number = number

                def try_complete(self) -> bool:
                    return self.ready

                def on_complete(self) -> None:
                    nonlocal deepest
                    if self.number % 1000 == 0:
                        depth = 0
                        frame: Any = sys._getframe()
                        while frame is not None:
                            depth, frame = depth + 1, frame.f_back
                        deepest = max(deepest, depth)
                    purgatory.check_and_complete(self.number + 1)

            links = [Link(number) for number in range(length)]
            for link in links[1:]:
                purgatory.try_complete_else_watch(link, [link.number])
                link.ready = True
            first = links[0]
            if start == "park":
                first.ready = True
                assert await purgatory.park(first, [0]) is None
            elif start == "force":
                purgatory.try_complete_else_watch(first, [0])
                assert first.force_complete()
            elif start == "expire":
                first.extend(1)
                purgatory.try_complete_else_watch(first, [0])
                await clock.advance(1)
            elif start == "soon":
                purgatory.try_complete_else_watch(first, [0])
                first.ready = True
                purgatory.check_soon(0)
                await clock.settle()
            else:
                purgatory.try_complete_else_watch(first, [0])
                first.ready = True
                assert purgatory.check_and_complete(0) == length
            check(purgatory, parked=0, completed=length - (start == "expire"))
            assert 0 < deepest < 120

    async def test_cancelling_a_key_from_inside_try_complete(self, clock: VirtualClock) -> None:
        """An operation that withdraws its whole key while it is tried ends with the others, and is not completed."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            withdrawn: list[Op] = []
            ops = [Op(5) for _ in range(5)]
            for op in ops:
                purgatory.try_complete_else_watch(op, ["a", "b"])
                op.ready = True
            ops[0].ready = False
            ops[1]._on_try = lambda _: withdrawn.extend(purgatory.cancel_for_key("a"))
            assert purgatory.check_and_complete("a") == 0
            assert withdrawn == ops
            assert {op.outcome for op in ops} == {Outcome.CANCELLED}
            assert [op.completions for op in ops] == [0] * 5
            assert ops[2].calls == ["try"]
            check(purgatory, parked=0, watched=0, cancelled=5)

    async def test_parking_from_inside_try_complete_keeps_the_order_of_arrival(self, clock: VirtualClock) -> None:
        """Who is parked within another's first try came before it, and is tried before it."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            order: list[str] = []
            inner = Op(5, name="inner", on_try=lambda op: order.append(op.name))

            def park_inner(op: Op) -> None:
                order.append(op.name)
                if not inner.keys:
                    purgatory.try_complete_else_watch(inner, ["a"])

            outer = Op(5, name="outer", on_try=park_inner)
            purgatory.try_complete_else_watch(outer, ["a"])
            purgatory._check()
            order.clear()
            purgatory.check_and_complete("a")
            assert order == ["inner", "outer"]

    async def test_parking_on_the_key_that_is_being_checked(self, clock: VirtualClock) -> None:
        """Who arrives during a check had a try of its own, and is tried again by the next check only."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            arrived: list[Op] = []

            def park_another(_: Op) -> None:
                arrived.append(Op(5))
                purgatory.try_complete_else_watch(arrived[-1], ["a"])

            ops = [Op(5, on_complete=park_another) for _ in range(3)]
            for op in ops:
                purgatory.try_complete_else_watch(op, ["a"])
                op.ready = True
            assert purgatory.check_and_complete("a") == 3
            assert [op.calls for op in arrived] == [["try"]] * 3
            purgatory.check_and_complete("a")
            assert [op.calls for op in arrived] == [["try", "try"]] * 3

    async def test_an_observer_parks_and_completes(self, clock: VirtualClock) -> None:
        """Observers may act on the purgatory that tells them."""

        class Actor(Observer):
            def parked(self, event: Any) -> None:
                if event.operation.name == "at once":
                    event.operation.force_complete()

            def completed(self, event: Any) -> None:
                if event.operation.name == "first":
                    purgatory.try_complete_else_watch(Op(5, name="second"), ["b"])
                    purgatory.check_and_complete("a")

        async with Purgatory[Op]("test", clock=clock, observers=[Actor()]) as purgatory:
            first, third = Op(5, name="first"), Op(5, name="third")
            for op in (first, third):
                purgatory.try_complete_else_watch(op, ["a"])
                op.ready = True
            assert purgatory.check_and_complete("a") == 2
            check(purgatory, parked=1, completed=2)
            at_once = Op(5, name="at once")
            assert purgatory.try_complete_else_watch(at_once, ["a"])
            assert await at_once == "at once"
            waiting = Op(5, name="at once")
            assert await purgatory.park(waiting, ["a"]) == "at once"
            check(purgatory, parked=1, completed=4)

    async def test_on_expiration_may_do_anything(self, clock: VirtualClock) -> None:
        """It runs when the operation has ended: it may check, park and withdraw."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            other = Op(None)
            third = Op(None)

            def act(op: Op) -> None:
                assert op.outcome is Outcome.EXPIRED
                purgatory.check_and_complete("a")
                purgatory.try_complete_else_watch(third, ["a"])
                assert not op.cancel()

            op = Op(1, on_expiration=act)
            for waiting in (op, other):
                purgatory.try_complete_else_watch(waiting, ["a"])
            other.ready = True
            await clock.advance(1)
            assert other.outcome is Outcome.COMPLETED
            check(purgatory, parked=1, completed=1, expired=1)


class TestBadOperations:
    """One that raises harms itself only."""

    def _boom(self, _: Op) -> None:
        raise Boom

    @pytest.mark.parametrize("where", ["on_try", "on_complete"])
    @pytest.mark.parametrize("waiting", [True, False])
    async def test_raising_in_a_check(
        self, clock: VirtualClock, reported: list[dict[str, Any]], where: str, waiting: bool
    ) -> None:
        """It ends FAILED for its awaiter, or is reported where nobody waits; the others are still tried."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            bad, good = Op(5, name="bad"), Op(5, name="good")
            if waiting:
                task = asyncio.create_task(purgatory.park(bad, ["a", "b"]))
                await clock.settle()
            else:
                purgatory.try_complete_else_watch(bad, ["a", "b"])
            purgatory.try_complete_else_watch(good, ["a"])
            setattr(bad, f"_{where}", self._boom)
            bad.ready = good.ready = True
            assert purgatory.check_and_complete("a") == 1
            assert bad.outcome is Outcome.FAILED
            assert good.outcome is Outcome.COMPLETED
            check(purgatory, parked=0, watched=0, completed=1, failed=1)
            if waiting:
                with pytest.raises(Boom):
                    await task
                assert reported == []
            else:
                (context,) = reported
                assert isinstance(context["exception"], Boom)
                assert context["operation"] is bad
                assert "test" in context["message"]

    @pytest.mark.parametrize("waiting", [True, False])
    async def test_raising_in_an_expiry(
        self, clock: VirtualClock, reported: list[dict[str, Any]], waiting: bool
    ) -> None:
        """An expiry that raises fails its operation, and the others expire."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            bad, good = Op(5, on_complete=self._boom), Op(5)
            if waiting:
                task = asyncio.create_task(purgatory.park(bad, ["a"]))
                await clock.settle()
            else:
                purgatory.try_complete_else_watch(bad, ["a"])
            purgatory.try_complete_else_watch(good, ["a"])
            await clock.advance(5)
            assert (bad.outcome, good.outcome) == (Outcome.FAILED, Outcome.EXPIRED)
            assert "expire" not in bad.calls
            check(purgatory, parked=0, expired=1, failed=1)
            if waiting:
                with pytest.raises(Boom):
                    await task
            assert len(reported) == (0 if waiting else 1)

    async def test_raising_in_on_expiration(self, clock: VirtualClock, reported: list[dict[str, Any]]) -> None:
        """What on_expiration raises is reported; the outcome and the result stand."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            op = Op(5, name="x", on_expiration=self._boom)
            task = asyncio.create_task(purgatory.park(op, ["a"]))
            await clock.advance(5)
            assert await task == "x"
            assert op.outcome is Outcome.EXPIRED
            assert len(reported) == 1

    async def test_a_cancelled_error_from_a_callback_is_its_own_affair(
        self, clock: VirtualClock, reported: list[dict[str, Any]]
    ) -> None:
        """A callback that reads a cancelled future fails its operation and does not end the reaper."""

        def read(_: Op) -> None:
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            future.result()

        async with Purgatory[Op]("test", clock=clock) as purgatory:
            ops = [Op(5, on_complete=read), Op(5, on_expiration=read), Op(5)]
            for op in ops:
                purgatory.try_complete_else_watch(op, ["a"])
            await clock.advance(5)
            assert [op.outcome for op in ops] == [Outcome.FAILED, Outcome.EXPIRED, Outcome.EXPIRED]
            assert len(reported) == 2
            assert purgatory.timer.running

    async def test_raising_after_completing_itself(self, clock: VirtualClock, reported: list[dict[str, Any]]) -> None:
        """One that has completed and then raises in try_complete stays completed, and the error is reported."""

        def complete_and_raise(op: Op) -> None:
            if op.ready:
                assert op.force_complete()
                raise Boom

        async with Purgatory[Op]("test", clock=clock) as purgatory:
            op = Op(5, name="x", on_try=complete_and_raise)
            purgatory.try_complete_else_watch(op, ["a"])
            op.ready = True
            assert purgatory.check_and_complete("a") == 1
            assert op.result() == "x"
            check(purgatory, completed=1, failed=0)
            assert len(reported) == 1
            with pytest.raises(Boom):
                purgatory.try_complete_else_watch(Op(5, ready=True, on_try=complete_and_raise), ["a"])
            check(purgatory, completed=2, failed=0, immediate=0)

    async def test_failing_completion_inside_a_check_is_contained(self, clock: VirtualClock) -> None:
        """force_complete within try_complete of a check does not let the exception through."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            seen: list[bool] = []
            op = Op(5, on_complete=self._boom)
            task = asyncio.create_task(purgatory.park(op, ["a"]))
            await clock.settle()
            op._on_try = lambda op: seen.append(op.force_complete())
            assert purgatory.check_and_complete("a") == 0
            assert seen == [False]
            with pytest.raises(Boom):
                await task


class TestInterrupts:
    """KeyboardInterrupt, SystemExit and their like pass through, and the state is whole."""

    def _interrupt(self, _: Any) -> None:
        raise KeyboardInterrupt

    @pytest.mark.parametrize("where", ["on_try", "on_complete"])
    async def test_in_the_callers_own_call(self, clock: VirtualClock, where: str) -> None:
        """From try_complete nothing was parked and the operation is as before; from on_complete it has failed."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            op = Op(5, ready=True)
            setattr(op, f"_{where}", self._interrupt)
            with pytest.raises(KeyboardInterrupt):
                purgatory.try_complete_else_watch(op, ["a"])
            check(purgatory, parked=0, watched=0, submitted=1 if where == "on_complete" else 0)
            assert op.outcome is (Outcome.FAILED if where == "on_complete" else Outcome.PENDING)
            if where == "on_try":
                op._on_try = lambda _: None
                assert purgatory.try_complete_else_watch(op, ["a"])

    @pytest.mark.parametrize("where", ["on_try", "on_complete"])
    async def test_in_a_check(self, clock: VirtualClock, where: str) -> None:
        """It reaches whoever checks; an operation interrupted in on_complete answers its awaiters with an error."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            op, behind = Op(5), Op(5)
            task = asyncio.create_task(purgatory.park(op, ["a"]))
            await clock.settle()
            purgatory.try_complete_else_watch(behind, ["a"])
            op.ready = behind.ready = True
            setattr(op, f"_{where}", self._interrupt)
            with pytest.raises(KeyboardInterrupt):
                purgatory.check_and_complete("a")
            purgatory._check()
            assert behind.outcome is Outcome.PENDING
            if where == "on_complete":
                with pytest.raises(PurgatoryError, match="KeyboardInterrupt"):
                    await task
            else:
                assert op.outcome is Outcome.PENDING
                op._on_try = lambda _: None
            assert purgatory.check_and_complete("a") == (1 if where == "on_complete" else 2)
            check(purgatory, parked=0)

    async def test_queued_checks_are_not_lost(self, clock: VirtualClock) -> None:
        """Checks that callbacks had asked for before the interrupt are made up for in the next turn of the loop."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            waiting = [Op(5) for _ in range(3)]
            for number, op in enumerate(waiting):
                purgatory.try_complete_else_watch(op, [number])
                op.ready = True

            def ask_and_interrupt(_: Op) -> None:
                for number in range(3):
                    assert purgatory.check_and_complete(number) == 0

            waiting[1]._on_complete = self._interrupt
            first = Op(5, on_complete=ask_and_interrupt)
            purgatory.try_complete_else_watch(first, ["a"])
            first.ready = True
            with pytest.raises(KeyboardInterrupt):
                purgatory.check_and_complete("a")
            purgatory._check()
            await clock.settle()
            assert waiting[2].outcome is Outcome.COMPLETED
            check(purgatory, parked=0)

    async def test_from_an_observer(self, clock: VirtualClock) -> None:
        """An observer that is interrupted leaves an operation that is parked, or has ended, and books that balance."""

        class Interrupted(Recorder):
            on = ""

            def _note(self, method: str, event: Any) -> None:
                if method == self.on:
                    raise KeyboardInterrupt
                super()._note(method, event)

        observer = Interrupted()
        async with Purgatory[Op]("test", clock=clock, observers=[observer]) as purgatory:
            for method in ("parked", "completed", "cancelled", "failed", "expired"):
                op = Op(5, name=method)
                observer.on = method if method == "parked" else ""
                if method == "parked":
                    with pytest.raises(KeyboardInterrupt):
                        purgatory.try_complete_else_watch(op, ["a"])
                    assert len(purgatory) == len(op.keys)
                    op.cancel()
                    purgatory._check()
                    with pytest.raises(KeyboardInterrupt):
                        await purgatory.park(Op(5), ["a"])
                    check(purgatory, parked=0)
                    continue
                purgatory.try_complete_else_watch(op, ["a"])
                observer.on = method
                end: dict[str, Callable[[], object]] = {
                    "completed": op.force_complete,
                    "cancelled": op.cancel,
                    "failed": functools.partial(purgatory.fail_for_key, "a", Boom()),
                    "expired": op.run,
                }
                with pytest.raises(KeyboardInterrupt):
                    end[method]()
                assert op.outcome.value == method
                observer.on = ""
                check(purgatory, parked=0)


class TestThresholdValues:
    """The value of a check."""

    @pytest.mark.parametrize(
        ("value", "error"), [("5", TypeError), ([], TypeError), (True, TypeError), (float("nan"), ValueError)]
    )
    async def test_a_value_that_cannot_be_meant_is_refused_at_once(
        self, clock: VirtualClock, value: Any, error: type[Exception]
    ) -> None:
        """A bad value is the error of the call that gave it, also from inside a callback, where the check is queued."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            ranked = Op(5)
            purgatory.try_complete_else_watch(ranked, {"a": 3})
            with pytest.raises(error, match="value"):
                purgatory.check_and_complete("a", value)
            with pytest.raises(error, match="value"):
                purgatory.check_and_complete("nobody", value)
            assert ranked.calls == ["try"]

            def ask(_: Op) -> None:
                with pytest.raises(error, match="value"):
                    purgatory.check_and_complete("a", value)
                purgatory.check_and_complete("a", 3)

            op = Op(5, on_complete=ask)
            purgatory.try_complete_else_watch(op, ["b"])
            op.ready = ranked.ready = True
            assert purgatory.check_and_complete("b") == 2


async def test_parking_in_a_house_that_its_own_try_closed(clock: VirtualClock) -> None:
    """An operation whose try_complete closes the purgatory is refused, and is still PENDING."""
    timer = SystemTimer(clock=clock)
    async with timer:
        purgatory = Purgatory[Op]("test", timer=timer)

        def close(_: Op) -> None:
            with pytest.raises(StopIteration):
                purgatory.aclose().send(None)  # nobody waits, so it is done without waiting

        op = Op(5, on_try=close)
        with pytest.raises(PurgatoryClosed):
            purgatory.try_complete_else_watch(op, ["a"])
        assert op.outcome is Outcome.PENDING
        check(purgatory, submitted=0, parked=0, watched=0)
