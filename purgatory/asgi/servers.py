"""Detecting that the server is stopping even though it received no signal.

A server stops without a signal if a worker has served its maximum number of requests, or if code sets uvicorn's
``should_exit``.

ASGI does not pass the server to the application, so :func:`serving_frame` finds it.  Each server creates an object for
the lifespan protocol.  A method of this object runs the application's lifespan in a task, while a coroutine of the
server waits until the application has started:

==================  =================================  ==================================================
server              calls the application              waits
==================  =================================  ==================================================
uvicorn             ``LifespanOn.main``                ``Server.serve``; the object is ``self.lifespan``
gunicorn's worker   ``LifespanManager._run_lifespan``  ``ASGIWorker._serve``; it is ``self.lifespan``
hypercorn           ``Lifespan.handle_lifespan``       ``worker_serve``; it is the variable ``lifespan``
==================  =================================  ==================================================

The object must be the same in both columns, so that another server in the same event loop is not mistaken for this one.
The variables of other frames are not read.  A request does not contain a reference to its server, so
:class:`ServerSearch` finds all servers in the running loop.  A busy server has thousands of tasks, most of them for
requests.  Such a task begins in the server's code and continues in the application, and no server serves inside it, so
its other coroutines are not visited.

*   uvicorn calls ``Server.shutdown`` before it stops accepting connections, even when it runs as a gunicorn worker;
    gunicorn's own worker calls ``ASGIWorker._shutdown``.  :class:`CallHook` calls back before that method, for this
    object only.
*   Hypercorn sets an event, which :func:`limit_reached` reads.  The event is a local variable of the coroutine and
    exists only after the application has started.
"""

import asyncio
import sys
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any, Final

__all__ = [
    "CallHook",
    "ServerSearch",
    "begun_to_stop",
    "graceful_timeout",
    "limit_reached",
    "serving_frame",
    "serving_frame_of",
    "stopping_method",
]

_SERVING: ContextVar[FrameType | None] = ContextVar("_SERVING", default=None)  # for a lifespan and its inner ones
_STOPPING: Final = {"gunicorn": "_shutdown", "uvicorn": "shutdown"}
_SERVERS: Final = frozenset({*_STOPPING, "hypercorn"})


