"""Fixtures for the tests of servers that wait in a purgatory.  Floor 5; loaded by pytest on its own.

``virtual_clock``         a :class:`~purgatory.testing.VirtualClock` that starts at 0
``purgatory_leak_check``  fails the test if a purgatory that was made in it still has operations parked at its end
"""

import gc
from collections.abc import Iterator

import pytest

from .purgatory import Purgatory
from .testing import VirtualClock

__all__ = ["purgatory_leak_check", "virtual_clock"]


@pytest.fixture
def virtual_clock() -> VirtualClock:
    """A clock that stands still until ``await virtual_clock.advance(seconds)`` moves it."""
    return VirtualClock()


@pytest.fixture
def purgatory_leak_check() -> Iterator[None]:
    """Fail the test if it leaves operations parked in a purgatory that it made.

    Purgatories that were there before, and those that are garbage by the end, are left alone.
    """
    before = {id(purgatory) for purgatory in _purgatories()}
    yield
    left = [purgatory for purgatory in _purgatories() if id(purgatory) not in before and len(purgatory)]
    if left:
        told = "\n".join(_tell(purgatory) for purgatory in left)
        pytest.fail(f"operations were left parked:\n{told}", pytrace=False)


def _purgatories() -> list[Purgatory]:  # type: ignore[type-arg]
    gc.collect()
    return [thing for thing in gc.get_objects() if isinstance(thing, Purgatory)]


def _tell(purgatory: Purgatory) -> str:  # type: ignore[type-arg]
    keys = ", ".join(f"{key!r} ({number})" for key, number in purgatory.hot_keys(5))
    return f"  {purgatory!r}, on {keys}"
