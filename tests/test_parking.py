"""Parking and checking: who is tried when, what is counted, what is refused."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from purgatory import (
    Observer,
    Outcome,
    Purgatory,
    PurgatoryClosed,
    PurgatoryError,
    PurgatoryFull,
    SystemTimer,
    TimerTask,
)
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, Recorder, check


@pytest.fixture
async def purgatory(clock: VirtualClock) -> Any:
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        yield purgatory
        purgatory._check()


async def test_an_operation_that_is_complete_never_waits(purgatory: Purgatory[Op]) -> None:
    """One try, no watch, no timer; it counts as immediate and completed."""
    op = Op(5, ready=True)
    assert purgatory.try_complete_else_watch(op, ["a", "b"])
    assert op.calls == ["try", "complete"]
    check(purgatory, parked=0, watched=0, num_delayed=0, submitted=1, immediate=1, completed=1)
    assert purgatory.timer.size == 0


async def test_an_operation_may_complete_itself_as_in_kafka(purgatory: Purgatory[Op]) -> None:
    """try_complete may call force_complete and return what it says."""

    class Kafka(Op):
        def try_complete(self) -> bool:
            self.calls.append("try")
            return self.ready and self.force_complete()

    now, later = Kafka(5, ready=True), Kafka(5)
    assert purgatory.try_complete_else_watch(now, ["a"])
    assert not purgatory.try_complete_else_watch(later, ["a"])
    later.ready = True
    assert purgatory.check_and_complete("a") == 1
    assert (now.completions, later.completions) == (1, 1)
    check(purgatory, parked=0, completed=2, immediate=1)


async def test_an_operation_that_completed_itself_and_says_no_is_complete(purgatory: Purgatory[Op]) -> None:
    """The outcome counts, not what try_complete returns after force_complete."""
    op = Op(5, on_try=lambda op: op.force_complete())
    assert purgatory.try_complete_else_watch(op, ["a"])
    check(purgatory, parked=0, completed=1)


async def test_one_try_is_enough(purgatory: Purgatory[Op]) -> None:
    """The condition is evaluated once when it is handed over, where Kafka needs two tries."""
    op = Op(5)
    assert not purgatory.try_complete_else_watch(op, ["a", "b", "c"])
    assert op.calls == ["try"]
    check(purgatory, parked=1, watched=3, num_delayed=1)


async def test_the_next_check_on_any_key_tries_it(purgatory: Purgatory[Op]) -> None:
    """After False, a check on each of its keys tries the operation, and one on another key does not."""
    op = Op(5)
    purgatory.try_complete_else_watch(op, ["a", "b", "c"])
    for number, key in enumerate("abc", start=2):
        assert purgatory.check_and_complete(key) == 0
        assert op.calls.count("try") == number
    assert purgatory.check_and_complete("d") == 0
    assert op.calls.count("try") == 4


async def test_a_check_asked_for_within_the_first_try_is_not_lost(purgatory: Purgatory[Op]) -> None:
    """A check between the try and the watch is queued and finds the operation watched."""

    class Late(Op):
        def try_complete(self) -> bool:
            self.calls.append("try")
            if len(self.calls) == 1:
                assert purgatory.check_and_complete("a") == 0
                return False
            return True

    op = Late(5)
    assert purgatory.try_complete_else_watch(op, ["a"])
    assert op.calls == ["try", "try", "complete"]
    check(purgatory, parked=0, completed=1, immediate=0)


async def test_watchers_are_tried_in_the_order_of_arrival(purgatory: Purgatory[Op]) -> None:
    """FIFO within a key, whatever left in between."""
    order: list[str] = []
    ops = [Op(5, name=str(number), on_try=lambda op: order.append(op.name)) for number in range(10)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
    ops[0].cancel()
    ops[5].cancel()
    ops[9].cancel()
    order.clear()
    purgatory.check_and_complete("a")
    assert order == ["1", "2", "3", "4", "6", "7", "8"]


async def test_completing_leaves_every_list_and_the_timer_at_once(purgatory: Purgatory[Op]) -> None:
    """Nothing is left for a purge: the other keys are gone the moment the operation ends."""
    op = Op(5)
    purgatory.try_complete_else_watch(op, ["a", "b", "c"])
    op.ready = True
    assert purgatory.check_and_complete("b") == 1
    check(purgatory, parked=0, watched=0, keys=0, num_delayed=0, completed=1)
    assert purgatory.timer.size == 0
    assert not op.scheduled
    assert purgatory.check_and_complete("a") == 0


@pytest.mark.parametrize("ending", ["force_complete", "cancel", "run", "cancel_for_key", "fail_for_key", "check"])
async def test_when_the_callback_runs_the_house_is_in_order(clock: VirtualClock, ending: str) -> None:
    """Within on_complete, and at the end of every other way out, the operation is off the timer and off all lists."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        found: list[tuple[int, int, int, int]] = []

        def look(_: Op) -> None:
            found.append((len(purgatory), purgatory.watched, purgatory.num_delayed, purgatory.timer.size))

        op, other = Op(5, on_complete=look), Op(9)
        purgatory.try_complete_else_watch(op, ["a", "b"])
        purgatory.try_complete_else_watch(other, ["b"])
        if ending == "cancel_for_key":
            assert purgatory.cancel_for_key("a") == [op]
        elif ending == "fail_for_key":
            assert purgatory.fail_for_key("a", Boom()) == 1
        elif ending == "check":
            op.ready = True
            assert purgatory.check_and_complete("a") == 1
        else:
            getattr(op, ending)()
        look(op)
        assert set(found) == {(1, 1, 1, 1)}
        assert op.outcome is not Outcome.PENDING
        assert other.keys == ("b",)
        purgatory._check()


