"""One connection: it reads and writes frames and handles one request at a time, in order.

The connection keeps reading while a request is parked, so it detects a disconnect at once.  It then cancels the waiting
task, which withdraws the parked operation.  The connection buffers up to one frame of further requests; then it pauses
reading until the current request is answered.  A client may send its last batch with acks=0 and disconnect.  If no
request is in progress when the client disconnects, the broker therefore executes the requests that arrived earlier, if
they have a lasting effect and do not have to wait.  Like all requests, they take turns with those of other connections,
and their bytes count until then.  Requests behind the one in progress are discarded.

The broker closes a connection, and logs the reason, in these cases:

*   a frame is too long or is not a valid request;
*   a request does not arrive in time, or a response is not read in time;
*   the client sends no request for a long time;
*   all connections together hold too many bytes, and this one holds the most.

Closing a connection does not affect other connections.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Protocol

from examples.broker.apis.api import CloseConnection
from examples.broker.apis.dispatch import answer_frame, is_lasting
from examples.broker.broker import Broker
from examples.broker.protocol.codec import Malformed, api_key, frame_size
from purgatory import TimerTask

__all__ = ["Connection", "ConnectionOwner", "Memory"]

_LOGGER = logging.getLogger("examples.broker")
_PREFIX = 4
_MIN_REQUEST_BYTES = 8  # API key, version, and correlation id
_PRODUCE = 0
_MAX_BYTES_WITHOUT_RECORDS = 1 << 20  # maximum size of a request that carries no records
_MAX_WORK_PER_TURN = 16  # small requests that a connection handles before it yields to the other connections
_SMALL = 4096  # size of a small request or response; a larger one counts as several


class Memory:
    """The bytes of all connections: incoming, running, and parked requests, and unsent responses."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def fits(self, size: int) -> bool:
        """Add ``size`` bytes.  Return whether the total is within the limit."""
        self.used += size
        return self.used <= self.limit


class ConnectionOwner(Protocol):
    """The part of the server that a connection uses."""

    broker: Broker
    memory: Memory

    def opened(self, connection: "Connection") -> bool: ...

    def closed(self, connection: "Connection", reason: str) -> None: ...

    def relieve(self, connection: "Connection") -> None: ...


