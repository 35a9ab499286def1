"""Checks that an interrupt has postponed run in the next turn of the loop, with their value and their limit."""

import asyncio
import logging
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from purgatory import Outcome, Purgatory
from purgatory.testing import VirtualClock
from tests.helpers import Op, park

REQUEST: ContextVar[str] = ContextVar("REQUEST", default="none")


def interrupt_once(operation: Op) -> None:
    """Raise KeyboardInterrupt at the first try after the operation is parked."""
    if operation.calls.count("try") == 2:
        raise KeyboardInterrupt


def waiting(purgatory: Purgatory[Any], thresholds: list[int], **arguments: Any) -> list[Op]:
    """Park operations whose condition holds at the next check that reaches their threshold."""
    operations = [Op(name=str(number), **arguments) for number in range(len(thresholds))]
    for operation, threshold in zip(operations, thresholds, strict=True):
        purgatory.try_complete_else_watch(operation, {"key": threshold})
        operation.ready = True
    return operations


def completed(operations: list[Op]) -> list[int]:
    """Return the indices of the operations that are complete."""
    return [index for index, operation in enumerate(operations) if operation.outcome is Outcome.COMPLETED]


@pytest.mark.parametrize("limit", [None, 1, 3])
async def test_a_postponed_check_has_its_value_and_its_limit(
    purgatory: Purgatory[Any], clock: VirtualClock, limit: int | None
) -> None:
    """Only operations that the value reaches are tried, and no more complete than the limit allows."""
    operations = waiting(purgatory, [1, 20, 2, 3])
    operations[0]._on_try = interrupt_once
    begin = park(purgatory, "begin", on_complete=lambda _: purgatory.check_and_complete("key", 7, limit=limit))
    begin.ready = True
    with pytest.raises(KeyboardInterrupt):
        purgatory.check_and_complete("begin")
    assert completed(operations) == []
    await clock.settle()
    assert completed(operations) == [0, 2, 3][:limit]
    assert operations[1].calls == ["try"]
    purgatory.cancel_for_key("key")


@pytest.mark.parametrize("limit", [None, 2])
async def test_it_runs_in_an_empty_context(purgatory: Purgatory[Any], clock: VirtualClock, limit: int | None) -> None:
    """The turn in which it runs belongs to no request."""
    seen: list[str] = []
    operations = waiting(purgatory, [1, 2], on_complete=lambda _: seen.append(REQUEST.get()))
    operations[0]._on_try = interrupt_once
    begin = park(purgatory, "begin", on_complete=lambda _: purgatory.check_and_complete("key", 7, limit=limit))
    begin.ready = True
    context = copy_context()
    context.run(REQUEST.set, "A")
    with pytest.raises(KeyboardInterrupt):
        context.run(purgatory.check_and_complete, "begin")
    await clock.settle()
    assert seen == ["none", "none"]


def test_where_no_loop_runs_there_is_no_next_turn(caplog: pytest.LogCaptureFixture) -> None:
    """The interrupt propagates, the operations stay parked, and nothing is reported."""
    purgatory = Purgatory[Any]("test")
    operations = waiting(purgatory, [1, 2])
    operations[0]._on_try = interrupt_once
    begin = park(purgatory, "begin", on_complete=lambda _: purgatory.check_and_complete("key", 7))
    begin.ready = True
    with caplog.at_level(logging.INFO), pytest.raises(KeyboardInterrupt):
        purgatory.check_and_complete("begin")
    assert len(purgatory) == 2
    assert not caplog.records
    purgatory._check()


async def test_a_queued_key_that_raises_is_reported_by_name(
    purgatory: Purgatory[Any], reported: list[dict[str, Any]]
) -> None:
    """The report names the purgatory and contains the key; the check of the other key runs."""

    class Key:
        broken = False

        def __hash__(self) -> int:
            if self.broken:
                raise ValueError("no hash")
            return 1

    key = Key()
    other = park(purgatory, "other")

    def check_both(_: Op) -> None:
        purgatory.check_and_complete(key)
        key.broken = True
        purgatory.check_and_complete("other")

    begin = park(purgatory, "begin", on_complete=check_both)
    begin.ready = other.ready = True
    assert purgatory.check_and_complete("begin") == 2
    await asyncio.sleep(0)
    (context,) = reported
    assert context["message"] == "a key of purgatory 'test' raised, and its check was left out"
    assert context["key"] is key
    assert str(context["exception"]) == "no hash"
