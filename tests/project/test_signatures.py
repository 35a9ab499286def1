"""The signatures that ``help()``, editors and ``unittest.mock`` read, also where the core is compiled."""

import inspect
from collections.abc import Callable
from typing import Any
from unittest.mock import create_autospec

import pytest

import purgatory
from purgatory import DelayedOperation, Purgatory, SystemTimer, TimerTask, TimingWheel

PLAIN = (BaseException, purgatory.Observer)  # classes of Python itself, and a protocol without a constructor


def methods(kind: type) -> dict[str, Callable[..., Any]]:
    """Return the public methods of a class that this project defines."""
    return {
        name: getattr(kind, name)
        for name in dir(kind)
        if not name.startswith("_") and inspect.isroutine(getattr(kind, name))
    }


@pytest.mark.parametrize("name", [name for name in purgatory.__all__ if inspect.isclass(getattr(purgatory, name))])
def test_public_classes_have_signatures(name: str) -> None:
    """The constructor and each method name their parameters, and none is ``(*args, **kwargs)``."""
    kind = getattr(purgatory, name)
    if issubclass(kind, PLAIN):
        return
    for called, function in {name: kind, **methods(kind)}.items():
        kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds or kind is purgatory.Outcome, called


def test_signatures_have_the_names_and_defaults() -> None:
    """They are those of the source."""
    assert list(inspect.signature(Purgatory.park).parameters)[:3] == ["self", "operation", "keys"]
    assert list(inspect.signature(TimerTask).parameters) == ["delay_ms"]
    assert list(inspect.signature(DelayedOperation).parameters) == ["timeout"]
    wheel = inspect.signature(TimingWheel).parameters
    assert (wheel["tick_ms"].default, wheel["wheel_size"].default) == (1, 20)
    check = inspect.signature(Purgatory.check_and_complete).parameters
    assert list(check) == ["self", "key", "value", "limit"]
    assert check["limit"].kind is inspect.Parameter.KEYWORD_ONLY
    assert check["value"].default is None


def test_an_automatic_mock_checks_arguments() -> None:
    """``unittest.mock`` refuses calls that constructors, and methods that are Python functions, would refuse."""
    with pytest.raises(TypeError):
        create_autospec(Purgatory)()
    with pytest.raises(TypeError):
        create_autospec(SystemTimer)("name")
    room = create_autospec(Purgatory, instance=True)
    for call in (room.changes, room.park, room.wait_until, room.wait_value, room.check_soon, room.check_threadsafe):
        with pytest.raises(TypeError):
            call()
