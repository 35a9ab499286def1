"""Waiting in a request's handler until a condition holds, the deadline passes or the client hangs up."""

import inspect
import sys
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from purgatory import DelayedOperation, OperationCancelled, Purgatory
from purgatory.aio.purgatory import _condition, _is_foreign

from .connection import ClientDisconnected, Connection
from .types import CLOSING, Message, Receive, Scope

if TYPE_CHECKING:
    from purgatory.relay import Relay

__all__ = ["Wait", "waiting"]

T = TypeVar("T")


class Wait:
    """Waits in a purgatory on behalf of one request or WebSocket, and withdraws when its client hangs up.

    **Usage.**  In FastAPI a dependency, see :func:`waiting`.  In Starlette ``Wait(room, request)``, in a plain ASGI
    application ``Wait(room, scope, receive)``.

    **Implementation.**  While an operation waits, a task awaits ``receive()``.  A part of the request's body, or a
    WebSocket message, that arrives meanwhile is buffered; the handler reads it afterwards from the same request or
    WebSocket, or in plain ASGI from :meth:`receive`.  At 1 MiB the task stops reading, and a hang-up goes unnoticed
    until the handler has read.  So read a body that may be large before waiting.

    **Cancellation safety.**  As :meth:`Purgatory.park`: cancelling the task withdraws the operation at once.

    ``room``: the purgatory, or a :class:`purgatory.relay.Relay`, whose ``park`` is then used.  ``connection``: a
    Starlette or FastAPI ``Request`` or ``WebSocket``; or an ASGI scope, and then ``receive`` is the callable that came
    with it.  TypeError for anything else, ValueError for the scope of a lifespan.
    """

    __slots__ = ("_connection", "_park", "_room", "_scope")

    def __init__(self, room: "Purgatory[Any] | Relay", connection: Any, receive: Receive | None = None) -> None:
        self._room = _purgatory_of(room)
        park: Any = room.park
        # None: Purgatory.park itself, whose halves are called here without its coroutine.
        self._park = None if getattr(park, "__func__", None) is Purgatory.park else park
        if receive is None:
            self._connection = _connection_of_request(connection)
            self._scope: Scope = connection.scope
        else:
            self._connection = _connection_of_scope(connection, receive)
            self._scope = connection

    @property
    def disconnected(self) -> bool:
        """Whether the client is known to have hung up: an operation was withdrawn, or a read returned it."""
        return self._connection.disconnect is not None

    # Not a coroutine function: it would be one more coroutine for each request that waits.
    def until(
        self, predicate: Callable[[], object], *, keys: Iterable[Hashable] | Mapping[Any, float], timeout: float | None
    ) -> Coroutine[Any, Any, bool]:
        """Wait until ``predicate()`` is true; it is called now and on every check of one of the keys.

        Return True when it is, and False when ``timeout`` seconds have passed or the purgatory closes.  Raises
        :class:`ClientDisconnected` if the client hangs up first, and what :meth:`Purgatory.wait_until` raises.
        """
        return self.park(_condition(predicate, timeout), keys)

    async def park(self, operation: DelayedOperation[T], keys: Iterable[Hashable] | Mapping[Any, float]) -> T:
        """Park the operation and return its result, as :meth:`Purgatory.park`.

        If the client hangs up first, the operation is withdrawn and :class:`ClientDisconnected` is raised.  It is also
        raised if the client hangs up in the turn of the loop in which the operation ended: its outcome stands, and its
        result goes to :meth:`DelayedOperation.on_abandoned`.
        """
        connection, room = self._connection, self._room
        connection.check()
        result: Any
        watched = False
        try:
            if self._park is not None:
                watched = connection.watch(operation)
                result = await self._park(operation, keys)
            elif (waiter := room._submit_and_wait(operation, keys)) is None:
                result = operation.result()
            else:
                try:
                    watched = connection.watch(operation)
                    result = await waiter
                except BaseException as error:
                    if not _is_foreign(waiter, error):
                        room._stop_waiting(operation, waiter)
                        raise
                    result = await room._wait_in_this_loop(operation, waiter)
        except OperationCancelled:
            connection.check()
            raise
        finally:
            if watched:
                connection.unwatch(operation)
            if room.closed:
                self._scope[CLOSING] = True
        if connection.disconnect is not None:
            room._abandon(operation)
            raise ClientDisconnected("the client disconnected when its request was answered")
        return result  # type: ignore[no-any-return]

    async def receive(self) -> Message:
        """Read the connection's next message: the ``receive`` that a plain ASGI application uses from now on."""
        return await self._connection.receive()

    def __repr__(self) -> str:
        return f"<Wait in {self._room.name!r}{' disconnected' if self.disconnected else ''}>"


