"""The in-memory engine: its deliveries, and the faults that it simulates on request."""

import asyncio

import pytest

from purgatory.relay import MemoryTransport
from purgatory.testing import VirtualClock


class Listener:
    """A task that listens, and the messages that it received."""

    def __init__(self, transport: MemoryTransport) -> None:
        self.subscribed = 0
        self.heard: list[str | bytes] = []
        self.task = asyncio.create_task(transport.listen(self._subscribed, self.heard.append))

    def _subscribed(self) -> None:
        self.subscribed += 1

    async def end(self) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


async def test_every_subscriber_hears_every_message(clock: VirtualClock) -> None:
    """Subscribers on the same transport, on a peer, and the sender itself receive messages, never within
    ``publish()``.
    """
    first = MemoryTransport(clock=clock)
    second = first.peer()
    listeners = [Listener(first), Listener(first), Listener(second)]
    await clock.settle()
    assert (first.subscriptions, second.subscriptions) == (2, 1)
    await first.publish("hello")
    assert [listener.heard for listener in listeners] == [[], [], []]
    await clock.settle()
    assert [listener.heard for listener in listeners] == [["hello"]] * 3
    for listener in listeners:
        assert listener.subscribed == 1
        await listener.end()
    assert first.subscriptions == second.subscriptions == 0


async def test_deliveries_lose_duplicate_delay_and_reorder(clock: VirtualClock) -> None:
    """A function returns the delays, in seconds, after which the copies of a message arrive."""
    delays = {"lost": [], "twice": [0.0, 2.0], "late": [1.0], "soon": [0.5]}
    transport = MemoryTransport(clock=clock, deliveries=lambda payload: delays[payload])
    listener = Listener(transport)
    await clock.settle()
    for payload in delays:
        await transport.publish(payload)
    await clock.advance(3.0)
    assert listener.heard == ["twice", "soon", "late", "twice"]
    await listener.end()


async def test_disconnect_ends_listening_and_what_is_on_its_way(clock: VirtualClock) -> None:
    """The listening task raises, a delayed message does not arrive, and a new task may listen."""
    transport = MemoryTransport(clock=clock, deliveries=lambda _: [1.0])
    listener = Listener(transport)
    await clock.settle()
    await transport.publish("lost")
    transport.disconnect()
    with pytest.raises(ConnectionResetError):
        await listener.task
    again = Listener(transport)
    await clock.advance(2.0)
    assert (listener.heard, again.heard, again.subscribed) == ([], [], 1)
    await again.end()


async def test_silence_is_half_open(clock: VirtualClock) -> None:
    """Nothing fails and nothing arrives; after ``restore()`` only new connections work."""
    transport = MemoryTransport(clock=clock)
    other = transport.peer()
    old, elsewhere = Listener(transport), Listener(other)
    await clock.settle()
    transport.silence()
    publishing = asyncio.create_task(transport.publish("into the void"))
    await other.publish("not heard")
    hanging = Listener(transport)
    await clock.settle()
    assert (old.heard, elsewhere.heard, hanging.subscribed) == ([], ["not heard"], 0)
    assert not old.task.done()
    assert not publishing.done()
    publishing.cancel()
    transport.restore()
    fresh = Listener(transport)
    await clock.settle()
    await transport.publish("heard")
    await clock.settle()
    assert (old.heard, hanging.heard, fresh.heard, elsewhere.heard) == ([], [], ["heard"], ["not heard", "heard"])
    for listener in (old, hanging, fresh, elsewhere):
        await listener.end()


async def test_an_engine_that_is_stopped_refuses(clock: VirtualClock) -> None:
    """All connections break, and neither listening nor publishing works until the engine is started."""
    transport = MemoryTransport(clock=clock)
    other = transport.peer()
    listeners = [Listener(transport), Listener(other)]
    await clock.settle()
    other.stop()
    for listener in listeners:
        with pytest.raises(ConnectionResetError):
            await listener.task
    with pytest.raises(ConnectionRefusedError):
        await Listener(transport).task
    with pytest.raises(ConnectionResetError):
        await transport.publish("x")
    other.start()
    again = Listener(transport)
    await clock.settle()
    await other.publish("y")
    await clock.settle()
    assert again.heard == ["y"]
    await again.end()


async def test_lose_and_max_payload(clock: VirtualClock) -> None:
    """The next messages to one transport are lost; a payload above the limit raises ValueError, as with an engine."""
    transport = MemoryTransport(clock=clock, max_payload=5)
    other = transport.peer()
    listeners = [Listener(transport), Listener(other)]
    await clock.settle()
    transport.lose(2)
    for payload in ["a", "b", "c"]:
        await other.publish(payload)
    await clock.settle()
    assert [listener.heard for listener in listeners] == [["c"], ["a", "b", "c"]]
    with pytest.raises(ValueError, match="a payload must have at most 5 bytes, got 6"):
        await other.publish("123456")
    for listener in listeners:
        await listener.end()


async def test_without_a_clock_delays_are_the_loops() -> None:
    """Without a clock, a delayed message uses the event loop's timer."""
    transport = MemoryTransport(deliveries=lambda _: [0.001])
    arrived = asyncio.Event()
    subscribed = asyncio.Event()
    task = asyncio.create_task(transport.listen(subscribed.set, lambda _: arrived.set()))
    await subscribed.wait()
    await transport.publish("x")
    await asyncio.wait_for(arrived.wait(), 10.0)
    task.cancel()
