"""Purgatories and timers cannot be copied or pickled, as operations cannot."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import Purgatory, SystemTimer, ThresholdPurgatory
from purgatory.testing import VirtualClock


class Room(Purgatory[Any]):
    """A subclass."""


MAKE: dict[str, Callable[[], Any]] = {
    "Purgatory": lambda: Purgatory[Any]("test", clock=VirtualClock()),
    "Room": lambda: Room("test", clock=VirtualClock()),
    "ThresholdPurgatory": lambda: ThresholdPurgatory("test", clock=VirtualClock()),
    "SystemTimer": lambda: SystemTimer(clock=VirtualClock()),
}


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
@pytest.mark.parametrize("name", MAKE)
def test_copies_are_refused(name: str, how: Callable[[Any], Any]) -> None:
    """The error names the class; a copy would share the operations or the tasks of the original."""
    thing = MAKE[name]()
    with pytest.raises(TypeError, match=rf"^{name} must not be copied or pickled: (?!None).+, so make a new {name}$"):
        how(thing)
