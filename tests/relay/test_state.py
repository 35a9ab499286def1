"""``relay.state``: what a wait may see of it, and what stays in memory."""

import asyncio
import gc
import random
import sys
import weakref
from collections.abc import Hashable
from types import TracebackType
from typing import Any, Self

import pytest

from purgatory import DelayedOperation, Purgatory, PurgatoryClosed
from purgatory.asgi import Wait
from purgatory.relay import MemoryTransport, Relay
from purgatory.testing import VirtualClock
from tests.asgi.tools import Call


class Store:
    """A purgatory and a relay whose ``refresh`` reads the table; it keeps nothing itself."""

    def __init__(self, clock: VirtualClock, transport: MemoryTransport | None = None, **options: Any) -> None:
        self.table: dict[Hashable, Any] = {}
        self.reads: list[list[Hashable]] = []
        self.read_takes = 0.0
        self.clock = clock
        self.room = Purgatory[Any]("test", clock=clock)
        self.relay = Relay(self.room, transport or MemoryTransport(clock=clock), refresh=self.load, **options)

    async def load(self, keys: list[Hashable]) -> dict[Hashable, Any]:
        """Return the values at the time of the query, ``read_takes`` seconds later."""
        self.reads.append(list(keys))
        found = {key: self.table[key] for key in keys if key in self.table}
        if self.read_takes:
            await self.clock.sleep(self.read_takes)
        return found

    def value(self, key: Hashable, timeout: float | None = 30.0) -> "asyncio.Task[Any]":
        """Return a task that waits for any value of the key."""
        return asyncio.create_task(self.relay.wait_value(lambda: self.relay.state.get(key), key=key, timeout=timeout))

    def at_least(self, key: Hashable, goal: float, timeout: float | None = 30.0) -> "asyncio.Task[Any]":
        """Return a task that waits until the value of the key has reached the goal."""
        state = self.relay.state

        def reached() -> Any:
            return state[key] if state.get(key, 0) >= goal else None

        return asyncio.create_task(self.relay.wait_value(reached, keys={key: goal}, timeout=timeout))

    async def __aenter__(self) -> Self:
        await self.room.__aenter__()
        await self.relay.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.relay.aclose()
        await self.room.aclose()
        self.relay._refresher.state._check()
        self.room._check()
        assert self.relay._refresher.state.kept == 0


def num_early(state: Any) -> int:
    """The number of waits that are recorded under a key."""
    taken = sum(group.number < wait.since for group in state._taken for wait in group.waits)
    return sum(len(group.waits) for group in state._early.values()) + taken


def num_due(state: Any) -> int:
    """The number of waits that are to be tried after the checks of the read."""
    taken = sum(group.skips and group.number >= wait.since for group in state._taken for wait in group.waits)
    return len(state._due) + taken


async def test_the_value_that_refresh_returned_is_the_answer(clock: VirtualClock) -> None:
    """The wait has its key read and returns what was found, and a notice of another process brings a later value."""
    transport = MemoryTransport(clock=clock)
    async with Store(clock, transport) as one, Store(clock, transport.peer()) as other:
        other.table = one.table
        one.table["a"] = 1
        first = other.value("a")
        await clock.settle()
        assert await first == 1
        later = other.at_least("a", 2)
        await clock.settle()
        one.table["a"] = 2
        one.relay.check("a", 2)
        await clock.settle()
        assert later.done()
        assert await later == 2


async def test_zero_and_an_empty_text_are_values(clock: VirtualClock) -> None:
    """Only None is no value."""
    async with Store(clock) as store:
        store.table.update({"zero": 0, "empty": "", "none": None})
        tasks = [store.value(key) for key in store.table]
        await clock.settle()
        assert [task.done() for task in tasks] == [True, True, False]
        assert [await task for task in tasks[:2]] == [0, ""]
        tasks[2].cancel()


async def test_a_wait_is_not_answered_from_a_value_that_was_read_before_it(clock: VirtualClock) -> None:
    """Another operation keeps an old value of the key; the new wait is answered by a read of its own."""
    async with Store(clock) as store:
        store.table["a"] = "old"
        other = asyncio.create_task(store.relay.wait_until(lambda: False, key="a", timeout=30.0))
        await clock.settle()
        assert store.relay.state["a"] == "old"
        store.table["a"] = "new"
        waiting = store.value("a")
        await clock.settle()
        assert waiting.done()
        assert await waiting == "new"
        assert store.reads == [["a"], ["a"]]
        other.cancel()


async def test_a_read_that_began_before_the_wait_does_not_answer_it(clock: VirtualClock) -> None:
    """The value of the earlier read answers the earlier wait only."""
    async with Store(clock) as store:
        store.read_takes = 1.0
        store.table["a"] = "old"
        first = store.value("a")
        await clock.advance(0.5)
        store.table["a"] = "new"
        second = store.value("a")
        await clock.advance(0.5)
        assert first.done()
        assert not second.done()
        assert await first == "old"
        await clock.advance(1.0)
        assert second.done()
        assert await second == "new"


async def test_waits_that_begin_during_every_read_are_answered(clock: VirtualClock) -> None:
    """A wait needs one read that began after it, however many waits follow: none waits longer than two reads."""
    async with Store(clock) as store:
        store.read_takes = 0.3
        store.table["a"] = 1
        tasks = []
        for _ in range(50):
            tasks.append(store.value("a"))
            await clock.advance(0.1)
        assert sum(not task.done() for task in tasks) <= 6
        await clock.advance(1.0)
        assert await asyncio.gather(*tasks) == [1] * 50


@pytest.mark.parametrize(
    ("condition", "ends_when_removed"),
    [
        (lambda state: state.get("a") != "pending", False),
        (lambda state: state["a"] == "done", False),
        (lambda state: all(value == "done" for value in state.values()), False),
        (lambda state: "a" not in state, True),
        (lambda state: not state, True),
    ],
)
async def test_a_key_that_has_not_been_read_yet_is_not_absent_for_a_condition(
    clock: VirtualClock, condition: Any, ends_when_removed: bool
) -> None:
    """A condition that would hold for an absent key, or raise, is evaluated again after the read."""
    async with Store(clock) as store:
        store.table["a"] = "pending"
        store.read_takes = 1.0
        other = asyncio.create_task(store.relay.wait_until(lambda: False, key="a", timeout=30.0))
        await clock.advance(1.0)
        waiting = asyncio.create_task(
            store.relay.wait_until(lambda: condition(store.relay.state), key="a", timeout=30.0)
        )
        value = asyncio.create_task(
            store.relay.wait_value(lambda: condition(store.relay.state) or None, key="a", timeout=30.0)
        )
        await clock.advance(0.5)
        store.room.check_and_complete("a")
        assert not waiting.done()
        await clock.advance(5.0)
        assert not waiting.done()
        store.table["a"] = "done"
        if ends_when_removed:
            del store.table["a"]
        store.relay.check("a")
        await clock.advance(2.0)
        assert waiting.done()
        assert await waiting is True
        assert await value is True
        other.cancel()


async def test_an_error_of_a_condition_that_knows_its_keys_reaches_the_caller(clock: VirtualClock) -> None:
    """After the read, a KeyError is the condition's own."""
    async with Store(clock) as store:
        waiting = asyncio.create_task(store.relay.wait_until(lambda: store.relay.state["a"] > 1, key="a", timeout=30.0))
        await clock.settle()
        with pytest.raises(KeyError, match="a"):
            await waiting


async def test_a_value_that_is_discarded_goes_to_on_abandoned(clock: VirtualClock) -> None:
    """If ``get`` takes a value before its keys are read, the value is given back, and taken again after the read."""
    async with Store(clock) as store:
        store.table["a"] = 1
        items: list[int] = [1, 2]
        back: list[int] = []

        def get() -> int:
            store.relay.state.get("a")
            return items.pop(0)

        waiting = asyncio.create_task(store.relay.wait_value(get, key="a", timeout=30.0, on_abandoned=back.append))
        await clock.settle()
        assert await waiting == 2
        assert back == [1]


async def test_a_condition_of_several_keys_waits_until_all_are_read(clock: VirtualClock) -> None:
    """With one key in each read, the condition holds only after the last of them."""
    async with Store(clock, max_keys=1) as store:
        store.table = {"a": 1, "b": 2, "c": 3}
        store.read_takes = 1.0
        state = store.relay.state
        waiting = asyncio.create_task(
            store.relay.wait_value(lambda: sum(state.get(key, 0) for key in "abc"), keys=["a", "b", "c"], timeout=30.0)
        )
        await clock.advance(2.5)
        assert not waiting.done()
        await clock.advance(20.0)
        assert await waiting == 6


async def test_a_condition_that_does_not_use_the_state_holds_at_once(clock: VirtualClock) -> None:
    """Conditions on the application's own state behave as before: no read is awaited."""
    async with Store(clock) as store:
        store.read_takes = 1.0
        assert await store.relay.wait_until(lambda: True, key="a", timeout=30.0) is True
        ready = False
        waiting = asyncio.create_task(store.relay.wait_until(lambda: ready, key="a", timeout=30.0))
        await clock.settle()
        ready = True
        assert store.relay.check("a") == 1
        assert await waiting is True


