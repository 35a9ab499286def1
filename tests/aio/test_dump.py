"""``dump`` and ``repr``: which operations wait on which keys, since when and until when."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.testing import VirtualClock
from purgatory.types import Dump
from tests.helpers import Boom, Op


@pytest.fixture
async def purgatory(clock: VirtualClock) -> AsyncIterator[Purgatory[Any]]:
    """An open purgatory in virtual time."""
    async with Purgatory[Any]("fetch", clock=clock) as purgatory:
        yield purgatory


class Fetch(Op):
    pass


class Join(Op):
    pass


async def test_an_empty_purgatory(purgatory: Purgatory[Any]) -> None:
    """For an empty purgatory, the table is one line, and the JSON contains empty lists."""
    dump = purgatory.dump()
    assert str(dump) == "purgatory 'fetch', open, at 1000.000 s: 0 parked on 0 keys, 0 with a deadline"
    assert dump == {
        "purgatory": "fetch",
        "closed": False,
        "now": 1000.0,
        "parked": 0,
        "watched": 0,
        "keys": 0,
        "num_delayed": 0,
        "operations": [],
        "omitted": 0,
    }


async def test_everything_about_one_operation(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The dump contains the class, the keys with thresholds, whether the operation is awaited, and its times."""
    task = asyncio.ensure_future(purgatory.park(Fetch(30), {"orders-0": 1500, ("orders", 1): 7.5}))
    await clock.advance(12.5)
    (entry,) = purgatory.dump()["operations"]
    assert entry == {
        "op_id": 1,
        "kind": "Fetch",
        "operation": "<Fetch PENDING on ['orders-0', ('orders', 1)] timeout=30>",
        "keys": [{"key": "orders-0", "threshold": 1500}, {"key": "('orders', 1)", "threshold": 7.5}],
        "awaited": True,
        "since": 1000.0,
        "waited": 12.5,
        "until": 1030.0,
        "left": 17.5,
    }
    task.cancel()


