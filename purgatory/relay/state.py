"""What ``refresh`` returned for the watched keys, and which waits may see each value.

A wait through the relay must not be answered from a value that was read before the wait began: the key may have been
read long ago for another wait.  The reads are therefore numbered.  Each wait records the number of the first read that
begins after the wait has begun, each value carries the number of its read, and a condition sees a value only if the
value's number is not smaller than the number that the wait recorded.

Until such a value exists, the key is not *absent* for the condition but *unknown*, and the two must not be confused: a
condition such as ``state.get(key) != "pending"`` would hold at once.  Therefore, when a condition of ``wait_until`` or
``wait_value`` looks up an unknown key, the result is ignored, and the condition is evaluated again after the read.  For
the application's own operation classes, the key is absent until then.

An ignored value of ``wait_value`` is passed to ``on_abandoned``, which may put the value back and check the key.  That
check must not make the condition take the value again, because the value would be ignored again, and so on:

1.  The condition takes a value and looks up an unknown key.  The wait records the first such key: ``awaited``.
2.  The value is given back.  ``on_abandoned`` checks the key, and the check tries the wait.
3.  While ``awaited`` is unknown, the condition is not called, because it would look up the same key again.
4.  A read stores the value of ``awaited``, and then checks the key.  The check calls the condition.

While the relay is open, a key that is known to a wait remains known, so the wait ignores at most one value for each of
its keys.  Steps 1 and 3 apply only to a value that is given back.  After an error, after None, and for the predicate of
``wait_until``, nothing is given back, so there is no loop: the next check calls the condition even if no key has been
read, because its result may no longer depend on the state.

A read checks its keys with their values, and such a check skips a wait whose threshold is higher.  A threshold states
that the wait cannot complete because of a lower value of this key.  It does not state that the last result is still
correct: that result was found without this value.  With the condition ``a >= 1 or b >= 90`` and one key in each read:

1.  The read of ``a`` finds 5 and tries the wait.  The condition also looks up ``b``, which is unknown, so its result is
    ignored.  The wait is recorded under ``b``: ``early``.
2.  The read of ``b`` finds 80, which is below the threshold, so its check skips the wait.  The wait becomes *due*.
3.  After the checks of this read, the due waits are tried in the order of arrival, and no others.  The condition holds,
    because ``a`` is 5.

Only a wait with thresholds is recorded, under one key at a time: the first unknown key that is looked up while the wait
is not recorded.  Whenever the last result depended on unknown keys, the wait is therefore recorded under a key that is
unknown at that time, or it is due.  The read of that key tries the wait again, and the new try records the next unknown
key, if any.  A wait is thus tried at most once more for each of its keys.  This also applies to the application's own
operation classes.

Recording a wait costs O(1), and so does storing a value, however many waits are recorded under its key:

1.  All waits that are recorded under a key form a *group*.
2.  When the key has been read, its whole group is taken.  The waits of the group that began before the read are now due
    or, if the check has no value and therefore tries every wait, no longer recorded.
3.  After the checks, the group is taken apart in slices.  Each of its waits becomes due, is forgotten, or is recorded
    again because it began during the read.
4.  When no group is left, the due waits are tried, also in slices.  The next read begins after the last one.

A value is kept while an operation waits on its key.  When a wait ends, the values of its keys that no longer have a
watcher are removed.  The end of an operation that was parked directly in the purgatory removes no values.  Therefore,
whenever a value is stored, the two oldest values are also examined, in O(1) time each, so that no unused value is kept
for long.  If the key changes while nothing waits on it, the value is removed, so that a value found when the key is
watched again is as recent as if the key had been watched all the time.
"""

import contextlib
import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Any, Final, TypeVar

from purgatory import DelayedOperation, Purgatory
from purgatory.core.operation.lifecycle import is_parked
from purgatory.core.timer.coroutines import is_coroutine
from purgatory.core.watch.cursor import NO_ID, WatchCursor
from purgatory.core.watch.watch import Watch

