"""``result``: the result, or the error that it raises."""

import pytest

from purgatory import Outcome
from purgatory.testing import ManualClock
from tests.helpers import Boom, Op
from tests.sansio import make_purgatory


def test_one_that_raises_in_its_first_try_keeps_its_error() -> None:
    """The result of the operation raises the error that reached the caller."""

    def fail(_: Op) -> None:
        raise Boom

    room = make_purgatory(ManualClock())
    operation = Op(on_try=fail)
    with pytest.raises(Boom):
        room.try_complete_else_watch(operation, ["a"])
    assert operation.outcome is Outcome.FAILED
    with pytest.raises(Boom):
        operation.result()
