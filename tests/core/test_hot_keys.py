"""``hot_keys``: the keys with the most watchers."""

import pytest

from purgatory import Purgatory
from tests.helpers import Op


async def test_hot_keys(purgatory: Purgatory[Op]) -> None:
    """The keys with the most watchers come first, with their numbers; watchers with a threshold also count."""
    for number in range(5):
        purgatory.try_complete_else_watch(Op(5), ["all", f"key-{number}"])
    purgatory.try_complete_else_watch(Op(5), {"key-3": 10, "key-4": 10})
    purgatory.try_complete_else_watch(Op(5), {"key-4": 10})
    assert purgatory.hot_keys(3) == [("all", 5), ("key-4", 3), ("key-3", 2)]
    assert len(purgatory.hot_keys()) == 6
    assert purgatory.hot_keys(0) == []
    for n in (-1, 1.5, True):
        with pytest.raises(ValueError, match="n must be an int, at least 0"):
            purgatory.hot_keys(n)  # type: ignore[arg-type]
