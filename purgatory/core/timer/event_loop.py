"""What the core needs to know about the event loop, without importing one: :mod:`purgatory.aio` sets it on import."""

from collections.abc import Callable
from typing import Any, Final

__all__ = ["event_loop"]


class _EventLoop:
    """``running_loop()`` returns the running loop, or raises RuntimeError; ``current_loop()`` returns it or None.

    ``current_task(loop)``: the task that runs in it, or None.
    """

    __slots__ = ("current_loop", "current_task", "running_loop")

    current_loop: Callable[[], Any]
    current_task: Callable[[Any], Any]
    running_loop: Callable[[], Any]


event_loop: Final = _EventLoop()
