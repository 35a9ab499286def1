"""The functions that query the event loop, so that the core need not import asyncio; :mod:`purgatory.aio` sets them."""

from collections.abc import Callable
from typing import Any, Final

__all__ = ["event_loop"]


class _EventLoop:
    """``running_loop()`` returns the running loop or raises RuntimeError; ``current_loop()`` returns the loop or None.

    ``current_task(loop)`` returns the task that is running in the loop, or None.
    """

    __slots__ = ("current_loop", "current_task", "running_loop")

    current_loop: Callable[[], Any]
    current_task: Callable[[Any], Any]
    running_loop: Callable[[], Any]


event_loop: Final = _EventLoop()
