"""The event loop of a purgatory, which may run in another thread."""

import asyncio
from typing import Any

from purgatory import Purgatory

__all__ = ["other_loop"]


def other_loop(room: Purgatory[Any]) -> asyncio.AbstractEventLoop | None:
    """Return the purgatory's running loop, or None if it runs in this thread or is not running."""
    loop: asyncio.AbstractEventLoop | None = room.timer._loop
    if loop is None or not loop.is_running():
        return None
    try:
        return None if loop is asyncio.get_running_loop() else loop
    except RuntimeError:  # no loop is running in this thread
        return loop
