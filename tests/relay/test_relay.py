"""Relayed checks: what is sent, what arrives, and what is refused."""

import asyncio
import os
import threading
from collections import OrderedDict
from contextvars import ContextVar
from typing import Any

import pytest

from purgatory import DelayedOperation, Purgatory, PurgatoryClosed, PurgatoryFull
from purgatory.relay import MemoryTransport, Relay, RelayStatistics, TransactionalTransport, Transport
from purgatory.relay.codec import decode
from purgatory.testing import VirtualClock
from tests.helpers import during
from tests.relay.kit import Reached, Worker, workers


def record(transport: MemoryTransport) -> list[str]:
    """Return a list that records what is sent to the transport."""
    heard: list[str] = []

    def deliveries(payload: str) -> list[float]:
        heard.append(payload)
        return [0.0]

    transport.deliveries = deliveries
    return heard


async def test_a_check_in_one_process_answers_in_another(clock: VirtualClock) -> None:
    """A request waits in one worker, the state changes in another, and the answer arrives without a delay."""
    (first, second), _ = workers(clock)
    async with first, second:
        waiting = second.waits("o-1", 3)
        await clock.settle()
        first.write("o-1", 3)
        first.relay.check("o-1")
        await clock.settle()
        assert waiting.done()
        assert await waiting is True
        assert clock.time() == 1000.0


async def test_here_it_is_checked_at_once(clock: VirtualClock) -> None:
    """The caller's own process does not wait for the engine, and the number of completed operations is returned."""
    (worker,), _ = workers(clock, 1, refreshes=False)
    async with worker:
        waiting = [worker.waits("a") for _ in range(3)]
        await clock.settle()
        worker.write("a", 1)
        assert worker.relay.check("a") == 3
        assert worker.relay.check("a") == 0
        assert await asyncio.gather(*waiting) == [True] * 3


async def test_a_thread_checks_here_and_in_another_process(clock: VirtualClock) -> None:
    """A thread, such as that of a ``def`` endpoint, answers the waits of both processes with ``check_threadsafe``."""
    (first, second), _ = workers(clock)
    async with first, second:
        waiting = [first.waits("o-1", 3), second.waits("o-1", 3)]
        await clock.settle()
        first.write("o-1", 3)
        await asyncio.to_thread(first.relay.check_threadsafe, "o-1", 3)
        await clock.settle()
        assert await asyncio.gather(*waiting) == [True, True]
        for key, value in (object(), None), ("o-1", "3"):
            with pytest.raises(TypeError):
                first.relay.check_threadsafe(key, value)  # type: ignore[arg-type]
    first.relay.check_threadsafe("o-1")  # dropped, because the relay is closed
    with pytest.raises(RuntimeError, match="belongs to no event loop yet"):
        Relay(Purgatory[Any]("new"), MemoryTransport()).check_threadsafe("o-1")


async def test_a_check_in_a_thread_names_the_call_for_threads(clock: VirtualClock) -> None:
    """``check`` outside the relay's event loop raises RuntimeError that names ``check_threadsafe``; nothing is sent."""
    (worker,), (transport,) = workers(clock, 1)
    async with worker:
        heard = record(transport)
        with pytest.raises(RuntimeError, match=r"call check_threadsafe\(\)"):
            await asyncio.to_thread(worker.relay.check, "o-1")
        await clock.settle()
        assert heard == []


async def test_the_own_process_is_refreshed_too(clock: VirtualClock) -> None:
    """A handler that wrote only to the table still answers other requests in its own process."""
    (worker,), _ = workers(clock, 1)
    async with worker:
        waiting = worker.waits("a")
        await clock.settle()
        worker.write("a", 1)
        assert worker.relay.check("a") == 0
        await clock.settle()
        assert waiting.done()
        assert await waiting is True


