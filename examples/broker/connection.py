"""One connection: frames in, frames out, one request at a time and in order.

While a request is parked the connection goes on reading, so that the end of the client is seen at once: the task that
waits is cancelled, and with it the parked operation is withdrawn.  What a client sends ahead is kept up to the size of
one frame; then reading pauses until the request is answered.  A client may send its last batch with acks=0 and leave:
requests that have arrived before the end are carried out, as far as that needs no waiting.

A connection ends by itself in one of these ways, each logged with its reason: the frame is longer than allowed or no
request; it does not arrive in time; the response is not read in time; nothing is asked for long; all connections
together hold too many bytes.  Nothing of this touches any other connection.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Protocol

from purgatory import TimerTask

from .api import Hangup
from .broker import Broker
from .codec import Malformed, api_key, frame_size
from .table import answer_frame

__all__ = ["Connection", "Memory", "Owner"]

_LOGGER = logging.getLogger("examples.broker")
_PREFIX = 4
_LEAST_REQUEST = 8  # API, version and correlation id
_PRODUCE = 0
_MOST_WITHOUT_DATA = 1 << 20  # bytes of a request that carries no records
_MOST_IN_A_TURN = 16  # requests that one connection may have answered before the others have their turn


class Memory:
    """Bytes held for connections: requests that have not arrived in full, and responses that are not sent."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def fits(self, size: int) -> bool:
        """Count ``size`` more bytes; whether they are still within the limit."""
        self.used += size
        return self.used <= self.limit


class Owner(Protocol):
    """What a connection knows of its server."""

    broker: Broker
    memory: Memory

    def opened(self, connection: "Connection") -> bool: ...

    def closed(self, connection: "Connection", reason: str) -> None: ...


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._broker = owner.broker
        self._settings = owner.broker.settings
        self._transport: Any = None
        self._task: asyncio.Task[None] | None = None
        self._inbox = bytearray()
        self._counted = 0  # bytes that the owner's memory holds against this connection
        self._reading = True
        self._ending = False
        self._more: asyncio.Future[None] | None = None
        self._sent: asyncio.Future[None] | None = None
        self._limit: TimerTask | None = None
        self._reason = ""
        self.peer = "?"
        self.busy = False

    # What the transport tells

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

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 (who left need not say why)
        self._client_left()
        self._time_limit(None)
        self._owner.memory.used -= self._counted
        self._counted = 0
        self._inbox.clear()
        self._owner.closed(self, self._reason)

    def pause_writing(self) -> None:
        self._sent = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        self._wake(self._sent)
        self._sent = None

    # From outside

    def finish(self) -> None:
        """Take no further request; end when the one under way, if any, is answered and sent."""
        self._ending = True
        if not self.busy and self._transport is not None:
            self._transport.close()

    def drop(self, reason: str) -> None:
        """End it now, whatever is under way."""
        if not self._reason:
            self._reason = reason
            _LOGGER.info("connection %s closed: %s", self.peer, reason)
        self._ending = True
        self._transport.abort()

    # Requests

    async def _serve(self) -> None:
        served = 0
        try:
            while not self._ending:
                frame = await self._frame()
                self.busy = True
                response = await answer_frame(self._broker, frame, self._host())
                if response is not None:
                    self._transport.write(response)
                    await self._written()
                self.busy = False
                served += 1
                if served % _MOST_IN_A_TURN == 0:
                    await asyncio.sleep(0)
            self._transport.close()
        except (Malformed, Hangup) as error:
            self.drop(str(error))
        except asyncio.CancelledError:
            raise
        except Exception:  # a defect of the broker, or a message that its codec cannot write: one connection, no more
            _LOGGER.exception("connection %s: the request failed", self.peer)
            self.drop("the request failed")
        finally:
            self._time_limit(None)

    async def _frame(self) -> bytes:
        """The next request, as soon as it is there in full."""
        settings = self._settings
        while True:
            frame = self._take_frame()
            if frame is not None:
                self._time_limit(None)
                return frame
            idle = not self._inbox
            if idle:
                self._time_limit(settings.idle_timeout, "nothing asked for long")
            elif self._limit is None:
                self._time_limit(settings.frame_timeout, "its request does not arrive")
            self._more = asyncio.get_running_loop().create_future()
            await self._more
            if idle:
                self._time_limit(None)

    def _take_frame(self) -> bytes | None:
        """The next request out of what has been read, or None: it is not there in full."""
        inbox = self._inbox
        if len(inbox) < _PREFIX:
            return None
        size = frame_size(inbox)
        most = self._settings.max_frame_bytes
        if size > _MOST_WITHOUT_DATA and len(inbox) >= _PREFIX + 2 and api_key(inbox, _PREFIX) != _PRODUCE:
            most = min(most, _MOST_WITHOUT_DATA)
        if not _LEAST_REQUEST <= size <= most:
            raise Malformed(f"a frame of {size} bytes: {_LEAST_REQUEST} to {most} are taken")
        if len(inbox) < size + _PREFIX:
            return None
        frame = bytes(memoryview(inbox)[_PREFIX : size + _PREFIX])
        del inbox[: size + _PREFIX]
        self._count()
        if not self._reading and len(inbox) <= self._settings.max_frame_bytes:
            self._reading = True
            self._transport.resume_reading()
        return frame

    def _client_left(self) -> None:
        """There is nobody to answer any more."""
        was_ending, self._ending = self._ending, True
        if self._task is not None:
            self._task.cancel()
        if was_ending or self.busy:
            return
        try:
            while (frame := self._take_frame()) is not None:
                _begin(answer_frame(self._broker, frame, self._host()))
        except (Malformed, Hangup) as error:
            self.drop(str(error))

    def _host(self) -> str:
        return self.peer.rpartition(":")[0]

    async def _written(self) -> None:
        """Wait until the client has read enough for another response."""
        if self._sent is not None and self._count():
            self._time_limit(self._settings.write_timeout, "its response is not read")
            await self._sent
            self._time_limit(None)
            self._count()

    # Limits

    def _count(self) -> bool:
        """Tell the memory what this connection holds; False: it was too much, and the connection is closed."""
        held = len(self._inbox)
        if self._sent is not None:
            held += self._transport.get_write_buffer_size()
        fits = self._owner.memory.fits(held - self._counted)
        grown, self._counted = held > self._counted, held
        if not fits and grown:
            self.drop("all connections together hold too many bytes")
            return False
        return True

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
    """Carry out a request up to where it would wait, and withdraw it there."""
    try:
        request.send(None)
    except StopIteration:
        return
    request.close()