async def test_an_operation_of_your_own_finds_a_key_absent_until_it_is_read(clock: VirtualClock) -> None:
    """``try_complete`` sees no value of a read before ``park``, and ``on_complete`` sees the value that ended it."""
    seen: list[Any] = []

    class Paid(DelayedOperation[Any]):
        def try_complete(self) -> bool:
            seen.append(store.relay.state.get("a"))
            return seen[-1] is not None

        def on_complete(self) -> Any:
            return store.relay.state["a"]

    async with Store(clock) as store:
        store.table["a"] = "old"
        other = asyncio.create_task(store.relay.wait_until(lambda: False, key="a", timeout=30.0))
        await clock.settle()
        store.table["a"] = "paid"
        waiting = asyncio.create_task(store.relay.park(Paid(30.0), key="a"))
        await asyncio.sleep(0)
        store.room.check_and_complete("a")
        other.cancel()
        await clock.settle()
        assert await waiting == "paid"
        assert seen == [None, None, "paid"]


async def test_a_read_replaces_what_it_finds_and_removes_what_it_does_not_find(clock: VirtualClock) -> None:
    """The state is what the last read of each key has returned."""
    async with Store(clock) as store:
        state = store.relay.state
        store.table.update({"a": 1, "b": 2})
        waiting = asyncio.create_task(store.relay.wait_until(lambda: False, keys=["a", "b"], timeout=30.0))
        await clock.settle()
        assert dict(state) == {"a": 1, "b": 2}
        assert (len(state), "a" in state, list(state)) == (2, True, ["a", "b"])
        store.table["a"] = 5
        del store.table["b"]
        store.relay.check("a")
        store.relay.check("b")
        assert dict(state) == {"a": 1, "b": 2}
        await clock.settle()
        assert dict(state) == {"a": 5}
        assert "b" not in state
        with pytest.raises(KeyError, match="b"):
            state["b"]
        assert state.get("b", 7) == 7
        waiting.cancel()


async def test_keys_that_were_not_asked_for_are_not_kept(clock: VirtualClock) -> None:
    """A read may return more keys than it was given."""
    room = Purgatory[Any]("test", clock=clock)

    async def load(_: list[str]) -> dict[str, int]:
        return {"a": 1, "b": 2}

    async with room, Relay(room, MemoryTransport(), refresh=load) as relay:
        waiting = asyncio.create_task(relay.wait_until(lambda: False, key="a", timeout=1.0))
        await clock.settle()
        assert dict(relay.state) == {"a": 1}
        waiting.cancel()


@pytest.mark.parametrize("end", ["answered", "expired", "cancelled", "failed", "withdrawn"])
async def test_the_value_is_dropped_when_the_last_watcher_leaves(clock: VirtualClock, end: str) -> None:
    """However the last operation of a key ends, the key is absent at once, and its value is freed."""

    class Value:
        pass

    async with Store(clock) as store:
        store.table["a"] = value = Value()
        freed = weakref.ref(value)
        done = False
        tasks = [asyncio.create_task(store.relay.wait_until(lambda: done, key="a", timeout=30.0)) for _ in range(2)]
        await clock.settle()
        assert store.relay.state["a"] is value
        store.table.clear()
        del value
        tasks.pop().cancel()
        await clock.settle()
        assert freed() is not None
        if end == "answered":
            done = True
            assert store.room.check_and_complete("a") == 1
        elif end == "expired":
            await clock.advance(30.0)
        elif end == "cancelled":
            tasks[0].cancel()
        elif end == "failed":
            store.room.fail_for_key("a", ValueError("failed"))
        else:
            store.room.cancel_for_key("a")
        await asyncio.wait(tasks)
        assert "a" not in store.relay.state
        assert freed() is None
        if not tasks[0].cancelled():
            tasks[0].exception()


async def test_a_key_is_absent_when_nothing_waits_on_it_at_the_look_up(clock: VirtualClock) -> None:
    """Operations that were parked on the purgatory itself count as well, and their values are freed soon."""
    async with Store(clock) as store:
        state = store.relay.state
        store.table.update({number: number for number in range(1000)})
        waiting = [
            asyncio.create_task(store.room.wait_until(lambda: False, keys=[number], timeout=10.0))
            for number in range(1000)
        ]
        await clock.settle()
        for number in range(1000):
            store.relay.check(number)
        await clock.settle()
        assert len(state) == 1000
        assert state[7] == 7
        await clock.advance(10.0)
        assert [await task for task in waiting] == [False] * 1000
        assert len(state) == 0
        assert 7 not in state
        store.table["a"] = 1
        for _ in range(500):
            assert await during_reads(clock, store.value("a")) == 1
        assert store.relay._refresher.state.kept <= 1


async def during_reads(clock: VirtualClock, task: "asyncio.Task[Any]") -> Any:
    """Let the reads happen, and return the result of the task."""
    await clock.settle()
    return await task


@pytest.mark.parametrize("by", ["this worker", "another worker", "every key"])
@pytest.mark.parametrize("reading", [False, True])
async def test_a_value_that_changes_while_nothing_waits_is_not_shown_again(
    clock: VirtualClock, by: str, reading: bool
) -> None:
    """The page of a stream is loaded again, and the state has changed in between: the old value is gone.

    ``reading``: the key is being read during the change, and the read has found the old value.
    """
    transport = MemoryTransport(clock=clock)
    other = Relay(Purgatory[Any]("other", clock=clock), transport.peer(), max_keys=1)
    async with Store(clock, transport) as store, other:
        state = store.relay.state

        async def follow() -> None:
            async with store.room.changes(["a"]) as changes:
                async for _ in changes:
                    pass

        stream = asyncio.create_task(follow())
        await clock.settle()
        store.table["a"] = "paid"
        store.read_takes = 1.0
        other.check("a")
        await clock.advance(0.5 if reading else 1.0)
        assert state.get("a") == (None if reading else "paid")
        stream.cancel()
        await clock.settle()
        assert "a" not in state
        store.table["a"] = "shipped"
        if by == "this worker":
            store.relay.check("a")
        else:
            other.check("a")
            if by == "every key":
                other.check("b")
        await clock.settle()
        stream = asyncio.create_task(follow())
        await clock.settle()
        for _ in range(30):
            assert state.get("a") != "paid" or reading
            await clock.advance(0.1)
        assert state.get("a") != "paid"
        store.relay.check("a")
        await clock.advance(2.0)
        assert state["a"] == "shipped"
        stream.cancel()


async def test_the_value_of_a_stale_key_is_dropped_when_nothing_waits_on_it(
    clock: VirtualClock, reported: list[Any]
) -> None:
    """The key changes, and the stream ends while the read of the key is repeated."""
    async with Store(clock) as store:
        state = store.relay.state

        async def follow(key: str) -> None:
            async with store.room.changes([key]) as changes:
                async for _ in changes:
                    pass

        stream = asyncio.create_task(follow("a"))
        store.table["a"] = "paid"
        await clock.settle()
        store.relay.check("a")
        await clock.settle()
        assert state["a"] == "paid"
        table, store.table = store.table, None  # type: ignore[assignment]  # each read raises a TypeError
        store.relay.check("a")
        await clock.advance(0.3)
        stream.cancel()
        await clock.advance(2.0)
        store.table = table
        table["a"] = "shipped"
        stream = asyncio.create_task(follow("a"))
        await clock.settle()
        assert "a" not in state
        stream.cancel()


async def test_an_operation_that_checks_its_key_in_on_complete_still_finds_the_value(clock: VirtualClock) -> None:
    """It has left the key, so that nothing waits on the key any longer; the value is gone when the wait has ended."""
    async with Store(clock) as store:
        state = store.relay.state

        class Take(DelayedOperation[Any]):
            def try_complete(self) -> bool:
                return "a" in state

            def on_complete(self) -> Any:
                store.relay.check("a")
                return state.get("a")

        store.table["a"] = "paid"
        taking = asyncio.create_task(store.relay.park(Take(30.0), ["a"]))
        await clock.settle()
        assert await taking == "paid"
        await clock.settle()
        assert store.relay._refresher.state.kept == 0


@pytest.mark.parametrize("unread", [False, True])
async def test_a_key_that_a_pass_over_all_keys_has_not_reached_loses_its_value(
    clock: VirtualClock, reported: list[Any], unread: bool
) -> None:
    """Nothing waits on the key when the pass comes to it, and its notice was lost with the connection.

    ``unread``: the last read did not find its state, and it is due to be read again as the pass begins.
    """
    transport = MemoryTransport(clock=clock)
    async with Store(clock, transport, max_keys=10) as store:
        state = store.relay.state

        async def follow(key: int) -> None:
            async with store.room.changes([key]) as changes:
                async for _ in changes:
                    pass

        store.table.update(dict.fromkeys(range(300), "old"))
        streams = {key: asyncio.create_task(follow(key)) for key in range(300)}
        await clock.settle()
        transport.disconnect()
        await clock.advance(1.0)
        assert len(state) == 300
        key, other = list(store.room.keys())[155:157]  # in the sixteenth read
        if unread:
            store.table[key] = ConnectionError()
            store.relay.check(key)
            await clock.settle()
        store.table[key] = "new"
        store.read_takes = 1.0
        if unread:
            store.relay.check(other)  # a read during which the key is due again
            await clock.settle()
        store.reads.clear()
        transport.disconnect()
        while len(store.reads) < 15:
            await clock.advance(0.1)
        streams[key].cancel()
        await clock.advance(3.0)
        streams[key] = asyncio.create_task(follow(key))
        await clock.advance(30.0)
        assert sum(map(len, store.reads)) == 299
        assert key not in state
        assert len(state) == 299
        for stream in streams.values():
            stream.cancel()


