"""Cut a journal into pieces of time, each small enough for one task, and replay a piece with every setting.

A piece is a span of time of one purgatory in one run of a server, so it is as dense as the whole journal.  A sample of
single operations would put fewer operations into each bucket.  Two purgatories with the same name are kept apart by
their ``instance``.

A first pass over a few columns counts the operations of each purgatory and takes every n-th parking time; these times
are enough to place the borders.  If the tasks run on this machine, they read the files with pyarrow, as the tasks of a
report do; a task reads only the row groups of its pieces.  A task has several pieces if they are small, so that the
files of many purgatories are not read once for each.  Otherwise, Spark reads the rows and groups them by piece.
"""

import gc
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from purgatory.journal.files import ARROW_SCHEMA
from purgatory.journal.schema import DROPPED, OUTCOMES
from purgatory.pipeline.journal_reader import OpenJournal
from purgatory.pipeline.report.aggregates import rounded
from purgatory.pipeline.report.one_pass import reads_files
from purgatory.pipeline.selected_rows import (
    batch_overlapping,
    batch_parked_within,
    needed_columns,
    overlapping,
    parked_row_groups,
    parked_within,
    read_batches,
    row_groups,
    time_like,
)
from purgatory.pipeline.selection import Selection
from purgatory.pipeline.spark.workers import freeze_modules

from .simulation import Measured, Script, Trace, first_impossible, recorded_lateness, replay

__all__ = [
    "COLUMNS",
    "Cut",
    "Piece",
    "find_pieces",
    "impossible",
    "map_pieces",
    "plain",
    "replay_pieces",
    "sample_pieces",
    "trace_of",
]

Owner = tuple[str, str, int]  # source, purgatory, instance
_OWNER: Final = ("source", "purgatory", "instance")
_FIRST: Final = (*_OWNER, "outcome", "parked_at", "deadline")
COLUMNS: Final = (*_OWNER, "op_id", "keys", "outcome", "parked_at", "deadline", "finished_at", "anchor_ms")
_SAMPLES_PER_PIECE: Final = 64
_END_OF_TIME_MS: Final = 1 << 62
_ROWS_PER_TASK: Final = 2_500_000
_MOST_TASKS: Final = 2_000
_ROWS_TOGETHER: Final = 100_000  # of several pieces in one task
_NO_TIME_MS: Final = -1
_ENOUGH_ROWS: Final = 60_000  # the rows to replay, in one round or in several rounds together
_MOST_ROUNDS: Final = 5
_CELL: Final = "cell binary"

Settings = Sequence[tuple[int, int]]
Work = Callable[[pa.Table, int, "Piece"], list[Any]]


class Piece(NamedTuple):
    """Operations of one purgatory that parked at ``first_ms`` or later and before ``next_ms``.

    ``files``: the files that contain some of these operations; empty if Spark reads the rows.  ``rows``: about how many
    operations there are.
    """

    owner: Owner
    first_ms: int
    next_ms: int
    files: tuple[str, ...] = ()
    rows: int = 0


class Cut(NamedTuple):
    """All pieces of a journal, in order, and the median timeout of its operations (0 if none has a timeout)."""

    pieces: list[Piece]
    median_timeout_ms: float


class _Counted(NamedTuple):
    """The operations of one purgatory in one file.  ``sample``: every ``step``-th of the sorted parking times."""

    file: str
    owner: Owner
    number: int
    first_ms: int
    last_ms: int
    step: int
    sample: Any
    timeouts: Any
    timeout_counts: Any


# The first pass


