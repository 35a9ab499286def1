"""What other timer settings would have cost: the journal replayed with each of them, and which serves best.

The journal is cut into pieces of time per source and purgatory, so that a piece has the same density as the whole (a
sample of single operations would fill each bucket with fewer).  Two purgatories of one name are two.  Each piece with
each setting is one task.
"""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everyone gives it
from rich.console import Console

from purgatory.journal import JournalError
from purgatory.journal.schema import DROPPED, OUTCOMES

from .progress import progress
from .reading import Reading, read_through
from .replay import Measured, Trace, replay

__all__ = ["WhatIf", "check_settings", "what_if", "write_what_if"]

_RESULT: Final = (
    "tick_ms long, wheel_size long, piece long, operations long, changed long, examples string, expired long,"
    " cascades long, buckets long, heap_operations long, wakeups long, late_ms array<long>, late_number array<long>,"
    " cpu_s double"
)
_Piece = tuple[str, str, int, int, int]
_NEAR: Final = 1.05  # CPU times that differ by less are taken as equal
_LEAST_BUDGET_MS: Final = 1.0


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What the replay found.

    ``table``: a row per setting.  ``recommended``: tick and wheel size.  ``budget_ms``: what lateness was allowed.
    ``changed``: outcomes that were not the recorded ones, over all settings; ``examples`` of them.
    """

    journal: str
    table: pa.Table
    operations: int
    share: float
    changed: int
    examples: tuple[str, ...]
    recommended: dict[str, int]
    headline: str
    reasons: tuple[str, ...]
    budget_ms: float
    skipped: tuple[str, ...]
    made_at: datetime

    @property
    def subtitle(self) -> str:
        """What was replayed, in a line."""
        part = "" if self.share >= 1 else f", {self.share:.1%} of it"
        return f"{self.journal}{part}: {self.operations:,} operations through the real timer, in virtual time"


def what_if(
    spark: SparkSession,
    journal: str,
    ticks_ms: Sequence[int],
    wheel_sizes: Sequence[int],
    *,
    sample: float = 1.0,
    piece_rows: int = 100_000,
    budget_ms: float | None = None,
    skip_corrupt: bool = False,
    console: Console | None = None,
) -> WhatIf:
    """Replay the journal with every tick and wheel size.

    ``sample``: which share of the pieces to replay, evenly spread.  ``piece_rows``: about how many operations a task
    holds in memory.  ``budget_ms``: the p99 of lateness that is acceptable; None: 1 % of the median timeout, and at
    least 1.
    Errors as from :func:`~purgatory.pipeline.report.compute`; ValueError for settings that no timer takes.
    """
    check_settings(ticks_ms, wheel_sizes, sample, piece_rows, budget_ms)

    def work(reading: Reading) -> tuple[list[dict[str, Any]], float, float]:
        with progress(spark, 2, console) as steps:
            with steps.step("cutting the journal into pieces"):
                # Files of releases that did not number purgatories have null.
                instance = F.coalesce("instance", F.lit(0))
                rows = reading.frame.where(F.col("outcome") != DROPPED).withColumn("instance", instance)
                pieces = _pieces(rows, piece_rows)
                share = _thinned(pieces, sample)
                timeout_ms = _median_timeout_ms(rows)
            with steps.step(f"replaying {len(ticks_ms) * len(wheel_sizes)} settings"):
                cut = rows.transform(_cut(spark, pieces))
                settings = _settings(spark, ticks_ms, wheel_sizes)
                found = _replayed(spark, cut, settings, len(pieces))
        return found, share, timeout_ms

    (found, share, timeout_ms), reading = read_through(spark, journal, work, skip_corrupt=skip_corrupt)
    if not found:
        raise JournalError(f"the journal {journal} is empty: it has no operations")
    allowed_ms = max(_LEAST_BUDGET_MS, timeout_ms / 100) if budget_ms is None else budget_ms
    table = _summed(found)
    best, headline, reasons = recommend(table.to_pylist(), allowed_ms)
    operations = sum(row["operations"] for row in found if _setting(row) == _setting(found[0]))
    examples = tuple(row["examples"] for row in found if row["examples"])[:5]
    changed = sum(row["changed"] for row in found)
    skipped, now = reading.skipped, datetime.now(UTC)
    return WhatIf(
        journal, table, operations, share, changed, examples, best, headline, reasons, allowed_ms, skipped, now
    )


def recommend(rows: list[dict[str, Any]], budget_ms: float) -> tuple[dict[str, int], str, tuple[str, ...]]:
    """The setting that serves best, in a sentence, and why.

    Of those whose p99 of lateness is within the budget the one with the least CPU; among those within 5 % of that,
    which is less than two runs differ, the finest tick, then the fewest heap operations, then the smallest wheel.
    """
    within = [row for row in rows if row["late_p99_ms"] <= budget_ms]
    reasons = [f"Acceptable lateness: p99 of at most {budget_ms:g} ms."]
    if not within:
        best = min(rows, key=lambda row: (row["late_p99_ms"], row["cpu_us"]))
        reasons.append("No setting keeps to that; this one is the least late.")
    else:
        least = min(row["cpu_us"] for row in within)
        near = [row for row in within if row["cpu_us"] <= least * _NEAR]
        best = min(near, key=lambda row: (row["tick_ms"], row["heap_operations"], row["wheel_size"]))
        out = len(rows) - len(within)
        if out:
            reasons.append(f"{out} of {len(rows)} settings are later than that.")
        if len(near) > 1:
            reasons.append(
                f"{len(near)} of the rest take the same CPU within 5 %, {least:.2f} us per operation at least:"
                " this one has the finest tick of them, and there the fewest heap operations."
            )
        else:
            reasons.append(f"Of the rest it takes the least CPU, {least:.2f} us per operation.")
    reasons.append(
        f"It costs {best['cascades']:.2f} cascades and {best['heap_operations']:.3f} heap operations per operation;"
        f" lateness p99 is {best['late_p99_ms']:g} ms, at most {best['late_max_ms']:g} ms."
    )
    chosen = {"tick_ms": best["tick_ms"], "wheel_size": best["wheel_size"]}
    return chosen, f"Take tick_ms={chosen['tick_ms']}, wheel_size={chosen['wheel_size']}", tuple(reasons)


def write_what_if(found: WhatIf, out: Path) -> Path:
    """Write table, picture and page into the directory ``out``, and return the page."""
    from .page import replay_page
    from .report import write_table
    from .whatif_plots import replay_plots

    out.parent.mkdir(parents=True, exist_ok=True)
    if out.exists() and not out.is_dir():
        raise JournalError(f"the replay cannot go to {out}: that is a file")
    unfinished = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        write_table(found.table, unfinished, "settings")
        pictures = replay_plots(found)
        for name, picture in pictures.items():
            (unfinished / f"{name}.svg").write_bytes(picture.svg)
            (unfinished / f"{name}.png").write_bytes(picture.png)
        (unfinished / "replay.html").write_text(replay_page(found, pictures), encoding="utf-8")
        out.mkdir(exist_ok=True)
        for file in unfinished.iterdir():
            file.replace(out / file.name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return out / "replay.html"


def check_settings(
    ticks_ms: Sequence[int], wheel_sizes: Sequence[int], sample: float, piece_rows: int, budget_ms: float | None
) -> None:
    """Check the settings of :func:`what_if`.  ValueError for the first that cannot be."""
    if not ticks_ms or min(ticks_ms) < 1:
        raise ValueError(f"tick_ms must be whole milliseconds, at least 1, got {list(ticks_ms)}")
    if not wheel_sizes or min(wheel_sizes) < 2:
        raise ValueError(f"wheel_size must be at least 2, got {list(wheel_sizes)}")
    if not 0 < sample <= 1:
        raise ValueError(f"sample must be a share, more than 0 and at most 1, got {sample}")
    if piece_rows < 1:
        raise ValueError(f"piece_rows must be at least 1, got {piece_rows}")
    if budget_ms is not None and not budget_ms >= 0:
        raise ValueError(f"lateness_ms must be at least 0, got {budget_ms}")


def _pieces(rows: DataFrame, piece_rows: int) -> list[_Piece]:
    """Source, purgatory, instance, first and last millisecond of each piece, in order."""
    ms = F.unix_millis("parked_at")
    spans = rows.groupBy(*_OWNER).agg(F.count("*").alias("number"), F.min(ms).alias("first"))
    counted = spans.orderBy(*_OWNER).collect()
    most = max((-(-row["number"] // piece_rows) for row in counted), default=1)
    if most == 1:
        return [(*_owner(row), row["first"], _FAR) for row in counted]
    # One pass for the borders of all: as many as the largest needs, of which the others take every so-manieth.
    parts = F.array(*[F.lit(n / most) for n in range(1, most)])
    borders = rows.groupBy(*_OWNER).agg(F.percentile_approx(ms, parts, F.lit(10_000)).alias("borders"))
    at = {_owner(row): row["borders"] for row in borders.collect()}
    pieces: list[_Piece] = []
    for row in counted:
        want = -(-row["number"] // piece_rows)
        every = at[_owner(row)]
        starts = sorted({every[round(n * most / want) - 1] for n in range(1, want)} - {row["first"]})
        starts = [row["first"], *starts]
        ends = [*starts[1:], _FAR]
        pieces += [(*_owner(row), a, b) for a, b in zip(starts, ends, strict=True)]
    return pieces


def _owner(row: Row) -> tuple[str, str, int]:
    return row["source"], row["purgatory"], row["instance"]


_OWNER: Final = ("source", "purgatory", "instance")
_FAR: Final = 1 << 62


def _thinned(pieces: list[_Piece], sample: float) -> float:
    """Leave an evenly spread share of the pieces; return the share."""
    want = max(1, round(len(pieces) * sample))
    kept = [pieces[int(n * len(pieces) / want)] for n in range(want)] if want < len(pieces) else list(pieces)
    share = len(kept) / len(pieces) if pieces else 1.0
    pieces[:] = kept
    return share


def _median_timeout_ms(rows: DataFrame) -> float:
    timeout = F.unix_millis("deadline") - F.unix_millis("parked_at")
    found = rows.agg(F.percentile_approx(timeout, 0.5, F.lit(1_000)).alias("median")).first()
    return 0.0 if found is None or found["median"] is None else float(found["median"])


def _cut(spark: SparkSession, pieces: list[_Piece]) -> Any:
    numbered = [(number, *piece) for number, piece in enumerate(pieces)]
    schema = "piece long, source string, purgatory string, instance long, first_ms long, next_ms long"
    table = spark.createDataFrame(numbered, schema)

    def cut(rows: DataFrame) -> DataFrame:
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

    return cut


_TIMES: Final = {"parked_ms": "parked_at", "deadline_ms": "deadline", "finished_ms": "finished_at"}


def _settings(spark: SparkSession, ticks_ms: Sequence[int], wheel_sizes: Sequence[int]) -> DataFrame:
    pairs = [(tick, size) for tick in sorted(set(ticks_ms)) for size in sorted(set(wheel_sizes))]
    return spark.createDataFrame(pairs, "tick_ms long, wheel_size long")


def _replayed(spark: SparkSession, cut: DataFrame, settings: DataFrame, pieces: int) -> list[dict[str, Any]]:
    tasks = settings.count() * pieces
    with _conf(spark, {"spark.sql.adaptive.coalescePartitions.enabled": "false"}):
        crossed = cut.crossJoin(F.broadcast(settings))
        spread = crossed.repartition(min(tasks, 2_000), "tick_ms", "wheel_size", "piece")
        found = spread.groupBy("tick_ms", "wheel_size", "piece").applyInArrow(_replay_piece, _RESULT)
        return [row.asDict() for row in found.orderBy("tick_ms", "wheel_size", "piece").collect()]


def _replay_piece(table):  # type: ignore[no-untyped-def]  # partial type hints on such a function break Spark 4.3.0
    tick_ms, wheel_size, piece = (table[name][0].as_py() for name in ("tick_ms", "wheel_size", "piece"))
    table = table.sort_by([("parked_ms", "ascending"), ("op_id", "ascending")])
    trace = trace_of(table)
    measured = replay(trace, tick_ms, wheel_size)
    return _as_row(tick_ms, wheel_size, piece, measured, table, trace)


def trace_of(table: pa.Table) -> Trace:
    """The columns of a piece as the replay wants them."""
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


def _setting(row: dict[str, Any]) -> tuple[int, int]:
    return row["tick_ms"], row["wheel_size"]


def _summed(found: list[dict[str, Any]]) -> pa.Table:
    """Per setting, over its pieces; costs per operation."""
    rows = []
    for setting in sorted({_setting(row) for row in found}):
        mine = [row for row in found if _setting(row) == setting]
        operations = sum(row["operations"] for row in mine)
        late: dict[int, int] = {}
        for row in mine:
            for value, number in zip(row["late_ms"], row["late_number"], strict=True):
                late[value] = late.get(value, 0) + number
        total = {name: sum(row[name] for row in mine) for name in _COUNTED}
        rows.append(
            {
                "tick_ms": setting[0],
                "wheel_size": setting[1],
                "operations": operations,
                "changed": sum(row["changed"] for row in mine),
                "expired": sum(row["expired"] for row in mine),
                **{name: total[name] / operations for name in _COUNTED},
                "late_mean_ms": _mean(late),
                "late_p99_ms": float(_quantile(late, 0.99)),
                "late_max_ms": float(max(late, default=0)),
                "cpu_us": sum(row["cpu_s"] for row in mine) / operations * 1e6,
            }
        )
    return pa.Table.from_pylist(rows)


_COUNTED: Final = ("cascades", "buckets", "heap_operations", "wakeups")


def _mean(late: dict[int, int]) -> float:
    number = sum(late.values())
    return sum(value * times for value, times in late.items()) / number if number else 0.0


def _quantile(late: dict[int, int], share: float) -> int:
    """The least value that at least this share does not exceed."""
    if not late:
        return 0
    values = np.array(sorted(late))
    upto = np.cumsum([late[value] for value in values.tolist()])
    return int(values[np.searchsorted(upto, share * upto[-1])])


class _conf:  # noqa: N801 - used as a word in a with statement
    """Settings of the session, as they were afterwards."""

    def __init__(self, spark: SparkSession, settings: dict[str, str]) -> None:
        self._spark = spark
        self._settings = settings
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> None:
        for name, value in self._settings.items():
            self._before[name] = self._spark.conf.get(name, None)
            self._spark.conf.set(name, value)

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                self._spark.conf.unset(name)
            else:
                self._spark.conf.set(name, value)
