"""If keys raise, change or act while they are hashed or compared, all other operations are still served."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import Outcome, Purgatory, PurgatoryError, PurgatoryFull
from purgatory.core.operation.lifecycle import fail_externally
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import Boom, Op, check, park
from tests.sansio import QuietPurgatory, make_purgatory


class Key:
    """A key whose hash and comparison can be replaced."""

    def __init__(self, value: int = 7) -> None:
        self.value = value
        self.on_hash: Callable[[], object] = lambda: None
        self.on_eq: Callable[[], object] = lambda: None

    def __hash__(self) -> int:
        self.on_hash()
        return self.value

    def __eq__(self, other: object) -> bool:
        self.on_eq()
        return self is other or (isinstance(other, Key) and self.value == other.value)


def boom() -> None:
    raise Boom


def interrupt() -> None:
    raise KeyboardInterrupt


# Checks that are made later


async def test_a_key_of_another_thread_that_raises_by_now_does_not_drop_the_others(
    purgatory: Purgatory[Op], clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """All other keys from threads are checked, and the error is reported once."""
    before, after = park(purgatory, "before"), park(purgatory, "after")
    key = Key()
    for named in ("before", key, "after"):
        purgatory.check_threadsafe(named)
    key.on_hash = boom
    await clock.settle()
    assert (before.calls, after.calls) == (["try"], ["try"])
    assert [type(context["exception"]) for context in reported] == [Boom]


@pytest.mark.parametrize("where", ["on_hash", "on_eq"])
async def test_a_key_that_raised_once_is_checked_when_it_is_named_again(
    purgatory: Purgatory[Op], clock: VirtualClock, reported: list[dict[str, Any]], where: str
) -> None:
    """The failed check does not prevent the next check of the key."""
    key = Key()
    operation, other = park(purgatory, key), park(purgatory, "other")
    purgatory.check_soon(Key())
    setattr(key, where, boom)
    if where == "on_hash":
        key.on_hash = lambda: None
        purgatory._soon._queue[0].key.on_hash = boom  # type: ignore[attr-defined]
    await clock.settle()
    assert operation.calls == []
    key.on_eq = lambda: None
    operation.ready = True
    purgatory.check_soon("other")
    purgatory.check_soon(key)
    await clock.settle()
    assert operation.outcome is Outcome.COMPLETED
    assert other.calls == ["try"]
    assert {type(context["exception"]) for context in reported} == {Boom}
    assert not purgatory._soon._checks


async def test_a_key_whose_hash_changes_while_it_is_named_is_checked_when_it_is_named_again(
    purgatory: Purgatory[Op], clock: VirtualClock
) -> None:
    """The first check is no longer found, and the next one runs nevertheless."""
    key = Key(1)
    purgatory.check_soon(key)
    key.value = 2
    await clock.settle()
    operation = park(purgatory, key, ready=False)
    operation.ready = True
    purgatory.check_soon(key)
    await clock.settle()
    assert operation.outcome is Outcome.COMPLETED


async def test_a_queued_check_whose_key_raises_by_now_does_not_drop_the_others(
    purgatory: Purgatory[Op], reported: list[dict[str, Any]]
) -> None:
    """The error is reported with the key, and the checks queued after it run and are counted."""
    key = Key()

    def queue(_: Op) -> None:
        purgatory.check_and_complete(key)
        purgatory.check_and_complete("other")
        key.on_hash = boom

    park(purgatory, "begin", on_complete=queue).ready = True
    other = park(purgatory, "other")
    other.ready = True
    assert purgatory.check_and_complete("begin") == 2
    assert [(type(context["exception"]), context["key"]) for context in reported] == [(Boom, key)]


async def test_checks_put_off_by_an_interrupt_do_not_drop_one_another(
    purgatory: Purgatory[Op], clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """If a key raises when its check is postponed, this is reported; the next key is checked in the next turn."""
    key = Key()

    def queue_and_interrupt(_: Op) -> None:
        purgatory.check_and_complete(key)
        purgatory.check_and_complete("other")
        key.on_hash = boom
        raise KeyboardInterrupt

    park(purgatory, "begin", on_complete=queue_and_interrupt).ready = True
    other = park(purgatory, "other")
    with pytest.raises(KeyboardInterrupt):
        purgatory.check_and_complete("begin")
    purgatory._check()
    await clock.settle()
    assert other.calls == ["try"]
    assert {type(context["exception"]) for context in reported} == {Boom}


# Parking


@pytest.mark.parametrize("end", ["cancel", "force_complete"])
@pytest.mark.parametrize("shape", ["second of a key", "third of a key", "several keys", "threshold"])
def test_a_comparison_that_ends_the_operation_being_parked_leaves_nothing_behind(
    room: QuietPurgatory, end: str, shape: str
) -> None:
    """The operation has the outcome that the comparison set, is on no list, and the statistics balance."""
    key = Key()
    others = [park(room, Key()) for _ in range(2 if shape == "third of a key" else 1)]
    waiting = room._core.watcher_lists.operations(Key())
    assert waiting == others
    operation = Op(5)
    key.on_eq = getattr(operation, end)
    first: Any = next(iter(room.keys()))
    first.on_eq = getattr(operation, end)
    keys: Any = {"several keys": ["a", key, "b"], "threshold": {"a": 1, key: 5}}.get(shape, [key])
    assert room.try_complete_else_watch(operation, keys) is (end == "force_complete")
    first.on_eq = lambda: None
    assert operation.outcome is (Outcome.CANCELLED if end == "cancel" else Outcome.COMPLETED)
    assert not operation.keys
    room._check()
    assert not room.is_watched("a")
    assert len(room) == len(others)
    assert room.statistics().immediate == (end == "force_complete")
    for other in others:
        other.ready = True
    assert room.check_and_complete(Key()) == len(others)


def test_a_comparison_that_ends_the_operation_and_raises(room: QuietPurgatory) -> None:
    """The error reaches the caller, the operation keeps its outcome, and it is counted once."""
    park(room, "a", Key())
    operation = Op(5)
    key = Key()

    def cancel_and_raise() -> None:
        operation.cancel()
        raise Boom

    first: Any = room._core.watcher_lists.operations("a")[0].keys[1]
    first.on_eq = key.on_eq = cancel_and_raise
    with pytest.raises(Boom):
        room.try_complete_else_watch(operation, ["b", key])
    first.on_eq = lambda: None
    assert operation.outcome is Outcome.CANCELLED
    room._check()
    assert len(room) == 1


def test_a_comparison_that_ends_the_watcher_it_is_compared_with(room: QuietPurgatory) -> None:
    """The new operation waits alone, and the next check finds it."""
    for action in ("cancel", "force_complete"):
        first_key = Key()
        first = park(room, first_key)
        first_key.on_eq = getattr(first, action)
        second = park(room, Key())
        room._check()
        second.ready = True
        assert first.outcome is not Outcome.PENDING
        assert room.check_and_complete(Key()) == 1
        room._check()
        assert len(room) == 0


@pytest.mark.parametrize("threshold", [False, True])
def test_a_comparison_that_hands_over_an_operation_is_refused(room: QuietPurgatory, threshold: bool) -> None:
    """A key must not change the lists during its lookup; the error reaches the caller, and nothing is parked."""
    key = Key()
    park(room, key)

    def park_another() -> None:
        key.on_eq = lambda: None
        park(room, Key())

    key.on_eq = park_another
    operation = Op()
    with pytest.raises(PurgatoryError, match="must not submit an operation"):
        room.try_complete_else_watch(operation, {Key(): 3} if threshold else [Key()])
    room._check()
    assert len(room) == 1
    assert not room.try_complete_else_watch(operation, [Key()])


def test_a_comparison_that_checks_and_withdraws_in_the_midst(room: QuietPurgatory) -> None:
    """Checks and withdrawals that a key makes during its comparison take effect, and the lists stay consistent."""
    others = [park(room, "other") for _ in range(3)]
    keys = [Key() for _ in range(3)]
    waiting = [park(room, key) for key in keys]
    others[0].ready = True

    def act() -> None:
        for key in keys:
            key.on_eq = lambda: None
        room.check_and_complete("other")
        others[1].cancel()
        waiting[0].cancel()

    for key in keys:
        key.on_eq = act
    last = park(room, Key())
    room._check()
    assert [operation.outcome.name for operation in others] == ["COMPLETED", "CANCELLED", "PENDING"]
    assert waiting[0].outcome is Outcome.CANCELLED
    for operation in (*waiting, last):
        operation.ready = True
    assert room.check_and_complete(Key()) == 3
    room._check()


@pytest.mark.parametrize("limits", [{"max_parked_per_key": 1}, {"max_parked": 1}])
def test_a_full_key_whose_repr_raises_is_still_full(limits: dict[str, Any]) -> None:
    """The error is PurgatoryFull, and its attribute contains the key."""

    class Nameless(Key):
        def __repr__(self) -> str:
            raise Boom

    room = make_purgatory(ManualClock(), **limits)
    park(room, Nameless())
    with pytest.raises(PurgatoryFull) as raised:
        park(room, Nameless())
    assert raised.value.limit == 1
    assert str(raised.value)


@pytest.mark.parametrize("threshold", ["5", object(), float("nan")])
def test_a_bad_threshold_of_a_key_whose_repr_raises(room: QuietPurgatory, threshold: Any) -> None:
    """The error states what is wrong with the threshold."""

    class Nameless(Key):
        def __repr__(self) -> str:
            raise Boom

    with pytest.raises((TypeError, ValueError), match="threshold"):
        room.try_complete_else_watch(Op(), {Nameless(): threshold})


# Leaving


@pytest.mark.parametrize("ending", ["cancel", "force_complete", "expire", "fail", "check"])
@pytest.mark.parametrize("keys", ["alone", "threshold"])
async def test_the_awaiters_are_answered_before_the_error_of_a_key_is_reported(
    purgatory: Purgatory[Op], clock: VirtualClock, ending: str, keys: str
) -> None:
    """If an exception handler exits, the task in ``park()`` already has its answer."""
    key = Key()
    operation = Op(5, name="answer")
    task = asyncio.create_task(purgatory.park(operation, {key: 5} if keys == "threshold" else [key]))
    await clock.settle()

    def exit_at_once(_: Any, context: dict[str, Any]) -> None:
        raise SystemExit

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(exit_at_once)
    broken = False

    def unhashable_by_now() -> None:
        if broken:
            raise TypeError("unhashable by now")

    operation.ready = True
    if ending == "check":
        operation._on_try = lambda _: setattr(key, "on_hash", boom)
    else:
        key.on_hash = unhashable_by_now
        broken = True
    endings: dict[str, Callable[[], object]] = {
        "cancel": operation.cancel,
        "force_complete": operation.force_complete,
        "expire": operation.run,
        "fail": lambda: fail_externally(operation, Boom()),
        "check": lambda: purgatory.check_and_complete(key),
    }
    with pytest.raises(SystemExit):
        endings[ending]()
    loop.set_exception_handler(None)
    broken = False
    key.on_hash = lambda: None
    assert operation.outcome is not Outcome.PENDING
    await clock.settle()
    assert task.done()
    assert isinstance(task.exception(), PurgatoryError | Boom | None)
    check(purgatory, parked=0, watched=0, keys=0)


def test_an_interrupt_in_the_hash_of_a_key_passes_through_when_the_operation_has_ended(room: QuietPurgatory) -> None:
    """If Ctrl-C occurs while the last watcher of a key leaves, it is off its other keys and the timer, and counted."""
    key = Key()
    operation = park(room, "a", key, "b", timeout=5)
    key.on_hash = interrupt
    with pytest.raises(KeyboardInterrupt):
        operation.cancel()
    key.on_hash = lambda: None
    assert operation.outcome is Outcome.CANCELLED
    room._check()
    assert room.statistics().cancelled == 1
    assert list(room.keys()) == []


def test_a_key_that_turns_into_another_one_does_not_take_the_other_ones_watchers(room: QuietPurgatory) -> None:
    """If an operation's key becomes equal to another, the operation leaves alone; a check still finds the other one."""
    for keys in (lambda key: [key], lambda key: {key: 5}):
        changing, still = Key(1), Key(2)
        changed, other = Op(5), Op(5)
        room.try_complete_else_watch(changed, keys(changing))
        room.try_complete_else_watch(other, keys(still))
        changing.value = 2
        changed.cancel()
        room._check()
        assert room.is_watched(Key(2))
        other.ready = True
        assert room.check_and_complete(Key(2)) == 1
        room._check()
        assert len(room) == 0
        assert room.statistics().keys == 0
        assert [str(error) for error in room.reported] == [
            "the hash or the equality of a key changed while operations were parked on it"
        ]
        room.reported.clear()


