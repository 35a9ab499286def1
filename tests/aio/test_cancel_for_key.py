"""``cancel_for_key``: every operation on a key is withdrawn, at once."""

from typing import Any

import pytest

from purgatory import OperationCancelled, Outcome, Purgatory
from tests.helpers import Op, check, park


async def test_cancelling_a_key_returns_its_operations_in_order(purgatory: Purgatory[Op]) -> None:
    """Every operation on the key is withdrawn, and no other operation."""
    ops = [Op(5) for _ in range(3)]
    other = Op(5)
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a", "b"])
    purgatory.try_complete_else_watch(other, ["b"])
    assert purgatory.cancel_for_key("a") == ops
    assert purgatory.cancel_for_key("a") == []
    assert [op.outcome for op in ops] == [Outcome.CANCELLED] * 3
    check(purgatory, parked=1, watched=1, num_delayed=1, cancelled=3)


async def test_an_unhashable_key_changes_nothing(purgatory: Purgatory[Op]) -> None:
    """TypeError, at once and in slices, before any operation ends."""
    operation = park(purgatory, "a")
    bad: Any = ["unhashable"]
    with pytest.raises(TypeError):
        purgatory.cancel_for_key(bad)
    with pytest.raises(TypeError):
        await purgatory.acancel_for_key(bad)
    assert operation.outcome is Outcome.PENDING
    purgatory.cancel_for_key("a")
    with pytest.raises(OperationCancelled):
        operation.result()
