"""Fixtures for testing code that uses a purgatory.  pytest loads this plugin through its entry point.

``virtual_clock``         a :class:`~purgatory.testing.VirtualClock` that starts at 0
``purgatory_leak_check``  fails the test if it leaves operations parked in a purgatory that it created
"""

import gc
from collections.abc import Iterator

import pytest

from .aio.purgatory import Purgatory
from .installation import require_sole_package
from .testing import VirtualClock

__all__ = ["purgatory_leak_check", "virtual_clock"]

require_sole_package()


@pytest.fixture
def virtual_clock() -> VirtualClock:
    """Return a clock that only ``await virtual_clock.advance(seconds)`` moves."""
    return VirtualClock()


@pytest.fixture
def purgatory_leak_check() -> Iterator[None]:
    """Fail the test if it leaves operations parked in a purgatory that it created.

    Purgatories that existed before the test, or that have become garbage by its end, are not checked.
    """
    before = {id(purgatory) for purgatory in _purgatories()}
    yield
    left = [purgatory for purgatory in _purgatories() if id(purgatory) not in before and len(purgatory)]
    if left:
        described = "\n".join(_description(purgatory) for purgatory in left)
        pytest.fail(f"operations were left parked:\n{described}", pytrace=False)


def _purgatories() -> list[Purgatory]:
    gc.collect()
    # isinstance() is not used: it reads the object's ``__class__``, which may be wrong or may raise if the object is a
    # proxy.
    return [thing for thing in gc.get_objects() if issubclass(type(thing), Purgatory)]


def _description(purgatory: Purgatory) -> str:
    keys = ", ".join(f"{key!r} ({number})" for key, number in purgatory.hot_keys(5))
    return f"  {purgatory!r}, on {keys}"
