"""``is_watched``: whether an operation waits on the key."""

from tests.helpers import Op, park
from tests.sansio import QuietPurgatory


def test_keys_and_is_watched_agree(room: QuietPurgatory) -> None:
    """A key is listed once, from the arrival of its first watcher until its last one leaves."""
    assert list(room.keys()) == []
    assert not room.is_watched("a")
    first, second = park(room, "a", "b"), park(room, "a")
    ranked = Op()
    room.try_complete_else_watch(ranked, {"log": 5, "a": 7})
    assert sorted(map(str, room.keys())) == ["a", "b", "log"]
    first.cancel()
    assert not room.is_watched("b")
    assert room.is_watched("a")
    second.cancel()
    assert room.is_watched("a")
    ranked.cancel()
    assert list(room.keys()) == []
    assert not room.is_watched("a")