async def test_the_checks_of_one_turn_are_one_message(clock: VirtualClock) -> None:
    """Each key is sent once with its largest value, however often it was checked; a process ignores its own echo."""
    (first, second), (_, transport) = workers(clock, refreshes=False)
    heard = record(transport)
    async with first, second:
        await clock.settle()
        heard.clear()
        for value in [5, 9, 7]:
            for key in ["a", "b"]:
                first.relay.check(key, value)
        first.relay.check("b")
        await clock.settle()
        assert [decode(payload).entries for payload in heard] == [[("a", 9), ("b", None)]]
        sent, received = first.relay.statistics(), second.relay.statistics()
        assert (sent.sent, sent.messages_sent, sent.received) == (2, 2, 0)  # a ping and the notice
        assert (received.received, received.everything_received, received.sent) == (2, 0, 0)
        assert (sent.messages_received, received.messages_received) == (3, 2)  # of two pings it heard one


async def test_two_hundred_thousand_checks_of_fifty_thousand_keys(clock: VirtualClock) -> None:
    """In one turn, they become one message, "every key"; with a larger limit each key is sent once."""
    (first, second), _ = workers(clock, refreshes=False)
    async with first, second:
        await clock.settle()
        before = first.relay.statistics().messages_sent
        for _ in range(4):
            for number in range(50_000):
                first.relay.check(number)
        assert first.relay.statistics().pending == 1  # not 0, because something is left to send
        await clock.settle()
        after = first.relay.statistics()
        assert after.pending == 0
        assert after.messages_sent - before == 1
        assert (after.collapsed, after.everything_sent, after.sent) == (1, 1, 0)
        assert second.relay.statistics().everything_received == 1


async def test_thresholds_travel(clock: VirtualClock) -> None:
    """A relayed value skips the operations in the other process whose threshold it does not reach."""
    (first, second), _ = workers(clock, refreshes=False)
    async with first, second:
        tries: list[float] = []

        class Counted(Reached):
            def try_complete(self) -> bool:
                tries.append(self.value)
                return super().try_complete()

        operations = [Counted(second, "log", offset, 30.0) for offset in (100, 200, 300)]
        waiting = [asyncio.create_task(second.relay.park(op, {"log": op.value})) for op in operations]
        await clock.settle()
        tries.clear()
        first.write("log", 200)
        first.relay.check("log", 200)
        await clock.settle()
        assert [task.done() for task in waiting] == [True, True, False]
        assert tries == [100, 200]
        waiting[2].cancel()


async def test_park_closes_the_gap_between_the_read_and_the_watch(clock: VirtualClock) -> None:
    """A change between the handler's read and its parking is found, although no process waited at the time of its
    notice.
    """
    (first, second), _ = workers(clock)
    async with first, second:
        await second.load(["a"])  # the handler reads ...
        first.write("a", 1)  # ... the state changes ...
        first.relay.check("a")
        await clock.settle()
        assert second.reads == [["a"]]  # ... and nobody here watches the key
        waiting = second.waits("a")
        await clock.settle()
        assert second.reads == [["a"], ["a"]]
        assert await waiting is True


async def test_wait_until_is_the_same_with_a_predicate(clock: VirtualClock) -> None:
    """``wait_until`` refreshes and returns True, or False at the deadline."""
    (first, second), _ = workers(clock)
    async with first, second:
        first.write("a", 1)
        assert await second.relay.wait_until(lambda: second.state.get("a"), keys=["a"], timeout=5.0) is True
        waiting = asyncio.create_task(second.relay.wait_until(lambda: False, keys=["a"], timeout=5.0))
        await clock.advance(5.0)
        assert await waiting is False


async def test_check_in_reaches_every_process_the_own_one_included(clock: VirtualClock) -> None:
    """This process does not know when the transaction commits, so the sender also receives the notice."""
    (first, second), _ = workers(clock)
    async with first, second:
        waiting = [first.waits("a"), second.waits("a"), second.waits(("b", 2), 7)]
        await clock.settle()
        first.table.update({"a": 1, ("b", 2): 7})
        await first.relay.check_in(None, ["a"])
        await first.relay.check_in(None, {("b", 2): 7})
        await clock.settle()
        assert all(task.done() for task in waiting)


async def test_check_in_of_very_many_keys_is_every_key(clock: VirtualClock) -> None:
    """A transaction with more than ``max_keys`` keys sends one short notice."""
    (first, second), (_, transport) = workers(clock, max_keys=10)
    heard = record(transport)
    async with first, second:
        await clock.settle()
        heard.clear()
        await first.relay.check_in(None, range(11))
        await first.relay.check_in(None, range(10))
        assert [decode(payload).entries for payload in heard] == [None, [(number, None) for number in range(10)]]


