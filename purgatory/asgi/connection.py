"""One client connection, read by the handler and on behalf of the operations that wait.

ASGI announces a hang-up only as a message: the application has to await ``receive()`` to detect it.  So while an
operation waits, a task reads the connection.  The rules:

1.  At most one ``receive()`` of the server is pending at any time: the handler's or the task's.
2.  If the task reads any other message than a disconnect, it buffers the message; the handler reads it afterwards,
    through :attr:`Connection.receive`.
3.  When the handler or the task reads a disconnect, every operation that waits is withdrawn.  From then on, every call
    of :attr:`Connection.receive` returns the disconnect, even on servers that announce it only once.
4.  The task stops when the last operation has ended, and pauses while the buffer holds 1 MiB.  While it pauses, a
    hang-up goes unnoticed until the handler reads, so a wait without a deadline can keep its place forever.
5.  The task is cancelled only if nothing but a disconnect can follow, because a middleware may need several turns of
    the loop to pass a message on, and loses the message if it is cancelled meanwhile: Starlette's
    ``BaseHTTPMiddleware`` does.  Otherwise the ``receive()`` stays pending for the handler or the next wait, until the
    task that has made the :class:`Connection` ends, which is the task of the request.  In gunicorn's own worker it
    always stays pending, because there every ``receive()`` after a cancelled one returns a disconnect.  Hypercorn's own
    ``receive()`` is always cancelled: it is ``Queue.get``, which then loses nothing, and the disconnect, which is put
    into the queue once, must reach a streaming response.
"""

import asyncio
import sys
import weakref
from contextvars import Context
from typing import Any, Final

from purgatory import DelayedOperation, OperationCancelled

from .types import CONNECTION, Message, Receive, Scope

__all__ = ["ClientDisconnected", "Connection", "pending_connection"]

_LARGEST_BUFFER: Final = 1 << 20  # bytes
_READER: Final = "purgatory.asgi.Connection"  # the name of the task: making one up takes time and memory
_MESSAGE_SIZE: Final = 512  # bytes that a message takes beside its payload
_DISCONNECTS: Final = ("http.disconnect", "websocket.disconnect")


class ClientDisconnected(OperationCancelled):
    """The client hung up while its request waited; the operation has been withdrawn."""