class _Waiting:
    """What :func:`waiting` returns: a callable whose signature FastAPI understands, without importing Starlette.

    FastAPI passes the request or WebSocket to the parameter that is annotated with Starlette's ``HTTPConnection``.
    Where Starlette is not loaded, nothing needs the annotation.
    """

    def __init__(self, room: "Purgatory[Any] | Relay") -> None:
        _purgatory_of(room)
        self._room = room

    @property
    def __signature__(self) -> inspect.Signature:
        requests = sys.modules.get("starlette.requests")
        annotation = Any if requests is None else requests.HTTPConnection
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter("connection", kind, annotation=annotation)], return_annotation=Wait)

    # A coroutine function: FastAPI runs any other dependency in a thread.
    async def __call__(self, connection: Any, receive: Receive | None = None) -> Wait:
        return Wait(self._room, connection, receive)

    def __repr__(self) -> str:
        return f"waiting({self._room!r})"


def waiting(room: "Purgatory[Any] | Relay") -> _Waiting:
    """Make a dependency that gives a handler its :class:`Wait` in the purgatory.

    ::

        @app.get("/orders")
        async def orders(wait: Annotated[Wait, Depends(waiting(room))], after: int = 0):
            if not await wait.until(lambda: log.end > after, keys=["orders"], timeout=30):
                return Response(status_code=204)
            return log.read(after)

    It works in path operations and in WebSocket endpoints.  Elsewhere call it: ``await waiting(room)(request)``, or
    ``await waiting(room)(scope, receive)``; this returns ``Wait(room, ...)``.  TypeError if ``room`` is neither a
    purgatory nor a relay.
    """
    return _Waiting(room)


def _purgatory_of(room: Any) -> Purgatory[Any]:
    """Return the purgatory itself, or that of a relay, which this module does not import."""
    purgatory = room if isinstance(room, Purgatory) else getattr(room, "_purgatory", None)
    if not isinstance(purgatory, Purgatory):
        raise TypeError(f"room must be a Purgatory or a Relay, got {room!r}")
    return purgatory


def _connection_of_request(request: Any) -> Connection:
    """Return the connection of a Starlette request or WebSocket, which from now on reads through it.

    Starlette reads ``_receive`` in every request and WebSocket; its own middlewares replace it in the same way.
    """
    receive = getattr(request, "_receive", None)
    if not callable(receive):
        raise TypeError(
            f"connection must be a Starlette Request or WebSocket, or a scope with its receive, got {request!r}"
        )
    shared = getattr(receive, "__self__", None)
    if isinstance(shared, Connection):
        return shared
    connection = Connection(receive)
    request._receive = connection.receive
    return connection


def _connection_of_scope(scope: Any, receive: Receive) -> Connection:
    if not isinstance(scope, Mapping):
        raise TypeError(f"connection must be an ASGI scope where receive is given, got {scope!r}")
    if scope.get("type") not in ("http", "websocket"):
        raise ValueError(f"scope must be of type 'http' or 'websocket', got {scope.get('type')!r}")
    if not callable(receive):
        raise TypeError(f"receive must be callable, got {receive!r}")
    owner = getattr(receive, "__self__", None)
    if isinstance(owner, Wait):
        return owner._connection
    return owner if isinstance(owner, Connection) else Connection(receive)