async def test_a_key_that_is_too_long_reaches_the_others_as_every_key(clock: VirtualClock) -> None:
    """A key that is longer than a payload is sent as "every key"."""
    first = MemoryTransport(clock=clock, max_payload=200)
    table: dict[Any, float] = {}
    async with Worker(clock, first, table) as one, Worker(clock, first.peer(), table) as other:
        key = "x" * 300
        waiting = other.waits(key)
        await clock.settle()
        one.write(key, 1)
        one.relay.check(key)
        await clock.settle()
        assert await waiting is True
        assert one.relay.statistics().everything_sent == 1
        assert other.relay.statistics().everything_received == 1


class _Folded(str):
    """A key that ignores case."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.casefold() == other.casefold()

    def __hash__(self) -> int:
        return hash(self.casefold())


@pytest.mark.parametrize("key", [1.5, None, b"a", object(), True, ("a", 1.0), ["a"], _Folded("A"), (_Folded("A"),)])
async def test_a_key_that_cannot_travel_is_refused_at_once(clock: VirtualClock, key: Any) -> None:
    """``check``, ``check_in``, ``park`` and ``wait_until`` raise TypeError, and nothing is checked, sent or parked."""
    (worker,), (transport,) = workers(clock, 1, refreshes=False)
    async with worker:
        await clock.settle()
        heard = record(transport)
        before = worker.relay.statistics()
        with pytest.raises(TypeError, match="a key to relay must be a str, an int, or a tuple of them"):
            worker.relay.check(key)
        with pytest.raises(TypeError, match="a key to relay must be"):
            await worker.relay.check_in(None, ["good", key])
        with pytest.raises(TypeError, match="a key to relay must be"):
            await worker.relay.park(Reached(worker, "a", 1, 5.0), ["good", key])
        with pytest.raises(TypeError, match="a key to relay must be"):
            await worker.relay.wait_until(lambda: False, keys=[key], timeout=5.0)
        await clock.settle()
        assert worker.relay.statistics() == before
        assert heard == []
        assert len(worker.purgatory) == 0


async def test_a_value_that_cannot_travel_is_refused_at_once(clock: VirtualClock) -> None:
    """Values must be numbers other than NaN."""
    (worker,), _ = workers(clock, 1, refreshes=False)
    async with worker:
        for value in ["1", True]:
            with pytest.raises(TypeError, match="a value to relay must be an int or a float"):
                worker.relay.check("a", value)  # type: ignore[arg-type]
        for value in [float("nan"), 10**400]:
            with pytest.raises(ValueError, match="a value to relay must be a number that fits a float, got "):
                worker.relay.check("a", value)
        with pytest.raises(TypeError, match="a value to relay must be"):
            await worker.relay.check_in(None, {"a": "1"})
        assert worker.relay.statistics().pending == 0


async def test_park_refuses_what_the_purgatory_refuses(clock: VirtualClock) -> None:
    """The errors are the same, and nothing is left to refresh."""
    (worker,), _ = workers(clock, 1)
    async with worker:
        operation = Reached(worker, "a", 1, 5.0)
        with pytest.raises(ValueError, match="key"):
            await worker.relay.park(operation, [])
        await clock.settle()
        assert worker.reads == []


@pytest.mark.parametrize("keys", ["a", b"a", bytearray(b"a"), 5, None])
async def test_what_is_no_iterable_of_keys_is_refused(clock: VirtualClock, keys: Any) -> None:
    """The error is the same as that of ``park()`` of a purgatory, and nothing is parked, refreshed, or sent."""
    (worker,), (transport,) = workers(clock, 1)
    sent = record(transport)
    async with worker:
        await clock.settle()
        sent.clear()
        operation = Reached(worker, "a", 1, 5.0)
        messages = set()
        for call in (
            worker.purgatory.park(operation, keys),
            worker.relay.park(operation, keys),
            worker.relay.wait_until(lambda: False, keys=keys, timeout=1.0),
            worker.relay.check_in(None, keys),
        ):
            with pytest.raises(TypeError) as refused:
                await during(clock, 0.0, call)
            messages.add(str(refused.value))
        (message,) = messages
        assert message.startswith(f"keys must be an iterable of keys, such as [{keys!r}], got {keys!r}")
        await clock.settle()
        assert (worker.reads, sent, len(worker.purgatory)) == ([], [], 0)


async def test_a_grace_that_is_no_duration_is_refused(clock: VirtualClock) -> None:
    """The error is the same as that of ``aclose()`` of a purgatory, and the relay stays open."""
    (worker,), _ = workers(clock, 1)
    async with worker:
        for kind, grace in ((ValueError, -1), (ValueError, float("inf")), (TypeError, "1"), (TypeError, False)):
            bad: Any = grace
            with pytest.raises(kind, match=r"^grace must be a number of seconds") as expected:
                await worker.purgatory.aclose(grace=bad)
            with pytest.raises(kind) as refused:
                await worker.relay.aclose(grace=bad)
            assert str(refused.value) == str(expected.value)
        assert worker.relay.connected
        assert not worker.purgatory.closed


async def test_a_full_purgatory_refuses_through_the_relay(clock: VirtualClock) -> None:
    """PurgatoryFull reaches the caller, and no read is made for the refused operation."""
    room = Purgatory[Any]("small", clock=clock, max_parked=1)
    reads: list[Any] = []

    async def refresh(keys: list[Any]) -> None:
        reads.append(keys)

    async with room, Relay(room, MemoryTransport(), refresh=refresh) as relay:
        waiting = asyncio.create_task(room.wait_until(lambda: False, keys=["b"], timeout=1.0))
        await clock.settle()
        with pytest.raises(PurgatoryFull):
            await relay.wait_until(lambda: False, keys=["a"], timeout=1.0)
        await clock.settle()
        assert reads == []
        waiting.cancel()


async def test_a_cancelled_caller_leaves_nothing(clock: VirtualClock) -> None:
    """Cancelling the task in ``park`` withdraws its operation at once, and its key is not read."""
    (first, second), _ = workers(clock)
    async with first, second:
        waiting = second.waits("a")
        await asyncio.sleep(0)
        waiting.cancel()
        await clock.settle()
        assert waiting.cancelled()
        assert len(second.purgatory) == 0
        first.write("a", 1)
        first.relay.check("a")
        reads = len(second.reads)
        await clock.settle()
        assert len(second.reads) == reads


async def test_workers_that_are_forked_have_an_origin_each(clock: VirtualClock) -> None:
    """The identity is chosen when the relay is opened, so forked relays do not treat each other's notices as echoes."""
    transport = MemoryTransport(clock=clock)
    rooms = [Purgatory[Any](f"worker {number}", clock=clock) for number in range(2)]
    relays = [Relay(room, transport) for room in rooms]
    async with rooms[0], rooms[1], relays[0], relays[1]:
        assert relays[0]._sender.origin != relays[1]._sender.origin
        relays[0].check("a")
        await clock.settle()
        assert relays[1].statistics().received == 1
        assert relays[0].statistics().received == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork()")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
