"""An in-memory engine, for event loops in the threads of one process, and for tests in virtual time that cause faults
on command.
"""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from purgatory import Clock
from purgatory.core.timer.units import ceil_ms

from .codec import encode_everything
from .transactions import after_commit
from .transport import Received, Subscribed

__all__ = ["MemoryTransport"]

_MOST_WAITING: Final = 1_000  # the maximum number of payloads from other threads that wait for one loop
_EVERYTHING: Final = encode_everything("")


class _Engine:
    """Delivers every message to every subscription.

    Any thread may publish and subscribe.  ``subscriptions`` is a tuple that is replaced but never modified, so a
    publisher needs no lock.
    """

    __slots__ = ("_lock", "running", "subscriptions")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.running = True
        self.subscriptions: tuple[_Subscription, ...] = ()

    def subscribe(self, subscription: "_Subscription") -> None:
        with self._lock:
            self.subscriptions = (*self.subscriptions, subscription)

    def unsubscribe(self, subscription: "_Subscription") -> None:
        with self._lock:
            self.subscriptions = tuple([other for other in self.subscriptions if other is not subscription])

    def publish(self, payload: str) -> None:
        for subscription in self.subscriptions:
            subscription.send(payload)


class _Subscription:
    """One subscription, which belongs to the event loop in which it was created.

    All methods except ``send`` and ``lose`` are called in the thread of that loop.  Payloads from other threads
    wait in the ``inbox``; one callback in the loop takes them all.
    """

    __slots__ = ("_inbox", "_lock", "_loop", "_transport", "broken", "received", "silent")

    def __init__(self, transport: "MemoryTransport", received: Received) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._lock = threading.Lock()
        self._inbox: list[str] = []
        self.broken: asyncio.Future[None] = self._loop.create_future()
        self.received = received
        self.silent = False

    def send(self, payload: str) -> None:
        """Deliver the payload in a later turn of the loop."""
        if _running_loop() is self._loop:
            self._transport._deliver(self, payload)
            return
        with self._lock:
            is_first = not self._inbox
            if len(self._inbox) < _MOST_WAITING:
                self._inbox.append(payload)
            else:
                self._inbox = [_EVERYTHING]  # the loop is busy: memory must stay bounded, and no key may be missed
        if is_first:
            self._call(self._take)

    def lose(self) -> None:
        """Break the connection."""
        if _running_loop() is self._loop:
            self._break()
        else:
            self._call(self._break)

    def _call(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed, and nothing listens any longer
            self._loop.call_soon_threadsafe(callback, context=contextvars.Context())

    def _take(self) -> None:
        with self._lock:
            payloads, self._inbox = self._inbox, []
        for payload in payloads:
            self._transport._deliver(self, payload)

    def _break(self) -> None:
        if not self.broken.done():
            self.broken.set_exception(ConnectionResetError("the connection in memory was broken"))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    return asyncio._get_running_loop()


class MemoryTransport:
    """Relays checks between the purgatories in one process, even between event loops in different threads.

    ::

        engine = MemoryTransport()

        async def serve() -> None:                     # in each thread: asyncio.run(serve())
            room = Purgatory("orders")
            async with room, Relay(room, engine.peer()) as relay:
                ...

    Each loop has its own purgatory, its own relay, and its own :meth:`peer`.  A notice from another thread wakes the
    loop.  Notices that arrive before the loop has taken the first ones do not wake it again; if there are too many,
    they become a single notice, "check every key".  The transport is thread-safe even without the GIL.

    A test can cause the faults of a real engine, for the relays that use one transport::

        clock = VirtualClock()
        first = MemoryTransport(clock=clock)
        second = first.peer()                # another worker's connection to the same engine
        async with room_1, room_2, Relay(room_1, first), Relay(room_2, second):
            second.silence()                 # half-open: nothing gets through, and nothing fails

    Relays that share one transport share its faults; a transport that :meth:`peer` returns has separate faults.  Call
    the methods that cause faults only in the thread in which the relays run.

    ``clock``: the clock for delayed messages; by default, the event loop's clock.  ``max_payload``: the largest
    payload, in bytes.  ``deliveries``: called with every payload that is about to reach this transport; returns the
    delays, in seconds, after which copies of the payload arrive.  ``[0.0]`` delivers the message at once, ``[]`` loses
    it, ``[0.0, 0.2]`` duplicates it, and different delays reorder messages.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        max_payload: int = 65_536,
        deliveries: Callable[[str], Iterable[float]] | None = None,
    ) -> None:
        self._engine = _Engine()
        self._clock = clock
        self._subscriptions: set[_Subscription] = set()
        self._silent = False
        self._messages_to_lose = 0
        self.deliveries = deliveries
        self.max_payload = max_payload

    def peer(self, *, deliveries: Callable[[str], Iterable[float]] | None = None) -> "MemoryTransport":
        """Return a new transport for the same engine, with its own faults.  Any thread may call this method."""
        other = MemoryTransport(clock=self._clock, max_payload=self.max_payload, deliveries=deliveries)
        other._engine = self._engine
        return other

    # The protocol

    async def listen(self, subscribed: Subscribed, received: Received) -> None:
        """See :meth:`Transport.listen`."""
        subscription = _Subscription(self, received)
        if self._silent:
            await subscription.broken
        if not self._engine.running:
            raise ConnectionRefusedError("the engine in memory is stopped")
        self._subscriptions.add(subscription)
        self._engine.subscribe(subscription)
        try:
            subscribed()
            await subscription.broken
        finally:
            self._engine.unsubscribe(subscription)
            self._subscriptions.discard(subscription)

    async def publish(self, payload: str) -> None:
        """See :meth:`Transport.publish`.  The message arrives in a later turn of the loop."""
        if len(payload) > self.max_payload:
            raise ValueError(f"a payload must have at most {self.max_payload} bytes, got {len(payload)}")
        if self._silent:
            await asyncio.get_running_loop().create_future()  # the engine does not confirm the message
        if not self._engine.running:
            raise ConnectionResetError("the engine in memory is stopped")
        self._engine.publish(payload)

    async def publish_in(self, connection: Any, payload: str) -> None:
        """See :meth:`TransactionalTransport.publish_in`.

        There are no transactions in memory.  With an SQLAlchemy session, the payload is published after the commit;
        with any other object as ``connection``, it is published at once.
        """
        if not after_commit(connection, partial(self._engine.publish, payload)):
            await self.publish(payload)

    def publish_in_sync(self, connection: Any, payload: str) -> None:
        """Do the same as :meth:`publish_in`, for a :class:`Notifier`."""
        if not after_commit(connection, partial(self._engine.publish, payload)):
            self._engine.publish(payload)

    def __copy__(self) -> "MemoryTransport":
        """Return a transport that publishes through the same engine, for a :class:`Notifier`."""
        other = MemoryTransport(clock=self._clock, max_payload=self.max_payload)
        other._engine = self._engine
        return other

    async def aclose(self) -> None:
        """See :meth:`Transport.aclose`.  There is nothing to release."""

    def _deliver(self, subscription: _Subscription, payload: str) -> None:
        if subscription.silent:
            return
        if self._messages_to_lose > 0:
            self._messages_to_lose -= 1
            return
        for delay in [0.0] if self.deliveries is None else self.deliveries(payload):
            self._after(delay, lambda: self._receive(subscription, payload))

    def _after(self, delay: float, callback: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        if delay <= 0.0:
            loop.call_soon(callback)
        elif self._clock is None:
            loop.call_later(delay, callback)
        else:
            self._clock.call_at(self._clock.ceil_ms() + max(1, ceil_ms(delay)), callback)

    def _receive(self, subscription: _Subscription, payload: str) -> None:
        if subscription in self._subscriptions and not subscription.silent and not subscription.broken.done():
            subscription.received(payload)

    # Faults

    @property
    def subscriptions(self) -> int:
        """The number of relays that are subscribed through this transport."""
        return len(self._subscriptions)

    def disconnect(self) -> None:
        """Break the connections of this transport; the relays detect the loss at once and may connect again."""
        for subscription in list(self._subscriptions):
            subscription.lose()

    def silence(self) -> None:
        """Make the connection half-open: nothing gets through in either direction, and nothing fails.

        Existing connections stay silent forever, like connections that a router has dropped; new connections and calls
        to publish hang until :meth:`restore` is called.
        """
        self._silent = True
        for subscription in self._subscriptions:
            subscription.silent = True

    def restore(self) -> None:
        """Let new connections through again."""
        self._silent = False

    def lose(self, messages: int = 1) -> None:
        """Silently lose the next ``messages`` messages to this transport."""
        self._messages_to_lose += messages

    def stop(self) -> None:
        """Stop the engine: every connection of every transport breaks, and no connection is accepted."""
        self._engine.running = False
        for subscription in self._engine.subscriptions:
            subscription.lose()

    def start(self) -> None:
        """Start the engine again."""
        self._engine.running = True
