"""Bad input raises an error that states the expected value, and changes nothing."""

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from purgatory import Outcome, Purgatory, TimerTask
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import Boom, Op, check
from tests.sansio import QuietPurgatory, make_purgatory, pass_time

# Keys


def _keys_that_raise() -> Iterator[str]:
    yield "a"
    raise Boom("no more keys")


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ([], ValueError, "keys must contain at least one key"),
        ((), ValueError, "keys must contain at least one key"),
        ({}, ValueError, "keys must contain at least one key"),
        (iter([]), ValueError, "keys must contain at least one key"),
        ("orders", TypeError, r"such as \['orders'\], got 'orders'"),
        (b"orders", TypeError, "keys must be an iterable"),
        (bytearray(b"orders"), TypeError, "keys must be an iterable"),
        (7, TypeError, "keys must be an iterable .* got 7"),
        (None, TypeError, "keys must be an iterable .* got None"),
        ([["list"]], TypeError, "unhashable"),
        (["good", {}], TypeError, "unhashable"),
        (_keys_that_raise, Boom, "no more keys"),
        ({"a": "high"}, TypeError, "threshold for key 'a' must be an int or a float"),
        ({"a": 1, "b": True}, TypeError, "threshold for key 'b' must be an int or a float"),
        ({"a": float("nan")}, ValueError, "threshold for key 'a' must be a number that a value can reach, got NaN"),
    ],
)
def test_bad_keys_are_refused_and_change_nothing(
    room: QuietPurgatory, keys: Any, error: type[Exception], message: str
) -> None:
    """The error states the expected keys; nothing is tried, parked or counted, and the operation is still usable."""
    op = Op(5)
    with pytest.raises(error, match=message):
        room.try_complete_else_watch(op, keys() if callable(keys) else keys)
    assert op.calls == []
    check(room, submitted=0, parked=0, watched=0, keys=0, num_delayed=0)
    assert room._core.timer.size == 0
    assert not room.try_complete_else_watch(op, ["good"])
    check(room, submitted=1, parked=1)


async def test_unhashable_keys_are_refused_everywhere(purgatory: Purgatory[Op]) -> None:
    """Checks and withdrawals on an unhashable key raise TypeError."""
    key: Any = []
    for call in (
        purgatory.check_and_complete,
        purgatory.cancel_for_key,
        purgatory.check_soon,
        purgatory.check_threadsafe,
        purgatory.is_watched,
    ):
        with pytest.raises(TypeError, match="unhashable"):
            call(key)
    with pytest.raises(TypeError, match="unhashable"):
        purgatory.fail_for_key(key, Boom())


@pytest.mark.parametrize("error", ["text", None, KeyboardInterrupt(), KeyboardInterrupt, int])
def test_failing_needs_an_exception(room: QuietPurgatory, error: Any) -> None:
    """Only an Exception instance, or a function that returns one, can be the reason of a failure."""
    op = Op(5)
    room.try_complete_else_watch(op, ["a"])
    with pytest.raises(TypeError, match="error must be an exception or a function that returns one, got "):
        room.fail_for_key("a", error)
    assert op.outcome is Outcome.PENDING


# Operations


async def test_parking_twice_is_refused(purgatory: Purgatory[Op]) -> None:
    """A parked operation is unchanged; an ended one is not accepted again."""
    op = Op(5)
    purgatory.try_complete_else_watch(op, ["a"])
    with pytest.raises(ValueError, match="which is parked already"):
        purgatory.try_complete_else_watch(op, ["b"])
    with pytest.raises(ValueError, match="which is parked already"):
        await purgatory.park(op, ["b"])
    assert op.keys == ("a",)
    check(purgatory, submitted=1, parked=1, watched=1)
    op.cancel()
    with pytest.raises(ValueError, match="has ended"):
        purgatory.try_complete_else_watch(op, ["a"])
    check(purgatory, submitted=1, parked=0, cancelled=1)


def test_parking_in_two_purgatories_is_refused(room: QuietPurgatory) -> None:
    """A parked operation is not accepted by another purgatory."""
    other = make_purgatory(ManualClock(), name="other")
    op = Op(5)
    room.try_complete_else_watch(op, ["a"])
    with pytest.raises(ValueError, match="which is parked already"):
        other.try_complete_else_watch(op, ["a"])
    check(other, submitted=0)


def test_handing_itself_over_within_its_first_try_is_refused(room: QuietPurgatory) -> None:
    """An operation that is being tried already belongs to a purgatory."""
    seen: list[type] = []

    def again(op: Op) -> None:
        try:
            room.try_complete_else_watch(op, ["b"])
        except ValueError as error:
            seen.append(type(error))

    op = Op(5, on_try=again)
    assert not room.try_complete_else_watch(op, ["a"])
    assert seen == [ValueError]
    check(room, submitted=1, parked=1, watched=1)


@pytest.mark.parametrize("operation", [None, "op", TimerTask(5), object()])
def test_only_operations_are_taken(room: QuietPurgatory, operation: Any) -> None:
    """Any other object raises a TypeError that states the expected type, and nothing else if it is not a function."""
    with pytest.raises(TypeError) as raised:
        room.try_complete_else_watch(operation, ["a"])
    assert str(raised.value) == f"operation must be a DelayedOperation, got {operation!r}"
    check(room, submitted=0)