async def test_a_forked_process_is_refused(clock: VirtualClock) -> None:
    """A check there would be lost, because nothing runs the copy of the loop; the parent's relay is as it was."""
    room = Purgatory[Any]("test", clock=clock)
    async with room, Relay(room, MemoryTransport(clock=clock)) as relay:
        calls = [lambda: relay.check_threadsafe("a"), lambda: relay.check("a"), lambda: relay.aclose().send(None)]
        pid = os.fork()
        if not pid:
            status = 1
            try:
                for call in calls:
                    with pytest.raises(RuntimeError, match="belongs to the parent process: enter"):
                        call()
                status = int(relay.connected)
            finally:
                os._exit(status)
        assert (await asyncio.to_thread(os.waitpid, pid, 0))[1] == 0
        assert relay.connected
        relay.check_threadsafe("a")
        await clock.settle()
        assert relay.statistics().sent == 1


async def test_peers_are_counted_and_forgotten(clock: VirtualClock) -> None:
    """Each relay knows the number of others that it has heard from in the last three heartbeats."""
    processes, _ = workers(clock, 3, refreshes=False, heartbeat=10.0)
    async with processes[0], processes[1]:
        async with processes[2]:
            await clock.advance(10.0)
            assert [worker.relay.statistics().peers for worker in processes] == [2, 2, 2]
        await clock.advance(41.0)
        assert [worker.relay.statistics().peers for worker in processes[:2]] == [1, 1]


