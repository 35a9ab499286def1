"""Bad arguments of ``when_all`` are refused, nothing is parked, and the futures are unchanged."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import Purgatory, PurgatoryClosed, PurgatoryFull
from purgatory.testing import VirtualClock
from tests.helpers import check, futures


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: 5, TypeError, "iterable of futures"),
        (lambda: asyncio.get_running_loop().create_future(), TypeError, "iterable of futures"),
        (lambda: [5], TypeError, "futures or tasks"),
        (lambda: "ab", TypeError, "futures or tasks"),
    ],
)
async def test_only_futures_are_taken(
    purgatory: Purgatory[Any], make: Callable[[], Any], error: type[Exception], message: str
) -> None:
    """The error states the expected type, and nothing is parked."""
    with pytest.raises(error, match=message):
        purgatory.when_all(make(), 1)
    check(purgatory, submitted=0)


async def test_a_coroutine_is_refused(purgatory: Purgatory[Any]) -> None:
    """A coroutine is refused, because the caller must create and keep its task."""

    async def work() -> None:
        pass

    coroutine = work()
    with pytest.raises(TypeError, match="make a task of a coroutine"):
        purgatory.when_all([coroutine], 1)  # type: ignore[arg-type]
    coroutine.close()


async def test_a_future_of_another_loop_is_refused(purgatory: Purgatory[Any]) -> None:
    """A future of another event loop is refused, because another thread may set it."""
    other = asyncio.SelectorEventLoop()
    try:
        with pytest.raises(ValueError, match="another event loop"):
            purgatory.when_all([other.create_future()], 1)
    finally:
        other.close()


@pytest.mark.parametrize(("timeout", "error"), [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError)])
async def test_bad_timeouts_are_refused(purgatory: Purgatory[Any], timeout: Any, error: type[Exception]) -> None:
    """Bad timeouts are refused as for every operation, and the futures are unchanged."""
    (future,) = futures(1)
    with pytest.raises(error):
        purgatory.when_all([future], timeout)
    assert not future.done()


async def test_a_callback_is_callable(purgatory: Purgatory[Any]) -> None:
    """A callback that is not callable raises at once, not at the deadline."""
    with pytest.raises(TypeError, match="callback"):
        purgatory.when_all(futures(1), 1, 5)  # type: ignore[arg-type]


async def test_a_full_or_closed_purgatory_refuses_futures(clock: VirtualClock) -> None:
    """A full or closed purgatory refuses the operation, and the futures are unchanged."""
    async with Purgatory[Any]("futures", clock=clock, max_parked=1) as purgatory:
        first, second = futures(2)
        purgatory.when_all([first], None)
        with pytest.raises(PurgatoryFull):
            purgatory.when_all([second], None)
        assert not second.done()
    with pytest.raises(PurgatoryClosed):
        purgatory.when_all([second], None)