class Connection(asyncio.Protocol):
    """The connection of one client."""

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self._broker = owner.broker
        self._settings = owner.broker.settings
        self._transport: Any = None
        self._task: asyncio.Task[None] | None = None
        self._rest: asyncio.Task[None] | None = None  # executes what the client sent before it left
        self._lost = False
        self._inbox = bytearray()
        self.counted = 0  # bytes of this connection that count toward the owner's memory
        self._in_work = 0  # the part of ``counted`` that belongs to the current request
        self._dropped = False
        self._reading = True
        self._ending = False
        self._more: asyncio.Future[None] | None = None
        self._sent: asyncio.Future[None] | None = None
        self._limit: TimerTask | None = None
        self._reason = ""
        self.peer = "?"
        self.busy = False

    # Callbacks from the transport

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.peer = f"{peer[0]}:{peer[1]}"
        if not self._owner.opened(self):
            self._reason = "too many connections"
            self._ending = True
            transport.abort()
            return
        transport.set_write_buffer_limits(high=self._settings.write_buffer_bytes)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        if self._ending:
            return
        self._inbox += data
        if not self._count():
            return
        if self._reading and len(self._inbox) > self._settings.max_frame_bytes + _PREFIX:
            self._reading = False
            self._transport.pause_reading()
        self._wake(self._more)

    def eof_received(self) -> bool:
        self._client_left()
        return False

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 (the reason does not matter)
        self._client_left()
        self._time_limit(None)
        self._lost = True
        if self._rest is None:
            self._end()

    def pause_writing(self) -> None:
        self._sent = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        self._wake(self._sent)
        self._sent = None

    # Called by the server

    def finish(self) -> None:
        """Accept no further request.  Close once the response to the current request, if any, has been sent."""
        self._ending = True
        if self._rest is not None:
            self._inbox.clear()
        if not self.busy and self._transport is not None:
            self._transport.close()

    def drop(self, reason: str) -> None:
        """Close the connection immediately, even during a request."""
        if not self._reason:
            self._reason = reason
            _LOGGER.info("connection %s closed: %s", self.peer, reason)
        self._ending = True
        if not self._dropped:
            self._release()
            self._transport.abort()

    # Requests

    async def _serve(self) -> None:
        work = 0
        try:
            while not self._ending:
                frame = await self._frame()
                self.busy = True
                response = await answer_frame(self._broker, frame, self._host(), self._hold)
                self._in_work = 0
                work += 1 + len(frame) // _SMALL
                if response is None:
                    self._count()
                else:
                    self._transport.write(response)
                    work += len(response) // _SMALL
                    del response
                    await self._written()
                self.busy = False
                if work >= _MAX_WORK_PER_TURN:
                    work = 0
                    await asyncio.sleep(0)
            self._transport.close()
        except (Malformed, CloseConnection) as error:
            self.drop(str(error))
        except asyncio.CancelledError:
            raise
        except Exception:  # a bug in the broker: close only this connection
            _LOGGER.exception("connection %s: the request failed", self.peer)
            self.drop("the request failed")
        finally:
            self._time_limit(None)

    async def _frame(self) -> bytes:
        """Wait for the next complete request and return it."""
        settings = self._settings
        while True:
            frame = self._take_frame()
            if frame is not None:
                self._time_limit(None)
                return frame
            idle = not self._inbox
            if idle:
                self._time_limit(settings.idle_timeout, "no request within the idle timeout")
            elif self._limit is None:
                self._time_limit(settings.frame_timeout, "the request did not arrive in time")
            self._more = asyncio.get_running_loop().create_future()
            await self._more
            if idle:
                self._time_limit(None)

    def _take_frame(self) -> bytes | None:
        """Take the next request from the input buffer.  Return None if it is not complete."""
        inbox = self._inbox
        if len(inbox) < _PREFIX:
            return None
        size = frame_size(inbox)
        most = self._settings.max_frame_bytes
        if size > _MAX_BYTES_WITHOUT_RECORDS and len(inbox) >= _PREFIX + 2 and api_key(inbox, _PREFIX) != _PRODUCE:
            most = min(most, _MAX_BYTES_WITHOUT_RECORDS)
        if not _MIN_REQUEST_BYTES <= size <= most:
            raise Malformed(f"frame size must be {_MIN_REQUEST_BYTES} to {most} bytes, got {size}")
        if len(inbox) < size + _PREFIX:
            return None
        frame = bytes(memoryview(inbox)[_PREFIX : size + _PREFIX])
        del inbox[: size + _PREFIX]
        self._in_work = size
        self._count()
        if not self._reading and not self._ending and len(inbox) <= self._settings.max_frame_bytes:
            self._reading = True
            self._transport.resume_reading()
        return frame

    def _client_left(self) -> None:
        """Cancel the current request; if there is none, execute the buffered requests that have a lasting effect."""
        was_ending, self._ending = self._ending, True
        if self._task is None:
            return
        self._task.cancel()
        if not (was_ending or self.busy):
            self._rest = asyncio.get_running_loop().create_task(self._execute_rest())

    async def _execute_rest(self) -> None:
        """Execute the buffered requests that have a lasting effect, unless they have to wait."""
        work = 0
        try:
            while not self._dropped and (frame := self._take_frame()) is not None:
                if is_lasting(frame):
                    _begin(answer_frame(self._broker, frame, self._host()))
                work += 1 + len(frame) // _SMALL
                if work >= _MAX_WORK_PER_TURN:
                    work = 0
                    await asyncio.sleep(0)
        except (Malformed, CloseConnection) as error:
            self.drop(str(error))
        except Exception:  # a bug in the broker: close only this connection
            _LOGGER.exception("connection %s: the request failed", self.peer)
            self.drop("the request failed")
        finally:
            self._rest = None
            if self._lost:
                self._end()

    def _end(self) -> None:
        self._release()
        self._owner.closed(self, self._reason)

    def _host(self) -> str:
        return self.peer.rpartition(":")[0]

    async def _written(self) -> None:
        """Wait until the write buffer has room for another response."""
        if self._count() and self._sent is not None:
            self._time_limit(self._settings.write_timeout, "the response was not read in time")
            await self._sent
            self._time_limit(None)
            self._count()

    # Limits

    def _count(self) -> bool:
        """Update the byte count.  Return False if the connection is closed (for example, because of the limit)."""
        if self._dropped:
            return False
        held = len(self._inbox) + self._in_work
        if self._sent is not None:
            held += self._transport.get_write_buffer_size()
        fits = self._owner.memory.fits(held - self.counted)
        grown, self.counted = held > self.counted, held
        if not fits and grown:
            self._owner.relieve(self)
        return not self._dropped

    def _hold(self, size: int) -> None:
        """Count ``size`` more bytes until the request is answered.  Raise CloseConnection at the limit."""
        self._in_work += size
        if not self._count():
            raise CloseConnection(self._reason)

    def _release(self) -> None:
        """Release all buffered bytes because the connection has ended."""
        self._dropped = True
        self._owner.memory.used -= self.counted
        self.counted = 0
        self._inbox.clear()

    def _time_limit(self, timeout: float | None, reason: str = "") -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
        if timeout is not None:
            self._limit = self._broker.timer.call_later(timeout, self.drop, reason)

    @staticmethod
    def _wake(waiter: "asyncio.Future[None] | None") -> None:
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _begin(request: Coroutine[Any, Any, object]) -> None:
    """Run a request up to its first wait, and withdraw it there."""
    try:
        request.send(None)
    except StopIteration:
        return
    request.close()
