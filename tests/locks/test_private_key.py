"""Locks and quorums park on private keys: where users see them, and what does not reach them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from purgatory import Event, Observer, Purgatory
from purgatory.errors import RelayLost
from purgatory.locks import KeyedLock, KeyedSemaphore, Quorum
from purgatory.relay import MemoryTransport, Relay
from purgatory.testing import VirtualClock
from tests.helpers import Op

KINDS = ["KeyedLock", "KeyedSemaphore", "Quorum"]


class Seen(Observer):
    """Records the kind, the keys and the outcome of each event."""

    def __init__(self) -> None:
        self.events: list[tuple[str, tuple[Any, ...], str]] = []

    def _note(self, event: Event) -> None:
        self.events.append((event.kind, event.keys, event.outcome.value))

    parked = completed = expired = cancelled = failed = _note


@pytest.fixture
def seen() -> Seen:
    """Return an observer of the purgatory below."""
    return Seen()


@pytest.fixture
async def room(clock: VirtualClock, seen: Seen) -> AsyncIterator[Purgatory[Any]]:
    """Yield a purgatory in which a task waits for each kind of lock on "k"."""
    async with Purgatory[Any]("test", clock=clock, observers=[seen]) as room:
        locks, slots, quorum = KeyedLock(room), KeyedSemaphore(room, 1), Quorum[str](room, need=1, key="k")
        await locks.acquire("k")
        await slots.acquire("k")
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(locks.acquire("k", timeout=50)),
            asyncio.create_task(slots.acquire("k")),
            asyncio.create_task(quorum.wait()),
        ]
        await clock.settle()
        assert len(room) == 3
        yield room
        room._check()
        assert not any(task.done() for task in tasks), "something has reached a private key"
        locks.release("k")
        slots.release("k")
        quorum.arrive("member")
        await asyncio.gather(*tasks)


async def test_users_see_their_own_key(room: Purgatory[Any], seen: Seen) -> None:
    """In dumps, hot keys, events and the key of an operation."""
    dump = room.dump()
    assert [(entry["kind"], entry["keys"]) for entry in dump["operations"]] == [
        (kind, [{"key": "k", "threshold": None}]) for kind in KINDS
    ]
    assert "KeyedLock" in str(dump)
    assert room.hot_keys() == [("k", 1)] * 3
    assert seen.events == [(kind, ("k",), "pending") for kind in KINDS]
    assert [event.keys for event in room.parked_events()] == [("k",)] * 3
    assert all("on ['k']" in repr(event.operation) for event in room.parked_events())


async def test_a_kind_can_be_given(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """It replaces the name of the class in dumps and events."""
    locks = KeyedLock(purgatory, kind="order lock")
    async with locks("k"):
        task = asyncio.create_task(locks.acquire("k"))
        await clock.settle()
        assert purgatory.dump()["operations"][0]["kind"] == "order lock"
    await task


async def test_nothing_that_is_done_to_the_key_reaches_them(room: Purgatory[Any], clock: VirtualClock) -> None:
    """Checks of every kind, cancellation and failure find only the operations that are parked on the key itself."""
    operation = Op(None)
    room.try_complete_else_watch(operation, ["k"])
    assert list(room.keys()) == ["k"]
    assert room.check_and_complete("k") == 0
    room.check_soon("k")
    room.check_threadsafe("k")
    room.check_all()
    await clock.settle()
    assert room.cancel_for_key("k") == [operation]
    assert room.fail_for_key("k", ValueError()) == 0
    assert await room.acancel_for_key("k") == []
    assert await room.afail_for_key("k", ValueError()) == 0
    assert not room.is_watched("k")
    assert list(room.keys()) == []


async def test_check_all_does_not_try_them(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Ten thousand waiters of a lock cost a ``check_all`` nothing."""
    locks = KeyedLock(purgatory)
    await locks.acquire("k")
    task = asyncio.create_task(locks.acquire("k"))
    await clock.settle()
    purgatory.check_all()
    purgatory._soon.work(10_000)
    assert not purgatory._soon
    assert not task.done()
    locks.release("k")
    assert await task


async def test_a_relay_neither_reads_nor_fails_them(room: Purgatory[Any], clock: VirtualClock) -> None:
    """``refresh`` gets the keys of operations only, and with ``on_lost="fail"`` only operations fail."""
    reads: list[list[Any]] = []

    async def refresh(keys: list[Any]) -> dict[Any, Any]:
        reads.append(list(keys))
        return {}

    transport = MemoryTransport(clock=clock)
    async with Relay(room, transport, refresh=refresh, on_lost="fail", resync_every=1.0) as relay:
        task = asyncio.create_task(relay.park(Op(None), ["other"]))
        await clock.advance(3)
        assert reads
        assert all(keys == ["other"] for keys in reads)
        relay.check("k")
        transport.stop()
        transport.disconnect()
        await clock.advance(1)
        with pytest.raises(RelayLost):
            await task


async def test_a_shard_with_private_keys_stays_plain(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Private keys run no user code, so they do not take the fast path from other keys."""
    locks = KeyedLock(purgatory)
    tasks = []
    for number in range(100):
        await locks.acquire(number)
        tasks.append(asyncio.create_task(locks.acquire(number)))
    await clock.settle()
    assert all(shard.plain for shard in purgatory._core.watcher_lists._shards)
    for number in range(100):
        locks.release(number)
    await asyncio.gather(*tasks)
