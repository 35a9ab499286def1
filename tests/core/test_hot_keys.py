"""``hot_keys``: the keys with the most watchers."""

import pytest

from tests.helpers import Op
from tests.sansio import QuietPurgatory


def test_hot_keys(room: QuietPurgatory) -> None:
    """The keys with the most watchers come first, with their numbers; watchers with a threshold also count."""
    for number in range(5):
        room.try_complete_else_watch(Op(5), ["all", f"key-{number}"])
    room.try_complete_else_watch(Op(5), {"key-3": 10, "key-4": 10})
    room.try_complete_else_watch(Op(5), {"key-4": 10})
    assert room.hot_keys(3) == [("all", 5), ("key-4", 3), ("key-3", 2)]
    assert len(room.hot_keys()) == 6
    assert room.hot_keys(0) == []
    for n in (-1, 1.5, True):
        with pytest.raises(ValueError, match="n must be an int, at least 0"):
            room.hot_keys(n)