def test_a_key_whose_hash_has_changed_is_given_up_and_its_place_is_used_again(room: QuietPurgatory) -> None:
    """An entry that cannot be deleted holds no operation, is not a watched key, and serves the next watcher."""
    key = Key(1)
    operation = park(room, key)
    key.value = 2
    operation.cancel()
    assert operation.outcome is Outcome.CANCELLED
    assert list(room.keys()) == []
    assert room.statistics().keys == 0
    key.value = 1
    again, more = park(room, key), park(room, key)
    room._check()
    assert room.statistics().keys == 1
    again.ready = more.ready = True
    assert room.check_and_complete(Key(1)) == 2
    room._check()
    assert room.statistics().keys == 0


# Numbers


class Wild(int):
    """An int whose comparison raises."""

    def _raise(self, other: object) -> bool:
        raise Boom

    __lt__ = __le__ = __gt__ = __ge__ = _raise

    def __index__(self) -> int:
        raise Boom

    __int__ = __float__ = __index__  # type: ignore[assignment]


class WildFloat(float):
    """A float whose comparison raises."""

    def _raise(self, other: object) -> bool:
        raise Boom

    __lt__ = __le__ = __gt__ = __ge__ = _raise

    def __float__(self) -> float:
        raise Boom


@pytest.mark.parametrize("number", [Wild, WildFloat])
def test_a_threshold_of_a_subclass_counts_as_its_number(room: QuietPurgatory, number: Callable[[int], Any]) -> None:
    """Overridden methods have no effect: the heap stays valid, and each operation is tried when it is reached."""
    operations = [Op() for _ in range(20)]
    for value, operation in enumerate(operations):
        room.try_complete_else_watch(operation, {"log": number((value * 7) % 20)})
        operation.ready = True
        room._check()
    assert room.check_and_complete("log", number(9)) == 10
    operations[0].cancel()
    room._check()
    assert room.check_and_complete("log", 19.5, limit=100) == 10


async def test_a_value_of_a_subclass_counts_as_its_number(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """Coalescing compares plain numbers, whatever the type of the value."""
    operation, high = Op(), Op()
    purgatory.try_complete_else_watch(operation, {"log": 5})
    purgatory.try_complete_else_watch(high, {"log": 50})
    for value in (Wild(3), WildFloat(7.5), Wild(4)):
        purgatory.check_soon("log", value)
        purgatory.check_threadsafe("log", value)
    await clock.settle()
    assert operation.calls.count("try") > 1
    assert high.calls == ["try"]


def test_an_operation_ended_by_a_comparison_that_then_raises_is_removed(room: QuietPurgatory) -> None:
    """The parking that compared the keys fails; the operation that the comparison ended leaves its key all the same."""
    first, second = Key(), Key()
    ended, other = park(room, first), park(room, "other")

    def cancel_and_raise() -> None:
        first.on_eq = lambda: None
        assert ended.cancel()
        raise Boom

    first.on_eq = cancel_and_raise
    with pytest.raises(Boom):
        room.try_complete_else_watch(Op(5), [second])
    room._check()
    assert not room.is_watched(first)
    assert room._core.watcher_lists.all_operations() == [other]
