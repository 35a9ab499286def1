"""One connection to the engine, from the attempt to connect until the connection is lost.

==============  =================================================================  =========================
state           ends when                                                          next state
==============  =================================================================  =========================
``CONNECTING``  ``listen`` calls ``subscribed()``                                  ``SUBSCRIBED``
``CONNECTING``  ``listen`` ends, or ``heartbeat`` seconds pass                     ``LOST``
``SUBSCRIBED``  the first ping comes back                                          ``CONNECTED``
``SUBSCRIBED``  ``listen`` or ``publish`` raises, or ``heartbeat`` seconds pass    ``LOST``
``CONNECTED``   ``listen`` or ``publish`` raises, or a ping does not return        ``LOST``
``LOST``        never; the relay makes a new connection after a pause
==============  =================================================================  =========================

An engine may confirm a subscription but deliver nothing, for example because a pooler swallows ``LISTEN`` or the
relay's user is not allowed to publish.  Therefore, only a ping that has come back proves that the connection works.
Until then, keys are sent and received, but nothing relies on the connection.

The first ping is sent again after a tenth of a second, and then after pauses that double, until it comes back: in a
NATS cluster, it may reach a server that has not heard of the new subscription yet.

A socket does not always show that its peer is dead: a router may have dropped the connection, or the engine may hang.
The relay therefore sends a ping to itself through the engine every ``heartbeat`` seconds, and each ping must be back
before the next one is sent.  If this process was stopped, or its loop was busy, the ping may have come back but not
been read yet; the relay then waits one more heartbeat before it drops the connection.
"""

import asyncio
import contextvars
import enum
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, Final

from purgatory import Clock
from purgatory.core.timer.clock import Alarm
from purgatory.core.timer.units import to_seconds

from .receiver import Receiver
from .sender import Sender
from .timing import end_tasks, wake
from .transport import Transport

__all__ = ["Connection", "State"]


_REPEAT_MS: Final = 100
_NUMBERS = itertools.count(1)  # ping numbers: a late ping from an earlier connection must not count for a new one


class State(enum.Enum):
    """The state of a connection."""

    CONNECTING = "connecting"
    SUBSCRIBED = "subscribed"
    CONNECTED = "connected"
    LOST = "lost"