def find_pieces(
    spark: SparkSession, opened: OpenJournal, selection: Selection, piece_rows: int, *, waiting: bool = False
) -> Cut:
    """Return pieces of about ``piece_rows`` operations that cover all selected operations.

    ``waiting``: whether the pieces also cover the operations that parked before ``selection.since_ms`` and ended later.
    """
    step = max(1, piece_rows // _SAMPLES_PER_PIECE)
    count = partial(_count, selection=selection, step=step, waiting=waiting)
    columns = needed_columns((*_FIRST, "finished_at") if waiting else _FIRST, selection)
    if reads_files(spark, opened):
        assert opened.files is not None
        context = spark.sparkContext
        tasks = max(context.defaultParallelism, -(-(opened.rows or 0) // _ROWS_PER_TASK))
        slices = [list(part) for part in np.array_split(np.array(opened.files, dtype=object), tasks) if len(part)]
        scan = partial(_count_files, columns, selection, count, waiting=waiting)
        cells = context.parallelize(slices, len(slices)).mapPartitions(scan).collect()
    else:

        def in_arrow(batches):  # type: ignore[no-untyped-def]  # Spark evaluates type hints, and fails for some
            yield from _as_batches(count(batches, ""))

        rows = _selected(opened, selection, waiting=waiting).select(*columns)
        cells = rows.mapInArrow(in_arrow, _CELL).toArrow()["cell"].to_pylist()
    counted = [_Counted(*pickle.loads(cell)) for cell in cells]  # noqa: S301 - a task of this job made it
    return Cut(_pieces(counted, piece_rows), _median([(one.timeouts, one.timeout_counts) for one in counted]))


def _count_files(
    columns: Sequence[str], selection: Selection, count: Any, slices: Iterable[list[str]], *, waiting: bool = False
) -> Iterator[bytes]:
    freeze_modules()
    groups = partial(row_groups if waiting else parked_row_groups, selection=selection)
    for name in (name for part in slices for name in part):
        yield from count(read_batches(name, columns, groups), name)


def _count(
    batches: Iterable[pa.RecordBatch], file: str, *, selection: Selection, step: int, waiting: bool = False
) -> Iterator[bytes]:
    """Yield a :class:`_Counted` for each owner, as bytes."""
    parked: dict[Owner, list[Any]] = {}
    timeouts: dict[Owner, list[Any]] = {}
    for batch in batches:
        rows = _operations(batch, selection, waiting=waiting)
        if not rows.num_rows:
            continue
        parked_ms = _ms(rows["parked_at"])
        timeout_ms = np.where(rows["deadline"].is_valid(), _ms(rows["deadline"]) - parked_ms, _NO_TIME_MS)
        for owner, mine in _by_owner(rows):
            parked.setdefault(owner, []).append(parked_ms[mine])
            timeouts.setdefault(owner, []).append(timeout_ms[mine])
    for owner, some in parked.items():
        times = np.sort(np.concatenate(some))
        given = np.concatenate(timeouts[owner])
        values, counts = np.unique(rounded(given[given >= 0]), return_counts=True)
        sample = times[step - 1 :: step]
        yield pickle.dumps((file, owner, len(times), int(times[0]), int(times[-1]), step, sample, values, counts))


def _by_owner(rows: pa.RecordBatch) -> Iterator[tuple[Owner, Any]]:
    """Yield each owner (source, purgatory, and instance) and the positions of its rows."""
    owner = [rows[name] for name in _OWNER]
    encoded = [each if pa.types.is_dictionary(each.type) else pc.dictionary_encode(each) for each in owner]
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    for column in encoded:
        codes = codes * max(1, len(column.dictionary)) + column.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        if len(mine):
            source, purgatory, instance = (column[int(mine[0])].as_py() for column in encoded)
            yield (source, purgatory, instance), mine


def _pieces(counted: list[_Counted], piece_rows: int) -> list[Piece]:
    pieces: list[Piece] = []
    of_owner: dict[Owner, list[_Counted]] = {}
    for one in counted:
        of_owner.setdefault(one.owner, []).append(one)
    for owner, mine in sorted(of_owner.items()):
        number, first_ms = sum(one.number for one in mine), min(one.first_ms for one in mine)
        starts = [first_ms, *_borders(mine, -(-number // piece_rows), number, first_ms)]
        for begin, end in zip(starts, [*starts[1:], _END_OF_TIME_MS], strict=True):
            files = {one.file for one in mine if one.first_ms < end and one.last_ms >= begin}
            pieces.append(Piece(owner, begin, end, tuple(sorted(files - {""})), number // len(starts)))
    return pieces


def _borders(mine: list[_Counted], parts: int, number: int, first_ms: int) -> list[int]:
    """Return the times at which the pieces begin, except the first piece."""
    sample = np.concatenate([one.sample for one in mine])
    weights = np.concatenate([np.full(len(one.sample), one.step) for one in mine])
    if parts < 2 or not len(sample):
        return []
    order = np.argsort(sample, kind="stable")
    upto = np.cumsum(weights[order])
    wanted = [number * part / parts for part in range(1, parts)]
    places = np.minimum(np.searchsorted(upto, wanted), len(sample) - 1)
    return sorted({int(ms) for ms in sample[order][places]} - {first_ms})


def _median(histograms: list[tuple[Any, Any]]) -> float:
    values = np.concatenate([values for values, _ in histograms] or [np.empty(0)])
    counts = np.concatenate([counts for _, counts in histograms] or [np.empty(0)])
    if not len(values):
        return 0.0
    order = np.argsort(values)
    upto = np.cumsum(counts[order])
    return float(values[order][np.searchsorted(upto, upto[-1] / 2)])


def sample_pieces(pieces: list[Piece], sample: float) -> tuple[list[Piece], float]:
    """Return an evenly spread sample of the pieces, and its actual share."""
    number = max(1, round(len(pieces) * sample))
    kept = [pieces[int(n * len(pieces) / number)] for n in range(number)] if number < len(pieces) else list(pieces)
    share = len(kept) / len(pieces) if pieces else 1.0
    return kept, share


# The second pass


def replay_pieces(
    spark: SparkSession, opened: OpenJournal, pieces: list[Piece], settings: Settings, selection: Selection
) -> list[dict[str, Any]]:
    """Replay each piece with every setting.  Return one row per setting and piece."""
    rows = map_pieces(spark, opened, pieces, selection, COLUMNS, partial(_replay_piece, settings=tuple(settings)))
    return sorted(rows, key=lambda row: (row["tick_ms"], row["wheel_size"], row["piece"]))


def map_pieces(
    spark: SparkSession,
    opened: OpenJournal,
    pieces: list[Piece],
    selection: Selection,
    columns: Sequence[str],
    work: Work,
    *,
    waiting: bool = False,
) -> list[Any]:
    """Return the results of ``work`` for all pieces, in order.

    ``waiting``: as for :func:`find_pieces`.
    """
    if reads_files(spark, opened):
        context = spark.sparkContext
        groups = _together(pieces, context.defaultParallelism)
        tasks = context.parallelize(groups, min(len(groups), _MOST_TASKS))
        done = tasks.map(partial(_work_on_files, work, tuple(columns), selection, waiting=waiting)).collect()
        found = [results for _, results in sorted((one for some in done for one in some), key=itemgetter(0))]
    else:

        def work_on_group(key, table):  # type: ignore[no-untyped-def]  # Spark evaluates type hints
            freeze_modules()
            number = key[0].as_py()
            (batch,) = _as_batches([pickle.dumps(work(table, number, pieces[number]))])
            return pa.Table.from_batches([batch])

        rows = _with_piece(spark, _selected(opened, selection, waiting=waiting), pieces, columns)
        spread = rows.repartition(min(len(pieces), _MOST_TASKS), "piece")
        cells = spread.groupBy("piece").applyInArrow(work_on_group, _CELL).toArrow()["cell"].to_pylist()
        found = [pickle.loads(cell) for cell in cells]  # noqa: S301 - a task of this job made it
    return [row for some in found for row in some]


def _with_piece(spark: SparkSession, rows: DataFrame, pieces: list[Piece], columns: Sequence[str]) -> DataFrame:
    """Keep the rows that belong to the pieces, and add to each row the number of its piece."""
    numbered = [(number, *piece.owner, piece.first_ms, piece.next_ms) for number, piece in enumerate(pieces)]
    schema = "piece long, source string, purgatory string, instance long, first_ms long, next_ms long"
    table = spark.createDataFrame(numbered, schema)
    parked_ms = F.unix_millis("parked_at")
    within = (parked_ms >= F.col("first_ms")) & (parked_ms < F.col("next_ms"))
    return rows.join(F.broadcast(table), list(_OWNER), how="inner").where(within).select("piece", *columns)


def _together(pieces: list[Piece], tasks: int) -> list[list[tuple[int, Piece]]]:
    """Return groups of pieces with their numbers, one group per task.

    Small pieces of the same files are in a group.
    """
    most = min(_ROWS_TOGETHER, -(-sum(piece.rows for piece in pieces) // tasks))
    groups: list[list[tuple[int, Piece]]] = []
    rows = 0
    for number, piece in sorted(enumerate(pieces), key=lambda numbered: numbered[1].files):
        rows += piece.rows
        if not groups or rows > most:
            groups.append([])
            rows = piece.rows
        groups[-1].append((number, piece))
    return groups


def _work_on_files(
    work: Work,
    wanted: tuple[str, ...],
    selection: Selection,
    group: list[tuple[int, Piece]],
    *,
    waiting: bool = False,
) -> list[tuple[int, list[Any]]]:
    """Return the number of each piece of the group, and the results of ``work`` for it."""
    freeze_modules()
    last_ms = max(piece.next_ms for _, piece in group)
    within = Selection(min(piece.first_ms for _, piece in group), None if last_ms == _END_OF_TIME_MS else last_ms)
    groups = partial(row_groups, selection=selection) if waiting else partial(parked_row_groups, selection=within)
    columns = needed_columns(wanted, selection)
    found: dict[int, list[pa.Table]] = {number: [] for number, _ in group}
    for name in sorted({name for _, piece in group for name in piece.files}):
        for batch in read_batches(name, columns, groups):
            for number, mine in _of_pieces(batch, group, selection, waiting=waiting):
                kept = [
                    plain(mine[column])
                    if column in mine.schema.names  # otherwise, the file is from an earlier release
                    else pa.nulls(mine.num_rows, ARROW_SCHEMA.field(column).type)
                    for column in wanted
                ]
                found[number].append(pa.Table.from_arrays(kept, list(wanted)))
    # A file that another program has rewritten may have other units or widths than the other files.
    tables = {number: pa.concat_tables(some, promote_options="permissive") for number, some in found.items()}
    return [(number, work(tables[number], number, piece)) for number, piece in group]


def _of_pieces(
    batch: pa.RecordBatch, group: list[tuple[int, Piece]], selection: Selection, *, waiting: bool
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the number of each piece of the group that may have rows in the batch, and these rows."""
    if len(group) == 1:
        ((number, piece),) = group
        # A single filter, and before all others, because each filter copies the remaining rows.
        yield number, _operations(batch.filter(_is_in(batch, piece)), selection, waiting=waiting)
        return
    rows = _operations(batch, selection, waiting=waiting)
    parked_ms, places = _ms(rows["parked_at"]), dict(_by_owner(rows))
    for number, piece in group:
        mine = places.get(piece.owner)
        if mine is not None:
            within = (parked_ms[mine] >= piece.first_ms) & (parked_ms[mine] < piece.next_ms)
            yield number, rows.take(pa.array(mine[within]))


def _is_in(batch: pa.RecordBatch, piece: Piece) -> pa.Array:
    """Return, for each row, whether it belongs to the piece."""
    source, purgatory, instance = piece.owner
    parked = batch["parked_at"]
    conditions = [
        _equals(batch["source"], source),
        _equals(batch["purgatory"], purgatory),
        pc.equal(_instances(batch), instance),
        pc.greater_equal(parked, time_like(parked, piece.first_ms)),
    ]
    if piece.next_ms != _END_OF_TIME_MS:
        conditions.append(pc.less(parked, time_like(parked, piece.next_ms)))
    return reduce(pc.and_, conditions)


def _replay_piece(table: pa.Table, number: int, piece: Piece, *, settings: Settings) -> list[dict[str, Any]]:
    """Replay the operations of a piece; they have the columns ``COLUMNS`` and can be in any order."""
    table = table.sort_by([("parked_at", "ascending"), ("op_id", "ascending")])
    trace = trace_of(table)
    reason = impossible(table, trace, piece)
    if reason is not None:
        return [{"tick_ms": 0, "wheel_size": 0, "piece": number, "impossible": reason}]
    late = recorded_lateness(trace)
    with _no_collections():
        script = Script(trace)
        # Use the lowest CPU time of several rounds: a single round of a short piece also measures other activity.
        rounds = max(1, min(_MOST_ROUNDS, _ENOUGH_ROWS // max(1, table.num_rows)))
        measured = [[replay(trace, *setting, script) for setting in settings] for _ in range(rounds)]
        best = [min(times, key=lambda each: each.cpu_s) for times in zip(*measured, strict=True)]
    return [_as_row(*setting, number, each, table, trace, late) for setting, each in zip(settings, best, strict=True)]


@contextmanager
def _no_collections() -> Iterator[None]:
    """Disable the garbage collector within the block.

    A replay creates no reference cycles, but each search for cycles would examine up to 100,000 tasks.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def impossible(table: pa.Table, trace: Trace, piece: Piece) -> str | None:
    """Return what is wrong with an operation that no purgatory can have recorded, or None if there is none."""
    wrong, reason = first_impossible(trace), "ends before it parks"
    unknown = np.flatnonzero(trace.outcomes < 0)
    if len(unknown):
        wrong = int(unknown[0])
        reason = f"has the outcome {table['outcome'][wrong].as_py()!r}, which is none of {', '.join(OUTCOMES)}"
    source, purgatory, _ = piece.owner
    if wrong is None:
        return None
    return f"operation {table['op_id'][wrong]} of purgatory {purgatory!r}, source {source!r}, {reason}"


def trace_of(table: pa.Table) -> Trace:
    """Return the columns of a piece as a trace; an unknown outcome is -1."""
    anchor = table["anchor_ms"].to_numpy()
    parked, deadline, finished = (
        np.where(table[name].is_valid().to_numpy(), _ms(table[name]) - anchor, _NO_TIME_MS)
        for name in ("parked_at", "deadline", "finished_at")
    )
    outcome = pc.index_in(plain(table["outcome"]), value_set=pa.array(OUTCOMES)).fill_null(-1)
    outcome = outcome.to_numpy().astype(np.int64)
    return Trace(parked, deadline, finished, outcome, pc.list_value_length(table["keys"]).fill_null(0).to_numpy() > 0)


def _as_row(
    tick_ms: int,
    wheel_size: int,
    piece: int,
    measured: Measured,
    table: pa.Table,
    trace: Trace,
    recorded: tuple[Any, Any],
) -> dict[str, Any]:
    example = ""
    if measured.examples:
        number = measured.examples[0]
        op_id = table["op_id"][number].as_py()
        outcome = OUTCOMES[int(trace.outcomes[number])]
        example = f"operation {op_id}, recorded as {outcome}, with tick_ms={tick_ms} wheel_size={wheel_size}"
    return {
        "tick_ms": tick_ms,
        "wheel_size": wheel_size,
        "piece": piece,
        "operations": measured.operations,
        "changed": measured.changed,
        "examples": example,
        "expired": measured.expired,
        "cascades": measured.cascades,
        "buckets": measured.buckets,
        "heap_operations": measured.heap_operations,
        "wakeups": measured.wakeups,
        "late": (measured.late_ms, measured.late_number),
        "stalled": recorded,
        "cpu_s": measured.cpu_s,
        "impossible": None,
    }


# Rows


def _operations(batch: pa.RecordBatch, selection: Selection, *, waiting: bool = False) -> pa.RecordBatch:
    """Return the selected operations, with an ``instance`` of 0 if the file has none."""
    rows = (batch_overlapping if waiting else batch_parked_within)(batch, selection)
    rows = rows.filter(pc.invert(_equals(rows["outcome"], DROPPED)))
    names = [name for name in rows.schema.names if name != "instance"]
    return pa.RecordBatch.from_arrays([*map(rows.column, names), _instances(rows)], [*names, "instance"])


def _instances(batch: pa.RecordBatch) -> pa.Array:
    if "instance" not in batch.schema.names:  # in a file from an earlier release
        return pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
    return batch["instance"].cast(pa.int64()).fill_null(0)


def _equals(column: pa.Array, text: str) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        return pc.equal(column.indices, column.dictionary.index(text).as_py())
    return pc.equal(column, text)


def _selected(opened: OpenJournal, selection: Selection, *, waiting: bool) -> DataFrame:
    rows = (overlapping if waiting else parked_within)(opened.dataframe, selection).where(F.col("outcome") != DROPPED)
    return rows.withColumn("instance", F.coalesce("instance", F.lit(0)))


def plain(column: Any) -> Any:
    """Return strings without dictionary encoding, times with the zone UTC, and any other column as it is."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp(column.type.unit, "UTC"))  # the same numbers
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def _ms(column: Any) -> Any:
    """Return timestamps as epoch milliseconds; a null becomes an arbitrary number."""
    divisor = 1 if column.type.unit == "ms" else 1000
    return np.asarray(column.cast(pa.int64()).fill_null(0)) // divisor


def _as_batches(cells: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    for cell in cells:
        yield pa.RecordBatch.from_arrays([pa.array([cell], pa.binary())], ["cell"])
