"""Closing a relay sends pending keys, ends the subscription, and leaves no task."""

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.relay import MemoryTransport, Relay
from purgatory.relay.transport import Received, Subscribed
from purgatory.testing import VirtualClock
from tests.helpers import Hasty, turns_until
from tests.relay.kit import Worker, workers


def _own_tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]


@pytest.mark.parametrize("how", ["check", "check_threadsafe", "in a thread"])
async def test_what_is_pending_is_sent(how: str, clock: VirtualClock) -> None:
    """A check in the last turn before closing reaches the other processes.  A program may join its threads before it
    closes the relay, so that the loop has no turn in between.
    """
    (first, second), _ = workers(clock)
    async with second:
        waiting = second.waits("a")
        async with first:
            await clock.settle()
            first.write("a", 1)
            if how == "in a thread":
                thread = threading.Thread(target=first.relay.check_threadsafe, args=["a"])
                thread.start()
                thread.join()
            else:
                getattr(first.relay, how)("a")
        first.relay.check_threadsafe("a")  # dropped
        await clock.settle()
        assert waiting.done()
        assert await waiting is True


async def test_a_thread_and_a_purgatory_that_is_closed_first(clock: VirtualClock, reported: list[Any]) -> None:
    """The check reaches nobody here, and is no error."""
    (worker,), _ = workers(clock, 1)
    async with worker:
        await clock.settle()
        await worker.purgatory.aclose()
        worker.relay.check_threadsafe("a")
        await worker.relay.aclose()
    assert reported == []


async def test_no_task_and_no_subscription_is_left(clock: VirtualClock) -> None:
    """The relay may be connected, connecting, or waiting for its next attempt."""
    for prepare in ("nothing", "stop", "silence"):
        (worker,), (transport,) = workers(clock, 1)
        room = worker.purgatory
        await room.__aenter__()
        if prepare == "stop":
            transport.stop()
        entering = asyncio.create_task(worker.relay.__aenter__())
        if prepare == "silence":
            transport.silence()
            await clock.advance(10.0)
        await entering
        await worker.relay.aclose()
        assert not worker.relay.connected
        assert transport.subscriptions == 0
        await room.aclose()
        assert _own_tasks() == []
        assert clock.next_alarm_ms is None


async def test_operations_stay_parked(clock: VirtualClock) -> None:
    """Closing the relay answers no operations; closing the purgatory does."""
    (worker,), _ = workers(clock, 1)
    async with worker:
        waiting = worker.waits("a")
        await clock.settle()
        await worker.relay.aclose()
        assert not waiting.done()
        worker.state["a"] = 1
        assert worker.purgatory.check_and_complete("a") == 1
        assert await waiting is True


async def test_with_the_engine_away_it_closes_at_once(clock: VirtualClock) -> None:
    """Keys that could not be sent are dropped, without waiting for the engine."""
    (worker,), (transport,) = workers(clock, 1)
    async with worker:
        transport.stop()
        await clock.settle()
        worker.relay.check("a")
        await worker.relay.aclose()
        assert clock.time() == 1000.0


async def test_an_engine_that_hangs_is_waited_for_only_so_long(clock: VirtualClock) -> None:
    """After ``grace`` seconds the publish is cancelled."""

    class Hanging(MemoryTransport):
        async def publish(self, payload: str) -> None:
            await asyncio.get_running_loop().create_future()

    async with Worker(clock, Hanging(clock=clock), {}) as worker:
        await clock.settle()
        worker.relay.check("a")
        closing = asyncio.create_task(worker.relay.aclose(grace=3.0))
        await clock.advance(2.9)
        assert not closing.done()
        await clock.advance(0.1)
        assert closing.done()


async def test_a_clock_that_calls_back_early_does_not_shorten_the_grace() -> None:
    """The clock is read at each wake-up."""
    clock = Hasty(1000.0)
    (worker,), (transport,) = workers(clock, 1)
    async with worker:
        await clock.settle()
        transport.publish = lambda _: asyncio.get_running_loop().create_future()  # type: ignore[method-assign]
        worker.relay.check("a")
        await clock.settle()
        clock.hasty = 3
        closing = asyncio.create_task(worker.relay.aclose(grace=3.0))
        await clock.advance(2.9)
        assert (clock.hasty, closing.done()) == (0, False)
        await clock.advance(0.1)
        assert closing.done()


