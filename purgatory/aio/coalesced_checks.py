"""Queued checks: the keys that ``check_soon`` has to check, and the progress of each.

The keys take turns in a queue.  The first key is checked for as many of its watchers as the portion allows, and moves
to the end of the queue if it has more.  So a key with one watcher does not wait for a key with 100 000, and a key that
is requested again and again does not delay the others.

A key is in the queue once, however often it is requested.  One check serves all requests that come before it begins: it
has the largest of their values, or no value if one request had none, because a check without a value tries every
watcher.  A key that is requested while its watchers are being tried is checked once more when that check ends, from the
first watcher on.

Many keys that are requested at once (all watched keys, or the keys from other threads) enter the queue one by one,
between the checks, so that a million of them do not stall the loop.
"""

from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from purgatory.core.purgatory import PurgatoryCore
from purgatory.core.watch.cursor import WatchCursor
from purgatory.core.watch.thresholds import wider
from purgatory.core.watch.watcher_lists import SHARDS

__all__ = ["CoalescedChecks"]


class _Check:
    """The check of one key.  ``again``: another check must follow, with the value ``again_value``.

    ``queued``: it is in the queue or in progress.  A check that could not be removed, because its key raised, is not.
    """

    __slots__ = ("again", "again_value", "cursor", "key", "queued", "value")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.value: Any = None
        self.cursor: WatchCursor | None = None  # None: not begun
        self.queued = False
        self.again = False
        self.again_value: Any = None


class CoalescedChecks:
    """The queue of keys to check, processed in portions."""

    __slots__ = ("_checks", "_core", "_next_shard", "_queue", "_requested", "_shard_keys", "_shards_left")

    def __init__(self, core: PurgatoryCore) -> None:
        self._core = core
        self._queue: deque[_Check] = deque()
        self._checks: dict[Hashable, _Check] = {}  # of every key in the queue
        self._requested: deque[Iterator[tuple[Hashable, Any]]] = (
            deque()
        )  # requested keys that enter the queue one by one
        self._shard_keys: deque[Hashable] = deque()  # keys of the current shard, for add_all()
        self._next_shard = 0
        self._shards_left = 0

    def __bool__(self) -> bool:
        return bool(self._queue or self._requested or self._shard_keys or self._shards_left)

    def add(self, key: Hashable, value: Any = None) -> None:
        """Request a check of the key."""
        check = self._checks.get(key)
        if check is None:
            check = self._checks[key] = _Check(key)
        if not check.queued:
            check.queued = True
            check.value = value
            self._queue.append(check)
        elif check.cursor is None:
            check.value = wider(check.value, value)
        elif check.again:
            check.again_value = wider(check.again_value, value)
        else:
            check.again = True
            check.again_value = value

    def add_many(self, requested: Mapping[Hashable, Any]) -> None:
        """Request a check of each key of the mapping, with its value; the mapping must not change any more."""
        self._requested.append(iter(requested.items()))

    def add_all(self) -> None:
        """Request a check of every watched key."""
        self._shards_left = SHARDS  # from any shard on, all the way round

    def work(self, number: int) -> None:
        """Try the next ``number`` watchers, or all that are left."""
        while number > 0 and self:
            if self._requested:
                self._move_requested()
            if self._shard_keys or self._shards_left:
                self._move_watched()
            if not self._queue:
                number -= 1
                continue
            check = self._queue.popleft()
            cursor = check.cursor
            if cursor is None:
                try:
                    cursor = check.cursor = self._core.cursor(check.key, check.value)
                except BaseException:
                    self._forget(check)
                    raise
                if cursor is None:
                    self._forget(check)
                    number -= 1
                    continue
            tried = number
            try:
                tried = self._core.check_some(cursor, number)
            finally:
                # An interrupt propagates: the cursor then continues behind the interrupted operation.
                self._put_back(check, ended=tried < number or cursor.at_end())
            number -= max(tried, 1)

    def _put_back(self, check: _Check, *, ended: bool) -> None:
        if ended and not check.again:
            self._forget(check)
            return
        if ended:
            check.again = False
            check.value = check.again_value
            check.cursor = None
        self._queue.append(check)

    def _forget(self, check: _Check) -> None:
        """Remove a finished check.  If its key raises, the check stays, for the next request of that key."""
        check.cursor = None
        check.queued = False
        try:
            other = self._checks.pop(check.key, check)
            if other is not check:  # the hash of the key has changed
                self._checks.setdefault(other.key, other)
        except Exception:
            check.value = None
        if not self._queue:
            self._checks.clear()  # runs no code of a key

    def _move_requested(self) -> None:
        """Move one of the keys that were requested together into the queue."""
        for key, value in self._requested[0]:
            self.add(key, value)
            self._requested.rotate(-1)
            return
        self._requested.popleft()

    def _move_watched(self) -> None:
        """Move one of the watched keys into the queue."""
        while not self._shard_keys and self._shards_left:
            self._shards_left -= 1
            self._shard_keys.extend(self._core.watcher_lists.keys_of_shard(self._next_shard))
            self._next_shard = (self._next_shard + 1) % SHARDS
        if self._shard_keys:
            self.add(self._shard_keys.popleft())
