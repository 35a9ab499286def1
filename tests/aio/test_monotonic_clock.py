"""A clock that moves in steps, as that of Windows does before Python 3.13."""

import asyncio
import math
import time
from collections.abc import Iterator
from typing import Any

import pytest

from purgatory import Outcome, Purgatory
from purgatory.types import Alarm, MonotonicClock
from tests.helpers import Op

STEP = 1 / 64


def coarse() -> float:
    """Return the time of the last step."""
    return math.floor(time.monotonic() / STEP) * STEP


class CoarseLoop(asyncio.SelectorEventLoop):
    """A loop with this clock.  It calls what is due before the next step at once, as asyncio does on Windows."""

    def __init__(self) -> None:
        super().__init__()
        self._clock_resolution = STEP
        self.turns = 0

    def time(self) -> float:
        """Return the time of the last step."""
        return coarse()

    def _run_once(self) -> None:
        self.turns += 1
        super()._run_once()  # type: ignore[misc]  # not in the type stubs


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[CoarseLoop]:
    """Return a loop, and let the library read the same clock."""
    monkeypatch.setattr(MonotonicClock, "_monotonic", staticmethod(coarse))
    with asyncio.Runner(loop_factory=CoarseLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, CoarseLoop)
        yield loop


@pytest.mark.parametrize("timeout_ms", [1, 15, 16, 40])
def test_a_deadline_is_not_early_on_this_clock(loop: CoarseLoop, timeout_ms: int) -> None:
    """The request expires with the first step after its deadline, and the loop does not spin until then."""

    async def expire() -> tuple[float, int]:
        async with Purgatory[Any]("test") as purgatory:
            began, turns = coarse(), loop.turns
            await purgatory.park(operation, key="key")
            return coarse() - began, loop.turns - turns

    operation = Op(timeout_ms / 1000)
    took, turns = loop.run_until_complete(expire())
    assert operation.outcome is Outcome.EXPIRED
    assert took >= timeout_ms / 1000
    assert turns < 60


async def test_a_test_that_freezes_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """freezegun replaces ``time.monotonic`` while operations wait; the clock keeps its only source."""
    clock, future = MonotonicClock(), 1e9
    read = clock.reader()
    monkeypatch.setattr(time, "monotonic", lambda: future)
    assert max(clock.now_ms() / 1000, clock.ceil_ms() / 1000, clock.time(), read()) < future
    assert read is clock.reader()


async def test_the_usual_clock_wakes_and_can_be_cancelled() -> None:
    """Its wake-ups are an interpreted subclass of Alarm, as are those of a user's clock."""

    class Silent(Alarm):
        def cancel(self) -> None:
            pass

    Silent(None).cancel()
    rang: list[str] = []
    woken = asyncio.Event()
    clock = MonotonicClock()
    clock.call_at(clock.now_ms(), lambda: rang.append("cancelled")).cancel()
    clock.call_at(clock.now_ms(), woken.set)
    await woken.wait()
    assert rang == []
