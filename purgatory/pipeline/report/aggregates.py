"""Reduce rows of a journal, in one pass and without Spark, to aggregates that can be added up.

Each aggregate has a key: a subject, and then names such as purgatory and kind.  It has sums, which are added;
maxima; and a histogram, whose counts are added per value.

=============  ===========================  =======================================================================
subject        names                        contents
=============  ===========================  =======================================================================
``source``     source                       sums: operations, dropped rows; maxima: -first, last, in microseconds
``outcome``    purgatory, kind, outcome     sums: operations, immediate ones
``wait``       purgatory, kind              sum of waits; longest wait; histogram of rounded waits
``step``       purgatory, outcome           histogram of the steps of the wait histogram
``late``       purgatory                    sum: expired by closing; highest lateness; histogram of rounded lateness
``time``       purgatory, kind, outcome     histogram of the steps of time in which the operations parked
``at once``    purgatory, kind              the same for immediate operations
``time wait``  purgatory, kind              histogram of steps of time and waits; see :func:`step_and_duration`
``time late``  purgatory, kind              histogram of steps of time and lateness
``refused``    purgatory                    histogram of steps of time; see :func:`_add_refused`
``notes``      purgatory                    histogram of the steps that notes of refused operations cover; see
                                            :func:`covered_steps`
``parked``     purgatory                    histogram of arrivals by bucket
``ended``      purgatory                    histogram of ends by bucket
``change``     purgatory, slab              histogram: net change of the number of parked operations by millisecond
``before``     purgatory                    sum: operations that parked before the selected time and waited at its start
``hot``        purgatory, key               sums: operations by outcome, total wait; longest wait; histogram of rounded
                                            waits
=============  ===========================  =======================================================================

All times are in milliseconds unless stated otherwise.  What is known about every key is stored separately, in
:class:`KeyCounts`, because a journal can have millions of keys.

An operation that expired because its purgatory closed has a separate outcome here.  Files from earlier releases do not
mark such operations; in these files, an operation that expired before its deadline or without a deadline counts as
expired by closing.
"""

import pickle
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from math import isqrt
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
from numpy.typing import NDArray

from purgatory.journal.schema import DROPPED, ENDED, EXPIRED, OUTCOMES, PENDING
from purgatory.pipeline.selected_rows import batch_of_names
from purgatory.pipeline.selection import EVERYTHING, Selection

from .verdicts import least_share

__all__ = [
    "BY_CLOSING",
    "COLUMNS",
    "ENDS",
    "HOT_COLUMNS",
    "HOT_OUTCOMES",
    "QUANTILES",
    "RANKINGS",
    "Aggregate",
    "Aggregates",
    "Span",
    "add_hot_rows",
    "add_key_rows",
    "add_rows",
    "added",
    "covered_steps",
    "durations_by_step",
    "durations_within",
    "lower_bound",
    "quantiles",
    "refused_within",
    "rounded",
    "step_and_duration",
]

# The last columns are missing from files of earlier releases.
COLUMNS: Final = (
    *("source", "purgatory", "kind", "keys", "outcome", "parked_at", "finished_at", "deadline", "dropped"),
    *("expired_by_closing", "refused", "anchor_ms"),
)
HOT_COLUMNS: Final = ("purgatory", "keys", "outcome", "parked_at", "finished_at", "deadline", "expired_by_closing")
BY_CLOSING: Final = "expired_by_closing"
_AFTER_EXPIRED: Final = ENDED.index(EXPIRED) + 1
ENDS: Final = (*ENDED[:_AFTER_EXPIRED], BY_CLOSING, *ENDED[_AFTER_EXPIRED:], PENDING)  # the order in tables and plots
HOT_OUTCOMES: Final = (*OUTCOMES, BY_CLOSING)
RANKINGS: Final = ("operations", "wait", "expired")  # the rankings of hot keys
LEAST_OF_A_SHARE: Final = 20  # the fewest operations for a key to be ranked by its share of expired operations
QUANTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999))
SLAB_BUCKETS: Final = 64  # the number of buckets in a slab of time

Key = tuple[str, ...]
Integers = NDArray[np.int64]
_NONE: Final = np.iinfo(np.int64).min
_EXACT_BITS: Final = 16
_COARSE_BITS: Final = 8
_COARSE_CODES: Final = 64 << _COARSE_BITS  # greater than the code of any duration
_EXACT: Final = 1 << _EXACT_BITS  # smaller durations are not rounded
_STEPS_PER_DECADE: Final = 8
_MOST_CELLS: Final = 4_000_000  # in an array that counts by position
# Each purgatory has such an array for the milliseconds of a file: a sparse one would cost more than sorting.
_CELLS_PER_CHANGE: Final = 4
_FEW_CELLS: Final = 10_000
_MOST_KEY_ROWS: Final = 1_000_000
_MOST_COVERED: Final = 1 << 12  # the most steps of a note of refused operations, for its code
# A cell that is a table begins with these bytes; pickled data begins with another byte.  Arrow needs the rest to be
# aligned.
_IS_TABLE: Final = b"table".ljust(64)
# The shortest duration of each step: the eighth root of a power of ten, rounded up.
_STEP_STARTS: Final = np.array([isqrt(isqrt(isqrt(10**step - 1))) + 1 if step else 1 for step in range(8 * 15)])