async def test_the_periodic_resync_frees_what_is_left(clock: VirtualClock) -> None:
    """Values of keys on which nothing waits any more are gone after ``resync_every``, if nothing else happens."""
    async with Store(clock, resync_every=20.0) as store:
        waiting = asyncio.create_task(store.room.wait_until(lambda: False, keys=["a"], timeout=10.0))
        await clock.settle()
        store.table["a"] = 1
        store.relay.check("a")
        await clock.advance(10.0)
        assert await waiting is False
        assert store.relay._refresher.state.kept == 1
        await clock.advance(20.0)
        assert store.relay._refresher.state.kept == 0


async def test_nothing_is_left_of_waits_that_are_over(clock: VirtualClock) -> None:
    """Waits of many keys, and what was announced for them, leave no value and no entry behind."""
    async with Store(clock, max_keys=50) as store:
        for number in range(300):
            store.table[number] = number
        for start in range(0, 300, 30):
            tasks = [store.at_least(number, number + 1, timeout=0.5) for number in range(start, start + 30)]
            await clock.settle()
            for number in range(start, start + 30):
                store.relay.check(number, number + 5)
            await clock.advance(0.5)
            assert await asyncio.gather(*tasks) == [None] * 30
        refresher = store.relay._refresher
        assert refresher.state.kept == 0
        assert refresher.state._waits == {}
        assert refresher._not_found._announced == {}
        assert refresher._not_found._again == {}
        await clock.advance(10.0)
        assert refresher._not_found._later == []
        assert store.relay.statistics().stale == 0


async def test_a_limited_number_of_keys_is_remembered_after_the_last_wait(clock: VirtualClock) -> None:
    """The relay remembers which 10,000 keys have been read last, without their values, until it closes."""
    async with Store(clock) as store:
        state = store.relay._refresher.state
        tasks = [store.value("a", timeout=0.5), store.value("b", timeout=0.5)]
        await clock.advance(0.5)
        assert await asyncio.gather(*tasks) == [None, None]
        assert (state.has_read("a"), state.has_read("b"), state.kept) == (True, True, 0)
        state.forget_read("b")
        assert (state.has_read("a"), state.has_read("b")) == (True, False)
        tasks = [store.value(number, timeout=0.5) for number in range(9_999)]
        await clock.advance(0.5)
        await asyncio.gather(*tasks)
        assert (state.has_read("a"), state.has_read(0), state.has_read(9_998)) == (True, True, True)
        tasks = [store.value(0, timeout=0.5), store.value("c", timeout=0.5)]
        await clock.advance(0.5)
        await asyncio.gather(*tasks)
        assert (state.has_read("a"), state.has_read(0), state.has_read("c")) == (False, True, True)
        state._check()
    assert not state.has_read("c")


async def test_a_relay_without_refresh_has_no_state(clock: VirtualClock) -> None:
    """The attribute raises RuntimeError."""
    room = Purgatory[Any]("test", clock=clock)
    relay = Relay(room, MemoryTransport())
    with pytest.raises(RuntimeError, match="a relay without refresh= has no state"):
        relay.state  # noqa: B018


async def test_a_closed_relay_keeps_no_values(clock: VirtualClock) -> None:
    """Operations stay parked; without reads, their keys are absent."""
    async with Store(clock) as store:
        store.table["a"] = 1
        waiting = asyncio.create_task(
            store.relay.wait_until(lambda: store.relay.state.get("a") == 2, key="a", timeout=9.0)
        )
        await clock.settle()
        assert dict(store.relay.state) == {"a": 1}
        await store.relay.aclose()
        assert dict(store.relay.state) == {}
        assert not waiting.done()
        store.room.check_and_complete("a")
        await clock.advance(9.0)
        assert await waiting is False


# Values that a condition takes before its keys are read


class Queue:
    """Jobs that a condition takes in its first expression, before it looks up the keys.

    ``returned``: the jobs that were given back, each of which is put back and its key checked again.  After 20 calls,
    there are no jobs, so that a wait that loops comes to an end.
    """

    def __init__(self, store: Store, check: Any = None) -> None:
        self.store = store
        self.check = check or store.room.check
        self.jobs = ["job"]
        self.calls = 0
        self.returned: list[str] = []

    def take(self) -> str | None:
        """Return a job unless the queue is paused."""
        self.calls += 1
        if self.calls > 20:
            return None
        return self.jobs.pop() if self.jobs and self.store.relay.state.get("a") != "paused" else None

    def put_back(self, job: str) -> None:
        """Put the job back, and check the key for the other waiters."""
        self.returned.append(job)
        self.jobs.append(job)
        self.check("a")

    def wait(self, **keys: Any) -> "asyncio.Task[Any]":
        """Return a task that waits for a job."""
        given = keys or {"key": "a"}
        return asyncio.create_task(
            self.store.relay.wait_value(self.take, timeout=30.0, on_abandoned=self.put_back, **given)
        )


@pytest.mark.parametrize("check", ["check", "check_and_complete", "check_soon", "check_all", "relay"])
async def test_a_callback_that_checks_the_key_does_not_repeat_the_condition(clock: VirtualClock, check: str) -> None:
    """A value is given back, the callback checks its key, and ``get`` is called again only after the read."""
    async with Store(clock) as store:
        checks = {"relay": store.relay.check, "check_all": lambda _: store.room.check_all()}
        queue = Queue(store, checks.get(check) or getattr(store.room, check))
        store.read_takes = 1.0
        waiting = queue.wait()
        await clock.advance(0.5)
        store.room.check("a")
        assert queue.calls == 1
        assert queue.returned == ["job"]
        assert not waiting.done()
        await clock.advance(0.5)
        assert await waiting == "job"
        assert queue.calls == 2


async def test_two_waits_do_not_pass_a_value_to_each_other_before_the_read(clock: VirtualClock) -> None:
    """Each of them takes the value once and gives it back; after the read, one of them receives it."""
    async with Store(clock) as store:
        queue = Queue(store)
        store.read_takes = 1.0
        tasks = [queue.wait(), queue.wait()]
        await clock.advance(0.5)
        assert queue.returned == ["job", "job"]
        await clock.advance(0.5)
        assert [task.done() for task in tasks] == [True, False]
        assert await tasks[0] == "job"
        tasks[1].cancel()


async def test_a_value_is_given_back_once_while_reads_fail(clock: VirtualClock) -> None:
    """During an outage, checks do not call ``get`` again; the first read that succeeds does."""
    failing = True

    async def load(keys: list[str]) -> dict[str, str]:
        if failing:
            raise ConnectionError("the store is away")
        return dict.fromkeys(keys, "open")

    async with Store(clock) as store:
        store.relay._refresher._refresh = load
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        queue = Queue(store, store.relay.check)
        waiting = queue.wait()
        for _ in range(10):
            await clock.advance(1.0)
            store.relay.check("a")
        assert (queue.calls, queue.returned) == (1, ["job"])
        failing = False
        await clock.advance(10.0)
        assert await waiting == "job"
        assert queue.calls == 2


async def test_a_value_is_given_back_at_most_once_for_each_key(clock: VirtualClock) -> None:
    """With one key in each read, ``get`` is called again when the key that it looked up has been read."""
    async with Store(clock, max_keys=1) as store:
        store.table = {"a": 1, "b": 2, "c": 3}
        store.read_takes = 1.0
        queue = Queue(store, lambda _: store.room.check_all())
        state, looked_up = store.relay.state, []

        def take() -> Any:
            queue.calls += 1
            job = queue.jobs.pop() if queue.calls < 20 else None
            looked_up.append([state.get(key) for key in "abc"])
            return job

        waiting = asyncio.create_task(
            store.relay.wait_value(take, keys=["a", "b", "c"], timeout=30.0, on_abandoned=queue.put_back)
        )
        for _ in range(40):
            await clock.advance(0.1)
            store.room.check_all()
        assert waiting.done()
        assert await waiting == "job"
        assert looked_up[0] == [None, None, None]
        assert looked_up[-1] == [1, 2, 3]
        assert queue.calls <= 4
        assert len(queue.returned) == queue.calls - 1


async def test_a_value_of_an_earlier_read_does_not_call_the_condition_again(clock: VirtualClock) -> None:
    """The read that began before the wait stores a value and checks the key; ``get`` waits for the next read."""
    async with Store(clock) as store:
        store.read_takes = 1.0
        store.table["a"] = "open"
        first = store.value("a")
        await clock.advance(0.5)
        queue = Queue(store)
        second = queue.wait()
        await clock.advance(0.5)
        assert await first == "open"
        assert queue.calls == 1
        await clock.advance(1.0)
        assert await second == "job"
        assert queue.calls == 2


