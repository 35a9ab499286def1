"""Wait in a request handler until a condition holds, the deadline passes, or the client disconnects."""

import inspect
import sys
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TypeVar

from purgatory import DelayedOperation, OperationCancelled, Purgatory
from purgatory.aio.purgatory import _is_foreign
from purgatory.core.operation.waits import MISSING, until_wait

from .connection import ClientDisconnected, Connection, pending_connection
from .types import CLOSING, Message, Receive, Scope

if TYPE_CHECKING:
    from purgatory.relay import Relay

__all__ = ["Wait", "waiting"]

T = TypeVar("T")


class Wait:
    """Waits in a purgatory on behalf of one request or WebSocket, and withdraws the operation on a disconnect.

    **Usage.**  In FastAPI, use the dependency that :func:`waiting` creates.  In Starlette, use ``Wait(room, request)``,
    and in a plain ASGI application ``Wait(room, scope, receive)``.

    **Implementation.**  While an operation waits, a task awaits ``receive()``.  If a part of the request's body or a
    WebSocket message arrives in the meantime, it is buffered; the handler reads it afterwards from the same request or
    WebSocket, or in plain ASGI from :meth:`receive`.  When the buffer holds 1 MiB, the task stops reading and does not
    detect a disconnect until the handler reads.  Therefore, read a body that may be large before you wait, and give
    every wait of a public endpoint a timeout: a client can fill the buffer on purpose.  A ``receive()`` that is pending
    when the wait ends is kept for the handler and the next wait, because a middleware could lose a message if it were
    cancelled.  It ends with the task in which the Wait was made, so make the Wait in the task of the request.

    **Cancellation safety.**  As for :meth:`Purgatory.park`: cancelling the task withdraws the operation immediately.

    ``room``: the purgatory, or a :class:`purgatory.relay.Relay`, whose ``park`` is then used.  ``connection``: a
    Starlette or FastAPI ``Request`` or ``WebSocket``, or an ASGI scope with its ``receive``.  Raises TypeError for
    anything else, and ValueError for the scope of a lifespan.
    """

    __slots__ = ("_connection", "_park", "_room", "_scope")

    def __init__(self, room: "Purgatory[Any] | Relay", connection: Any, receive: Receive | None = None) -> None:
        self._room = _purgatory_of(room)
        park: Any = room.park
        # None: Purgatory.park itself, whose two halves Wait.park calls directly, without another coroutine.
        self._park = None if getattr(park, "__func__", None) is Purgatory.park else park
        if receive is None:
            self._connection = _connection_of_request(connection)
            self._scope: Scope = connection.scope
        else:
            self._connection = _connection_of_scope(connection, receive)
            self._scope = connection

    @property
    def disconnected(self) -> bool:
        """Whether a disconnect was detected: an operation was withdrawn, or a read returned the disconnect message."""
        return self._connection.disconnect is not None

    # Not a coroutine function: it would be one more coroutine for each request that waits.
    def until(
        self, predicate: Callable[[], object], *, keys: Iterable[Hashable] | Mapping[Any, float], timeout: float | None
    ) -> Coroutine[Any, Any, bool]:
        """Wait until ``predicate()`` is true; it is called now and on every check of one of the keys.

        Return True as soon as it is true, and False when ``timeout`` seconds have passed or the purgatory closes.
        Raises :class:`ClientDisconnected` if the client disconnects first, and the errors of
        :meth:`Purgatory.wait_until`.
        """
        return self.park(until_wait(self._room.timer, predicate, timeout, MISSING, None), keys)

    async def park(self, operation: DelayedOperation[T], keys: Iterable[Hashable] | Mapping[Any, float]) -> T:
        """Park the operation and return its result, as :meth:`Purgatory.park`.

        If the client disconnects first, the operation is withdrawn and :class:`ClientDisconnected` is raised.  This
        exception is also raised if the client disconnects in the turn of the loop in which the operation ended.  The
        outcome then stands, and the result goes to :meth:`DelayedOperation.on_abandoned`.
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
        """Read the connection's next message.  A plain ASGI application must use this ``receive`` from now on."""
        return await self._connection.receive()

    def __repr__(self) -> str:
        return f"<Wait in {self._room.name!r}{' disconnected' if self.disconnected else ''}>"


class _Waiting:
    """What :func:`waiting` returns: a callable whose signature FastAPI understands, without importing Starlette.

    FastAPI passes the request or WebSocket to the parameter that is annotated with Starlette's ``HTTPConnection``.
    If Starlette is not loaded, no code needs the annotation.
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
    """Create a dependency that passes a :class:`Wait` for the purgatory to a handler.

    ::

        @app.get("/orders")
        async def orders(wait: Annotated[Wait, Depends(waiting(room))], after: int = 0):
            if not await wait.until(lambda: log.end > after, keys=["orders"], timeout=30):
                return Response(status_code=204)
            return log.read(after)

    The dependency works in path operations and in WebSocket endpoints.  Elsewhere, call it yourself:
    ``await waiting(room)(request)``, or ``await waiting(room)(scope, receive)``; both return ``Wait(room, ...)``.
    Raises TypeError if ``room`` is neither a purgatory nor a relay.
    """
    return _Waiting(room)


def _purgatory_of(room: Any) -> Purgatory[Any]:
    """Return the purgatory, or the purgatory of a relay.  This module does not import the class of the relay."""
    purgatory = room if isinstance(room, Purgatory) else getattr(room, "_purgatory", None)
    if not isinstance(purgatory, Purgatory):
        raise TypeError(f"room must be a Purgatory or a Relay, got {room!r}")
    return purgatory


def _connection_of_request(request: Any) -> Connection:
    """Return the connection of a Starlette request or WebSocket, and make the request read through this connection.

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
    body_read = bool(getattr(request, "_stream_consumed", False))
    connection = pending_connection(request.scope, receive) or Connection(request.scope, receive, body_read=body_read)
    request._receive = connection.receive
    return connection


def _connection_of_scope(scope: Any, receive: Receive) -> Connection:
    if not isinstance(scope, MutableMapping):
        raise TypeError(f"connection must be an ASGI scope where receive is given, got {scope!r}")
    if scope.get("type") not in ("http", "websocket"):
        raise ValueError(f"scope must be of type 'http' or 'websocket', got {scope.get('type')!r}")
    if not callable(receive):
        raise TypeError(f"receive must be callable, got {receive!r}")
    owner = getattr(receive, "__self__", None)
    if isinstance(owner, Wait):
        return owner._connection
    if isinstance(owner, Connection):
        return owner
    return pending_connection(scope, receive) or Connection(scope, receive)