__all__ = ["NEVER", "RelayState", "RelayWait"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")

NEVER: Final = 1 << 62  # the number of a read that never happens
_REMEMBERED: Final = 10_000  # the number of keys that have been read last of which has_read() knows
_ABSENT: Final[Any] = object()


class RelayWait:
    """One wait through the relay.

    ``keys``: maps each key to itself.  A condition may look up any object that equals a key, and that object may change
    later, so only the wait's own keys are kept.  ``since``: the number of the first read that begins after the wait has
    begun.  ``unknown``: the first key that its condition has looked up although the key has not been read since the
    wait began.  ``awaited``: the key that must be read before the condition is called again.  ``group``: the waits with
    which the wait is recorded under an unknown key, whose next read tries the wait even if the value is below the
    wait's threshold.  ``give_back`` is called with a value that its condition returned but that is ignored; it is None
    for conditions that take no value.
    """

    __slots__ = ("awaited", "give_back", "group", "has_thresholds", "keys", "operation", "since", "unknown")

    def __init__(self, operation: DelayedOperation[Any] | None, keys: Collection[Hashable], since: int) -> None:
        self.operation: DelayedOperation[Any] | None = operation
        self.keys: dict[Hashable, Hashable] = {key: key for key in keys}
        self.has_thresholds: bool = isinstance(keys, Mapping)
        self.since: int = since
        self.unknown: Any = _ABSENT
        self.awaited: Any = _ABSENT
        self.group: _Group | None = None
        self.give_back: Callable[[Any], object] | None = None


class _Group:
    """The waits that are recorded under a key.

    ``number``: the number of the read that has stored the key, or 0 while none has.  ``skips``: whether the check that
    follows this read skips waits, because it has a value.
    """

    __slots__ = ("key", "number", "skips", "waits")

    def __init__(self, key: Hashable) -> None:
        self.key: Hashable = key
        self.number: int = 0
        self.skips: bool = False
        self.waits: dict[RelayWait, None] = {}


class RelayState(Mapping[K, V]):
    """What ``refresh`` returned, for watched keys only.

    A key is absent if no operation waits on it, or if its last read did not return it.  Inside the condition of a wait
    through the relay, a value that was read before the wait began is not visible; see :meth:`Relay.wait_value`.
    """

    __slots__ = (
        "_current",
        "_due",
        "_early",
        "_lately",
        "_order",
        "_purgatory",
        "_reads",
        "_taken",
        "_values",
        "_waits",
    )

    def __init__(self, purgatory: Purgatory[Any]) -> None:
        self._purgatory = purgatory
        self._reads = 0  # the number of reads that have begun
        self._values: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()  # key -> number of its read, value
        self._lately: dict[Hashable, None] = {}  # the keys that have been read last, the oldest first
        self._waits: dict[int, RelayWait] = {}  # by the id() of their operations
        self._early: dict[Hashable, _Group] = {}  # the waits that are recorded under each key
        self._taken: deque[_Group] = deque()  # the groups of keys that have been read, until they are taken apart
        self._due: dict[int, RelayWait] = {}  # the waits to be tried after the checks of a read, by arrival
        self._order: list[int] = []  # a heap of the keys of _due, including those of waits that have ended
        self._current: RelayWait | None = None  # the wait whose condition runs or whose operation is submitted

    # The mapping

    def __getitem__(self, key: K) -> V:
        value = self._value(key)
        if value is _ABSENT:
            raise KeyError(key)
        return value  # type: ignore[no-any-return]

    def __contains__(self, key: object) -> bool:
        return self._value(key) is not _ABSENT

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys that are present now."""
        wait = self._wait()
        if wait is not None:
            for key in wait.keys:
                self._value(key)  # iterating depends on all keys of the wait
        keys: list[Any] = list(self._values)
        return iter([key for key in keys if self._value(key) is not _ABSENT])

    def __len__(self) -> int:
        """Return the number of keys that are present.  Cost: O(watched keys)."""
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<RelayState of purgatory {self._purgatory.name!r} keys={len(self._values)}>"

    def _value(self, key: Any) -> Any:
        wait = self._wait()
        own = _ABSENT if wait is None else wait.keys.get(key, _ABSENT)
        number, value = self._values.get(key if own is _ABSENT else own, (0, _ABSENT))
        if wait is not None and own is not _ABSENT:
            if number >= wait.since:
                return value  # even in on_complete(), after the operation has left the key
            if wait.unknown is _ABSENT:
                wait.unknown = own
            self._record(wait, own)
            return _ABSENT
        if wait is not None and number < wait.since:
            return _ABSENT
        return value if value is not _ABSENT and self._purgatory.is_watched(key) else _ABSENT

    def _record(self, wait: RelayWait, key: Hashable) -> None:
        """Make the next read of the unknown key try the wait, unless the wait is recorded under another key or due."""
        if wait.operation is None or not wait.has_thresholds:
            return
        group = wait.group
        if group is not None:
            if group.skips or group.number < wait.since:
                return
            self._remove_record(wait)  # the check after the read of that key tries every wait
        self._join(wait, key)

    def _join(self, wait: RelayWait, key: Hashable) -> None:
        group = self._early.get(key)
        if group is None:
            group = self._early[key] = _Group(key)
        group.waits[wait] = None
        wait.group = group

    def _remove_record(self, wait: RelayWait) -> None:
        group, wait.group = wait.group, None
        if group is not None:
            del group.waits[wait]
            if not group.waits and group.number == 0:
                del self._early[group.key]

    def _wait(self) -> RelayWait | None:
        """Return the wait that is looking up a key, or None if the running code does not belong to a wait."""
        current = self._current
        if current is not None:
            operation = current.operation
            if operation is None or (operation._core is not None and not is_parked(operation)):
                return current  # its condition is running, or the operation is tried for the first time
        trying = self._purgatory._core._trying
        return None if trying is None else self._waits.get(id(trying))

    # Waits

    def begin(self, operation: DelayedOperation[Any] | None, keys: Collection[Hashable]) -> RelayWait:
        """Record a wait that begins now.  ``operation``: None for a condition that :meth:`known_only` wraps."""
        wait = RelayWait(operation, keys, self._reads + 1)
        if operation is not None and self._waits.setdefault(id(operation), wait) is wait:
            self._current = wait
        return wait

    def end(self, wait: RelayWait) -> None:
        """Forget the wait, and the values of its keys that no longer have a watcher."""
        operation, wait.operation, wait.give_back = wait.operation, None, None
        # The operation's wrapped condition refers to the wait, so clearing these references leaves no cycle.
        if operation is not None and self._waits.get(id(operation)) is wait:
            del self._waits[id(operation)]
            self._due.pop(operation._op_id, None)
        if self._current is wait:
            self._current = None
        self._remove_record(wait)
        for key in wait.keys:
            if key in self._values and not self._purgatory.is_watched(key):
                del self._values[key]

    @contextlib.contextmanager
    def of(self, wait: RelayWait) -> Iterator[None]:
        """Attribute the code that runs in the block to the wait."""
        outer, self._current = self._current, wait
        try:
            yield
        finally:
            self._current = outer

    def known_only(self, wait: RelayWait, get: Callable[[], T], nothing: Any) -> Callable[[], T]:
        """Wrap the wait's condition, so that it returns ``nothing`` while it depends on a key that is not known yet."""

        def known() -> T:
            if wait.awaited is not _ABSENT and not self._is_known(wait.awaited, wait):
                self._record(wait, wait.awaited)  # the key whose read led to this call need not be the awaited one
                return nothing  # type: ignore[no-any-return]
            wait.unknown = wait.awaited = _ABSENT
            try:
                with self.of(wait):
                    result = get()
            except Exception:
                if wait.unknown is _ABSENT:
                    raise
                return nothing  # type: ignore[no-any-return]
            if wait.unknown is _ABSENT or is_coroutine(result):
                return result
            if wait.give_back is not None and result is not nothing:
                wait.awaited = wait.unknown  # first, because on_abandoned() may check the key
                wait.give_back(result)
            return nothing  # type: ignore[no-any-return]

        return known

    def _is_known(self, key: Hashable, wait: RelayWait) -> bool:
        """Return whether a read that began after the wait has stored a value of the key, or found that it has none."""
        number, _ = self._values.get(key, (0, _ABSENT))
        return number >= wait.since

    # Reads

    @property
    def next_read(self) -> int:
        """The number of the next read."""
        return self._reads + 1

    def keys_read(self) -> list[Hashable]:
        """Return the keys that have a value, or whose last read found that they have none."""
        return list(self._values)

    def is_older(self, key: Hashable, number: int) -> bool:
        """Return whether the key has been read, but only by reads before the one with this number."""
        return 0 < self._values.get(key, (0, _ABSENT))[0] < number

    def begin_read(self) -> int:
        """Return the number of a read that begins now."""
        self._reads += 1
        return self._reads

    def store(self, key: Hashable, found: Mapping[Any, Any], number: int) -> None:
        """Replace the value of the key with what a read found."""
        if self._purgatory.is_watched(key):
            self._values[key] = number, found.get(key, _ABSENT)
            self._values.move_to_end(key)
        else:
            self._values.pop(key, None)
        self._lately.pop(key, None)  # to move it to the end
        self._lately[key] = None
        if len(self._lately) > _REMEMBERED:
            del self._lately[next(iter(self._lately))]
        self.examine(2)

    def checked(self, key: Hashable, value: float | None, number: int) -> None:
        """Note that the key, which the read has stored, is checked with this value.  If the check has a value, the
        waits that are recorded under the key and began before the read become due.  Cost: O(1).
        """
        group = self._early.pop(key, None)
        if group is not None:
            group.number = number
            group.skips = value is not None
            self._taken.append(group)

    @property
    def has_due(self) -> bool:
        """Whether :meth:`try_due` has anything to do."""
        return bool(self._taken or self._order)

    def try_due(self, number: int) -> None:
        """Take the next ``number`` steps, or all that are left: take the groups apart, and then try the due waits.

        Call this method after the checks of a read, outside a check, and before the next read.
        """
        for _ in range(number):
            if self._taken:
                self._take_apart(self._taken[0])
            elif self._order:
                wait = self._due.pop(heapq.heappop(self._order), None)
                if wait is not None:
                    cursor = WatchCursor(Watch(None, wait.operation), NO_ID)  # over this operation only
                    self._purgatory._core.check_some(cursor, 1)
            else:
                return

    def _take_apart(self, group: _Group) -> None:
        """Decide what becomes of one wait of the group whose key has been read."""
        if not group.waits:
            self._taken.popleft()
            return
        wait, _ = group.waits.popitem()
        wait.group = None
        if group.number < wait.since:  # the read began before the wait
            self._join(wait, group.key)
        elif group.skips:
            assert wait.operation is not None
            arrival = wait.operation._op_id
            self._due[arrival] = wait
            heapq.heappush(self._order, arrival)

    def examine(self, number: int) -> None:
        """Examine the ``number`` oldest values, and remove each one whose key is no longer watched."""
        values = self._values
        for _ in range(min(number, len(values))):
            key = next(iter(values))
            if self._purgatory.is_watched(key):
                values.move_to_end(key)
            else:
                del values[key]

    def forget(self, key: Hashable) -> bool:
        """Remove the value of the key, which may have changed while nothing waits on it.

        Return False if an operation that has just left the key may still look it up, in ``on_complete()``; the value is
        removed when that wait ends.
        """
        if key in self._values:
            wait = self._wait()
            if wait is not None and key in wait.keys:
                return False
            del self._values[key]
        return True

    def has_read(self, key: Hashable) -> bool:
        """Return whether the key has been read since the first of its current watchers arrived, or lately."""
        return key in self._values or key in self._lately

    def forget_read(self, key: Hashable) -> None:
        """Note that the key could not be read."""
        self._lately.pop(key, None)

    def clear(self) -> None:
        """Forget all values and keys, because the relay is closed."""
        self._values.clear()
        self._lately.clear()

    @property
    def kept(self) -> int:
        """The number of values in memory."""
        return len(self._values)

    def _check(self) -> None:
        """Assert the invariants.  Call this method only while no condition is running."""
        assert all(wait.operation is not None and id(wait.operation) == number for number, wait in self._waits.items())
        assert all(0 < number <= self._reads for number, _ in self._values.values())
        assert len(self._lately) <= _REMEMBERED
        recorded: set[RelayWait] = set()
        for group in [*self._early.values(), *self._taken]:
            assert all(wait.operation is not None and wait.group is group for wait in group.waits)
            recorded.update(group.waits)
        for key, group in self._early.items():
            assert group.waits, f"no wait is recorded under {key!r}"
            assert group.key == key and group.number == 0
        assert all(0 < group.number <= self._reads for group in self._taken)
        assert all(wait.group is None or wait in recorded for wait in self._waits.values())
        # A due wait may be recorded at the same time: another check has tried it, and it has looked up an unknown key.
        for arrival, wait in self._due.items():
            assert wait.operation is not None and wait.operation._op_id == arrival
        assert self._due.keys() <= set(self._order)
