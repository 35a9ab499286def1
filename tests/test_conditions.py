"""Conditions: their text, the signals that they see, and their stored state."""

import asyncio
import json
import re
import uuid
from typing import Any

import pytest

from purgatory import Outcome, Purgatory, conditions
from purgatory.conditions import AllKeys, AtLeast, Condition, ConditionalOperation, Count, parse, register, signal
from purgatory.testing import VirtualClock
from tests.helpers import Op


@pytest.mark.parametrize(
    "text", ["count(3)", "at_least(1500)", "at_least(-0.5)", "all_keys", "all_keys(count(2))", "all_keys(at_least(7))"]
)
def test_a_declaration_reads_as_it_is_written(text: str) -> None:
    """The text of a parsed condition equals the parsed text."""
    assert str(parse(text)) == text
    assert str(parse(f" {text} ")) == text


def test_dir_lists_the_public_names() -> None:
    """Editors list them from ``dir()``."""
    assert [name for name in dir(conditions) if not name.startswith("_")] == sorted(conditions.__all__)


def test_all_keys_is_one_signal_for_each() -> None:
    """Three ways to write the same condition are equivalent."""
    assert str(parse("all_keys()")) == str(parse("all_keys(count(1))")) == "all_keys"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cont(3)", "a condition must be one of all_keys, at_least, count"),
        ("count", "count does not take such arguments"),
        ("count(0)", "n of count(n) must be a positive int, got 0"),
        ("count(1.5)", "n of count(n) must be a positive int, got 1.5"),
        ("count(1, 2)", "count does not take such arguments"),
        ("at_least(1e999)", "at_least(value) must have a finite number, got inf"),
        ("all_keys(3)", "inner of all_keys(inner) must be a condition for one key"),
        ("all_keys(all_keys)", "inner of all_keys(inner) must be a condition for one key"),
        ("3", "must not be a bare number"),
        ("count(n=3)", "a condition must be a name or a name(argument)"),
        ("-count(3)", "a condition must be a name or a name(argument)"),
        ("__import__('os')", "a condition must be a name or a name(argument)"),
        ("count(3).n", "a condition must be a name or a name(argument)"),
        ("count(3) or count(4)", "a condition must be a name or a name(argument)"),
        ("", "a condition must be a name or a name(argument)"),
        ("(" * 150, "a condition must be a name or a name(argument)"),
        ("x" * 201, "at most 200 characters"),
        (7, "a condition must be a string such as 'count(3)', got 7"),
    ],
)
def test_a_wrong_declaration_says_what_is_wrong(text: Any, said: str) -> None:
    """A wrong declaration raises ValueError with an explanation; no part of it is executed."""
    with pytest.raises(ValueError, match=re.escape(said)):
        parse(text)


async def _outcomes(condition: str, keys: list[str], signals: list[tuple[str, float | None]]) -> list[int]:
    """Return the number of operations that each signal completed."""
    async with Purgatory[ConditionalOperation]("test", clock=VirtualClock()) as purgatory:
        operation = ConditionalOperation(condition, keys, timeout=5.0)
        assert not purgatory.try_complete_else_watch(operation, operation.wanted)
        done = [signal(purgatory, key, value) for key, value in signals]
        purgatory._check()
        return done


@pytest.mark.parametrize(
    ("condition", "signals", "done"),
    [
        ("count(2)", [("a", None), ("x", None), ("b", None), ("a", None)], [0, 0, 1, 0]),
        ("at_least(10)", [("a", 9), ("b", None), ("b", 10)], [0, 0, 1]),
        ("all_keys", [("a", None), ("a", None), ("b", None)], [0, 0, 1]),
        ("all_keys(count(2))", [("a", None), ("b", None), ("b", 3), ("a", None)], [0, 0, 0, 1]),
        ("all_keys(at_least(10))", [("a", 11), ("b", 9), ("a", 1), ("b", 10.0)], [0, 0, 0, 1]),
    ],
)
async def test_a_condition_holds_with_the_signal_that_makes_it_hold(
    condition: str, signals: list[tuple[str, float | None]], done: list[int]
) -> None:
    """Each condition sees the signals on its keys, in order, and no others."""
    assert await _outcomes(condition, ["a", "b"], signals) == done


async def test_the_result_says_whether_the_condition_held() -> None:
    """The result is True on completion, and False on expiry."""
    clock = VirtualClock()
    async with Purgatory[ConditionalOperation]("test", clock=clock) as purgatory:
        held, late = ConditionalOperation("count(1)", ["a"], 1.0), ConditionalOperation("count(1)", ["b"], 1.0)
        for operation in (held, late):
            purgatory.try_complete_else_watch(operation, operation.wanted)
        signal(purgatory, "a")
        await clock.advance(1.0)
        assert (held.result(), late.result()) == (True, False)