class CallHook:
    """Calls back before each call to a method on one object.

    The callbacks of all lifespans share one hook, so that they can be removed in any order.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self._owner = owner
        self._name = name
        self._callbacks: dict[Callable[[], object], None] = {}  # in the order in which they were added
        self._replaced = vars(owner).get(name)  # by other code
        self._method = getattr(owner, name)

    @classmethod
    def add(cls, owner: Any, name: str, callback: Callable[[], object]) -> "CallHook":
        """Call the callback before each call to the method, until :meth:`remove` is called."""
        hook = vars(owner).get(name)
        if not isinstance(hook, cls):
            hook = cls(owner, name)
            setattr(owner, name, hook)
        hook._callbacks[callback] = None
        return hook

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        for callback in reversed(tuple(self._callbacks)):
            callback()
        return self._method(*arguments, **options)

    def remove(self, callback: Callable[[], object]) -> None:
        """Remove a callback.  After the last one, restore the method, unless other code has replaced it in the
        meantime.
        """
        self._callbacks.pop(callback, None)
        if self._callbacks or vars(self._owner).get(self._name) is not self:
            return
        if self._replaced is None:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._replaced)


def serving_frame() -> FrameType | None:
    """Return the frame of the server's coroutine that waits for the running lifespan, or None if there is none.

    If one lifespan runs another in a separate task, the inner one is found through the context of that task.
    """
    calling = {id(frame.f_locals.get("self")) for frame in _stack() if _server_of(frame)} - {id(None)}
    for task in asyncio.all_tasks():
        for coroutine in _until_application(task):
            frame: FrameType = coroutine.cr_frame
            if id(_lifespan_in(frame)) in calling:
                _SERVING.set(frame)
                return frame
    return _SERVING.get()


class ServerSearch:
    """A search for the servers that serve in the running loop; call :meth:`step` until it returns False.

    Creating the object lists the tasks of the loop, in one turn.

    ``found``: weak references to the coroutines in which servers serve.  ``visited``: the number of coroutines visited.
    """

    def __init__(self) -> None:
        self._tasks = list(asyncio.all_tasks())
        self.found: list[weakref.ref[Any]] = []
        self.visited: int = 0

    def step(self, number: int) -> bool:
        """Visit about ``number`` more coroutines.  Return False when the search is complete."""
        until = self.visited + number
        while self._tasks and self.visited < until:
            self.visited += 1
            for coroutine in _until_application(self._tasks.pop()):
                self.visited += 1
                if _lifespan_in(coroutine.cr_frame) is not None:
                    self.found.append(weakref.ref(coroutine))
                    break
        return bool(self._tasks)


def serving_frame_of(found: "weakref.ref[Any]") -> FrameType | None:
    """Return the frame of a coroutine that a search has found, or None if the server no longer serves."""
    frame: FrameType | None = getattr(found(), "cr_frame", None)
    return frame


def begun_to_stop(found: "weakref.ref[Any]") -> bool:
    """Return whether the server of a coroutine that a search has found has already called its stopping method."""
    frame = serving_frame_of(found)
    method = None if frame is None else stopping_method(frame)
    return method is not None and any(inner.cr_frame.f_code.co_name == method[1] for inner in _coroutines(found()))


def stopping_method(frame: FrameType) -> tuple[Any, str] | None:
    """Return the server and the name of the method that it calls when it begins to stop, or None."""
    name = _STOPPING.get(_server_of(frame))
    server = frame.f_locals.get("self")
    return (server, name) if name is not None and callable(getattr(server, name, None)) else None


def limit_reached(frame: FrameType) -> Callable[[], bool] | None:
    """Return a function that returns whether Hypercorn has reached its request limit, or None if there is no limit."""
    if getattr(frame.f_locals.get("config"), "max_requests", None) is None:
        return None

    def reached() -> bool:
        event = getattr(frame.f_locals.get("context"), "terminate", None)
        return event is not None and bool(event.is_set())

    return reached


def graceful_timeout() -> tuple[str, float] | None:
    """Return the name of the server's graceful timeout and its value in seconds, or None if the timeout is missing or
    unknown.

    If uvicorn runs as a gunicorn worker, gunicorn's timeout applies, because gunicorn kills its workers after that
    time.
    """
    frame = serving_frame()
    if frame is None:
        return None
    variables = frame.f_locals
    server = variables.get("self")
    config: Any = getattr(server, "config", variables.get("config"))
    worker: Any = getattr(getattr(config, "callback_notify", None), "__self__", server)  # gunicorn's, around uvicorn
    limits = [
        (name, value)
        for name, value in (
            ("uvicorn's timeout_graceful_shutdown", getattr(config, "timeout_graceful_shutdown", None)),
            ("hypercorn's graceful_timeout", getattr(config, "graceful_timeout", None)),
            ("gunicorn's graceful_timeout", getattr(getattr(worker, "cfg", None), "graceful_timeout", None)),
        )
        if isinstance(value, (int, float))
    ]
    return min(limits, key=lambda limit: limit[1]) if limits else None


def _lifespan_in(frame: FrameType) -> Any:
    """Return the lifespan object of the server whose coroutine this is, or None."""
    if not _server_of(frame):
        return None
    variables = frame.f_locals
    return variables.get("lifespan") or getattr(variables.get("self"), "lifespan", None)


def _server_of(frame: FrameType) -> str:
    """Return the server to which the frame's module belongs, or an empty string."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package if package in _SERVERS else ""


def _stack() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def _until_application(task: "asyncio.Task[Any]") -> Iterator[Any]:
    """Yield the coroutines in which the task waits, up to the first one in which a server calls an application."""
    in_server = False
    for coroutine in _coroutines(task.get_coro()):
        if not _server_of(coroutine.cr_frame):
            if in_server:
                return
        else:
            in_server = True
        yield coroutine


def _coroutines(coroutine: Any) -> Iterator[Any]:
    """Yield the coroutine, the one that it awaits, and so on, except those that have ended."""
    while coroutine is not None:
        if getattr(coroutine, "cr_frame", None) is not None:
            yield coroutine
        coroutine = getattr(coroutine, "cr_await", None)
