"""Which keys are read, when, and what happens if a read is slow or fails."""

import asyncio
import contextlib
import contextvars
import gc
import random
from collections.abc import Hashable
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.relay import MemoryTransport, Relay
from purgatory.testing import VirtualClock
from tests.conftest import _LOOPS
from tests.relay.kit import Reached, workers


async def test_stale_keys_are_read_in_one_call(clock: VirtualClock) -> None:
    """A thousand keys that change in one turn cause one read in the other process; unwatched keys are not read."""
    (first, second), _ = workers(clock)
    async with first, second:
        waiting = [second.waits(number, 2) for number in range(1000)]
        await clock.settle()
        second.reads.clear()
        for number in range(2000):
            first.write(number, 2)
            first.relay.check(number)
        await clock.settle()
        assert [sorted(keys) for keys in second.reads] == [list(range(1000))]  # type: ignore[type-var]
        assert all(task.done() for task in waiting)
        assert second.relay.statistics().refreshed == 2000


async def test_a_key_that_becomes_stale_while_it_is_read_is_read_again(clock: VirtualClock) -> None:
    """The key is read again, because the read may have seen the state before the change."""
    (first, second), _ = workers(clock)
    async with first, second:
        second.read_takes = 1.0
        waiting = second.waits("a", 1)
        await clock.advance(0.5)
        assert second.reads == [["a"]]  # and it has seen 0
        first.write("a", 1)
        first.relay.check("a")
        await clock.advance(0.5)
        assert not waiting.done()
        assert second.reads == [["a"], ["a"]]
        await clock.advance(1.0)
        assert await waiting is True


async def test_there_is_one_read_at_a_time(clock: VirtualClock) -> None:
    """Keys that become stale during a read are read together after it."""
    (worker,), _ = workers(clock, 1)
    running = most = 0
    load = worker.load

    async def counted(keys: list[Hashable]) -> dict[Hashable, float]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await load(keys)
        finally:
            running -= 1

    worker.relay._refresher._refresh = counted
    async with worker:
        worker.read_takes = 1.0
        tasks = []
        for number in range(10):
            tasks.append(worker.waits(number))
            await clock.advance(0.1)
        await clock.advance(2.0)
        assert most == 1
        assert worker.reads == [[0], list(range(1, 10))]
        for task in tasks:
            task.cancel()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages of the relay in the log; none has a traceback, and each is one line."""
    records = [record for record in caplog.records if record.name == "purgatory.relay"]
    assert not any(record.exc_info or "\n" in record.getMessage() for record in records)
    return [record.getMessage() for record in records]


async def test_a_failing_read_is_reported_and_tried_again(
    clock: VirtualClock, reported: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The relay retries with a growing pause, without a limit; waiting operations keep their deadlines.

    The first failure is reported with its traceback, and each further one is one line in the log.
    """
    (first, second), _ = workers(clock)
    async with first, second:
        second.failures = 6
        waiting, expires = second.waits("a"), second.waits("b", timeout=2.0)
        first.write("a", 1)
        first.relay.check("a")
        await clock.advance(2.0)
        assert await expires is False
        assert [str(context["exception"]) for context in reported] == ["the database is away"]
        assert "refresh for purgatory 'worker' failed and is tried again" in reported[0]["message"]
        await clock.advance(8.0)
        assert await waiting is True
        statistics = second.relay.statistics()
        assert statistics.failed_reads == 6
        assert len(reported) == 1
        for number, line in enumerate(lines(caplog), 2):
            assert line.startswith(
                f"refresh for purgatory 'worker' failed {number} times in a row and is tried again in "
            )
            assert line.endswith(": ConnectionError('the database is away')")
        assert number == 6
        assert statistics.reads >= 1
        assert statistics.stale == 0


