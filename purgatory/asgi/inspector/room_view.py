"""What an inspector shows about one purgatory."""

import contextlib
import math
import re
import secrets
import sys
import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from purgatory import Purgatory, SystemTimer
from purgatory.aio.changes import _Change
from purgatory.core.operation.private_key import PrivateKey, shown_key
from purgatory.core.purgatory import PurgatoryCore
from purgatory.core.survey import AGES_MS, HotKey, Row, Survey, rows_of_key
from purgatory.core.timer.units import to_seconds
from purgatory.core.watch.validation import UNLIMITED, is_plain
from purgatory.core.watch.watcher_lists import SHARDS
from purgatory.texts import key_text, shortened, type_name

from .checks import Checks
from .endings import Endings
from .history import History
from .slices import Slices

if TYPE_CHECKING:
    from purgatory.otel import Tracing
    from purgatory.relay import Relay

__all__ = ["HOT_KEYS", "KeyIds", "RoomView", "timer_view"]

HOT_KEYS: Final = 8
_MOST_BUCKETS: Final = 512  # in one level; if there are more buckets, the page shows only the totals
_MOST_IDS: Final = 4096
_LONGEST_SEARCHED: Final = 1000  # characters of a key
_SEARCHED: Final = 64  # keys that are compared before the search examines its budget


class KeyIds:
    """Short IDs for the keys that a frame shows, so that a browser can name a key that is not a str.

    The IDs are random, so only readers of a frame know them.  An ID stands for exactly one key, even if two keys look
    alike, because an operator uses it to end operations.  The last four thousand keys are kept while a viewer is
    connected.
    """

    def __init__(self) -> None:
        self._keys: dict[str, tuple[int, Hashable]] = {}
        self._ids: dict[tuple[int, Hashable, str], str] = {}

    def of(self, room: int, key: Hashable, text: str) -> str:
        """Return the ID of a key in the purgatory with this number."""
        plain = is_plain(key)  # hashing any other key would run the user's code
        identity = (room, key, "") if plain else (room, type_name(key), text)
        found = self._ids.get(identity)
        if found is None or not (plain or _equal(self._keys[found][1], key)):
            if len(self._keys) >= _MOST_IDS:
                self.clear()
            found = self._ids[identity] = secrets.token_urlsafe(9)
        self._keys[found] = (room, key)
        return found

    def find(self, identity: str) -> tuple[int, Hashable] | None:
        """Return the number of the purgatory and the key, or None if the ID is unknown."""
        return self._keys.get(identity)

    def clear(self) -> None:
        """Forget all keys."""
        self._keys.clear()
        self._ids.clear()


def _equal(one: Hashable, other: Hashable) -> bool:
    """Return whether two keys with the same class and text are the same key."""
    try:
        return one is other or bool(one == other)
    except Exception:
        return False