class Connection:
    """Reads a connection while operations wait, and withdraws them when the client hangs up.

    ``scope``, ``receive``: from the server or a middleware.  ``body_read``: whether the whole body was read before.
    Create the object in the task of the request.
    """

    __slots__ = (
        "__weakref__",
        "_buffer",
        "_buffered",
        "_ends_with_owner",
        "_getters",
        "_operation",
        "_others",
        "_owner",
        "_raw_receive",
        "_reader",
        "_reading",
        "_scope",
        "_started",
        "_stopped",
        "disconnect",
        "error",
    )

    def __init__(self, scope: Scope, receive: Receive, *, body_read: bool = False) -> None:
        self._scope = scope
        self._raw_receive = receive
        # The task of the request, while a pending receive() must not be cancelled.
        self._owner = None if _may_cancel(receive) or (body_read and _may_cancel_after_body()) else _current_task()
        self._ends_with_owner = False  # the end of the owner cancels the reader
        self._buffer: list[Message] = []  # not a deque, which takes 600 bytes even when empty
        self._buffered = 0
        self._operation: DelayedOperation[Any] | None = None  # one that waits
        self._others: dict[int, DelayedOperation[Any]] = {}  # the rest, by id(): an operation may define __hash__
        self._reader: asyncio.Task[None] | None = None
        self._started = False  # the task has begun to run
        self._stopped = False  # the task was cancelled here, not by a loop that ends
        self._reading = False  # the handler awaits the server's receive()
        self._getters: list[asyncio.Future[None]] = []
        self.disconnect: Message | None = None
        self.error: BaseException | None = None

    def check(self) -> None:
        """Raise ClientDisconnected if the client has hung up; if a ``receive()`` has failed, raise its error."""
        if self.disconnect is not None:
            raise ClientDisconnected("the client has disconnected")
        if self.error is not None:
            raise self.error

    @property
    def watching(self) -> bool:
        """Whether an operation waits."""
        return self._operation is not None or bool(self._others)

    def watch(self, operation: DelayedOperation[Any]) -> bool:
        """Withdraw the operation when the client hangs up, until :meth:`unwatch`.  Return False if it is already
        watched.

        The task that reads starts to run in the next turn of the loop.  If the operation ends before that, the task is
        cancelled, and nothing is read.
        """
        if self._operation is operation or id(operation) in self._others:
            return False
        if self._operation is None:
            self._operation = operation
        else:
            self._others[id(operation)] = operation
        if self._reader is None:
            self._start_reading()
        return True

    def unwatch(self, operation: DelayedOperation[Any]) -> None:
        """Stop watching for the operation; it has ended."""
        if self._operation is operation:
            self._operation = None
        else:
            del self._others[id(operation)]
        if self._reader is None or self.watching or (self._started and self._leave_pending()):
            return
        self._stop_reading()
        if not self._started:
            self._reader = None  # it never runs
            self._wake_getters()

    def _stop_reading(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            self._stopped = True

    def _leave_pending(self) -> bool:
        """Leave the pending ``receive()`` to the handler and to the next wait.  Return False if it can be cancelled."""
        owner = None if self._owner is None else self._owner()
        if owner is None or owner.done():
            return False  # nothing could read the message
        if not self._ends_with_owner:
            self._ends_with_owner = True
            owner.add_done_callback(self._owner_ended, context=Context())
            self._scope[CONNECTION] = weakref.ref(self)
        return True

    def _owner_ended(self, owner: "asyncio.Task[Any]") -> None:
        if not self.watching:
            self._stop_reading()

    def _leave_owner(self) -> None:
        """Stop watching the owner, which may run other requests: no ``receive()`` is pending that must end with it."""
        if self._ends_with_owner:
            self._ends_with_owner = False
            owner = None if self._owner is None else self._owner()
            if owner is not None:
                owner.remove_done_callback(self._owner_ended)

    async def receive(self) -> Message:
        """Read the next message: ASGI's ``receive()`` for the handler, beginning with what was buffered."""
        while not self._buffer:
            if self.disconnect is not None:
                return dict(self.disconnect)
            if self._reader is None and not self._reading:
                return await self._receive_now()
            getter = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            try:
                await getter
            finally:
                if getter in self._getters:
                    self._getters.remove(getter)
        message = self._buffer.pop(0)
        self._buffered -= _size(message)
        self._start_reading()
        return message

    async def _receive_now(self) -> Message:
        self._reading = True
        try:
            message = await self._raw_receive()
            self._note(message)
        finally:
            self._reading = False
            self._wake_getters()
            self._start_reading()
        return message

    def _note(self, message: Message) -> None:
        """Note the end of the body and a disconnect."""
        if message["type"] in _DISCONNECTS:
            self._disconnected(message)
        elif message["type"] == "http.request" and not message.get("more_body", False) and _may_cancel_after_body():
            self._leave_owner()
            self._owner = None

    def _start_reading(self) -> None:
        """Start the task that reads, if an operation waits and nothing else reads."""
        if (
            self.watching
            and self._reader is None
            and not self._reading
            and self.disconnect is None
            and self.error is None
            and self._buffered < _LARGEST_BUFFER
        ):
            self._started = self._stopped = False
            # Not by create_task(): an eager factory would run it before the operation is parked.
            self._reader = asyncio.Task(self._read(), loop=asyncio.get_running_loop(), name=_READER)

    async def _read(self) -> None:
        self._started = True
        try:
            while self.watching and self._buffered < _LARGEST_BUFFER:
                message = await self._raw_receive()
                self._note(message)
                if self.disconnect is not None:
                    return
                self._buffer.append(message)
                self._buffered += _size(message)
                if self._getters:
                    self._wake_getters()
        except Exception as error:
            if self.watching:  # otherwise the next receive() meets the error itself
                self.error = error
                self._withdraw()
        finally:
            self._reader = None
            self._leave_owner()
            if self._getters:
                self._wake_getters()
            if self._stopped and self.watching:  # an operation came while this task was being cancelled
                self._start_reading()

    def _disconnected(self, message: Message) -> None:
        self.disconnect = message
        self._wake_getters()
        self._withdraw()

    def _withdraw(self) -> None:
        if self._operation is not None:
            self._operation.cancel()
        for operation in list(self._others.values()):
            operation.cancel()

    def _wake_getters(self) -> None:
        for getter in self._getters:
            if not getter.done():
                getter.set_result(None)


def pending_connection(scope: Scope, receive: Receive) -> Connection | None:
    """Return the connection that may have left a ``receive()`` pending; every reader must share it."""
    reference: weakref.ref[Connection] | None = scope.get(CONNECTION)
    connection = None if reference is None else reference()
    return connection if connection is not None and connection._raw_receive == receive else None


def _may_cancel(receive: Receive) -> bool:
    """Return whether ``receive()`` may be cancelled at any time."""
    return isinstance(getattr(receive, "__self__", None), asyncio.Queue)


def _may_cancel_after_body() -> bool:
    """Whether ``receive()`` may be cancelled when only a disconnect can follow: not in gunicorn's own worker."""
    return "gunicorn.asgi.protocol" not in sys.modules


def _current_task() -> "weakref.ref[asyncio.Task[Any]] | None":
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs
        return None
    return None if task is None else weakref.ref(task)


def _size(message: Message) -> int:
    """Return roughly how many bytes a buffered message takes."""
    if message["type"] == "http.request":
        return len(message.get("body", b"")) + _MESSAGE_SIZE
    return len(message.get("bytes") or message.get("text") or b"") + _MESSAGE_SIZE