async def test_a_connection_that_is_lost_while_closing_ends_the_wait(clock: VirtualClock) -> None:
    """No receiver of pending keys is left, so the wait ends."""

    class Hanging(MemoryTransport):
        async def publish(self, payload: str) -> None:
            await asyncio.get_running_loop().create_future()

    transport = Hanging(clock=clock)
    async with Worker(clock, transport, {}) as worker:
        await clock.settle()
        worker.relay.check("a")
        closing = asyncio.create_task(worker.relay.aclose(grace=3.0))
        await clock.settle()
        assert not closing.done()
        transport.disconnect()
        await clock.settle()
        assert closing.done()


async def test_closing_twice(clock: VirtualClock) -> None:
    """A second call waits for the first, and later calls return at once."""
    (worker,), _ = workers(clock, 1)
    async with worker:
        worker.relay.check("a")
        first, second = asyncio.create_task(worker.relay.aclose()), asyncio.create_task(worker.relay.aclose())
        await asyncio.gather(first, second)
        await worker.relay.aclose()
    (other,), _ = workers(clock, 1)
    await other.relay.aclose()  # it was never entered


async def test_closing_that_is_cancelled_still_ends_everything(clock: VirtualClock) -> None:
    """When the CancelledError is raised, the tasks have ended."""

    class Hanging(MemoryTransport):
        async def publish(self, payload: str) -> None:
            await asyncio.get_running_loop().create_future()

    transport = Hanging(clock=clock)
    async with Worker(clock, transport, {}) as worker:
        await clock.settle()
        worker.relay.check("a")
        closing = asyncio.create_task(worker.relay.aclose())
        await clock.settle()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert transport.subscriptions == 0
        assert [name for name in _own_tasks() if "relay" in name] == []


async def test_entering_that_is_cancelled_leaves_nothing(clock: VirtualClock) -> None:
    """If the first attempt hangs and the application gives up, no task is left."""
    transport = MemoryTransport(clock=clock)
    transport.silence()
    room = Purgatory[Any]("test", clock=clock)
    async with room:
        entering = asyncio.create_task(Relay(room, transport).__aenter__())
        await clock.settle()
        assert not entering.done()
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        assert [name for name in _own_tasks() if "relay" in name] == []


async def test_closing_while_another_task_enters(clock: VirtualClock) -> None:
    """The task that opens the relay continues."""
    transport = MemoryTransport(clock=clock)
    transport.silence()
    room = Purgatory[Any]("test", clock=clock)
    async with room:
        relay = Relay(room, transport)
        entering = asyncio.create_task(relay.__aenter__())
        await clock.settle()
        await relay.aclose()
        await entering
        assert not relay.connected


async def test_closing_during_a_read(clock: VirtualClock) -> None:
    """The read is cancelled."""
    (worker,), _ = workers(clock, 1)
    async with worker:
        worker.read_takes = 10.0
        waiting = worker.waits("a")
        await clock.advance(1.0)
        assert worker.reads == [["a"]]
        await worker.relay.aclose()
        assert clock.time() == 1001.0
        assert _own_tasks() != []  # the request
        waiting.cancel()


class Deaf(MemoryTransport):
    """A task that suppresses one cancellation, as ``asyncio.wait_for`` did when its result arrived in the same turn."""

    swallows = ""

    async def publish(self, payload: str) -> None:
        if self.swallows == "publish":
            self.swallows = ""
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.get_running_loop().create_future()
        await super().publish(payload)

    async def listen(self, subscribed: Subscribed, received: Received) -> None:
        try:
            await super().listen(subscribed, received)
        except asyncio.CancelledError:
            if self.swallows != "listen":
                raise
            self.swallows = ""
            await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("method", ["publish", "listen"])
