"""``changes()`` reports checks of keys of every kind, coalesced, bounded, and with heartbeats."""

import asyncio
import dataclasses
import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import Event, Observer, OperationCancelled, Purgatory, PurgatoryClosed, PurgatoryFull, SystemTimer
from purgatory.aio.changes import Changes
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, check, park


class Consumer:
    """A task that consumes all items of a subscription."""

    def __init__(self, changes: Changes[Any]) -> None:
        self.seen: list[Any] = []
        self.task = asyncio.create_task(self._consume(changes))

    async def _consume(self, changes: Changes[Any]) -> None:
        async for key in changes:
            self.seen.append(key)


CHECKS: list[Callable[[Purgatory[Any]], object]] = [
    lambda purgatory: purgatory.check_and_complete("a"),
    lambda purgatory: purgatory.check_and_complete("a", 3),
    lambda purgatory: purgatory.check_and_complete("a", limit=1),
    lambda purgatory: purgatory.check_soon("a"),
    lambda purgatory: purgatory.check_soon("a", 3),
    lambda purgatory: purgatory.check_threadsafe("a"),
    lambda purgatory: purgatory.check_all(),
]


@pytest.mark.parametrize("watched", [False, True], ids=["unwatched", "watched"])
@pytest.mark.parametrize("checks", CHECKS)
async def test_every_kind_of_check_is_seen(
    purgatory: Purgatory[Any], clock: VirtualClock, checks: Callable[[Purgatory[Any]], object], watched: bool
) -> None:
    """A subscription sees checks of keys without other watchers, and checks that first complete operations."""
    if watched:
        purgatory.try_complete_else_watch(Op(), {"a": 2})
        for _ in range(2):
            park(purgatory, "a").ready = True
    consumer = Consumer(purgatory.changes(["a"]))
    await clock.settle()
    assert consumer.seen == []
    checks(purgatory)
    await clock.settle()
    assert consumer.seen == ["a"]
    consumer.task.cancel()
    purgatory.cancel_for_key("a")


