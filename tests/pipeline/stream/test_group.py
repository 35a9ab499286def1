"""What happens in a group, and when."""

import json
import re
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark", "4.2")

import pyarrow as pa

from purgatory import conditions
from purgatory.pipeline.stream.batch import process_groups
from purgatory.pipeline.stream.group import Group, OperationRecord, encode_line
from purgatory.pipeline.stream.input_rows import LAST_MS, BadRow, parse_json_row, parse_row


def park(ts_ms: int, op_id: str = "a", seq: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "kind": "park", "ts_ms": ts_ms, "seq": seq, "group": "g", "op_id": op_id, "keys": ["k"],
        "condition": "count(1)", **more,
    }  # fmt: skip


def sign(ts_ms: int, seq: int = 0, key: str = "k", **more: Any) -> dict[str, Any]:
    return {"kind": "signal", "ts_ms": ts_ms, "seq": seq, "group": "g", "key": key, **more}


def happen(*rows: dict[str, Any], until_ms: int = 10**6) -> list[tuple[str, str, int]]:
    group = Group("g")
    group.add(encode_line(row["ts_ms"], json.dumps(row)) for row in rows)
    ends = group.advance(until_ms)
    assert not group.dead_letters
    return [(end.op_id, end.outcome, end.finished_ms or 0) for end in ends]


def test_a_deadline_comes_before_a_signal_of_the_same_millisecond() -> None:
    """At its deadline an operation has run out of time, whatever happens in that millisecond."""
    assert happen(park(100, timeout_ms=50), sign(150)) == [("a", "expired", 150)]
    assert happen(park(100, timeout_ms=50), sign(149)) == [("a", "completed", 149)]


def test_rows_of_one_millisecond_happen_in_the_order_of_their_numbers() -> None:
    """A signal that is numbered before the park of its millisecond is not seen, one behind it is."""
    assert happen(sign(100, seq=1), park(100, seq=2, timeout_ms=9)) == [("a", "expired", 109)]
    assert happen(sign(100, seq=3), park(100, seq=2, timeout_ms=9)) == [("a", "completed", 100)]


def test_an_operation_without_any_time_ends_before_the_next_row_of_its_millisecond() -> None:
    """A timeout of zero and a deadline that has passed are due at once, also under the rows of the same millisecond."""
    assert happen(park(100, timeout_ms=0), sign(100, seq=1)) == [("a", "expired", 100)]
    assert happen(park(100, deadline_ms=7), sign(100, seq=1)) == [("a", "expired", 100)]


def test_equal_deadlines_end_in_the_order_of_parking() -> None:
    """Two that fall due in one millisecond end as they came, whichever had the longer timeout."""
    ends = happen(park(100, "late", deadline_ms=500), park(200, "soon", deadline_ms=500))
    assert ends == [("late", "expired", 500), ("soon", "expired", 500)]


def test_a_signal_completes_those_who_wait_in_the_order_of_parking() -> None:
    """One signal, three watchers: they end in the order of arrival, in its millisecond."""
    ends = happen(park(1, "x"), park(2, "y"), park(3, "z"), sign(9))
    assert ends == [("x", "completed", 9), ("y", "completed", 9), ("z", "completed", 9)]


def test_a_withdrawn_operation_ends_cancelled_and_a_second_time_nothing_happens() -> None:
    """A cancel row ends what waits; one for an operation that has ended or never was changes nothing."""
    cancel = {"kind": "cancel", "group": "g", "op_id": "a"}
    ends = happen(park(1), {**cancel, "ts_ms": 5}, {**cancel, "ts_ms": 6}, {**cancel, "ts_ms": 7, "op_id": "nobody"})
    assert ends == [("a", "cancelled", 5)]


def extend(ts_ms: int, op_id: str = "a", **more: Any) -> dict[str, Any]:
    return {"kind": "extend", "ts_ms": ts_ms, "group": "g", "op_id": op_id, **more}


