"""A check tries the operations on its key in order of arrival, all or up to a limit, and no check is lost."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import Event, Observer, Outcome, Purgatory
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import Boom, Op, check, completed, park, waiting
from tests.sansio import QuietPurgatory, RecordingHooks, make_purgatory


def test_the_next_check_on_any_key_tries_it(room: QuietPurgatory) -> None:
    """After False, a check of any of its keys tries the operation; a check of another key does not."""
    op = Op(5)
    room.try_complete_else_watch(op, ["a", "b", "c"])
    for number, key in enumerate("abc", start=2):
        assert room.check_and_complete(key) == 0
        assert op.calls.count("try") == number
    assert room.check_and_complete("d") == 0
    assert op.calls.count("try") == 4


def test_watchers_are_tried_in_the_order_of_arrival(room: QuietPurgatory) -> None:
    """Operations on a key are tried in order of arrival, even if others have left in between."""
    order: list[str] = []
    ops = [Op(5, name=str(number), on_try=lambda op: order.append(op.name)) for number in range(10)]
    for op in ops:
        room.try_complete_else_watch(op, ["a"])
    ops[0].cancel()
    ops[5].cancel()
    ops[9].cancel()
    order.clear()
    room.check_and_complete("a")
    assert order == ["1", "2", "3", "4", "6", "7", "8"]


def test_a_check_during_the_first_try_is_not_lost(room: QuietPurgatory) -> None:
    """A check between the try and the watch is queued and finds the operation watched."""

    class Late(Op):
        def try_complete(self) -> bool:
            self.calls.append("try")
            if len(self.calls) == 1:
                assert room.check_and_complete("a") == 0
                return False
            return True

    op = Late(5)
    assert room.try_complete_else_watch(op, ["a"])
    assert op.calls == ["try", "try", "complete"]
    check(room, parked=0, completed=1, immediate=0)


def test_a_check_within_the_first_try_is_queued(room: QuietPurgatory) -> None:
    """The check returns 0, and runs before the call that submits the operation returns."""
    other, counted = Op(), []
    room.try_complete_else_watch(other, ["b"])
    other.ready = True
    op = Op(on_try=lambda _: counted.append(room.check_and_complete("b")))
    assert not room.try_complete_else_watch(op, ["a"])
    assert counted == [0]
    assert other.outcome is Outcome.COMPLETED
    room._check()


# ``check_and_complete(key, limit=n)``: complete at most the first n operations that can complete


def test_it_stops_after_so_many_completions_first_come_first(room: QuietPurgatory) -> None:
    """The check does not try the operations after the last one that completes."""
    operations = waiting(room, 10)
    assert room.check_and_complete("key", limit=3) == 3
    assert completed(operations) == [0, 1, 2]
    assert [operation.calls for operation in operations[3:]] == [[]] * 7
    assert room.check_and_complete("key", limit=1) == 1
    assert completed(operations) == [0, 1, 2, 3]
    assert room.check_and_complete("key", limit=100) == 6
    assert room.check_and_complete("key", limit=1) == 0
    room._check()


def test_an_operation_that_cannot_complete_is_passed_over_and_keeps_its_place(room: QuietPurgatory) -> None:
    """The limit counts completions, not tries."""
    operations = waiting(room, 5)
    operations[0].ready = operations[2].ready = False
    assert room.check_and_complete("key", limit=2) == 2
    assert completed(operations) == [1, 3]
    operations[0].ready = True
    assert room.check_and_complete("key", limit=1) == 1
    assert completed(operations) == [0, 1, 3]


def test_a_single_watcher_and_no_watcher(room: QuietPurgatory) -> None:
    """A key with one watcher completes it; a key with none completes nothing."""
    assert room.check_and_complete("key", limit=1) == 0
    operations = waiting(room, 1)
    assert room.check_and_complete("key", limit=1) == 1
    assert completed(operations) == [0]


def test_an_operation_that_fails_does_not_count(room: QuietPurgatory) -> None:
    """Two operations that raise do not count; the one that completes does."""

    def boom(operation: Op) -> None:
        if operation.ready:
            raise Boom

    operations = [*waiting(room, 1, on_try=boom), *waiting(room, 1, on_complete=boom), *waiting(room, 2)]
    assert room.check_and_complete("key", limit=1) == 1
    assert [operation.outcome for operation in operations] == [
        Outcome.FAILED,
        Outcome.FAILED,
        Outcome.COMPLETED,
        Outcome.PENDING,
    ]
    assert [type(error) for error in room.reported] == [Boom, Boom]


async def test_a_waiter_whose_task_is_cancelled_does_not_count(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """The next operation completes instead, even before the cancelled task has run."""
    operations = [Op(name=str(number)) for number in range(3)]
    tasks = [asyncio.create_task(purgatory.park(operation, ["key"])) for operation in operations]
    await clock.settle()
    for operation in operations:
        operation.ready = True
    tasks[0].cancel()
    assert purgatory.check_and_complete("key", limit=1) == 1
    assert [operation.outcome for operation in operations] == [Outcome.CANCELLED, Outcome.COMPLETED, Outcome.PENDING]
    assert await tasks[1] == "1"
    operations[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_with_a_value_only_reached_operations_count(room: QuietPurgatory) -> None:
    """Operations without a threshold, and those whose threshold is reached, complete in order of arrival."""
    operations = [Op(name=str(number)) for number in range(6)]
    for operation, threshold in zip(operations, [5, 3, None, 1, 9, 2], strict=True):
        room.try_complete_else_watch(operation, ["key"] if threshold is None else {"key": threshold})
        operation.calls.clear()
        operation.ready = True
    assert room.check_and_complete("key", 3, limit=2) == 2
    assert completed(operations) == [1, 2]
    assert not operations[0].calls
    assert not operations[3].calls
    assert room.check_and_complete("key", 3, limit=5) == 2
    assert completed(operations) == [1, 2, 3, 5]
    assert room.check_and_complete("key", limit=1) == 1
    assert completed(operations) == [0, 1, 2, 3, 5]


@pytest.mark.parametrize("keys", [["key"], {"key": 5}])
def test_one_of_ten_thousand_is_completed_without_looking_at_the_others(room: QuietPurgatory, keys: Any) -> None:
    """Only the first operation is tried, and only it leaves its list."""
    operations = [Op(ready=False) for _ in range(10_000)]
    for operation in operations:
        room.try_complete_else_watch(operation, keys)
        operation.ready = True
        operation.calls.clear()
    watchers: Any = room._core.watcher_lists.entry("key")
    if watchers.thresholds is not None:
        found = watchers.thresholds.few_reached(5, 65)
        assert found is None  # the search of the heap stops after 65 watchers, not after 10 000
    for number in range(100):
        assert room.check_and_complete("key", 5, limit=1) == 1
        looked_at = [operation for operation in operations if operation.calls]
        assert looked_at == operations[: number + 1]


# Within callbacks


def test_a_queued_check_keeps_its_limit(room: QuietPurgatory) -> None:
    """Checks within callbacks keep their limits, and the outermost call counts their completions."""
    operations = waiting(room, 5, key="jobs")
    counted: list[int] = []
    for limit in (1, 2):

        def queue(_: Op, limit: int = limit) -> None:
            counted.append(room.check_and_complete("jobs", limit=limit))

        park(room, "begin", on_complete=queue).ready = True
    assert room.check_and_complete("begin") == 2 + 1 + 2
    assert counted == [0, 0]
    assert completed(operations) == [0, 1, 2]


@pytest.mark.slow
def test_a_chain_of_limited_checks_uses_constant_stack(room: QuietPurgatory) -> None:
    """Each completed operation checks the next one with its own limit, in constant stack space."""
    left = 50_000

    def submit(_: Op) -> None:
        nonlocal left
        left -= 1
        if left:
            assert room.check_and_complete("key", limit=1) == 0

    operations = waiting(room, 60_000, on_complete=submit)
    assert room.check_and_complete("key", limit=1) == 50_000
    assert completed(operations) == list(range(50_000))


def test_a_completion_forced_by_a_callback_is_not_counted_against_the_limit(room: QuietPurgatory) -> None:
    """The limit counts only the completions of the check itself."""
    operations = waiting(room, 3)
    operations[0]._on_complete = lambda _: operations[1].force_complete()
    assert room.check_and_complete("key", limit=2) == 2
    assert completed(operations) == [0, 1, 2]


@pytest.mark.parametrize("where", ["on_try", "on_complete"])
async def test_an_interrupted_queued_check_keeps_the_rest_of_its_limit(clock: VirtualClock, where: str) -> None:
    """KeyboardInterrupt propagates; in the next turn, the check completes at most the rest of its limit."""

    def interrupt(operation: Op) -> None:
        if operation.ready:
            operation._on_try = operation._on_complete = lambda _: None
            raise KeyboardInterrupt

    async with Purgatory[Op]("test", clock=clock) as purgatory:
        operations = waiting(purgatory, 8)
        setattr(operations[1], f"_{where}", interrupt)
        begin = park(purgatory, "begin", on_complete=lambda _: purgatory.check_and_complete("key", limit=3))
        begin.ready = True
        with pytest.raises(KeyboardInterrupt):
            purgatory.check_and_complete("begin")
        assert completed(operations) == [0]
        await clock.settle()
        assert completed(operations) == ([0, 1, 2] if where == "on_try" else [0, 2, 3])
        purgatory._check()


# The limit


@pytest.mark.parametrize(("limit", "error"), [(0, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError)])
@pytest.mark.parametrize("key", ["key", "unwatched"])
def test_a_bad_limit_is_refused(room: QuietPurgatory, limit: Any, error: type[Exception], key: str) -> None:
    """The message contains the limit, and nothing is tried."""
    operations = waiting(room, 1)
    with pytest.raises(error, match=f"limit must be a positive int or None, got {limit!r}"):
        room.check_and_complete(key, limit=limit)
    assert operations[0].calls == []


def test_a_limit_larger_than_any_number_of_watchers(room: QuietPurgatory) -> None:
    """A limit of 10**30 has no effect."""
    operations = waiting(room, 5)
    assert room.check_and_complete("key", limit=10**30) == 5
    assert completed(operations) == [0, 1, 2, 3, 4]


PARKED = st.lists(
    st.tuples(st.none() | st.integers(0, 5), st.booleans(), st.sampled_from([False, False, False, True])), max_size=90
)


@given(PARKED, st.none() | st.integers(0, 5), st.integers(1, 8))
def test_a_limited_check_agrees_with_a_linear_scan(parked: list[Any], value: int | None, limit: int) -> None:
    """In any schedule, a reached operation is tried iff fewer than ``limit`` before it have completed."""
    room = make_purgatory(ManualClock())
    operations: list[Op] = []
    for threshold, _, _ in parked:
        operations.append(Op())
        room.try_complete_else_watch(operations[-1], ["key"] if threshold is None else {"key": threshold})
    for operation, (_, ready, gone) in zip(operations, parked, strict=True):
        operation.calls.clear()
        operation.ready = ready
        if gone:
            operation.cancel()
    expected: list[list[str]] = []
    left = limit
    for threshold, ready, gone in parked:
        tried = left > 0 and not gone and (threshold is None or value is None or threshold <= value)
        left -= tried and ready
        expected.append((["try", "complete"] if ready else ["try"]) if tried else [])
    assert room.check_and_complete("key", value, limit=limit) == limit - left
    assert [operation.calls for operation in operations] == expected
    room._check()


def test_an_interrupt_where_no_loop_runs(room: QuietPurgatory) -> None:
    """Without a loop there is no later turn: the interrupt propagates, and the state is consistent."""

    def interrupt(operation: Op) -> None:
        if operation.ready:
            raise KeyboardInterrupt

    operations = waiting(room, 3, on_try=interrupt)
    park(room, "begin", on_complete=lambda _: room.check_and_complete("key", limit=2)).ready = True
    with pytest.raises(KeyboardInterrupt):
        room.check_and_complete("begin")
    assert completed(operations) == []
    room._check()
    assert len(room) == 3


def test_an_interrupt_when_the_limit_is_used_up_puts_nothing_off() -> None:
    """If an interrupt follows the last completion of a queued check, nothing is scheduled for later."""
    postponed: list[object] = []

    class Postponing(RecordingHooks):
        def check_later(self, key: object, value: Any, limit: int | None) -> None:
            postponed.append((key, value, limit))

    class Interrupting(Observer):
        def completed(self, event: Event) -> None:
            if event.operation is operations[1]:
                raise KeyboardInterrupt

    room = make_purgatory(ManualClock(), hooks=Postponing(), observers=[Interrupting()])
    operations = waiting(room, 3)
    park(room, "begin", on_complete=lambda _: room.check_and_complete("key", limit=2)).ready = True
    with pytest.raises(KeyboardInterrupt):
        room.check_and_complete("begin")
    assert completed(operations) == [0, 1]
    assert postponed == []
    room._check()


def test_a_queued_check_that_cannot_be_put_off_is_reported() -> None:
    """The interrupt propagates, and the failure to postpone the check is reported for its key."""

    keys: list[object] = []

    class Refusing(RecordingHooks):
        def check_later(self, key: object, value: Any, limit: int | None) -> None:
            raise Boom

        def report_key(self, error: BaseException, key: object) -> None:
            super().report_key(error, key)
            keys.append(key)

    room = make_purgatory(ManualClock(), hooks=Refusing())

    def interrupt(operation: Op) -> None:
        if operation.ready:
            raise KeyboardInterrupt

    waiting(room, 1, on_try=interrupt)
    park(room, "begin", on_complete=lambda _: room.check_and_complete("key")).ready = True
    with pytest.raises(KeyboardInterrupt):
        room.check_and_complete("begin")
    assert [type(error) for error in room.reported] == [Boom]
    assert keys == ["key"]
    room._check()


@pytest.mark.parametrize(("limit", "left"), [(None, None), (2, 1), (3, 2)])
def test_a_check_that_is_put_off_keeps_its_value_and_its_limit(limit: int | None, left: int | None) -> None:
    """After an interrupt the hook gets the key, the value, and how many operations may still complete."""
    postponed: list[object] = []

    class Postponing(RecordingHooks):
        def check_later(self, key: object, value: Any, limit: int | None) -> None:
            postponed.append((key, value, limit))

    def interrupt(operation: Op) -> None:
        if operation.ready:
            raise KeyboardInterrupt

    room = make_purgatory(ManualClock(), hooks=Postponing())
    operations = waiting(room, 3)
    operations[1]._on_try = interrupt
    park(room, "begin", on_complete=lambda _: room.check_and_complete("key", 7, limit=limit)).ready = True
    with pytest.raises(KeyboardInterrupt):
        room.check_and_complete("begin")
    assert postponed == [("key", 7, left)]