class Span(NamedTuple):
    """The time that a journal covers, and the selected part of it.

    ``bucket_ms``: the length of a bucket of the occupancy.  ``step_ms``: the length of a step in the tables over time.

    ``last_ms``: for each source, the time of its last record on the process's own clock, even if that record is not
    selected.  Operations that are still pending end in the next millisecond.
    """

    bucket_ms: int
    last_ms: Mapping[str, int]
    selection: Selection = EVERYTHING
    step_ms: int = 60_000


class Aggregate:
    """The aggregate of one key."""

    __slots__ = ("counts", "maxima", "sums", "values")

    def __init__(self, sums: Any = (), maxima: Any = (), values: Any = (), counts: Any = ()) -> None:
        self.sums: Integers = np.asarray(sums, dtype=np.int64)
        self.maxima: Integers = np.asarray(maxima, dtype=np.int64)
        self.values: Integers = np.asarray(values, dtype=np.int64)
        self.counts: Integers = np.asarray(counts, dtype=np.int64)


class KeyCounts:
    """By purgatory and key: the number of operations, their total wait, and how many expired at their deadline."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._rows = 0
        self._most = _MOST_KEY_ROWS

    def add(self, table: pa.Table) -> None:
        """Add a table with the columns ``purgatory``, ``key``, ``operations``, ``wait_ms``, and ``expired``."""
        self._tables.append(table)
        self._rows += table.num_rows
        if self._rows > self._most and len(self._tables) > 1:
            before = self.table()
            self._tables, self._rows = [before], before.num_rows
            self._most = max(_MOST_KEY_ROWS, 2 * before.num_rows)  # otherwise, each call would group the keys again

    def table(self) -> pa.Table:
        """Return one row per purgatory and key."""
        if not self._tables:
            return _KEY_COUNTS.empty_table()
        grouped = pa.concat_tables(self._tables).group_by(["purgatory", "key"])
        summed = grouped.aggregate([(name, "sum") for name in _KEY_SUMS])
        return summed.rename_columns({f"{name}_sum": name for name in _KEY_SUMS}).select(_KEY_COUNTS.names)

    def top(self, number: int, ranking: str = RANKINGS[0]) -> pa.Table:
        """Return the first keys of a ranking; keys with equal figures are in the order of their names.

        ``operations``: the most operations.  ``wait``: the longest total wait.  ``expired``: the highest lower bound
        on the share that expired at the deadline, among keys with at least :data:`LEAST_OF_A_SHARE` operations; see
        :func:`~purgatory.pipeline.report.verdicts.least_share`.
        """
        return _first(self.table(), number, ranking)

    def tops(self, number: int) -> pa.Table:
        """Return the first keys of every ranking, without duplicates."""
        table = self.table()
        tops = pa.concat_tables([_first(table, number, ranking) for ranking in RANKINGS])
        return tops.group_by(tops.column_names).aggregate([])


def _first(table: pa.Table, number: int, ranking: str) -> pa.Table:
    names = [("purgatory", "ascending"), ("key", "ascending")]
    if ranking == "operations":
        return table.sort_by([("operations", "descending"), *names]).slice(0, number)
    if ranking == "wait":
        waited = table.filter(pc.greater(table["wait_ms"], 0))
        return waited.sort_by([("wait_ms", "descending"), *names]).slice(0, number)
    table = table.filter(
        pc.and_(pc.greater_equal(table["operations"], LEAST_OF_A_SHARE), pc.greater(table["expired"], 0))
    )
    least = pa.array(least_share(table["expired"].to_numpy(), table["operations"].to_numpy()), pa.float64())
    order = [("least", "descending"), ("expired", "descending"), *names]
    return table.append_column("least", least).sort_by(order).slice(0, number).drop_columns("least")


_KEY_SUMS: Final = ("operations", "wait_ms", "expired")
_KEY_COUNTS: Final = pa.schema({"purgatory": pa.string(), "key": pa.string(), **dict.fromkeys(_KEY_SUMS, pa.int64())})


class Aggregates:
    """Aggregates by key, and :class:`KeyCounts`."""

    def __init__(self) -> None:
        self.keys: KeyCounts = KeyCounts()
        self._all: dict[Key, list[Aggregate]] = {}

    def add(self, key: Key, sums: Any = (), maxima: Any = (), values: Any = (), counts: Any = ()) -> None:
        """Add sums, maxima, and the values and counts of a histogram to the aggregate of a key."""
        self._all.setdefault(key, []).append(Aggregate(sums, maxima, values, counts))

    def of(self, subject: str) -> Iterator[tuple[Key, Aggregate]]:
        """Yield the names and the aggregate of each key of a subject, in the order of the names."""
        for key in sorted(key for key in self._all if key[0] == subject):
            some = self._all[key] = [added(self._all[key])]
            yield key[1:], some[0]

    def cells(self, parts: int = 1) -> Iterator[tuple[int, bytes]]:
        """Yield all aggregates as bytes, each with the part (from 0 to ``parts - 1``) that its key belongs to."""
        for key, some in self._all.items():
            one = added(some)
            payload = (key, one.sums, one.maxima, _narrow(one.values), _narrow(one.counts))
            yield zlib.crc32("\0".join(key).encode("utf-8", "surrogatepass")) % parts, pickle.dumps(payload)
        counts = self.keys.table()
        if parts == 1:
            yield 0, _table_as_bytes(counts)
            return
        hashes = (zlib.crc32(key.encode("utf-8", "surrogatepass")) for key in counts["key"].to_pylist())
        of_part = np.fromiter(hashes, dtype=np.int64, count=counts.num_rows) % parts
        counts = counts.take(pa.array(np.argsort(of_part, kind="stable")))
        ends = np.cumsum(np.bincount(of_part, minlength=parts)).tolist()
        for part, (begin, end) in enumerate(pairwise([0, *ends])):
            if end > begin:
                yield part, _table_as_bytes(counts.slice(begin, end - begin))

    def add_cells(self, cells: Iterable[bytes]) -> None:
        """Add aggregates as bytes, in the form that :meth:`cells` yields."""
        for cell in cells:
            if cell.startswith(_IS_TABLE):
                with pa.ipc.open_stream(memoryview(cell)[len(_IS_TABLE) :]) as stream:
                    self.keys.add(stream.read_all())
            else:
                self.add(*pickle.loads(cell))  # noqa: S301 - a task of this job made it

    def finish(self, bucket_ms: int, top: int, since_ms: int | None = None) -> None:
        """Reduce complete aggregates: net changes to levels by bucket, and all keys to the first ones of each ranking.

        For each purgatory, the levels have the subjects ``high`` and ``area``: for each bucket, the highest level
        relative to the start of the bucket, and the sum of the levels of all milliseconds.  ``since_ms``: the start of
        the selected time.
        """
        for names, change in list(self.of("change")):
            buckets, high, area = _levels(change, bucket_ms, since_ms)
            self.add(("high", names[0]), values=buckets, counts=high)
            self.add(("area", names[0]), values=buckets, counts=area)
            del self._all["change", *names]
        top_keys = self.keys.tops(top)
        self.keys = KeyCounts()
        self.keys.add(top_keys)


def add_rows(aggregates: Aggregates, rows: pa.RecordBatch, span: Span) -> None:
    """Add the selected rows of a journal; ``rows`` has :data:`COLUMNS`."""
    rows, earlier = _selected(rows, span.selection)
    if earlier is not None:
        _add_earlier(aggregates, earlier, span)
    outcome, outcomes = _encoded(rows["outcome"])
    lengths = pc.list_value_length(rows["keys"]).fill_null(0).to_numpy(zero_copy_only=False)
    purgatory, purgatories = _encoded(rows["purgatory"])
    source, sources = _encoded(rows["source"])
    parked_us, finished_us = _us(rows["parked_at"]), _us(rows["finished_at"])
    is_operation = _among(outcome, outcomes, lambda name: name != DROPPED)
    _add_sources(aggregates, rows, source, sources, is_operation, parked_us, finished_us)
    _add_refused(aggregates, rows, purgatory, purgatories, span)
    finished_all, deadline_all = _floor_ms(finished_us), _floor_ms(_us(rows["deadline"]))
    outcome, outcomes = _with_closing(rows, outcome, outcomes, finished_all, deadline_all)
    wait_all = np.where(finished_all == _NONE, 0, finished_all - _floor_ms(parked_us))
    expired_all = _among(outcome, outcomes, lambda name: name == EXPIRED)
    _add_keys(aggregates, rows, lengths, purgatory, purgatories, wait_all, expired_all)
    kind, kinds = _encoded(rows["kind"])
    columns = [outcome, lengths, purgatory, source, kind, parked_us, finished_us, _us(rows["deadline"]), _anchor(rows)]
    if not is_operation.all():
        columns = [column[is_operation] for column in columns]
    outcome, lengths, purgatory, source, kind, parked_us, finished_us, deadline_us, anchor = columns
    parked, finished, deadline = (_floor_ms(us) for us in (parked_us, finished_us, deadline_us))
    immediate = lengths == 0
    by_kind = purgatory * len(kinds) + kind
    _add_outcomes(aggregates, by_kind * len(outcomes) + outcome, immediate, purgatories, kinds, outcomes)
    ended = ~immediate & (finished != _NONE)
    wait = (finished - parked)[ended]
    _add_waits(aggregates, by_kind[ended], wait, purgatories, kinds)
    steps = np.searchsorted(_STEP_STARTS, wait, side="right") - 1
    pairs = purgatory[ended] * len(outcomes) + outcome[ended]
    for group, values, counts in _histograms(pairs, steps, len(purgatories) * len(outcomes)):
        names = purgatories[group // len(outcomes)], outcomes[group % len(outcomes)]
        aggregates.add(("step", *names), values=values, counts=counts)
    expired = _among(outcome, outcomes, lambda name: name == EXPIRED)
    closing = _among(outcome, outcomes, lambda name: name == BY_CLOSING)
    late = np.maximum(finished - deadline, 0)
    _add_lateness(aggregates, purgatory[expired], late[expired], purgatory[closing], purgatories)
    step = parked // span.step_ms
    _add_times(aggregates, by_kind, step, immediate, outcome, purgatories, kinds, outcomes)
    for subject, which, ms in (("time wait", ended, wait), ("time late", expired, late[expired])):
        combined = step_and_duration(step[which], ms)
        for index, values, counts in _by_group(by_kind[which], combined, len(purgatories) * len(kinds)):
            names = purgatories[index // len(kinds)], kinds[index % len(kinds)]
            aggregates.add((subject, *names), values=values, counts=counts)
    waited = ~immediate
    end = _end(finished, anchor, source, sources, span)
    _add_changes(aggregates, purgatory[waited], parked[waited], end[waited], purgatories, span)


def add_hot_rows(
    aggregates: Aggregates, rows: pa.RecordBatch, hot: Mapping[Key, int], selection: Selection = EVERYTHING
) -> None:
    """Add the selected rows of the hot keys; ``rows`` has :data:`HOT_COLUMNS`.

    ``hot``: the number of each hot key, by purgatory and key.
    """
    rows, _ = _selected(rows, selection)
    purgatory, purgatories = _encoded(rows["purgatory"])
    outcome, outcomes = _encoded(rows["outcome"])
    key, keys = _encoded_keys(rows["keys"])
    number_of = np.full((len(purgatories), len(keys)), -1, dtype=np.int64)
    for index, name in enumerate(purgatories):
        wanted = [pair[1] for pair in hot if pair[0] == name]
        numbers = np.array([number for pair, number in hot.items() if pair[0] == name] + [-1], dtype=np.int64)
        place = pc.index_in(keys, value_set=pa.array(wanted, keys.type)).fill_null(len(wanted))
        number_of[index] = numbers[place.to_numpy(zero_copy_only=False)]
    lengths = pc.list_value_length(rows["keys"]).fill_null(0).to_numpy(zero_copy_only=False)
    times = (_floor_ms(_us(rows[name])) for name in ("finished_at", "deadline"))
    outcome, outcomes = _with_closing(rows, outcome, outcomes, *times)
    row = np.repeat(np.arange(len(lengths)), lengths)
    number = number_of[purgatory[row], key] if len(row) else np.empty(0, dtype=np.int64)
    of_hot = number >= 0
    number, row = number[of_hot], row[of_hot]
    parked, finished = (_floor_ms(_us(rows[name]))[row] for name in ("parked_at", "finished_at"))
    width = len(HOT_OUTCOMES)
    state = np.array([HOT_OUTCOMES.index(name) if name in HOT_OUTCOMES else 0 for name in outcomes], dtype=np.int64)
    counted = np.bincount(number * width + state[outcome[row]], minlength=len(hot) * width)
    pairs = list(hot)
    for index, sums in enumerate(counted.reshape(len(hot), width)):
        if sums.any():
            aggregates.add(("hot", *pairs[index]), sums=[*sums, 0], maxima=[_NONE])
    ended = finished != _NONE
    wait, number = (finished - parked)[ended], number[ended]
    total = np.zeros(len(hot), dtype=np.int64)
    np.add.at(total, number, wait)
    longest = np.full(len(hot), _NONE)
    np.maximum.at(longest, number, wait)
    for index, values, counts in _histograms(number, rounded(wait), len(hot)):
        aggregates.add(("hot", *pairs[index]), [*[0] * width, total[index]], [longest[index]], values, counts)


def rounded(ms: Any) -> Any:
    """Return whole milliseconds; numbers with more than 16 bits are rounded down to 16 significant bits."""
    excess = np.maximum(np.frexp(ms.astype(np.float64))[1] - _EXACT_BITS, 0).astype(np.int64)
    return np.where(ms < _EXACT, ms, ms >> excess << excess)


def step_and_duration(step: Any, ms: Any) -> Any:
    """Return the number of a step of time and a duration, combined into one number.

    The duration keeps its first eight bits: below 256 ms, it is exact; above that, it is too short by less than 1/128.
    """
    ms = np.maximum(ms, 0)
    excess = np.maximum(np.frexp(ms.astype(np.float64))[1] - _COARSE_BITS, 0).astype(np.int64)
    return step * _COARSE_CODES + excess * (1 << _COARSE_BITS) + (ms >> excess)


def durations_by_step(histogram: Aggregate) -> Iterator[tuple[int, Aggregate]]:
    """Yield each step of time and its histogram of durations; ``histogram`` comes from :func:`step_and_duration`."""
    steps, codes = np.divmod(histogram.values, _COARSE_CODES)
    excess, first_bits = np.divmod(codes, 1 << _COARSE_BITS)
    ms = first_bits << excess
    starts = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist()] if len(steps) else []
    for begin, end in pairwise([*starts, len(steps)]):
        yield int(steps[begin]), Aggregate(values=ms[begin:end], counts=histogram.counts[begin:end])


def durations_within(histogram: Aggregate, steps: Iterable[int]) -> Aggregate:
    """Return the histogram of the durations in the given steps; ``histogram`` comes from :func:`step_and_duration`."""
    of_step, codes = np.divmod(histogram.values, _COARSE_CODES)
    here = np.isin(of_step, np.fromiter(steps, dtype=np.int64))
    excess, first_bits = np.divmod(codes[here], 1 << _COARSE_BITS)
    values, counts = _summed(first_bits << excess, histogram.counts[here])
    return Aggregate(values=values, counts=counts)


def lower_bound(step: int) -> float:
    """Return, in seconds, the lower bound of a step of the wait histogram; the step below 1 ms begins at 0."""
    return 10.0 ** (step / _STEPS_PER_DECADE - 3) if step >= 0 else 0.0


def quantiles(histogram: Aggregate, shares: Iterable[float]) -> list[float | None]:
    """Return, in seconds, linearly interpolated quantiles of a histogram; they are None if the histogram is empty."""
    if not len(histogram.values):
        return [None for _ in shares]
    upto = np.cumsum(histogram.counts)
    found: list[float | None] = []
    for share in shares:
        position = float(upto[-1] - 1) * share
        lower, upper = int(np.floor(position)), int(np.ceil(position))
        low, high = (float(histogram.values[np.searchsorted(upto, at + 1)]) for at in (lower, upper))
        found.append((low if low == high else (upper - position) * low + (position - lower) * high) / 1000)
    return found


def add_key_rows(aggregates: Aggregates, rows: pa.RecordBatch, selection: Selection, outcome: str) -> None:
    """Count the selected operations of each key; ``rows`` has :data:`HOT_COLUMNS`.

    In :class:`KeyCounts`, the operations with the outcome count as expired.  The subject ``ended`` has three sums: the
    number of operations that waited, how many of these had the outcome, and the number of operations that did not wait.
    """
    rows, _ = _selected(rows, selection)
    ended, outcomes = _encoded(rows["outcome"])
    times = (_floor_ms(_us(rows[name])) for name in ("finished_at", "deadline"))
    ended, outcomes = _with_closing(rows, ended, outcomes, *times)
    found = _among(ended, outcomes, lambda name: name == outcome)
    lengths = pc.list_value_length(rows["keys"]).fill_null(0).to_numpy(zero_copy_only=False)
    _add_keys(aggregates, rows, lengths, *_encoded(rows["purgatory"]), np.zeros(len(found), np.int64), found)
    waited = lengths > 0
    at_once = ~waited & _among(ended, outcomes, lambda name: name != DROPPED)
    aggregates.add(("ended",), sums=[np.count_nonzero(each) for each in (waited, found & waited, at_once)])


def _selected(rows: pa.RecordBatch, selection: Selection) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """Return the rows of the selected operations, and of those that parked earlier and may still have waited at the
    start of the selected time.
    """
    if selection.is_everything:
        return rows, None
    rows = batch_of_names(rows, selection)
    since_ms, until_ms = selection.since_ms, selection.until_ms
    parked, finished = _us(rows["parked_at"]), _us(rows["finished_at"])
    if until_ms is not None:
        before = parked < until_ms * 1000
        rows, parked, finished = rows.filter(pa.array(before)), parked[before], finished[before]
    if since_ms is None:
        return rows, None
    outcome, outcomes = _encoded(rows["outcome"])
    gap = _among(outcome, outcomes, lambda name: name == DROPPED)
    within, still_there = parked >= since_ms * 1000, (finished == _NONE) | (finished >= since_ms * 1000)
    return rows.filter(pa.array(within | (gap & still_there))), rows.filter(pa.array(~within & ~gap & still_there))


def _add_earlier(aggregates: Aggregates, rows: pa.RecordBatch, span: Span) -> None:
    """Count operations that parked before the selected time; they affect only the number of parked operations."""
    purgatory, purgatories = _encoded(rows["purgatory"])
    source, sources = _encoded(rows["source"])
    end = _end(_floor_ms(_us(rows["finished_at"])), _anchor(rows), source, sources, span)
    waited = pc.list_value_length(rows["keys"]).fill_null(0).to_numpy(zero_copy_only=False) > 0
    assert span.selection.since_ms is not None
    waited &= end >= span.selection.since_ms
    end, purgatory = end[waited], purgatory[waited]
    for index, number in enumerate(np.bincount(purgatory, minlength=len(purgatories)).tolist()):
        if number:
            aggregates.add(("before", purgatories[index]), [number])
    _add_changes(aggregates, purgatory, np.full(len(end), _NONE), end, purgatories, span)


def _anchor(rows: pa.RecordBatch) -> Any:
    return rows["anchor_ms"].to_numpy(zero_copy_only=False)


def _end(finished: Any, anchor: Any, source: Any, sources: list[str], span: Span) -> Any:
    """Return the time at which each operation stopped waiting.

    That is its end, or the millisecond after the last record of its source.
    """
    last_ms = np.array([span.last_ms.get(name, 0) for name in sources], dtype=np.int64)
    return np.where(finished == _NONE, last_ms[source] + anchor + 1 if len(sources) else 0, finished)


def _add_sources(
    aggregates: Aggregates, rows: pa.RecordBatch, source: Any, sources: list[str], is_operation: Any, *times: Any
) -> None:
    parked_us, finished_us = times
    dropped = rows["dropped"].cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    operations = np.bincount(source[is_operation], minlength=len(sources))
    lost = np.bincount(source, weights=dropped, minlength=len(sources)).astype(np.int64)
    first, last = np.full(len(sources), _NONE), np.full(len(sources), _NONE)
    known = parked_us != _NONE
    np.maximum.at(first, source[known], -parked_us[known])
    np.maximum.at(last, source, np.where(finished_us == _NONE, parked_us, finished_us))
    # The list of names can contain sources that occur only in other rows of the file.
    for index in np.flatnonzero(np.bincount(source, minlength=len(sources))).tolist():
        sums, maxima = [operations[index], lost[index]], [first[index], last[index]]
        aggregates.add(("source", sources[index]), sums, maxima)


def _with_closing(
    rows: pa.RecordBatch, outcome: Any, outcomes: list[str], finished: Any, deadline: Any
) -> tuple[Any, list[str]]:
    """Return the outcome of each row as a position in a list of names, and that list, with :data:`BY_CLOSING` last."""
    early = (finished == _NONE) | (deadline == _NONE) | (finished < deadline)
    if BY_CLOSING in rows.schema.names:
        marked = rows[BY_CLOSING].cast(pa.bool_())
        known = marked.is_valid().to_numpy(zero_copy_only=False)
        early = np.where(known, marked.fill_null(False).to_numpy(zero_copy_only=False), early)
    expired = _among(outcome, outcomes, lambda name: name == EXPIRED)
    return np.where(expired & early, len(outcomes), outcome), [*outcomes, BY_CLOSING]


def _add_refused(aggregates: Aggregates, rows: pa.RecordBatch, purgatory: Any, names: list[str], span: Span) -> None:
    """Count the refused operations of each step as if those of a note were evenly spaced over the note's time range.

    The parts of a note that are outside the selected time are not counted.
    """
    if "refused" not in rows.schema.names or rows["refused"].null_count == rows.num_rows:
        return
    some, number, first_ms, end_ms, from_ms, to_ms = _refused_ranges(rows, span.selection)
    purgatory = purgatory[some]
    step = from_ms // span.step_ms
    more = (to_ms - 1) // span.step_ms - step
    cut = (from_ms != first_ms) | (to_ms != end_ms) | (more >= _MOST_COVERED)
    codes = (step * _MOST_COVERED + np.minimum(more, _MOST_COVERED - 1)) * 2 + cut
    for index in np.unique(purgatory).tolist():
        mine = purgatory == index
        values, counts = _summed(codes[mine], number[mine])
        aggregates.add(("notes", names[index]), values=values, counts=counts)
    before = _refused_before(number, first_ms, end_ms, from_ms)
    while len(step):  # one step of each note at a time
        border_ms = np.minimum((step + 1) * span.step_ms, to_ms)
        upto = _refused_before(number, first_ms, end_ms, border_ms)
        here = upto - before
        for index in np.unique(purgatory[here > 0]).tolist():
            mine = (purgatory == index) & (here > 0)
            values, counts = _summed(step[mine], here[mine])
            aggregates.add(("refused", names[index]), values=values, counts=counts)
        left = border_ms < to_ms
        number, purgatory, first_ms, end_ms, to_ms = (
            each[left] for each in (number, purgatory, first_ms, end_ms, to_ms)
        )
        before, step = upto[left], step[left] + 1


def refused_within(rows: pa.RecordBatch, selection: Selection) -> dict[str, int]:
    """Return the number of refused operations of each purgatory that count as refused in the selected time.

    ``rows`` has the columns ``purgatory``, ``refused``, ``parked_at``, and ``finished_at``.
    """
    some, number, first_ms, end_ms, from_ms, to_ms = _refused_ranges(rows, selection)
    here = _refused_before(number, first_ms, end_ms, to_ms) - _refused_before(number, first_ms, end_ms, from_ms)
    purgatory, names = _encoded(rows["purgatory"])
    found = {index: int(here[purgatory[some] == index].sum()) for index in np.unique(purgatory[some]).tolist()}
    return {names[index]: total for index, total in found.items() if total}


def _refused_ranges(rows: pa.RecordBatch, selection: Selection) -> tuple[Any, ...]:
    """Return which rows report operations refused in the selected time, their numbers, and in milliseconds the begin
    and the end of each range and of its selected part.
    """
    refused = rows["refused"].cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    first_ms, finished_ms = (_floor_ms(_us(rows[name])) for name in ("parked_at", "finished_at"))
    end_ms = np.maximum(finished_ms, first_ms + 1)
    from_ms = first_ms if selection.since_ms is None else np.maximum(first_ms, selection.since_ms)
    to_ms = end_ms if selection.until_ms is None else np.minimum(end_ms, selection.until_ms)
    some = np.flatnonzero((refused > 0) & (from_ms < to_ms))
    return some, *(each[some] for each in (refused, first_ms, end_ms, from_ms, to_ms))


def _refused_before(number: Any, first_ms: Any, end_ms: Any, at_ms: Any) -> Any:
    """Return how many of a note's ``number`` operations count as refused before a time.

    The operations are evenly spaced over the range of the note: operation ``i`` of ``n`` (from 0) is at
    ``(i + 1/2) / n`` of the range.  The parts of a range therefore add up to the number.
    """
    part = number.astype(np.float64) * (at_ms - first_ms) / (end_ms - first_ms)
    return np.clip(np.ceil(part - 0.5), 0, number).astype(np.int64)


def covered_steps(notes: Aggregate) -> tuple[Any, Any, Any]:
    """Return the first and the last step that each note covers, and whether the note covers others too.

    It does if a part of it is outside the selected time, or if it covers more than 4,096 steps.
    """
    codes, cut = np.divmod(notes.values, 2)
    first, more = np.divmod(codes, _MOST_COVERED)
    return first, first + more, cut > 0


def _add_times(
    aggregates: Aggregates,
    by_kind: Any,
    step: Any,
    immediate: Any,
    outcome: Any,
    purgatories: list[str],
    kinds: list[str],
    outcomes: list[str],
) -> None:
    groups = len(purgatories) * len(kinds)
    for index, values, counts in _by_group(by_kind * len(outcomes) + outcome, step, groups * len(outcomes)):
        of_kind, which = divmod(index, len(outcomes))
        names = purgatories[of_kind // len(kinds)], kinds[of_kind % len(kinds)], outcomes[which]
        aggregates.add(("time", *names), values=values, counts=counts)
    for index, values, counts in _by_group(by_kind[immediate], step[immediate], groups):
        names_of_kind = purgatories[index // len(kinds)], kinds[index % len(kinds)]
        aggregates.add(("at once", *names_of_kind), values=values, counts=counts)


def _by_group(group: Any, values: Any, groups: int) -> Iterator[tuple[int, Any, Any]]:
    """Yield each group that occurs, its distinct values in order, and their counts.

    This function does the same as :func:`_histograms`, for values that are close to each other but far from zero.
    """
    if not len(group):
        return
    low = int(values.min())
    width = int(values.max()) - low + 1
    found, counts = _counted(group * width + (values - low))
    bounds = np.searchsorted(found, np.arange(groups + 1) * width)
    for index in np.flatnonzero(np.diff(bounds)).tolist():
        part = slice(bounds[index], bounds[index + 1])
        yield index, found[part] - index * width + low, counts[part]


def _add_keys(
    aggregates: Aggregates,
    rows: pa.RecordBatch,
    lengths: Any,
    purgatory: Any,
    names: list[str],
    wait: Any,
    expired: Any,
) -> None:
    key, keys = _encoded_keys(rows["keys"])
    pair = np.repeat(purgatory, lengths) * len(keys) + key
    of_key = np.repeat(wait, lengths), np.repeat(expired, lengths)
    if len(names) * len(keys) <= max(_MOST_CELLS, 8 * len(pair)):
        size = len(names) * len(keys)
        counts = np.bincount(pair, minlength=size)
        found = np.flatnonzero(counts)
        counts = counts[found]
        # The sums are whole numbers below 2**53, which float64 represents exactly.
        sums = [np.bincount(pair, weights=each, minlength=size)[found].astype(np.int64) for each in of_key]
    else:
        found, place, counts = np.unique(pair, return_inverse=True, return_counts=True)
        sums = [np.bincount(place, weights=each, minlength=len(found)).astype(np.int64) for each in of_key]
    if len(found):
        columns = [
            pa.array(names, pa.string()).take(pa.array(found // len(keys))),
            keys.take(pa.array(found % len(keys))).cast(pa.string()),
            *(pa.array(column, pa.int64()) for column in (counts, *sums)),
        ]
        aggregates.keys.add(pa.Table.from_arrays(columns, schema=_KEY_COUNTS))


def _add_outcomes(
    aggregates: Aggregates, group: Any, immediate: Any, purgatories: list[str], kinds: list[str], outcomes: list[str]
) -> None:
    size = len(purgatories) * len(kinds) * len(outcomes)
    counts, at_once = np.bincount(group, minlength=size), np.bincount(group[immediate], minlength=size)
    for index in np.flatnonzero(counts).tolist():
        by_kind, outcome = divmod(index, len(outcomes))
        names = purgatories[by_kind // len(kinds)], kinds[by_kind % len(kinds)], outcomes[outcome]
        aggregates.add(("outcome", *names), [counts[index], at_once[index]])


def _add_waits(aggregates: Aggregates, group: Any, wait: Any, purgatories: list[str], kinds: list[str]) -> None:
    size = len(purgatories) * len(kinds)
    total = np.zeros(size, dtype=np.int64)
    np.add.at(total, group, wait)
    longest = np.full(size, _NONE)
    np.maximum.at(longest, group, wait)
    for index, values, counts in _histograms(group, rounded(wait), size):
        names = purgatories[index // len(kinds)], kinds[index % len(kinds)]
        aggregates.add(("wait", *names), [total[index]], [longest[index]], values, counts)


def _add_lateness(aggregates: Aggregates, purgatory: Any, late: Any, closing: Any, purgatories: list[str]) -> None:
    by_closing = np.bincount(closing, minlength=len(purgatories))
    present = np.bincount(purgatory, minlength=len(purgatories)) + by_closing
    for index in np.flatnonzero(present).tolist():
        aggregates.add(("late", purgatories[index]), [by_closing[index]], [_NONE])
    latest = np.full(len(purgatories), _NONE)
    np.maximum.at(latest, purgatory, late)
    for index, values, counts in _histograms(purgatory, rounded(late), len(purgatories)):
        aggregates.add(("late", purgatories[index]), [0], [latest[index]], values, counts)


def _add_changes(
    aggregates: Aggregates, purgatory: Any, parked: Any, end: Any, purgatories: list[str], span: Span
) -> None:
    """Add all arrivals, except nulls in ``parked``, and all ends, except those after the selected time."""
    bucket_ms, until_ms = span.bucket_ms, span.selection.until_ms
    for index, name in enumerate(purgatories):
        here = purgatory == index
        arrivals, ends = parked[here], end[here]
        arrivals = arrivals[arrivals != _NONE]
        if until_ms is not None:
            ends = ends[ends < until_ms]
        for subject, ms in (("parked", arrivals), ("ended", ends)):
            if len(ms):
                values, counts = _counted(ms // bucket_ms)
                aggregates.add((subject, name), values=values, counts=counts)
        if not len(arrivals) + len(ends):
            continue
        at, change = _net(arrivals, ends)
        slab_ms = bucket_ms * SLAB_BUCKETS
        slabs = at // slab_ms
        for part in np.split(np.arange(len(at)), np.flatnonzero(np.diff(slabs)) + 1):
            if len(part):
                slab = str(slabs[part[0]])
                aggregates.add(("change", name, slab), values=at[part], counts=change[part])


def _net(arrivals: Any, ends: Any) -> tuple[Any, Any]:
    """Return the milliseconds in which the number of parked operations changes, and the change in each."""
    first = int(min(ms.min() for ms in (arrivals, ends) if len(ms)))
    length = int(max(ms.max() for ms in (arrivals, ends) if len(ms))) - first + 1
    if length <= _CELLS_PER_CHANGE * (len(arrivals) + len(ends)) + _FEW_CELLS:
        net = np.bincount(arrivals - first, minlength=length) - np.bincount(ends - first, minlength=length)
        at = np.flatnonzero(net)
        return at + first, net[at]
    both = np.concatenate([arrivals, ends])
    steps = np.repeat(np.array([1, -1], dtype=np.int64), [len(arrivals), len(ends)])
    at, net = _summed(both, steps)
    return at[net != 0], net[net != 0]


def _counted(values: Any) -> tuple[Any, Any]:
    """Return the distinct values, in order, and how often each occurs."""
    first = int(values.min())
    if int(values.max()) - first >= _MOST_CELLS:
        return np.unique(values, return_counts=True)
    counts = np.bincount(values - first)
    found = np.flatnonzero(counts)
    return found + first, counts[found]


def _levels(change: Aggregate, bucket_ms: int, since_ms: int | None) -> tuple[Any, Any, Any]:
    """Return the buckets, and for each bucket its highest level and the sum of its levels.

    Both are relative to the level at the start of the bucket.
    """
    at, net = change.values, change.counts
    bucket = at // bucket_ms
    starts = np.flatnonzero(np.diff(bucket, prepend=bucket[0] - 1)) if len(at) else np.empty(0, dtype=np.int64)
    if not len(starts):
        return starts, starts, starts
    level = np.cumsum(net)
    before = level[starts] - net[starts]
    high = np.maximum.reduceat(level, starts) - before
    # The level at the start belongs to the bucket unless the first millisecond of the bucket changes it.
    begin = bucket[starts] * bucket_ms
    if since_ms is not None:
        begin = np.maximum(begin, since_ms)
    high = np.where(at[starts] == begin, high, np.maximum(high, 0))
    area = np.add.reduceat(net * ((bucket + 1) * bucket_ms - at), starts)
    return bucket[starts], high, area


def _histograms(group: Any, values: Any, groups: int) -> Iterator[tuple[int, Any, Any]]:
    """Yield each group that occurs, its distinct values in order, and their counts."""
    if not len(group):
        return
    small = (values >= -1) & (values < _EXACT)
    width = int(values[small].max(initial=0)) + 2  # the values begin at -1
    if groups * width <= _MOST_CELLS:
        counted = np.bincount(group[small] * width + values[small] + 1, minlength=groups * width)
        by_group = counted.reshape(groups, width)
        rest_group, rest = group[~small], values[~small]
    else:
        by_group = np.zeros((groups, 0), dtype=np.int64)
        rest_group, rest = group, values
    order = np.lexsort((rest, rest_group))
    rest_group, rest = rest_group[order], rest[order]
    bounds = np.searchsorted(rest_group, np.arange(groups + 1))
    for index in np.flatnonzero(np.bincount(group, minlength=groups)).tolist():
        found = np.flatnonzero(by_group[index])
        more, counts = np.unique(rest[bounds[index] : bounds[index + 1]], return_counts=True)
        yield index, *_summed(np.concatenate([found - 1, more]), np.concatenate([by_group[index][found], counts]))


def added(some: list[Aggregate]) -> Aggregate:
    """Return the sum of the aggregates of one key."""
    if len(some) == 1:
        return some[0]
    sums = np.sum([one.sums for one in some], axis=0)
    maxima = np.max([one.maxima for one in some], axis=0)
    values = np.concatenate([one.values for one in some])
    counts = np.concatenate([one.counts for one in some])
    return Aggregate(sums, maxima, *_summed(values, counts))


def _table_as_bytes(table: pa.Table) -> bytes:
    """Return a table in Arrow's format for streams.

    Chunks and slices share their buffers.  The format contains only the parts in use; pickle would store each buffer in
    full.
    """
    sink = pa.BufferOutputStream()
    sink.write(_IS_TABLE)
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def _summed(values: Any, counts: Any) -> tuple[Any, Any]:
    """Return the distinct values in order, and the sum of the counts of each."""
    if len(values) < 2 or (np.diff(values) > 0).all():
        return values, counts
    order = np.argsort(values, kind="stable")  # this sort merges sorted pieces
    values, counts = values[order], counts[order]
    starts = np.flatnonzero(np.diff(values, prepend=values[0] - 1))
    return values[starts], np.add.reduceat(counts, starts)


def _narrow(numbers: Any) -> Any:
    """Return the numbers in the smallest type that can hold them all, because they are sent between processes."""
    if not len(numbers):
        return numbers
    return numbers.astype(np.result_type(np.min_scalar_type(numbers.min()), np.min_scalar_type(numbers.max())))


def _encoded(column: pa.Array) -> tuple[Any, list[str]]:
    """Return a column of strings as positions in the list of its distinct strings.  A null becomes ""."""
    if column.null_count:
        column = column.cast(pa.string()).fill_null("")
    encoded = column if pa.types.is_dictionary(column.type) else pc.dictionary_encode(column)
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary.to_pylist()


def _encoded_keys(column: pa.Array) -> tuple[Any, pa.Array]:
    flat = column.flatten()
    encoded = flat if pa.types.is_dictionary(flat.type) else pc.dictionary_encode(flat)
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary


def _among(codes: Any, names: list[str], wanted: Any) -> Any:
    return np.array([wanted(name) for name in names], dtype=bool)[codes] if names else np.zeros(0, dtype=bool)


def _us(column: pa.Array) -> Any:
    """Return a column of timestamps as microseconds, with nulls as the smallest number."""
    unit = 1000 if column.type.unit == "ms" else 1
    us = column.cast(pa.int64()).to_numpy(zero_copy_only=False) if not column.null_count else None
    if us is not None:
        return us * unit
    known = column.is_valid().to_numpy(zero_copy_only=False)
    return np.where(known, column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) * unit, _NONE)


def _floor_ms(us: Any) -> Any:
    return np.where(us == _NONE, _NONE, us // 1000)