def fail(ts_ms: int, **more: Any) -> dict[str, Any]:
    return {"kind": "fail", "ts_ms": ts_ms, "group": "g", "error": "gone", **more}


def records(*rows: dict[str, Any], until_ms: int = 10**6) -> list[OperationRecord]:
    group = Group("g")
    group.add(encode_line(row["ts_ms"], json.dumps(row)) for row in rows)
    ends = group.advance(until_ms)
    assert not group.dead_letters
    return ends


@pytest.mark.parametrize(
    ("moved", "deadline_ms"),
    [
        ({"deadline_ms": 900}, 900),
        ({"deadline_ms": 140}, 140),
        ({"timeout_ms": 500}, 620),
        ({"timeout_ms": 0}, 120),
        ({"deadline_ms": 120}, 120),
        ({"deadline_ms": 7}, 120),
        ({"deadline_ms": -7}, 120),
    ],
)
def test_a_moved_deadline_is_kept_to_the_millisecond(moved: dict[str, Any], deadline_ms: int) -> None:
    """Later, earlier, now, and in the past, which is now: the operation expires at the new deadline, never before."""
    rows = [park(100, timeout_ms=50), extend(120, **moved)]
    assert records(*rows) == [OperationRecord("a", "expired", 100, deadline_ms, deadline_ms)]
    assert records(*rows, until_ms=deadline_ms - 1) == []
    if deadline_ms > 120:
        ends = records(*rows, sign(deadline_ms - 1))
        assert ends == [OperationRecord("a", "completed", 100, deadline_ms - 1, deadline_ms)]
        assert records(*rows, sign(deadline_ms)) == records(*rows)


def test_a_deadline_can_be_removed_and_set_again() -> None:
    """Without a time, ``extend`` removes the deadline, as ``park`` without one has none."""
    assert records(park(100, timeout_ms=50), extend(120)) == []
    ends = records(park(100, timeout_ms=50), extend(120), sign(9999))
    assert ends == [OperationRecord("a", "completed", 100, 9999, None)]
    ends = records(park(100), extend(120, timeout_ms=30), extend(130), extend(140, deadline_ms=170))
    assert ends == [OperationRecord("a", "expired", 100, 170, 170)]


def test_a_deadline_that_has_passed_is_not_moved_any_more() -> None:
    """A row at the deadline comes too late, as a signal does; one before it, in the millisecond of the park, counts."""
    assert happen(park(100, timeout_ms=50), extend(150, timeout_ms=50)) == [("a", "expired", 150)]
    assert happen(park(100, timeout_ms=50), extend(149, timeout_ms=50)) == [("a", "expired", 199)]
    assert happen(park(100, seq=1, timeout_ms=0), extend(100, seq=2, timeout_ms=50)) == [("a", "expired", 100)]
    assert happen(park(100, seq=1, timeout_ms=9), extend(100, seq=2, timeout_ms=50)) == [("a", "expired", 150)]


def test_an_operation_whose_deadline_is_moved_into_the_past_ends_before_the_next_row() -> None:
    """Also before a row of the same millisecond."""
    ends = happen(park(100, timeout_ms=50), extend(120, seq=1, deadline_ms=110), sign(120, seq=2))
    assert ends == [("a", "expired", 120)]


def test_rows_for_an_operation_that_does_not_wait_have_no_effect() -> None:
    """Before it parks, after it has ended, and if it never was: nothing happens, and there is no dead letter."""
    more = {"op_id": "nobody"}
    others = [extend(1, timeout_ms=9), fail(2, op_id="a"), extend(51, deadline_ms=99), fail(52, op_id="a")]
    others += [extend(20, **more), fail(21, **more), fail(22, key="nobody"), cancel(23, key="nobody")]
    assert records(park(10), sign(50), *others) == [OperationRecord("a", "completed", 10, 50, None)]


def cancel(ts_ms: int, **more: Any) -> dict[str, Any]:
    return {"kind": "cancel", "ts_ms": ts_ms, "group": "g", **more}