class RoomView:
    """One purgatory with its history, its survey, its checks, and its sample of endings.

    Use the object in the purgatory's loop.
    """

    def __init__(
        self, number: int, room: Purgatory[Any], relays: Sequence["Relay"], history: float, ids: KeyIds
    ) -> None:
        self.number = number
        self.room = room
        self.history: History = History(room, relays, history)
        self.endings: Endings = Endings(room)
        self.checks: Checks = Checks(room)
        self._core = room._core
        self._ids = ids
        self._survey: Survey | None = None  # under way
        self._survey_began = 0.0
        self._buckets: list[tuple[int, int, list[int]]] = []
        self._done: Survey | None = None  # the last complete survey
        self._done_at = 0.0
        self._took = 0.0
        self._done_buckets: list[tuple[int, int, list[int]]] = []

    # The survey

    async def survey(self, slices: Slices, until: float, rows: int) -> bool:
        """Continue the survey until it is complete or ``until`` has passed; return whether it is complete."""
        if self._survey is None:
            self._buckets = _buckets_of(self.room.timer)
            places = {identity: place for _, identity, place in self._buckets}
            now_ms = self.room.timer.clock.now_ms()
            self._survey = Survey(self._core, now_ms, HOT_KEYS, rows, None, places, _Change)
            self._survey_began = time.monotonic()
        survey = self._survey
        if not await _run(survey, slices, until):
            return False
        self._done = survey
        self._done_buckets = self._buckets
        self._done_at = time.monotonic()
        self._took = self._done_at - self._survey_began
        self._survey = None
        return True

    async def rows_of_kind(self, slices: Slices, until: float, rows: int, kind: str | None) -> tuple[list[Row], bool]:
        """Return the operations of one kind that have waited the longest, and whether the search is complete."""
        survey = Survey(self._core, self.room.timer.clock.now_ms(), 0, rows, kind)
        complete = await _run(survey, slices, until)
        return survey.rows(), complete

    def forget(self) -> None:
        """Drop what was collected, because no viewer is connected any longer."""
        self.endings.end()
        self.checks.end()
        self.history.forget_recent()
        self._survey = self._done = None
        self._buckets = []
        self._done_buckets = []

    # The frame

    async def view(self, slices: Slices) -> dict[str, Any]:
        """Return what a frame shows about this purgatory."""
        room, core = self.room, self._core
        counters = core.counters
        now = self.history.look()
        survey = self._done if self._done is not None else self._survey
        assert survey is not None
        seen_ms = survey.now_ms
        await slices.pause_if_due()
        hot = {
            "watchers": [self._hot_key(key, seen_ms) for key in survey.by_watchers()],
            "total_wait": [self._hot_key(key, seen_ms) for key in survey.by_total_wait()],
            "expired": [
                {**self.key(found.key), "ended": found.ended, "expired": found.expired}
                for found in self.endings.by_expired(HOT_KEYS)
            ],
        }
        await slices.pause_if_due()
        longest = await self.rows(survey.rows(), slices)
        checks = await self._checked(slices)
        fullest = hot["watchers"][0]["watchers"] if hot["watchers"] else 0
        kinds = sorted(survey.kinds.values(), key=lambda kind: (-kind.parked, kind.oldest_ms))
        return {
            "name": shortened(room.name),
            "closed": room.closed,
            "clock": to_seconds(now.at_ms),
            "parked": counters.parked,
            "subscribed": counters.subscribed,
            "watched": counters.watched,
            "keys": core.watcher_lists.num_keys(),
            "delayed": counters.delayed,
            "endless": counters.parked - counters.delayed,
            "totals": now.totals,
            "observers_detached": counters.detached,
            "rates": self.history.rates(now),
            "minute": self.history.window(now, 60.0),
            "window": self.history.window(now, max(60.0, self.history.seconds)),
            "lines": self.history.lines(now),
            "limits": {
                "max_parked": _limit(core._max_parked),
                "max_parked_per_key": _limit(core._max_parked_per_key),
                "fullest_key": fullest,
            },
            "ages": {"edges": [to_seconds(edge_ms) for edge_ms in AGES_MS], "parked": list(survey.ages)},
            "kinds": [
                {
                    "kind": shortened(kind.kind),
                    "parked": kind.parked,
                    "endless": kind.endless,
                    "unawaited": kind.unawaited,
                    "oldest": to_seconds(max(0, seen_ms - kind.oldest_ms)),
                    **({"subscribed": kind.subscribed} if kind.subscribed else {}),
                }
                for kind in kinds
            ],
            "hot": hot,
            "checks": checks,
            "longest": longest,
            "failures": [
                {
                    "at": failure.at,
                    "ago": to_seconds(now.at_ms - failure.at_ms),
                    "kind": shortened(failure.kind),
                    "key": failure.keys,
                    "error": failure.error,
                    "place": failure.place,
                }
                for failure in reversed(self.endings.failures)
            ],
            "survey": {
                "complete": survey is self._done,
                "visited": survey.visited,
                "seconds": round(self._took, 3),
                "ago": round(time.monotonic() - self._done_at, 3) if survey is self._done else 0.0,
            },
        }

    async def rows(self, rows: Iterable[Row], slices: Slices) -> list[dict[str, Any]]:
        """Return rows of operations as data for JSON."""
        now_ms, now = self.room.timer.clock.now_ms(), time.time()
        tracers = _tracers(self._core)
        instance = self._core._notifier.instance
        made = []
        for row in rows:
            made.append(
                {
                    "op_id": row.op_id,
                    "kind": shortened(row.kind),
                    "keys": [
                        {**self._watched_key(key), "threshold": _number(threshold)} for key, threshold in row.keys
                    ],
                    "more_keys": row.num_keys - len(row.keys),
                    "waited": (waited := to_seconds(max(0, now_ms - row.since_ms))),
                    "since": round(now - waited, 3),
                    "left": None if row.until_ms is None else to_seconds(row.until_ms - now_ms),
                    "awaited": row.awaited,
                    "trace_id": _trace_id(tracers, instance, row.op_id),
                }
            )
            await slices.pause_if_due()
        return made

    def key(self, key: Hashable) -> dict[str, Any]:
        """Return the text, the class, and the ID of a key."""
        shown = shown_key(key)
        text = key_text(shown)
        kind = "lock" if isinstance(key, PrivateKey) else shortened(type_name(key))
        return {"key": text, "type": kind, "id": self._ids.of(self.number, key, text)}

    def _watched_key(self, key: Hashable) -> dict[str, Any]:
        """Return what :meth:`key` returns, plus the number of times that the key was checked (None if that is not
        known).
        """
        found = self.checks.of(key)
        unknown = self.checks.seconds is None or isinstance(key, PrivateKey)
        checks = found.checks if found is not None else 0 if not unknown and self.checks.complete else None
        return {**self.key(key), "checks": checks}

    async def _checked(self, slices: Slices) -> dict[str, Any] | None:
        """Return the recorded checks, and the most recently checked keys on which no operation waited."""
        checks = self.checks
        if checks.seconds is None:
            return None
        unwatched = []
        now_ms = self.room.timer.clock.now_ms()
        for found in checks.unwatched(HOT_KEYS):
            ago = to_seconds(now_ms - found.at_ms)
            unwatched.append({**self.key(found.key), "checks": found.checks, "ago": ago})
            await slices.pause_if_due()
        return {
            "seconds": checks.seconds,
            "total": checks.total,
            "watched": checks.watched,
            "complete": checks.complete,
            "unwatched": unwatched,
        }

    def _hot_key(self, hot: HotKey, seen_ms: int) -> dict[str, Any]:
        return {
            **self._watched_key(hot.key),
            "watchers": hot.watchers,
            "total_wait": to_seconds(hot.total_wait_ms),
            "oldest": to_seconds(max(0, seen_ms - hot.oldest_ms)),
        }

    # The search

    async def search(self, text: str, slices: Slices, until: float, most_keys: int, most_rows: int) -> dict[str, Any]:
        """Return the keys whose text contains ``text``, the operations on the best match, whether the best match equals
        ``text``, and whether all keys were compared.

        A key whose text equals ``text`` comes first; the others are in the order of their texts and numbers.
        """
        lists = self._core.watcher_lists
        exact = [key for key in _exact_keys(text) if lists.count(key)]
        found: list[tuple[str, Hashable]] = []
        complete = True
        wanted = text.casefold()
        for visited, key in enumerate(_keys(self._core)):
            if len(exact) + len(found) >= most_keys or time.monotonic() >= until:
                complete = False
                break
            shown = shown_key(key)
            plain = type(shown) is str
            shown_text = shown[:_LONGEST_SEARCHED] if plain else key_text(shown)
            if shown_text == text:
                if type(key) not in (str, int):  # such a key is already in the list
                    exact.append(key)
            elif wanted in shown_text.casefold():
                found.append((shown_text, key))
            if not plain or visited % _SEARCHED == 0:
                await slices.pause_if_due()
        others = [key for _, key in sorted(found, key=_by_text)]
        keys = []
        for key in (*exact, *others):
            keys.append({**self._watched_key(key), "watchers": self._count(key)})
            await slices.pause_if_due()
        rows: list[Row] = []
        for key in exact or others[:1]:
            rows += self._rows_of_key(key, most_rows - len(rows))
        operations = await self.rows(rows, slices)
        return {"keys": keys, "operations": operations, "exact": bool(exact), "complete": complete}

    async def rows_of_key(
        self, key: Hashable, slices: Slices, most_rows: int
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """If any operations wait on the key, return the key and these operations, in the order of arrival."""
        watchers = self._count(key)
        keys = [{**self._watched_key(key), "watchers": watchers}] if watchers else []
        return keys, await self.rows(self._rows_of_key(key, most_rows), slices)

    def _count(self, key: Hashable) -> int:
        try:
            return self._core.watcher_lists.count(key)
        except Exception:
            return 0  # hashing or comparing the key raises

    def _rows_of_key(self, key: Hashable, number: int) -> list[Row]:
        try:
            return rows_of_key(self._core, key, number)
        except Exception:
            return []

    # The timer

    def timer_tasks(self) -> dict[tuple[int, int], int]:
        """Return the number of operations of this purgatory in each slot of each level, as found by the last survey."""
        found: dict[tuple[int, int], int] = {}
        for level, _, place in self._done_buckets or self._buckets:
            if place[1]:
                slot = level, place[0]
                found[slot] = found.get(slot, 0) + place[1]
        return found


def timer_view(timer: SystemTimer, views: list[RoomView]) -> dict[str, Any]:
    """Return what a frame shows about a timer and about the operations of these purgatories on it."""
    now_ms = timer.wheel.current_time_ms
    next_ms = timer.next_expiration_ms
    tasks: dict[tuple[int, int], int] = {}
    for view in views:
        for place, number in view.timer_tasks().items():
            tasks[place] = tasks.get(place, 0) + number
    levels = []
    for number, wheel in enumerate(timer.wheel.levels()):
        tick_ms, size = wheel.tick_ms, wheel.wheel_size
        here = now_ms // tick_ms
        buckets: dict[int, list[int]] = {}
        for (level, slot), held in tasks.items():
            if level == number:
                ahead = (slot - here) % (2 * size)
                bucket = buckets.setdefault(slot % size, [slot % size, 0, 0])
                bucket[1] = max(0, (here + ahead) * tick_ms - now_ms) if ahead < 2 * size - 1 else 0
                bucket[2] += held
        levels.append(
            {
                "tick_ms": tick_ms,
                "wheel_size": size,
                "interval_ms": wheel.interval_ms,
                "slot": here % size,
                "tasks": sum([bucket[2] for bucket in buckets.values()]),
                "buckets": sorted(buckets.values()) if size <= _MOST_BUCKETS else [],
            }
        )
    return {
        "rooms": [shortened(view.room.name) for view in views],
        "size": timer.size,
        "cascades": timer.cascades,
        "next_ms": None if next_ms is None else max(0, next_ms - now_ms),
        "levels": levels,
    }


async def _run(survey: Survey, slices: Slices, until: float) -> bool:
    """Run the survey in slices; return whether it is complete."""
    while survey.step(64):
        await slices.pause_if_due()
        if time.monotonic() >= until:
            return False
    return True


def _buckets_of(timer: SystemTimer) -> list[tuple[int, int, list[int]]]:
    """Return (level, ``id()`` of the bucket, [slot, number of operations]) for every bucket of the timer."""
    found = []
    for level, wheel in enumerate(timer.wheel.levels()):
        if wheel.wheel_size <= _MOST_BUCKETS:
            for slot, bucket in enumerate(wheel._buckets):
                found.append((level, id(bucket), [slot, 0]))
    return found


def _tracers(core: PurgatoryCore) -> "list[Tracing]":
    """Return the observers made by ``tracing()``.  Any other observer may have a ``trace_id`` of its own."""
    spans = sys.modules.get("purgatory.otel.spans")  # the code that made such an observer has imported the module
    kind: type[Tracing] | None = getattr(spans, "Tracing", None)
    return [] if kind is None else [found for found in core._notifier.observers() if isinstance(found, kind)]


def _trace_id(tracers: "list[Tracing]", instance: int | None, op_id: int) -> str | None:
    for tracer in tracers:
        with contextlib.suppress(Exception):  # of a subclass, or of the spans of another tracer provider
            found: object = tracer.trace_id(instance, op_id)
            if isinstance(found, str):
                return found
    return None


def _keys(core: PurgatoryCore) -> Iterator[Hashable]:
    """Yield every key, including the keys of locks, shard by shard."""
    for number in range(SHARDS):
        for key, watchers in core.watcher_lists.counts_of_shard(number):
            if watchers:
                yield key


def _by_text(found: tuple[str, Hashable]) -> list[str | int]:
    """Return the parts of a key's text, with numbers as ints: ``order-155`` comes before ``order-1500``."""
    return [int(part) if number % 2 else part for number, part in enumerate(re.split(r"(\d+)", found[0]))]


def _exact_keys(text: str) -> list[Hashable]:
    """Return the plain keys that the text can mean: the text itself and, if it is a number, the int."""
    keys: list[Hashable] = [text]
    if len(text) < 40 and text.removeprefix("-").isdecimal() and text.isascii() and str(int(text)) == text:
        keys.append(int(text))
    return keys


def _limit(limit: int) -> int | None:
    return None if limit >= UNLIMITED else limit


def _number(threshold: Any) -> Any:
    """Return a threshold for JSON, which has neither infinity nor long integers."""
    if threshold is None or (type(threshold) is int and abs(threshold) < 1 << 53):
        return threshold
    if type(threshold) is float and math.isfinite(threshold):
        return threshold
    return key_text(threshold)
