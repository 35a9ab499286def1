"""Detecting that the server is being stopped, before it waits for its requests.

When a server is told to stop, it waits for its open requests and then notifies the application.  Waiting requests would
delay the stop until their deadlines, so the purgatories must be closed when the signal arrives.  There are three ways
to detect a stop:

*   **A signal handler.**  uvicorn (also with ``--workers`` and under gunicorn), gunicorn's own ASGI worker, and
    ``hypercorn --workers 0`` handle SIGTERM and SIGINT in the process that runs the application.  The handler that is
    installed when the application starts is replaced by one that calls the original handler.  Whether the server uses
    ``signal.signal`` or ``loop.add_signal_handler`` makes no difference: ``loop.add_signal_handler`` also installs a
    handler and is driven by the wake-up file descriptor, which is left alone.
*   **Hypercorn's shutdown event.**  The processes that ``hypercorn`` starts do not receive a signal: their parent sets
    an event that they poll.  The event is an argument of the process and is also polled here.
*   **The server itself.**  A server that limits the requests of a worker (``--limit-max-requests``, ``--max-requests``)
    stops without a signal, and so does uvicorn if its ``should_exit`` is set.  :mod:`.servers` describes how such a
    stop is detected.

A signal without a Python handler is left alone, because its default action ends the process at once.  If the
application does not run in the main thread, all signals are left alone, because Python allows signal handlers only in
the main thread.
"""

import asyncio
import contextlib
import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable
from contextvars import Context
from types import FrameType
from typing import Any, Final

from .servers import CallHook, limit_reached, serving_frame, stopping_method

__all__ = ["StopListener"]

_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGBREAK") if hasattr(signal, name))
_POLL: Final = 0.05  # seconds; hypercorn itself polls every 0.1 s


class StopListener:
    """Calls ``callback`` in the running loop when the server is told to stop, from :meth:`start` until :meth:`stop`.

    ``of_lifespan``: whether to find the server that runs the current lifespan.  :meth:`watch` adds another server.
    """

    def __init__(self, callback: Callable[[], object], *, of_lifespan: bool = True) -> None:
        self._callback = callback
        self._of_lifespan = of_lifespan
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handlers: list[_SharedHandler] = []
        self._hooks: list[CallHook] = []
        self._conditions: list[Callable[[], bool]] = []  # Hypercorn's
        self._poll: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Chain the main thread's signal handlers and the server's method, and poll Hypercorn's events."""
        self._loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            self._handlers = [handler for number in _SIGNALS if (handler := _shared_handler(number, self._notify))]
        shutdown_event = _hypercorn_shutdown_event()
        if shutdown_event is not None:
            self._conditions.append(shutdown_event.is_set)
        frame = serving_frame() if self._of_lifespan else None
        if frame is not None:
            self._add(frame)
        if self._conditions:
            self._poll_conditions()

    def watch(self, frame: FrameType) -> None:
        """Also call back when the server whose coroutine has this frame begins to stop."""
        self._add(frame)
        if self._conditions and self._poll is None:
            self._poll_conditions()

    def stop(self) -> None:
        """Restore the original handlers, unless other listeners still use them.  If other code has installed a handler
        in the meantime, that handler stays.
        """
        self._loop = None
        for hook in self._hooks:
            hook.remove(self._notify)
        for handler in self._handlers:
            handler.remove(self._notify)
        self._hooks.clear()
        self._handlers.clear()
        self._conditions.clear()
        if self._poll is not None:
            self._poll.cancel()

    def _add(self, frame: FrameType) -> None:
        if method := stopping_method(frame):
            self._hooks.append(CallHook.add(*method, self._notify))
        elif reached := limit_reached(frame):
            self._conditions.append(reached)

    def _notify(self) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._callback, context=Context())

    def _poll_conditions(self) -> None:
        loop = self._loop
        if loop is None:
            return
        if any(condition() for condition in self._conditions):
            self._callback()
        else:
            self._poll = loop.call_later(_POLL, self._poll_conditions, context=Context())


class _SharedHandler:
    """A signal handler that calls back and then calls the handler that it replaced.

    All listeners share it.  If each installed a handler of its own on top of the others', listeners that do not stop in
    the reverse of the order in which they started would leave their handlers behind, because only the topmost handler
    can be removed.
    """

    def __init__(self, number: int, previous: Callable[[int, FrameType | None], Any]) -> None:
        self.previous = previous
        self.callbacks: dict[Callable[[], object], None] = {}  # in the order of the listeners
        self._number = number

    def __call__(self, number: int, frame: FrameType | None) -> None:
        for callback in reversed(tuple(self.callbacks)):
            callback()
        self.previous(number, frame)

    def remove(self, callback: Callable[[], object]) -> None:
        """Remove a callback.  After the last one, restore the replaced handler, unless other code has installed a
        handler in the meantime: that handler may call this one, which then only calls the handler that it replaced.
        """
        self.callbacks.pop(callback, None)
        installed: object = signal.getsignal(self._number)
        if installed is self and not self.callbacks:
            _set_handler(self._number, self.previous)


def _shared_handler(number: int, callback: Callable[[], object]) -> _SharedHandler | None:
    """Add the callback to the shared handler if that is the installed one; otherwise, install a new one, because other
    code's handler on top of the shared one need not call it.  Return None if there is no Python handler to replace.
    """
    installed = signal.getsignal(number)
    if isinstance(installed, _SharedHandler):
        installed.callbacks[callback] = None
        return installed
    if not callable(installed):
        return None
    handler = _SharedHandler(number, installed)
    handler.callbacks[callback] = None
    _set_handler(number, handler)
    return handler


def _set_handler(number: int, handler: Callable[[int, FrameType | None], Any]) -> None:
    signal.signal(number, handler)
    if hasattr(signal, "siginterrupt"):
        signal.siginterrupt(number, False)  # restart system calls, as the event loops do


def _hypercorn_shutdown_event() -> Any:
    if "hypercorn" not in sys.modules:
        return None
    arguments = getattr(multiprocessing.current_process(), "_kwargs", None) or {}
    event = arguments.get("shutdown_event")
    return event if callable(getattr(event, "is_set", None)) else None
