"""The life of an operation: every way to leave PENDING, once."""

from typing import Any

import pytest

from purgatory import DelayedOperation, OperationCancelled, Outcome, Purgatory, PurgatoryError
from purgatory.core.operation.operation import Operation
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op


def test_a_new_operation_is_pending() -> None:
    """A new operation has no result."""
    op = Op(1.5)
    assert op.outcome is Outcome.PENDING
    assert not op.is_completed
    assert not op.expired
    assert op.timeout == 1.5
    assert op.keys == ()
    with pytest.raises(PurgatoryError, match="no result yet"):
        op.result()


def test_an_operation_without_a_condition_says_what_is_missing() -> None:
    """``try_complete`` must be overridden, and the error states this."""
    with pytest.raises(NotImplementedError, match="override try_complete"):
        DelayedOperation[None](None).try_complete()


def test_without_an_override_the_result_is_none() -> None:
    """An operation that only waits for its condition need not override on_complete."""

    class Bare(DelayedOperation[None]):
        def try_complete(self) -> bool:
            return True

    op = Bare(1)
    assert op.force_complete()
    assert op.result() is None


# The timeout it comes with


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


# The ways out


def test_withdrawing_calls_nothing() -> None:
    """A cancelled operation runs no callback, and its result is OperationCancelled."""
    op = Op(name="gone")
    assert op.cancel()
    assert not op.cancel()
    assert not op.force_complete()
    assert op.outcome is Outcome.CANCELLED
    assert not op.is_completed
    assert op.calls == []
    with pytest.raises(OperationCancelled, match="was cancelled before it completed"):
        op.result()


def test_expiring_calls_on_complete_then_on_expiration() -> None:
    """On expiry, ``on_complete`` runs first and sees ``expired``; then ``on_expiration`` runs."""
    seen: list[Any] = []
    op = Op(1, on_complete=lambda op: seen.append((op.expired, op.is_completed)))
    op.run()
    assert op.calls == ["complete", "expire"]
    assert seen == [(True, True)]
    assert op.outcome is Outcome.EXPIRED
    assert op.is_completed
    assert op.expired
    op.run()
    assert op.calls == ["complete", "expire"]


# Its text


def test_the_repr_of_an_operation_shows_its_state() -> None:
    """The ``repr`` contains class, outcome, keys, timeout and error."""
    op = Op(1.5)
    assert repr(op) == "<Op PENDING timeout=1.5>"
    assert repr(Op(None)) == "<Op PENDING timeout=None>"
    op.cancel()
    assert repr(op) == "<Op CANCELLED timeout=1.5>"


async def test_the_repr_of_a_parked_operation_has_its_keys(clock: VirtualClock) -> None:
    """The ``repr`` of a parked operation contains its keys, and that of a failed one the error."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(2)
        purgatory.try_complete_else_watch(op, ["a", "b"])
        assert op.keys == ("a", "b")
        assert repr(op) == "<Op PENDING on ['a', 'b'] timeout=2>"
        purgatory.fail_for_key("a", Boom("why"))
        assert repr(op) == "<Op FAILED timeout=2 error=Boom('why')>"
        assert op.keys == ()


def test_the_operation_of_the_core_can_be_made_by_itself() -> None:
    """Without the generic class, which takes the same method as its ``__init__``."""
    operation = Operation(1.5)
    assert operation.timeout == 1.5
    assert operation.outcome is Outcome.PENDING
    with pytest.raises(ValueError, match="timeout"):
        Operation(-1)