async def test_a_check_from_inside_a_callback_is_seen(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """A subscription sees checks that are queued in a callback, with and without a limit."""
    async with purgatory.changes(["b", "c"]) as changes:
        chained = park(purgatory, "a", on_complete=lambda _: _check_both(purgatory))
        chained.ready = True
        purgatory.check_and_complete("a")
        assert [await anext(changes), await anext(changes)] == ["b", "c"]


def _check_both(purgatory: Purgatory[Any]) -> None:
    purgatory.check_and_complete("b")
    purgatory.check_and_complete("c", limit=1)


async def test_it_is_subscribed_when_it_is_made(purgatory: Purgatory[Any]) -> None:
    """A check after ``changes()`` and before the first iteration is reported; an earlier check is not."""
    purgatory.check_and_complete("a")
    async with purgatory.changes(["a"]) as changes:
        purgatory.check_and_complete("a")
        assert await anext(changes) == "a"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await anext(changes)


async def test_checks_of_a_key_count_once_until_it_is_taken(purgatory: Purgatory[Any]) -> None:
    """Keys come in the order of their first check; the buffer holds at most one entry for each key."""
    async with purgatory.changes(["a", "b", "c"]) as changes:
        for key in "bacab" * 1000:
            purgatory.check_and_complete(key)
        assert len(changes._subscription._checked) == 3
        assert [await anext(changes) for _ in range(3)] == ["b", "a", "c"]
        purgatory.check_and_complete("a")
        assert await anext(changes) == "a"


class _CountingDict(OrderedDict[int, None]):
    """Counts how often it is iterated over."""

    walks = 0

    def __iter__(self) -> Iterator[int]:
        _CountingDict.walks += 1
        return super().__iter__()


async def test_taking_a_key_passes_no_places_of_keys_taken_before(purgatory: Purgatory[Any]) -> None:
    """Searching for the first entry passes the places of removed ones, so taking many keys would be quadratic."""
    async with purgatory.changes(range(100)) as changes:
        assert isinstance(changes._subscription._checked, OrderedDict)
        changes._subscription._checked = _CountingDict()
        for key in reversed(range(100)):
            purgatory.check_and_complete(key)
        assert [await anext(changes) for _ in range(100)] == list(reversed(range(100)))
        assert _CountingDict.walks == 0


@given(st.lists(st.one_of(st.sampled_from("abc"), st.none()), max_size=40))
def test_no_check_is_lost(steps: list[str | None]) -> None:
    """Every check of a key is followed by an item for that key, in any order of checks and reads (None)."""

    async def run() -> None:
        async with (
            Purgatory[Any]("test", clock=VirtualClock()) as purgatory,
            purgatory.changes(["a", "b", "c"]) as changes,
        ):
            noted: dict[str, None] = {}
            for step in steps:
                if step is not None:
                    purgatory.check_and_complete(step)
                    noted[step] = None
                elif noted:
                    expected = next(iter(noted))
                    del noted[expected]
                    assert await anext(changes) == expected
            await purgatory.aclose()
            assert [key async for key in changes] == list(noted)

    asyncio.run(run())


async def test_a_heartbeat_comes_when_there_is_nothing_else(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The iterator returns None after the given number of seconds without a key; each key restarts the period."""
    consumer = Consumer(purgatory.changes(["a"], heartbeat=15.0))
    await clock.advance(14.999)
    assert consumer.seen == []
    await clock.advance(0.001)
    assert consumer.seen == [None]
    await clock.advance(14.0)
    purgatory.check_and_complete("a")
    await clock.advance(14.0)
    assert consumer.seen == [None, "a"]
    await clock.advance(1.0)
    assert consumer.seen == [None, "a", None]
    consumer.task.cancel()
    await asyncio.wait([consumer.task])
    assert purgatory.timer.size == 0


async def test_a_heartbeat_starts_a_shared_timer(clock: VirtualClock) -> None:
    """The heartbeat comes, although neither the timer nor the purgatory was entered."""
    timer = SystemTimer(clock=clock)
    purgatory = Purgatory[Any]("test", timer=timer)
    async with purgatory.changes(["a"], heartbeat=15.0) as changes:
        consumer = Consumer(changes)
        await clock.advance(15.0)
        assert consumer.seen == [None]
        await purgatory.aclose()
        await consumer.task
    await timer.aclose()


@pytest.mark.parametrize("checked", ["before", "after"])
async def test_closing_a_shared_timer_ends_a_wait_for_a_heartbeat(clock: VirtualClock, checked: str) -> None:
    """It raises PurgatoryClosed at once, because no heartbeat can come; a key that is recorded is still returned."""
    timer = SystemTimer(clock=clock)
    async with Purgatory[Any]("test", timer=timer) as purgatory:
        changes: Changes[Any] = purgatory.changes(["a"], heartbeat=15.0)
        waiting = asyncio.ensure_future(anext(changes))
        await clock.settle()
        if checked == "before":
            purgatory.check_and_complete("a")
        await timer.aclose()
        await clock.settle()
        assert waiting.done()
        if checked == "before":
            assert await waiting == "a"
            waiting = asyncio.ensure_future(anext(changes))
        with pytest.raises(
            PurgatoryClosed, match="^the timer is closed$" if checked == "before" else "^the timer was closed$"
        ):
            await waiting
        assert [key async for key in changes] == []
        check(purgatory, parked=0)


async def test_closing_ends_the_iteration_at_once(clock: VirtualClock) -> None:
    """Keys already in the buffer are still returned; a subscription does not use up the grace of the operations."""
    purgatory = Purgatory[Any]("test", clock=clock)
    changes = purgatory.changes(["a", "b"], heartbeat=1.0)
    purgatory.check_and_complete("b")
    await asyncio.gather(purgatory.aclose(grace=3600.0), clock.settle())
    assert [key async for key in changes] == ["b"]
    assert [key async for key in changes] == []
    purgatory._check()


async def test_closing_ends_the_wait_of_every_consumer(clock: VirtualClock) -> None:
    """A thousand consumers end their iteration, in slices."""
    purgatory = Purgatory[Any]("test", clock=clock)
    consumers = [Consumer(purgatory.changes([number, "all"])) for number in range(1000)]
    await clock.settle()
    purgatory.check_and_complete("all")
    await purgatory.aclose()
    await asyncio.gather(*(consumer.task for consumer in consumers))
    assert all(consumer.seen == ["all"] for consumer in consumers)
    check(purgatory, parked=0, watched=0, cancelled=2000)


async def test_closing_ends_many_subscriptions_in_slices(clock: VirtualClock) -> None:
    """A few thousand subscriptions do not end in one turn of the loop."""
    purgatory = Purgatory[Any]("test", clock=clock)
    kept = [purgatory.changes(["a"]) for _ in range(4000)]
    ended = []
    closing: asyncio.Task[None] | None = None
    while purgatory.watched:
        before = purgatory.watched
        if closing is None:
            closing = asyncio.create_task(purgatory.aclose())  # an eager task ends the first slice here
        await asyncio.sleep(0)
        ended.append(before - purgatory.watched)
    assert closing is not None
    await closing
    assert sum(ended) == len(kept)
    assert max(ended) <= 1500


async def test_closing_ends_one_subscription_of_many_keys_in_slices(clock: VirtualClock) -> None:
    """Its consumer gets the recorded keys at once, and then the end; neither iterates nor withdraws all in one turn."""
    purgatory = Purgatory[Any]("test", clock=clock)
    changes = purgatory.changes(range(5000))
    consumer = Consumer(changes)
    await clock.settle()
    purgatory.check_and_complete(7)
    ended = []
    closing: asyncio.Task[None] | None = None
    while purgatory.watched:
        before = purgatory.watched
        if closing is None:
            closing = asyncio.create_task(purgatory.aclose())  # an eager task ends the first slice here
        await asyncio.sleep(0)
        purgatory.check_and_complete(0)  # the last one to be withdrawn
        await changes.aclose()  # closing continues in slices
        ended.append(before - purgatory.watched)
    assert closing is not None
    await closing
    await consumer.task
    assert consumer.seen == [7]
    assert [key async for key in changes] == []
    assert sum(ended) == 5000
    assert max(ended) <= 1500
    assert not purgatory._subscriptions
    check(purgatory, parked=0, watched=0, cancelled=5000)


async def test_closing_ends_many_subscriptions_of_many_keys_in_slices(clock: VirtualClock) -> None:
    """What one turn does depends on the number of keys, however many subscriptions have them."""
    purgatory = Purgatory[Any]("test", clock=clock)
    kept = [purgatory.changes(range(100)) for _ in range(100)]
    ended = []
    closing: asyncio.Task[None] | None = None
    while purgatory.watched:
        before = purgatory.watched
        if closing is None:
            closing = asyncio.create_task(purgatory.aclose())  # an eager task ends the first slice here
        await asyncio.sleep(0)
        ended.append(before - purgatory.watched)
    assert closing is not None
    await closing
    assert sum(ended) == 100 * len(kept)
    assert max(ended) <= 1500


async def test_a_consumer_that_leaves_during_the_closing_withdraws_its_operations(clock: VirtualClock) -> None:
    """The operations of a subscription that closing has not reached are withdrawn at once."""
    purgatory = Purgatory[Any]("test", clock=clock)
    kept = [purgatory.changes(["a", "b"]) for _ in range(4000)]
    closing = asyncio.create_task(purgatory.aclose())
    await asyncio.sleep(0)
    before = purgatory.watched
    assert 0 < before < 8000
    await kept[-1].aclose()
    assert purgatory.watched == before - 2
    await closing
    purgatory._check()


async def test_a_closing_that_is_cancelled_within_a_subscription_ends_it(clock: VirtualClock) -> None:
    """The operations that closing has not reached expire, and nothing of the subscription is left."""
    purgatory = Purgatory[Any]("test", clock=clock)
    changes = purgatory.changes(range(5000))
    closing = asyncio.create_task(purgatory.aclose())
    await asyncio.sleep(0)
    assert 0 < purgatory.watched < 5000
    closing.cancel()
    await asyncio.wait([closing])
    assert [key async for key in changes] == []
    assert not changes._subscription._operations
    assert not purgatory._subscriptions
    assert not purgatory._core._listeners
    check(purgatory, parked=0, watched=0)


async def test_a_closing_that_is_cancelled_ends_every_subscription(clock: VirtualClock) -> None:
    """No subscription is left waiting, and none raises an error."""
    purgatory = Purgatory[Any]("test", clock=clock)
    consumers = [Consumer(purgatory.changes([number])) for number in range(1000)]
    await clock.settle()
    closing = asyncio.create_task(purgatory.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    await asyncio.gather(*(consumer.task for consumer in consumers))
    check(purgatory, parked=0, watched=0)


async def test_the_end_of_a_subscription_frees_its_places(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """``aclose()``, leaving the block, and dropping the last reference each free the places of a subscription."""
    changes = purgatory.changes(["a", "b"])
    check(purgatory, parked=2, watched=2)
    await changes.aclose()
    await changes.aclose()
    assert [key async for key in changes] == []
    async with purgatory.changes(["a", "b"]):
        check(purgatory, parked=2)
    check(purgatory, parked=0)
    purgatory.changes(["a"])
    await clock.settle()
    check(purgatory, parked=0)
    assert not purgatory._subscriptions
    assert not purgatory._core._listeners


async def test_a_subscription_leaves_nothing_to_the_garbage_collector(
    purgatory: Purgatory[Any], clock: VirtualClock, no_gc: None
) -> None:
    """Neither an ended subscription nor a dropped one leaves a reference cycle."""

    changes = purgatory.changes(["a"], heartbeat=1.0)
    purgatory.check_and_complete("a")
    assert await anext(changes) == "a"
    ended = weakref.ref(changes)
    await changes.aclose()
    del changes
    dropped = weakref.ref(purgatory.changes(["a"]))
    assert (ended(), dropped()) == (None, None)
    await clock.settle()
    assert not [thing for thing in gc.get_objects() if type(thing).__name__ == "Subscription"]


@pytest.mark.parametrize("how", ["fails", "is withdrawn", "has a timer that closes"])
async def test_an_iteration_that_raises_leaves_nothing_to_the_garbage_collector(
    clock: VirtualClock, no_gc: None, how: str
) -> None:
    """No frame in the traceback refers to the error."""
    purgatory = Purgatory[Any]("test", clock=clock)
    changes = purgatory.changes(["a"], heartbeat=1.0)
    if how == "fails":
        purgatory.fail_for_key("a", Boom())
    elif how == "is withdrawn":
        purgatory.cancel_for_key("a")

    async def consume(changes: Changes[Any]) -> None:
        with pytest.raises((Boom, OperationCancelled, PurgatoryClosed)):
            await anext(changes)

    task = asyncio.create_task(consume(changes))
    await clock.settle()
    await purgatory.timer.aclose()
    await task
    ended = weakref.ref(changes)
    del changes, task
    assert ended() is None
    await purgatory.aclose()


def test_one_that_is_dropped_after_its_loop_has_closed_is_silent() -> None:
    """The end of the last reference raises nothing, although no loop can end the subscription any more."""
    kept: list[Changes[Any]] = []

    async def subscribe() -> None:
        kept.append(Purgatory[Any]("test").changes(["a"]))

    asyncio.run(subscribe())
    kept.clear()
    gc.collect()


async def test_cancelling_the_consumer_ends_the_subscription(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Cancelling the consumer frees its places at once; a key that was checked in the same turn is still returned."""
    changes = purgatory.changes(["a"], heartbeat=1.0)
    waiting = asyncio.ensure_future(anext(changes))
    await clock.settle()
    purgatory.check_and_complete("a")
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    check(purgatory, parked=0)
    assert [key async for key in changes] == ["a"]


async def test_one_task_iterates_at_a_time(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """A second task that iterates gets RuntimeError, and the first task continues."""
    async with purgatory.changes(["a"]) as changes:
        waiting = asyncio.ensure_future(anext(changes))
        await clock.settle()
        with pytest.raises(RuntimeError, match="another task is already waiting for the next key"):
            await anext(changes)
        purgatory.check_and_complete("a")
        assert await waiting == "a"


@pytest.mark.parametrize("heartbeat", [None, 5.0])
@pytest.mark.parametrize("recorded", [False, True])
async def test_another_thread_is_refused_and_changes_nothing(
    purgatory: Purgatory[Any], clock: VirtualClock, recorded: bool, heartbeat: float | None
) -> None:
    """``anext`` and ``aclose`` raise RuntimeError there; the owner receives its keys as before."""
    changes: Changes[Any] = purgatory.changes(["a"], heartbeat=heartbeat)
    if recorded:
        purgatory.check_and_complete("a")

    async def iterate() -> None:
        with pytest.raises(RuntimeError, match="running in another thread"):
            await anext(changes)
        with pytest.raises(RuntimeError, match="running in another thread"):
            await changes.aclose()

    await asyncio.to_thread(asyncio.run, iterate())
    assert not changes._subscription.ended
    check(purgatory, parked=1, watched=1)
    if not recorded:
        purgatory.check_and_complete("a")
    assert await anext(changes) == "a"
    await changes.aclose()
    check(purgatory, parked=0, watched=0)


async def test_cancelling_or_failing_a_key_ends_the_subscription(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """cancel_for_key() and fail_for_key() end the whole subscription, and the iterator raises the reason once."""
    changes = purgatory.changes(["a", "b"])
    purgatory.check_and_complete("b")
    purgatory.cancel_for_key("a")
    assert await anext(changes) == "b"
    with pytest.raises(OperationCancelled, match=r"parked on \['a'\]"):
        await anext(changes)
    with pytest.raises(StopAsyncIteration):
        await anext(changes)
    error = Boom()
    changes = purgatory.changes(["a", "b"])
    purgatory.fail_for_key("b", error)
    with pytest.raises(Boom) as raised:
        await anext(changes)
    assert raised.value is error
    check(purgatory, parked=0)


ENDINGS: dict[str, Callable[[Op], object]] = {
    "cancel": lambda operation: operation.cancel(),
    "complete": lambda operation: operation.force_complete(),
}


@pytest.mark.parametrize("key", ["a", "b", "c"])
@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("when", ["it parks", "the last one parks"])
async def test_an_observer_that_ends_an_operation_while_it_subscribes_ends_the_subscription(
    clock: VirtualClock, when: str, how: str, key: str
) -> None:
    """The iterator raises the reason or ends, whichever of its operations is ended, and nothing is left."""
    parked: dict[Any, Any] = {}

    class Ending(Observer):
        def parked(self, event: Event) -> None:
            parked[event.keys[0]] = event.operation
            if event.keys[0] == (key if when == "it parks" else "c"):
                ENDINGS[how](parked[key])

    async with Purgatory[Any]("test", clock=clock, observers=[Ending()]) as purgatory:
        changes = purgatory.changes(["a", "b", "c"])
        check(purgatory, parked=0, watched=0)
        assert not purgatory._subscriptions
        assert not purgatory._core._listeners
        assert not purgatory._core._when_ended
        if how == "cancel":
            with pytest.raises(OperationCancelled) as raised:
                await anext(changes)
            assert raised.value.keys == (key,)
        assert [item async for item in changes] == []
        purgatory.check_and_complete(key)
        assert len(parked) == (3 if when == "the last one parks" else "abc".index(key) + 1)


async def test_a_subscription_that_is_interrupted_leaves_nothing(clock: VirtualClock) -> None:
    """If a check that an observer requests while the second operation parks is interrupted, neither stays parked."""

    def interrupt(_: Op) -> None:
        raise KeyboardInterrupt

    class Checking(Observer):
        def parked(self, event: Event) -> None:
            if event.keys == ("b",):
                purgatory.check_and_complete("other")

    async with Purgatory[Any]("test", clock=clock, observers=[Checking()]) as purgatory:
        other = park(purgatory, "other")
        other._on_try = interrupt
        with pytest.raises(KeyboardInterrupt):
            purgatory.changes(["a", "b", "c"])
        check(purgatory, parked=1, watched=1)
        assert not purgatory._subscriptions
        assert not purgatory._core._listeners
        assert not purgatory._core._when_ended
        other.cancel()


async def test_an_interrupt_in_an_observer_hides_no_event_of_the_subscription(clock: VirtualClock) -> None:
    """If an observer interrupts the end of one operation, the observers still receive the events of the others."""
    cancelled: list[int] = []

    class Interrupts(Observer):
        def cancelled(self, event: Event) -> None:
            cancelled.append(event.op_id)
            if event.op_id == 2:
                raise KeyboardInterrupt

    async with Purgatory[Any]("test", clock=clock, observers=[Interrupts()]) as purgatory:
        changes = purgatory.changes(["a", "b"])
        with pytest.raises(KeyboardInterrupt):
            purgatory.cancel_for_key("a")
        assert sorted(cancelled) == [1, 2]
        check(purgatory, parked=0, cancelled=2)
        await changes.aclose()


async def test_subscriptions_count_for_the_limits(clock: VirtualClock) -> None:
    """A refused subscription leaves nothing parked."""
    async with Purgatory[Any]("test", clock=clock, max_parked=3, max_parked_per_key=1) as purgatory:
        first = purgatory.changes(["a", "b"])
        with pytest.raises(PurgatoryFull):
            purgatory.changes(["c", "d"])
        with pytest.raises(PurgatoryFull):
            purgatory.changes(["c", "a"])
        check(purgatory, parked=2)
        assert not purgatory.is_watched("c")
        await first.aclose()
        await purgatory.changes(["c", "d"]).aclose()
    with pytest.raises(PurgatoryClosed):
        purgatory.changes(["a"])


@pytest.mark.parametrize(
    ("limits", "keys"),
    [
        ({"max_parked_per_key": 1}, ["b", "a"]),
        ({"max_parked": 3}, ["b", "c", "d"]),
    ],
)
async def test_a_refused_subscription_changes_nothing(
    clock: VirtualClock, limits: dict[str, int], keys: list[str]
) -> None:
    """A limit that one of its keys meets refuses it before any of its operations is submitted."""
    seen: list[str] = []

    class Watching(Observer):
        def parked(self, event: Event) -> None:
            seen.append("parked")

        def cancelled(self, event: Event) -> None:
            seen.append("cancelled")

    async with Purgatory[Any]("test", clock=clock, observers=[Watching()], **limits) as purgatory:
        purgatory.try_complete_else_watch(Op(), ["a"])
        before = purgatory.statistics()
        seen.clear()
        with pytest.raises(PurgatoryFull):
            purgatory.changes(keys)
        assert seen == []
        after = purgatory.statistics()
        by_key = "max_parked_per_key" in limits
        assert after == dataclasses.replace(before, refused=1, refused_by_key=int(by_key))
        await purgatory.changes(keys[:1]).aclose()


async def test_an_observer_that_leaves_the_subscription_while_it_ends_disturbs_nothing(clock: VirtualClock) -> None:
    """With eager tasks, an observer can call aclose() while the subscription withdraws its operations."""

    class Leaving(Observer):
        def cancelled(self, event: Event) -> None:
            with pytest.raises(StopIteration):
                changes.aclose().send(None)

    async with Purgatory[Any]("test", clock=clock, observers=[Leaving()]) as purgatory:
        changes = purgatory.changes(["a", "b", "c"])
        await changes.aclose()
        assert purgatory._core.counters.detached == 0
        check(purgatory, parked=0, watched=0, cancelled=3)
        assert not purgatory._subscriptions


async def test_its_operations_are_seen_like_all_others(purgatory: Purgatory[Any]) -> None:
    """The keys of a subscription are watched, and dumps list its operations."""
    async with purgatory.changes(["a"]) as changes:
        assert purgatory.is_watched("a")
        assert list(purgatory.keys()) == ["a"]
        assert "changes" in str(purgatory.dump())
        assert repr(changes) == "<Changes of 'test' open keys=1>"
    assert repr(changes) == "<Changes of 'test' ended keys=1>"


async def test_a_key_that_cannot_be_compared_is_contained(purgatory: Purgatory[Any]) -> None:
    """The subscription buffers and returns keys without comparing them."""

    class Key:
        calls = 0

        def __hash__(self) -> int:
            Key.calls += 1
            return 7

        def __eq__(self, other: object) -> bool:
            Key.calls += 1
            return self is other

    key = Key()
    async with purgatory.changes([key]) as changes:
        (operation,) = changes._subscription._operations
        Key.calls = 0
        operation.try_complete()
        assert await anext(changes) is key
        assert Key.calls == 0


class Faulty:
    """A key whose hash raises an error after ``good_calls`` calls."""

    good_calls = 1_000
    error: BaseException = Boom("hash")

    def __hash__(self) -> int:
        self.good_calls -= 1
        if self.good_calls < 0:
            raise self.error
        return 7


@pytest.mark.parametrize("watched", [False, True], ids=["alone", "with others"])
async def test_a_key_that_raises_while_its_listeners_are_found_loses_no_change(
    purgatory: Purgatory[Any], watched: bool
) -> None:
    """Only the subscription to this key sees the check, and the operation in whose callback it was requested is not
    affected.
    """
    key = Faulty()

    def check(_: Op) -> None:
        purgatory.check_and_complete(key, limit=1)
        key.good_calls = 2  # the queued check has found the key's entry when it raises

    async with purgatory.changes([key]) as changes, purgatory.changes(["other"]) as others:
        if watched:
            purgatory.try_complete_else_watch(Op(None), [key])
        assert await purgatory.park(Op(ready=True, name="done", on_complete=check), ["unrelated"]) == "done"
        assert key.good_calls == -1
        key.good_calls = 1_000
        assert await anext(changes) is key
        assert not others._subscription._checked
    purgatory.cancel_for_key(key)


async def test_an_interrupt_while_listeners_are_found_is_not_contained(purgatory: Purgatory[Any]) -> None:
    """A KeyboardInterrupt in the hash of a key reaches the caller of the check."""
    key = Faulty()
    key.error = KeyboardInterrupt()
    async with purgatory.changes([key]):
        key.good_calls = 2  # the check has found the key's entry
        with pytest.raises(KeyboardInterrupt):
            purgatory.check_and_complete(key, limit=1)
        key.good_calls = 1_000


async def test_a_key_that_raises_at_the_end_does_not_keep_its_subscription(
    purgatory: Purgatory[Any], reported: list[dict[str, Any]]
) -> None:
    """Only the key's entry remains, without an operation."""
    key = Faulty()
    changes = purgatory.changes([key])
    key.good_calls = 0
    await changes.aclose()
    key.good_calls = 1_000
    assert {context["exception"] for context in reported} == {key.error}
    assert purgatory._core._listeners == {key: {}}


async def test_a_second_event_loop_may_follow_too(clock: VirtualClock) -> None:
    """A purgatory can serve subscriptions in several event loops, one after another."""

    def run() -> list[object]:
        async def follow() -> list[object]:
            async with Purgatory[Any]("test") as purgatory, purgatory.changes(["a"]) as changes:
                purgatory.check_and_complete("a")
                return [await anext(changes)]

        return asyncio.run(follow())

    assert await asyncio.to_thread(run) == await asyncio.to_thread(run) == ["a"]


async def test_bad_arguments_are_refused(purgatory: Purgatory[Any]) -> None:
    """Bad arguments raise an error, and nothing is parked."""
    bad: Any
    for bad in ("a", b"a", 3):
        with pytest.raises(TypeError, match="keys"):
            purgatory.changes(bad)
    with pytest.raises(TypeError, match="keys must be an iterable of keys without thresholds"):
        purgatory.changes({"a": 3})
    with pytest.raises(TypeError, match="unhashable"):
        purgatory.changes(["a", []])
    with pytest.raises(ValueError, match="keys"):
        purgatory.changes([])
    for bad in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"^heartbeat "):
            purgatory.changes(["a"], heartbeat=bad)
    bad = "1"
    with pytest.raises(TypeError, match=r"^heartbeat "):
        purgatory.changes(["a"], heartbeat=bad)
    check(purgatory, parked=0, submitted=0)


def test_it_needs_a_running_loop() -> None:
    """Without a running event loop the call raises RuntimeError, and nothing is parked."""
    purgatory = Purgatory[Any]("test")
    with pytest.raises(RuntimeError, match="no running event loop"):
        purgatory.changes(["a"])
    assert len(purgatory) == 0


async def test_the_operations_of_subscriptions_are_counted(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """``subscribed`` counts them until they end: by leaving, by other code, with a key that raises, or by closing."""

    class Key:
        """A key that cannot be hashed later."""

        broken = False

        def __hash__(self) -> int:
            if self.broken:
                raise Boom
            return 1

    park(purgatory, "a")
    key = Key()
    first, second, third = (purgatory.changes(keys) for keys in (["a", "b"], ["a"], [key]))
    check(purgatory, parked=5, subscribed=4)
    await first.aclose()
    check(purgatory, parked=3, subscribed=2)
    purgatory.cancel_for_key("a")
    check(purgatory, parked=1, subscribed=1)
    key.broken = True
    await third.aclose()
    check(purgatory, parked=0, subscribed=0)
    fourth = purgatory.changes(["a"])
    await purgatory.aclose()
    check(purgatory, parked=0, subscribed=0)
    del second, fourth
