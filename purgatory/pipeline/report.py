"""The report: every table, as Parquet and CSV, the plots, and one page that has it all."""

import shutil
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from purgatory.journal import JournalError

from . import tables
from .page import report_page
from .plots import report_plots
from .progress import Steps, progress
from .reading import Reading, read_through

__all__ = ["Report", "compute", "write_report", "write_table"]

_STEPS: Final = 4
_FORMULA: Final = r"\A([=+\-@\t\r'])"
_MOST_BUCKETS: Final = 2_000
# Lengths of time that people read without arithmetic, in milliseconds.
_LENGTHS_MS: Final = (1_000, 5_000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 21_600_000, 86_400_000, 604_800_000)


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of a journal: the tables by name, and what the reader should know of how they came to be."""

    journal: str
    tables: dict[str, pa.Table]
    bucket_ms: int
    files: int | None
    skipped: tuple[str, ...]
    made_at: datetime

    @property
    def operations(self) -> int:
        """How many operations the journal has."""
        return sum(self.tables["dropped"]["operations"].to_pylist())

    @property
    def dropped(self) -> int:
        """How many rows the servers had to drop."""
        return sum(self.tables["dropped"]["dropped"].to_pylist())


def compute(
    spark: SparkSession,
    journal: str,
    *,
    top: int = 50,
    bucket_ms: int | None = None,
    skip_corrupt: bool = False,
    console: Console | None = None,
) -> Report:
    """Compute every table.  ``top``: how many hot keys; ``bucket_ms``: how finely time is divided, None: as it fits.

    JournalError, naming the file, for what cannot be read; ValueError for a bucket that is too fine for the journal.
    """
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    if bucket_ms is not None and bucket_ms < 1:
        raise ValueError(f"bucket_ms must be at least 1, got {bucket_ms}")

    def work(reading: Reading) -> tuple[dict[str, pa.Table], int]:
        with progress(spark, _STEPS, console) as steps:
            return _tables(reading, top, bucket_ms, steps)

    (made, chosen_ms), reading = read_through(spark, journal, work, skip_corrupt=skip_corrupt)
    files = None if reading.files is None else len(reading.files)
    return Report(journal, made, chosen_ms, files, reading.skipped, datetime.now(UTC))


def _tables(reading: Reading, top: int, bucket_ms: int | None, steps: Steps) -> tuple[dict[str, pa.Table], int]:
    operations = reading.frame.transform(tables.operations)
    made: dict[str, pa.Table] = {}
    with steps.step("sources and dropped rows"):
        made["dropped"] = _collect(reading.frame.transform(tables.dropped))
    if not sum(made["dropped"]["operations"].to_pylist()):
        raise JournalError("the journal is empty: it has no operations")
    chosen_ms = _bucket_ms(made["dropped"], bucket_ms)
    with steps.step("outcomes, waits, lateness"):
        endings = operations.transform(tables.endings).cache()
        try:
            made["outcomes"] = _collect(endings.transform(tables.outcomes))
            made["waits"] = _collect(endings.transform(tables.waits))
            made["lateness"] = _collect(endings.transform(tables.lateness))
            made["wait_histogram"] = _collect(endings.transform(tables.wait_histogram))
        finally:
            endings.unpersist()
    with steps.step("occupancy over time"):
        last = _last_records(reading.frame.sparkSession, made["dropped"])
        made["occupancy"] = _collect(operations.transform(tables.occupancy(chosen_ms, last)))
    with steps.step("hot keys"):
        made["hot_keys"] = _collect(operations.transform(tables.hot_keys(top)))
    made["peaks"] = _peaks(made["occupancy"])
    return made, chosen_ms


def write_report(report: Report, out: Path) -> Path:
    """Write tables, plots and page into the directory ``out``, and return the page.

    All is made beside it first, so an older report is replaced by a whole one or not at all.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.exists() and not out.is_dir():
        raise JournalError(f"the report cannot go to {out}: that is a file")
    unfinished = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        for name, table in report.tables.items():
            write_table(table, unfinished, name)
        plots = report_plots(report.tables, report.bucket_ms)
        for name, picture in plots.items():
            (unfinished / f"{name}.svg").write_bytes(picture.svg)
            (unfinished / f"{name}.png").write_bytes(picture.png)
        (unfinished / "index.html").write_text(report_page(report, plots), encoding="utf-8")
        out.mkdir(exist_ok=True)
        for file in unfinished.iterdir():
            file.replace(out / file.name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return out / "index.html"


def write_table(table: pa.Table, directory: Path, name: str) -> None:
    """One table as Parquet and as CSV.

    Spreadsheets take a cell that begins with ``=``, ``+``, ``-``, ``@``, a tab or a return for a formula, whatever
    quotes it has.  In the CSV such a text gets a ``'`` before it, and so does one that begins with ``'``: without the
    first ``'`` each is what it was.
    """
    pq.write_table(table, directory / f"{name}.parquet")
    plain = table
    for number, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            escaped = pc.replace_substring_regex(table[field.name], _FORMULA, r"'\1")
            plain = plain.set_column(number, field.name, escaped)
    pc_csv.write_csv(plain, directory / f"{name}.csv")


def _collect(frame: DataFrame) -> pa.Table:
    return frame.toArrow()


def _bucket_ms(sources: pa.Table, asked_ms: int | None) -> int:
    first = min(sources["first_at"].to_pylist())
    last = max(sources["last_at"].to_pylist())
    span_ms = (last - first).total_seconds() * 1000
    if asked_ms is None:
        return next((length for length in _LENGTHS_MS if span_ms / length <= _MOST_BUCKETS), _LENGTHS_MS[-1])
    if span_ms / asked_ms > 100 * _MOST_BUCKETS:
        raise ValueError(f"a bucket of {asked_ms} ms makes {span_ms / asked_ms:.0f} of them: take a longer one")
    return asked_ms


def _last_records(spark: SparkSession, sources: pa.Table) -> DataFrame:
    """When each source wrote its last record, for :func:`~purgatory.pipeline.tables.occupancy`."""
    last_ms = sources["last_at"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
    rows = list(zip(sources["source"].to_pylist(), last_ms.to_pylist(), strict=True))
    return spark.createDataFrame(rows, "source string, last_ms long")


def _peaks(occupancy: pa.Table) -> pa.Table:
    """Per purgatory the highest occupancy, and the first bucket that reached it."""
    best: dict[str, dict[str, Any]] = {}
    for row in occupancy.select(["purgatory", "bucket", "peak"]).to_pylist():
        if row["purgatory"] not in best or row["peak"] > best[row["purgatory"]]["peak"]:
            best[row["purgatory"]] = row
    schema = pa.schema([occupancy.schema.field(name) for name in ("purgatory", "bucket", "peak")])
    return pa.Table.from_pylist([best[name] for name in sorted(best)], schema=schema)
