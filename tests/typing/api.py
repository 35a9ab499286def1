"""What a type checker must understand of the public surface; read by mypy, never run."""

import asyncio
from collections.abc import Callable
from typing import NoReturn, assert_type

from purgatory import (
    DelayedOperation,
    Event,
    Observer,
    Outcome,
    Purgatory,
    PurgatoryFull,
    Quantiles,
    Statistics,
    SystemTimer,
    TimerTask,
    TimingWheel,
)
from purgatory.clock import Clock
from purgatory.testing import VirtualClock


class Fetch(DelayedOperation[bytes]):
    def __init__(self, data: bytes) -> None:
        super().__init__(1.5)
        self.data = data

    def try_complete(self) -> bool:
        return bool(self.data)

    def on_complete(self) -> bytes:
        return self.data


class Count(DelayedOperation[int]):
    def try_complete(self) -> bool:
        return self.force_complete()

    def on_complete(self) -> int:
        return 5


class Listener(Observer):
    def completed(self, event: Event) -> None:
        assert_type(event.wait, float | None)
        assert_type(event.outcome, Outcome)


async def operations() -> None:
    fetch = Fetch(b"")
    assert_type(await fetch, bytes)
    assert_type(fetch.result(), bytes)
    assert_type(fetch.outcome, Outcome)
    assert_type(fetch.extend(None), bool)
    assert_type(fetch.cancel(), bool)
    assert_type(fetch.timeout, float | None)


async def rooms() -> None:
    async with Purgatory[Fetch]("fetch", max_parked=5, observers=[Listener()]) as purgatory:
        assert_type(purgatory, Purgatory[Fetch])
        assert_type(await purgatory.park(Fetch(b""), ["a", ("b", 1)]), bytes)
        assert_type(await purgatory.park(Count(None), {"a": 1500}), int)
        assert_type(purgatory.try_complete_else_watch(Fetch(b""), iter(["a"])), bool)
        assert_type(purgatory.check_and_complete("a"), int)
        assert_type(purgatory.check_and_complete("a", 17.5), int)
        assert_type(purgatory.cancel_for_key("a"), list[Fetch])
        assert_type(purgatory.fail_for_key("a", PurgatoryFull("full")), int)
        assert_type(await purgatory.wait_until(list, keys=["a"], timeout=None), bool)
        assert_type(purgatory.statistics(), Statistics)
        assert_type(purgatory.statistics().wait, Quantiles)
        assert_type(purgatory.watched + purgatory.num_delayed + len(purgatory), int)
        assert_type(purgatory.timer, SystemTimer)
        purgatory.try_complete_else_watch(Count(None), ["a"])  # type: ignore[arg-type]
        purgatory.try_complete_else_watch(Fetch(b""), [[]])  # type: ignore[list-item]
        await purgatory.park("fetch", ["a"])  # type: ignore[arg-type]
        await purgatory.aclose(grace=1.5)


async def timers(clock: Clock) -> None:
    async with SystemTimer(tick_ms=7, wheel_size=5, clock=clock, turn_budget_ms=0.5) as timer:
        assert_type(timer, SystemTimer)
        assert_type(timer.call_later(1, print, "x"), TimerTask)
        assert_type(timer.fail_after(1), asyncio.Future[NoReturn])
        assert_type(timer.expire_due(5), int)
        assert_type(await timer.advance_clock(), int)
        assert_type(timer.next_expiration_ms, int | None)
        assert_type(timer.wheel, TimingWheel)
        assert_type(timer.wheel.overflow_wheel, TimingWheel | None)
        assert_type(TimerTask(5).expiration_ms, int | None)


async def virtual() -> None:
    clock = VirtualClock(5)
    assert_type(clock.time(), float)
    assert_type(await clock.advance_to_next(), bool)
    callback: Callable[[], object] = list
    clock.call_at(5, callback).cancel()
