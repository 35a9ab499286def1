"""The hooks of the core: without an event loop, an error is raised instead of reported."""

import pytest

from purgatory import Outcome
from purgatory.core.hooks import Hooks
from purgatory.core.purgatory import BasePurgatory
from purgatory.core.timer.base_timer import BaseTimer
from purgatory.testing import ManualClock
from tests.helpers import Boom, Op, park


def test_without_an_owner_errors_are_raised() -> None:
    """Each report raises its error; the other hooks do nothing."""
    hooks = Hooks()
    with pytest.raises(Boom):
        hooks.report(Boom(), Op())
    with pytest.raises(Boom):
        hooks.report_observer(Boom(), object())
    with pytest.raises(Boom):
        hooks.report_key(Boom(), "key")
    hooks.check_later("key", None, None)
    hooks.emptied()


def test_a_purgatory_without_hooks_raises_what_it_would_report() -> None:
    """The error of an operation that fails in a check, without an awaiter, reaches the caller of the check."""

    def fail(_: Op) -> None:
        raise Boom

    room = BasePurgatory("test", BaseTimer(1, 20, ManualClock(0)))
    operation = park(room, "key")
    operation.ready = True
    operation._on_complete = fail
    with pytest.raises(Boom):
        room.check_and_complete("key")
    assert operation.outcome is Outcome.FAILED
    room._check()
