"""The queue of coalesced checks: the keys take turns, and every operation is tried after its key was named."""

import asyncio
import contextlib
import threading
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import Outcome, Purgatory
from purgatory.aio.coalesced_checks import CoalescedChecks
from purgatory.core.purgatory import PurgatoryCore
from purgatory.testing import ManualClock
from tests.helpers import Boom, Op, park
from tests.sansio import QuietPurgatory, make_purgatory


def queue_of(room: QuietPurgatory) -> CoalescedChecks:
    core: PurgatoryCore = room._core
    return CoalescedChecks(core)


def test_a_portion_is_spent_on_several_keys(room: QuietPurgatory) -> None:
    """Ten tries serve ten keys of one watcher each."""
    watchers = [park(room, number) for number in range(25)]
    queue = queue_of(room)
    for number in range(25):
        queue.add(number)
    queue.work(10)
    assert [bool(watcher.calls) for watcher in watchers] == [True] * 10 + [False] * 15


def test_keys_take_turns(room: QuietPurgatory) -> None:
    """Each portion goes to the next key in the queue."""
    order: list[str] = []
    for key in "ab":
        for number in range(3):
            park(room, key, name=f"{key}{number}", on_try=lambda operation: order.append(operation.name))
    order.clear()
    queue = queue_of(room)
    queue.add("a")
    queue.add("b")
    while queue:
        queue.work(1)
    assert order == ["a0", "b0", "a1", "b1", "a2", "b2"]


@pytest.mark.parametrize("keys", [["a"], {"a": 5}])
def test_an_interrupt_loses_neither_the_walk_nor_the_other_keys(room: QuietPurgatory, keys: Any) -> None:
    """A KeyboardInterrupt in a slice propagates; the next slice continues after the interrupted operation."""
    watchers = [Op(name=str(number)) for number in range(5)]
    for watcher in watchers:
        room.try_complete_else_watch(watcher, keys)
        watcher.calls.clear()
    other = park(room, "b")

    def interrupt(operation: Op) -> None:
        operation._on_try = lambda _: None
        raise KeyboardInterrupt

    watchers[2]._on_try = interrupt
    queue = queue_of(room)
    queue.add("a")
    queue.add("b")
    with pytest.raises(KeyboardInterrupt):
        queue.work(10)
    queue.work(10)
    assert [watcher.calls for watcher in watchers] == [["try"]] * 5
    assert other.calls == ["try"]
    assert not queue
    room._check()


def test_keys_that_were_requested_together_are_freed_in_steps(room: QuietPurgatory) -> None:
    """No step frees more than a few of a thousand keys."""
    freed = 0

    class Key:
        def __del__(self) -> None:
            nonlocal freed
            freed += 1

    queue = queue_of(room)
    queue.add_many({Key(): None for _ in range(1000)})
    steps: list[int] = []
    while queue:
        before = freed
        queue.work(1)
        steps.append(freed - before)
    assert freed == 1000
    assert max(steps) <= 65


def test_a_key_named_before_its_turn_is_checked_once(room: QuietPurgatory) -> None:
    """Only a call during the tries of a key starts another check of that key."""
    watchers = [park(room, "key") for _ in range(4)]
    queue = queue_of(room)
    queue.add("key")
    queue.add("key")
    queue.work(2)
    queue.add("key")
    queue.add("key")
    while queue:
        queue.work(3)
    assert {len(watcher.calls) for watcher in watchers} == {2}
    queue.add("key")
    queue.work(10)
    assert {len(watcher.calls) for watcher in watchers} == {3}


def test_a_hundred_thousand_keys_cost_no_more_each_than_a_thousand(room: QuietPurgatory) -> None:
    """Taking the next key does not search the keys already taken."""
    queue = queue_of(room)
    for number in range(100_000):
        queue.add(number)
    portions = 0
    while queue:
        queue.work(32)
        portions += 1
    assert portions == 100_000 // 32
    assert not queue._checks


def test_a_key_without_watchers_counts_as_one_try() -> None:
    """Many keys without watchers are therefore also processed in portions."""
    queue = CoalescedChecks(make_purgatory(ManualClock())._core)
    for number in range(7):
        queue.add(number)
    portions = 0
    while queue:
        queue.work(3)
        portions += 1
    assert portions == 3


def test_requests_of_many_keys_take_turns(room: QuietPurgatory) -> None:
    """If many keys are requested at once, several times, a key of each request enters the queue in turn."""
    order: list[str] = []
    for key in ("a0", "a1", "b0", "b1", "c0", "c1", "d0", "d1"):
        park(room, key, name=key, on_try=lambda operation: order.append(operation.name))
    order.clear()
    queue = queue_of(room)
    for request in "abcd":
        queue.add_many({f"{request}0": None, f"{request}1": None})
    while queue:
        queue.work(1)
    assert order == ["a0", "b0", "c0", "d0", "a1", "b1", "c1", "d1"]


