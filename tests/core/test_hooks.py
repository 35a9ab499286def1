"""The hooks of the core: without an event loop, an error is raised instead of reported."""

import pytest

from purgatory.core.hooks import Hooks
from tests.helpers import Boom, Op


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
