"""One client connection, which is read both by the handler and on behalf of the waiting operations.

ASGI announces a hang-up only as a message: the application must await ``receive()`` to detect it.  Therefore, while an
operation waits, a *reader* (see rule 5) awaits ``receive()``.  The rules are:

1.  At most one ``receive()`` of the server is pending at any time, either the handler's or the reader's.
2.  If the reader reads a message other than a disconnect, it buffers the message; the handler reads that message later,
    through :attr:`Connection.receive`.
3.  When the handler or the reader reads a disconnect, every waiting operation is withdrawn.  From then on, every call
    to :attr:`Connection.receive` returns the disconnect, even on servers that announce it only once.
4.  The reader stops when the last operation has ended and pauses while the buffer contains 1 MiB.  While the reader is
    paused, a hang-up goes unnoticed until the handler reads, so a wait without a deadline can keep its place forever.
5.  The reader is a task, unless the ``receive()`` is uvicorn's or Hypercorn's own, without a middleware in between.
    Each of these coroutines awaits only futures, so the connection itself resumes the coroutine when the future is
    done.  This technique saves a task and two turns of the loop for each waiting request.  Such a coroutine can be
    closed at any time: the message then stays in the server for the next ``receive()``.
6.  The task is cancelled only if nothing but a disconnect can follow.  A middleware such as Starlette's
    ``BaseHTTPMiddleware`` may need several turns of the loop to pass on a message and would lose the message if it
    were cancelled in the meantime.  If the task is not cancelled, the ``receive()`` stays pending for the handler or
    the next wait, until the end of the request's task, which created the :class:`Connection`.  In gunicorn's own
    worker, the ``receive()`` always stays pending, because any ``receive()`` after a cancelled one returns a
    disconnect.  If a ``receive()`` that stays pending raises, the handler's next ``receive()`` raises that error,
    because the server need not raise it again.
7.  The reader stops for good if a part of a body comes after the end of the body: then ``receive()`` belongs to a
    middleware that returns the body again and again, perhaps without ever suspending, and never a disconnect.
"""

import asyncio
import sys
import weakref
from contextvars import Context
from typing import Any, Final

from purgatory import DelayedOperation, OperationCancelled
from purgatory.aio.error_reporting import report
from purgatory.core.operation.lifecycle import PENDING
from purgatory.core.operation.operation import withdraw

from .types import CONNECTION, Message, Receive, Scope

__all__ = ["ClientDisconnected", "Connection", "pending_connection"]

_LARGEST_BUFFER: Final = 1 << 20  # bytes
_READER: Final = "purgatory.asgi.Connection"  # a fixed task name, because generating one takes time and memory
_MESSAGE_SIZE: Final = 512  # bytes that a message takes in addition to its payload
_UVICORN: Final = ("uvicorn.protocols.http.h11_impl", "uvicorn.protocols.http.httptools_impl")
_DISCONNECTS: Final = ("http.disconnect", "websocket.disconnect")


class ClientDisconnected(OperationCancelled):
    """The client hung up while its request was waiting; the operation has been withdrawn."""