def test_a_checked_key_is_released_while_others_wait(room: QuietPurgatory) -> None:
    """The queue does not hold a key that has been checked until all others have been."""

    class Key:
        pass

    for _ in range(5):
        park(room, "long")
    key = Key()
    released = weakref.ref(key)
    queue = queue_of(room)
    queue.add(key)
    queue.add("long")
    queue.work(2)
    del key
    assert queue
    assert released() is None


def test_a_key_that_waits_is_checked_once_although_another_has_been_checked(room: QuietPurgatory) -> None:
    """The end of one key's check does not make the queue forget that another key is in it."""
    watcher = park(room, "b")
    queue = queue_of(room)
    queue.add("a")
    queue.add("b")
    queue.work(1)
    queue.add("b")
    while queue:
        queue.work(1)
    assert watcher.calls == ["try"]


async def test_a_turn_that_was_cheap_lets_the_next_one_do_more(purgatory: Purgatory[Any]) -> None:
    """The turns that run a long queue of checks share what they have learned about the cost of the work."""
    for _ in range(3000):
        op = Op(None)
        purgatory.try_complete_else_watch(op, ["a"])
        op.ready = True
    purgatory.check_soon("a")
    done = [0]
    while len(purgatory):
        await asyncio.sleep(0)
        done.append(purgatory.statistics().completed)
    first, second = done[1], done[2] - done[1]
    assert second > 1.5 * first


async def test_a_forked_child_can_check_although_the_parent_was_at_it(purgatory: Purgatory[Any]) -> None:
    """Whatever the other threads of the parent did at the fork, the child schedules checks, also from threads."""
    ops = [Op(None), Op(None)]
    for op, key in zip(ops, "ab", strict=True):
        purgatory.try_complete_else_watch(op, [key])
        op.ready = True
    soon = purgatory._soon
    thread = threading.Thread(target=soon._lock.acquire)
    thread.start()
    thread.join()
    soon.scheduled = soon._waking = soon._inbox_busy = True
    soon.renew_lock()
    soon.after_fork()
    purgatory.check_soon("a")
    purgatory.check_threadsafe("b")
    assert (soon._inbox, soon._interrupting) == ({"b": None}, [])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [op.outcome for op in ops] == [Outcome.COMPLETED, Outcome.COMPLETED]


def test_a_key_whose_hash_raises_at_the_end_of_its_check_can_be_requested_again(room: QuietPurgatory) -> None:
    """Its check cannot be removed, but serves the next request, even while the queue holds other keys."""

    class Key:
        broken = False

        def __hash__(self) -> int:
            if self.broken:
                raise Boom
            return 1

    key = Key()

    def spoil(operation: Op) -> None:
        key.broken = True

    watcher = park(room, key)
    watcher._on_try = spoil
    others = [park(room, "other") for _ in range(5)]
    queue = queue_of(room)
    queue.add(key)
    queue.add("other")
    queue.work(2)
    assert key.broken
    key.broken = False
    watcher._on_try = lambda _: None
    queue.add(key)
    while queue:
        queue.work(1)
    assert watcher.calls == ["try", "try"]
    assert [other.calls for other in others] == [["try"]] * 5


def test_a_key_that_changes_during_its_check_does_not_duplicate_the_check_of_another(room: QuietPurgatory) -> None:
    """A key that has become another one removes the check of that key, which is put back and stays the only one."""

    class Key:
        def __init__(self, number: int) -> None:
            self.number = number

        def __hash__(self) -> int:
            return self.number

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Key) and self.number == other.number

    first, second = Key(1), Key(2)

    def change(operation: Op) -> None:
        first.number = 2

    park(room, first)._on_try = change
    watcher = park(room, second)
    queue = queue_of(room)
    queue.add(first)
    queue.add(second)
    queue.work(1)
    assert first.number == 2
    queue.add(second)
    while queue:
        queue.work(1)
    assert watcher.calls == ["try"]


def test_a_key_that_becomes_equal_to_another_takes_no_check_of_it(room: QuietPurgatory) -> None:
    """A key that becomes equal to another key during its check does not remove the check of the other key."""

    class Key:
        def __init__(self) -> None:
            self.answers: list[bool] = []

        def __hash__(self) -> int:
            return 0

        def __eq__(self, other: object) -> bool:
            return self.answers.pop(0) if self.answers else False

    first, second = Key(), Key()
    watchers = [park(room, first) for _ in range(3)]
    queue = queue_of(room)
    queue.add(first)
    queue.add(second)
    queue.work(1)
    first.answers = [False, True]  # the lookup of the watchers of the second key, then the end of its check
    queue.work(1)
    queue.add(first)
    while queue:
        queue.work(1)
    assert [len(watcher.calls) for watcher in watchers] == [2, 2, 2]
    assert not queue._checks


