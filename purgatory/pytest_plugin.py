"""Fixtures for testing code that uses a purgatory.  pytest loads this plugin through its entry point.

``virtual_clock``         a :class:`~purgatory.testing.VirtualClock` that starts at 0
``purgatory_leak_check``  fails the test if it leaves operations or tasks parked in a purgatory that it created
"""

import gc
import inspect
from collections.abc import Iterator
from typing import Any, Final

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
def purgatory_leak_check(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test if it leaves operations parked in a purgatory that it created.

    This includes operations of tasks that the test leaves behind, unless a fixture closes the purgatory.  Purgatories
    that existed before the test, or that have become garbage by its end, are not checked.
    """
    before = request.node.stash[_BEFORE] = {id(purgatory) for purgatory in _purgatories()}
    yield
    # A plugin for asynchronous tests has ended the tasks by now, and thereby withdrawn their operations.
    found = {id(left): text for left, text in request.node.stash.get(_LEFT, []) if not _is_closed(left)}
    found |= {id(left): _description(left) for left in _left(before)}
    if found:
        pytest.fail("\n".join(["operations were left parked:", *found.values()]), pytrace=False)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Note what is parked when the test function has returned, before its tasks are cancelled and its loop is closed.

    If the test fails, it cannot be blamed for what it leaves.
    """
    if _BEFORE not in pyfuncitem.stash:
        yield
        return
    function = pyfuncitem.obj

    async def noted(**arguments: Any) -> None:
        await function(**arguments)
        _note(pyfuncitem)

    if inspect.iscoroutinefunction(function):  # for a plugin that closes its loop within this call, such as anyio's
        pyfuncitem.obj = noted
        yield
        pyfuncitem.obj = function
        return
    outcome: Any = yield
    if outcome.excinfo is None:
        _note(pyfuncitem)


def _note(item: pytest.Item) -> None:
    item.stash[_LEFT] = [(left, _description(left)) for left in _left(item.stash[_BEFORE])]


_BEFORE: Final = pytest.StashKey[set[int]]()
_LEFT: Final = pytest.StashKey[list[tuple[Purgatory, str]]]()


def _left(before: set[int]) -> list[Purgatory]:
    """Return the purgatories with parked operations that are not among those from before the test."""
    return [purgatory for purgatory in _purgatories() if id(purgatory) not in before and len(purgatory)]


def _is_closed(purgatory: Purgatory) -> bool:
    return purgatory.closed or purgatory.timer.closed


def _purgatories() -> list[Purgatory]:
    gc.collect()
    # isinstance() is not used: it reads the object's ``__class__``, which may be wrong or may raise if the object is a
    # proxy.
    return [thing for thing in gc.get_objects() if issubclass(type(thing), Purgatory)]


def _description(purgatory: Purgatory) -> str:
    keys = ", ".join(f"{key!r} ({number})" for key, number in purgatory.hot_keys(5))
    return f"  {purgatory!r}, on {keys}"