class Connection:
    """Reads a connection while operations wait and withdraws them when the client hangs up.

    ``scope``, ``receive``: from the server or a middleware.  ``body_read``: whether the whole body has already been
    read.  Create the object in the task of the request.
    """

    __slots__ = (
        "__weakref__",
        "_awaited",
        "_bodies",
        "_buffer",
        "_buffered",
        "_end_buffered",
        "_ends_with_owner",
        "_getters",
        "_left_error",
        "_operation",
        "_others",
        "_owner",
        "_raw_receive",
        "_reader",
        "_reading",
        "_receiving",
        "_resumes",
        "_scope",
        "_started",
        "_stopped",
        "disconnect",
        "error",
    )

    def __init__(self, scope: Scope, receive: Receive, *, body_read: bool = False) -> None:
        self._scope = scope
        self._raw_receive = receive
        self._resumes = _awaits_only_futures(receive)  # reading needs no task
        # The task of the request, as long as a pending receive() must not be cancelled.
        self._owner = None if self._resumes or (body_read and _may_cancel_after_body()) else _current_task()
        self._bodies = int(body_read)  # 0, 1 after the end of the body, or 2 if the body then begins again
        self._ends_with_owner = False  # when the owner ends, the reader is cancelled
        # Empty containers would take a fifth of a waiting request's memory, so each is created when it is needed.
        self._buffer: list[Message] | None = None  # not a deque, which takes 600 bytes even when empty
        self._buffered = 0
        self._end_buffered = False  # an empty last part of the body follows the buffer
        self._operation: DelayedOperation[Any] | None = None  # a waiting operation
        self._others: dict[int, DelayedOperation[Any]] | None = (
            None  # the rest, by id(): an operation may define __hash__
        )
        self._reader: asyncio.Task[None] | None = None
        self._started = False  # the task has begun to run
        self._stopped = False  # the task was cancelled here, not because the loop is ending
        self._receiving: Any = None  # the coroutine of a receive() that is read without a task
        self._awaited: asyncio.Future[Any] | None = None  # the future that the coroutine awaits
        self._reading = False  # the handler awaits the server's receive()
        self._getters: list[asyncio.Future[None]] | None = None
        self.disconnect: Message | None = None
        self.error: BaseException | None = None
        self._left_error: Exception | None = None

    def check(self) -> None:
        """Raise ClientDisconnected if the client has hung up; if a ``receive()`` has failed, raise its error."""
        if self.disconnect is not None:
            raise ClientDisconnected("the client has disconnected")
        if self.error is not None:
            raise self.error

    @property
    def reads_without_task(self) -> bool:
        """Whether the reader is no task; two calls to such a ``receive()`` may be pending at the same time."""
        return self._resumes

    @property
    def watching(self) -> bool:
        """Whether an operation is waiting."""
        return self._operation is not None or bool(self._others)

    def watch(self, operation: DelayedOperation[Any]) -> bool:
        """Until :meth:`unwatch` is called, withdraw the operation if the client hangs up.  Return False if the
        operation is already watched.

        A reader without a task starts at once.  A task starts to run in the next turn of the loop; if the operation
        ends before then, the task is cancelled and nothing is read.
        """
        if self._operation is None:
            self._operation = operation
        elif self._operation is operation:
            return False
        else:
            if self._others is None:
                self._others = {}
            elif id(operation) in self._others:
                return False
            self._others[id(operation)] = operation
        if self._resumes:
            if self._receiving is None and not self._reading:
                self._resume(None)
        elif self._reader is None:
            self._start_reading()
        return True

    def unwatch(self, operation: DelayedOperation[Any]) -> None:
        """Stop watching the connection for this operation, which has ended."""
        if self._operation is operation:
            self._operation = None
        elif self._others is not None:
            del self._others[id(operation)]
        if self._operation is not None or self._others:
            return
        if self._receiving is not None:
            self._close_receiving()
        elif self._reader is not None and not (self._started and self._leave_pending()):
            self._stop_reading()
            if not self._started:
                self._reader = None  # it never runs
                self._wake_getters()

    @property
    def _reader_pending(self) -> bool:
        """Whether the reader, with or without a task, is awaiting a message."""
        return self._reader is not None or self._receiving is not None

    def _stop_reading(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            self._stopped = True

    def _leave_pending(self) -> bool:
        """Leave the pending ``receive()`` to the handler or the next wait; return False if it can be cancelled."""
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
        """Stop watching the owner, because no pending ``receive()`` needs to end with it; the owner may run other
        requests.
        """
        if self._ends_with_owner:
            self._ends_with_owner = False
            owner = None if self._owner is None else self._owner()
            if owner is not None:
                owner.remove_done_callback(self._owner_ended)

    async def receive(self) -> Message:
        """Read the next message, beginning with the buffered ones; this is ASGI's ``receive()`` for the handler."""
        while not self._buffer and not self._end_buffered:
            if self.disconnect is not None:
                return dict(self.disconnect)
            if self._left_error is not None:
                error, self._left_error = self._left_error, None
                raise error
            if not self._reader_pending and not self._reading:
                return await self._receive_now()
            getter = asyncio.get_running_loop().create_future()
            if self._getters is None:
                self._getters = []
            self._getters.append(getter)
            try:
                await getter
            finally:
                if getter in self._getters:
                    self._getters.remove(getter)
        if self._buffer:
            message = self._buffer.pop(0)
            self._buffered -= _size(message)
        else:
            self._end_buffered = False
            message = _end()
        self._start_reading()
        return message

    __call__ = receive  # a request can then read from the object itself, which saves each request a bound method

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
        """Record the end of the body or a disconnect."""
        kind = message["type"]
        if kind in _DISCONNECTS:
            self._disconnected(message)
        elif kind == "http.request" and self._bodies:
            self._bodies = 2
        elif kind == "http.request" and not message.get("more_body", False):
            self._bodies = 1
            if self._owner is not None and _may_cancel_after_body():
                self._leave_owner()
                self._owner = None

    def _start_reading(self) -> None:
        """Start the reader if an operation is waiting and nothing else is reading."""
        if not self._reader_pending and not self._reading and self._wants_message():
            if self._resumes:
                self._resume(None)
                return
            self._started = self._stopped = False
            # create_task() is not used, because an eager factory would run the task before the operation is parked.
            self._reader = asyncio.Task(self._read(), loop=asyncio.get_running_loop(), name=_READER)

    def _wants_message(self) -> bool:
        return (
            (self._operation is not None or bool(self._others))
            and self.disconnect is None
            and self.error is None
            and self._buffered < _LARGEST_BUFFER
            and self._bodies < 2
        )

    def _resume(self, awaited: "asyncio.Future[Any] | None") -> None:
        """Read without a task: resume the ``receive()`` that awaited the future, and then call ``receive()`` again
        until a call has to wait.

        This method follows the protocol between a task and the future that it awaits, but without a task.
        """
        if awaited is not self._awaited:
            return  # the receive() that awaited this future has been closed
        receiving, self._receiving, self._awaited = self._receiving, None, None
        try:
            while receiving is not None or self._wants_message():
                if receiving is None:
                    receiving = self._raw_receive()
                try:
                    future = receiving.send(None)
                except StopIteration as returned:
                    receiving = None
                    self._keep(returned.value)
                    continue
                if future is None:  # a bare yield, such as asyncio.sleep(0)
                    future = asyncio.get_running_loop().create_future()
                    future.set_result(None)
                else:
                    future._asyncio_future_blocking = False
                self._receiving, self._awaited = receiving, future
                future.add_done_callback(self._resume)
                return
        except Exception as error:
            self._failed(error)
        self._wake_getters()

    def _close_receiving(self) -> None:
        """Close the ``receive()`` that is read without a task.

        The server keeps the message for the next ``receive()``.
        """
        receiving, awaited = self._receiving, self._awaited
        self._receiving = self._awaited = None
        if awaited is not None:
            awaited.remove_done_callback(self._resume)
        receiving.close()
        if self._getters:
            self._wake_getters()

    async def _read(self) -> None:
        self._started = True
        try:
            while self._wants_message():
                self._keep(await self._raw_receive())
        except Exception as error:
            self._failed(error)
        finally:
            self._reader = None
            self._leave_owner()
            self._wake_getters()
            if self._stopped and self.watching:  # an operation arrived while this task was being cancelled
                self._start_reading()

    def _keep(self, message: Message) -> None:
        """Buffer, for the handler, a message that the reader has read, unless it is a disconnect."""
        self._note(message)
        if self.disconnect is not None:
            return
        if self._end_buffered or message.get("body") or message.get("more_body") or message["type"] != "http.request":
            if self._buffer is None:
                self._buffer = []
            if self._end_buffered:  # the body begins again
                self._end_buffered = False
                self._append(self._buffer, _end())
            self._append(self._buffer, message)
        else:
            self._end_buffered = True  # as in every request without a body
        if self._getters:
            self._wake_getters()

    def _append(self, buffer: list[Message], message: Message) -> None:
        buffer.append(message)
        self._buffered += _size(message)

    def _failed(self, error: Exception) -> None:
        """Handle a failure of the reader's ``receive()``."""
        if self.watching:
            self.error = error
            self._withdraw()
        elif not self._stopped:  # otherwise, the failure comes from the cancellation
            self._left_error = error

    def _disconnected(self, message: Message) -> None:
        self.disconnect = message
        self._wake_getters()
        self._withdraw()

    def _withdraw(self) -> None:
        """Withdraw every operation.  If an overridden ``cancel()`` raises, report the error and withdraw the others."""
        interrupt: BaseException | None = None
        for operation in (self._operation, *(self._others or {}).values()):
            try:
                if operation is not None and operation._op_state == PENDING:
                    withdraw(operation)
            except Exception as error:
                report("cancel() failed after a disconnect", error)
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _wake_getters(self) -> None:
        for getter in self._getters or ():
            if not getter.done():
                getter.set_result(None)


def pending_connection(scope: Scope, receive: Receive) -> Connection | None:
    """Return the connection that may have a ``receive()`` pending, or None; every reader must share that connection."""
    reference: weakref.ref[Connection] | None = scope.get(CONNECTION)
    connection = None if reference is None else reference()
    return connection if connection is not None and connection._raw_receive == receive else None


def _awaits_only_futures(receive: Receive) -> bool:
    """Return whether ``receive`` is a method of uvicorn's request object or Hypercorn's own ``Queue.get``."""
    kind = type(getattr(receive, "__self__", None))
    if kind.__name__ == "RequestResponseCycle":
        return kind.__module__ in _UVICORN
    return getattr(receive, "__func__", None) is asyncio.Queue.get


def _may_cancel_after_body() -> bool:
    """Return whether ``receive()`` may be cancelled when only a disconnect can follow; in gunicorn's own worker, it may
    not.
    """
    return "gunicorn.asgi.protocol" not in sys.modules


def _current_task() -> "weakref.ref[asyncio.Task[Any]] | None":
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop is running
        return None
    return None if task is None else weakref.ref(task)


def _end() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def _size(message: Message) -> int:
    """Return approximately how many bytes a buffered message takes."""
    if message["type"] == "http.request":
        return len(message.get("body", b"")) + _MESSAGE_SIZE
    return len(message.get("bytes") or message.get("text") or b"") + _MESSAGE_SIZE