async def test_reads_after_a_reconnect_call_the_condition(clock: VirtualClock) -> None:
    """A read that ends while the engine is away makes the key known, and so do the reads after the reconnect."""
    transport = MemoryTransport(clock=clock)
    async with Store(clock, transport) as store:
        store.table["a"] = "paused"
        store.read_takes = 1.0
        queue = Queue(store)
        waiting = queue.wait()
        await clock.advance(0.5)
        assert (queue.calls, queue.returned) == (1, ["job"])
        transport.stop()
        await clock.advance(5.0)
        assert (queue.calls, queue.jobs) == (2, ["job"])
        store.table["a"] = "open"
        transport.start()
        await clock.advance(15.0)
        assert waiting.done()
        assert await waiting == "job"
        assert (queue.calls, queue.returned) == (3, ["job"])


async def test_a_condition_is_not_repeated_when_the_relay_has_closed(clock: VirtualClock) -> None:
    """A closed relay keeps no values, so a value is given back once more, and then ``get`` is not called again."""
    async with Store(clock) as store:
        store.table["a"] = "paused"
        queue = Queue(store)
        queue.jobs.clear()
        waiting = queue.wait()
        await clock.settle()
        await store.relay.aclose()
        calls = queue.calls
        queue.jobs.append("job")
        for _ in range(3):
            store.room.check("a")
        assert queue.calls == calls + 1
        assert queue.returned == ["job"]
        await clock.advance(30.0)
        assert await waiting is None
        assert queue.jobs == ["job"]


async def test_an_error_before_the_read_gives_nothing_back(clock: VirtualClock) -> None:
    """If ``get`` takes a value and then raises KeyError, because its key is not known, the value is lost, and the next
    check calls ``get`` again, before the read or after it.
    """
    async with Store(clock) as store:
        store.table["a"] = "open"
        store.read_takes = 1.0
        jobs, returned = ["third", "second", "first"], list[Any]()
        waiting = asyncio.create_task(
            store.relay.wait_value(
                lambda: (jobs.pop(), store.relay.state["a"]), key="a", timeout=30.0, on_abandoned=returned.append
            )
        )
        await clock.advance(0.5)
        store.room.check("a")
        assert jobs == ["third"]
        await clock.advance(0.5)
        assert await waiting == ("third", "open")
        assert returned == []


@pytest.mark.parametrize("outage", ["failing", "closed"])
async def test_a_condition_that_raised_is_called_at_every_check(clock: VirtualClock, outage: str) -> None:
    """If ``get`` raises before the read and no read succeeds, a local check answers the wait with a local value."""

    async def load(keys: list[str]) -> dict[str, str]:
        if outage == "failing":
            raise ConnectionError("the store is away")
        return await store.load(keys)  # type: ignore[return-value]

    async with Store(clock) as store:
        store.read_takes = 1.0
        store.relay._refresher._refresh = load
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        local: list[str] = []
        waiting = asyncio.create_task(
            store.relay.wait_value(lambda: local.pop() if local else store.relay.state["a"], key="a", timeout=30.0)
        )
        await clock.advance(0.1)
        if outage == "closed":
            await store.relay.aclose()
        local.append("local")
        assert store.room.check("a") == 1
        assert await waiting == "local"


async def test_a_condition_that_took_nothing_is_called_at_every_check(clock: VirtualClock) -> None:
    """While the store is away, a value that does not depend on the state is the answer; nothing has been ignored."""
    async with Store(clock) as store:
        store.read_takes = 10.0
        local: dict[str, str] = {}
        state = store.relay.state
        value = asyncio.create_task(
            store.relay.wait_value(lambda: local.get("a") or state.get("a"), key="a", timeout=30.0)
        )
        until = asyncio.create_task(
            store.relay.wait_until(lambda: "a" in local or state.get("a") != "old", key="a", timeout=30.0)
        )
        error = asyncio.create_task(
            store.relay.wait_until(lambda: local["a"] if local else state["a"], key="a", timeout=30.0)
        )
        await clock.advance(1.0)
        store.room.check("a")
        assert not value.done()
        local["a"] = "new"
        assert store.room.check("a") == 3
        assert await value == "new"
        assert await until is True
        assert await error is True


# Keys with thresholds that are read one after the other


ONE_OR_NINETY = {1: 1, 2: 90}  # the condition of the tests below: the first key has reached 1, or the second one 90


def one_or_ninety(state: Any) -> bool:
    """Look up both keys, and return whether one of them has reached its threshold."""
    first, second = state.get(1, 0), state.get(2, 0)
    return bool(first >= 1 or second >= 90)


def version(state: Any) -> str | None:
    """Return a version if one of the keys has reached its threshold."""
    return "v1" if one_or_ninety(state) else None


class OneOrNinety(DelayedOperation[bool]):
    """An operation of the application's own that needs to know the second key."""

    def __init__(self, state: Any) -> None:
        super().__init__(30.0)
        self.state = state

    def try_complete(self) -> bool:
        return 2 in self.state and one_or_ninety(self.state)

    def on_complete(self) -> bool:
        return not self.expired


async def wait_for_either(kind: str, relay: Relay[Any, Any]) -> object:
    """Wait for one of the two keys in one of the ways that the relay offers."""
    state, keys, timeout = relay.state, ONE_OR_NINETY, 30.0
    if kind == "value":
        return await relay.wait_value(lambda: one_or_ninety(state) or None, keys=keys, timeout=timeout)
    if kind == "value_or_none":
        return await relay.wait_value(lambda: (2 in state and one_or_ninety(state)) or None, keys=keys, timeout=timeout)
    if kind == "until":
        return await relay.wait_until(lambda: one_or_ninety(state), keys=keys, timeout=timeout)
    if kind == "until_all_known":
        return await relay.wait_until(lambda: len(state) == 2 and one_or_ninety(state), keys=keys, timeout=timeout)
    if kind == "error":
        return await relay.wait_until(lambda: max(state[1], state[2] - 89) >= 1, keys=keys, timeout=timeout)
    return await relay.park(OneOrNinety(state), keys)


