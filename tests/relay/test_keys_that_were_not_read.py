"""``refresh`` returns an exception as the value of a key that it could not read."""

import asyncio
import logging
from collections.abc import Hashable
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.relay import MemoryTransport, Relay
from purgatory.testing import VirtualClock
from tests.helpers import park


class Shards:
    """A relay whose ``refresh`` reads even numbers from one shard and odd ones from another, which may be down."""

    def __init__(self, clock: VirtualClock) -> None:
        self.table: dict[Hashable, Any] = {}
        self.down: BaseException | None = None
        self.reads: list[list[int]] = []
        self.room = Purgatory[Any]("test", clock=clock)
        self.relay = Relay(self.room, MemoryTransport(clock=clock), refresh=self.load, resync_every=3600.0)

    async def load(self, keys: list[int]) -> dict[int, Any]:
        self.reads.append(keys)
        odd = [key for key in keys if key % 2]
        found = {key: self.table[key] for key in keys if key in self.table}
        return found if self.down is None else found | dict.fromkeys(odd, self.down)

    def changed(self, key: int) -> "asyncio.Task[bool]":
        """Return a task that waits until the row of the key is not "pending", or has been deleted."""
        state = self.relay.state
        return asyncio.create_task(self.relay.wait_until(lambda: state.get(key) != "pending", key=key, timeout=600.0))


async def test_a_key_that_was_not_read_stays_unknown_and_is_read_again(
    clock: VirtualClock, reported: list[Any]
) -> None:
    """The wait is not answered as if the row did not exist, and soon after the shard is back, it is answered."""
    shards = Shards(clock)
    async with shards.room, shards.relay:
        shards.table = {1: "pending", 2: "pending"}
        shards.down = ConnectionError("shard 1 is down")
        odd, even = shards.changed(1), shards.changed(2)
        await clock.advance(60.0)
        assert not odd.done()
        assert 1 not in shards.relay.state
        shards.table[2] = "paid"
        shards.relay.check(2)
        await clock.settle()
        assert await even is True
        assert shards.relay.statistics().stale == 1
        shards.down = None
        await clock.advance(5.0)
        assert not odd.done()
        assert shards.relay.state[1] == "pending"
        shards.table[1] = "paid"
        shards.relay.check(1)
        await clock.settle()
        assert await odd is True
        assert shards.relay.statistics().stale == 0


async def test_a_value_that_was_read_before_is_kept(clock: VirtualClock, reported: list[Any]) -> None:
    """A failed read changes nothing, and a notice during it is not lost."""
    shards = Shards(clock)
    async with shards.room, shards.relay:
        shards.table = {1: "pending"}
        waiting = shards.changed(1)
        await clock.settle()
        shards.down = ConnectionError("shard 1 is down")
        shards.table[1] = "paid"
        shards.relay.check(1)
        await clock.advance(20.0)
        assert shards.relay.state[1] == "pending"
        assert not waiting.done()
        shards.down = None
        await clock.advance(5.0)
        assert await waiting is True