async def test_a_client_that_swallows_a_cancellation_leaves_no_task(clock: VirtualClock, method: str) -> None:
    """The task is cancelled again, and no task is left when the relay is closed."""
    transport = Deaf(clock=clock)
    async with Worker(clock, transport, {}, heartbeat=10.0) as worker:
        await clock.settle()
        transport.swallows = method
        worker.relay.check("a")
        await clock.settle()
        closing = asyncio.create_task(worker.relay.aclose(grace=0.0))
        await clock.advance(3.0)
        assert closing.done()
        left = [task for task in asyncio.all_tasks() if "purgatory/relay" in repr(task)]
        assert left == []


async def test_a_sender_that_swallows_a_cancellation_sends_over_the_next_connection_only(clock: VirtualClock) -> None:
    """If the connection is lost during a publish, one sender continues, not two."""
    transport = Deaf(clock=clock)
    async with Worker(clock, transport, {}) as worker:
        await clock.settle()
        transport.swallows = "publish"
        worker.relay.check("a")
        await clock.settle()
        transport.disconnect()
        await clock.advance(1.0)
        assert worker.relay.connected
        running = [task for task in asyncio.all_tasks() if "Sender.run" in repr(task)]
        assert len(running) == 1
        assert worker.relay.statistics().losses == 1


async def test_closing_while_a_connection_is_torn_down(clock: VirtualClock) -> None:
    """When the relay is closed, the tasks of a connection that was just lost have ended too."""

    class Slow(MemoryTransport):
        async def listen(self, subscribed: Subscribed, received: Received) -> None:
            try:
                await super().listen(subscribed, received)
            finally:
                for _ in range(50):
                    await asyncio.sleep(0)

    transport = Slow(clock=clock)
    async with Worker(clock, transport, {}) as worker:
        for turns in range(12):
            relay = Relay(worker.purgatory, transport)
            await relay.__aenter__()
            await clock.settle()
            connection = relay._connection
            assert connection is not None
            connection.lose(ConnectionError("for a test"))
            for _ in range(turns):
                await asyncio.sleep(0)
            await relay.aclose()
            assert all(task.done() for task in connection.tasks), turns


