"""``cancel(reason)``: awaiters and observers get the reason."""

import asyncio
import copy
import pickle
from typing import Any

import pytest

from purgatory import Event, OperationCancelled, Outcome, Purgatory
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, Recorder, check, park_in_tasks
from tests.sansio import QuietPurgatory


class Mute:
    """An object that cannot be printed, compared or hashed, and that is neither true nor false."""

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise Boom("repr")

    def __eq__(self, other: object) -> bool:
        raise Boom("eq")

    def __bool__(self) -> bool:
        raise Boom("bool")


async def _wait(op: Op) -> Any:
    return await op


def _cancelled(task: "asyncio.Task[Any]") -> OperationCancelled:
    error = task.exception()
    assert isinstance(error, OperationCancelled)
    return error


@pytest.mark.parametrize("ending", ["cancel", "cancel_for_key", "acancel_for_key"])
async def test_awaiters_and_observers_get_the_reason(clock: VirtualClock, ending: str) -> None:
    """The task in park(), other awaiters, later awaiters, result() and the event carry the same object."""
    recorder = Recorder()
    async with Purgatory[Op]("test", clock=clock, observers=[recorder]) as purgatory:
        op, reason = Op(5), object()
        (parker,) = await park_in_tasks(purgatory, clock, op)
        awaiter = asyncio.create_task(_wait(op))
        await clock.settle()
        if ending == "cancel":
            assert op.cancel(reason)
        elif ending == "cancel_for_key":
            assert purgatory.cancel_for_key("a", reason=reason) == [op]
        else:
            assert await purgatory.acancel_for_key("a", reason=reason) == [op]
        late = asyncio.create_task(_wait(op))
        await clock.settle()
        assert [_cancelled(task).reason for task in (parker, awaiter, late)] == [reason] * 3
        with pytest.raises(OperationCancelled) as raised:
            op.result()
        assert raised.value.reason is reason
        assert [event.reason for event in recorder.seen] == [None, reason]
        check(purgatory, parked=0, cancelled=1)


async def test_the_message_contains_the_reason(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """The message contains the reason and the keys; a copy and a pickle contain them too."""
    op = Op(5)
    (parker,) = await park_in_tasks(purgatory, clock, op)
    op.cancel("the group was deleted")
    await clock.settle()
    error = _cancelled(parker)
    assert str(error) == "Op was cancelled before it completed, reason: 'the group was deleted', parked on ['a']"
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (other.reason, other.keys, str(other)) == (error.reason, error.keys, str(error))


async def test_without_a_reason_there_is_none(clock: VirtualClock) -> None:
    """``cancel()`` without a reason, and a completion with a value as the result, leave no reason in event or
    message.
    """
    recorder = Recorder()
    async with Purgatory[Op]("test", clock=clock, observers=[recorder]) as purgatory:
        ops = [Op(5, name=name) for name in ("cancelled", "completed", "failed")]
        parkers = await park_in_tasks(purgatory, clock, *ops)
        ops[0].cancel()
        ops[1].force_complete()
        assert purgatory.fail_for_key("a", Boom()) == 1
        await clock.settle()
        assert str(_cancelled(parkers[0])) == "Op was cancelled before it completed, parked on ['a']"
        assert parkers[1].result() == "completed"
        assert isinstance(parkers[2].exception(), Boom)
    assert [event.reason for event in recorder.seen] == [None] * 6


@pytest.mark.parametrize("second", ["nothing", "a check", "fail_for_key"])
async def test_a_cancelled_task_in_park_gives_no_reason(clock: VirtualClock, second: str) -> None:
    """Other awaiters and observers see a cancellation without a reason, whichever code detects the cancelled task."""
    recorder = Recorder()
    async with Purgatory[Op]("test", clock=clock, observers=[recorder]) as purgatory:
        op = Op(5)
        (parker,) = await park_in_tasks(purgatory, clock, op)
        awaiter = asyncio.create_task(_wait(op))
        await clock.settle()
        parker.cancel("the client left")
        if second == "a check":
            op.ready = True
            assert purgatory.check_and_complete("a") == 0
        elif second == "fail_for_key":
            assert purgatory.fail_for_key("a", Boom()) == 0
        await clock.settle()
        assert parker.cancelled()
        assert _cancelled(awaiter).reason is None
        assert [event.reason for event in recorder.seen] == [None, None]
        assert op.outcome is Outcome.CANCELLED


def test_the_first_ending_decides_the_reason(room: QuietPurgatory) -> None:
    """A second ``cancel()`` returns False and does not change the reason; a completed operation keeps its result."""
    op, done = Op(5), Op(5, name="done", ready=True)
    room.try_complete_else_watch(op, ["a"])
    room.try_complete_else_watch(done, ["a"])
    assert op.cancel("first")
    assert not op.cancel("second")
    assert not done.cancel("too late")
    assert done.result() == "done"
    with pytest.raises(OperationCancelled, match="reason: 'first'"):
        op.result()


@pytest.mark.parametrize("parked", [True, False])
async def test_a_reason_that_cannot_be_printed_keeps_no_awaiter_waiting(
    purgatory: Purgatory[Op], clock: VirtualClock, parked: bool
) -> None:
    """No code of the reason runs before the awaiters are answered; the message does not contain its repr."""
    op, reason = Op(5), Mute()
    tasks = await park_in_tasks(purgatory, clock, op) if parked else []
    tasks.append(asyncio.create_task(_wait(op)))
    await clock.settle()
    assert op.cancel(reason)
    await clock.settle()
    for task in tasks:
        error = _cancelled(task)
        assert error.reason is reason
        assert "before it completed, reason: an object that cannot be printed" in str(error)


def test_an_event_can_be_made_without_a_reason() -> None:
    """Code that creates events itself need not pass a reason."""
    event = Event(Op(), "test", 1, ("a",), 0, None, None, Outcome.PENDING, None)
    assert event.reason is None
