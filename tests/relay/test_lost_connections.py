"""However a connection is lost, no wake-up is lost."""

import asyncio
import contextlib
import itertools
import logging
import weakref
from collections.abc import Hashable
from typing import Any

import pytest

from purgatory import Outcome, Purgatory
from purgatory.relay import MemoryTransport, Relay, RelayLost
from purgatory.testing import VirtualClock
from tests.helpers import Op, check, during, park, turns_until
from tests.relay.kit import Reached, Worker, workers


async def test_what_was_said_while_the_line_was_down_is_made_up_for(clock: VirtualClock) -> None:
    """After a reconnect, the worker refreshes and checks all watched keys once."""
    (first, second), (_, transport) = workers(clock)
    async with first, second:
        waiting = second.waits("a")
        await clock.settle()
        transport.disconnect()
        first.write("a", 1)
        first.relay.check("a")  # before the other has noticed: this notice is lost
        await clock.settle()
        assert not waiting.done()
        await clock.advance(0.1)
        assert await waiting is True
        statistics = second.relay.statistics()
        assert (statistics.connects, statistics.losses, statistics.resyncs) == (2, 1, 2)


async def test_what_was_to_be_said_while_the_line_was_down_is_said_afterwards(clock: VirtualClock) -> None:
    """The other workers stayed connected, so the sender keeps its keys and sends them after the reconnect."""
    (first, second), (transport, _) = workers(clock)
    async with first, second:
        waiting = second.waits("a")
        await clock.settle()
        transport.disconnect()
        await asyncio.sleep(0)
        first.write("a", 1)
        first.relay.check("a")
        assert first.relay.statistics().pending == 1
        await clock.advance(0.1)
        assert await waiting is True
        assert first.relay.statistics().pending == 0
        assert second.relay.statistics().resyncs == 1


async def test_a_publish_that_fails_leaves_its_keys_to_the_next_connection(clock: VirtualClock) -> None:
    """If the engine refuses a message, the relay reconnects and sends it again."""

    class Moody(MemoryTransport):
        refuses = 0

        async def publish(self, payload: str) -> None:
            if "keys" in payload and self.refuses:
                self.refuses -= 1
                raise BrokenPipeError("refused")
            await super().publish(payload)

    moody = Moody(clock=clock)
    table: dict[Any, float] = {}
    async with Worker(clock, moody, table) as one, Worker(clock, moody.peer(), table) as other:
        waiting = other.waits("a")
        await clock.settle()
        moody.refuses = 2
        one.write("a", 1)
        one.relay.check("a")
        await clock.advance(0.5)
        assert await waiting is True
        assert one.relay.statistics().losses == 2
        assert one.relay.statistics().last_loss == "BrokenPipeError: refused"


async def test_a_publish_that_hangs_is_ended_with_its_connection(clock: VirtualClock) -> None:
    """After a heartbeat the publish is cancelled, and its keys are sent over the next connection."""

    class Hanging(MemoryTransport):
        hangs = False

        async def publish(self, payload: str) -> None:
            if self.hangs:
                self.hangs = False
                await asyncio.get_running_loop().create_future()
            await super().publish(payload)

    hanging = Hanging(clock=clock)
    table: dict[Any, float] = {}
    async with Worker(clock, hanging, table, heartbeat=5.0) as one, Worker(clock, hanging.peer(), table) as other:
        waiting = other.waits("a")
        await clock.settle()
        hanging.hangs = True
        one.write("a", 1)
        one.relay.check("a")
        await clock.advance(9.9)
        assert not waiting.done()
        await clock.advance(0.3)
        assert await waiting is True


async def test_a_half_open_connection_is_found_by_its_ping(clock: VirtualClock) -> None:
    """Within two heartbeats the connection is dropped, and the missed changes are found."""
    (first, second), (_, transport) = workers(clock, heartbeat=10.0, resync_every=1000.0)
    async with first, second:
        waiting = second.waits("a", timeout=100.0)
        await clock.settle()
        transport.silence()
        transport.restore()  # for new connections
        first.write("a", 1)
        first.relay.check("a")
        await clock.advance(9.0)
        assert second.relay.connected
        assert not waiting.done()
        await clock.advance(11.1)
        assert await waiting is True
        assert second.relay.statistics().last_loss == (
            "TimeoutError: a ping through the engine has not come back within 10 s"
        )