async def test_another_version_and_rubbish_are_treated_as_every_key(clock: VirtualClock) -> None:
    """A payload that cannot be decoded is counted, and every watched key is refreshed and checked."""
    (worker,), (transport,) = workers(clock, 1)
    stranger = transport.peer()
    async with worker:
        for number, payload in enumerate(["rubbish", '[2,"later","keys",[["b"]]]'], 1):
            waiting = worker.waits("a", number)
            await clock.settle()
            worker.write("a", number)
            await stranger.publish(payload)
            await clock.settle()
            assert waiting.done()
            assert worker.relay.statistics().unreadable == number


async def test_statistics_and_repr(clock: VirtualClock) -> None:
    """The statistics and the ``repr`` show the state of the relay."""
    (worker, other), (transport, _) = workers(clock, heartbeat=10.0)
    assert repr(worker.relay) == "<Relay of purgatory 'worker' new through MemoryTransport>"
    assert not worker.relay.connected
    async with worker, other:
        await clock.settle()
        assert worker.relay.connected
        assert repr(worker.relay) == "<Relay of purgatory 'worker' connected through MemoryTransport>"
        statistics = worker.relay.statistics()
        assert isinstance(statistics, RelayStatistics)
        assert statistics.connected
        assert statistics.lag == 0.0
        assert (statistics.connects, statistics.losses, statistics.resyncs, statistics.last_loss) == (1, 0, 1, None)
        transport.stop()
        await clock.settle()
        assert repr(worker.relay) == "<Relay of purgatory 'worker' connecting through MemoryTransport>"
        statistics = worker.relay.statistics()
        assert not statistics.connected
        assert statistics.lag is None
        assert statistics.last_loss == "ConnectionResetError: the connection in memory was broken"
        transport.start()
    assert repr(worker.relay) == "<Relay of purgatory 'worker' closed through MemoryTransport>"


async def test_the_lag_is_the_way_through_the_engine_and_back(clock: VirtualClock) -> None:
    """The lag is that of the last ping, and grows while a ping is outstanding."""
    transport = MemoryTransport(clock=clock, deliveries=lambda _: [0.25])
    async with Worker(clock, transport, {}, refreshes=False) as worker:
        await clock.advance(0.25)
        assert worker.relay.statistics().lag == 0.25
        transport.lose(1)
        await clock.advance(14.0)
        assert worker.relay.statistics().lag == pytest.approx(4.25, abs=0.3)


async def test_bad_arguments(clock: VirtualClock) -> None:
    """The error states the expected and the passed value."""
    room = Purgatory[Any]("test", clock=clock)
    good = MemoryTransport()
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (TypeError, "room must be a Purgatory, got 3", {"room": 3}),
        (TypeError, "transport must have listen, publish, aclose, and max_payload, got 3", {"transport": 3}),
        (TypeError, "refresh must be an async function or None, got 3", {"refresh": 3}),
        (ValueError, "max_keys must be an int of at least 1, got 0", {"max_keys": 0}),
        (ValueError, "max_keys must be an int of at least 1, got True", {"max_keys": True}),
        (ValueError, "heartbeat must be a number of seconds above 0, got 0", {"heartbeat": 0}),
        (TypeError, "heartbeat must be a number of seconds, got '1'", {"heartbeat": "1"}),
        (ValueError, "resync_every must be a number of seconds above 0, got nan", {"resync_every": float("nan")}),
        (ValueError, "on_lost must be 'wait' or 'fail', got 'raise'", {"on_lost": "raise"}),
        (TypeError, "clock must be a purgatory.types.Clock, got 3", {"clock": 3}),
    ]
    for kind, message, arguments in wrong:
        with pytest.raises(kind) as refused:
            Relay(arguments.pop("room", room), arguments.pop("transport", good), **arguments)
        assert str(refused.value) == message


