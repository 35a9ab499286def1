"""Wait on the purgatory's clock, so that a virtual clock also drives the relay."""

import asyncio
import functools
import random
from collections.abc import Iterable
from typing import Any, Final

from purgatory import Clock
from purgatory.aio.exact_alarm import ExactAlarm
from purgatory.core.timer.units import ceil_ms

__all__ = ["backoff_ms", "end_tasks", "new_jitter", "seconds_ms", "sleep_ms", "together_ms", "wait_until", "wake"]

_SHORTEST_MS: Final = 50
_LONGEST_MS: Final = 5_000
_LAST_TURNS: Final = 5  # enough for a cancelled task to end if it waits for nothing


def seconds_ms(value: Any, name: str) -> int:
    """Return a duration in whole milliseconds, rounded up.

    Raises TypeError or ValueError unless the duration is a number above 0.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, got {value!r}")
    if not 0 < value <= 1e9:
        raise ValueError(f"{name} must be a number of seconds above 0, got {value!r}")
    return max(1, ceil_ms(value))


def backoff_ms(failures: int, jitter: random.Random) -> int:
    """Return the pause after this many failures in a row: the pause doubles each time, up to 5 s, and is shortened at
    random by at most half.
    """
    return max(1, round(_longest_ms(failures) * (0.5 + jitter.random() / 2)))


def _longest_ms(failures: int) -> int:
    return min(_SHORTEST_MS << min(failures, 16), _LONGEST_MS)


def together_ms(failures: int, now_ms: int, phase_ms: int) -> int:
    """Return when a pause ends if pauses of the same length end together.

    They end at the multiples of half of their length, shifted by ``phase_ms``.
    """
    half_ms = _longest_ms(failures) // 2
    return now_ms + half_ms + (phase_ms - now_ms) % half_ms


def wake(waiter: "asyncio.Future[None]") -> None:
    """End a wait; do nothing if it has already ended."""
    if not waiter.done():
        waiter.set_result(None)


def new_jitter(seed: str) -> random.Random:
    """Return a random number generator that spreads the retries of many workers over time."""
    return random.Random(seed)  # noqa: S311


async def sleep_ms(clock: Clock, delay_ms: int) -> None:
    """Sleep for ``delay_ms`` on the given clock, which may call back early."""
    until_ms = clock.ceil_ms() + delay_ms
    while clock.now_ms() < until_ms:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        alarm = clock.call_at(until_ms, functools.partial(wake, woken))
        try:
            await woken
        finally:
            alarm.cancel()


async def end_tasks(tasks: "Iterable[asyncio.Task[Any]]", clock: Clock, limit_ms: int) -> "set[asyncio.Task[Any]]":
    """Cancel the tasks, and wait at most ``limit_ms`` until they have ended; return the tasks that have not ended.

    If a task swallows its cancellation, as client libraries sometimes do, it is cancelled repeatedly.
    """
    pending = {task for task in tasks if not task.done()}
    until_ms = clock.ceil_ms() + limit_ms
    while pending:
        for task in pending:
            task.cancel()
        pending = await wait_until(pending, clock, min(until_ms, clock.ceil_ms() + max(1, limit_ms // 8)))
        if clock.now_ms() >= until_ms:
            for _ in range(_LAST_TURNS):  # the process may have been stopped until now
                await asyncio.sleep(0)
            break
    return {task for task in pending if not task.done()}


async def wait_until(pending: "set[asyncio.Task[Any]]", clock: Clock, until_ms: int) -> "set[asyncio.Task[Any]]":
    """Wait until the tasks have ended or the time has come; return the tasks that have not ended."""
    limit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    alarm = ExactAlarm(clock, until_ms, functools.partial(wake, limit))
    try:
        while pending and not limit.done():
            await asyncio.wait({*pending, limit}, return_when=asyncio.FIRST_COMPLETED)
            # The result of wait() is not used, because more tasks may have ended in the meantime.
            ended = {task for task in pending if task.done()}
            for task in ended:
                if not task.cancelled():
                    task.exception()  # marks the error as retrieved: the task was cancelled, so it does not matter
            pending = pending - ended
    finally:
        alarm.cancel()
    return pending
