"""Watch lists: what a walk over all of them costs."""

from collections.abc import Hashable, ValuesView
from typing import Any

from purgatory import DelayedOperation
from purgatory.watch import Watch
from purgatory.watchers import SHARDS, Watchers


class _CountingDict(dict[Hashable, Watch]):
    """Counts how often it is walked: a dict from which all was deleted still walks over what it once held."""

    walks = 0

    def values(self) -> ValuesView[Watch]:
        _CountingDict.walks += 1
        return super().values()


class _Never(DelayedOperation[None]):
    __slots__ = ()

    def try_complete(self) -> bool:
        return False


def test_taking_some_of_those_who_wait_walks_no_shard_that_is_empty() -> None:
    """Closing takes them slice by slice: if every slice walked the emptied shards again, it would be quadratic."""
    watchers = Watchers()
    watchers._shards[:] = [_CountingDict() for _ in range(SHARDS)]
    operation: DelayedOperation[Any] = _Never(None)
    watch = Watch("key", operation)
    watchers.add(watchers.shard("key"), watch)
    operation._watch = watch
    _CountingDict.walks = 0
    assert watchers.some(10) == [operation]
    assert _CountingDict.walks == 1
