"""Estimate what another timeout, other limits, or a second purgatory would have changed; Spark is not used.

A journal records what happened with the settings in effect at the time, so some figures can only be bounded:

*   The effect of **a shorter timeout** is certain: an operation that ended later would have expired.
*   The effect of **a longer timeout** is not certain: an operation that expired would either have completed between its
    recorded deadline and the new one, or have expired at the new one.  The lower bound of ``expired`` assumes that all
    such operations would have completed, as early as possible; the upper bound assumes that all would have expired.
*   **A limit**: if the allowed number of operations already waits (in the process or on a key), the next operation that
    would have to wait there is refused.  The order within a millisecond is unknown: the lower bound lets operations end
    first; the upper bound lets them park first.  Operations that were refused in the recording have no row; with a
    higher limit, some or all of them would have been parked.
*   **With a limit, the two figures are not bounds.**  Each follows from one of the two assumptions above.  A mixed case
    can lie outside both figures: if an operation waits longer and fills the limit, a second operation is refused, which
    may leave room for two others.  Real bounds would need every combination.
*   **Operations that parked before the selected time** and still wait in it are among the waiting operations, and a
    limit applies to them too, but their outcomes are not counted.  Those that end before the selected time are left
    out: with a limit, they might have kept some of the others out.
*   **A pending operation** waits up to and including the millisecond of the last record of its process, whatever that
    record is.  If the process had ended before the selected time, nothing in it waits then.
*   What clients would do after a different outcome, such as sending a second request, is not in a journal and is not
    estimated.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from purgatory.journal.schema import COMPLETED, EXPIRED, OUTCOMES, PENDING

__all__ = ["BYTES_PER_OPERATION", "Bounds", "Scenario", "Waits", "estimate", "summed"]

BYTES_PER_OPERATION: Final = 280  # memory of a parked operation with one key, in the compiled core
_BEGINNING_MS: Final = -(1 << 62)
_COMPLETED, _EXPIRED, _PENDING = (OUTCOMES.index(name) for name in (COMPLETED, EXPIRED, PENDING))


@dataclass(frozen=True, slots=True)
class Scenario:
    """Other settings; None keeps the recorded ones.  Raises ValueError if a setting is not positive.

    ``timeout_ms``: the timeout of every operation that has one.  ``split``: ``key`` gives half of the keys to a second
    purgatory; any other string is a kind that gets its own purgatory.
    """

    timeout_ms: int | None = None
    max_parked: int | None = None
    max_parked_per_key: int | None = None
    split: str | None = None

    def __post_init__(self) -> None:
        for name in ("timeout_ms", "max_parked", "max_parked_per_key"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    def __str__(self) -> str:
        parts = [] if self.timeout_ms is None else [f"timeout {self.timeout_ms / 1000:g} s"]
        parts += [
            f"{name}={value}"
            for name in ("max_parked", "max_parked_per_key")
            if (value := getattr(self, name)) is not None
        ]
        if self.split is not None:
            parts.append("half of the keys apart" if self.split == "key" else f"kind {self.split} apart")
        return ", ".join(parts) or "as recorded"


@dataclass(frozen=True, slots=True)
class Waits:
    """The operations of one purgatory in one process, column by column, in the order of parking.

    The times are in milliseconds on one clock.  ``deadline_ms`` and ``finished_ms`` are -1 where there is none.
    ``on_deadline``: whether the timer expired the operation.  ``since_ms``: the beginning of the selected time, as a
    number, or for each operation if the process's wall clock was changed; operations that parked earlier are not
    counted, and only wait.  ``process_last_ms``: the time of the last record of the process, if it is later than all of
    these times.  Pending operations wait until then, and no operation waits longer.
    """

    parked_ms: Any
    deadline_ms: Any
    finished_ms: Any
    outcomes: Any
    on_deadline: Any
    kinds: Sequence[str]
    keys: Sequence[Sequence[str]]
    since_ms: Any = _BEGINNING_MS
    process_last_ms: int = _BEGINNING_MS

    @property
    def counted(self) -> Any:
        """Which operations are counted."""
        return self.parked_ms >= self.since_ms


@dataclass(frozen=True, slots=True)
class Bounds:
    """The estimate for one purgatory in one process: a lower and an upper bound for each figure.

    With a limit, the two figures are not bounds: see the beginning of the module.

    ``total_ms``: the sum of the waits (the mean occupancy times the time that the journal covers), without the parts
    before the selected time.
    ``undivided``: the number of operations with keys in both halves; these operations count toward the first purgatory.
    """

    operations: int
    completed: tuple[int, int]
    expired: tuple[int, int]
    refused: tuple[int, int]
    peak: tuple[int, int]
    total_ms: tuple[int, int]
    undivided: int = 0


def estimate(waits: Waits, scenario: Scenario) -> list[Bounds]:
    """Return the bounds for the purgatory, or for the two that it is split into."""
    waited = np.fromiter((bool(keys) for keys in waits.keys), dtype=bool, count=len(waits.keys))
    parts, undivided = _parts(waits, scenario.split)
    return [
        _bounds(waits, waited, part, scenario, undivided if number == 0 else 0) for number, part in enumerate(parts)
    ]


def _parts(waits: Waits, split: str | None) -> tuple[list[Any], int]:
    number = len(waits.keys)
    if split is None:
        return [np.ones(number, dtype=bool)], 0
    if split != "key":
        second = np.fromiter((kind == split for kind in waits.kinds), dtype=bool, count=number)
        return [~second, second], 0
    halves = [{zlib.crc32(key.encode("utf-8", "surrogatepass")) % 2 for key in keys} for keys in waits.keys]
    second = np.fromiter((half == {1} for half in halves), dtype=bool, count=number)
    both = np.fromiter((len(half) == 2 for half in halves), dtype=bool, count=number)
    return [~second, second], int((both & waits.counted).sum())


def _bounds(waits: Waits, waited: Any, part: Any, scenario: Scenario, undivided: int) -> Bounds:
    sides = [_side(waits, part & waited, part, scenario, upper=upper) for upper in (False, True)]
    completed, expired, refused, peak, total = ((min(pair), max(pair)) for pair in zip(*sides, strict=True))
    return Bounds(int((part & waits.counted).sum()), completed, expired, refused, peak, total, undivided)


def _side(waits: Waits, waited: Any, part: Any, scenario: Scenario, *, upper: bool) -> tuple[int, int, int, int, int]:
    """Return one of the two bounds of each figure, for one part of the operations.

    ``part``: which operations belong to the part.  ``waited``: which of these operations had to wait.
    """
    end, expired = _ends(waits, scenario.timeout_ms, upper=upper)
    mine = np.flatnonzero(waited & (end >= waits.since_ms))
    refused = _refused(waits, mine, end, scenario, upper=upper)
    kept = np.setdiff1d(mine, refused, assume_unique=True)
    counted = part & waits.counted
    refusals = int(counted[refused].sum())
    counted[refused] = False
    late = counted & expired
    in_time = counted & waits.on_deadline & ~expired  # with a longer timeout
    completed = (counted & (waits.outcomes == _COMPLETED) & ~expired) | in_time
    peak, total = _occupancy(np.maximum(waits.parked_ms, waits.since_ms)[kept], end[kept])
    return int(completed.sum()), int(late.sum()), refusals, peak, total


def _ends(waits: Waits, timeout_ms: int | None, *, upper: bool) -> tuple[Any, Any]:
    """Return when each operation ends in the scenario, and whether it ends because of its deadline."""
    known_ms = max(int(waits.parked_ms.max(initial=0)), int(waits.finished_ms.max(initial=0)))
    process_last_ms = max(known_ms, waits.process_last_ms)
    pending = waits.outcomes == _PENDING
    end = np.where(pending, process_last_ms + 1, waits.finished_ms)
    if timeout_ms is None:
        return end, waits.on_deadline
    has_timeout = waits.deadline_ms >= 0
    due = waits.parked_ms + timeout_ms
    sooner = has_timeout & (due < end)
    later = waits.on_deadline & (due > end)
    # What expired waits at most as long as anything else is known to have waited: a mean covers no later time.
    last_ms = process_last_ms if pending.any() else np.minimum(process_last_ms, np.maximum(known_ms, waits.since_ms))
    if not upper:  # the operation completes as soon as it may
        return np.where(sooner, due, end), sooner | (waits.on_deadline & ~later)
    return np.where(sooner | later, np.minimum(due, last_ms + 1), end), sooner | waits.on_deadline


def _refused(waits: Waits, mine: Any, end: Any, scenario: Scenario, *, upper: bool) -> Any:
    """Return the operations that a limit refuses, in order of time."""
    if scenario.max_parked is None and scenario.max_parked_per_key is None:
        return np.empty(0, dtype=np.int64)
    most = scenario.max_parked if scenario.max_parked is not None else len(mine) + 1
    per_key = scenario.max_parked_per_key
    at = np.concatenate([waits.parked_ms[mine], end[mine]])
    is_end = np.repeat([0, 1], len(mine))
    which = np.concatenate([mine, mine])
    # No operation ends before it parks: if it ends in the millisecond in which it parks, its end comes last.
    instant = np.concatenate([end[mine] == waits.parked_ms[mine]] * 2)
    rank = np.where(instant, is_end, is_end if upper else 1 - is_end)
    order = np.lexsort((which, rank, at))
    parked: set[int] = set()
    on_key: dict[str, int] = {}
    refused = []
    for number, ends in zip(which[order].tolist(), is_end[order].tolist(), strict=True):
        keys = waits.keys[number] if per_key is not None else ()
        if ends:
            if number in parked:
                parked.remove(number)
                for key in keys:
                    on_key[key] -= 1
        elif len(parked) >= most or (per_key is not None and any(on_key.get(key, 0) >= per_key for key in keys)):
            refused.append(number)
        else:
            parked.add(number)
            for key in keys:
                on_key[key] = on_key.get(key, 0) + 1
    return np.array(refused, dtype=np.int64)


def _occupancy(parked: Any, end: Any) -> tuple[int, int]:
    """Return the highest number of operations that wait at the end of a millisecond, and the sum of all waits."""
    if not len(parked):
        return 0, 0
    at = np.concatenate([parked, end])
    change = np.repeat(np.array([1, -1], dtype=np.int64), len(parked))
    order = np.argsort(at, kind="stable")
    level = np.cumsum(change[order])
    at_end = np.append(np.flatnonzero(np.diff(at[order])), len(at) - 1)
    return int(level[at_end].max(initial=0)), int((end - parked).sum())


def summed(bounds: Sequence[tuple[str, int, Bounds]]) -> Iterator[tuple[str, int, Bounds]]:
    """Yield the sums over all processes for each purgatory and part; the peak is the highest peak of any process."""
    names = sorted({(name, part) for name, part, _ in bounds})
    for name, part in names:
        mine = [one for other, number, one in bounds if (other, number) == (name, part)]

        def add(column: str, mine: list[Bounds] = mine) -> tuple[int, int]:
            pairs = [getattr(one, column) for one in mine]
            return sum(low for low, _ in pairs), sum(high for _, high in pairs)

        peak = max(one.peak[0] for one in mine), max(one.peak[1] for one in mine)
        yield (
            name,
            part,
            Bounds(
                sum(one.operations for one in mine),
                add("completed"),
                add("expired"),
                add("refused"),
                peak,
                add("total_ms"),
                sum(one.undivided for one in mine),
            ),
        )
