"""Clocks for tests and simulations, and a function that waits until requests are parked."""

from purgatory.texts import names_of

from .manual_clock import ManualClock
from .parked import parked
from .virtual_clock import VirtualClock

__all__ = ["ManualClock", "VirtualClock", "parked"]


def __dir__() -> list[str]:
    return names_of(globals())