def test_a_failed_operation_has_the_text_of_the_row_as_its_error() -> None:
    """Unchanged, whatever its characters."""
    text = "NotLeader: \n\x1e 领导者"
    ends = records(park(1, timeout_ms=99), park(2, "b"), fail(5, op_id="a", error=text), sign(9))
    assert ends == [
        OperationRecord("a", "failed", 1, 5, 100, text),
        OperationRecord("b", "completed", 2, 9, None),
    ]


@pytest.mark.parametrize(("row", "outcome"), [(fail(5, key="k"), "failed"), (cancel(5, key="k"), "cancelled")])
def test_a_row_with_a_key_ends_every_operation_on_it_in_the_order_of_parking(row: dict[str, Any], outcome: str) -> None:
    """With one key, several keys or a threshold; operations on other keys, and those that park later, wait on."""
    rows = [
        park(1, "x", condition="at_least(7)"),
        park(2, "y", keys=["m", "k"], condition="all_keys"),
        park(3, "z"),
        park(4, "other", keys=["m"]),
        park(6, "later"),
    ]
    assert happen(*rows, row) == [("x", outcome, 5), ("y", outcome, 5), ("z", outcome, 5)]
    assert happen(*rows, row, sign(7, key="m"))[3:] == [("other", "completed", 7)]


@pytest.mark.parametrize(("row", "outcome"), [(fail(5), "failed"), (cancel(5), "cancelled")])
def test_a_row_with_an_operation_and_a_key_is_for_that_operation_only(row: dict[str, Any], outcome: str) -> None:
    """The key of a ``cancel`` row had no effect before there were rows with a key only, and has none beside op_id."""
    assert happen(park(1), park(2, "b"), {**row, "op_id": "a", "key": "k"}) == [("a", outcome, 5)]


def test_a_deadline_comes_before_a_failure_of_the_same_millisecond() -> None:
    """The operation has expired when the row takes effect."""
    assert happen(park(1, timeout_ms=4), fail(5, op_id="a")) == [("a", "expired", 5)]


@pytest.mark.parametrize("stored_at_ms", [None, 3, 30, 60])
def test_equal_deadlines_end_in_the_order_of_parking_also_if_they_were_moved(stored_at_ms: int | None) -> None:
    """Moved to the same deadline from an earlier and a later one; the group may have been stored in between."""
    rows = [park(1, "x", timeout_ms=50), park(2, "y", timeout_ms=99), park(2, "z", seq=1, deadline_ms=500)]
    rows += [extend(10, "z", deadline_ms=80), extend(11, "y", deadline_ms=80), extend(12, "x", deadline_ms=80)]
    group = Group("g")
    group.add(encode_line(row["ts_ms"], json.dumps(row)) for row in rows)
    if stored_at_ms is not None:
        assert group.advance(stored_at_ms) == []
        group = Group("g", group.clock_ms, *group.state())
    assert [(end.op_id, end.finished_ms) for end in group.advance(500)] == [("x", 80), ("y", 80), ("z", 80)]


def test_a_moved_deadline_is_stored_and_is_the_next_event() -> None:
    """What is stored has the new deadline; the operation that waits is shown with it."""
    group = Group("g")
    rows = [park(100, timeout_ms=50), extend(120, deadline_ms=10**6)]
    group.add(encode_line(row["ts_ms"], json.dumps(row)) for row in rows)
    assert group.advance(130) == []
    assert group.next_ms() == 10**6
    again = Group("g", group.clock_ms, *group.state())
    assert again.next_ms() == 10**6
    assert again.pending() == [OperationRecord("a", "pending", 100, None, 10**6)]
    assert again.advance(10**6) == [OperationRecord("a", "expired", 100, 10**6, 10**6)]


def test_a_deadline_that_is_moved_years_ahead_is_exact() -> None:
    """It does not go through seconds as a float, which would round the last millisecond of the year 9999."""
    assert happen(park(77), extend(78, deadline_ms=LAST_MS), until_ms=LAST_MS) == [("a", "expired", LAST_MS)]