async def test_only_reached_thresholds_are_looked_at() -> None:
    """A signal with a value does not try watchers with a higher threshold."""

    class Watched(AtLeast):
        __slots__ = ("seen",)

        def signal(self, state: Any, key: Any, value: float | None) -> Any:
            seen.append(self.value)
            return super().signal(state, key, value)

    seen: list[float] = []
    async with Purgatory[ConditionalOperation]("test", clock=VirtualClock()) as purgatory:
        for number in range(100):
            operation = ConditionalOperation(Watched(number), ["log"], 9.0)
            purgatory.try_complete_else_watch(operation, operation.wanted)
        plain = ConditionalOperation("count(1)", ["log"], 9.0)
        purgatory.try_complete_else_watch(plain, plain.wanted)
        assert signal(purgatory, "log", 2) == 4
        assert sorted(seen) == [0, 1, 2]


async def test_a_signal_from_inside_a_callback_is_seen_once() -> None:
    """A callback that signals its own key adds exactly one signal for the other operations."""
    async with Purgatory[ConditionalOperation]("test", clock=VirtualClock()) as purgatory:

        class Echo(ConditionalOperation):
            def on_complete(self) -> bool:
                assert signal(purgatory, "k") == 0, "it runs before the outermost call returns, and counts there"
                return True

        echo = Echo("count(1)", ["k"], None)
        counts = [ConditionalOperation(f"count({n})", ["k"], None) for n in (1, 2, 3)]
        for operation in (echo, *counts):
            purgatory.try_complete_else_watch(operation, operation.wanted)
        assert signal(purgatory, "k") == 3
        assert [operation.outcome for operation in counts] == [Outcome.COMPLETED, Outcome.COMPLETED, Outcome.PENDING]
        assert counts[2].seen == 2
        assert signal(purgatory, "k") == 1


async def test_a_signal_without_waiters_is_dropped() -> None:
    """Only signals after parking count."""
    async with Purgatory[ConditionalOperation]("test", clock=VirtualClock()) as purgatory:
        assert signal(purgatory, "k", 100) == 0
        operation = ConditionalOperation("at_least(1)", ["k"], 1.0)
        assert not purgatory.try_complete_else_watch(operation, operation.wanted)


@pytest.mark.parametrize("text", ["count(3)", "all_keys(count(2))", "all_keys(at_least(9))", "at_least(5)"])
async def test_what_was_seen_goes_through_json_and_on(text: str) -> None:
    """An operation that is restored from its stored state ends with the same signal."""
    signals: list[tuple[str, float]] = [("a", 9), ("b", 4), ("a", 2), ("b", 9), ("a", 9), ("b", 9)]
    expected = (await _outcomes(text, ["a", "b"], list(signals))).index(1)
    for cut in range(1, expected + 1):
        condition = parse(text)
        seen: Any = condition.begin(("a", "b"))
        for key, value in signals[:cut]:
            seen = condition.signal(seen, key, value)
        later = ConditionalOperation(text, ["a", "b"], None, seen=json.loads(json.dumps(seen)))
        async with Purgatory[ConditionalOperation]("test", clock=VirtualClock()) as purgatory:
            assert not purgatory.try_complete_else_watch(later, later.wanted)
            assert [signal(purgatory, *one) for one in signals[cut:]].index(1) == expected - cut