async def test_each_kind_of_failure_is_reported_once_until_a_read_succeeds(
    clock: VirtualClock, reported: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """An error of another type has its own traceback; after a read that succeeds, the next failure has one again."""

    class Unprintable(Exception):
        def __repr__(self) -> str:
            raise RuntimeError("no repr")

    down, missing = ConnectionError("down"), KeyError("table")
    results: list[Exception | None] = [down, missing, down, missing, None, down, Unprintable(), Unprintable()]

    async def refresh(_: list[Hashable]) -> None:
        result = results.pop(0) if results else None
        if result is not None:
            raise result

    room = Purgatory[Any]("test", clock=clock)
    async with room, Relay(room, MemoryTransport(), refresh=refresh) as relay:
        waiting = asyncio.create_task(relay.wait_until(lambda: False, keys=["a"], timeout=100.0))
        await clock.advance(50.0)
        relay._refresher.mark("a", None)
        await clock.advance(50.0)
        assert await waiting is False
    assert [type(context["exception"]) for context in reported] == [
        ConnectionError,
        KeyError,
        ConnectionError,
        Unprintable,
    ]
    assert [line.rpartition(" s: ")[2] for line in lines(caplog)] == [
        "ConnectionError('down')",
        "KeyError('table')",
        "<Unprintable whose repr raised RuntimeError>",
    ]


async def test_a_read_that_takes_too_long_is_cancelled_and_repeated(clock: VirtualClock, reported: list[Any]) -> None:
    """``resync_every`` limits a read, so a query that hangs does not block the waiters forever."""
    (worker,), _ = workers(clock, 1, resync_every=20.0)
    async with worker:
        worker.read_takes = 1000.0
        waiting = worker.waits("a", timeout=100.0)
        await clock.advance(5.0)
        worker.read_takes = 0.0
        worker.write("a", 1)
        await clock.advance(15.2)
        assert await waiting is True
        assert str(reported[0]["exception"]) == "refresh of 1 keys has not returned within 20 s"


async def test_a_refresh_that_is_no_coroutine_or_returns_no_mapping_is_reported(
    clock: VirtualClock, reported: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong result is a failed read, and the error states the expected result."""
    results: list[Any] = [3, [("a", 1)]]

    async def refresh(_: list[Hashable]) -> Any:
        return results.pop(0) if results else None

    room = Purgatory[Any]("test", clock=clock)
    async with room, Relay(room, MemoryTransport(), refresh=refresh) as relay:
        assert await relay.wait_until(lambda: True, keys=["a"], timeout=1.0)
        waiting = asyncio.create_task(relay.wait_until(lambda: False, keys=["a"], timeout=5.0))
        await clock.advance(5.0)
        assert await waiting is False
        assert [str(context["exception"]) for context in reported] == [
            "refresh must return a mapping of keys to values, or None, got 3"
        ]
        (line,) = lines(caplog)
        assert "refresh must return a mapping of keys to values, or None, got a value of type list" in line


async def test_a_refresh_that_cancels_itself_is_a_failed_read(clock: VirtualClock, reported: list[Any]) -> None:
    """A CancelledError from ``refresh`` is a failed read, and does not cancel the relay."""
    calls = 0

    async def refresh(_: list[Hashable]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise asyncio.CancelledError

    room = Purgatory[Any]("test", clock=clock)
    async with room, Relay(room, MemoryTransport(), refresh=refresh) as relay:
        waiting = asyncio.create_task(relay.wait_until(lambda: calls == 2, keys=["a"], timeout=5.0))
        await clock.advance(1.0)
        assert await waiting is True
        assert str(reported[0]["exception"]) == "refresh of 1 keys was cancelled"


async def test_numbers_are_levels_and_other_values_are_not(clock: VirtualClock) -> None:
    """If ``refresh`` returns a number, operations with a higher threshold are not tried; otherwise all are tried."""
    tries: list[float] = []
    state: dict[Hashable, Any] = {}

    async def refresh(keys: list[Hashable]) -> dict[Hashable, Any]:
        return {key: state[key] for key in keys if key in state}

    class Counted(Reached):
        def try_complete(self) -> bool:
            tries.append(self.value)
            return False

    transport = MemoryTransport(clock=clock)
    room = Purgatory[Any]("test", clock=clock)
    async with room, Relay(room, transport, refresh=refresh) as relay:
        worker: Any = None
        tasks = [
            asyncio.create_task(relay.park(Counted(worker, "a", level, 30.0), {"a": level})) for level in (10, 20, 30)
        ]
        await clock.settle()
        for value, expected in [(20, [10, 20]), (5.0, []), ("paid", [10, 20, 30]), (None, [10, 20, 30]),
                                (True, [10, 20, 30]), (float("nan"), [10, 20, 30])]:  # fmt: skip
            tries.clear()
            state["a"] = value
            await transport.publish('[1,"other","keys",[["a"]]]')
            await clock.settle()
            assert tries == expected, value
        tries.clear()
        del state["a"]
        await transport.publish('[1,"other","keys",[["a"]]]')
        await clock.settle()
        assert tries == [10, 20, 30]
        for task in tasks:
            task.cancel()


async def test_a_resync_reads_all_watched_keys_in_portions(clock: VirtualClock) -> None:
    """A resync reads every watched key once, with at most ``max_keys`` keys per call, and no unwatched keys."""
    (worker,), (transport,) = workers(clock, 1, max_keys=100)
    async with worker:
        waiting = [worker.waits(number, timeout=300.0) for number in range(1050)]
        await clock.settle()
        worker.reads.clear()
        transport.disconnect()
        await clock.advance(1.0)
        assert max(map(len, worker.reads)) <= 100
        read = [key for keys in worker.reads for key in keys]
        assert sorted(read) == list(range(1050))  # type: ignore[type-var]
        for task in waiting:
            task.cancel()


async def test_everything_again_during_a_resync_starves_no_key(clock: VirtualClock) -> None:
    """While notices of "every key" keep arriving, the last keys of the resync are also read."""
    (worker,), (transport,) = workers(clock, 1, max_keys=10)
    other = transport.peer()
    async with worker:
        waiting = [worker.waits(number, timeout=300.0) for number in range(100)]
        await clock.settle()
        worker.read_takes = 1.0
        for number in range(100):
            worker.write(number, 1)
        for _ in range(30):
            await other.publish('[1,"other","all"]')
            await clock.advance(0.5)
        assert all(task.done() for task in waiting)


async def test_incoming_keys_above_the_limit_become_every_key(clock: VirtualClock) -> None:
    """A process that reads slowly keeps at most ``max_keys`` stale keys, and loses none."""
    (first, second), _ = workers(clock, max_keys=50)
    async with first, second:
        waiting = [second.waits(number, timeout=300.0) for number in range(200)]
        await clock.settle()
        before = second.relay.statistics().collapsed
        second.read_takes = 5.0
        first.write(0, 1)
        first.relay.check(0)
        await clock.settle()
        for number in range(200):
            first.write(number, 1)
            first.relay.check(number)
            await clock.settle()
            assert second.relay.statistics().stale <= 50
        assert second.relay.statistics().collapsed == before + 1
        await clock.advance(50.0)
        assert all(task.done() for task in waiting)


async def test_without_refresh_a_notice_only_checks(clock: VirtualClock) -> None:
    """Conditions that read the shared state directly need no ``refresh``."""
    (first, second), _ = workers(clock, refreshes=False)
    async with first, second:
        waiting = second.waits("a")
        await clock.settle()
        first.write("a", 1)
        first.relay.check("a")
        await clock.settle()
        assert await waiting is True
        assert second.relay.statistics().reads == 0


async def test_refresh_runs_in_an_empty_context(clock: VirtualClock) -> None:
    """The reads of the relay do not see the context variables of a request."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="empty")
    seen: list[str] = []

    async def refresh(_: list[Hashable]) -> None:
        seen.append(variable.get())

    room = Purgatory[Any]("test", clock=clock)
    variable.set("before")
    async with room, Relay(room, MemoryTransport(), refresh=refresh) as relay:
        variable.set("request")
        await relay.wait_until(lambda: len(seen) > 0, keys=["a"], timeout=5.0)
        assert seen == ["empty"]


async def test_a_worker_reads_for_itself_only(clock: VirtualClock) -> None:
    """A key that is watched only in one process is not read in another."""
    processes, _ = workers(clock, 3)
    async with processes[0], processes[1], processes[2]:
        waiting = processes[1].waits("a")
        await clock.settle()
        processes[0].write("a", 1)
        processes[0].relay.check("a")
        await clock.settle()
        assert await waiting is True
        assert (processes[0].reads, processes[2].reads) == ([], [])


@pytest.mark.parametrize("loop", _LOOPS)
def test_an_interrupted_read_is_made_again(loop: str) -> None:
    """A KeyboardInterrupt from ``refresh`` leaves the loop; when the loop continues, the same keys are read again."""
    clock = VirtualClock(1000.0)
    interrupts = [True]
    reads: list[list[Hashable]] = []

    async def refresh(keys: list[Hashable]) -> None:
        reads.append(keys)
        if interrupts:
            interrupts.pop()
            raise KeyboardInterrupt

    with asyncio.Runner(loop_factory=_LOOPS[loop]) as runner:
        running = runner.get_loop()
        running.set_exception_handler(lambda _loop, _context: None)
        room = Purgatory[Any]("test", clock=clock)
        relay = Relay(room, MemoryTransport(), refresh=refresh)
        running.run_until_complete(room.__aenter__())
        running.run_until_complete(relay.__aenter__())
        waiting = running.create_task(relay.wait_until(lambda: len(reads) > 1, keys=["a"], timeout=30.0))
        with pytest.raises(KeyboardInterrupt):
            running.run_until_complete(clock.settle())
        running.run_until_complete(clock.advance(0.2))
        assert reads == [["a"], ["a"]]
        assert running.run_until_complete(waiting) is True
        running.run_until_complete(relay.aclose())
        running.run_until_complete(room.aclose())


async def test_a_number_that_no_float_holds_is_no_level(clock: VirtualClock, reported: list[Any]) -> None:
    """The key is checked without a value, like a key whose value is not a number."""
    state: dict[Hashable, int] = {}

    async def refresh(keys: list[Hashable]) -> dict[Hashable, int]:
        return {key: state[key] for key in keys if key in state}

    room = Purgatory[Any]("test", clock=clock)
    transport = MemoryTransport(clock=clock)
    async with room, Relay(room, transport, refresh=refresh) as relay:
        waiting = asyncio.create_task(relay.wait_until(lambda: "a" in state, keys={"a": 5}, timeout=30.0))
        await clock.settle()
        state["a"] = 10**400
        await transport.publish('[1,"other","keys",[["a"]]]')
        await clock.settle()
        assert waiting.done()
        assert await waiting is True
        assert reported == []


async def test_a_read_that_does_not_end_when_cancelled_is_left_behind(
    clock: VirtualClock, reported: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """If a client library suppresses every cancellation, the relay abandons the read, and the next read answers."""
    (worker,), _ = workers(clock, 1, resync_every=20.0)
    release = asyncio.Event()
    load, calls = worker.load, 0

    async def stubborn(keys: list[Hashable]) -> dict[Hashable, float]:
        nonlocal calls
        calls += 1
        while calls == 1 and not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()
        return await load(keys)

    worker.relay._refresher._refresh = stubborn
    async with worker:
        waiting = worker.waits("a", timeout=100.0)
        await clock.advance(5.0)
        worker.write("a", 1)
        await clock.advance(40.2)
        assert waiting.done()
        assert await waiting is True
        assert "has not returned within 20 s" in str(reported[0]["exception"])
        assert "did not end when it was cancelled" in caplog.text
        release.set()
        await clock.settle()


async def test_an_error_that_answers_a_cancellation_is_not_reported_when_the_relay_closes(
    clock: VirtualClock, reported: list[Any]
) -> None:
    """Nobody needs the read any longer, so "exception was never retrieved" would be noise."""

    async def refresh(_keys: list[Hashable]) -> dict[Hashable, float]:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            raise RuntimeError("the connection is closed")

    (worker,), _ = workers(clock, 1)
    worker.relay._refresher._refresh = refresh
    async with worker:
        waiting = worker.waits("a")
        await clock.settle()
        waiting.cancel()
    gc.collect()
    assert reported == []


async def test_a_read_that_swallows_one_cancellation_is_cancelled_again(
    clock: VirtualClock, reported: list[Any]
) -> None:
    """The read is cancelled again, both after a timeout and when the relay closes; no read is left."""
    (worker,), _ = workers(clock, 1, resync_every=20.0, heartbeat=5.0)
    swallowed = 0

    async def stubborn(_: list[Hashable]) -> None:
        nonlocal swallowed
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            swallowed += 1
            await asyncio.get_running_loop().create_future()

    worker.relay._refresher._refresh = stubborn  # type: ignore[assignment]
    async with worker:
        waiting = worker.waits("a", timeout=100.0)
        await clock.advance(30.0)
        assert swallowed == 1
        assert len(reported) == 1
        await clock.advance(1.0)  # it reads again
        closing = asyncio.create_task(worker.relay.aclose())
        await clock.advance(10.0)
        assert closing.done()
        assert swallowed == 2
        assert [task for task in asyncio.all_tasks() if "stubborn" in repr(task) or "_call" in repr(task)] == []
        waiting.cancel()


async def test_a_hot_key_does_not_keep_a_resync_from_the_others(clock: VirtualClock) -> None:
    """During a resync, keys that change in every read fill only a part of the next read."""
    for max_keys in (1, 2, 3):
        (worker,), (transport,) = workers(clock, 1, max_keys=max_keys)
        async with worker:
            hot = [worker.waits(f"hot {number}", timeout=300.0) for number in range(max_keys)]
            cold = [worker.waits(f"cold {number}", timeout=300.0) for number in range(5)]
            await clock.advance(1.0)
            worker.read_takes = 0.5
            for number in range(5):
                worker.write(f"cold {number}", 1)
            transport.disconnect()
            for _ in range(60):
                await clock.advance(0.25)
                for number in range(max_keys):
                    worker.relay._refresher.mark(f"hot {number}", None)
            assert all(task.done() for task in cold), max_keys
            for task in hot:
                task.cancel()


async def test_a_key_whose_read_failed_during_a_resync_is_read_again(clock: VirtualClock, reported: list[Any]) -> None:
    """The key is read again when the resync has ended, whatever the limit of keys; no further notice is needed."""
    for max_keys in (1, 2, 3):
        (worker,), (transport,) = workers(clock, 1, max_keys=max_keys, resync_every=3600.0)
        async with worker:
            waiting = [worker.waits(number, timeout=1800.0) for number in range(2)]
            await clock.advance(1.0)
            for number in range(2):
                worker.write(number, 1)
            worker.failures = 1
            transport.disconnect()
            await clock.advance(60.0)
            assert all(task.done() for task in waiting), max_keys
    assert len(reported) == 3


async def test_a_reconnect_during_a_read_has_all_keys_read_again(clock: VirtualClock) -> None:
    """If a read begins before a lost connection and returns after it, the next read covers the changes in between."""
    (first, second), (_, transport) = workers(clock, resync_every=1000.0)
    async with first, second:
        waiting = second.waits("a", timeout=100.0)
        await clock.settle()
        second.read_takes = 2.0
        first.relay.check("a")
        await clock.advance(0.5)
        assert len(second.reads) == 2  # it has seen 0, and takes 1.5 s more
        transport.disconnect()
        first.write("a", 1)
        first.relay.check("a")  # into the gap
        await clock.advance(0.5)
        assert second.relay.connected
        assert not waiting.done()
        await clock.advance(3.0)
        assert waiting.done()
        assert await waiting is True


async def test_a_key_whose_hash_raises_does_not_end_reading(clock: VirtualClock, reported: list[Any]) -> None:
    """The error is reported, the relay pauses before it retries, and no other key is lost."""
    (worker,), _ = workers(clock, 1, resync_every=1000.0)

    class Key(str):
        __slots__ = ("broken",)

        def __eq__(self, other: object) -> bool:
            return str.__eq__(self, other)  # type: ignore[arg-type]

        def __hash__(self) -> int:
            if getattr(self, "broken", False):
                raise RuntimeError("no hash")
            return str.__hash__(self)

    key = Key("b")
    async with worker:
        waiting = worker.waits("a", timeout=100.0)
        await clock.settle()
        worker.write("a", 1)
        worker.relay._refresher.mark_parked([key, "a"])
        key.broken = True
        await clock.advance(1.0)
        assert waiting.done()
        assert [str(context["exception"]) for context in reported] == ["no hash"]


@pytest.mark.parametrize("number", [1, 3])
async def test_keys_that_cannot_be_read_do_not_delay_the_others(
    clock: VirtualClock, reported: list[Any], number: int
) -> None:
    """Once the unreadable keys are known, a notice of another key is answered at once; they are still tried again."""
    (first, second), _ = workers(clock, resync_every=1000.0)
    async with first, second:
        second.unreadable = {f"unreadable {n}" for n in range(number)}
        stuck = [second.waits(key, timeout=300.0) for key in second.unreadable]
        waiting = [second.waits(n, timeout=100.0) for n in range(20)]
        await clock.advance(20.0)
        assert all(n in second.state for n in range(20))
        for n in range(20):
            first.write(n, 1)
            first.relay.check(n)
        await clock.settle()
        assert all(task.done() for task in waiting)
        second.reads.clear()
        await clock.advance(60.0)
        assert {len(keys) for keys in second.reads} == {1}
        assert 11 <= len(second.reads) <= 30  # one every 2.5 to 5 s
        for key in second.unreadable:
            first.write(key, 1)
        second.unreadable = set()
        await clock.advance(15.0)
        assert all(task.done() for task in stuck)
        assert second.relay.statistics().stale == 0


async def test_an_unreadable_key_among_many_is_found_by_halves(clock: VirtualClock, reported: list[Any]) -> None:
    """A failed read is repeated three times.  Then its readable half is answered, and soon all others, in few reads.

    The errors until then are one report, because they are of one type.
    """
    for place in (0, 333, 999):
        (worker,), (transport,) = workers(clock, 1, resync_every=1000.0)
        async with worker:
            waiting = [worker.waits(n, timeout=300.0) for n in range(1000)]
            await clock.settle()
            worker.unreadable = {place}
            worker.reads.clear()
            reported.clear()
            for n in range(1000):
                worker.write(n, 1)
            transport.disconnect()
            await clock.advance(0.34)  # the shortest pauses before the third repetition add up to 0.35 s
            assert len(worker.reads) > 1
            assert worker.reads[1:] == worker.reads[:1] * (len(worker.reads) - 1)
            await clock.advance(3.0)
            assert sum(task.done() for task in waiting) >= 500
            await clock.advance(3.0)
            assert sum(task.done() for task in waiting) == 999
            assert len(worker.reads) < 40
            assert len(reported) == 1
            waiting[place].cancel()


@pytest.mark.parametrize("place", [0, 19, 20, 32])
async def test_an_unreadable_key_is_found_in_a_pass_over_more_keys_than_one_read_has(
    clock: VirtualClock, reported: list[Any], place: int
) -> None:
    """Successful reads of other keys of the pass do not hide that one read fails again and again."""
    (worker,), (transport,) = workers(clock, 1, resync_every=1000.0, max_keys=20)
    async with worker:
        waiting = [worker.waits(n, timeout=300.0) for n in range(33)]
        await clock.advance(5.0)
        worker.unreadable = {place}
        worker.reads.clear()
        transport.disconnect()
        await clock.advance(0.5)
        changed = [1, 7, 18, 21, 31]
        for n in changed:
            worker.write(n, 1)
            worker.relay.check(n)
        await clock.advance(5.0)
        assert [n for n, task in enumerate(waiting) if task.done()] == changed
        assert len(worker.reads) < 40
        for task in waiting:
            task.cancel()


async def test_a_repetition_without_the_unreadable_key_does_not_count_as_a_success_by_chance(
    clock: VirtualClock, reported: list[Any]
) -> None:
    """The waits on the unreadable key end before the fourth repetition, again and again."""
    (worker,), _ = workers(clock, 1, resync_every=1000.0)
    async with worker:
        worker.unreadable = {"bad"}
        for number in range(6):
            worker.write(number, 1)
            waiting = [worker.waits("bad", timeout=0.2), worker.waits(number)]
            await clock.advance(1.0)
            assert await asyncio.gather(*waiting) == [False, True]
        assert worker.relay.statistics().failed_reads >= 12
        assert not worker.relay._refresher._fail_at_random()


@pytest.mark.parametrize("max_keys", [1, 2, 7, 1000])
async def test_every_second_key_cannot_be_read(clock: VirtualClock, reported: list[Any], max_keys: int) -> None:
    """All readable keys are answered, also if the unreadable ones are more than ``max_keys``."""
    (worker,), (transport,) = workers(clock, 1, resync_every=1000.0, max_keys=max_keys)
    async with worker:
        waiting = [worker.waits(n, timeout=900.0) for n in range(100)]
        await clock.settle()
        worker.unreadable = set(range(0, 100, 2))
        for n in range(100):
            worker.write(n, 1)
        transport.disconnect()
        await clock.advance(150.0)
        assert [task.done() for task in waiting] == [n % 2 == 1 for n in range(100)]
        worker.unreadable = set()
        await clock.advance(60.0)
        assert all(task.done() for task in waiting)


async def test_a_checked_key_does_not_wait_for_the_halves_of_a_failed_read(
    clock: VirtualClock, reported: list[Any]
) -> None:
    """If a readable key is checked while unreadable keys are being found, it is read after at most one pause."""
    (worker,), (transport,) = workers(clock, 1, resync_every=1000.0)
    async with worker:
        waiting = [worker.waits(n, timeout=300.0) for n in range(1000)]
        await clock.settle()
        worker.unreadable = set(range(0, 1000, 80))
        transport.disconnect()
        await clock.advance(2.0)
        for n in range(1, 1000, 40):
            worker.write(n, 1)
            worker.relay.check(n)
            await clock.advance(5.0)  # the longest pause
            assert waiting[n].done(), n
        worker.reads.clear()
        await clock.advance(120.0)
        assert {key for keys in worker.reads for key in keys} == worker.unreadable  # each is still tried, alone
        assert {len(keys) for keys in worker.reads} == {1}
        for task in waiting:
            task.cancel()


async def test_keys_that_change_all_the_time_do_not_hide_an_unreadable_one(
    clock: VirtualClock, reported: list[Any]
) -> None:
    """If an unreadable key and 99 others become stale during every read, the unreadable one is found in few reads."""
    (worker,), _ = workers(clock, 1, resync_every=1000.0)
    load = worker.load

    async def changing(keys: list[Hashable]) -> dict[Hashable, float]:
        for n in range(100):
            worker.relay._refresher.mark(n, None)
        await clock.sleep(0.01)
        return await load(keys)

    worker.relay._refresher._refresh = changing
    async with worker:
        waiting = [worker.waits(n, timeout=300.0) for n in range(100)]
        await clock.settle()
        worker.unreadable = {70}
        await clock.advance(10.0)
        worker.reads.clear()
        await clock.advance(10.0)
        failed = [keys for keys in worker.reads if 70 in keys]
        assert 1 <= len(failed) <= 5
        assert set(map(len, failed)) == {1}
        for task in waiting:
            task.cancel()


@pytest.mark.parametrize("seed", range(5))
async def test_a_key_that_is_checked_does_not_wait_for_unreadable_ones(
    clock: VirtualClock, reported: list[Any], seed: int
) -> None:
    """A dozen keys have been unreadable for minutes, and nothing else was read, as if the store were down.  A key that
    is checked now is answered within 10 s, which is the length of two of the longest pauses."""
    (worker,), _ = workers(clock, 1, resync_every=1000.0)
    worker.relay._refresher.spread(random.Random(seed), 0)
    async with worker:
        waiting = [worker.waits(n, timeout=1000.0) for n in range(100)]
        worker.unreadable = set(range(12))
        await clock.advance(300.0)
        for n in (50, 60, 70):
            worker.write(n, 1)
            worker.relay.check(n)
            await clock.advance(10.0)
            assert waiting[n].done()
        for task in waiting:
            task.cancel()


@pytest.mark.parametrize("seed", range(5))
async def test_a_short_outage_does_not_put_readable_keys_behind_unreadable_ones(
    clock: VirtualClock, reported: list[Any], seed: int
) -> None:
    """While a dozen keys have been unreadable for minutes, all reads fail for two seconds.  Keys that were checked in
    that time are answered soon after the store is back, because they have failed less often than the others."""
    (worker,), _ = workers(clock, 1, resync_every=1000.0)
    worker.relay._refresher.spread(random.Random(seed), 0)
    async with worker:
        waiting = [worker.waits(n, timeout=1000.0) for n in range(100)]
        worker.unreadable = set(range(12))
        await clock.advance(300.0)
        worker.failures = 1_000_000
        for n in (50, 60, 70):
            worker.write(n, 1)
            worker.relay.check(n)
            await clock.advance(0.7)
        worker.failures = 0
        await clock.advance(10.0)  # two of the longest pauses
        assert [n for n, task in enumerate(waiting) if task.done()] == [50, 60, 70]
        worker.unreadable = set()
        for n in range(100):
            worker.write(n, 1)
        await clock.advance(60.0)
        assert [n for n, task in enumerate(waiting) if task.done()] == [*range(12), 50, 60, 70]
        assert worker.relay.statistics().stale == 0
        for task in waiting:
            task.cancel()


async def test_an_outage_of_the_store_is_no_flood_of_reads(clock: VirtualClock, reported: list[Any]) -> None:
    """While every read fails, there is one after each pause; when the store is back, a few reads are enough."""
    (worker,), (transport,) = workers(clock, 1, resync_every=60.0)
    async with worker:
        waiting = [worker.waits(n, timeout=7200.0) for n in range(1000)]
        await clock.settle()
        worker.failures = 1_000_000
        worker.reads.clear()
        transport.disconnect()
        await clock.advance(3600.0)
        assert 720 <= len(worker.reads) <= 3600 / 2.5 + 8
        assert max(map(len, worker.reads[12:])) == 1
        for n in range(1000):
            worker.write(n, 1)
        worker.failures = 0
        worker.reads.clear()
        await clock.advance(6.0)
        assert all(task.done() for task in waiting)
        assert len(worker.reads) <= 20


async def test_keys_that_failed_are_forgotten_when_nobody_waits(clock: VirtualClock, reported: list[Any]) -> None:
    """A key that cannot be read, and one half of a failed read, are not read for an operation that has ended."""
    (worker,), _ = workers(clock, 1, resync_every=1000.0)
    async with worker:
        worker.unreadable = {"a", "b"}
        waiting = [worker.waits(key, timeout=300.0) for key in ["a", "b", "c"]]
        await clock.settle()
        assert worker.reads == [["a", "b", "c"]]
        for task in waiting:
            task.cancel()
        await clock.advance(10.0)
        assert worker.reads == [["a", "b", "c"]]
        waiting = [worker.waits("a", timeout=300.0)]
        await clock.advance(1.0)
        waiting[0].cancel()
        await clock.settle()
        before = len(worker.reads)
        await clock.advance(10.0)
        assert len(worker.reads) == before
        assert worker.relay.statistics().stale == 0


async def test_reads_that_fail_at_random_do_not_fall_behind(clock: VirtualClock, reported: list[Any]) -> None:
    """If four in ten reads fail, whatever their keys, 99 % of the notices are answered within a second."""
    draw = random.Random(2)
    (worker,), _ = workers(clock, 1, resync_every=3600.0)
    load = worker.load
    written: dict[int, float] = {}
    took: list[float] = []

    async def unreliable(keys: list[Hashable]) -> dict[Hashable, float]:
        await clock.sleep(0.005)
        if draw.random() < 0.4:
            raise ConnectionError("reset")
        return await load(keys)

    async def wait(key: int) -> None:
        await worker.relay.park(Reached(worker, key, 1, None), [key])
        took.append(clock.time() - written[key])

    worker.relay._refresher._refresh = unreliable
    async with worker:
        tasks = []
        for number in range(1500):
            tasks.append(asyncio.create_task(wait(number)))
            if number >= 50:  # a second after its wait began
                written[number - 50] = clock.time()
                worker.write(number - 50, 1)
                worker.relay.check(number - 50)
            await clock.advance(0.02)
        await clock.advance(10.0)
        assert len(took) == 1450
        took.sort()
        assert took[int(len(took) * 0.99)] < 1.0
        for task in tasks:
            task.cancel()


async def test_keys_that_cannot_be_read_are_found_among_reads_that_fail_at_random(
    clock: VirtualClock, reported: list[Any]
) -> None:
    """Short failures do not keep a key that cannot be read from being set apart."""
    (worker,), _ = workers(clock, 1, resync_every=3600.0)
    async with worker:
        for number in range(5):
            worker.failures = 1
            tasks = [worker.waits(f"first {number}", timeout=300.0)]
            await clock.advance(0.5)
        worker.unreadable = {7}
        waiting = [worker.waits(number, timeout=300.0) for number in range(20)]
        await clock.advance(1.0)
        for number in range(20):
            worker.write(number, 1)
            worker.relay.check(number)
        await clock.advance(15.0)
        assert [number for number in range(20) if not waiting[number].done()] == [7]
        for task in (*tasks, waiting[7]):
            task.cancel()


async def test_a_refresh_that_is_not_awaitable_is_named(clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> None:
    """A plain function as ``refresh`` is reported with the remedy."""

    def load(keys: list[Any]) -> dict[Any, int]:
        return {}

    async with Purgatory[Any]("orders", clock=clock) as room, Relay(room, MemoryTransport(), refresh=load) as relay:  # type: ignore[arg-type]
        waiting = asyncio.create_task(relay.wait_until(lambda: False, key="a", timeout=0.5))
        await clock.advance(0.5)
        assert await waiting is False
    assert "refresh must be 'async def', or return an awaitable, got" in caplog.text


async def test_nothing_is_remembered_of_keys_that_failed_once_nobody_waits(
    clock: VirtualClock, reported: list[Any]
) -> None:
    """After an outage and with unreadable keys, the counts of failures go with the last waiters."""
    (worker,), _ = workers(clock, 1, resync_every=100_000.0)
    async with worker:
        waiting = [worker.waits(n, timeout=10_000.0) for n in range(40)]
        worker.failures = 1_000_000
        await clock.advance(120.0)
        worker.failures = 0
        worker.unreadable = set(range(10))
        await clock.advance(200.0)
        for task in waiting:
            task.cancel()
        await clock.advance(200.0)
        refresher = worker.relay._refresher
        assert (refresher.waiting, refresher._failures_of) == (0, {})


class _Poison:
    """Adds new keys that cannot be read, each with a wait of ``life`` seconds, and measures how long the others wait.

    Key numbers below 0 cannot be read, except those in ``again``; all other keys can.
    """

    class _Negative(set[Hashable]):
        def __init__(self, again: set[Hashable]) -> None:
            self.again = again

        def isdisjoint(self, others: Any) -> bool:
            return all(isinstance(key, str) or key >= 0 or key in self.again for key in others)

    def __init__(self, worker: Any, rate: float, life: float = 5.0) -> None:
        self.worker = worker
        self.clock: VirtualClock = worker.clock
        self.draw = random.Random(3)
        self.delays: list[float] = []
        self.waiting: list[float] = []  # when each of the others that have not been answered was checked
        self.measured = 0
        self.tasks: list[asyncio.Task[Any]] = []
        self._adding = [rate, life]
        self.again: set[Hashable] = set()  # keys below 0 that can be read
        worker.unreadable = self._Negative(self.again)
        worker.read_takes = 0.004
        worker.relay._refresher.spread(random.Random(4), 0)

    def start(self) -> None:
        self.tasks.append(asyncio.create_task(self._add(*self._adding)))

    async def _add(self, rate: float, life: float) -> None:
        for number in range(1, 1_000_000):
            self.tasks.append(self.worker.waits(-number, timeout=life))
            await self.clock.sleep((0.5 + self.draw.random()) / rate)

    def client(self, key: str, every: float) -> None:
        """Wait for the key again and again; the key changes ``every`` seconds, on average, after the wait has begun."""
        self.tasks.append(asyncio.create_task(self._client(key, every)))

    async def _client(self, key: str, every: float) -> None:
        for value in range(1, 1_000_000):
            waiting = self.worker.waits(key, value, timeout=1000.0)
            await self.clock.sleep(every * (0.5 + self.draw.random()))
            self.worker.write(key, value)
            self.worker.relay.check(key, value)
            await self._measure(waiting)

    def newcomers(self, every: float) -> None:
        """Wait for new keys whose value is reached already, so that each wait ends with the first read of its key."""
        self.tasks.append(asyncio.create_task(self._newcomers(every)))

    async def _newcomers(self, every: float) -> None:
        for number in range(1_000_000):
            await self.clock.sleep(every * (0.5 + self.draw.random()))
            self.worker.write(f"new {number}", 1)
            await self._measure(self.worker.waits(f"new {number}", timeout=1000.0))

    async def _measure(self, waiting: "asyncio.Task[bool]") -> None:
        began = self.clock.time()
        self.waiting.append(began)
        assert await waiting is True
        self.waiting.remove(began)
        self.delays.append(self.clock.time() - began)

    def worst(self) -> float:
        """Return the longest delay since the last call, including those that have not ended."""
        worst = max([*self.delays, *(self.clock.time() - began for began in self.waiting)])
        self.measured += len(self.delays)
        self.delays.clear()
        return worst

    def end(self) -> None:
        for task in self.tasks:
            task.cancel()


@pytest.mark.parametrize("rate", [1, 3, 10, 50, 100])
async def test_new_keys_that_cannot_be_read_do_not_delay_the_others(
    clock: VirtualClock, reported: list[Any], rate: int
) -> None:
    """While unreadable keys keep arriving, every other key is read within 0.1 s, and the reads stay few: three for
    each new key, and one in 20 ms for the others."""
    (worker,), _ = workers(clock, 1, resync_every=1000.0)
    async with worker:
        poison = _Poison(worker, rate)
        for number in range(5):
            poison.client(f"client {number}", 1.0)
        poison.newcomers(0.5)
        await clock.advance(1.0)
        poison.start()
        await clock.advance(3.0)  # the first failed read is repeated three times
        assert poison.worst() < 1.0
        for _ in range(20):
            worker.reads.clear()
            await clock.advance(1.0)
            assert len(worker.reads) <= 3 * rate + 50
        assert poison.worst() < 0.1
        assert poison.measured > 100
        poison.end()


@pytest.mark.parametrize("rate", [20, 100])
async def test_new_keys_that_cannot_be_read_do_not_look_like_an_outage(
    clock: VirtualClock, reported: list[Any], rate: int
) -> None:
    """Between the reads of the only other key, dozens of reads fail.  It is read soon nevertheless, because the relay
    finds that the store answers."""
    (worker,), _ = workers(clock, 1, resync_every=1000.0)
    async with worker:
        poison = _Poison(worker, rate)
        poison.client("client", 4.0)
        await clock.advance(1.0)
        poison.start()
        await clock.advance(60.0)
        assert poison.worst() < 1.0
        assert poison.measured > 10
        poison.end()


async def test_after_an_outage_new_keys_that_cannot_be_read_do_not_keep_the_others_waiting(
    clock: VirtualClock, reported: list[Any]
) -> None:
    """An outage lasts longer than the waits, so no key is left that has been read since its wait began.  In the outage,
    the new keys cause no reads beyond those after the pauses."""
    (worker,), _ = workers(clock, 1, resync_every=1000.0)
    async with worker:
        poison = _Poison(worker, 20)
        poison.newcomers(1.0)
        poison.start()
        await clock.advance(20.0)
        worker.failures = 1_000_000
        worker.reads.clear()
        await clock.advance(600.0)
        assert len(worker.reads) <= 2 * 600 / 2.5 + 50  # of keys together, and of keys alone
        assert poison.worst() > 590.0
        worker.failures = 0
        await clock.advance(10.0)  # two of the longest pauses
        assert poison.waiting == [] or clock.time() - poison.waiting[0] < 0.1
        poison.delays.clear()
        await clock.advance(20.0)
        assert poison.worst() < 0.1
        assert poison.measured > 20
        poison.end()


async def test_keys_that_were_read_come_before_new_ones_that_cannot_be_read(
    clock: VirtualClock, reported: list[Any]
) -> None:
    """Even if unreadable keys arrive faster than they can be read, one at a time, a key that was read before its check
    does not wait for them."""
    (worker,), _ = workers(clock, 1, resync_every=1000.0)
    async with worker:
        waiting = [worker.waits(f"early {number}", timeout=100.0) for number in range(50)]
        await clock.advance(1.0)
        poison = _Poison(worker, 400, life=2.0)
        poison.start()
        await clock.advance(3.0)
        for number in range(50):
            worker.write(f"early {number}", 1)
            worker.relay.check(f"early {number}", 1)
            await clock.advance(0.1)
            assert waiting[number].done()
        poison.end()


async def test_in_an_outage_a_key_that_was_read_is_read_again_but_not_when_nobody_waits(
    clock: VirtualClock, reported: list[Any]
) -> None:
    """While the store seems down, every other read is of a key whose read has succeeded before."""
    (worker,), _ = workers(clock, 1, resync_every=10_000.0)
    async with worker:
        early = worker.waits("early")
        await clock.settle()
        early.cancel()
        worker.failures = 1_000_000
        waiting = [worker.waits(number, timeout=1000.0) for number in range(20)]
        await clock.advance(60.0)
        worker.reads.clear()
        await clock.advance(60.0)
        assert abs(2 * worker.reads.count(["early"]) - len(worker.reads)) <= 1
        for task in waiting:
            task.cancel()
        await clock.advance(10.0)  # a pause that has begun
        worker.reads.clear()
        await clock.advance(60.0)
        assert worker.reads == []


async def test_clients_that_poll_again_are_not_delayed_by_new_keys_that_cannot_be_read(
    clock: VirtualClock, reported: list[Any]
) -> None:
    """A client's next wait on a key is no wait on a new key, even if nobody has waited on the key in the meantime.  A
    read takes 10 ms, 500 keys are checked each second, and 50 readable and 5 unreadable new keys arrive each second."""
    (worker,), _ = workers(clock, 1, resync_every=1000.0)
    async with worker:
        poison = _Poison(worker, 5, life=20.0)
        worker.read_takes = 0.01
        for number in range(400):
            poison.client(f"client {number}", 0.8)
        poison.newcomers(0.02)
        await clock.advance(1.0)
        poison.start()
        await clock.advance(3.0)
        poison.worst()
        await clock.advance(6.0)
        assert poison.worst() < 0.15
        assert poison.measured > 3000
        poison.end()


async def test_keys_that_can_be_read_again_do_not_delay_the_others(clock: VirtualClock, reported: list[Any]) -> None:
    """When hundreds of keys can be read again, they are not read one by one before all others."""
    (worker,), _ = workers(clock, 1, resync_every=1000.0)
    async with worker:
        poison = _Poison(worker, 1)
        for number in range(20):
            poison.client(f"client {number}", 0.2)
        await clock.advance(1.0)
        waiting = [worker.waits(-number, timeout=1000.0) for number in range(1, 401)]
        await clock.advance(20.0)
        poison.worst()
        for number in range(1, 401):
            worker.write(-number, 1)  # without a notice, and before any read that succeeds
        await clock.advance(1.0)
        assert poison.worst() < 0.1
        worker.unreadable = set()
        await clock.advance(2.0)
        assert poison.worst() < 0.1
        assert poison.measured > 100
        await clock.advance(6.0)  # a pause that has begun
        assert all(task.done() for task in waiting)
        poison.end()


async def test_a_new_key_is_read_during_a_resync_although_another_one_cannot_be_read(
    clock: VirtualClock, reported: list[Any]
) -> None:
    """The failed read of a new key leaves room for one new key, and the resync must not take it."""
    (worker,), (transport,) = workers(clock, 1, max_keys=50)
    async with worker:
        waiting = [worker.waits(number, timeout=300.0) for number in range(400)]
        await clock.advance(1.0)
        worker.unreadable = {"bad"}
        waiting.append(worker.waits("bad", timeout=300.0))
        await clock.advance(5.0)
        worker.read_takes = 0.01
        await transport.peer().publish('[1,"other","all"]')
        await clock.advance(0.005)
        worker.write("good", 1)
        good = worker.waits("good", timeout=300.0)
        await clock.advance(0.1)
        assert good.done()
        for task in waiting:
            task.cancel()


async def test_the_parts_of_failed_reads_are_joined_when_they_can_be_read(clock: VirtualClock) -> None:
    """A shard that has been down leaves hundreds of small parts, none of which fails any longer."""
    (worker,), _ = workers(clock, 1)
    async with worker:
        waiting = [worker.waits(number, timeout=1000.0) for number in range(1_000)]
        await clock.advance(1.0)
        worker.reads.clear()
        refresher = worker.relay._refresher
        for number in range(0, 1_000, 4):
            refresher._parts.divide([(key, None) for key in range(number, number + 4)])
        refresher._most_keys = [2, 2]
        refresher._wake.set()
        await clock.settle()
        assert sorted(key for keys in worker.reads for key in keys) == list(range(1_000))
        assert len(worker.reads) < 20
        assert len(refresher._parts) == 0
        for task in waiting:
            task.cancel()


async def test_parts_that_were_divided_are_not_joined_while_others_change(
    clock: VirtualClock, reported: list[Any]
) -> None:
    """The reads of the keys that change succeed in between, and must not undo the search for those of a shard."""
    (worker,), (transport,) = workers(clock, 1)
    async with worker:
        waiting = [worker.waits(number, 10**9, timeout=1000.0) for number in range(200)]
        await clock.advance(1.0)
        worker.unreadable = set(range(0, 200, 10))
        worker.read_takes = 0.2
        await transport.peer().publish('[1,"other","all"]')
        for number in range(480):
            worker.write(10 * number % 200 + 1, number)
            worker.relay.check(10 * number % 200 + 1)
            await clock.advance(0.25)
        assert len(worker.relay._refresher._unreadable) >= 19, "one of the twenty may be read just now"
        for task in waiting:
            task.cancel()


async def test_keys_that_can_be_read_again_are_found_among_those_that_cannot(
    clock: VirtualClock, reported: list[Any]
) -> None:
    """If a read of several keys fails, they are read one at a time again."""
    (worker,), _ = workers(clock, 1, resync_every=1000.0)
    async with worker:
        poison = _Poison(worker, 1)
        poison.client("client", 0.1)
        await clock.advance(1.0)
        waiting = {-number: worker.waits(-number, timeout=1000.0) for number in range(1, 401)}
        await clock.advance(20.0)
        assert len(worker.relay._refresher._unreadable) > 300
        poison.again.update(range(-400, 0, 2), range(-399, 0, 4))
        for number in waiting:
            worker.write(number, 1)
        worker.reads.clear()
        await clock.advance(40.0)
        assert {number for number, task in waiting.items() if task.done()} == poison.again
        failed = [keys for keys in worker.reads if not worker.unreadable.isdisjoint(keys)]
        assert max(map(len, failed)) > 1
        for task in waiting.values():
            task.cancel()
        poison.end()


async def test_a_key_that_can_be_read_again_is_read_although_new_ones_that_cannot_keep_arriving(
    clock: VirtualClock, reported: list[Any]
) -> None:
    """Unreadable keys that have failed less often do not always come first."""
    (worker,), _ = workers(clock, 1, resync_every=1000.0)
    async with worker:
        poison = _Poison(worker, 5, life=20.0)
        poison.client("client", 0.1)
        late = worker.waits(-1_000_000, timeout=1000.0)
        await clock.advance(10.0)
        poison.start()
        await clock.advance(60.0)
        poison.again.add(-1_000_000)
        worker.write(-1_000_000, 1)
        await clock.advance(30.0)
        assert late.done()
        poison.end()


async def test_after_an_outage_with_new_keys_that_cannot_be_read_all_others_are_read_soon(
    clock: VirtualClock, reported: list[Any]
) -> None:
    """Readable keys whose reads failed only because of the outage do not wait behind the unreadable ones.  A read takes
    10 ms, 100 keys are checked each second, and 50 readable and 3 unreadable new keys arrive each second."""
    (worker,), (transport,) = workers(clock, 1, resync_every=1000.0)
    async with worker:
        poison = _Poison(worker, 3, life=20.0)
        worker.read_takes = 0.01
        for number in range(1000):
            poison.client(f"client {number}", 10.0)
        poison.newcomers(0.02)
        await clock.advance(1.0)
        poison.start()
        await clock.advance(12.0)
        worker.failures = 1_000_000
        transport.disconnect()
        await clock.advance(10.0)
        worker.failures = 0
        await clock.advance(6.0)  # a pause that has begun, and one second
        assert len(poison.waiting) < 20
        poison.delays.clear()
        await clock.advance(2.0)
        assert poison.worst() < 0.5
        assert poison.measured > 80
        poison.end()


async def test_while_reads_fail_at_random_a_part_with_a_key_that_cannot_be_read_is_divided(
    clock: VirtualClock, reported: list[Any]
) -> None:
    """One in ten reads fails, whatever its keys.  That does not keep the relay from finding the unreadable new keys,
    although the reads of the other keys succeed in between."""
    draw = random.Random(5)
    (worker,), _ = workers(clock, 1, resync_every=1000.0)
    load = worker.load

    async def unreliable(keys: list[Hashable]) -> dict[Hashable, float]:
        if draw.random() < 0.1:
            worker.failures = 1
        return await load(keys)

    worker.relay._refresher._refresh = unreliable
    async with worker:
        poison = _Poison(worker, 3, life=20.0)
        for number in range(100):
            poison.client(f"client {number}", 0.3)
        poison.newcomers(0.05)
        await clock.advance(10.0)
        poison.start()
        await clock.advance(8.0)
        assert len(worker.relay._refresher._unreadable) > 5
        poison.end()


async def test_new_keys_are_read_together_in_the_pass_that_ends_an_outage(
    clock: VirtualClock, reported: list[Any]
) -> None:
    """Each successful read doubles the number of keys in the next one, also if the pass finds new keys alone."""
    transport = MemoryTransport(clock=clock)
    sizes: list[int] = []
    up = True

    async def load(keys: list[Hashable]) -> dict[Hashable, int]:
        if not up:
            raise ConnectionError("the store is down")
        sizes.append(len(keys))
        return dict.fromkeys(keys, 1)

    room = Purgatory[Any]("test", clock=clock)
    async with room, Relay(room, transport, refresh=load, resync_every=3600.0) as relay:

        def wait(key: int) -> "asyncio.Task[bool]":
            return asyncio.create_task(relay.wait_until(lambda: key in relay.state, key=key, timeout=300.0))

        first = wait(0)
        await clock.settle()
        assert await first is True
        up = False
        transport.stop()
        waiting = []
        for key in range(1, 1001):
            waiting.append(wait(key))
            await clock.advance(0.05)
        sizes.clear()
        up = True
        transport.start()
        await clock.advance(10.0)
        assert all(task.done() for task in waiting)
        assert len(sizes) <= 2 * (1000).bit_length()