class Connection:
    """One connection to the engine.

    ``subscribed()`` is called when the subscription is confirmed, and ``connected()`` when the first ping comes back.
    ``reason``: why the connection was lost.  ``proven``: whether a ping has come back.
    """

    def __init__(
        self,
        transport: Transport,
        sender: Sender,
        receiver: Receiver,
        subscribed: Callable[[], None],
        connected: Callable[[], None],
        clock: Clock,
        heartbeat_ms: int,
    ) -> None:
        self.state: State = State.CONNECTING
        self.reason: BaseException | None = None
        self.proven: bool = False
        self._sender = sender
        self._receiver = receiver
        self._was_subscribed = subscribed
        self._connected = connected
        self._transport = transport
        self._clock = clock
        self._heartbeat_ms = heartbeat_ms
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tasks: set[asyncio.Task[None]] = set()
        self._ping_number = 0
        self._ping_sent_ms: int | None = None  # when the ping in flight was sent; None if there is none
        self._lag_ms: int | None = None
        self._tick_ms = clock.ceil_ms() + heartbeat_ms
        self._alarm = clock.call_at(self._tick_ms, self._tick)
        self._repetition: Alarm | None = None  # of the first ping

    @property
    def sends(self) -> bool:
        """Whether keys are sent over this connection."""
        return self.state is State.SUBSCRIBED or self.state is State.CONNECTED

    @property
    def lag_ms(self) -> int | None:
        """The time that the last ping took or that the ping in flight has taken so far, whichever is longer."""
        sent_ms = self._ping_sent_ms  # read only once, because metrics are read in another thread
        if sent_ms is None:
            return self._lag_ms
        under_way = self._clock.now_ms() - sent_ms
        last = self._lag_ms
        return last if last is not None and last > under_way else under_way

    async def run(self) -> "set[asyncio.Task[None]]":
        """Wait until the connection is lost, and end its tasks; return the tasks that did not end in time."""
        try:
            self._spawn(self._listen())
            await self._lost
        finally:
            self.lose(ConnectionAbortedError("the relay ended the connection"))
            unfinished = await end_tasks(self.tasks, self._clock, self._heartbeat_ms)
            # The others are forgotten: the tracebacks of their errors refer to this object, and may keep a socket open.
            self.tasks &= unfinished
        return unfinished

    def lose(self, reason: BaseException) -> None:
        """Drop the connection; only the first reason counts."""
        if self.state is not State.LOST:
            self.state = State.LOST
            self.reason = reason
            self._alarm.cancel()
            self._end_repetition()
            wake(self._lost)

    def pong(self, number: int) -> None:
        """Record that a ping of this relay has come back."""
        if self._ping_sent_ms is not None and number == self._ping_number:
            self._lag_ms = self._clock.now_ms() - self._ping_sent_ms
            self._ping_sent_ms = None
            if self.state is State.SUBSCRIBED:
                self.state = State.CONNECTED
                self._end_repetition()
                self.proven = True
                self._connected()

    # Inside

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        # create_task(context=...) is not used: a task factory need not accept a context, and a task copies the current
        # context.
        task = contextvars.Context().run(asyncio.get_running_loop().create_task, coroutine)
        self.tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled():
            reason: BaseException | None = ConnectionAbortedError("the transport's task was cancelled")
        else:
            reason = task.exception()
        self.lose(reason or ConnectionResetError("the transport has stopped listening"))

    async def _listen(self) -> None:
        await self._transport.listen(self._subscribed, self._received)

    def _subscribed(self) -> None:
        if self.state is State.CONNECTING:
            self.state = State.SUBSCRIBED
            self._ping()
            self._repeat_in(_REPEAT_MS)
            self._was_subscribed()
            self._spawn(self._sender.run())

    def _received(self, payload: str | bytes) -> None:
        if self.sends:
            self._receiver.receive(payload, self.pong)

    def _tick(self) -> None:
        now_ms = self._clock.now_ms()
        late_ms = now_ms - self._tick_ms
        if late_ms >= 0:
            heartbeat = f"{to_seconds(self._heartbeat_ms):g} s"
            if self.state is State.CONNECTING:
                self.lose(TimeoutError(f"the engine has not confirmed the subscription within {heartbeat}"))
            elif self._ping_sent_ms is None:
                self._ping()
            elif late_ms <= self._heartbeat_ms // 2:
                self.lose(
                    TimeoutError(f"a ping through the engine has not come back within {heartbeat}{self._cause()}")
                )
            self._tick_ms = now_ms + self._heartbeat_ms
        if self.state is not State.LOST:
            self._alarm = self._clock.call_at(self._tick_ms, self._tick)

    def _cause(self) -> str:
        """Return why no ping has ever come back, if the transport knows a likely cause."""
        cause = None if self.proven else getattr(self._transport, "silence", None)
        return f": {cause}" if isinstance(cause, str) else ""

    def _ping(self) -> None:
        self._ping_number = next(_NUMBERS)
        self._ping_sent_ms = self._clock.now_ms()
        self._tick_ms = self._ping_sent_ms + self._heartbeat_ms
        self._sender.ping(self._ping_number)

    def _repeat_in(self, pause_ms: int) -> None:
        self._repetition = self._clock.call_at(self._clock.ceil_ms() + pause_ms, lambda: self._repeat(pause_ms))

    def _repeat(self, pause_ms: int) -> None:
        self._sender.ping(self._ping_number)
        self._repeat_in(2 * pause_ms)

    def _end_repetition(self) -> None:
        if self._repetition is not None:
            self._repetition.cancel()
            self._repetition = None