def test_rows_with_the_same_time_and_number_have_one_order() -> None:
    """Their content determines it: failures and moved deadlines handed in backwards give the same ends."""
    rows = [park(1, "a"), park(1, "b"), fail(5, op_id="a", error="y"), fail(5, op_id="a", error="x"), fail(5, key="k")]
    rows += [extend(5, deadline_ms=9), extend(5, deadline_ms=8), extend(5), cancel(5, key="m"), cancel(5, op_id="c")]
    assert records(*rows) == records(*reversed(rows)) != []
    rows = [park(1, "a"), park(2, "b"), cancel(5, op_id="b"), cancel(5, key="k")]
    assert [end.op_id for end in records(*rows)] == [end.op_id for end in records(*reversed(rows))] == ["a", "b"]


def test_the_order_of_arrival_does_not_matter() -> None:
    """Rows handed in backwards, and numbered alike, give the ends of rows handed in forwards."""
    rows = [
        park(5, "b", timeout_ms=7),
        park(5, "a", timeout_ms=7),
        sign(6),
        sign(6, key="x"),
        park(6, "c", timeout_ms=1),
    ]
    assert happen(*rows) == happen(*reversed(rows))


def test_nothing_happens_before_its_time() -> None:
    """A row after the watermark is kept, and so is who waits; the next time to look is the earliest of both."""
    group = Group("g")
    group.add([encode_line(100, json.dumps(park(100, timeout_ms=50))), encode_line(130, json.dumps(sign(130)))])
    assert group.next_ms() == 100
    assert group.advance(120) == []
    assert (group.live, group.next_ms(), group.clock_ms) == (1, 130, 120)
    again = Group("g", group.clock_ms, *group.state())
    assert again.advance(130) == [OperationRecord("a", "completed", 100, 130, 150)]
    assert (again.live, again.next_ms(), again.state()) == (0, None, ("", ""))


def test_what_waits_without_a_deadline_asks_for_no_time() -> None:
    """With nobody but an operation that waits without end there is no time to come back at."""
    group = Group("g")
    group.add([encode_line(100, json.dumps(park(100)))])
    group.advance(100)
    assert (group.live, group.next_ms()) == (1, None)
    assert [end.outcome for end in group.pending()] == ["pending"]


def test_an_identity_that_waits_already_is_a_dead_letter_and_one_that_has_ended_is_free() -> None:
    """A second park under the same name is refused while the first waits, and leaves it alone."""
    group = Group("g")
    rows = [park(1, timeout_ms=10), park(2, timeout_ms=99), park(20, timeout_ms=5)]
    group.add(encode_line(row["ts_ms"], json.dumps(row)) for row in rows)
    assert [(end.parked_ms, end.finished_ms) for end in group.advance(50)] == [(1, 11), (20, 25)]
    assert [dead.reason for dead in group.dead_letters] == ["operation 'a' is already waiting"]


def test_a_row_from_before_the_groups_time_is_a_dead_letter() -> None:
    """A row that is too late for its group is returned as a dead letter and changes nothing."""
    group = Group("g", clock_ms=500)
    group.add([encode_line(500, json.dumps(sign(500)))])
    assert group.advance(600) == []
    assert "too late" in group.dead_letters[0].reason


def test_a_condition_that_raises_fails_its_operation_alone() -> None:
    """A registered condition with a fault ends its own operation as failed, with the reason; the others go on."""

    class Faulty(conditions.Count):
        def signal(self, state: Any, key: Any, value: float | None) -> Any:
            raise RuntimeError("no idea")

    conditions.register("faulty_in_signal", Faulty)
    group = Group("g")
    rows = [park(1, "bad", condition="faulty_in_signal(1)"), park(2, "good"), sign(3)]
    group.add(encode_line(row["ts_ms"], json.dumps(row)) for row in rows)
    ends = {end.op_id: (end.outcome, end.error) for end in group.advance(9)}
    assert ends == {"bad": ("failed", "RuntimeError: no idea"), "good": ("completed", None)}


