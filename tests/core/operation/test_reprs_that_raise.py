"""Objects whose ``repr`` raises: every awaiter is answered, and errors keep their meaning."""

import asyncio
import logging
from typing import Any

import pytest

from purgatory import OperationCancelled, Outcome, Purgatory, PurgatoryError, PurgatoryFull, ThresholdPurgatory
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import Boom, Op, check, park_in_tasks
from tests.sansio import make_purgatory


class Mute(Op):
    """An operation whose ``repr`` raises."""

    def __repr__(self) -> str:
        raise Boom("repr")

    @property
    def keys(self) -> tuple[Any, ...]:
        raise Boom("keys")


class MuteKey:
    """A key whose ``repr`` raises."""

    def __repr__(self) -> str:
        raise Boom("repr")


class MuteStop(StopIteration):
    """An exception that a future cannot carry, and whose ``repr`` raises."""

    def __repr__(self) -> str:
        raise Boom("repr")


class MuteInterrupt(KeyboardInterrupt):
    """An interrupt whose ``repr`` raises."""

    def __repr__(self) -> str:
        raise MuteInterrupt


async def _wait(op: Op) -> Any:
    return await op


@pytest.mark.parametrize("ending", ["cancel", "cancel_for_key", "parker cancelled"])
async def test_awaiters_of_a_cancelled_operation_are_answered(
    clock: VirtualClock, reported: list[dict[str, Any]], ending: str
) -> None:
    """The message of OperationCancelled runs no user code, so every awaiter is answered."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Mute()
        (parker,) = await park_in_tasks(purgatory, clock, op)
        awaiters = [asyncio.create_task(_wait(op)) for _ in range(2)]
        await clock.settle()
        if ending == "cancel":
            assert op.cancel()
        elif ending == "cancel_for_key":
            assert purgatory.cancel_for_key("a") == [op]
        else:
            parker.cancel()
        await clock.settle()
        assert op.outcome is Outcome.CANCELLED
        tasks = [*awaiters, parker] if ending != "parker cancelled" else awaiters
        assert all(task.done() for task in tasks)
        for task in tasks:
            assert isinstance(task.exception(), OperationCancelled)
        with pytest.raises(OperationCancelled, match=r"^Mute was cancelled before it completed$"):
            op.result()
        check(purgatory, parked=0, cancelled=1)
        await asyncio.gather(parker, return_exceptions=True)
    assert reported == []


async def test_the_error_names_the_keys(purgatory: Purgatory[Op]) -> None:
    """OperationCancelled contains the keys of the operation in its message and as ``keys``."""
    op = Op()
    purgatory.try_complete_else_watch(op, ["a", 5])
    waiter = next(op.__await__())
    op.cancel()
    error = waiter.exception()
    assert isinstance(error, OperationCancelled)
    assert str(error) == "Op was cancelled before it completed, parked on ['a', 5]"
    assert error.keys == ("a", 5)
    with pytest.raises(OperationCancelled, match=r"^Op was cancelled before it completed$") as late:
        op.result()
    assert late.value.keys == ()


async def test_a_key_without_a_repr_leaves_the_error_printable(purgatory: Purgatory[Op]) -> None:
    """The message is created when it is printed, and states if a key cannot be printed."""
    key, op = MuteKey(), Op()
    purgatory.try_complete_else_watch(op, [key])
    waiter = next(op.__await__())
    op.cancel()
    assert waiter.exception().keys == (key,)
    assert str(waiter.exception()) == "Op was cancelled before it completed, parked on 1 keys that cannot be printed"
    assert str(OperationCancelled()) == ""


async def test_an_error_that_a_future_cannot_carry_is_wrapped_unseen(purgatory: Purgatory[Op]) -> None:
    """A StopIteration without a repr reaches the awaiters as the cause of a PurgatoryError."""
    by_key, op = Op(), Op()
    purgatory.try_complete_else_watch(by_key, ["a"])
    purgatory.try_complete_else_watch(op, ["b"])
    waiters = [next(by_key.__await__()), next(op.__await__())]
    error = MuteStop()
    assert purgatory.fail_for_key("a", error) == 1

    def stop(_: Op) -> None:
        raise error

    op._on_try = stop
    assert purgatory.check_and_complete("b") == 0
    for waiter in waiters:
        assert isinstance(waiter.exception(), PurgatoryError)
        assert str(waiter.exception()) == "the operation was interrupted by MuteStop"
        assert waiter.exception().__cause__ is error
    check(purgatory, parked=0, failed=2)


@pytest.mark.parametrize("hook", ["_on_try", "_on_complete"])
async def test_an_interrupt_that_cannot_be_printed_answers_the_awaiters(purgatory: Purgatory[Op], hook: str) -> None:
    """A KeyboardInterrupt without a repr passes through the check, and every awaiter is answered."""

    def interrupt(_: Op) -> None:
        raise MuteInterrupt

    op = Op()
    purgatory.try_complete_else_watch(op, ["a"])
    waiter = next(op.__await__())
    op.ready = True
    setattr(op, hook, interrupt)
    with pytest.raises(MuteInterrupt):
        purgatory.check_and_complete("a")
    if hook == "_on_complete":
        assert str(waiter.exception()) == "the operation was interrupted by MuteInterrupt"
    else:  # it was only tried, and still waits
        assert op.outcome is Outcome.PENDING
        op.cancel()
        assert isinstance(waiter.exception(), OperationCancelled)


def test_a_full_key_without_a_repr_is_full() -> None:
    """PurgatoryFull reaches the caller, and nothing is parked."""
    room = make_purgatory(ManualClock(), max_parked_per_key=1)
    key, op = MuteKey(), Op()
    room.try_complete_else_watch(Op(), [key])
    with pytest.raises(PurgatoryFull, match="<MuteKey whose repr raised Boom> of purgatory 'test' is full") as full:
        room.try_complete_else_watch(op, [key])
    assert full.value.key is key
    assert op.outcome is Outcome.PENDING
    check(room, parked=1, watched=1, submitted=1)
    assert not room.try_complete_else_watch(op, ["other"])


async def test_misuse_of_an_operation_without_a_repr_is_named(purgatory: Purgatory[Op]) -> None:
    """A second parking, an early result and a wrong argument raise errors of the usual class."""
    op: Any = Mute()
    purgatory.try_complete_else_watch(op, ["a"])
    with pytest.raises(ValueError, match="got <Mute whose repr raised Boom>, which is parked already"):
        purgatory.try_complete_else_watch(op, ["b"])
    with pytest.raises(PurgatoryError, match="<Mute whose repr raised Boom> has no result yet"):
        op.result()
    op.cancel()
    with pytest.raises(ValueError, match="got <Mute whose repr raised Boom>, which has ended"):
        purgatory.try_complete_else_watch(op, ["a"])
    key: Any = MuteKey()
    with pytest.raises(TypeError, match="<MuteKey whose repr raised Boom>"):
        purgatory.try_complete_else_watch(key, ["a"])
    with pytest.raises(TypeError, match="<MuteKey whose repr raised Boom>"):
        await purgatory.park(key, ["a"])
    with pytest.raises(TypeError, match="<MuteKey whose repr raised Boom>"):
        purgatory.fail_for_key("a", key)
    with pytest.raises(TypeError, match="<MuteKey whose repr raised Boom>"):
        await purgatory.wait_until(key, keys=["a"], timeout=1)


async def test_an_operation_is_printable_whatever_it_waits_on(purgatory: Purgatory[Op]) -> None:
    """The ``repr`` of an operation works with a key and an error whose ``repr`` raises."""
    op = Op(5)
    purgatory.try_complete_else_watch(op, [MuteKey()])
    assert repr(op) == "<Op PENDING on <list whose repr raised Boom> timeout=5>"
    purgatory.fail_for_key("unwatched", Boom())
    for waiting in purgatory.dump()["operations"]:
        assert waiting["operation"] == repr(op)
    op.cancel()
    failed = Op(5)
    purgatory.try_complete_else_watch(failed, ["a"])
    purgatory.fail_for_key("a", type("MuteError", (Exception,), {"__repr__": MuteKey.__repr__})())
    assert repr(failed) == "<Op FAILED timeout=5 error=<MuteError whose repr raised Boom>>"


async def test_a_deadline_on_a_key_without_a_repr_is_a_time_out(clock: VirtualClock) -> None:
    """``ThresholdPurgatory.wait`` raises TimeoutError even if the key cannot be printed."""
    async with ThresholdPurgatory("test", clock=clock) as purgatory:
        task = asyncio.create_task(purgatory.wait(MuteKey(), 5, 1.0))
        await clock.advance(1)
        with pytest.raises(TimeoutError, match="<MuteKey whose repr raised Boom> did not reach 5"):
            await task


# Reports


def _boom(_: Op) -> None:
    raise Boom("the error itself")


async def test_the_default_handler_reports_the_error_itself(
    purgatory: Purgatory[Op], caplog: pytest.LogCaptureFixture
) -> None:
    """If an operation cannot be printed, its error is still logged."""
    op = Mute(on_try=lambda op: None)
    purgatory.try_complete_else_watch(op, ["a"])
    op._on_try = _boom
    with caplog.at_level(logging.ERROR):
        assert purgatory.check_and_complete("a") == 0
    (record,) = caplog.records
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "the error itself"
    assert "<Mute whose repr raised Boom>" in record.getMessage()


async def test_another_handler_is_given_the_operation(purgatory: Purgatory[Op], reported: list[dict[str, Any]]) -> None:
    """A user's handler receives the operation, even if it cannot be printed."""
    op = Mute()
    purgatory.try_complete_else_watch(op, ["a"])
    op._on_try = _boom
    purgatory.check_and_complete("a")
    (context,) = reported
    assert context["operation"] is op


def test_the_log_has_the_error_where_no_loop_runs(caplog: pytest.LogCaptureFixture) -> None:
    """Without a loop, the log contains the error, and the operation as far as it can be printed."""
    purgatory = Purgatory[Op]("test", clock=VirtualClock())
    op = Mute()
    purgatory.try_complete_else_watch(op, ["a"])
    op._on_try = _boom
    assert purgatory.check_and_complete("a") == 0
    (record,) = caplog.records
    assert record.getMessage() == (
        "an operation of purgatory 'test' raised: {'operation': <Mute whose repr raised Boom>}"
    )
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "the error itself"
