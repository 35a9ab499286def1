"""``force_complete``: other code completes an operation, whatever its condition."""

import pytest

from purgatory import Outcome
from tests.helpers import Boom, Op


def test_forcing_completes_once() -> None:
    """The first call completes the operation, the second returns False, and ``on_complete`` ran once."""
    op = Op(name="done")
    assert op.force_complete()
    assert not op.force_complete()
    assert not op.cancel()
    assert not op.extend(5)
    assert op.outcome is Outcome.COMPLETED
    assert op.result() == "done"
    assert op.calls == ["complete"]


def test_a_failing_completion_reaches_the_caller_of_force_complete() -> None:
    """If ``on_complete`` raises, the operation is FAILED with that exception."""

    def boom(_: Op) -> None:
        raise Boom("no")

    op = Op(on_complete=boom)
    with pytest.raises(Boom):
        op.force_complete()
    assert op.outcome is Outcome.FAILED
    assert not op.is_completed
    with pytest.raises(Boom):
        op.result()
    assert not op.force_complete()
    assert op.completions == 1