class _Begin(conditions.Count):
    def begin(self, keys: tuple[Any, ...]) -> Any:
        raise LookupError("three keys at least")


class _Threshold(conditions.Count):
    def threshold(self) -> float | None:
        raise RuntimeError("no idea")


class _Decimal(conditions.Count):
    def threshold(self) -> float | None:
        return Decimal(self.n)  # type: ignore[return-value]


class _Holds(conditions.Count):
    def holds(self, state: Any) -> bool:
        raise ValueError("\ud800")


class _Unprintable(conditions.Count):
    def holds(self, state: Any) -> bool:
        class Silent(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        raise Silent


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (_Begin, "LookupError: three keys at least"),
        (_Threshold, "RuntimeError: no idea"),
        (_Decimal, "TypeError: the threshold for key ('g', 'k') must be an int or a float, got Decimal('1')"),
        (_Holds, "ValueError: \\ud800"),
        (_Unprintable, "Silent: <Silent whose str raised RuntimeError>"),
    ],
)
def test_an_operation_whose_condition_raises_as_it_parks_fails_alone(kind: Any, error: str) -> None:
    """It ends at the time of its row, and neither its name nor its key is kept."""
    name = f"faulty{kind.__name__.lower()}"
    conditions.register(name, kind)
    group = Group("g")
    rows = [
        park(1, "good", timeout_ms=90),
        park(2, "bad", condition=f"{name}(1)", timeout_ms=50),
        park(3, "bad", timeout_ms=2),
        park(4, "other", timeout_ms=90),
        sign(7),
    ]
    group.add(encode_line(row["ts_ms"], json.dumps(row)) for row in rows)
    assert group.advance(2) == [OperationRecord("bad", "failed", 2, 2, 52, error)]
    assert (group.parked, group.live) == (2, 1)
    assert [(end.op_id, end.outcome, end.finished_ms) for end in group.advance(9)] == [
        ("bad", "expired", 5), ("good", "completed", 7), ("other", "completed", 7),
    ]  # fmt: skip
    assert (group.parked, group.live, group.state(), group.dead_letters) == (4, 0, ("", ""), [])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
        (KeyError(7), "KeyError: 7"),
        (ValueError("n must be odd"), "n must be odd"),
        (ValueError("\ud800"), "\\ud800"),
    ],
)
def test_a_row_whose_condition_cannot_be_made_is_a_dead_letter(error: Exception, said: str) -> None:
    """Whatever its factory raises."""

    def factory(n: int) -> conditions.Condition:
        raise error

    name = f"not_made_{type(error).__name__}_{len(str(error))}"
    conditions.register(name, factory)
    group = Group("g")
    rows = [park(1, "bad", condition=f"{name}(0)"), park(2, "good"), sign(3)]
    group.add(encode_line(row["ts_ms"], json.dumps(row)) for row in rows)
    assert [(end.op_id, end.outcome) for end in group.advance(9)] == [("good", "completed")]
    (dead,) = group.dead_letters
    assert dead.reason.startswith("condition: ")
    assert dead.reason.endswith(said)


