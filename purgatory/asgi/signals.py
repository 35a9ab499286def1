"""Detecting that the server is being stopped, before it waits for its requests.

When a server is told to stop, it waits for its open requests and then notifies the application.  Waiting requests would
delay the stop until their deadlines, so the purgatories must be closed when the signal arrives.  There are three ways
to detect a stop:

*   **A signal handler.**  uvicorn (also with ``--workers`` and under gunicorn), gunicorn's own ASGI worker, and
    ``hypercorn --workers 0`` handle SIGTERM and SIGINT in the process that runs the application.  The handler that is
    installed when the application starts is replaced by one that calls the original handler.  Whether the server uses
    ``signal.signal`` or ``loop.add_signal_handler`` makes no difference: ``loop.add_signal_handler`` also installs a
    handler and is driven by the wake-up file descriptor, which is left alone.
*   **Hypercorn's shutdown event.**  The processes that ``hypercorn`` starts do not handle SIGTERM: their parent sets an
    event that they poll.  The event is an argument of the process and is also polled here.  But a service manager may
    send the signal to all processes of a service, and the parent, when it stops, sends it to the others as soon as one
    has ended, while these may still be answering.  Its default action would end them at once, so these processes get a
    handler.  It only answers the parked requests, because the parent sets the event, too.  If it does not, or if the
    loop is stuck, the process ends after the time that Hypercorn gives requests to end, and in any other case, for
    example, because of a thread that does not end, after the time that it then gives applications to shut down.
*   **The server itself.**  A server that limits the requests of a worker (``--limit-max-requests``, ``--max-requests``)
    stops without a signal, and so does uvicorn if its ``should_exit`` is set.  :mod:`.servers` describes how such a
    stop is detected.

Any other signal without a Python handler is left alone, because its default action ends the process at once.  If the
application does not run in the main thread, all signals are left alone, because Python allows signal handlers only in
the main thread.
"""

import _thread
import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextvars import Context
from types import FrameType
from typing import Any, Final

from .servers import CallHook, limit_reached, serving_frame, stopping_method

__all__ = ["StopListener"]

_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGBREAK") if hasattr(signal, name))
_POLL: Final = 0.05  # seconds; hypercorn itself polls every 0.1 s
_GRACEFUL: Final = 3.0  # seconds; hypercorn's default
_SHUTDOWN: Final = 60.0  # seconds; hypercorn's default
_LEAST: Final = 1.0  # seconds in which answers are sent, whatever hypercorn's limit
_STUCK: Final = 5.0  # seconds after which a loop without a turn is stuck
_ASKED: Final = 1.0  # seconds between two times that the loop is asked for a reply

_Handler = Callable[[int, FrameType | None], Any]


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
        worker = _HypercornWorker.of_this_process(self._loop, self._conditions)
        if worker is not None:
            self._conditions.append(worker.is_told_to_stop)
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                default = worker.end_later if worker is not None and number == signal.SIGTERM else None
                handler = _shared_handler(number, self._notify, default)
                if handler is not None:
                    self._handlers.append(handler)
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
        self._conditions = []  # not clear(): another listener's handler may still ask the old ones
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
    """A signal handler that calls back and then calls ``previous``, the handler that it replaced.

    ``replaced``: what to restore; the default action, if ``previous`` takes its place.

    All listeners share it.  If each installed a handler of its own on top of the others', listeners that do not stop in
    the reverse of the order in which they started would leave their handlers behind, because only the topmost handler
    can be removed.
    """

    def __init__(self, number: int, previous: _Handler, replaced: _Handler | signal.Handlers) -> None:
        self.previous = previous
        self.replaced = replaced
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
            _set_handler(self._number, self.replaced, like=self.replaced)


def _shared_handler(number: int, callback: Callable[[], object], default: _Handler | None) -> _SharedHandler | None:
    """Add the callback to the shared handler if that is the installed one; otherwise, install a new one, because other
    code's handler on top of the shared one need not call it.  Return None if there is no Python handler to replace.

    ``default``: takes the place of the signal's default action, if there is no handler.
    """
    installed = signal.getsignal(number)
    if isinstance(installed, _SharedHandler):
        installed.callbacks[callback] = None
        return installed
    if callable(installed):
        handler = _SharedHandler(number, installed, installed)
    elif installed is signal.SIG_DFL and default is not None:
        handler = _SharedHandler(number, default, signal.SIG_DFL)
    else:
        return None
    handler.callbacks[callback] = None
    _set_handler(number, handler, like=handler.replaced)
    return handler


def _set_handler(number: int, handler: _Handler | signal.Handlers, *, like: _Handler | signal.Handlers) -> None:
    """Install the handler.  ``like``: treat system calls that the signal interrupts as if this handler were installed.

    The kernel restarts them after the handler of an event loop.  Otherwise, for example, Ctrl-C ends a blocking call.
    """
    signal.signal(number, handler)
    if hasattr(signal, "siginterrupt"):
        of_loop = isinstance(getattr(like, "__self__", None), asyncio.AbstractEventLoop)  # uvloop's
        restarts = of_loop or getattr(like, "__module__", None) == "asyncio.unix_events"
        signal.siginterrupt(number, not restarts)


class _HypercornWorker:
    """This process, which Hypercorn's parent process has started.

    ``is_told_to_stop``: whether the parent process has set the event.  ``conditions``: one of them is true while the
    process is stopping, for whatever reason.  ``config``: Hypercorn's.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        conditions: list[Callable[[], bool]],
        is_told_to_stop: Callable[[], bool],
        config: Any,
    ) -> None:
        self.is_told_to_stop = is_told_to_stop
        self._loop = loop
        self._conditions = conditions
        graceful = getattr(config, "graceful_timeout", None)
        self._graceful: float = max(_LEAST, _GRACEFUL if graceful is None else graceful)  # seconds
        shutdown = getattr(config, "shutdown_timeout", None)
        self._shutdown: float = max(_LEAST, _SHUTDOWN if shutdown is None else shutdown)  # seconds
        self._is_ending = False

    @classmethod
    def of_this_process(
        cls, loop: asyncio.AbstractEventLoop, conditions: list[Callable[[], bool]]
    ) -> "_HypercornWorker | None":
        if "hypercorn" not in sys.modules:
            return None
        arguments = getattr(multiprocessing.current_process(), "_kwargs", None) or {}
        is_set = getattr(arguments.get("shutdown_event"), "is_set", None)
        return cls(loop, conditions, is_set, arguments.get("config")) if callable(is_set) else None

    def end_later(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM: end the process when the requests have had time to end, unless it is stopping by then.

        The event has a lock, which the code that the signal interrupts may hold, so the event is not used here; and
        neither is threading.Thread, which has one, too.
        """
        if not self._is_ending:
            self._is_ending = True
            _thread.start_new_thread(self._end, ())

    def _end(self) -> None:
        """Kill the process if its loop is stuck, or when it has had all the time that Hypercorn gives it.

        Run in a thread of its own.
        """
        time.sleep(self._graceful)
        left = self._shutdown
        while left > 0:
            replied = threading.Event()
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._end_unless_stopping, replied, context=Context())
                if not replied.wait(_STUCK):
                    break
            left -= _ASKED
            time.sleep(_ASKED)
        os.kill(os.getpid(), signal.SIGKILL)

    def _end_unless_stopping(self, replied: threading.Event) -> None:
        replied.set()
        if not any(condition() for condition in self._conditions):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