async def test_without_a_deadline_or_awaiters(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Without a deadline or awaiters, the dump shows no remaining time and no awaiter."""
    purgatory.try_complete_else_watch(Fetch(None), ["key"])
    await clock.advance(1)
    (entry,) = purgatory.dump()["operations"]
    assert (entry["until"], entry["left"], entry["awaited"]) == (None, None, False)


async def test_an_operation_of_this_moment(purgatory: Purgatory[Any]) -> None:
    """A timeout of zero is a deadline, too; an operation has waited for no time when it is parked."""
    purgatory.try_complete_else_watch(Fetch(0), ["key"])
    (entry,) = purgatory.dump()["operations"]
    assert (entry["since"], entry["waited"], entry["until"]) == (1000.0, 0.0, 1000.0)


async def test_an_operation_that_a_task_awaits_itself(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """A task that awaits the operation, which another has parked, counts as an awaiter."""
    operation = Fetch(30)
    purgatory.try_complete_else_watch(operation, ["key"])
    awaiting = asyncio.ensure_future(operation)
    await asyncio.sleep(0)
    (entry,) = purgatory.dump()["operations"]
    assert entry["awaited"] is True
    awaiting.cancel()


async def test_an_extended_deadline_is_shown(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The dump shows the current deadline, not the first one."""
    operation = Fetch(5)
    purgatory.try_complete_else_watch(operation, ["key"])
    await clock.advance(2)
    operation.extend(60)
    (entry,) = purgatory.dump()["operations"]
    assert (entry["until"], entry["left"]) == (1062.0, 60.0)


async def test_the_table(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The table lists the operations in columns, the longest waiting first."""
    purgatory.try_complete_else_watch(Fetch(30), {"orders-0": 1500, "orders-1": 2_000_000})
    await clock.advance(12.3)
    purgatory.try_complete_else_watch(Join(None), ["group"])
    await clock.advance(1)
    assert str(purgatory.dump()).splitlines() == [
        "purgatory 'fetch', open, at 1013.300 s: 2 parked on 3 keys, 1 with a deadline",
        "  #  operation  on                                     has waited  ends in",
        "  1  Fetch      orders-0 >= 1500, orders-1 >= 2000000  13.300 s    16.700 s",
        "  2  Join       group                                  1.000 s     never",
    ]


async def test_the_table_is_short_and_printable(purgatory: Purgatory[Any]) -> None:
    """A key or kind neither controls the terminal, nor forges a row, nor widens the table without limit."""
    purgatory.try_complete_else_watch(Fetch(None), ["a\n  9  Fetch  forged"])
    purgatory.try_complete_else_watch(Fetch(None), {"\x1b[2J": 7})
    purgatory.try_complete_else_watch(Fetch(None), ["x" * 100_000, 10**5000])
    waiting = asyncio.ensure_future(purgatory.wait_until(lambda: False, key="key", timeout=None, kind="k\x1b" * 999))
    await asyncio.sleep(0)
    dump = purgatory.dump()
    assert dump["operations"][0]["keys"][0]["key"] == "a\n  9  Fetch  forged"
    lines = str(dump).splitlines()
    assert len(lines) == 6
    assert max(map(len, lines)) < 600
    assert all(line.isprintable() for line in lines)
    assert r"a\n  9  Fetch  forged" in lines[2]
    assert r"\x1b[2J >= 7" in lines[3]
    assert f"{'x' * 119}…, <int whose repr raised ValueError>" in lines[4]
    waiting.cancel()


async def test_more_than_the_limit(purgatory: Purgatory[Any]) -> None:
    """Above the limit, the dump lists some operations once, in order of arrival, and the number of the others."""
    for number in range(50):
        purgatory.try_complete_else_watch(Fetch(None), [2 * number, 49])  # ints, whose hashes are always the same
    for limit in (0, 1, 10, 49):
        dump = purgatory.dump(limit)
        numbers = [entry["op_id"] for entry in dump["operations"]]
        assert numbers == sorted(set(numbers))
        assert numbers == list(range(1, limit + 1))
        assert dump["omitted"] == 50 - len(numbers)
        assert str(dump).splitlines()[-1] == f"  and {50 - len(numbers)} more"
    for limit_or_none in (50, None):
        dump = purgatory.dump(limit_or_none)
        assert [entry["op_id"] for entry in dump["operations"]] == list(range(1, 51))
        assert dump["omitted"] == 0


@pytest.mark.parametrize("keys", [1, 3, 1000], ids=["hot", "few", "own"])
async def test_the_longest_waiting_are_listed(purgatory: Purgatory[Any], keys: int) -> None:
    """Above the limit, the operations listed are those that have waited longest, on many keys as on few."""
    for number in range(1000):
        key = f"key-{number % keys}"
        purgatory.try_complete_else_watch(Fetch(None), {key: 7} if number % 2 else [key])
    purgatory.check_and_complete("nothing")
    purgatory.cancel_for_key("key-4")
    dump = purgatory.dump(20)
    expected = [number for number in range(1, 30) if number != 5 or keys < 5]
    assert [entry["op_id"] for entry in dump["operations"]] == expected[:20]


@pytest.mark.parametrize("limit", [-1, 1.5, "10", True])
async def test_a_limit_is_a_number(purgatory: Purgatory[Any], limit: Any) -> None:
    """Any limit that is not a positive int or None is refused."""
    with pytest.raises(ValueError, match="limit"):
        purgatory.dump(limit)


async def test_it_is_ready_for_json(purgatory: Purgatory[Any]) -> None:
    """The dump can be serialized as JSON with any keys; plain keys are unchanged."""
    keys = ["text", 7, 1.5, True, None, ("a", 1), frozenset({1}), b"bytes"]
    for key in keys:
        purgatory.try_complete_else_watch(Fetch(1), [key])
    dump = purgatory.dump()
    assert json.loads(json.dumps(dump)) == dump
    assert [entry["keys"][0]["key"] for entry in dump["operations"]] == [
        "text", 7, 1.5, True, "None", "('a', 1)", "frozenset({1})", "b'bytes'",
    ]  # fmt: skip
    assert isinstance(dump, Dump)


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (1 << 63, "9223372036854775808"),
        (-(1 << 63) - 1, "-9223372036854775809"),
        pytest.param(10**5000, "<int whose repr raised ValueError>", id="5001 digits"),
        ((1 << 63) - 1, (1 << 63) - 1),
        (-(1 << 63), -(1 << 63)),
        (1.5e300, 1.5e300),
        (True, True),
    ],
)
async def test_a_number_that_is_not_in_json_is_shown_as_text(
    purgatory: Purgatory[Any], number: float, shown: Any
) -> None:
    """JSON has neither infinity nor NaN, and many readers accept no integer of more than 64 bits."""
    purgatory.try_complete_else_watch(Op(), [number])
    purgatory.try_complete_else_watch(Op(), [number, math.nan])
    ranked = type(number) is not bool and abs(number) < 10**400
    if ranked:
        purgatory.try_complete_else_watch(Op(), {"log": number})
    dump = purgatory.dump()
    assert json.loads(json.dumps(dump, allow_nan=False)) == dump
    places = [place for operation in dump["operations"] for place in operation["keys"]]
    assert [place["key"] for place in places[:3]] == [shown, shown, "nan"]
    if ranked:
        assert places[3] == {"key": "log", "threshold": shown}
    assert str(dump)


async def test_a_repr_that_raises_affects_its_own_line_only(purgatory: Purgatory[Any]) -> None:
    """A ``repr`` that raises affects only its own line."""

    class Bad(Op):
        def __repr__(self) -> str:
            raise Boom

    purgatory.try_complete_else_watch(Bad(), ["a"])
    purgatory.try_complete_else_watch(Fetch(), ["b"])
    assert [entry["operation"] for entry in purgatory.dump()["operations"]] == [
        "<Bad whose repr raised Boom>",
        "<Fetch PENDING on ['b'] timeout=None>",
    ]


async def test_a_class_whose_name_raises_is_shown_by_its_name(purgatory: Purgatory[Any]) -> None:
    """A metaclass may have another ``__name__``; the name in the class statement is shown."""

    class Odd(type):
        @property
        def __name__(cls) -> str:
            raise Boom

    class Order(Op, metaclass=Odd):
        pass

    purgatory.try_complete_else_watch(Order(), ["key"])
    (entry,) = purgatory.dump()["operations"]
    assert entry["kind"] == "Order"


async def test_a_dump_changes_nothing(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """A dump changes nothing, also inside a callback and on a closed purgatory."""
    seen: list[int] = []
    operation = Op(on_try=lambda _: seen.append(purgatory.dump()["parked"]))
    purgatory.try_complete_else_watch(operation, ["key"])
    purgatory.check_and_complete("key")
    assert seen == [0, 1]
    purgatory._check()
    await purgatory.aclose()
    assert str(purgatory.dump()).startswith("purgatory 'fetch', closed, at 1000.000 s: 0 parked")


async def test_reprs_show_the_state(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The ``repr`` of a purgatory, a timer, a task and an operation shows the state."""
    operation = Fetch(1.5)
    assert repr(operation) == "<Fetch PENDING timeout=1.5>"
    purgatory.try_complete_else_watch(operation, ["a", "b"])
    assert repr(purgatory) == "<Purgatory 'fetch' open parked=1 watched=2 num_delayed=1>"
    assert repr(operation) == "<Fetch PENDING on ['a', 'b'] timeout=1.5>"
    timer = repr(purgatory.timer)
    assert timer.startswith("<SystemTimer running tick_ms=1 wheel_size=20 size=1 next_expiration_ms=")
    call = purgatory.timer.call_later(1, print)
    assert repr(call).endswith("expiration_ms=1001000 scheduled=True>")
    call.cancel()
    await clock.advance(2)
    assert repr(operation) == "<Fetch EXPIRED timeout=1.5>"
    failed = Fetch(None)
    purgatory.try_complete_else_watch(failed, ["a"])
    purgatory.fail_for_key("a", Boom("why"))
    assert repr(failed) == "<Fetch FAILED timeout=None error=Boom('why')>"
