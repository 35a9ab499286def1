"""Numbers of every size and kind: each is accepted or refused with a clear error, compiled and interpreted alike."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from purgatory import DelayedOperation, Purgatory, SystemTimer, TimerTask
from purgatory.conditions import AtLeast, Count
from purgatory.core.timer.timer_core import TimerCore
from purgatory.testing import VirtualClock

IN_WORDS = r"must|\bis\b|takes|object expected; got"  # the last one is the compiler's message for a wrong type
NUMBERS = st.one_of(
    st.sampled_from(
        [power + step for power in (0, 2**16, 10**15, 10**18, 2**31, 2**60, 2**63, 2**64) for step in (-1, 0, 1)]
        + [10**400, -(10**400), 10**5000, 0.5, 1e9, 1e15, 1e16, 1e308, -0.5, math.inf, -math.inf, math.nan]
    ),
    st.integers(),
    st.integers(max_value=70_000, min_value=-5),
    st.floats(),
    st.sampled_from([True, "1", None, b"1", 1j, []]),
)


def _int(value: Any) -> bool:
    return type(value) is int


def _real(value: Any) -> bool:
    return type(value) in (int, float)


def _comparable(value: Any) -> bool:
    return _real(value) and abs(value) < 2**1024 - 2**970 if _int(value) else _real(value) and not math.isnan(value)


def _seconds(value: Any) -> bool:
    return _real(value) and 0 <= value <= 1e15


def _closed() -> Purgatory[Any]:
    return Purgatory("test", clock=VirtualClock())


ENTRIES: dict[str, tuple[Callable[[Any], object], Callable[[Any], bool]]] = {
    "delay_ms": (TimerTask, lambda value: isinstance(value, int) and abs(value) <= 10**18),
    "timeout": (DelayedOperation, lambda value: value is None or _seconds(value)),
    "extend": (DelayedOperation(1).extend, lambda value: value is None or _seconds(value)),
    "tick_ms": (lambda value: SystemTimer(tick_ms=value), lambda value: _int(value) and 1 <= value <= 10**15),
    "wheel_size": (lambda value: SystemTimer(wheel_size=value), lambda value: _int(value) and 2 <= value <= 65_536),
    "turn_budget_ms": (
        lambda value: SystemTimer(turn_budget_ms=value),
        lambda value: _real(value) and 0 < value <= 1e9,
    ),
    "threshold": (
        lambda value: _closed().try_complete_else_watch(_Never(None), {"a": value}),
        _comparable,
    ),
    "value": (
        lambda value: _closed().check_and_complete("a", value),
        lambda value: value is None or _comparable(value),
    ),
    "limit": (
        lambda value: _closed().check_and_complete("a", limit=value),
        lambda value: value is None or (_int(value) and value >= 1),
    ),
    "max_parked": (
        lambda value: Purgatory("test", max_parked=value),
        lambda value: value is None or (_int(value) and value >= 1),
    ),
    "max_parked_per_key": (
        lambda value: Purgatory("test", max_parked_per_key=value),
        lambda value: value is None or (_int(value) and value >= 1),
    ),
    "call_later": (lambda value: SystemTimer().call_later(value, print), _seconds),
    "delay": (
        lambda value: SystemTimer().timeout(value),
        lambda value: value is None or (_real(value) and (value == math.inf or abs(value) <= 1e15)),
    ),
    "when": (
        lambda value: SystemTimer().timeout_at(value),
        lambda value: value is None or (_real(value) and (value == math.inf or abs(value) <= 1e15)),
    ),
    "now_ms": (
        lambda value: SystemTimer(clock=VirtualClock()).expire_due(value),
        lambda value: isinstance(value, int) and abs(value) <= 10**18,
    ),
    "n": (lambda value: _closed().hot_keys(value), lambda value: _int(value) and value >= 0),
    "dump": (lambda value: _closed().dump(value), lambda value: value is None or (_int(value) and value >= 0)),
    "at_least": (AtLeast, lambda value: _comparable(value) and math.isfinite(value)),
    "count": (Count, lambda value: _int(value) and value >= 1),
}


class _Never(DelayedOperation[None]):
    def try_complete(self) -> bool:
        return False


@pytest.mark.parametrize("entry", ENTRIES)
@given(NUMBERS)
@example(10**400)
@example(-(10**400))
@example(10**5000)
def test_a_number_is_accepted_or_refused_with_a_clear_error(entry: str, value: Any) -> None:
    """A valid number is accepted; any other raises TypeError or ValueError with the expected value."""
    call, allowed = ENTRIES[entry]
    if allowed(value):
        call(value)
        return
    with pytest.raises((TypeError, ValueError), match=IN_WORDS):
        call(value)


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if ENTRIES[entry][1](10**400) is False])
@pytest.mark.parametrize("digits", [400, 5000])
def test_an_int_beyond_every_float_is_a_value_error(entry: str, digits: int) -> None:
    """A huge int is a number, so the error is a ValueError and not a TypeError."""
    with pytest.raises(ValueError, match=IN_WORDS):
        ENTRIES[entry][0](10**digits)


# Wheels


def _never_fails(error: BaseException, task: TimerTask) -> None:
    raise AssertionError from error


class _Noting(TimerTask):
    """A task that records the time at which it runs."""

    def __init__(self, now: list[int], ran: list[int]) -> None:
        super().__init__(0)
        self.now = now
        self.ran = ran

    def run(self) -> None:
        self.ran.append(self.now[0])


@given(
    st.one_of(st.integers(2, 600), st.sampled_from([512, 1024, 4096])),
    st.sampled_from([1, 7, 1000]),
    st.lists(st.integers(0, 60).flatmap(lambda bits: st.integers(0, min(2**bits, 10**18))), min_size=1, max_size=6),
)
@example(512, 1, [10**18])
@example(2, 1, [10**18, 0, 1])
@example(4096, 1000, [10**18, 10**17])
def test_a_wheel_of_any_size_takes_every_timeout(size: int, tick_ms: int, delays: list[int]) -> None:
    """The longest delay fits a wheel of any size, and each task runs at its deadline, rounded up to the tick."""
    start_ms = 1_000_000
    now, ran = [start_ms], list[int]()
    core = TimerCore(tick_ms, size, start_ms, _never_fails, (Exception,))
    for delay in delays:
        core.schedule(_Noting(now, ran), start_ms + delay, start_ms)
    core._check()
    while (due_ms := core.next_expiration_ms) is not None:
        now[0] = max(now[0], due_ms)
        core.expire_due(now[0])
        core._check()
    deadlines = sorted(start_ms + delay for delay in delays)
    expected = [deadline + -deadline % tick_ms if deadline > start_ms else deadline for deadline in deadlines]
    assert ran == expected


@pytest.mark.slow
def test_the_coarsest_wheel_has_a_bounded_interval() -> None:
    """Two wheels of 65 536 buckets cover 2**32 ticks, and no interval exceeds a machine word."""
    core = TimerCore(10**15, 65_536, 0, _never_fails, (Exception,))
    assert core.wheel.interval_ms == 4 * 10**18
    core.schedule(_Noting([0], []), 10**18, 0)
    assert core.wheel.overflow_wheel is None
    core._check()


async def test_the_longest_timeout_at_the_latest_start_of_a_clock_passes() -> None:
    """The wake-up for the sum of both is requested, so the wait ends at its deadline."""
    clock = VirtualClock(start=1e15)
    async with Purgatory[Any]("test", clock=clock) as purgatory:
        waiting = asyncio.create_task(purgatory.wait_until(lambda: False, key="a", timeout=1e15))
        await clock.settle()
        await clock.advance(1e15)
        await clock.advance(1.0)  # a float of this size is not exact to the millisecond
        assert waiting.done()
        assert await waiting is False
