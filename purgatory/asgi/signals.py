"""Detecting that the server is being stopped, before it waits for its requests.

When a server is told to stop, it waits for its open requests and then notifies the application.  Waiting requests would
delay it until their deadlines, so the purgatories have to be closed when the signal comes.  There are three ways to
detect it:

*   **A signal handler.**  uvicorn, also with ``--workers`` and under gunicorn, gunicorn's own ASGI worker and
    ``hypercorn --workers 0`` handle SIGTERM and SIGINT in the process that runs the application.  The handler found
    when the application starts is replaced by one that calls it.  Whether the server uses ``signal.signal`` or
    ``loop.add_signal_handler`` makes no difference: the latter installs a handler too, and is driven by the wake-up
    file descriptor, which is left alone.
*   **Hypercorn's shutdown event.**  The processes that ``hypercorn`` starts get no signal: their parent sets an event
    that they poll.  It is an argument of the process, and is polled here as well.
*   **The server itself.**  A server that limits the requests of a worker (``--limit-max-requests``, ``--max-requests``)
    stops without a signal, and so does a uvicorn whose ``should_exit`` is set.  :mod:`.servers` describes how this is
    detected.

A signal without a Python handler is left alone, because its default action ends the process at once.  So is every
signal if the application does not run in the main thread, because Python allows handlers only there.
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
    """From :meth:`start` until :meth:`stop`, calls ``callback`` on the running loop when the server is told to stop."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback
        self._loop: asyncio.AbstractEventLoop | None = None
        self._previous: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._hook: CallHook | None = None
        self._conditions: list[Callable[[], bool]] = []  # of hypercorn
        self._poll: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Chain the signal handlers of the main thread and the server's method, and poll hypercorn's events."""
        self._loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                previous = signal.getsignal(number)
                if callable(previous):
                    self._previous[number] = previous
                    _set_handler(number, self._handle)
        shutdown_event = _hypercorn_shutdown_event()
        if shutdown_event is not None:
            self._conditions.append(shutdown_event.is_set)
        self._watch_server()
        if self._conditions:
            self._poll_conditions()

    def stop(self) -> None:
        """Restore the original handlers.  If other code has installed a handler since then, that handler stays."""
        self._loop = None
        if self._hook is not None:
            self._hook.remove()
        self._conditions.clear()
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._handle:
                _set_handler(number, previous)
        if self._poll is not None:
            self._poll.cancel()

    def _watch_server(self) -> None:
        frame = serving_frame()
        if frame is None:
            return
        if method := stopping_method(frame):
            self._hook = CallHook(*method, self._notify)
        elif reached := limit_reached(frame):
            self._conditions.append(reached)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._notify()
        self._previous[number](number, frame)

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


def _set_handler(number: int, handler: Callable[[int, FrameType | None], Any]) -> None:
    signal.signal(number, handler)
    if hasattr(signal, "siginterrupt"):
        signal.siginterrupt(number, False)  # as the event loops do: restart system calls


def _hypercorn_shutdown_event() -> Any:
    if "hypercorn" not in sys.modules:
        return None
    arguments = getattr(multiprocessing.current_process(), "_kwargs", None) or {}
    event = arguments.get("shutdown_event")
    return event if callable(getattr(event, "is_set", None)) else None
