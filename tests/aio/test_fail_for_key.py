"""``fail_for_key``: every operation on a key fails with an error, at once."""

from typing import Any

import pytest

from purgatory import Outcome, Purgatory
from tests.helpers import Boom, Op, check, park


async def test_failing_a_key_gives_every_task_the_exception(purgatory: Purgatory[Op]) -> None:
    """``fail_for_key`` fails every operation on the key and returns their number."""
    ops = [Op(5) for _ in range(3)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
    assert purgatory.fail_for_key("a", Boom("all")) == 3
    assert purgatory.fail_for_key("a", Boom("none")) == 0
    for op in ops:
        assert op.outcome is Outcome.FAILED
        with pytest.raises(Boom, match="all"):
            op.result()
    check(purgatory, parked=0, failed=3)


@pytest.mark.parametrize("error", ["text", Boom, KeyboardInterrupt()])
async def test_an_error_that_is_no_exception_changes_nothing(purgatory: Purgatory[Op], error: Any) -> None:
    """TypeError, at once and in slices, before any operation ends."""
    operation = park(purgatory, "a")
    with pytest.raises(TypeError, match="error must be an instance of Exception"):
        purgatory.fail_for_key("a", error)
    with pytest.raises(TypeError, match="error must be an instance of Exception"):
        await purgatory.afail_for_key("a", error)
    assert operation.outcome is Outcome.PENDING