@pytest.mark.parametrize("text", ["count(3)", "all_keys", "all_keys(count(2))", "all_keys(at_least(9))", "at_least(9)"])
@pytest.mark.parametrize(
    "keys",
    [
        ["1", "2"],
        [1, 2],
        [1, "1"],
        [("orders", 1), ("orders", 2)],
        [None, 2.5],
        [True, "true"],
        [frozenset([1]), uuid.UUID(int=1)],
        [b"a", "\0b"],
    ],
    ids=repr,
)
async def test_the_state_of_any_keys_can_be_stored_as_json(keys: list[Any], text: str) -> None:
    """Stored after each signal and restored with the same keys, an operation ends with the same signal."""
    first, second = keys
    signals: list[tuple[Any, float]] = [(first, 9), (second, 4), (first, 2), (second, 9), (first, 9), (second, 9)]
    async with Purgatory[ConditionalOperation]("test", clock=VirtualClock()) as purgatory:
        whole = ConditionalOperation(text, keys, None)
        purgatory.try_complete_else_watch(whole, whole.wanted)
        expected = [signal(purgatory, *one) for one in signals].index(1)
    for cut in range(expected + 1):
        async with Purgatory[ConditionalOperation]("test", clock=VirtualClock()) as purgatory:
            earlier = ConditionalOperation(text, keys, None)
            purgatory.try_complete_else_watch(earlier, earlier.wanted)
            assert [signal(purgatory, *one) for one in signals[:cut]] == [0] * cut
            stored = json.dumps(earlier.seen)
        async with Purgatory[ConditionalOperation]("test", clock=VirtualClock()) as purgatory:
            later = ConditionalOperation(text, keys, None, seen=json.loads(stored))
            assert later.seen == json.loads(stored)
            assert not purgatory.try_complete_else_watch(later, later.wanted)
            assert [signal(purgatory, *one) for one in signals[cut:]].index(1) == expected - cut


@pytest.mark.parametrize(
    ("keys", "stored", "missing"),
    [
        (["a", "b"], {"b": 0}, ["b"]),
        ([1, 2], {"2": 0}, [2]),
        ([1, 2.5, True], {"1": 0, "2.5": 0}, [1, 2.5]),
        (["1", 2], {"1": 0, "2": 0}, ["1", 2]),
        ([1, "1"], {"1": 0}, ["1"]),
        (["a", b"b"], {"a": 0}, ["a"]),
    ],
)
async def test_a_state_of_an_earlier_release_is_read(keys: list[Any], stored: Any, missing: list[Any]) -> None:
    """It has a dict in which JSON has made texts of numbers."""
    async with Purgatory[ConditionalOperation]("test", clock=VirtualClock()) as purgatory:
        operation = ConditionalOperation("all_keys", keys, None, seen=stored)
        assert not purgatory.try_complete_else_watch(operation, operation.wanted)
        assert [signal(purgatory, key) for key in missing] == [0] * (len(missing) - 1) + [1]


@pytest.mark.parametrize(
    ("text", "keys", "stored", "message"),
    [
        ("count(2)", ["a"], "abc", r"^seen must be a state of count\(2\), such as 0, got 'abc'$"),
        ("count(2)", ["a"], True, r"^seen must be a state of count\(2\), such as 0, got True$"),
        ("at_least(3)", ["a"], "no", r"^seen must be a state of at_least\(3\), such as False, got 'no'$"),
        ("all_keys", ["a", "b"], {"a": "no"}, r"^seen must be a state of count\(1\), such as 0, got 'no'$"),
        ("all_keys", ["a"], {"c": 0}, r"^seen must be a state of all_keys on the keys \('a',\), got {'c': 0}$"),
        ("all_keys", [5, 6], [[5, 0]], r"^seen must be a state of all_keys on the keys \(5, 6\), got \[\[5, 0\]\]$"),
        ("all_keys", [5, 6], [[-1, 0]], r"got \[\[-1, 0\]\]$"),
        ("all_keys", [5, 6], [[[], 0]], r"got \[\[\[\], 0\]\]$"),
        ("all_keys", [5, 6], [[0]], r"got \[\[0\]\]$"),
        ("all_keys", [5, 6], 3, r"got 3$"),
    ],
)
def test_a_state_of_another_condition_or_of_other_keys_is_refused(
    text: str, keys: list[Any], stored: Any, message: str
) -> None:
    """Otherwise the operation would complete at once, never, or with an error."""
    with pytest.raises(ValueError, match=message):
        ConditionalOperation(text, keys, None, seen=stored)


def test_the_state_of_keys_that_are_texts_is_a_dict() -> None:
    """It is that of earlier releases, which read it too.  Other keys have their places in a list."""
    assert ConditionalOperation("all_keys(count(2))", ["a", "b"], None).seen == {"a": 0, "b": 0}
    operation = ConditionalOperation("all_keys(count(2))", ["a", 7, None], None)
    operation.notice("a", None)
    operation.notice("a", None)
    operation.notice(7, None)
    assert operation.seen == [[1, 1], [2, 0]]


