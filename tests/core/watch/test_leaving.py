"""An operation leaves every watch list and the timer at the moment it ends."""

import pytest

from purgatory import Outcome
from tests.helpers import Boom, Op, check
from tests.sansio import QuietPurgatory


def test_completing_leaves_every_list_and_the_timer_at_once(room: QuietPurgatory) -> None:
    """The operation is immediately off its other keys, so no purge is necessary."""
    op = Op(5)
    room.try_complete_else_watch(op, ["a", "b", "c"])
    op.ready = True
    assert room.check_and_complete("b") == 1
    check(room, parked=0, watched=0, keys=0, num_delayed=0, completed=1)
    assert room._core.timer.size == 0
    assert not op.scheduled
    assert room.check_and_complete("a") == 0


@pytest.mark.parametrize("ending", ["force_complete", "cancel", "run", "cancel_for_key", "fail_for_key", "check"])
def test_callbacks_see_a_consistent_state(room: QuietPurgatory, ending: str) -> None:
    """In ``on_complete``, and after every other ending, the operation is off the timer and off all lists."""
    found: list[tuple[int, int, int, int]] = []

    def look(_: Op) -> None:
        found.append((len(room), room.watched, room.num_delayed, room._core.timer.size))

    op, other = Op(5, on_complete=look), Op(9)
    room.try_complete_else_watch(op, ["a", "b"])
    room.try_complete_else_watch(other, ["b"])
    if ending == "cancel_for_key":
        assert room.cancel_for_key("a") == [op]
    elif ending == "fail_for_key":
        assert room.fail_for_key("a", Boom()) == 1
    elif ending == "check":
        op.ready = True
        assert room.check_and_complete("a") == 1
    else:
        getattr(op, ending)()
    look(op)
    assert set(found) == {(1, 1, 1, 1)}
    assert op.outcome is not Outcome.PENDING
    assert other.keys == ("b",)
    room._check()


def test_an_empty_key_is_gone(room: QuietPurgatory) -> None:
    """A key without watchers is removed."""
    for number in range(100):
        op = Op(5)
        room.try_complete_else_watch(op, [("key", number), "shared"])
        op.cancel()
    check(room, keys=0, watched=0)
    assert not any(shard.entries for shard in room._core.watcher_lists._shards)