# Coalesced checks: after any schedule, each operation has been tried since its key was last named


KEYS = "abc"
VALUES = st.none() | st.integers(0, 9)
THRESHOLDS = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 9), min_size=1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("park"), THRESHOLDS, st.booleans()),
        st.tuples(st.just("name"), st.sampled_from(KEYS), VALUES),
        st.tuples(st.just("name many"), st.dictionaries(st.sampled_from(KEYS), VALUES)),
        st.tuples(st.just("name all")),
        st.tuples(st.just("work"), st.integers(1, 4)),
        st.tuples(st.just("end"), st.integers(0, 20)),
        st.tuples(st.just("clear"), st.sampled_from(KEYS)),
        st.tuples(st.just("ready"), st.integers(0, 20)),
        st.tuples(st.just("interrupt"), st.integers(0, 20)),
        st.tuples(st.just("chain"), st.integers(0, 20), st.sampled_from(KEYS), VALUES),
    ),
    max_size=60,
)


class Waiter(Op):
    """A waiter that records its last try, can be interrupted once, and can name a key when it completes."""

    def __init__(self, world: "World", thresholds: dict[str, int] | None) -> None:
        super().__init__(None)
        self.world = world
        self.thresholds = thresholds
        self.is_parked = False
        self.is_reached = False
        self.tried_at = 0
        self.interrupts = False
        self.names: tuple[str, int | None] | None = None

    def concerns(self, key: str, value: int | None) -> bool:
        """Return whether a check of the key with the value must try the operation."""
        if key not in self.keys:
            return False
        return self.thresholds is None or value is None or self.thresholds[key] <= value

    def try_complete(self) -> bool:
        assert self.is_reached or not self.is_parked, "it is tried below its threshold"
        self.world.moment += 1
        self.tried_at = self.world.moment
        if self.interrupts:
            self.interrupts = False
            raise KeyboardInterrupt
        return self.ready

    def on_complete(self) -> None:
        if self.names is not None:
            self.world.name(*self.names)


class World:
    def __init__(self) -> None:
        self.room = make_purgatory(ManualClock())
        self.checks = CoalescedChecks(self.room._core)
        self.waiters: list[Waiter] = []
        self.moment = 0
        self.must_be_tried_after: dict[int, int] = {}

    def name(self, key: str, value: int | None) -> None:
        self.checks.add(key, value)
        self.note({key: value})

    def note(self, named: dict[str, int | None]) -> None:
        self.moment += 1
        for number, waiter in enumerate(self.waiters):
            if any(waiter.concerns(key, value) for key, value in named.items()):
                self.must_be_tried_after[number] = self.moment
                waiter.is_reached = True

    def work(self, number: int) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            self.checks.work(number)

    def pick(self, number: int) -> Waiter | None:
        return self.waiters[number] if number < len(self.waiters) else None

    def do(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("park", thresholds, ranked):
                waiter = Waiter(self, thresholds if ranked else None)
                self.waiters.append(waiter)
                self.room.try_complete_else_watch(waiter, thresholds if ranked else list(thresholds))
                waiter.is_parked = True
                # A check that was requested earlier may run with a value that reaches the threshold.
                waiter.is_reached = not ranked or bool(self.checks)
            case ("name", key, value):
                self.name(key, value)
            case ("name many", named):
                self.checks.add_many(dict(named))
                self.note(named)
            case ("name all",):
                self.checks.add_all()
                self.note(dict.fromkeys(KEYS))
            case ("work", number):
                self.work(number)
            case ("clear", key):
                self.room.cancel_for_key(key)
            case (what, number, *rest):
                waiter_or_none = self.pick(number)
                if waiter_or_none is None:
                    return
                match what:
                    case "end":
                        waiter_or_none.cancel()
                    case "ready":
                        waiter_or_none.ready = True
                    case "interrupt":
                        waiter_or_none.interrupts = True
                    case _:
                        waiter_or_none.names = (rest[0], rest[1])


@given(STEPS)
def test_every_parked_operation_is_tried(steps: list[tuple[Any, ...]]) -> None:
    """In any schedule of checks, arrivals, ends and interrupts, every operation that must be tried is tried."""
    world = World()
    for step in steps:
        world.do(step)
        world.room._check()
    portions = 0
    while world.checks:
        world.work(3)
        portions += 1
        assert portions < 1000, "it does not end"
    for number, moment in world.must_be_tried_after.items():
        waiter = world.waiters[number]
        if waiter.outcome is Outcome.PENDING:
            assert waiter.tried_at > moment, f"{number} was not tried after its key was named"
            assert not waiter.ready or waiter.interrupts or waiter.tried_at > 0
    assert not world.checks._checks