async def test_an_empty_key_is_gone(purgatory: Purgatory[Op]) -> None:
    """A key without watchers takes no room."""
    for number in range(100):
        op = Op(5)
        purgatory.try_complete_else_watch(op, [("key", number), "shared"])
        op.cancel()
    check(purgatory, keys=0, watched=0)
    assert not any(purgatory._desk.watchers._shards)


async def test_cancelling_a_key_returns_its_operations_in_order(purgatory: Purgatory[Op]) -> None:
    """Everyone on the key is withdrawn, nobody else."""
    ops = [Op(5) for _ in range(3)]
    other = Op(5)
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a", "b"])
    purgatory.try_complete_else_watch(other, ["b"])
    assert purgatory.cancel_for_key("a") == ops
    assert purgatory.cancel_for_key("a") == []
    assert [op.outcome for op in ops] == [Outcome.CANCELLED] * 3
    check(purgatory, parked=1, watched=1, num_delayed=1, cancelled=3)


async def test_failing_a_key_gives_everyone_the_exception(purgatory: Purgatory[Op]) -> None:
    """fail_for_key ends all who wait on the key with the exception and says how many."""
    ops = [Op(5) for _ in range(3)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
    assert purgatory.fail_for_key("a", Boom("all")) == 3
    assert purgatory.fail_for_key("a", Boom("none")) == 0
    for op in ops:
        assert op.outcome is Outcome.FAILED
        with pytest.raises(Boom, match="all"):
            op.result()
    check(purgatory, parked=0, failed=3)


@pytest.mark.parametrize("error", ["text", Boom, None, KeyboardInterrupt()])
async def test_failing_needs_an_exception(purgatory: Purgatory[Op], error: Any) -> None:
    """What is no Exception instance cannot be an operation's failure."""
    op = Op(5)
    purgatory.try_complete_else_watch(op, ["a"])
    with pytest.raises(TypeError, match="error is an exception"):
        purgatory.fail_for_key("a", error)
    assert op.outcome is Outcome.PENDING


def _keys_that_raise() -> Iterator[str]:
    yield "a"
    raise Boom("no more keys")


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ([], ValueError, "keys is empty"),
        ((), ValueError, "keys is empty"),
        ({}, ValueError, "keys is empty"),
        (iter([]), ValueError, "keys is empty"),
        ("orders", TypeError, r"bare key 'orders': \['orders'\] was meant"),
        (b"orders", TypeError, "bare key"),
        (bytearray(b"orders"), TypeError, "bare key"),
        (7, TypeError, "bare key 7"),
        (None, TypeError, "bare key None"),
        ([["list"]], TypeError, "unhashable"),
        (["good", {}], TypeError, "unhashable"),
        (_keys_that_raise, Boom, "no more keys"),
        ({"a": "high"}, TypeError, "threshold for key 'a' is a number"),
        ({"a": 1, "b": True}, TypeError, "threshold for key 'b' is a number"),
        ({"a": float("nan")}, ValueError, "threshold for key 'a' is NaN"),
    ],
)
async def test_bad_keys_are_refused_and_change_nothing(
    clock: VirtualClock, keys: Any, error: type[Exception], message: str
) -> None:
    """The error says what was meant; nothing is tried, parked or counted, and the operation can be used."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(5)
        with pytest.raises(error, match=message):
            purgatory.try_complete_else_watch(op, keys() if callable(keys) else keys)
        assert op.calls == []
        check(purgatory, submitted=0, parked=0, watched=0, keys=0, num_delayed=0)
        assert purgatory.timer.size == 0
        assert not purgatory.try_complete_else_watch(op, ["good"])
        check(purgatory, submitted=1, parked=1)


async def test_duplicate_keys_count_once(purgatory: Purgatory[Op]) -> None:
    """A key that is given twice is watched once."""
    op = Op(5)
    purgatory.try_complete_else_watch(op, ["a", "b", "a", "a"])
    assert op.keys == ("a", "b")
    check(purgatory, watched=2)
    op.ready = True
    assert purgatory.check_and_complete("a") == 1
    assert op.completions == 1


@pytest.mark.parametrize("make", [list, tuple, iter, dict.fromkeys, set, frozenset])
async def test_keys_are_any_iterable(purgatory: Purgatory[Op], make: Any) -> None:
    """Lists, tuples, generators, sets and the keys of a dict will do."""
    op = Op(5)
    keys = make(["a", ("b", 1), 3])
    purgatory.try_complete_else_watch(op, keys.keys() if isinstance(keys, dict) else keys)
    assert set(op.keys) == {"a", ("b", 1), 3}
    check(purgatory, watched=3)


async def test_parking_twice_is_refused(purgatory: Purgatory[Op]) -> None:
    """A parked operation stays as it is; one that has ended is not taken again."""
    op = Op(5)
    purgatory.try_complete_else_watch(op, ["a"])
    with pytest.raises(ValueError, match="is parked already"):
        purgatory.try_complete_else_watch(op, ["b"])
    with pytest.raises(ValueError, match="is parked already"):
        await purgatory.park(op, ["b"])
    assert op.keys == ("a",)
    check(purgatory, submitted=1, parked=1, watched=1)
    op.cancel()
    with pytest.raises(ValueError, match="has ended"):
        purgatory.try_complete_else_watch(op, ["a"])
    check(purgatory, submitted=1, parked=0, cancelled=1)


async def test_parking_in_two_purgatories_is_refused(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """An operation waits in one room."""
    async with Purgatory[Op]("other", clock=clock) as other:
        op = Op(5)
        purgatory.try_complete_else_watch(op, ["a"])
        with pytest.raises(ValueError, match="is parked already"):
            other.try_complete_else_watch(op, ["a"])
        check(other, submitted=0)


async def test_handing_itself_over_within_its_first_try_is_refused(purgatory: Purgatory[Op]) -> None:
    """An operation that is being tried is taken."""
    seen: list[type] = []

    def again(op: Op) -> None:
        try:
            purgatory.try_complete_else_watch(op, ["b"])
        except ValueError as error:
            seen.append(type(error))

    op = Op(5, on_try=again)
    assert not purgatory.try_complete_else_watch(op, ["a"])
    assert seen == [ValueError]
    check(purgatory, submitted=1, parked=1, watched=1)


@pytest.mark.parametrize("operation", [None, "op", TimerTask(5), object()])
async def test_only_operations_are_taken(purgatory: Purgatory[Op], operation: Any) -> None:
    """Anything else is a TypeError that says what was expected."""
    with pytest.raises(TypeError, match="operation is a DelayedOperation"):
        purgatory.try_complete_else_watch(operation, ["a"])
    check(purgatory, submitted=0)


async def test_a_check_within_the_first_try_is_queued(purgatory: Purgatory[Op]) -> None:
    """It returns 0, and is done before the operation has been handed over."""
    other, counted = Op(), []
    purgatory.try_complete_else_watch(other, ["b"])
    other.ready = True
    op = Op(on_try=lambda _: counted.append(purgatory.check_and_complete("b")))
    assert not purgatory.try_complete_else_watch(op, ["a"])
    assert counted == [0]
    assert other.outcome is Outcome.COMPLETED
    purgatory._check()


async def test_the_statistics_name_the_purgatory(purgatory: Purgatory[Op]) -> None:
    """Where there are several, each tells whose figures these are."""
    assert purgatory.statistics().name == purgatory.name == "test"


async def test_only_operations_can_be_waited_for(purgatory: Purgatory[Op]) -> None:
    """``park`` says what it was given, before anything has changed."""
    with pytest.raises(TypeError, match="operation is a DelayedOperation, not 'x'"):
        await purgatory.park("x", ["a"])  # type: ignore[arg-type]
    check(purgatory, submitted=0)


async def test_no_time_no_parking(
    purgatory: Purgatory[Op], clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the clock raises, nothing has changed, and the operation can be handed over again."""

    def broken(self: VirtualClock) -> int:
        raise OSError("no time")

    op = Op(5)
    monkeypatch.setattr(VirtualClock, "ceil_ms", broken)
    with pytest.raises(OSError, match="no time"):
        purgatory.try_complete_else_watch(op, ["a"])
    monkeypatch.undo()
    assert op.calls == []
    check(purgatory, submitted=0)
    assert not purgatory.try_complete_else_watch(op, ["a"])
    check(purgatory, submitted=1, parked=1, watched=1)