async def test_a_silent_engine_is_tried_again_and_again(clock: VirtualClock) -> None:
    """An attempt to connect that hangs is cancelled after a heartbeat, and the next one may succeed."""
    (first, second), (_, transport) = workers(clock, heartbeat=10.0, resync_every=1000.0)
    async with first, second:
        waiting = second.waits("a", timeout=100.0)
        await clock.settle()
        transport.silence()
        transport.disconnect()
        first.write("a", 1)
        first.relay.check("a")
        await clock.advance(45.0)
        statistics = second.relay.statistics()
        assert not statistics.connected
        assert statistics.losses in (4, 5)
        assert statistics.last_loss == "TimeoutError: the engine has not confirmed the subscription within 10 s"
        transport.restore()
        await clock.advance(16.0)
        assert second.relay.connected
        assert await waiting is True


async def test_a_process_that_stood_still_does_not_blame_its_connection(clock: VirtualClock) -> None:
    """If a tick is much too late, as after SIGSTOP, the relay waits for one more heartbeat for its ping."""
    late = VirtualClock(1000.0)
    (worker,), (transport,) = workers(late, 1, refreshes=False, heartbeat=10.0)
    async with worker:
        await late.settle()
        connection = worker.relay._connection
        assert connection is not None
        transport.lose(1)
        await late.advance(10.0)  # a ping leaves and is lost
        assert connection.lag_ms == 0
        connection._alarm.cancel()
        await late.advance(25.0)  # stopped: no tick at 20
        connection._tick()
        assert worker.relay.connected
        await late.advance(9.0)
        assert worker.relay.connected
        await late.advance(1.0)
        assert not worker.relay.connected