async def test_before_it_is_entered_and_after_it_is_closed(clock: VirtualClock) -> None:
    """The call raises an error, and nothing is checked or stored."""
    (worker,), _ = workers(clock, 1)
    with pytest.raises(RuntimeError, match="not been entered"):
        worker.relay.check("a")
    with pytest.raises(RuntimeError, match="not been entered"):
        await worker.relay.park(Reached(worker, "a", 1, 5.0), ["a"])
    async with worker:
        with pytest.raises(RuntimeError, match="already been entered"):
            await worker.relay.__aenter__()
    with pytest.raises(PurgatoryClosed):
        worker.relay.check("a")
    with pytest.raises(PurgatoryClosed):
        await worker.relay.check_in(None, ["a"])
    with pytest.raises(PurgatoryClosed):
        await worker.relay.__aenter__()
    assert worker.relay.statistics().pending == 0


async def test_another_thread_and_another_loop_are_refused(clock: VirtualClock) -> None:
    """The call raises RuntimeError with the correct way to do it, and nothing is checked."""
    (worker,), _ = workers(clock, 1)
    errors: list[BaseException] = []

    async def check() -> None:
        try:
            worker.relay.check("a")
        except RuntimeError as error:
            errors.append(error)

    async with worker:
        thread = threading.Thread(target=lambda: asyncio.run(check()))
        thread.start()
        thread.join()
        assert "call_soon_threadsafe" in str(errors[0])
        assert worker.relay.statistics().pending == 0


async def test_the_protocols_are_those_of_the_transports() -> None:
    """MemoryTransport is a transport with transactions; an object with two of the methods is not a transport."""
    assert isinstance(MemoryTransport(), Transport)
    assert isinstance(MemoryTransport(), TransactionalTransport)
    assert not isinstance(OrderedDict(), Transport)


async def test_a_transport_without_transactions_refuses_check_in(clock: VirtualClock) -> None:
    """``check_in`` raises TypeError, and nothing is sent."""

    class Plain:
        max_payload = 1000

        async def listen(self, subscribed: Any, received: Any) -> None:
            subscribed()
            await asyncio.get_running_loop().create_future()

        async def publish(self, payload: str) -> None:
            pass

        async def aclose(self) -> None:
            pass

    room = Purgatory[Any]("test", clock=clock)
    async with room, Relay(room, Plain()) as relay:
        with pytest.raises(TypeError, match="check_in needs a transport with transactions, got "):
            await relay.check_in(None, ["a"])


async def test_a_task_factory_that_takes_no_context(clock: VirtualClock) -> None:
    """The tasks of the relay have an empty context all the same."""
    marked: ContextVar[bool] = ContextVar("marked", default=False)
    marked.set(True)
    contexts: list[bool] = []

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
        # Newer versions pass the name, and uvloop passes None for what is not given.
        assert {name for name, value in options.items() if value is not None} <= {"name"}
        contexts.append(marked.get())  # a task copies the current context
        return asyncio.Task(coroutine, loop=loop)

    loop = asyncio.get_running_loop()
    (first, second), _ = workers(clock)
    loop.set_task_factory(factory)
    try:
        async with first, second:
            waiting = second.waits("o-1", 3)
            contexts.clear()
            await clock.settle()
            first.write("o-1", 3)
            first.relay.check("o-1")
            await clock.settle()
            assert await waiting is True
            assert contexts
            assert not any(contexts)
    finally:
        loop.set_task_factory(None)


async def test_operations_that_cannot_be_relayed_wait_beside_the_others(clock: VirtualClock) -> None:
    """A key that is an object is local: "every key" checks it, and ``refresh`` does not receive it."""
    (worker,), (transport,) = workers(clock, 1)
    local = object()

    class Flag(DelayedOperation[str]):
        ready = False

        def try_complete(self) -> bool:
            return self.ready

        def on_complete(self) -> str:
            return "ready" if self.ready else "expired"

    async with worker:
        operation = Flag(30.0)
        waiting = asyncio.create_task(worker.purgatory.park(operation, [local]))
        await clock.settle()
        operation.ready = True
        transport.disconnect()
        await clock.advance(1.0)
        assert await waiting == "ready"
        assert worker.reads == []
