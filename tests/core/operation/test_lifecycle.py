"""The life of an operation: every way to leave PENDING, once."""

import pytest

from purgatory import DelayedOperation, OperationCancelled, Outcome, PurgatoryError
from tests.helpers import Op


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