async def test_no_future_no_parking(purgatory: Purgatory[Op]) -> None:
    """Where the loop cannot make the future to wait for, nobody would ever get the answer: it is withdrawn."""

    class Exhausted:
        def create_future(self) -> None:
            raise MemoryError

    loop = purgatory.timer.loop
    op = Op(5)
    purgatory.timer.loop = Exhausted()
    with pytest.raises(MemoryError):
        await purgatory.park(op, ["a"])
    purgatory.timer.loop = loop
    assert op.outcome is Outcome.CANCELLED
    check(purgatory, parked=0, watched=0, num_delayed=0, cancelled=1)


async def test_unhashable_keys_are_refused_everywhere(purgatory: Purgatory[Op]) -> None:
    """Checks and withdrawals on a key that cannot be a key are TypeErrors."""
    key: Any = []
    for call in (
        purgatory.check_and_complete,
        purgatory.cancel_for_key,
        purgatory.check_soon,
        purgatory.check_threadsafe,
    ):
        with pytest.raises(TypeError, match="unhashable"):
            call(key)
    with pytest.raises(TypeError, match="unhashable"):
        purgatory.fail_for_key(key, Boom())


class TestLimits:
    """Back-pressure."""

    async def test_a_full_room_says_its_limit(self, clock: VirtualClock) -> None:
        """Over max_parked it is PurgatoryFull with the limit in the message, and the operation is still PENDING."""
        async with Purgatory[Op]("room", clock=clock, max_parked=2) as purgatory:
            ops = [Op(5) for _ in range(3)]
            purgatory.try_complete_else_watch(ops[0], ["a"])
            purgatory.try_complete_else_watch(ops[1], ["a"])
            with pytest.raises(PurgatoryFull, match=r"'room' is full: max_parked=2") as caught:
                purgatory.try_complete_else_watch(ops[2], ["b"])
            assert (caught.value.limit, caught.value.key) == (2, None)
            assert ops[2].outcome is Outcome.PENDING
            check(purgatory, submitted=2, parked=2, keys=1)
            ops[0].cancel()
            assert not purgatory.try_complete_else_watch(ops[2], ["b"])

    async def test_a_full_key_says_which(self, clock: VirtualClock) -> None:
        """Over max_parked_per_key nothing is parked, not even on the keys that have room."""
        async with Purgatory[Op]("room", clock=clock, max_parked_per_key=1) as purgatory:
            purgatory.try_complete_else_watch(Op(5), ["a"])
            with pytest.raises(PurgatoryFull, match=r"key 'a' of purgatory 'room' is full: max_parked_per_key=1") as e:
                purgatory.try_complete_else_watch(Op(5), ["b", "a"])
            assert (e.value.limit, e.value.key) == (1, "a")
            check(purgatory, submitted=1, parked=1, keys=1, watched=1)
            with pytest.raises(PurgatoryFull):
                purgatory.try_complete_else_watch(Op(5), {"a": 5})
            assert not purgatory.try_complete_else_watch(Op(5), ["b"])

    async def test_what_completes_at_once_needs_no_room(self, clock: VirtualClock) -> None:
        """A limit is for those who would have to wait."""
        async with Purgatory[Op]("room", clock=clock, max_parked=1, max_parked_per_key=1) as purgatory:
            purgatory.try_complete_else_watch(Op(5), ["a"])
            assert purgatory.try_complete_else_watch(Op(5, ready=True), ["a"])

    @pytest.mark.parametrize("name", ["max_parked", "max_parked_per_key"])
    @pytest.mark.parametrize(
        ("limit", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("2", TypeError), (True, TypeError)]
    )
    def test_a_limit_is_a_whole_number_above_zero(self, name: str, limit: Any, error: type[Exception]) -> None:
        """A limit that cannot be meant is refused by name."""
        with pytest.raises(error, match=name):
            Purgatory("room", **{name: limit})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": 5}, TypeError, "name is a str"),
        ({"name": "x", "timer": "timer"}, TypeError, "timer is a SystemTimer"),
        ({"name": "x", "clock": "clock"}, TypeError, "clock is a purgatory.clock.Clock"),
        ({"name": "x", "tick_ms": 0}, ValueError, "tick_ms is at least 1"),
        ({"name": "x", "wheel_size": 1}, ValueError, "wheel_size is at least 2"),
        ({"name": "x", "observers": "observer"}, TypeError, "observers is a sequence"),
        ({"name": "x", "observers": 5}, TypeError, "observers is a sequence"),
        ({"name": "x", "observers": [object()]}, TypeError, "is no observer"),
    ],
)
def test_bad_parameters_are_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    """Each parameter of a purgatory says what was meant."""
    with pytest.raises(error, match=message):
        Purgatory(**arguments)