async def test_only_operations_can_be_waited_for(purgatory: Purgatory[Op]) -> None:
    """The error of ``park`` contains the name of the argument, and nothing has changed."""
    with pytest.raises(TypeError, match="operation must be a DelayedOperation, got 'x'"):
        await purgatory.park("x", ["a"])  # type: ignore[arg-type]
    check(purgatory, submitted=0)


# Parameters of a purgatory


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": 5}, TypeError, "name must be a str"),
        ({"name": "x", "timer": "timer"}, TypeError, "timer must be a SystemTimer"),
        ({"name": "x", "clock": "clock"}, TypeError, "clock must be a purgatory.types.Clock"),
        ({"name": "x", "tick_ms": 0}, ValueError, "tick_ms must be at least 1"),
        ({"name": "x", "wheel_size": 1}, ValueError, "wheel_size must be at least 2"),
        ({"name": "x", "observers": "observer"}, TypeError, "observers must be a sequence"),
        ({"name": "x", "observers": 5}, TypeError, "observers must be a sequence"),
        ({"name": "x", "observers": [object()]}, TypeError, "an observer must have one of the methods"),
    ],
)
def test_bad_parameters_are_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    """Each bad parameter of a purgatory raises an error that states the expected value."""
    with pytest.raises(error, match=message):
        Purgatory(**arguments)


# Timeouts and values


@pytest.mark.parametrize("timeout", [-1, math.nan, math.inf])
def test_a_bad_extension_changes_nothing(timeout: float) -> None:
    """An invalid timeout is refused, and the old deadline stands."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock)
    op = Op(1)
    room.try_complete_else_watch(op, ["key"])
    with pytest.raises(ValueError, match="timeout"):
        op.extend(timeout)
    check(room, parked=1, num_delayed=1)
    pass_time(clock, room, 1000)
    assert op.outcome is Outcome.EXPIRED


@pytest.mark.parametrize(
    ("value", "error"), [("5", TypeError), ([], TypeError), (True, TypeError), (float("nan"), ValueError)]
)
def test_a_bad_value_is_refused_at_once(room: QuietPurgatory, value: Any, error: type[Exception]) -> None:
    """The call that passes the value raises, also inside a callback, where the check is queued."""
    ranked = Op(5)
    room.try_complete_else_watch(ranked, {"a": 3})
    with pytest.raises(error, match="value"):
        room.check_and_complete("a", value)
    with pytest.raises(error, match="value"):
        room.check_and_complete("unwatched", value)
    assert ranked.calls == ["try"]

    def check_with_value(_: Op) -> None:
        with pytest.raises(error, match="value"):
            room.check_and_complete("a", value)
        room.check_and_complete("a", 3)

    op = Op(5, on_complete=check_with_value)
    room.try_complete_else_watch(op, ["b"])
    op.ready = ranked.ready = True
    assert room.check_and_complete("b") == 2


@pytest.mark.parametrize("grace", [-1, float("nan"), float("inf")])
async def test_a_bad_grace_changes_nothing(clock: VirtualClock, grace: float) -> None:
    """An invalid grace is refused, and the purgatory is still open."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        with pytest.raises(ValueError, match=r"^grace must be a number of seconds from 0"):
            await purgatory.aclose(grace=grace)
        assert not purgatory.closed


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda room: room.check(["a", "b"]),
            r"key must be one hashable key, got \['a', 'b'\], of the unhashable type list: check several keys one by",
        ),
        (lambda room: room.check({"a": 5}), r"got \{'a': 5\}, of the unhashable type dict: check several keys"),
        (lambda room: room.check({"a"}), r"got \{'a'\}, of the unhashable type set: check several keys"),
        (lambda room: room.check_soon({"a": 5}), r"got \{'a': 5\}, of the unhashable type dict: check several keys"),
        (lambda room: room.check_threadsafe({"a"}), r"got \{'a'\}, of the unhashable type set: check several keys"),
        (lambda room: room.try_complete_else_watch(len, ["a"]), r"got <.*len>; for a function use wait_until\(\)"),
        (lambda room: Op(timedelta(seconds=5)), r"timeout must be .*, got .*timedelta.*: pass its total_seconds\(\)"),
        (lambda room: Op(None).extend_to(datetime.now(UTC)), r"deadline must be .*: pass timer.time\(\) plus the sec"),
        (lambda room: room.try_complete_else_watch(_ended(), ["a"]), "which has ended: make a new one for each wait"),
    ],
)
async def test_errors_name_the_call_to_use(
    purgatory: Purgatory[Op], call: Callable[[Any], object], message: str
) -> None:
    """The message says what to do instead, with the value that was given, and nothing has changed."""
    with pytest.raises((TypeError, ValueError), match=message):
        call(purgatory)
    check(purgatory, submitted=0, parked=0)


def test_a_hashable_list_is_a_key(room: QuietPurgatory) -> None:
    """A subclass of list with a hash is a key like any other."""

    class Key(list[str]):
        def __hash__(self) -> int:  # type: ignore[override]
            return 5

    key = Key(["a"])
    room.try_complete_else_watch(op := Op(5), [key])
    op.ready = True
    assert room.check(key) == 1


def _ended() -> Op:
    op = Op(None)
    op.cancel()
    return op
