"""Clocks for tests and simulations, a function that waits until requests are parked, and mocks."""

from purgatory.texts import names_of

from .autospec import create_autospec
from .manual_clock import ManualClock
from .parked import parked
from .virtual_clock import VirtualClock

__all__ = ["ManualClock", "VirtualClock", "create_autospec", "parked"]


def __dir__() -> list[str]:
    return names_of(globals())
