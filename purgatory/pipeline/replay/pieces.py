"""Cut a journal into pieces of time, each small enough for one task, and replay a piece.

A piece is a span of time of one purgatory in one run of a server, so it has the density of the whole.  A sample of
single operations would put fewer operations into each bucket.  Two purgatories with the same name are kept apart by
their ``instance``.
"""

from collections.abc import Callable
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from purgatory.journal.schema import OUTCOMES
from purgatory.pipeline.spark.workers import freeze_modules

from .simulation import Measured, Trace, replay

__all__ = ["RESULT", "Piece", "cut", "find_pieces", "replay_piece", "sample_pieces"]

Piece = tuple[str, str, int, int, int]  # source, purgatory, instance, first millisecond, first of the next piece
_OWNER: Final = ("source", "purgatory", "instance")
# The columns of what :func:`replay_piece` returns.
RESULT: Final = (
    "tick_ms long, wheel_size long, piece long, operations long, changed long, examples string, expired long,"
    " cascades long, buckets long, heap_operations long, wakeups long, late_ms array<long>, late_number array<long>,"
    " cpu_s double"
)
_END_OF_TIME_MS: Final = 1 << 62
_TIMES: Final = {"parked_ms": "parked_at", "deadline_ms": "deadline", "finished_ms": "finished_at"}


def find_pieces(rows: DataFrame, piece_rows: int) -> list[Piece]:
    """Return pieces of about ``piece_rows`` operations that cover all rows, in order."""
    ms = F.unix_millis("parked_at")
    spans = rows.groupBy(*_OWNER).agg(F.count("*").alias("number"), F.min(ms).alias("first"))
    counted = spans.orderBy(*_OWNER).collect()
    max_pieces = max((-(-row["number"] // piece_rows) for row in counted), default=1)
    if max_pieces == 1:
        return [(*_owner(row), row["first"], _END_OF_TIME_MS) for row in counted]
    # One pass finds borders for all owners: as many as the largest needs.  The others use every n-th of them.
    parts = F.array(*[F.lit(n / max_pieces) for n in range(1, max_pieces)])
    borders = rows.groupBy(*_OWNER).agg(F.percentile_approx(ms, parts, F.lit(10_000)).alias("borders"))
    borders_of = {_owner(row): row["borders"] for row in borders.collect()}
    pieces: list[Piece] = []
    for row in counted:
        number = -(-row["number"] // piece_rows)
        quantiles = borders_of[_owner(row)]
        starts = sorted({quantiles[round(n * max_pieces / number) - 1] for n in range(1, number)} - {row["first"]})
        starts = [row["first"], *starts]
        ends = [*starts[1:], _END_OF_TIME_MS]
        pieces += [(*_owner(row), a, b) for a, b in zip(starts, ends, strict=True)]
    return pieces


def _owner(row: Row) -> tuple[str, str, int]:
    return row["source"], row["purgatory"], row["instance"]


def sample_pieces(pieces: list[Piece], sample: float) -> tuple[list[Piece], float]:
    """Return an evenly spread sample of the pieces, and its actual share."""
    number = max(1, round(len(pieces) * sample))
    kept = [pieces[int(n * len(pieces) / number)] for n in range(number)] if number < len(pieces) else list(pieces)
    share = len(kept) / len(pieces) if pieces else 1.0
    return kept, share


def cut(spark: SparkSession, pieces: list[Piece]) -> Callable[[DataFrame], DataFrame]:
    """Return a function that keeps the rows of the pieces, with the columns that the replay needs."""
    numbered = [(number, *piece) for number, piece in enumerate(pieces)]
    schema = "piece long, source string, purgatory string, instance long, first_ms long, next_ms long"
    table = spark.createDataFrame(numbered, schema)

    def of(rows: DataFrame) -> DataFrame:
        parked_ms = F.unix_millis("parked_at")
        within = (parked_ms >= F.col("first_ms")) & (parked_ms < F.col("next_ms"))
        joined = rows.join(F.broadcast(table), list(_OWNER), how="inner").where(within)
        outcome = F.array_position(F.array(*[F.lit(name) for name in OUTCOMES]), F.col("outcome")) - 1
        clock = {name: F.unix_millis(column) - F.col("anchor_ms") for name, column in _TIMES.items()}
        return joined.select(
            "piece",
            "op_id",
            "keys",
            outcome.alias("outcome"),
            *[F.coalesce(ms, F.lit(-1)).cast("long").alias(name) for name, ms in clock.items()],
        )

    return of


def replay_piece(table: pa.Table) -> pa.Table:
    """Replay a piece with one setting.  The table has the columns of :func:`cut`, ``tick_ms``, and ``wheel_size``."""
    freeze_modules()
    tick_ms, wheel_size, piece = (table[name][0].as_py() for name in ("tick_ms", "wheel_size", "piece"))
    table = table.sort_by([("parked_ms", "ascending"), ("op_id", "ascending")])
    trace = _trace_of(table)
    measured = replay(trace, tick_ms, wheel_size)
    return _as_row(tick_ms, wheel_size, piece, measured, table, trace)


def _trace_of(table: pa.Table) -> Trace:
    """Return the columns of a piece as a trace."""
    parked, deadline, finished, outcome = (
        table[name].to_numpy() for name in ("parked_ms", "deadline_ms", "finished_ms", "outcome")
    )
    return Trace(parked, deadline, finished, outcome, table["keys"].to_pylist())


def _as_row(tick_ms: int, wheel_size: int, piece: int, measured: Measured, table: pa.Table, trace: Trace) -> pa.Table:
    example = ""
    if measured.examples:
        number = measured.examples[0]
        op_id = table["op_id"][number].as_py()
        recorded = OUTCOMES[int(trace.outcomes[number])]
        example = f"operation {op_id}, recorded as {recorded}, with tick_ms={tick_ms} wheel_size={wheel_size}"
    row = {
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
        "late_ms": list(measured.late_ms),
        "late_number": list(measured.late_number),
        "cpu_s": measured.cpu_s,
    }
    lists = {"late_ms": pa.list_(pa.int64()), "late_number": pa.list_(pa.int64())}
    types = {"examples": pa.string(), "cpu_s": pa.float64()} | lists
    schema = pa.schema([pa.field(name, types.get(name, pa.int64())) for name in row])
    return pa.Table.from_pylist([row], schema=schema)
