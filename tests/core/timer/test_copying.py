"""A task or operation has one place on a timer, so it cannot be copied."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import DelayedOperation, Outcome, TimerTask
from tests.helpers import Op, check
from tests.sansio import QuietPurgatory

COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "old pickle": lambda thing: pickle.dumps(thing, protocol=0),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("state", ["new", "parked", "ended"])
def test_an_operation_cannot_be_copied(room: QuietPurgatory, how: str, state: str) -> None:
    """Copying raises a clear TypeError in every state, and the operation is unchanged."""
    op = Op(5)
    if state != "new":
        room.try_complete_else_watch(op, ["a", "b"])
    if state == "ended":
        op.cancel()
    with pytest.raises(TypeError, match=r"^Op must not be copied or pickled: it has one place on a timer"):
        COPIES[how](op)
    if state == "parked":
        check(room, parked=1, watched=2, num_delayed=1)
        assert op.cancel()
    assert op.outcome is (Outcome.PENDING if state == "new" else Outcome.CANCELLED)


@pytest.mark.parametrize("how", COPIES)
def test_a_timer_task_cannot_be_copied(how: str) -> None:
    """A copied task would unlink the neighbors of the original, so copying raises TypeError."""
    with pytest.raises(TypeError, match=r"^TimerTask must not be copied or pickled"):
        COPIES[how](TimerTask(5))


class Portable(DelayedOperation[None]):
    """An operation that defines how it is copied."""

    def __init__(self, timeout: float, order: str) -> None:
        super().__init__(timeout)
        self.order = order

    def __reduce__(self) -> Any:
        return Portable, (self.timeout, self.order)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_a_subclass_may_say_how_it_is_made_anew(how: Callable[[Portable], Portable]) -> None:
    """A subclass that defines ``__reduce__`` can be copied and pickled."""
    made = how(Portable(5.0, "7"))
    assert (made.timeout, made.order, made.outcome) == (5.0, "7", Outcome.PENDING)