def test_an_inner_condition_converts_its_own_state() -> None:
    """A registered condition whose state is not JSON says how it is stored, also within ``all_keys``."""

    class Distinct(Count):
        """n different values."""

        def begin(self, keys: tuple[Any, ...]) -> Any:
            return set()

        def signal(self, state: Any, key: Any, value: float | None) -> Any:
            return {*state, value}

        def holds(self, state: Any) -> bool:
            return len(state) >= self.n

        def to_json(self, state: Any, keys: tuple[Any, ...]) -> Any:
            return [keys[0], *sorted(state)]

        def from_json(self, stored: Any, keys: tuple[Any, ...]) -> Any:
            assert stored[:1] == [*keys]
            return set(stored[1:])

    for keys in (["a", "b"], [1, 2]):
        operation = ConditionalOperation(AllKeys(Distinct(2)), keys, None)
        operation.notice(keys[0], 5)
        stored = json.dumps(operation.seen)
        operation = ConditionalOperation(AllKeys(Distinct(2)), keys, None, seen=json.loads(stored))
        for key, value in ((keys[0], 5), (keys[1], 1), (keys[1], 2)):
            operation.notice(key, value)
            assert not operation.try_complete()
        operation.notice(keys[0], 6)
        assert operation.try_complete()


def test_a_number_of_another_type_leaves_a_bool() -> None:
    """A float whose comparisons return another type, as numpy's do, does not get into the state."""

    class Strange(float):
        def __ge__(self, other: float) -> Any:
            return [other] if float(self) >= other else []

    assert AtLeast(5).signal(False, "a", Strange(4)) is False
    assert AtLeast(5).signal(False, "a", Strange(5)) is True


def test_a_registered_condition_is_called_by_its_name() -> None:
    """A name belongs to one factory and is refused to another; its arguments are numbers and conditions."""

    class Majority(Condition):
        def __init__(self, of: int) -> None:
            self.of = of

        def begin(self, keys: tuple[Any, ...]) -> Any:
            return []

        def signal(self, state: Any, key: Any, value: float | None) -> Any:
            return state if key in state else [*state, key]

        def holds(self, state: Any) -> bool:
            return len(state) * 2 > self.of

    register("majority", Majority)
    register("majority", Majority)
    condition = parse("majority(3)")
    assert isinstance(condition, Majority)
    assert condition.of == 3
    assert ConditionalOperation(condition, ["a", "b", "c"], None, seen=["a"]).seen == ["a"]
    for bad in ("count", "majority"):
        with pytest.raises(ValueError, match="must not be registered yet"):
            register(bad, AllKeys)
    with pytest.raises(ValueError, match="identifier"):
        register("two words", Majority)
    with pytest.raises(TypeError, match="factory"):
        register("fine", 3)  # type: ignore[arg-type]


def test_a_name_that_was_unknown_is_known_once_registered() -> None:
    """A name that was unknown works as soon as it is registered."""
    with pytest.raises(ValueError, match="a condition must be one of"):
        parse("afterwards(2)")
    register("afterwards", Count)
    assert isinstance(parse("afterwards(2)"), Count)


@pytest.mark.parametrize("keys", [[], "bare"])
def test_keys_that_cannot_be_meant_are_refused(keys: Any) -> None:
    """Empty keys raise ValueError, and a plain text raises TypeError, as everywhere."""
    with pytest.raises((TypeError, ValueError), match="keys must"):
        ConditionalOperation("all_keys", keys, 1.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "7"])
async def test_a_value_that_is_no_finite_number_is_refused(value: Any) -> None:
    """The call raises ValueError, and no condition has been called."""
    async with Purgatory[ConditionalOperation]("test", clock=VirtualClock()) as purgatory:
        operation = ConditionalOperation("count(1)", ["k"], 1.0)
        purgatory.try_complete_else_watch(operation, operation.wanted)
        with pytest.raises(ValueError, match="finite number"):
            signal(purgatory, "k", value)
        assert operation.seen == 0


def test_a_factory_that_makes_no_condition_is_named() -> None:
    """The return value of a registered factory is checked when it is used."""
    register("makes_a_number", lambda: 3)  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match="the factory of 'makes_a_number' must return a Condition, got 3"):
        parse("makes_a_number")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TypeError("n must be odd"), "{name} does not take such arguments: TypeError: n must be odd"),
        (
            ZeroDivisionError("division by zero"),
            "{name} does not take such arguments: ZeroDivisionError: division by zero",
        ),
        (KeyError(7), "{name} does not take such arguments: KeyError: 7"),
        (RecursionError(), "{name} does not take such arguments: RecursionError"),
        (ValueError("n must be odd"), "n must be odd"),
    ],
)
def test_an_error_of_a_factory_is_a_wrong_declaration(error: Exception, said: str) -> None:
    """Whatever a registered factory raises, ``parse`` raises ValueError."""

    def factory(n: float) -> Condition:
        raise error

    name = f"raises_{type(error).__name__}"
    register(name, factory)
    with pytest.raises(ValueError, match=f"^{re.escape(said.format(name=name))}$"):
        parse(f"{name}(0)")


