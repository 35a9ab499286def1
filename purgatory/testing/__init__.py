"""Clocks for tests and simulations."""

from .manual_clock import ManualClock
from .virtual_clock import VirtualClock

__all__ = ["ManualClock", "VirtualClock"]
