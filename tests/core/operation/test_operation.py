"""An operation by itself: its timeout, its delay, and its text."""

import math
from typing import Any

import pytest

from purgatory import Outcome
from purgatory.core.operation.operation import Operation
from purgatory.testing import ManualClock
from tests.helpers import Boom, Op
from tests.sansio import QuietPurgatory, make_purgatory


@pytest.mark.parametrize(
    ("timeout", "delay_ms"), [(None, -1), (0, 0), (0.0001, 1), (0.001, 1), (0.0011, 2), (0.069, 69), (2, 2000)]
)
def test_a_timeout_is_rounded_up(timeout: float | None, delay_ms: int) -> None:
    """A fraction of a millisecond is rounded up; the rounding noise of a float is not."""
    assert Op(timeout).delay_ms == delay_ms


@pytest.mark.parametrize(("timeout", "seconds"), [(None, None), (0, 0.0), (0.0001, 0.001), (2.5, 2.5)])
def test_the_timeout_is_in_seconds(timeout: float | None, seconds: float | None) -> None:
    """A timeout of zero is a deadline; only None means no deadline."""
    assert Op(timeout).timeout == seconds


def test_the_repr_of_an_operation_shows_its_state() -> None:
    """The ``repr`` contains class, outcome, keys, timeout and error."""
    op = Op(1.5)
    assert repr(op) == "<Op PENDING timeout=1.5>"
    assert repr(Op(None)) == "<Op PENDING timeout=None>"
    op.cancel()
    assert repr(op) == "<Op CANCELLED timeout=1.5>"


def test_the_repr_of_a_parked_operation_has_its_keys(room: QuietPurgatory) -> None:
    """The ``repr`` of a parked operation contains its keys, and that of a failed one the error."""
    op = Op(2)
    room.try_complete_else_watch(op, ["a", "b"])
    assert op.keys == ("a", "b")
    assert repr(op) == "<Op PENDING on ['a', 'b'] timeout=2>"
    room.fail_for_key("a", Boom("why"))
    assert repr(op) == "<Op FAILED timeout=2 error=Boom('why')>"
    assert op.keys == ()


def test_the_operation_of_the_core_can_be_made_by_itself() -> None:
    """Without the generic class, which takes the same method as its ``__init__``."""
    operation = Operation(1.5)
    assert operation.timeout == 1.5
    assert operation.outcome is Outcome.PENDING
    with pytest.raises(ValueError, match="timeout"):
        Operation(-1)


def test_a_parked_operation_is_not_initialised_again(room: QuietPurgatory) -> None:
    """It would leave its keys without telling them.  One that has ended, or was never parked, may start over."""
    op = Op(5.0)
    op.__init__(7.0)  # type: ignore[misc]
    room.try_complete_else_watch(op, ["a"])
    with pytest.raises(ValueError, match=r"operation must be new, got <Op PENDING on .*>, which is parked already"):
        op.__init__(9.0)  # type: ignore[misc]
    assert op.timeout == 7.0
    room._check()
    op.cancel()
    op.__init__(9.0)  # type: ignore[misc]
    room.try_complete_else_watch(op, ["a"])
    assert op.timeout == 9.0


def test_an_operation_on_a_timer_is_not_initialised_again() -> None:
    """It would keep its neighbours' links to it without its own, and the closing timer would never find the end."""
    timer = make_purgatory(ManualClock())._core.timer
    op = Op(5.0)
    timer.add(op)
    with pytest.raises(ValueError, match=r"operation must be new, got <Op PENDING .*>, which is on a timer"):
        op.__init__(9.0)  # type: ignore[misc]
    timer._check()
    assert op.cancel()
    op.__init__(9.0)  # type: ignore[misc]
    assert op.timeout == 9.0


def test_the_delay_of_an_operation_is_not_assigned() -> None:
    """``extend`` moves the deadline, and the gauge of the operations with a deadline stays exact."""
    room = make_purgatory(ManualClock())
    new, parked = Op(5.0), Op(None)
    room.try_complete_else_watch(parked, ["a"])
    for op in (new, parked):
        with pytest.raises(AttributeError, match=r"^delay_ms of an operation cannot be assigned: extend\(\) "):
            op.delay_ms = 1000
    assert (new.timeout, parked.timeout) == (5.0, None)
    parked.cancel()
    room._check()
    assert room.num_delayed == 0


@pytest.mark.parametrize("timeout", [-1.0, -0.001, math.nan, math.inf, -math.inf, 1e16])
def test_a_negative_or_infinite_timeout_is_refused(timeout: float) -> None:
    """A timeout must be finite and not negative."""
    with pytest.raises(ValueError, match="timeout must be a number of seconds from 0 to 1e15"):
        Op(timeout)


@pytest.mark.parametrize("timeout", ["1", True, [], 1j])
def test_a_timeout_is_a_number(timeout: Any) -> None:
    """Any other type raises TypeError."""
    with pytest.raises(TypeError, match="timeout must be a number of seconds, got"):
        Op(timeout)


def test_the_longest_timeout() -> None:
    """A timeout of 31 million years is accepted, and the next larger number is refused."""
    assert Op(1e15).delay_ms == 10**18
    with pytest.raises(ValueError, match="timeout must be a number of seconds from 0 to 1e15"):
        Op(math.nextafter(1e15, math.inf))
