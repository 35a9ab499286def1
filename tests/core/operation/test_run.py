"""``run``: the call of the timer, which may be made by hand."""

import pytest

from purgatory import DelayedOperation, Outcome
from purgatory.testing import ManualClock
from tests.helpers import Boom, Op
from tests.sansio import make_purgatory, pass_time


def _fail(_: Op) -> None:
    raise Boom


def test_the_error_of_on_complete_stays_in_an_operation_run_by_hand() -> None:
    """``run`` is called by the timer, so the operation keeps the error."""
    op = Op(5, on_complete=_fail)
    op.run()
    assert op.outcome is Outcome.FAILED
    with pytest.raises(Boom):
        op.result()


@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt])
def test_without_a_purgatory_the_error_of_on_expiration_reaches_the_caller(error: type[BaseException]) -> None:
    """Without a purgatory there is no handler, so the error is raised; the operation is still expired."""

    def fail(_: Op) -> None:
        raise error

    op = Op(5, name="x", on_expiration=fail)
    with pytest.raises(error):
        op.run()
    assert op.outcome is Outcome.EXPIRED
    assert op.result() == "x"


class Runner(DelayedOperation[str]):
    """An operation of a job, with a method of its own that has the name of the timer's."""

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self.ran = 0

    def run(self) -> None:
        self.ran += 1

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> str:
        return "late"


def test_an_operation_with_a_method_run_expires() -> None:
    """The timer does not call that method, which belongs to the subclass."""
    clock = ManualClock()
    room = make_purgatory(clock)
    op = Runner(5.0)
    room.try_complete_else_watch(op, ["a"])
    pass_time(clock, room, 5000)
    assert op.outcome is Outcome.EXPIRED
    assert op.result() == "late"
    assert op.ran == 0