async def test_a_shared_timer_has_its_own_settings(clock: VirtualClock) -> None:
    """A timer and settings for one contradict each other."""
    timer = SystemTimer(clock=clock)
    settings: tuple[dict[str, Any], ...] = ({"clock": clock}, {"tick_ms": 2}, {"wheel_size": 10})
    for setting in settings:
        with pytest.raises(ValueError, match="either a timer or clock, tick_ms and wheel_size"):
            Purgatory("x", timer=timer, **setting)


class TestPark:
    """Handing over and waiting."""

    async def test_it_returns_the_result(self, purgatory: Purgatory[Op], clock: VirtualClock) -> None:
        """park gives what on_complete made, at once, on a check and on expiry."""
        assert await purgatory.park(Op(5, name="now", ready=True), ["a"]) == "now"
        later, never = Op(5, name="later"), Op(5, name="never")
        tasks = [asyncio.create_task(purgatory.park(op, ["a"])) for op in (later, never)]
        await clock.settle()
        later.ready = True
        purgatory.check_and_complete("a")
        assert await tasks[0] == "later"
        await clock.advance(5)
        assert await tasks[1] == "never"
        assert never.expired

    async def test_an_operation_that_gives_up_in_its_first_try(self, purgatory: Purgatory[Op]) -> None:
        """One that withdraws itself while it is tried has no result for its parker."""
        with pytest.raises(PurgatoryError, match="withdrawn"):
            await purgatory.park(Op(5, on_try=lambda op: op.cancel()), ["a"])
        check(purgatory, parked=0, cancelled=1)

    async def test_what_the_first_try_raises_reaches_the_parker(self, purgatory: Purgatory[Op]) -> None:
        """Raised inside the caller's own call, an exception is the caller's, and the operation is FAILED."""

        def boom(_: Op) -> None:
            raise Boom

        for op in (Op(5, on_try=boom), Op(5, ready=True, on_complete=boom)):
            with pytest.raises(Boom):
                await purgatory.park(op, ["a"])
            assert op.outcome is Outcome.FAILED
        check(purgatory, submitted=2, parked=0, failed=2, watched=0, immediate=0)

    async def test_wait_until(self, purgatory: Purgatory[Op], clock: VirtualClock) -> None:
        """True when the predicate holds, at once or later; False when the time is up."""
        state = {"ready": True}
        assert await purgatory.wait_until(lambda: state["ready"], keys=["a"], timeout=5) is True
        state["ready"] = False
        true, false = (
            asyncio.create_task(purgatory.wait_until(lambda: state["ready"], keys=[key], timeout=5)) for key in "ab"
        )
        await clock.settle()
        state["ready"] = True
        assert purgatory.check_and_complete("a") == 1
        assert await true is True
        state["ready"] = False
        await clock.advance(5)
        assert await false is False

    async def test_a_predicate_that_raises_reaches_the_waiter(
        self, purgatory: Purgatory[Op], clock: VirtualClock
    ) -> None:
        """It fails its own wait and no other."""
        state: dict[str, int] = {"x": 1}
        task = asyncio.create_task(purgatory.wait_until(lambda: 1 // state["x"] == 5, keys=["a"], timeout=5))
        other = asyncio.create_task(purgatory.wait_until(lambda: state["x"] == 0, keys=["a"], timeout=5))
        await clock.settle()
        state["x"] = 0
        assert purgatory.check_and_complete("a") == 1
        with pytest.raises(ZeroDivisionError):
            await task
        assert await other

    async def test_a_predicate_is_callable(self, purgatory: Purgatory[Op]) -> None:
        """Anything else is refused by name."""
        with pytest.raises(TypeError, match="predicate is something to call"):
            await purgatory.wait_until(True, keys=["a"], timeout=5)  # type: ignore[arg-type]


class TestCheckSoon:
    """Coalesced and sliced checks."""

    async def test_many_requests_are_one_check(self, purgatory: Purgatory[Op], clock: VirtualClock) -> None:
        """However often a key is named in a turn, its watchers are tried once, after this callback."""
        op = Op(5)
        purgatory.try_complete_else_watch(op, ["a"])
        for _ in range(100):
            purgatory.check_soon("a")
        assert op.calls == ["try"]
        await clock.settle()
        assert op.calls == ["try", "try"]
        purgatory.check_soon("a")
        await clock.settle()
        assert op.calls == ["try"] * 3

    async def test_a_key_nobody_waits_on_costs_nothing(self, purgatory: Purgatory[Op], clock: VirtualClock) -> None:
        """Naming an unknown key does no harm and leaves nothing."""
        purgatory.check_soon("nobody")
        await clock.settle()
        check(purgatory, keys=0)
        assert not purgatory._soon

    async def test_a_long_list_is_checked_in_slices(self, purgatory: Purgatory[Op], clock: VirtualClock) -> None:
        """A hot key does not hold the loop: other callbacks run between the portions, and every watcher is tried."""
        ops = [Op(5) for _ in range(2000)]
        for op in ops:
            purgatory.try_complete_else_watch(op, ["hot"])
            op.ready = True
        progress: list[int] = []

        def look() -> None:
            progress.append(len(purgatory))
            if len(purgatory):
                asyncio.get_running_loop().call_soon(look)

        purgatory.check_soon("hot")
        look()
        await clock.settle()
        assert len(purgatory) == 0
        steps = [before - after for before, after in itertools.pairwise(progress)]
        assert len(steps) > 5
        assert max(steps) <= 512
        assert all(op.completions == 1 for op in ops)

    async def test_keys_take_turns(self, purgatory: Purgatory[Op], clock: VirtualClock) -> None:
        """A key with one watcher is not kept waiting until a hot one is done."""
        order: list[str] = []
        for _ in range(2000):
            op = Op(5, on_complete=lambda _: order.append("hot"))
            purgatory.try_complete_else_watch(op, ["hot"])
            op.ready = True
        single = Op(5, on_complete=lambda _: order.append("single"))
        purgatory.try_complete_else_watch(single, ["single"])
        single.ready = True
        purgatory.check_soon("hot")
        purgatory.check_soon("single")
        await clock.settle()
        assert order.index("single") < 100
        assert len(order) == 2001

    async def test_a_key_named_while_it_is_checked_is_checked_again(
        self, purgatory: Purgatory[Op], clock: VirtualClock
    ) -> None:
        """A change during a check is seen by one that follows."""

        def again(op: Op) -> None:
            if op.calls.count("try") == 2:
                purgatory.check_soon("a")
            elif op.calls.count("try") == 3:
                op.ready = True

        op = Op(5, on_try=again)
        purgatory.try_complete_else_watch(op, ["a"])
        purgatory.check_soon("a")
        await clock.settle()
        assert op.calls == ["try"] * 3 + ["complete"]

    async def test_who_comes_and_goes_between_slices(self, purgatory: Purgatory[Op], clock: VirtualClock) -> None:
        """Who has left is not tried, and who came after the check began is not tried by it."""
        ops = [Op(5) for _ in range(1000)]
        for op in ops:
            purgatory.try_complete_else_watch(op, ["hot"])
        late: list[Op] = []

        def meddle(_: Op) -> None:
            if not late:
                late.append(Op(5))
                purgatory.try_complete_else_watch(late[0], ["hot"])
                for op in ops[500:]:
                    op.cancel()

        ops[0]._on_try = meddle
        purgatory.check_soon("hot")
        await clock.settle()
        assert [op.calls.count("try") for op in ops] == [2] * 500 + [1] * 500
        assert late[0].calls == ["try"]

    async def test_from_another_thread(self, purgatory: Purgatory[Op], clock: VirtualClock) -> None:
        """check_threadsafe called in a thread completes an operation in the loop."""
        task = asyncio.create_task(purgatory.park(op := Op(5, name="answer"), ["a"]))
        await clock.settle()
        op.ready = True
        await asyncio.to_thread(purgatory.check_threadsafe, "a")
        assert await task == "answer"

    async def test_a_thousand_requests_are_one_wake_up(self, purgatory: Purgatory[Op], clock: VirtualClock) -> None:
        """Requests before the loop comes round are coalesced."""
        op = Op(5)
        purgatory.try_complete_else_watch(op, ["a"])
        for _ in range(1000):
            purgatory.check_threadsafe("a")
        await clock.settle()
        assert op.calls == ["try", "try"]

    async def test_it_needs_a_loop(self, clock: VirtualClock) -> None:
        """A purgatory that was never entered belongs to no loop, and says so."""
        with pytest.raises(RuntimeError, match="enter it with 'async with'"):
            Purgatory[Op]("x", clock=clock).check_threadsafe("a")


async def test_hot_keys(purgatory: Purgatory[Op]) -> None:
    """The keys with the most watchers come first, with their numbers; ranked watchers count."""
    for number in range(5):
        purgatory.try_complete_else_watch(Op(5), ["all", f"key-{number}"])
    purgatory.try_complete_else_watch(Op(5), {"key-3": 10, "key-4": 10})
    purgatory.try_complete_else_watch(Op(5), {"key-4": 10})
    assert purgatory.hot_keys(3) == [("all", 5), ("key-4", 3), ("key-3", 2)]
    assert len(purgatory.hot_keys()) == 6
    assert purgatory.hot_keys(0) == []
    for n in (-1, 1.5, True):
        with pytest.raises(ValueError, match="n is a number of keys"):
            purgatory.hot_keys(n)  # type: ignore[arg-type]


async def test_the_text_of_a_purgatory_tells_its_state(clock: VirtualClock) -> None:
    """repr names it, says whether it is open, and gives the gauges."""
    purgatory = Purgatory[Op]("fetch", clock=clock)
    purgatory.try_complete_else_watch(Op(5), ["a", "b"])
    assert repr(purgatory) == "<Purgatory 'fetch' open parked=1 watched=2 num_delayed=1>"
    await purgatory.aclose()
    assert repr(purgatory) == "<Purgatory 'fetch' closed parked=0 watched=0 num_delayed=0>"
    with pytest.raises(PurgatoryClosed, match="'fetch' is closed"):
        purgatory.try_complete_else_watch(Op(5), ["a"])
    assert purgatory.closed
    assert purgatory.name == "fetch"


async def test_the_statistics_tell_waits_and_lateness(clock: VirtualClock) -> None:
    """Quantiles are in seconds: how long operations waited, and how late they expired."""
    async with Purgatory[Op]("test", clock=clock, tick_ms=20) as purgatory:
        ops = [Op(0.05), Op(10), Op(10)]
        for op in ops:
            purgatory.try_complete_else_watch(op, ["a"])
        await clock.advance(2)
        ops[1].force_complete()
        ops[2].cancel()
        statistics = purgatory.statistics()
        assert statistics.wait.count == 3
        assert statistics.wait.p50 == 2.0
        assert statistics.wait.max == 2.0
        assert statistics.lateness.count == 1
        assert statistics.lateness.max == 0
        assert (statistics.completed, statistics.expired, statistics.cancelled, statistics.failed) == (1, 1, 1, 0)


class TestObservers:
    """Told of every life, and harmless."""

    async def test_they_hear_every_ending_once(self, clock: VirtualClock) -> None:
        """parked and one ending for each operation that waited; only completed for one that never did."""
        recorder = Recorder()
        async with Purgatory[Op]("test", clock=clock, observers=[recorder]) as purgatory:
            purgatory.try_complete_else_watch(Op(5, name="now", ready=True), ["a"])
            ops = {name: Op(5, name=name) for name in ("completed", "cancelled", "failed", "expired")}
            for op in ops.values():
                purgatory.try_complete_else_watch(op, [op.name, "all"])
            ops["completed"].ready = True
            await clock.advance(1)
            purgatory.check_and_complete("completed")
            ops["cancelled"].cancel()
            purgatory.fail_for_key("failed", Boom())
            await clock.advance(4)
        assert recorder.events == [
            ("completed", "now"),
            *[("parked", name) for name in ops],
            ("completed", "completed"),
            ("cancelled", "cancelled"),
            ("failed", "failed"),
            ("expired", "expired"),
        ]
        expired = recorder.seen[-1]
        assert expired.keys == ("expired", "all")
        assert (expired.wait, expired.lateness, expired.parked_at) == (5.0, 0.0, 1000.0)
        assert (expired.deadline, expired.finished_at, expired.kind) == (1005.0, 1005.0, "Op")
        failed = recorder.seen[-2]
        assert isinstance(failed.error, Boom)
        assert failed.lateness is None
        now = recorder.seen[0]
        assert (now.keys, now.wait) == ((), 0.0)
        parked = recorder.seen[1]
        assert (parked.wait, parked.finished_at, parked.outcome) == (None, None, Outcome.PENDING)
        assert repr(failed) == "<Event failed Op #4 of 'test' on ['failed', 'all']>"

    @pytest.mark.parametrize("error", [Boom(), asyncio.CancelledError()])
    async def test_one_that_raises_is_detached_and_reported(
        self, clock: VirtualClock, reported: list[dict[str, Any]], error: BaseException
    ) -> None:
        """It hears nothing more, the operation and the other observers are not touched."""

        class Bad(Observer):
            heard = 0

            def completed(self, event: Any) -> None:
                self.heard += 1
                raise error

        bad, recorder = Bad(), Recorder()
        async with Purgatory[Op]("test", clock=clock, observers=[bad, recorder]) as purgatory:
            for name in ("one", "two"):
                op = Op(5, name=name)
                purgatory.try_complete_else_watch(op, ["a"])
                op.ready = True
                assert purgatory.check_and_complete("a") == 1
                assert op.result() == name
            check(purgatory, completed=2, observers_detached=1)
        assert bad.heard == 1
        assert [method for method, _ in recorder.events] == ["parked", "completed"] * 2
        (context,) = reported
        assert context["exception"] is error
        assert context["observer"] is bad

    async def test_the_last_one_detached_leaves_nothing(
        self, clock: VirtualClock, reported: list[dict[str, Any]]
    ) -> None:
        """When the only observer goes while an operation is being completed, no trace of that operation stays."""

        class Bad(Observer):
            def cancelled(self, event: Any) -> None:
                raise Boom

        async with Purgatory[Op]("test", clock=clock, observers=[Bad()]) as purgatory:
            victim = Op(5)
            op = Op(5, on_complete=lambda _: victim.cancel() or None)
            for waiting in (victim, op):
                purgatory.try_complete_else_watch(waiting, ["a"])
            assert op.force_complete()
            assert not purgatory._desk._hearing._leaving
        assert len(reported) == 1
