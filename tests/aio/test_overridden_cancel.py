"""A task that leaves ``park`` withdraws its operation, even if its class overrides ``cancel``."""

import asyncio
from typing import Any

import pytest

from purgatory import Outcome, Purgatory
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, Recorder, check, park_in_tasks


def _raises(op: Op) -> bool:
    raise Boom


def _takes_an_argument(op: Op, order: int) -> bool:
    raise AssertionError("it is called without one")


def _only_counts(op: Op) -> bool:
    return False


def _returns_nothing(op: Op) -> None:
    Op.cancel(op)


async def _awaits(op: Op) -> bool:
    raise AssertionError("it is not awaited")


@pytest.mark.parametrize(
    ("override", "error"),
    [
        (_raises, Boom),
        (_takes_an_argument, TypeError),
        (_awaits, TypeError),
        (None, TypeError),
        (_only_counts, None),
        (_returns_nothing, None),
    ],
)
async def test_an_overridden_cancel_cannot_keep_an_operation_parked(
    purgatory: Purgatory[Op],
    clock: VirtualClock,
    reported: list[dict[str, Any]],
    override: Any,
    error: type[BaseException] | None,
) -> None:
    """The operation is withdrawn, the task receives its CancelledError, and the error of the override is reported."""
    op = type("Overriding", (Op,), {"cancel": override})(5)
    (task,) = await park_in_tasks(purgatory, clock, op)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert op.outcome is Outcome.CANCELLED
    check(purgatory, parked=0, watched=0, num_delayed=0, cancelled=1)
    assert [(type(context["exception"]), context["operation"]) for context in reported] == ([(error, op)] * bool(error))


async def test_an_interrupt_in_an_overridden_cancel_propagates(
    purgatory: Purgatory[Op], clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """The operation is withdrawn first."""

    class Interrupted(Op):
        def cancel(self, reason: Any = None) -> bool:
            raise KeyboardInterrupt

    op = Interrupted(5)
    coroutine = purgatory.park(op, ["a"])
    coroutine.send(None)
    with pytest.raises(KeyboardInterrupt):
        coroutine.throw(asyncio.CancelledError)
    assert op.outcome is Outcome.CANCELLED
    check(purgatory, parked=0, watched=0, num_delayed=0, cancelled=1)
    assert reported == []


@pytest.mark.parametrize("raises", [False, True])
async def test_an_overridden_cancel_that_completes_the_operation_gives_its_result_back(
    purgatory: Purgatory[Op], clock: VirtualClock, reported: list[dict[str, Any]], raises: bool
) -> None:
    """The outcome stands, the task receives its CancelledError, and ``on_abandoned`` receives the result once."""

    class Completing(Op):
        def cancel(self, reason: Any = None) -> bool:
            self.force_complete()
            if raises:
                raise Boom
            return True

    given_back: list[Any] = []
    op = type("Returned", (Completing,), {"on_abandoned": lambda self, result: given_back.append(result)})(5, name="x")
    (task,) = await park_in_tasks(purgatory, clock, op)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert op.outcome is Outcome.COMPLETED
    assert given_back == ["x"]
    assert len(reported) == raises
    check(purgatory, parked=0, completed=1)


async def test_an_overridden_cancel_is_called_once_and_only_while_the_operation_waits(
    purgatory: Purgatory[Op], clock: VirtualClock
) -> None:
    """An override that works is honoured; it is not called for an operation that has failed."""
    calls: list[Op] = []

    class Counting(Op):
        def cancel(self, reason: Any = None) -> bool:
            calls.append(self)
            return super().cancel("left")

    observer = Recorder()
    async with Purgatory[Op]("observed", clock=clock, observers=[observer]) as observed:
        waiting, failed = Counting(5), Counting(5)
        tasks = [asyncio.create_task(observed.park(op, [key])) for op, key in zip((waiting, failed), "ab", strict=True)]
        await clock.settle()
        tasks[0].cancel()
        observed.fail_for_key("b", Boom())
        assert [type(end) for end in await asyncio.gather(*tasks, return_exceptions=True)] == [
            asyncio.CancelledError,
            Boom,
        ]
    assert calls == [waiting]
    assert [event.reason for event in observer.seen if event.outcome is Outcome.CANCELLED] == ["left"]


async def test_a_coroutine_from_an_overridden_cancel_is_reported(
    purgatory: Purgatory[Any], clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """The error names the method, and the operation has ended."""

    class Later(Op):
        async def cancel(self) -> bool:  # type: ignore[override]
            return True

    op = Later(None)
    (waiting,) = await park_in_tasks(purgatory, clock, op)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert op.outcome is Outcome.CANCELLED
    (context,) = reported
    said = "Later.cancel() must return whether it ended the operation, got a coroutine"
    assert str(context["exception"]).startswith(said)