@pytest.mark.parametrize("method", ["to_json", "from_json"])
def test_an_error_of_a_method_that_stores_or_restores_loses_no_operation(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reaches the caller; once the method is corrected, the same portion of rows gives every outcome."""

    class Stored(conditions.Count):
        pass

    name = f"stored_{method}"
    conditions.register(name, Stored)
    first = Group("g")
    first.add(encode_line(ts_ms, json.dumps(park(ts_ms, f"o{ts_ms}", condition=f"{name}(2)"))) for ts_ms in (1, 2))
    first.add([encode_line(3, json.dumps(sign(3)))])
    assert first.advance(4) == []

    def faulty(*_: Any) -> Any:
        raise LookupError("no such state")

    def go_on() -> list[tuple[str, str, int | None]]:
        again = Group("g", 4, *first.state())
        again.add([encode_line(5, json.dumps(sign(5)))])
        return [(end.op_id, end.outcome, end.finished_ms) for end in again.advance(9)]

    with monkeypatch.context() as patch:
        patch.setattr(Stored, method, faulty)
        with pytest.raises(LookupError, match="no such state"):
            go_on()
    assert go_on() == [("o1", "completed", 5), ("o2", "completed", 5)]


def test_a_state_that_is_not_json_is_named() -> None:
    """A condition that keeps a set, for example, and does not convert it."""

    class Keys(conditions.Count):
        def begin(self, keys: tuple[Any, ...]) -> Any:
            return set(keys)

        def holds(self, state: Any) -> bool:
            return not state

    conditions.register("keys_in_a_set", Keys)
    group = Group("g")
    group.add([encode_line(1, json.dumps(park(1, condition="keys_in_a_set(1)")))])
    assert group.advance(5) == []
    with pytest.raises(TypeError, match=r"the state of a condition must consist of JSON values, got \{'k'\}"):
        group.state()


def test_long_waits_are_exact_to_the_millisecond() -> None:
    """A deadline years ahead does not go through seconds as a float."""
    until_ms = 250_000_000_000_123
    assert happen(park(77, deadline_ms=until_ms), until_ms=until_ms) == [("a", "expired", until_ms)]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kind": "parc"}, "kind must be one of park, extend, signal, cancel, fail, heartbeat, got 'parc'"),
        ({"ts_ms": 0}, "ts_ms must be a time in milliseconds since 1970"),
        ({"ts_ms": 1.5}, "ts_ms must be an int, got 1.5"),
        ({"ts_ms": True}, "ts_ms must be an int, got True"),
        ({"seq": "7"}, "seq must be an int"),
        ({"group": None}, "group must be a string, got None"),
        ({"group": ""}, "group must be a string, got ''"),
        ({"group": 7}, "group must be a string, got 7"),
        ({"group": ["x"]}, "group must be a string, got ['x']"),
        ({"op_id": ""}, "op_id must be a string"),
        ({"keys": "k"}, "keys must be a list of at least one string, got 'k'"),
        ({"keys": []}, "keys must be a list of at least one string"),
        ({"keys": [1]}, "keys must be a list of at least one string"),
        ({"condition": "cuont(1)"}, "condition: a condition must be one of "),
        ({"condition": None}, "condition must be a string"),
        ({"timeout_ms": -1}, "timeout_ms must be at least 0, got -1"),
        ({"timeout_ms": 5, "deadline_ms": 5}, "the row must have timeout_ms or deadline_ms, got both"),
        ({"timeout_ms": LAST_MS}, "the deadline must be before the year 10000"),
        ({"kind": "signal"}, "key must be a string, got None"),
        ({"kind": "signal", "key": "k", "value": "NaN"}, "value must be a finite number, got 'NaN'"),
        ({"kind": "signal", "key": "k", "value": float("inf")}, "value must be a finite number"),
        ({"kind": "cancel", "op_id": None}, "the row must have op_id or key, got neither"),
        ({"kind": "cancel", "op_id": ""}, "op_id must be a string, got ''"),
        ({"kind": "cancel", "op_id": None, "key": ""}, "key must be a string, got ''"),
        ({"kind": "cancel", "op_id": None, "key": 7}, "key must be a string, got 7"),
        ({"kind": "extend", "op_id": None}, "op_id must be a string, got None"),
        ({"kind": "extend", "deadline_ms": 1.5}, "deadline_ms must be an int, got 1.5"),
        ({"kind": "extend", "deadline_ms": "soon"}, "deadline_ms must be an int, got 'soon'"),
        ({"kind": "extend", "deadline_ms": LAST_MS + 1}, "the deadline must be before the year 10000"),
        ({"kind": "extend", "timeout_ms": -1}, "timeout_ms must be at least 0, got -1"),
        ({"kind": "extend", "timeout_ms": 5, "deadline_ms": 5}, "must have timeout_ms or deadline_ms, got both"),
        (
            {"kind": "fail", "error": "x", "op_id": None},
            "the row must have op_id or key, got neither",
        ),
        ({"kind": "fail", "error": "x", "op_id": 7}, "op_id must be a string, got 7"),
        ({"kind": "fail", "error": "x", "op_id": None, "key": ""}, "key must be a string, got ''"),
        ({"kind": "fail"}, "error must be a string, got None"),
        ({"kind": "fail", "error": ""}, "error must be a string, got ''"),
        ({"kind": "fail", "error": 503}, "error must be a string, got 503"),
    ],
)
def test_an_invalid_row_is_refused_with_the_reason(changed: dict[str, Any], said: str) -> None:
    """Each reason names the column, what it must be, and what it is."""
    with pytest.raises(BadRow, match=re.escape(said)):
        parse_row({**park(100), **changed})


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (park(5, "\ud800"), "op_id must be a string of valid Unicode, got '\\ud800'"),
        (park(5, keys=["\udc00"]), "keys must be a list of at least one string of valid Unicode, got ['\\udc00']"),
        (sign(5, group="\ud800"), "group must be a string of valid Unicode, got '\\ud800'"),
        (sign(5, key="a\ud800"), "key must be a string of valid Unicode, got 'a\\ud800'"),
        (fail(5, op_id="a", error="\ud800"), "error must be a string of valid Unicode, got '\\ud800'"),
    ],
)  # fmt: skip
def test_half_of_a_character_makes_a_row_invalid(row: dict[str, Any], said: str) -> None:
    """JSON can contain one half of a surrogate pair, which no file and no message can: the row is a dead letter, and
    every record can be written."""
    (dead,) = process_groups({"g": [encode_line(5, json.dumps(row))]}, 9)
    assert dead[7] == said
    assert dead[8] == json.dumps(row)
    pa.array(dead[7:9])


def test_a_heartbeat_needs_no_group() -> None:
    """It has only a time, whatever else is in the row."""
    for more in ({}, {"group": None}, {"group": 7}):
        assert parse_row({"kind": "heartbeat", "ts_ms": 5, **more}).ts_ms == 5


def test_a_character_beyond_the_first_plane_is_valid() -> None:
    """JSON has it as a pair of surrogates."""
    face = "\U0001f600"
    assert happen(park(3, face, keys=[face]), sign(5, key=face)) == [(face, "completed", 5)]


@pytest.mark.parametrize("kind", ["extend", "fail"])
def test_a_bad_row_of_the_other_kinds_changes_nothing(kind: str) -> None:
    """It is a dead letter; the operation that it is for keeps its deadline and its outcome."""
    group = Group("g")
    bad = {"kind": kind, "ts_ms": 5, "group": "g", "op_id": "a", "deadline_ms": "now"}
    group.add(encode_line(row["ts_ms"], json.dumps(row)) for row in (park(3, timeout_ms=9), bad))
    assert group.advance(99) == [OperationRecord("a", "expired", 3, 12, 12)]
    (dead,) = group.dead_letters
    assert dead.text == json.dumps(bad)
    assert " must be " in dead.reason


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "[" * 100_000])
def test_what_is_no_json_object_is_a_bad_row(text: str) -> None:
    """Anything may be in a queue; none of it gets further than the reader."""
    with pytest.raises(BadRow):
        parse_json_row(text)


def test_a_bad_row_is_a_dead_letter_with_its_text_and_the_rest_goes_on() -> None:
    """The text is kept to the letter, so that it can be mended and sent again."""
    group = Group("g")
    text = json.dumps(sign(5, key=""))
    group.add([encode_line(3, json.dumps(park(3))), encode_line(5, text), encode_line(6, json.dumps(sign(6)))])
    assert len(group.advance(9)) == 1
    assert [(dead.text, dead.reason) for dead in group.dead_letters] == [(text, "key must be a string, got ''")]