@pytest.mark.parametrize("how", ["raises", "hangs", "swallows"])
async def test_a_transport_that_cannot_release_its_client(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """The error is logged and delays closing by at most two heartbeats; the application's shutdown does not fail."""
    release = asyncio.Event()

    class Broken(MemoryTransport):
        async def aclose(self) -> None:
            if how == "raises":
                raise ConnectionResetError("the line is dead")
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    if how == "hangs":
                        raise

    async with Worker(clock, Broken(clock=clock), {}, heartbeat=10.0) as worker:
        await clock.settle()
        closing = asyncio.create_task(worker.relay.aclose())
        await clock.advance(20.1)
        assert closing.done()
        await closing
        assert not worker.relay.connected
        assert {"raises": "the line is dead", "hangs": "within 10 s", "swallows": "left behind"}[how] in caplog.text
        release.set()
        await clock.settle()


class Releasing(MemoryTransport):
    """A transport whose ``aclose`` takes some turns of the loop, and then ``seconds``."""

    def __init__(self, clock: VirtualClock, seconds: float = 0.0) -> None:
        super().__init__(clock=clock)
        self.clock = clock
        self.seconds = seconds
        self.log: list[str] = []

    async def aclose(self) -> None:
        self.log.append("begun")
        try:
            for _ in range(20):
                await asyncio.sleep(0)
            await self.clock.sleep(self.seconds)
            self.log.append("released")
        except asyncio.CancelledError:
            self.log.append("cancelled")
            raise


@pytest.mark.parametrize("often", [1, 40])
async def test_a_cancelled_closing_lets_the_transport_release_its_client(clock: VirtualClock, often: int) -> None:
    """Closing ends when the transport has released it, however often it is cancelled, and is then cancelled."""
    transport = Releasing(clock, 5.0)
    async with Worker(clock, transport, {}, heartbeat=10.0) as worker:
        closing = asyncio.create_task(worker.relay.aclose())
        await turns_until(lambda: transport.log == ["begun"])
        for _ in range(often):
            closing.cancel()
            await asyncio.sleep(0)
        await clock.advance(4.9)
        assert not closing.done()
        await clock.advance(0.1)
        assert closing.cancelled()
        assert transport.log == ["begun", "released"]
        assert [name for name in _own_tasks() if "relay" in name] == []


async def test_a_closing_that_is_cancelled_all_the_time_ends_at_the_limit(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A transport that hangs is cancelled after one heartbeat, even if each wait of the closing is cancelled."""
    transport = Releasing(clock, 3600.0)
    async with Worker(clock, transport, {}, heartbeat=10.0) as worker:
        closing = asyncio.create_task(worker.relay.aclose())
        await asyncio.sleep(0)
        for _ in range(99):
            closing.cancel()
            await clock.advance(0.1)
        assert not closing.done()
        closing.cancel()
        await clock.advance(0.2)
        assert closing.cancelled()
        assert transport.log == ["begun", "cancelled"]
        assert "was not closed within 10 s" in caplog.text


async def test_closing_from_another_loop_is_refused(clock: VirtualClock) -> None:
    """Closing from another loop raises RuntimeError, and the relay continues in its own loop."""
    (worker,), _ = workers(clock, 1)
    errors: list[BaseException] = []

    async def close() -> None:
        try:
            await worker.relay.aclose()
        except RuntimeError as error:
            errors.append(error)

    async with worker:
        thread = threading.Thread(target=lambda: asyncio.run(close()))
        thread.start()
        thread.join()
        assert "belongs to another event loop" in str(errors[0])
        assert worker.relay.connected
        assert worker.relay.check("a") == 0


async def test_closing_that_is_cancelled_at_every_turn_leaves_nothing(clock: VirtualClock) -> None:
    """With a read in progress and pending keys, cancelling the closing at any turn leaves no task."""
    for turns in range(1, 16):  # before that it has not begun
        (worker,), (transport,) = workers(clock, 1, heartbeat=10.0)
        async with worker:
            worker.read_takes = 5.0
            waiting = worker.waits("a")
            await clock.advance(0.5)
            transport.silence()  # a publish hangs
            worker.relay.check("a")
            closing = asyncio.create_task(worker.relay.aclose())
            for _ in range(turns):
                await asyncio.sleep(0)
            closing.cancel()
            await clock.advance(0.1)
            assert closing.done(), turns
            left = [task for task in asyncio.all_tasks() if "purgatory/relay" in repr(task) and task is not waiting]
            assert left == [], turns
            waiting.cancel()


async def test_a_caller_that_is_cancelled_at_every_turn_leaves_the_others(clock: VirtualClock) -> None:
    """If one of two callers that wait on a key is cancelled at any turn, the other one is answered."""
    for turns in range(24):
        (first, second), _ = workers(clock, resync_every=1000.0)
        async with first, second:
            leaves = second.waits("a")
            stays = second.waits("a")
            for turn in range(24):
                if turn == 6:
                    first.write("a", 1)
                    first.relay.check("a")
                if turn == turns:
                    leaves.cancel()
                await asyncio.sleep(0)
            await clock.settle()
            assert stays.done(), turns
            assert await stays is True
            assert leaves.done()
            assert len(second.purgatory) == 0


async def test_closing_at_every_turn_of_a_read(clock: VirtualClock) -> None:
    """At any turn of a read, closing leaves no task, and the purgatory answers the waiters."""
    for turns in range(1, 20):  # before that nothing is parked
        (first, second), _ = workers(clock)
        async with first, second:
            waiting = [second.waits(number) for number in range(3)]
            for turn in range(20):
                if turn == 6:
                    first.relay.check(1)
                if turn == turns:
                    await second.relay.aclose()
                await asyncio.sleep(0)
            await second.relay.aclose()
            left = [task for task in asyncio.all_tasks() if "purgatory-relay" in task.get_name()]
            assert len(left) == 2  # those of the other process
            await second.purgatory.aclose()
            assert await asyncio.gather(*waiting) == [False] * 3