def test_an_operation_needs_keys() -> None:
    """Empty keys and a plain key are refused, and the error states what is expected."""
    with pytest.raises(ValueError, match="keys must contain at least one key"):
        ConditionalOperation("count(1)", [], timeout=None)
    with pytest.raises(TypeError, match=re.escape("such as ['orders-0'], got 'orders-0'")):
        ConditionalOperation("count(1)", "orders-0", timeout=None)


async def test_others_on_the_key_are_left_alone() -> None:
    """Only conditional operations see a signal; others on its key are tried, as in any check."""
    async with Purgatory[Any]("test", clock=VirtualClock()) as purgatory:
        plain, ranked = Op(ready=False), Op(ready=False)
        conditional = ConditionalOperation("at_least(5)", ["a"], timeout=None)
        counting = ConditionalOperation("count(1)", ["a"], timeout=None)
        purgatory.try_complete_else_watch(plain, ["a"])
        purgatory.try_complete_else_watch(ranked, {"a": 5})
        purgatory.try_complete_else_watch(conditional, conditional.wanted)
        purgatory.try_complete_else_watch(counting, counting.wanted)
        plain.ready = ranked.ready = True
        assert signal(purgatory, "a", 5) == 4


async def test_a_condition_that_raises_fails_its_operation() -> None:
    """An exception of a registered condition reaches its waiters, and no other operation is affected."""

    class Faulty(Count):
        def signal(self, state: Any, key: Any, value: float | None) -> Any:
            raise ZeroDivisionError(key)

    async with Purgatory[ConditionalOperation]("test", clock=VirtualClock()) as purgatory:
        faulty = ConditionalOperation(Faulty(1), ["a"], timeout=None)
        sound = ConditionalOperation("count(1)", ["a"], timeout=None)
        waiting = asyncio.create_task(purgatory.park(faulty, faulty.wanted))
        await asyncio.sleep(0)
        purgatory.try_complete_else_watch(sound, sound.wanted)
        assert signal(purgatory, "a") == 1
        assert sound.outcome is Outcome.COMPLETED
        assert faulty.outcome is Outcome.FAILED
        with pytest.raises(ZeroDivisionError, match="a"):
            await waiting


async def test_a_condition_receives_the_key_and_the_value() -> None:
    """A condition receives both, also within ``all_keys``, and also if it declares no threshold."""
    calls: list[Any] = []

    class Curious(Count):
        def begin(self, keys: tuple[Any, ...]) -> Any:
            calls.append(keys)
            return super().begin(keys)

        def signal(self, state: Any, key: Any, value: float | None) -> Any:
            calls.append((key, value))
            return super().signal(state, key, value)

    async with Purgatory[ConditionalOperation]("test", clock=VirtualClock()) as purgatory:
        for condition in (Curious(1), AllKeys(Curious(1))):
            operation = ConditionalOperation(condition, ["a", "b"], timeout=None)
            purgatory.try_complete_else_watch(operation, operation.wanted)
            signal(purgatory, "a", 7)
            signal(purgatory, "b")
            assert operation.outcome is Outcome.COMPLETED
    assert calls == [("a", "b"), ("a", 7), ("a",), ("b",), ("a", 7), ("b", None)]


async def test_a_signal_tries_no_threshold_that_is_not_reached() -> None:
    """The check uses the value of the signal, so operations with a higher threshold are not tried."""
    async with Purgatory[Any]("test", clock=VirtualClock()) as purgatory:
        below, above = Op(), Op()
        purgatory.try_complete_else_watch(below, {"a": 5})
        purgatory.try_complete_else_watch(above, {"a": 9})
        assert signal(purgatory, "a", 7) == 0
        assert [below.calls.count("try"), above.calls.count("try")] == [2, 1]
        with pytest.raises(ValueError, match=re.escape("signal(value) must have a finite number, got nan")):
            signal(purgatory, "a", float("nan"))


def test_what_is_registered_is_named() -> None:
    """The error for an unknown condition lists the registered ones, in order."""
    with pytest.raises(ValueError, match=r"must be one of .*all_keys, at_least, count"):
        parse("nothing_like_it")


def test_the_longest_declaration_there_is() -> None:
    """A declaration may have two hundred characters."""
    text = f"count({'1' * 193})"
    assert len(text) == 200
    assert isinstance(parse(text), Count)
