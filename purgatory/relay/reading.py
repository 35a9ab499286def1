"""One call to ``refresh``, which reads the state of keys."""

import asyncio
import contextlib
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from purgatory import Clock
from purgatory.core.timer.units import to_seconds

from .addresses import described
from .timing import end_tasks, wait_until

__all__ = ["Refresh", "read"]

Refresh = Callable[[list[Any]], Awaitable[Mapping[Any, object] | None]]
"""Reads the state of the keys and returns what was read, by key; an exception as a value: the key was not read."""

_LOGGER = logging.getLogger("purgatory.relay")


async def read(refresh: Refresh, keys: list[Any], clock: Clock, limit_ms: int) -> Mapping[Any, object] | None:
    """Call ``refresh`` in a separate task, so that it can be cancelled if it takes longer than ``limit_ms``.

    If it swallows its cancellations, it is left behind when twice that time has passed.
    """
    reading = contextvars.Context().run(asyncio.get_running_loop().create_task, _call(refresh, keys))
    try:
        if await wait_until({reading}, clock, clock.ceil_ms() + limit_ms):
            if await end_tasks([reading], clock, limit_ms):
                _LOGGER.error("a call to refresh did not end when it was cancelled and is left behind: %s", reading)
            raise TimeoutError(f"refresh of {len(keys)} keys has not returned within {to_seconds(limit_ms):g} s")
    except asyncio.CancelledError:
        while not reading.done():
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):  # the relay cancels it again if it does not end
                await asyncio.wait([reading])
        if not reading.cancelled():
            reading.exception()  # marks the error as retrieved: nobody needs the read any longer
        raise
    if reading.cancelled():
        raise TimeoutError(f"refresh of {len(keys)} keys was cancelled")
    error = reading.exception()
    if error is not None and not isinstance(error, Exception):
        raise RuntimeError(f"refresh of {len(keys)} keys was interrupted") from error  # the loop raised the error
    return reading.result()


async def _call(refresh: Refresh, keys: list[Any]) -> Mapping[Any, object] | None:
    reading: Any = refresh(keys)
    if not inspect.isawaitable(reading):
        raise TypeError(f"refresh must be 'async def', or return an awaitable, got {described(refresh)}")
    found = await reading
    if found is not None and not isinstance(found, Mapping):
        raise TypeError(f"refresh must return a mapping of keys to values, or None, got {described(found)}")
    return found
