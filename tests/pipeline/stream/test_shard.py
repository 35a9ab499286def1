"""Groups that share a state: each as if it were alone."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", "4.2")

from purgatory.pipeline.stream.group import Group, OperationRecord
from purgatory.pipeline.stream.shard import Shard
from purgatory.pipeline.stream.traces import BEGIN_MS, trace

from .engines import END_MS, Rows, by_group, in_one_go, lines_of


def in_a_shard(rows: Rows, seed: int, most_ms: int) -> list[tuple[Any, ...]]:
    """All groups in one shard, cut at random times, put away as text in between; rows arrive early and disordered."""
    draw = random.Random(seed)
    rest = sorted((row for row in rows if row["kind"] != "heartbeat"), key=lambda row: row["ts_ms"])
    ends: list[tuple[Any, ...]] = []
    text = ""
    while rest:
        until_ms = rest[0]["ts_ms"] + draw.randrange(most_ms)
        arrived = [row for row in rest if row["ts_ms"] <= until_ms + 1000]
        rest = rest[len(arrived) :]
        draw.shuffle(arrived)
        shard = Shard(text)
        ends += shard.advance({name: lines_of(own) for name, own in by_group(arrived).items()}, until_ms)
        assert not shard.dead_letters
        text = shard.state()
        assert shard.live == Shard(text).live, "what is stored says how many wait"
        assert shard.next_ms() == Shard(text).next_ms()
        assert shard.next_ms() is None or shard.next_ms() > until_ms
    shard = Shard(text)
    ends += shard.advance({}, END_MS)
    assert (shard.state(), shard.live, shard.next_ms()) == ("", 0, None), "everything has ended, and something is kept"
    return sorted((name, *end) for name, end in ends)


@pytest.mark.parametrize("most_ms", [2, 300, 3000])
def test_groups_in_one_shard_end_as_each_by_itself(most_ms: int) -> None:
    """Put away and taken up again at any time, sixty groups in one state come to the ends of sixty groups alone."""
    rows = trace(200 + most_ms, 60, every_kind=True)
    assert in_a_shard(rows, most_ms, most_ms) == in_one_go(rows)


def park(group: str, ts_ms: int, op_id: str = "a", **more: Any) -> dict[str, Any]:
    return {
        "kind": "park", "ts_ms": ts_ms, "group": group, "op_id": op_id, "keys": ["k"], "condition": "count(1)", **more
    }  # fmt: skip


def sign(group: str, ts_ms: int, key: str = "k") -> dict[str, Any]:
    return {"kind": "signal", "ts_ms": ts_ms, "group": group, "key": key}


def rows_by_group(*rows: dict[str, Any]) -> dict[str, list[str]]:
    return {name: lines_of(own) for name, own in by_group(list(rows)).items()}


def test_a_signal_reaches_its_own_group_only() -> None:
    """Two groups with the same key and the same operation name do not know one another."""
    shard = Shard()
    assert shard.advance(rows_by_group(park("g", 1), park("h", 1), sign("g", 5)), 10) == [
        ("g", OperationRecord("a", "completed", 1, 5, None))
    ]
    assert shard.live == 1
    again = Shard(shard.state())
    assert again.advance(rows_by_group(sign("h", 11)), 20) == [("h", OperationRecord("a", "completed", 1, 11, None))]


def test_a_group_in_which_nothing_happens_is_passed_on_as_it_is() -> None:
    """The text of a group that is not due is the same afterwards, to the letter."""
    shard = Shard()
    shard.advance(rows_by_group(park("quiet", 1, timeout_ms=10**6), park("busy", 1, timeout_ms=5)), 2)
    (quiet,) = [text for text in shard.state().split("\x1e") if '"quiet"' in text]
    again = Shard(shard.state())
    assert [end.op_id for _, end in again.advance({}, 10)] == ["a"]
    assert again.state() == quiet


def test_rows_that_are_too_early_are_kept_beside_those_that_were() -> None:
    """A group that is not due takes in more rows and says when the earliest of all happens."""
    shard = Shard()
    assert shard.advance(rows_by_group(sign("g", 500), sign("h", 900)), 100) == []
    assert shard.next_ms() == 500
    again = Shard(shard.state())
    assert again.advance(rows_by_group(park("g", 400), park("h", 1000)), 200) == []
    assert again.next_ms() == 400
    last = Shard(again.state())
    ends = last.advance({}, 2000)
    assert ends == [("g", OperationRecord("a", "completed", 400, 500, None))]
    assert (last.live, last.parked, last.next_ms()) == (1, 2, None)


def test_what_cannot_be_handled_is_told_by_group() -> None:
    """A row that is too late for its group, and one with an unknown condition."""
    shard = Shard()
    shard.advance(rows_by_group(park("g", 100)), 200)
    again = Shard(shard.state())
    again.advance(rows_by_group(sign("g", 150), park("h", 250, condition="sorcery(1)")), 300)
    assert sorted((name, dead.reason.split(":")[0]) for name, dead in again.dead_letters) == [
        ("g", "the row is too late"),
        ("h", "condition"),
    ]
    assert again.live == 1


def test_a_state_of_an_earlier_version_is_continued() -> None:
    """A text that was stored before there were rows for moved deadlines and failures: such rows apply to it."""
    stored = (
        '"g"\x1f100\x1f500\x1f2\x1f[["a","count(1)",["k"],10,1010,0],["b","at_least(50)",["k","m"],20,null,false]]'
        '\x1f500 {"kind": "signal", "ts_ms": 500, "group": "g", "key": "other"}'
    )
    shard = Shard(stored)
    assert shard.live == 2
    rows = rows_by_group(
        {"kind": "extend", "ts_ms": 600, "group": "g", "op_id": "a", "deadline_ms": 700},
        {"kind": "fail", "ts_ms": 800, "group": "g", "key": "m", "error": "LeaderChanged"},
    )
    assert shard.advance(rows, 1000) == [
        ("g", OperationRecord("a", "expired", 10, 700, 700)),
        ("g", OperationRecord("b", "failed", 20, 800, None, "LeaderChanged")),
    ]
    assert (shard.state(), shard.dead_letters) == ("", [])


def test_rows_with_a_key_end_operations_of_their_own_group_only() -> None:
    """Two groups with the same key: a failure and a cancellation in one do not reach the other."""
    shard = Shard()
    fail = {"kind": "fail", "ts_ms": 5, "group": "g", "key": "k", "error": "gone"}
    cancel = {"kind": "cancel", "ts_ms": 6, "group": "h", "key": "k"}
    ended = shard.advance(rows_by_group(park("g", 1), park("h", 1), park("i", 1), fail, cancel), 10)
    assert [(name, end.outcome) for name, end in ended] == [("g", "failed"), ("h", "cancelled")]
    assert shard.live == 1


TEXT = st.text(min_size=1, max_size=6)


@given(st.lists(st.tuples(TEXT, TEXT, st.lists(TEXT, min_size=1, max_size=3)), max_size=6))
def test_any_names_survive_being_put_away(named: list[tuple[str, str, list[str]]]) -> None:
    """Groups, operations and keys of any characters, the separators of the text among them, come back as they were."""
    rows = [
        park(f"{group}", BEGIN_MS, f"{number}{op_id}", keys=keys, condition="all_keys", timeout_ms=number + 5)
        for number, (group, op_id, keys) in enumerate(named)
    ]
    early = [sign(group, BEGIN_MS + 10**6, keys[0]) for group, _, keys in named]
    shard = Shard()
    assert shard.advance(rows_by_group(*rows, *early), BEGIN_MS) == []
    again = Shard(shard.state())
    assert again.live == len(rows)
    ends = again.advance({}, BEGIN_MS + 10**7)
    assert sorted((name, end.op_id) for name, end in ends) == sorted((row["group"], row["op_id"]) for row in rows)
    assert again.state() == ""


def test_a_group_alone_says_the_same_as_in_a_shard() -> None:
    """What is stored of a group in a shard is what the group stores by itself."""
    rows = [park("g", 5, timeout_ms=99), park("g", 7, "b"), sign("g", 500)]
    alone = Group("g")
    alone.add(lines_of(rows))
    alone.advance(50)
    shard = Shard()
    shard.advance({"g": lines_of(rows)}, 50)
    assert shard.state().split("\x1f")[-2:] == list(alone.state())
    assert json.loads(alone.state()[0])[0][0] == "a"