async def test_the_lag_can_be_read_while_a_ping_returns(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics read the lag in a thread of their own, in which the ping may return at any moment."""
    (worker,), (transport,) = workers(clock, 1, refreshes=False, heartbeat=10.0)
    async with worker:
        await clock.settle()
        connection = worker.relay._connection
        assert connection is not None
        transport.lose(1)
        await clock.advance(12.0)
        now_ms = clock.now_ms

        def returns() -> int:
            connection._ping_sent_ms = None
            return now_ms()

        monkeypatch.setattr(clock, "now_ms", returns)
        assert worker.relay.statistics().lag == 2.0
        monkeypatch.undo()


async def test_a_lost_notice_is_made_up_for_by_the_resync(clock: VirtualClock) -> None:
    """If the engine loses a message silently, the resync finds the change."""
    (first, second), (_, transport) = workers(clock, resync_every=60.0)
    async with first, second:
        waiting = second.waits("a", timeout=100.0)
        await clock.settle()
        transport.lose(1)
        first.write("a", 1)
        first.relay.check("a")
        await clock.advance(53.9)
        assert not waiting.done()
        await clock.advance(6.1)
        assert await waiting is True
        assert second.relay.statistics().losses == 0


async def test_with_the_engine_down_everything_local_works(clock: VirtualClock) -> None:
    """Operations keep their deadlines, local checks work, and changes of other workers arrive with the resync."""
    (first, second), (transport, _) = workers(clock, resync_every=20.0)
    async with first, second:
        expires, local, remote = first.waits("x", timeout=5.0), first.waits("a"), first.waits("b")
        await clock.settle()
        transport.stop()
        await clock.settle()
        assert not first.relay.connected
        await clock.advance(5.0)
        assert await expires is False
        first.write("a", 1)
        first.state["a"] = 1
        assert first.relay.check("a") == 1
        assert await local is True
        second.write("b", 1)
        second.relay.check("b")
        await clock.advance(15.0)
        assert await remote is True
        assert not first.relay.connected


async def test_the_engine_is_tried_for_ever_with_a_growing_pause(clock: VirtualClock) -> None:
    """The pause grows from 50 ms to 5 s, with jitter; when the engine is back, the worker connects within 5 s."""
    (worker,), (transport,) = workers(clock, 1, refreshes=False)
    async with worker:
        transport.stop()
        await clock.advance(1.0)
        early = worker.relay.statistics().losses
        assert 4 <= early <= 8
        await clock.advance(3600.0)
        assert 3600 / 5 < worker.relay.statistics().losses - early < 3600 / 2.4
        transport.start()
        await clock.advance(5.0)
        assert worker.relay.connected


async def test_a_connection_that_is_lost_at_once_again_is_no_success(clock: VirtualClock) -> None:
    """The pause is reset only when a ping has returned, so a useless connection is not retried quickly."""

    class Deaf(MemoryTransport):
        async def publish(self, payload: str) -> None:
            raise PermissionError("you may not publish")

    room = Purgatory[Any]("test", clock=clock)
    async with room, Relay(room, Deaf(clock=clock)) as relay:
        await clock.advance(60.0)
        assert relay.statistics().connects < 30


async def test_an_engine_that_is_down_at_the_start_does_not_keep_the_worker_from_starting(clock: VirtualClock) -> None:
    """Opening returns after the first failure; a later connection refreshes the watched keys."""
    (first, second), (transport, _) = workers(clock)
    transport.stop()
    async with first, second:
        assert not first.relay.connected
        waiting = second.waits("a")
        first.write("a", 1)
        first.relay.check("a")
        transport.start()
        await clock.advance(1.0)
        assert first.relay.connected
        assert await waiting is True


async def test_on_lost_fail(clock: VirtualClock) -> None:
    """Waits on relayed keys fail with RelayLost, new ones are refused, and local keys are not affected."""
    (first,), (transport,) = workers(clock, 1, on_lost="fail")
    local = object()
    async with first:
        waiting = [first.waits(f"key {number // 2}") for number in range(250)]
        beside = asyncio.create_task(first.purgatory.wait_until(lambda: False, keys=[local], timeout=5.0))
        await clock.settle()
        transport.stop()
        await clock.settle()
        for task in waiting:
            with pytest.raises(RelayLost, match=r"the relay has lost its connection: .*in memory was broken"):
                await task
        assert len({task.exception() for task in waiting}) == len(waiting)
        with pytest.raises(RelayLost, match="the relay is not connected"):
            await first.relay.park(Reached(first, "a", 1, 5.0), ["a"])
        assert not beside.done()
        transport.start()
        await clock.advance(5.0)
        assert await beside is False
        assert first.relay.connected
        again = first.waits("a")
        await clock.settle()
        assert not again.done()
        first.write("a", 1)
        first.relay.check("a")
        await clock.settle()
        assert await again is True


async def test_an_error_before_the_first_connection_names_no_loss(clock: VirtualClock) -> None:
    """RelayLost states that the relay has not connected yet and, after the first failed attempt, states its error."""
    (first,), (transport,) = workers(clock, 1, on_lost="fail")
    transport.silence()
    async with first.purgatory:
        entering = asyncio.create_task(first.relay.__aenter__())
        await clock.settle()
        with pytest.raises(RelayLost, match=r"^the relay has not connected yet$"):
            await first.relay.park(Reached(first, "a", 1, 5.0), ["a"])
        await clock.advance(30.0)
        await entering
        with pytest.raises(RelayLost, match=r"^the relay is not connected: TimeoutError: "):
            await first.relay.park(Reached(first, "a", 1, 5.0), ["a"])
        await first.relay.aclose()


def park_many(worker: Worker, number: int, key: Hashable) -> list[Op]:
    """Return this number of operations that wait on the key."""
    return [park(worker.purgatory, key) for _ in range(number)]


@pytest.mark.parametrize(("keys", "watchers"), [(1, 5000), (100, 50), (5000, 1)])
async def test_on_lost_fail_works_in_slices(clock: VirtualClock, keys: int, watchers: int) -> None:
    """No turn of the loop fails many operations, whether they wait on one key or on many."""
    (first,), (transport,) = workers(clock, 1, on_lost="fail")
    async with first:
        for key in range(keys):
            park_many(first, watchers, key)
        left = [len(first.purgatory)]
        transport.stop()
        while left[-1]:
            await asyncio.sleep(0)
            left.append(len(first.purgatory))
            assert len(left) < 1000
        assert max(before - after for before, after in itertools.pairwise(left)) <= 400
        check(first.purgatory, failed=keys * watchers)


async def test_on_lost_fail_ends_when_the_connection_is_back(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operations that have not failed by then go on waiting, those on the same key included."""
    monkeypatch.setattr("purgatory.relay.relay.sleep_ms", lambda *_: asyncio.sleep(0))  # connects again at once
    (first,), (transport,) = workers(clock, 1, on_lost="fail")
    async with first:
        operations = park_many(first, 5000, "a")
        transport.disconnect()
        await turns_until(lambda: not first.relay.connected)
        await turns_until(lambda: first.relay.connected)
        late = park_many(first, 10, "a")
        await clock.settle()
        left = [operation for operation in operations if operation.outcome is Outcome.PENDING]
        assert 0 < len(left) < len(operations)
        assert {operation.outcome for operation in late} == {Outcome.PENDING}
        transport.disconnect()
        transport.stop()  # no attempt succeeds
        await turns_until(lambda: len(first.purgatory) == 0)
        with pytest.raises(RelayLost, match=r"the relay has lost its connection"):
            left[0].result()
        check(first.purgatory, failed=5010)


async def test_closing_ends_the_failing_of_operations(clock: VirtualClock) -> None:
    """Operations that have not failed when the relay closes stay parked, as at every closing."""
    (first,), (transport,) = workers(clock, 1, on_lost="fail")
    async with first:
        park_many(first, 5000, "a")
        transport.stop()
        await turns_until(lambda: len(first.purgatory) < 5000)
        await first.relay.aclose()
        left = len(first.purgatory)
        assert left > 0
        await clock.settle()
        assert len(first.purgatory) == left


async def test_a_listen_that_does_not_end_when_cancelled_is_left_behind(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """If a client library hangs while it closes, the relay waits at most one heartbeat."""
    release = asyncio.Event()

    class Stubborn(MemoryTransport):
        async def listen(self, subscribed: Any, received: Any) -> None:
            try:
                await super().listen(subscribed, received)
            finally:
                while not release.is_set():
                    with contextlib.suppress(asyncio.CancelledError):
                        await release.wait()

    transport = Stubborn(clock=clock)
    async with Worker(clock, transport, {}, refreshes=False, heartbeat=10.0) as worker:
        await clock.settle()
        transport.silence()
        transport.restore()
        await clock.advance(31.0)
        assert worker.relay.statistics().connects == 2
        assert "did not end when they were cancelled" in caplog.text
        release.set()


@pytest.mark.usefixtures("no_gc")
async def test_what_a_cancelled_attempt_holds_is_freed_at_once(clock: VirtualClock) -> None:
    """It may be a socket, which would otherwise stay open until the garbage collector runs."""

    class Socket:
        pass

    sockets: list[weakref.ref[Socket]] = []

    class Unconfirmed(MemoryTransport):
        async def listen(self, subscribed: Any, received: Any) -> None:
            socket = Socket()
            sockets.append(weakref.ref(socket))
            await self.endless()

        async def endless(self) -> None:
            await asyncio.get_running_loop().create_future()

    relay = Relay(Purgatory[Any]("test", clock=clock), Unconfirmed(clock=clock), heartbeat=1.0)
    await during(clock, 30.0, relay.__aenter__())
    assert len(sockets) > 3
    assert [socket() for socket in sockets[:-1]] == [None] * (len(sockets) - 1)
    await relay.aclose()
    assert sockets[-1]() is None


async def test_an_outage_is_logged_once(clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> None:
    """There is one warning when the connection is lost, for any number of attempts, and one line when it is back."""
    caplog.set_level(logging.INFO, "purgatory.relay")
    (worker,), (transport,) = workers(clock, 1, refreshes=False)
    async with worker:
        await clock.settle()
        transport.stop()
        await clock.advance(60.0)
        transport.start()
        await clock.advance(6.0)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "is not connected" in caplog.text
    assert "is connected again" in caplog.text


async def test_a_task_of_the_transport_that_is_cancelled_from_outside_is_a_loss(clock: VirtualClock) -> None:
    """The relay treats the cancellation as a lost connection and reconnects."""
    (worker,), _ = workers(clock, 1, refreshes=False)
    async with worker:
        await clock.settle()
        connection = worker.relay._connection
        assert connection is not None
        for task in list(connection.tasks):
            task.cancel()
        await clock.advance(1.0)
        assert worker.relay.connected
        assert worker.relay.statistics().losses == 1


async def test_a_bug_in_the_transport_is_a_loss(clock: VirtualClock) -> None:
    """A transport that calls ``subscribed`` twice, delivers too early and returns only causes a new attempt."""

    class Odd(MemoryTransport):
        async def listen(self, subscribed: Any, received: Any) -> None:
            received('[1,"","all"]')
            subscribed()
            subscribed()
            await asyncio.sleep(0)

    room = Purgatory[Any]("test", clock=clock)
    async with room, Relay(room, Odd(clock=clock)) as relay:
        await clock.advance(0.3)
        statistics = relay.statistics()
        assert statistics.connects > 1
        assert statistics.everything_received == 0
        assert statistics.last_loss == "ConnectionResetError: the transport has stopped listening"


async def test_an_error_of_the_relay_itself_does_not_end_it(
    clock: VirtualClock, reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the task that keeps the connection is reported, and the task is restarted."""
    (worker,), (transport,) = workers(clock, 1, refreshes=False)
    async with worker:
        await clock.settle()

        def broken(*_: Any) -> int:
            monkeypatch.undo()
            raise RuntimeError("a bug")

        monkeypatch.setattr("purgatory.relay.relay.backoff_ms", broken)
        transport.disconnect()
        await clock.settle()
        assert worker.relay.connected
        assert [str(context["exception"]) for context in reported] == ["a bug"]
        assert "a task of the relay of purgatory 'worker' raised" in reported[0]["message"]


@pytest.mark.parametrize("direction", ["out", "in"])
async def test_a_line_that_is_dead_in_one_direction_is_found_by_its_ping(clock: VirtualClock, direction: str) -> None:
    """If the engine drops confirmed messages, or delivers nothing, all changes are found within two heartbeats."""

    class OneWay(MemoryTransport):
        dead = False

        async def publish(self, payload: str) -> None:
            if not self.dead:
                await super().publish(payload)

    table: dict[Hashable, float] = {}
    transport = OneWay(clock=clock)
    options: dict[str, Any] = {"heartbeat": 10.0, "resync_every": 1000.0}
    async with (
        Worker(clock, transport, table, **options) as first,
        Worker(clock, transport.peer(), table, **options) as second,
    ):
        here, there = first.waits("a", timeout=100.0), second.waits("b", timeout=100.0)
        await clock.settle()
        if direction == "out":
            transport.dead = True
        else:
            transport.deliveries = lambda _: []
        second.write("a", 1)
        second.relay.check("a")
        await clock.settle()
        assert here.done() is (direction == "out")
        await clock.advance(20.1)
        assert "a ping through the engine has not come back" in str(first.relay.statistics().last_loss)
        transport.dead, transport.deliveries = False, None
        await clock.advance(12.0)
        assert first.relay.connected
        assert here.done()
        first.write("b", 1)
        first.relay.check("b")
        await clock.settle()
        assert await asyncio.gather(here, there) == [True, True]


async def test_an_engine_that_is_down_for_a_minute(clock: VirtualClock) -> None:
    """Deadlines and local checks work; changes are answered within 5 s, and at most ``max_keys`` keys are kept."""
    (first, second), (transport, _) = workers(clock, heartbeat=10.0, resync_every=1000.0, max_keys=100)
    async with first, second:
        for worker in (first, second):
            worker.state = first.state  # for a local answer without a read
        remote = [second.waits(f"r{number}", timeout=300.0) for number in range(150)]
        await clock.settle()
        transport.stop()
        await clock.settle()
        for second_of_outage in range(60):
            assert not first.relay.connected
            assert not second.relay.connected
            expires = first.waits("expires", timeout=0.5)
            local = first.waits(f"l{second_of_outage}", timeout=300.0)
            await clock.advance(0.49)
            assert not expires.done()
            await clock.advance(0.01)
            assert expires.done()
            assert await expires is False
            first.write(f"l{second_of_outage}", 1)
            first.state[f"l{second_of_outage}"] = 1
            assert first.relay.check(f"l{second_of_outage}") == 1
            assert await local is True
            await clock.advance(0.5)
        second.state = {}
        for number in range(150):
            first.write(f"r{number}", 1)
            first.relay.check(f"r{number}")
        assert first.relay.statistics().pending <= 100
        assert first.relay.statistics().collapsed == 1
        assert not any(task.done() for task in remote)
        transport.start()
        await clock.advance(5.0)
        assert first.relay.connected
        assert second.relay.connected
        assert await asyncio.gather(*remote) == [True] * 150


async def test_a_listen_that_is_not_asynchronous_is_a_loss_with_a_pause(
    clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """A ``listen`` that is not asynchronous does not keep the loop busy."""

    class NotAsync(MemoryTransport):
        def listen(self, subscribed: Any, received: Any) -> Any:
            raise TypeError("listen needs an argument")

    room = Purgatory[Any]("test", clock=clock)
    async with room, Relay(room, NotAsync(clock=clock)) as relay:
        await clock.advance(60.0)
        assert 12 <= relay.statistics().losses <= 40
        assert relay.statistics().last_loss == "TypeError: listen needs an argument"
    assert reported == []


async def test_a_purgatory_that_is_closed_first_ends_quietly(clock: VirtualClock, reported: list[Any]) -> None:
    """The relay still reconnects, resyncs and receives without an error, although no operation is left."""
    for refreshes in (False, True):
        (worker,), (transport,) = workers(clock, 1, refreshes=refreshes, resync_every=20.0)
        async with worker:
            waiting = worker.waits("a")
            await clock.settle()
            await worker.purgatory.aclose()
            assert await waiting is False
            await transport.peer().publish('[1,"other","keys",[["a",5]]]')
            await transport.peer().publish('[1,"other","all"]')
            await clock.advance(30.0)
            transport.disconnect()
            await clock.advance(1.0)
            assert worker.relay.connected
            assert worker.relay.statistics().losses == 1
    assert reported == []
