"""A failing operation affects no other, and its error is delivered once, to its awaiters or the exception handler."""

import asyncio
from typing import Any

import pytest

from purgatory import Outcome, Purgatory
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, check
from tests.sansio import QuietPurgatory


def _fail(_: Op) -> None:
    raise Boom


# In a check


@pytest.mark.parametrize("where", ["on_try", "on_complete"])
@pytest.mark.parametrize("waiting", [True, False])
async def test_raising_in_a_check(
    clock: VirtualClock, reported: list[dict[str, Any]], where: str, waiting: bool
) -> None:
    """The operation ends FAILED for its awaiter, or is reported without one; the others are still tried."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        bad, good = Op(5, name="bad"), Op(5, name="good")
        if waiting:
            task = asyncio.create_task(purgatory.park(bad, ["a", "b"]))
            await clock.settle()
        else:
            purgatory.try_complete_else_watch(bad, ["a", "b"])
        purgatory.try_complete_else_watch(good, ["a"])
        setattr(bad, f"_{where}", _fail)
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


@pytest.mark.parametrize("hook", ["_on_try", "_on_complete"])
@pytest.mark.parametrize("waiting", ["no task", "one task", "one cancelled task", "one of two cancelled"])
async def test_the_error_of_a_check_reaches_the_awaiters_or_the_handler(
    clock: VirtualClock, reported: list[dict[str, Any]], hook: str, waiting: str
) -> None:
    """Awaiting tasks get the exception; tasks cancelled in the same turn do not count."""

    async def wait(op: Op) -> Any:
        return await op

    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(5)
        purgatory.try_complete_else_watch(op, ["a"])
        setattr(op, hook, _fail)
        op.ready = True
        number = {"no task": 0, "one of two cancelled": 2}.get(waiting, 1)
        tasks = [asyncio.create_task(wait(op)) for _ in range(number)]
        await clock.settle()
        if "cancelled" in waiting:
            tasks[0].cancel()
        assert purgatory.check_and_complete("a") == 0
        delivered = waiting in ("one task", "one of two cancelled")
        assert [(type(context["exception"]), context["operation"]) for context in reported] == (
            [] if delivered else [(Boom, op)]
        )
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results].count(Boom) == delivered
        check(purgatory, failed=1, parked=0)


def test_raising_after_completing_itself(room: QuietPurgatory) -> None:
    """An operation that completes itself and then raises in ``try_complete`` stays completed; the error is reported."""

    def complete_and_raise(op: Op) -> None:
        if op.ready:
            assert op.force_complete()
            raise Boom

    op = Op(5, name="x", on_try=complete_and_raise)
    room.try_complete_else_watch(op, ["a"])
    op.ready = True
    assert room.check_and_complete("a") == 1
    assert op.result() == "x"
    check(room, completed=1, failed=0)
    assert len(room.reported) == 1
    with pytest.raises(Boom):
        room.try_complete_else_watch(Op(5, ready=True, on_try=complete_and_raise), ["a"])
    check(room, completed=2, failed=0, immediate=0)


async def test_failing_completion_inside_a_check_is_contained(clock: VirtualClock) -> None:
    """An exception of ``force_complete`` within ``try_complete`` does not leave the check."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        seen: list[bool] = []
        op = Op(5, on_complete=_fail)
        task = asyncio.create_task(purgatory.park(op, ["a"]))
        await clock.settle()
        op._on_try = lambda op: seen.append(op.force_complete())
        assert purgatory.check_and_complete("a") == 0
        assert seen == [False]
        with pytest.raises(Boom):
            await task


# In an expiry


@pytest.mark.parametrize("waiting", [True, False])
async def test_raising_in_an_expiry(clock: VirtualClock, reported: list[dict[str, Any]], waiting: bool) -> None:
    """An operation whose expiry raises fails, and the others expire."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        bad, good = Op(5, on_complete=_fail), Op(5)
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


@pytest.mark.parametrize("hook", ["_on_complete", "_on_expiration"])
async def test_the_error_of_an_expiry_reaches_the_handler(
    clock: VirtualClock, reported: list[dict[str, Any]], hook: str
) -> None:
    """The handler receives the exception and the operation."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(5)
        setattr(op, hook, _fail)
        purgatory.try_complete_else_watch(op, ["a"])
        await clock.advance(5)
        assert [(type(context["exception"]), context["operation"]) for context in reported] == [(Boom, op)]


async def test_raising_in_on_expiration(clock: VirtualClock, reported: list[dict[str, Any]]) -> None:
    """An exception of ``on_expiration`` is reported; the outcome and the result stand."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(5, name="x", on_expiration=_fail)
        task = asyncio.create_task(purgatory.park(op, ["a"]))
        await clock.advance(5)
        assert await task == "x"
        assert op.outcome is Outcome.EXPIRED
        assert len(reported) == 1


async def test_a_cancelled_error_from_a_callback_fails_its_operation_only(
    clock: VirtualClock, reported: list[dict[str, Any]]
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


# Without a loop


def test_without_a_loop_a_failure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """If an operation has neither an awaiter nor a loop, its error is logged."""
    purgatory = Purgatory[Op]("test", clock=VirtualClock())

    def fail(_: Op) -> None:
        raise Boom("unseen")

    op = Op()
    purgatory.try_complete_else_watch(op, ["a"])
    op._on_try = fail
    assert purgatory.check_and_complete("a") == 0
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("purgatory", "ERROR")
    assert record.getMessage() == f"an operation of purgatory 'test' raised: {{'operation': {op!r}}}"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], Boom)