@pytest.mark.parametrize("error", [OSError("down"), asyncio.CancelledError()])
async def test_many_keys_that_were_not_read_cost_few_reads_and_do_not_delay_the_others(
    clock: VirtualClock, reported: list[Any], caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """They are read again together, and each type of error is reported once, with its traceback."""
    shards = Shards(clock)
    async with shards.room, shards.relay:
        shards.table = dict.fromkeys(range(2000), "pending")
        waiting = []
        for key in range(2000):
            waiting.append(shards.changed(key))
            await clock.advance(0.001)
        shards.down = error
        for key in range(2000):
            shards.relay.check(key)
            await clock.advance(0.001)
        await clock.advance(30.0)
        reads = len(shards.reads)
        await clock.advance(100.0)
        assert 100 / 5 <= len(shards.reads) - reads <= 100 / 2.5 + 2
        for key in range(0, 2000, 2):
            shards.table[key] = "paid"
            shards.relay.check(key)
            await clock.settle()
            assert waiting[key].done()
        assert [context["exception"] for context in reported] == [error]
        assert "could not read 1 of 1 keys, which are read again" in reported[0]["message"]
        assert {record.levelno for record in caplog.records} == {logging.WARNING}
        assert "could not read 1000 of 1000 keys" in caplog.text
        shards.down = None
        shards.table = dict.fromkeys(range(2000), "paid")
        await clock.advance(5.0)
        assert all(task.done() for task in waiting)
        shards.down = OSError("down again")
        shards.relay.check(0)
        last = shards.changed(1)
        await clock.settle()
        assert reported[-1]["exception"] is shards.down
        assert len(reported) == 2
        last.cancel()


async def test_a_key_that_was_not_read_is_forgotten_with_its_last_watcher(
    clock: VirtualClock, reported: list[Any]
) -> None:
    """It is not read for an operation that has ended, whether or not the operation was parked through the relay."""
    shards = Shards(clock)
    shards.down = OSError("down")
    async with shards.room, shards.relay:
        relayed = shards.changed(1)
        await clock.settle()
        local = asyncio.create_task(shards.room.wait_until(lambda: False, key=3, timeout=2.0))
        await clock.settle()
        shards.relay.check(3)
        await clock.settle()
        assert set(shards.relay._refresher._not_found._again) == {1, 3}
        relayed.cancel()
        await clock.advance(2.0)
        assert await local is False
        reads = len(shards.reads)
        await clock.advance(60.0)
        assert len(shards.reads) == reads
        assert shards.relay._refresher._not_found._again == {}
        assert shards.relay._refresher._not_found._later == []


async def test_a_pass_over_all_keys_forgets_those_that_nobody_awaits(clock: VirtualClock, reported: list[Any]) -> None:
    """A key that no wait of the relay has may be left until it is due or all keys are read."""
    shards = Shards(clock)
    shards.down = OSError("down")
    async with shards.room, shards.relay:
        waiting = shards.changed(1)
        local = asyncio.create_task(shards.room.wait_until(lambda: False, key=3, timeout=60.0))
        await clock.settle()
        shards.relay.check(3)
        await clock.advance(60.0)
        assert await local is False
        shards.relay._refresher.mark_everything()
        await clock.settle()
        assert set(shards.relay._refresher._not_found._again) == {1}
        waiting.cancel()


class Counted:
    """A purgatory that counts how often each turn of the loop asks whether a key is watched."""

    def __init__(self, room: Purgatory[Any]) -> None:
        self.room = room
        self.turns = [0]
        self.asked = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.room, name)

    def is_watched(self, key: Hashable) -> bool:
        self.turns[-1] += 1
        if not self.asked:
            self.asked = True
            asyncio.get_running_loop().call_soon(self.end_turn)
        return self.room.is_watched(key)

    def end_turn(self) -> None:
        self.turns.append(0)
        self.asked = False


@pytest.mark.parametrize("ended", [False, True])
async def test_many_keys_that_were_not_read_are_handled_in_slices(
    clock: VirtualClock, reported: list[Any], ended: bool
) -> None:
    """No turn of the loop handles many of the keys that are due, or forgets many that nobody awaits."""
    shards = Shards(clock)
    shards.down = OSError("down")
    refresher = shards.relay._refresher
    async with shards.room, shards.relay:
        operations = [park(shards.room, key) for key in range(1, 6001, 2)]
        for key in range(1, 6001, 2):
            shards.relay.check(key)
        await clock.settle()
        assert len(refresher._not_found._again) == 3000
        if ended:
            for operation in operations:
                operation.cancel()
        counted = Counted(shards.room)
        refresher._purgatory = counted  # type: ignore[assignment]
        refresher._not_found._is_watched = counted.is_watched
        if ended:
            refresher.mark_everything()
        else:
            await clock.advance(0.1)
        await clock.settle()
        assert sum(counted.turns) >= 3000
        assert max(counted.turns) <= 400
        assert (len(refresher._not_found._again) == 0) is ended
        for operation in operations:
            operation.cancel()


@pytest.mark.parametrize("failures", [1, 4, 7, 10, *range(12, 18), 33])
async def test_after_failed_reads_keys_that_cannot_be_read_cost_few_reads(
    clock: VirtualClock, reported: list[Any], failures: int
) -> None:
    """At first, reads of the store fail; later, each of its keys is refused.  Its keys are read again together."""
    shards = Shards(clock)
    load = shards.load
    left = failures

    async def fails_first(keys: list[int]) -> dict[int, Any]:
        nonlocal left
        if left and shards.down:
            left -= 1
            shards.reads.append(keys)
            raise OSError("no answer")
        if shards.down and len(shards.reads) > 2_000:
            shards.down = None  # an endless loop of reads would hang the test
        return await load(keys)

    shards.relay._refresher._refresh = fails_first
    keys = range(1, 600, 2)
    shards.table = dict.fromkeys(keys, "pending")
    async with shards.room, shards.relay:
        waiting = [shards.changed(key) for key in keys]
        await clock.advance(1.0)
        shards.down = OSError("refused")
        shards.relay._refresher.mark_everything()
        while left:
            await clock.advance(5.0)
        await clock.advance(20.0)
        reads = len(shards.reads)
        await clock.advance(100.0)
        assert len(shards.reads) - reads <= 100 / 2.5 + 2
        assert reads <= failures + 60
        shards.down = None
        shards.table = dict.fromkeys(keys, "paid")
        await clock.advance(5.0)
        assert all(task.done() for task in waiting)