KINDS = ["value", "value_or_none", "until", "until_all_known", "error", "operation"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_read_below_the_threshold_tries_a_wait_that_did_not_know_the_key(
    clock: VirtualClock, kind: str
) -> None:
    """The first key has reached its threshold, but the result is ignored until the second one has been read, too."""
    async with Store(clock, max_keys=1) as store:
        store.table = {1: 5, 2: 80}
        waiting = asyncio.create_task(wait_for_either(kind, store.relay))
        await clock.settle()
        assert store.reads == [[1], [2]]
        assert waiting.done()
        assert await waiting is True


@pytest.mark.parametrize("kind", KINDS)
async def test_the_order_of_the_reads_does_not_matter(clock: VirtualClock, kind: str) -> None:
    """Whichever key is read first, with whatever pauses and failures, the wait is answered when both are known."""
    for table, failing in (({1: 0, 2: 95}, 1), ({1: 0, 2: 95}, 2), ({1: 5, 2: 80}, 1), ({1: 5, 2: 80}, 2)):
        async with Store(clock, max_keys=1) as store:
            load, until = store.load, clock.time() + 5.0

            async def fail_first(
                keys: list[Any], key: int = failing, load: Any = load, until: float = until
            ) -> dict[Any, Any]:
                if key in keys and clock.time() < until:
                    raise ConnectionError("one key cannot be read")
                return await load(keys)  # type: ignore[no-any-return]

            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            store.table = dict(table)
            store.relay._refresher._refresh = fail_first
            waiting = asyncio.create_task(wait_for_either(kind, store.relay))
            await clock.advance(15.0)
            assert waiting.done(), (table, failing)
            assert await waiting is True


@pytest.mark.parametrize("own", [True, False])
async def test_a_wait_is_tried_by_the_read_of_each_key_that_it_looks_up_later(clock: VirtualClock, own: bool) -> None:
    """A condition that looks up its next key only when it knows the one before is answered after the last read."""

    class AllKnown(DelayedOperation[bool]):
        def try_complete(self) -> bool:
            return all(key in state for key in range(5)) and state[0] >= 1

        def on_complete(self) -> bool:
            return not self.expired

    async with Store(clock, max_keys=1) as store:
        state, goals = store.relay.state, {0: 1, 1: 90, 2: 90, 3: 90, 4: 90}
        store.table = {0: 5, 1: 80, 2: 80, 3: 80, 4: 80}
        operation = AllKnown(30.0)
        waiting = asyncio.create_task(
            store.relay.park(operation, goals)
            if own
            else store.relay.wait_until(operation.try_complete, keys=goals, timeout=30.0)
        )
        await clock.settle()
        assert waiting.done()
        assert await waiting is True


@pytest.mark.parametrize("method", ["until", "value", "changed"])
async def test_a_handler_is_answered_when_its_last_key_has_been_read(clock: VirtualClock, method: str) -> None:
    """The waits of a request are tried by the read of a key that they did not know, whatever its value."""
    results: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        wait = Wait(store.relay, scope, receive)
        results.append(await getattr(wait, method)(lambda: version(state), keys=ONE_OR_NINETY, timeout=30.0))

    async with Store(clock, max_keys=1) as store:
        state = store.relay.state
        store.table = {1: 5, 2: 80}
        call = Call.get(app)
        await clock.settle()
        assert results == [True if method == "until" else "v1"]
        await call.task


async def test_each_of_several_waits_is_tried_by_the_read_that_began_after_it(clock: VirtualClock) -> None:
    """A wait that begins during the read of a key is tried by the next read of that key."""
    async with Store(clock, max_keys=1) as store:
        store.table = {1: 5, 2: 80}
        store.read_takes = 1.0
        tasks = [asyncio.create_task(wait_for_either(kind, store.relay)) for kind in KINDS]
        await clock.advance(1.5)
        assert store.reads == [[1], [2]]
        late = [asyncio.create_task(wait_for_either(kind, store.relay)) for kind in KINDS]
        await clock.advance(0.5)
        assert [task.done() for task in tasks] == [True] * 6
        assert [task.done() for task in late] == [False] * 6
        await clock.advance(3.0)
        assert [task.done() for task in late] == [True] * 6
        assert await asyncio.gather(*tasks, *late) == [True] * 12


async def test_a_read_that_began_before_the_wait_does_not_try_it(clock: VirtualClock) -> None:
    """The key is still unknown to the wait, which is tried by its own read."""
    async with Store(clock) as store:
        store.table["a"] = 3
        store.read_takes = 1.0
        first = store.at_least("a", 5)
        await clock.advance(0.5)
        calls = 0

        def condition() -> bool:
            nonlocal calls
            calls += 1
            return "a" in store.relay.state

        second = asyncio.create_task(store.relay.wait_until(condition, keys={"a": 5}, timeout=30.0))
        await clock.advance(0.75)
        assert (calls, num_early(store.relay._refresher.state)) == (1, 1)
        await clock.advance(0.75)
        assert calls == 2
        assert await second is True
        first.cancel()


async def test_a_read_below_the_threshold_does_not_try_waits_that_know_the_key(clock: VirtualClock) -> None:
    """Of the waits on a key, one for each threshold, the read for a new wait tries only the new one."""
    async with Store(clock) as store:
        store.table["a"] = 0
        state, tried = store.relay.state, []

        def wait(goal: int) -> "asyncio.Task[bool]":
            def reached() -> bool:
                tried.append(goal)
                return bool(state.get("a", 0) >= goal)

            return asyncio.create_task(store.relay.wait_until(reached, keys={"a": goal}, timeout=30.0))

        tasks = [wait(goal) for goal in range(10, 20)]
        await clock.settle()
        tried.clear()
        tasks.append(wait(20))
        await clock.settle()
        assert tried == [20, 20]
        tried.clear()
        store.table["a"] = 10
        store.relay.check("a")
        await clock.settle()
        assert store.reads == [["a"]] * 3
        assert tried == [*range(10, 21), 10]
        for task in tasks:
            task.cancel()


async def test_a_condition_that_also_depends_on_a_local_flag_is_tried_after_the_read(clock: VirtualClock) -> None:
    """An ignored result is not lost, even if the value of the only key is below the threshold."""
    async with Store(clock) as store:
        store.table["a"] = 3
        store.read_takes = 1.0
        state, flag = store.relay.state, False
        waiting = asyncio.create_task(
            store.relay.wait_until(lambda: state["a"] >= 5 or flag, keys={"a": 5}, timeout=30.0)
        )
        await clock.advance(0.5)
        flag = True
        assert store.room.check("a") == 0
        await clock.advance(0.5)
        assert waiting.done()
        assert await waiting is True


async def test_a_value_is_given_back_at_most_once_for_each_key_with_a_threshold(clock: VirtualClock) -> None:
    """A condition that takes a job first is called when the key that it looked up has been read, below its threshold
    or not.
    """
    async with Store(clock, max_keys=1) as store:
        store.table = {1: 0, 2: 0, 3: 0}
        queue = Queue(store, lambda _: store.room.check_all())
        state = store.relay.state

        def take() -> Any:
            queue.calls += 1
            job = queue.jobs.pop() if queue.calls < 20 else None
            return None if [key for key in (1, 2, 3) if state.get(key) is None and queue.calls > 19] else job

        waiting = asyncio.create_task(
            store.relay.wait_value(take, keys={1: 7, 2: 7, 3: 7}, timeout=30.0, on_abandoned=queue.put_back)
        )
        await clock.settle()
        assert waiting.done()
        assert await waiting == "job"
        assert queue.calls <= 4
        assert len(queue.returned) == queue.calls - 1


async def test_a_key_that_is_read_before_the_awaited_one_does_not_hide_it(clock: VirtualClock) -> None:
    """The condition looks up the second key, and later the third one, after it has taken a job.  The read of the second
    key does not call it, and the read of the third one does.
    """
    async with Store(clock, max_keys=1) as store:
        store.table = {1: 0, 2: 0, 3: 0}
        store.read_takes = 1.0
        queue = Queue(store, lambda _: None)
        queue.jobs.clear()
        state = store.relay.state

        def take() -> str | None:
            queue.calls += 1
            if not queue.jobs:
                state.get(2)
                return None
            job = queue.jobs.pop()
            state.get(3)
            return job

        waiting = asyncio.create_task(
            store.relay.wait_value(take, keys={1: 7, 2: 7, 3: 7}, timeout=30.0, on_abandoned=queue.put_back)
        )
        await clock.advance(0.5)
        queue.jobs.append("job")
        store.room.check(1)
        assert (queue.calls, queue.returned) == (2, ["job"])
        await clock.advance(2.0)
        assert store.reads == [[1], [2], [3]]
        assert queue.calls == 2
        await clock.advance(0.5)
        assert waiting.done()
        assert await waiting == "job"
        assert (queue.calls, queue.returned) == (3, ["job"])


@pytest.mark.parametrize("found", ["a row", None, {}])
async def test_a_read_that_is_no_number_tries_each_wait_once(clock: VirtualClock, found: Any) -> None:
    """A check without a value tries every wait, whatever its threshold, so no wait is tried once more."""
    async with Store(clock) as store:
        store.table["a"] = found
        calls = 0

        def get() -> None:
            nonlocal calls
            calls += 1
            store.relay.state.get("a")

        waiting = asyncio.create_task(store.relay.wait_value(get, keys={"a": 5}, timeout=30.0))
        await clock.settle()
        assert (calls, num_early(store.relay._refresher.state)) == (2, 0)
        waiting.cancel()


async def test_waits_whose_threshold_is_reached_are_tried_before_the_others(clock: VirtualClock) -> None:
    """Of two waits for one job, the one that the check tries receives it, although the other one is tried, too."""
    async with Store(clock) as store:
        state, jobs = store.relay.state, ["job"]

        def take() -> str | None:
            return jobs.pop() if state.get("a", 0) >= 5 and jobs else None

        store.table["a"] = 0
        tasks = [asyncio.create_task(store.relay.wait_value(take, keys={"a": 5}, timeout=30.0))]
        await clock.settle()
        store.table["a"] = 5
        tasks.append(asyncio.create_task(store.relay.wait_value(take, keys={"a": 9}, timeout=30.0)))
        await clock.settle()
        assert [task.done() for task in tasks] == [True, False]
        assert await tasks[0] == "job"
        tasks[1].cancel()


async def test_many_waits_are_tried_in_slices(clock: VirtualClock) -> None:
    """The read of a key that no wait knew lets the loop run between the tries."""
    async with Store(clock) as store:
        store.table["a"] = 0
        state, turns, tried = store.relay.state, 0, []

        def reached() -> bool:
            known = state.get("a") is not None
            if known:
                tried.append(turns)
            return known

        tasks = [asyncio.create_task(store.relay.wait_until(reached, keys={"a": 1}, timeout=30.0)) for _ in range(3000)]
        while turns < 1000 and not tasks[-1].done():
            turns += 1
            await asyncio.sleep(0)
        assert len(tried) == 3000
        assert await asyncio.gather(*tasks) == [True] * 3000
        assert max(tried.count(turn) for turn in set(tried)) <= 1024


async def test_a_wait_that_ends_before_it_is_tried_again_is_forgotten(clock: VirtualClock) -> None:
    """While a large batch is stored, a wait whose key has just been stored is cancelled.  It is forgotten at once, and
    its condition is not called.
    """
    due: list[int] = []

    class Found(dict[int, int]):
        """What a read has found; notes how many waits are due when the relay takes a value."""

        def get(self, key: int, default: Any = None) -> Any:
            due.append(num_due(relay._refresher.state))
            return super().get(key, default)

    async def load(keys: list[int]) -> dict[int, int]:
        return Found(dict.fromkeys(keys, 0))

    room = Purgatory[Any]("test", clock=clock)
    async with room, Relay(room, MemoryTransport(clock=clock), refresh=load) as relay:
        state, calls = relay.state, 0

        def condition() -> bool:
            nonlocal calls
            calls += 1
            return state.get(0) == 7

        def cancel() -> bool:
            if state.get(1) is not None:
                waiting.cancel()
            return False

        other = asyncio.create_task(relay.wait_until(cancel, key=1, timeout=30.0))
        waiting = asyncio.create_task(relay.wait_until(condition, keys=dict.fromkeys(range(1000), 7), timeout=30.0))
        await clock.settle()
        assert waiting.cancelled()
        assert calls == 1
        assert max(due) == 1
        assert due[-1] == num_early(relay._refresher.state) == 0
        other.cancel()


@pytest.mark.parametrize("ending", ["answered", "expired", "cancelled", "withdrawn", "failed", "closed"])
async def test_nothing_is_remembered_of_waits_that_have_ended(clock: VirtualClock, ending: str) -> None:
    """However the waits end, before their last key has been read or at that time, the relay keeps nothing of them."""
    async with Store(clock, max_keys=1) as store:
        refresher = store.relay._refresher
        store.table = {1: 5, 2: 80}
        store.read_takes = 20.0 if ending == "expired" else 10.0
        tasks = [asyncio.create_task(wait_for_either(kind, store.relay)) for kind in KINDS]
        await clock.advance(store.read_takes + 1.0)
        assert num_early(refresher.state) == 6
        refresher.state._check()
        if ending == "cancelled":
            for task in tasks:
                task.cancel()
        elif ending == "withdrawn":
            store.room.cancel_for_key(1)
        elif ending == "failed":
            store.room.fail_for_key(1, ValueError("failed"))
        elif ending == "closed":
            await store.room.aclose()
        else:
            await clock.advance(9.0)
        await clock.settle()
        assert all(task.done() for task in tasks)
        assert (num_early(refresher.state), num_due(refresher.state)) == (0, 0)
        for task in tasks:
            if not task.cancelled():
                task.exception()


async def test_a_mapping_of_thresholds_that_changes_during_the_wait_changes_nothing(clock: VirtualClock) -> None:
    """A key with which the wait began is unknown, not absent, until it has been read."""
    async with Store(clock, max_keys=1) as store:
        store.table = {1: 5, 2: 95}
        goals, state = dict(ONE_OR_NINETY), store.relay.state
        waiting = asyncio.create_task(store.relay.wait_until(lambda: 2 not in state, keys=goals, timeout=30.0))
        await asyncio.sleep(0)
        goals.clear()
        await clock.settle()
        assert store.reads == [[1], [2]]
        assert not waiting.done()
        waiting.cancel()


async def test_a_wait_of_zero_with_thresholds_is_not_remembered(clock: VirtualClock) -> None:
    """It is tried once, and no read tries it again."""
    async with Store(clock) as store:
        assert await store.relay.wait_until(lambda: bool(store.relay.state), keys={"a": 1}, timeout=0) is False
        assert num_early(store.relay._refresher.state) == 0


class Job:
    """An object that equals its ID and has the same hash.  ``broken``: whether comparing any job raises."""

    broken = False

    def __init__(self, name: str) -> None:
        self.name = name

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        if self.broken:
            raise RuntimeError("jobs cannot be compared")
        return self.name == (other.name if isinstance(other, Job) else other)


async def test_an_equal_object_whose_hash_changes_is_not_remembered(clock: VirtualClock) -> None:
    """The condition looks up an object that equals the key.  Later changes of the object do not affect the answer."""
    async with Store(clock) as store:
        store.read_takes = 1.0
        job, items, returned = Job("a"), list[str](), list[str]()

        def get() -> str | None:
            if items:
                return items.pop()
            return "state" if store.relay.state.get(job, 0) >= 5 else None  # type: ignore[call-overload]

        waiting = asyncio.create_task(
            store.relay.wait_value(get, keys={"a": 5}, timeout=30.0, on_abandoned=returned.append)
        )
        await clock.settle()
        job.name = "b"
        items.append("item")
        assert store.room.check("a") == 1
        assert await waiting == "item"
        assert returned == []
        store.relay._refresher.state._check()
        assert (num_early(store.relay._refresher.state), num_due(store.relay._refresher.state)) == (0, 0)


async def test_an_awaited_key_is_not_looked_up_with_an_equal_object(clock: VirtualClock) -> None:
    """A value is given back because of an object that equals the key.  When the object changes, the wait still awaits
    its own key.
    """
    async with Store(clock) as store:
        store.table["a"] = "open"
        store.read_takes = 1.0
        job, queue = Job("a"), Queue(store)

        def take() -> str | None:
            queue.calls += 1
            return queue.jobs.pop() if queue.jobs and store.relay.state.get(job) != "paused" else None

        waiting = asyncio.create_task(store.relay.wait_value(take, key="a", timeout=30.0, on_abandoned=queue.put_back))
        await clock.advance(0.5)
        job.name = "b"
        await clock.advance(0.5)
        assert waiting.done()
        assert await waiting == "job"
        assert queue.returned == ["job"]


async def test_an_equal_object_that_cannot_be_compared_breaks_no_read(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The condition of one wait looks up such an object, and its own wait fails; other waits on the key are answered,
    and no read fails.
    """
    async with Store(clock) as store:
        store.table = {"a": 1, "z": 1}
        store.read_takes = 1.0
        job, state = Job("a"), store.relay.state

        def reached() -> bool:
            return bool(state.get(job, 0) >= 5)  # type: ignore[call-overload]

        waiting = asyncio.create_task(store.relay.wait_until(reached, keys={"a": 5}, timeout=30.0))
        await clock.settle()
        monkeypatch.setattr(Job, "broken", True)
        others = [store.at_least("a", 1), store.value("z")]
        await clock.advance(5.0)
        assert [task.done() for task in others] == [True, True]
        assert await asyncio.gather(*others) == [1, 1]
        assert store.relay.statistics().failed_reads == 0
        with pytest.raises(RuntimeError, match="jobs cannot be compared"):
            await waiting


async def test_a_condition_cannot_cancel_the_reads(clock: VirtualClock) -> None:
    """A wait that is tried after the read runs in no task, as in a check, so a condition that cancels the current task
    does not end the reads.
    """
    async with Store(clock) as store:
        store.table = {"a": 1, "z": 1}
        tasks: list[Any] = []

        def cancel() -> bool:
            if store.relay.state.get("a") is not None:
                tasks.append(asyncio.current_task())
                if tasks[-1] is not None:
                    tasks[-1].cancel()
            return False

        waiting = asyncio.create_task(store.relay.wait_until(cancel, keys={"a": 5}, timeout=30.0))
        await clock.settle()
        assert tasks == [None]
        other = store.value("z")
        await clock.settle()
        assert other.done()
        assert await other == 1
        waiting.cancel()


@pytest.mark.parametrize("value", [1.0, None])
async def test_the_cost_of_a_read_value_does_not_depend_on_the_number_of_waits(
    clock: VirtualClock, value: float | None
) -> None:
    """Before the checks, the relay does a constant amount of work for each key that it has read."""
    costs = set()
    for number in (10, 100):
        async with Store(clock) as store:
            store.read_takes = 10.0
            state = store.relay._refresher.state
            tasks = [store.at_least("a", 5) for _ in range(number)]
            await clock.advance(1.0)
            assert num_early(state) == number
            calls: list[str] = []
            sys.setprofile(lambda _frame, event, _arg, calls=calls: calls.append(event))  # type: ignore[misc]
            try:
                state.checked("a", value, 1)
            finally:
                sys.setprofile(None)
            assert num_early(state) == 0
            costs.add(len(calls))
            for task in tasks:
                task.cancel()
            await clock.settle()
            assert (num_early(state), num_due(state)) == (0, 0)
    assert len(costs) == 1


async def test_the_waits_after_a_read_are_tried_in_the_order_of_arrival(clock: VirtualClock) -> None:
    """Of two waits for one job, the one that was parked first receives it, whichever keys they looked up first."""
    async with Store(clock, max_keys=1) as store:
        store.table = {1: 1, 2: 1}
        store.read_takes = 1.0
        state, jobs = store.relay.state, ["job"]

        def take(*keys: int) -> str | None:
            return jobs.pop() if all(state.get(key) is not None for key in keys) and jobs else None

        first = asyncio.create_task(store.relay.wait_value(lambda: take(1, 2), keys={1: 5, 2: 5}, timeout=30.0))
        await asyncio.sleep(0)
        second = asyncio.create_task(store.relay.wait_value(lambda: take(2), keys={2: 5}, timeout=30.0))
        await clock.advance(5.0)
        assert [first.done(), second.done()] == [True, False]
        assert await first == "job"
        second.cancel()


async def test_a_wait_that_is_due_may_be_recorded_again(clock: VirtualClock) -> None:
    """Another check tries a due wait before its turn, and the wait looks up a key that has not been read yet."""
    async with Store(clock, max_keys=1) as store:
        store.table = {1: 1, 2: 1}
        state, relay_state, seen = store.relay.state, store.relay._refresher.state, 0
        waiting = asyncio.create_task(
            store.relay.wait_until(
                lambda: state.get(1, 0) >= 9 or state.get(2, 0) >= 9, keys={1: 9, 2: 9}, timeout=30.0
            )
        )
        for _ in range(50):
            await asyncio.sleep(0)
            if num_due(relay_state):
                seen += 1
                store.room.check(1)
            relay_state._check()
        assert seen
        assert store.reads == [[1], [2]]
        assert (num_early(relay_state), num_due(relay_state)) == (0, 0)
        waiting.cancel()


async def test_a_due_wait_that_ends_is_forgotten_at_once(clock: VirtualClock) -> None:
    """A wait ends after its group has been taken apart, and before the wait is tried; the other waits are tried."""
    async with Store(clock, max_keys=1) as store:
        store.read_takes = 10.0
        state, tried = store.relay._refresher.state, []

        def wait(number: int) -> "asyncio.Task[bool]":
            def condition() -> bool:
                known = store.relay.state.get(1) is not None
                if known:
                    tried.append(number)
                return known and 2 in store.relay.state

            return asyncio.create_task(store.relay.wait_until(condition, keys={1: 5, 2: 5}, timeout=30.0))

        tasks = [wait(number) for number in range(4)]
        await clock.advance(1.0)
        state.store(1, {1: 1}, 1)
        state.checked(1, 1, 1)
        assert (num_early(state), num_due(state)) == (0, 4)
        tasks[0].cancel()
        await clock.settle()
        assert (num_early(state), num_due(state)) == (0, 3)
        state.try_due(3)
        state._check()
        assert (num_early(state), num_due(state), tried) == (0, 3, [])
        tasks[2].cancel()
        await clock.settle()
        state._check()
        assert (num_early(state), num_due(state)) == (0, 2)
        store.room.check(1)
        state._check()
        assert (num_early(state), num_due(state), tried) == (2, 2, [1, 3])
        state.try_due(100)
        state._check()
        assert (num_early(state), num_due(state), tried) == (2, 0, [1, 3, 1, 3])
        assert not state.has_due
        for task in tasks:
            task.cancel()


@pytest.mark.parametrize("found", [1, "a row"])
async def test_a_wait_that_began_during_a_read_remains_recorded(clock: VirtualClock, found: Any) -> None:
    """The read that was in progress forgets the earlier waits on the key, and the next read tries the later ones."""
    async with Store(clock) as store:
        store.table["a"] = found
        store.read_takes = 1.0
        state, relay_state = store.relay.state, store.relay._refresher.state

        def wait() -> "asyncio.Task[Any]":
            return asyncio.create_task(store.relay.wait_until(lambda: "a" in state, keys={"a": 5}, timeout=30.0))

        early = [wait(), wait()]
        await clock.advance(0.5)
        late = [wait(), wait()]
        await clock.advance(0.5)
        assert [task.done() for task in early + late] == [True, True, False, False]
        relay_state._check()
        assert (num_early(relay_state), num_due(relay_state)) == (2, 0)
        late[0].cancel()
        await clock.advance(1.0)
        assert await late[1] is True
        assert await asyncio.gather(*early) == [True, True]


@pytest.mark.parametrize("found", [80, "a row"])
async def test_a_check_after_the_read_records_the_next_unknown_key(clock: VirtualClock, found: Any) -> None:
    """Whether the value was a number or not, the wait is tried by the read of each key that it looks up later."""
    async with Store(clock, max_keys=1) as store:
        store.table = {1: found, 2: 80, 3: 80}
        state = store.relay.state
        waiting = asyncio.create_task(
            store.relay.wait_until(
                lambda: all(key in state for key in (1, 2, 3)), keys={1: 90, 2: 90, 3: 90}, timeout=30.0
            )
        )
        await clock.settle()
        assert waiting.done()
        assert await waiting is True


async def test_no_wait_with_thresholds_is_lost_whatever_happens(clock: VirtualClock) -> None:
    """With random waits on several keys, values, checks and slow reads, each wait whose condition holds is answered."""
    draw = random.Random(11)
    room = Purgatory[Any]("test", clock=clock)
    values = dict.fromkeys(range(5), 0)

    async def load(keys: list[int]) -> dict[int, int]:
        found = {key: values[key] for key in keys}
        await clock.sleep(draw.choice([0.0, 0.01, 0.3]))
        if draw.random() < 0.1:
            raise ConnectionError("the store is away")
        return found

    relay = Relay(room, MemoryTransport(clock=clock), refresh=load, max_keys=2, resync_every=36_000.0)
    async with room, relay:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        state = relay.state

        def wait(goals: dict[int, int]) -> "asyncio.Task[Any]":
            def reached() -> bool:
                return max(state[key] - goal for key, goal in goals.items()) >= 0

            if draw.random() < 0.5:
                return asyncio.create_task(relay.wait_until(reached, keys=goals, timeout=None))
            return asyncio.create_task(relay.wait_value(lambda: reached() or None, keys=goals, timeout=None))

        for _ in range(100):
            waits = []
            for _ in range(draw.choice([1, 1, 2, 5])):
                keys = draw.sample(range(5), draw.choice([2, 3]))
                goals = {key: values[key] + draw.choice([0, 1, 50]) for key in keys}
                waits.append((wait(goals), goals))
                if draw.random() < 0.3:
                    key = draw.randrange(5)
                    values[key] += 1
                    relay.check(key, values[key])
                await clock.advance(draw.choice([0.0, 0.01, 0.4]))
            await clock.advance(30.0)
            for task, goals in waits:
                assert task.done() == any(values[key] >= goal for key, goal in goals.items()), (goals, values)
                task.cancel()
            await clock.settle()
            relay._refresher.state._check()
        assert (num_early(relay._refresher.state), num_due(relay._refresher.state)) == (0, 0)


# Reads that find less than was announced


async def test_a_read_below_the_announced_value_is_repeated(clock: VirtualClock) -> None:
    """A replica that lags has the key read again, after pauses that grow, until it has the announced value."""
    async with Store(clock, resync_every=3600.0) as store:
        store.table["a"] = 80
        waiting = store.at_least("a", 90, timeout=300.0)
        await clock.settle()
        store.reads.clear()
        store.relay.check("a", 90)
        await clock.settle()
        assert store.reads == [["a"]]
        assert store.relay.statistics().stale == 1
        await clock.advance(60.0)
        assert 60 / 5 <= len(store.reads) <= 60 / 2.5 + 8
        store.table["a"] = 90
        await clock.advance(5.0)
        assert waiting.done()
        assert await waiting == 90
        assert store.relay.statistics().stale == 0
        reads = len(store.reads)
        await clock.advance(60.0)
        assert len(store.reads) == reads


async def test_a_row_that_a_replica_does_not_have_yet_is_read_again(clock: VirtualClock) -> None:
    """A key that the read does not return is below every announced value."""
    async with Store(clock, resync_every=3600.0) as store:
        waiting = store.value("a")
        await clock.settle()
        store.relay.check("a", 1)
        await clock.settle()
        assert not waiting.done()
        store.table["a"] = 1
        await clock.advance(0.1)
        assert await waiting == 1


async def test_keys_that_lag_are_read_together(clock: VirtualClock) -> None:
    """However many keys lag, and whenever each was announced, they are read together."""
    async with Store(clock, resync_every=3600.0) as store:
        store.table = dict.fromkeys(range(500), 80)
        waiting = [store.at_least(key, 90, timeout=300.0) for key in range(500)]
        await clock.settle()
        for key in range(500):
            store.relay.check(key, 90)
            await clock.advance(0.013)
        await clock.advance(30.0)
        store.reads.clear()
        await clock.advance(60.0)
        assert 60 / 5 <= len(store.reads) <= 60 / 2.5 + 2
        store.table = dict.fromkeys(range(500), 90)
        await clock.advance(5.0)
        assert all(task.done() for task in waiting)


async def test_the_announced_value_survives_other_reads(clock: VirtualClock) -> None:
    """Neither a new wait nor a notice without a value makes the relay forget it, and both have the key read at once."""
    async with Store(clock, resync_every=3600.0) as store:
        store.table["a"] = 80
        waiting = store.at_least("a", 90, timeout=300.0)
        await clock.settle()
        store.relay.check("a", 90)
        await clock.advance(30.0)
        reads = len(store.reads)
        other = store.at_least("a", 85, timeout=300.0)
        await clock.settle()
        assert len(store.reads) == reads + 1
        store.table["a"] = 85
        store.relay.check("a")
        await clock.settle()
        assert await other == 85
        store.table["a"] = 91
        await clock.advance(5.0)
        assert await waiting == 91


async def test_a_state_that_is_no_number_is_read_once(clock: VirtualClock) -> None:
    """An announced value can be compared with numbers only; ``refresh`` may also return nothing at all."""
    for result in ({"a": "paid"}, {"a": None}, {"a": 9}, None):
        reads = 0

        async def load(_: list[str], result: Any = result) -> Any:
            nonlocal reads
            reads += 1
            return result

        room = Purgatory[Any]("test", clock=clock)
        async with room, Relay(room, MemoryTransport(), refresh=load, resync_every=3600.0) as relay:
            waiting = asyncio.create_task(relay.wait_until(lambda: False, key="a", timeout=60.0))
            await clock.settle()
            relay.check("a", 9)
            await clock.advance(60.0)
            assert await waiting is False
            assert reads == 2, result


async def test_an_announced_value_is_forgotten_with_the_last_watcher(clock: VirtualClock) -> None:
    """No key is read for an operation that has ended, however much was announced."""
    async with Store(clock, resync_every=3600.0) as store:
        store.table["a"] = 80
        waiting = store.at_least("a", 90, timeout=2.0)
        await clock.settle()
        store.relay.check("a", 90)
        await clock.advance(2.0)
        assert await waiting is None
        reads = len(store.reads)
        await clock.advance(60.0)
        assert len(store.reads) == reads
        assert store.relay.statistics().stale == 0


# A wait of zero


async def test_a_wait_of_zero_is_one_try_without_a_read(clock: VirtualClock) -> None:
    """It reads, parks and counts nothing, and does not answer from a value that another operation keeps."""
    async with Store(clock) as store:
        store.table["a"] = 1
        other = asyncio.create_task(store.relay.wait_until(lambda: False, key="a", timeout=30.0))
        await clock.settle()
        before, reads = store.room.statistics(), list(store.reads)
        calls: list[Any] = []

        def get() -> Any:
            calls.append(store.relay.state.get("a"))
            return calls[-1]

        for given in ({"timeout": 0}, {"deadline": clock.time() - 1.0}):
            assert await store.relay.wait_value(get, key="a", **given) is None
            assert await store.relay.wait_until(lambda: store.relay.state.get("a") != 2, key="a", **given) is False
            assert await store.relay.wait_value(lambda: "own", key="a", **given) == "own"
            assert await store.relay.wait_until(lambda: True, keys=["a"], **given) is True
        await clock.settle()
        assert calls == [None, None]
        assert (store.room.statistics(), store.reads) == (before, reads)
        other.cancel()


async def test_a_request_that_does_not_wait_is_one_try_without_a_read(clock: VirtualClock) -> None:
    """Without ``?wait=``, a handler finds no value in the state, whatever another request keeps there."""
    results: list[Any] = []

    class Known(DelayedOperation[Any]):
        def try_complete(self) -> bool:
            return "a" in store.relay.state

    async def app(scope: Any, receive: Any, send: Any) -> None:
        wait = Wait(store.relay, scope, receive, longest=55)
        results.append(await wait.value(lambda: store.relay.state.get("a"), key="a"))
        results.append(await wait.until(lambda: "a" in store.relay.state, key="a"))
        operation = Known(30.0)
        await wait.park(operation, key="a")
        results.append(operation.expired)

    async with Store(clock) as store:
        store.table["a"] = 1
        other = asyncio.create_task(store.relay.wait_until(lambda: False, key="a", timeout=30.0))
        await clock.settle()
        await Call.get(app).task
        assert results == [None, False, True]
        assert store.reads == [["a"]]
        other.cancel()


async def test_a_wait_of_zero_is_not_refused(clock: VirtualClock) -> None:
    """It needs no place, no connection and no open relay; a key that cannot be relayed is refused."""
    transport = MemoryTransport(clock=clock)
    room = Purgatory[Any]("test", clock=clock, max_parked=1)
    async with room, Relay(room, transport, on_lost="fail") as relay:
        waiting = asyncio.create_task(room.wait_until(lambda: False, keys=["a"], timeout=30.0))
        await clock.settle()
        transport.stop()
        await clock.settle()
        assert await relay.wait_value(lambda: 1, key="a", timeout=0) == 1
        with pytest.raises(TypeError, match="a key to relay must be"):
            await relay.wait_value(lambda: 1, key=1.5, timeout=0)
        waiting.cancel()
    assert await relay.wait_until(lambda: False, key="a", timeout=0) is False
    with pytest.raises(PurgatoryClosed):
        await relay.wait_until(lambda: False, key="a", timeout=1)


# The parameters of the waits


async def test_key_deadline_kind_and_the_errors_are_those_of_the_purgatory(clock: VirtualClock) -> None:
    """The waits take what those of the purgatory take, and refuse what those refuse, in the same words."""
    async with Store(clock) as store:
        state = store.relay.state
        waiting = asyncio.create_task(
            store.relay.wait_value(lambda: state.get("a"), key="a", deadline=clock.time() + 5.0, kind="job")
        )
        await clock.settle()
        assert store.room.dump()["operations"][0]["operation"].startswith("<job PENDING")
        await clock.advance(5.0)
        assert await waiting is None
        wrong: list[dict[str, Any]] = [
            {"timeout": 1.0},
            {"key": "a", "keys": ["a"], "timeout": 1.0},
            {"key": ["a"], "timeout": 1.0},
            {"key": "a"},
            {"key": "a", "timeout": 1.0, "deadline": 1.0},
            {"key": "a", "timeout": -1.0},
            {"key": "a", "timeout": 1.0, "kind": 3},
        ]
        for arguments in wrong:
            for method in ("wait_until", "wait_value"):
                messages = set()
                for waits in (store.room, store.relay):
                    with pytest.raises((TypeError, ValueError)) as refused:
                        await getattr(waits, method)(lambda: None, **arguments)
                    messages.add(str(refused.value))
                assert len(messages) == 1, messages
        with pytest.raises(TypeError, match="key= or keys="):
            await store.relay.park(DelayedOperation[Any](1.0))  # type: ignore[call-overload]
        assert len(store.room) == 0


async def test_a_cancelled_wait_gives_its_value_back(clock: VirtualClock) -> None:
    """A task that is cancelled in the turn in which its value was found hands it to ``on_abandoned``."""
    async with Store(clock) as store:
        store.table["a"] = 1
        back: list[int] = []

        def get() -> int | None:
            found: int | None = store.relay.state.get("a")
            if found is not None:
                asyncio.get_running_loop().call_soon(waiting.cancel)
            return found

        waiting = asyncio.create_task(store.relay.wait_value(get, key="a", timeout=30.0, on_abandoned=back.append))
        await clock.settle()
        assert waiting.cancelled()
        assert back == [1]


async def test_a_handler_waits_for_a_value_of_the_relay(clock: VirtualClock) -> None:
    """``Wait(relay, ...).until`` sees only what was read after it began, too."""
    results: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        wait = Wait(store.relay, scope, receive)
        results.append(await wait.until(lambda: store.relay.state.get("a") != "old", keys=["a"], timeout=30.0))

    async with Store(clock) as store:
        store.table["a"] = "old"
        call = Call.get(app)
        await clock.settle()
        assert results == []
        store.table["a"] = "new"
        store.relay.check("a")
        await clock.settle()
        assert results == [True]
        await call.task


async def test_no_wait_is_answered_from_an_earlier_read_whatever_happens(clock: VirtualClock) -> None:
    """With random waits, checks, pauses and slow reads, each answer was read after its wait began, and none is lost."""
    draw = random.Random(5)
    room = Purgatory[Any]("test", clock=clock)
    versions = dict.fromkeys(range(4), 0)

    async def load(keys: list[int]) -> dict[int, tuple[int, float]]:
        found = {key: (versions[key], clock.time()) for key in keys}
        await clock.sleep(draw.choice([0.0, 0.01, 0.3]))
        if draw.random() < 0.1:
            raise ConnectionError("the store is away")
        return found

    async with room, Relay(room, MemoryTransport(clock=clock), refresh=load, max_keys=draw.choice([1, 3])) as relay:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        state = relay.state

        async def wait(key: int, goal: int) -> None:
            began = clock.time()
            found = await relay.wait_value(
                lambda: state[key] if state[key][0] >= goal else None, key=key, timeout=120.0
            )
            assert found is not None
            assert found[0] >= goal
            assert found[1] >= began

        tasks = []
        for _ in range(600):
            key = draw.randrange(4)
            if draw.random() < 0.5:
                tasks.append(asyncio.create_task(wait(key, versions[key] + draw.choice([0, 0, 1]))))
                if draw.random() < 0.1:
                    tasks.pop().cancel()
            else:
                versions[key] += 1
                relay.check(key)
            await clock.advance(draw.choice([0.0, 0.001, 0.05, 0.2]))
        for key in versions:
            versions[key] += 1
            relay.check(key)
        await clock.advance(60.0)
        await asyncio.gather(*tasks)
        relay._refresher.state._check()


@pytest.mark.parametrize("ending", ["answered", "expired", "cancelled", "withdrawn", "failed"])
@pytest.mark.usefixtures("no_gc")
async def test_a_wait_leaves_no_cycle(clock: VirtualClock, ending: str) -> None:
    """However a wait through the relay ends, the collector finds nothing afterwards."""
    async with Store(clock) as store:
        state = store.relay.state

        async def wait(number: int) -> Any:
            if number % 2:
                return await store.relay.wait_value(lambda: state.get("a"), key="a", timeout=5.0, on_abandoned=print)
            return await store.relay.wait_until(lambda: "a" in state, key="a", timeout=5.0)

        tasks = [asyncio.ensure_future(wait(number)) for number in range(10)]
        await clock.settle()
        gc.collect()
        if ending == "answered":
            store.table["a"] = 1
            store.relay.check("a")
        elif ending == "expired":
            await clock.advance(5.0)
        elif ending == "cancelled":
            for task in tasks:
                task.cancel()
        elif ending == "withdrawn":
            store.room.cancel_for_key("a")
        else:
            store.room.fail_for_key("a", ValueError("failed"))
        await clock.settle()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert len(outcomes) == 10
        tasks.clear()
        del outcomes
        task = None  # type: ignore[assignment]
        await clock.settle()
        assert gc.collect() == 0


@pytest.mark.usefixtures("no_gc")
async def test_a_wait_of_zero_leaves_no_cycle(clock: VirtualClock) -> None:
    """The collector finds nothing after waits that did not park."""
    async with Store(clock) as store:
        gc.collect()
        for _ in range(10):
            assert await store.relay.wait_value(lambda: store.relay.state.get("a"), key="a", timeout=0) is None
            assert await store.relay.wait_until(lambda: True, key="a", timeout=0) is True
        assert gc.collect() == 0
