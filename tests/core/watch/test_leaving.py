"""An operation leaves every watch list and the timer at the moment it ends."""

import pytest

from purgatory import Outcome, Purgatory
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, check


async def test_completing_leaves_every_list_and_the_timer_at_once(purgatory: Purgatory[Op]) -> None:
    """The operation is immediately off its other keys, so no purge is necessary."""
    op = Op(5)
    purgatory.try_complete_else_watch(op, ["a", "b", "c"])
    op.ready = True
    assert purgatory.check_and_complete("b") == 1
    check(purgatory, parked=0, watched=0, keys=0, num_delayed=0, completed=1)
    assert purgatory.timer.size == 0
    assert not op.scheduled
    assert purgatory.check_and_complete("a") == 0


@pytest.mark.parametrize("ending", ["force_complete", "cancel", "run", "cancel_for_key", "fail_for_key", "check"])
async def test_callbacks_see_a_consistent_state(clock: VirtualClock, ending: str) -> None:
    """In ``on_complete``, and after every other ending, the operation is off the timer and off all lists."""
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
    """A key without watchers is removed."""
    for number in range(100):
        op = Op(5)
        purgatory.try_complete_else_watch(op, [("key", number), "shared"])
        op.cancel()
    check(purgatory, keys=0, watched=0)
    assert not any(shard.entries for shard in purgatory._core.watcher_lists._shards)


async def test_cancelling_a_key_returns_its_operations_in_order(purgatory: Purgatory[Op]) -> None:
    """Every operation on the key is withdrawn, and no other operation."""
    ops = [Op(5) for _ in range(3)]
    other = Op(5)
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a", "b"])
    purgatory.try_complete_else_watch(other, ["b"])
    assert purgatory.cancel_for_key("a") == ops
    assert purgatory.cancel_for_key("a") == []
    assert [op.outcome for op in ops] == [Outcome.CANCELLED] * 3
    check(purgatory, parked=1, watched=1, num_delayed=1, cancelled=3)


async def test_failing_a_key_gives_every_task_the_exception(purgatory: Purgatory[Op]) -> None:
    """``fail_for_key`` fails every operation on the key and returns their number."""
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
