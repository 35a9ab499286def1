"""A journal as a table that is partitioned by date."""

import os
import pathlib
import subprocess
import sys
from functools import partial
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import UnsupportedOperationException
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from purgatory.journal import JournalError, compact
from purgatory.journal.files import ARROW_SCHEMA, data_files
from purgatory.pipeline import journal_reader, lake
from purgatory.pipeline.__main__ import main
from purgatory.pipeline.journal_reader import OpenJournal
from purgatory.pipeline.lake import load_journal
from purgatory.pipeline.output.directory import BadOutput
from purgatory.pipeline.recipe import Recipe
from purgatory.pipeline.report import compute
from purgatory.pipeline.selection import Selection
from purgatory.pipeline.synthetic_journal import generate
from tests.pipeline.settings import QUICK_JAVA

pytestmark = pytest.mark.timeout(170)


@pytest.fixture
def journal(tmp_path: pathlib.Path) -> pathlib.Path:
    """A synthetic journal of a day and a half, so of three dates or two."""
    generate(tmp_path / "journal", Recipe(1_500, seed=5, rate=0.012, keys=40, rows_per_file=300))
    return tmp_path / "journal"


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows of a journal, in order, with times in milliseconds."""
    columns = []
    for name in ARROW_SCHEMA.names:
        column = table[name]
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        columns.append([tuple(cell) if isinstance(cell, list) else cell for cell in column.to_pylist()])
    return sorted(zip(*columns, strict=True), key=repr)


def recorded(journal: pathlib.Path) -> pa.Table:
    """Return all rows of the files of a journal."""
    return pa.concat_tables(
        [pq.read_table(file, partitioning=None).select(ARROW_SCHEMA.names) for file in data_files(journal)]
    )


def dates_of(lake: pathlib.Path) -> dict[str, pa.Table]:
    """Return the rows of each date of a table of Parquet files."""
    return {folder.name: pq.read_table(folder, partitioning=None) for folder in sorted(lake.glob("date=*"))}


def test_each_date_has_the_operations_that_parked_on_it(
    spark: Any, journal: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """All rows, unchanged, in the folder of their date in UTC, whatever the time zone of the session is."""
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
    try:
        loaded = load_journal(spark, str(journal), tmp_path / "lake")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    dates = dates_of(tmp_path / "lake")
    assert rows_of(pa.concat_tables(dates.values())) == rows_of(recorded(journal))
    assert len(dates) >= 2
    for name, table in dates.items():
        days = {f"date={at:%Y-%m-%d}" for at in table["parked_at"].cast(pa.timestamp("ms", "UTC")).to_pylist()}
        assert days == {name}
    late = recorded(journal)["lateness"].drop_null()
    assert (loaded.rows, loaded.expired, loaded.dropped) == (1_500, len(late), 0)
    assert (f"date={loaded.first}", f"date={loaded.last}") == (min(dates), max(dates))
    assert loaded.lateness_s == pytest.approx(pc.mean(late).as_py())


def test_a_load_replaces_the_dates_that_it_has_and_no_others(
    spark: Any, journal: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Repeated, with new files and after a merge of the files, no row is doubled; other dates keep their files."""
    lake, files = tmp_path / "lake", data_files(journal)
    last = files[-1].rename(tmp_path / files[-1].name)
    load_journal(spark, str(journal), lake)
    first, *_ = names = list(dates_of(lake))
    kept = sorted(path.name for path in (lake / first).iterdir())
    last.rename(files[-1])
    compact(journal, 1_000)
    until = pc.max(recorded(journal)["parked_at"]).as_py()
    loaded = load_journal(spark, str(journal), lake, selection=Selection.parse(since=f"{until:%Y-%m-%d}"))
    assert (loaded.first, loaded.last) == (f"{until:%Y-%m-%d}",) * 2
    assert sorted(path.name for path in (lake / first).iterdir()) == kept
    load_journal(spark, str(journal), lake)
    assert rows_of(pa.concat_tables(dates_of(lake).values())) == rows_of(recorded(journal))
    assert set(names) <= set(dates_of(lake))


@pytest.mark.parametrize("skip_corrupt", [False, True])
@pytest.mark.parametrize("when", ["listed", "counted"])
def test_a_load_of_a_journal_that_is_merged_in_the_meantime_has_all_rows(
    spark: Any, journal: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, when: str,
    skip_corrupt: bool,
) -> None:  # fmt: skip
    """After Spark has listed the files, or after it has counted the rows.  If that happens again, the load fails, and
    the table stays as it was."""
    out, expected = tmp_path / "lake", rows_of(recorded(journal))
    open_journal, add_mark = journal_reader.open_journal, lake._add_mark
    doing: list[Any] = []

    def opened(*arguments: Any, **more: Any) -> OpenJournal:
        found = open_journal(*arguments, **more)
        assert found.dataframe.columns
        if when == "listed" and doing:
            doing.pop()()
        return found

    def mark(*arguments: Any) -> None:
        add_mark(*arguments)
        if when == "counted" and doing:
            doing.pop()()

    monkeypatch.setattr(journal_reader, "open_journal", opened)
    monkeypatch.setattr(lake, "_add_mark", mark)
    doing.append(lambda: compact(journal, 10_000))
    loaded = load_journal(spark, str(journal), out, skip_corrupt=skip_corrupt)
    assert (doing, loaded.rows, loaded.skipped) == ([], 1_500, ())
    assert rows_of(pa.concat_tables(dates_of(out).values())) == expected
    (merged,) = data_files(journal)
    for name in "ba":
        (journal / f"part-{name}.parquet").write_bytes(merged.read_bytes())
        merge = partial((journal / f"part-{name}.parquet").rename, journal / f"part-{name}-merged.parquet")
        doing.append(merge)
    with pytest.raises(JournalError, match=r"part-b\.parquet was removed while the journal was read; run the command"):
        load_journal(spark, str(journal), out, skip_corrupt=skip_corrupt)
    assert rows_of(pa.concat_tables(dates_of(out).values())) == expected


def test_a_report_of_the_table_is_that_of_the_journal(
    spark: Any, journal: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints what it has loaded, and the table is a journal for the other commands."""
    lake = tmp_path / "lake"
    assert main(["load", str(journal), "--out", str(lake), "--quiet"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("1,500 rows of ")
    assert "expired" in said
    one, other = compute(spark, str(journal)), compute(spark, f"table:parquet.`{lake}`")
    for name, table in one.tables.items():
        assert table.equals(other.tables[name]), name


def test_a_load_into_a_parquet_table_of_the_catalog_can_be_repeated(
    spark: Any, journal: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Its dates replace those of the table, and the others stay; the setting of the session is as before."""
    mode, last = "spark.sql.sources.partitionOverwriteMode", pc.max(recorded(journal)["parked_at"]).as_py()
    spark.sql(f"CREATE DATABASE lakes LOCATION '{tmp_path / 'lakes'}'")
    try:
        for selection in (Selection(), Selection(), Selection.parse(since=f"{last:%Y-%m-%d}")):
            loaded = load_journal(spark, str(journal), "table:lakes.journal", selection=selection)
            assert rows_of(spark.table("lakes.journal").toArrow()) == rows_of(recorded(journal))
            assert spark.conf.get(mode).upper() == "STATIC"
        assert loaded.rows < 1_500
        older = spark.table("lakes.journal").drop("refused")
        older.writeTo("lakes.older").using("parquet").partitionedBy(F.col("date")).create()
        with pytest.raises(BadOutput, match=r"cannot be written as parquet, table:lakes\.older: .*INSERT_COLUMN_ARITY"):
            load_journal(spark, str(journal), "table:lakes.older")
        assert spark.table("lakes.older").count() == 1_500
    finally:
        spark.sql("DROP DATABASE lakes CASCADE")


@pytest.mark.parametrize("out", ["table", "path"])
@pytest.mark.parametrize(
    ("partitions", "reason"),
    [
        ([], "not partitioned"),
        (["purgatory"], "partitioned by purgatory"),
        (["date", "purgatory"], "partitioned by date, purgatory"),
    ],
)
def test_a_table_with_other_partitions_than_dates_is_refused(
    spark: Any, journal: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, partitions: list[str],
    reason: str, out: str,
) -> None:  # fmt: skip
    """Spark would replace the whole table, or whole partitions with rows of other dates.  Nothing changes."""
    load_journal(spark, str(journal), tmp_path / "lake")
    rows = spark.read.parquet(str(tmp_path / "lake"))
    last = pc.max(recorded(journal)["parked_at"]).as_py()
    path, name = tmp_path / "other", "table:partitions"
    rows.write.partitionBy(*partitions).parquet(str(path))
    spark.sql(f"CREATE TABLE partitions USING parquet LOCATION '{path}'")
    if partitions:
        spark.catalog.recoverPartitions("partitions")
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    try:
        if out == "path":  # on a server of Spark Connect, whose files the command cannot see
            monkeypatch.setattr("purgatory.pipeline.lake.is_connect", lambda _: True)
            name = str(path)
        with pytest.raises(
            BadOutput, match=f"^out must be a table partitioned by date and by nothing else, got {name}, {reason}"
        ):
            load_journal(spark, str(journal), name, selection=Selection.parse(since=f"{last:%Y-%m-%d}"))
        assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before
        assert rows_of(spark.table("partitions").toArrow()) == rows_of(recorded(journal))
    finally:
        spark.sql("DROP TABLE partitions")


def test_a_table_with_partitions_that_spark_cannot_list_is_refused(
    spark: Any, journal: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark raises for a partition that is a function of a column, such as Iceberg's days(parked_at).  A table with
    buckets has more partitions than dates, too."""
    load_journal(spark, str(journal), tmp_path / "lake")
    rows = spark.read.parquet(str(tmp_path / "lake"))
    try:
        rows.write.partitionBy("date").bucketBy(2, "op_id").saveAsTable("partitions", path=str(tmp_path / "other"))
        with pytest.raises(BadOutput, match=r"got table:partitions, partitioned by date, buckets of op_id$"):
            load_journal(spark, str(journal), "table:partitions")

        def failing(_: str) -> Any:
            raise UnsupportedOperationException("[UNSUPPORTED_PARTITION_TRANSFORM] days(parked_at)")

        with monkeypatch.context() as days:
            days.setattr(type(spark.catalog), "listColumns", lambda _, name: failing(name))
            with pytest.raises(BadOutput, match=r"got table:partitions: \[UNSUPPORTED_PARTITION_TRANSFORM\] days"):
                load_journal(spark, str(journal), "table:partitions")
        assert spark.table("partitions").count() == 1_500
    finally:
        spark.sql("DROP TABLE partitions")


@pytest.mark.slow
def test_a_load_into_a_table_of_hive_shows_no_warning(journal: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Hive would warn about its own settings.  The table lasts: a report of another command reads it."""
    store = f"jdbc:derby:;databaseName={tmp_path / 'metastore'};create=true"
    settings = {
        "spark.driver.defaultJavaOptions": QUICK_JAVA,
        "spark.hadoop.javax.jdo.option.ConnectionURL": store,
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
    }
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    options = ["--quiet", *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}"))]
    for arguments in (["load", str(journal), "--out", "table:mine"], ["report", "table:mine", "--out", "report"]):
        command = [sys.executable, "-m", "purgatory.pipeline", *arguments, *options]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150)
        assert (done.returncode, done.stderr) == (0, "")
        assert "1,500" in done.stdout


def test_a_path_of_a_journal_is_no_pattern(spark: Any, journal: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Spark's readers would take it for one, and read the journal beside it, to which the pattern applies."""
    generate(tmp_path / "run1", Recipe(7, seed=1))
    journal = journal.rename(tmp_path / "run[1]")
    lake = tmp_path / "lake {1,2}*"
    assert load_journal(spark, str(journal), lake).rows == 1_500
    assert rows_of(pa.concat_tables(dates_of(lake).values())) == rows_of(recorded(journal))
    (journal / "part-x.parquet").write_bytes(b"no journal")
    assert load_journal(spark, str(journal), lake, skip_corrupt=True).rows == 1_500  # each file by its name


def test_a_load_of_part_of_a_date_is_refused(spark: Any, journal: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """It would remove the rest of the date.  A time without a row is an error, and changes nothing."""
    for name, time in (("since", "12:00"), ("until", "00:01")):
        selection = Selection.parse(**{name: f"2026-11-22T{time}"})
        said = f"{name} must be a date, .* of the table is replaced as a whole, got 2026-11-22 {time}:00 UTC"
        with pytest.raises(ValueError, match=said):
            load_journal(spark, str(journal), tmp_path / "lake", selection=selection)
    with pytest.raises(ValueError, match="a load must include all operations of a date, got purgatory 'fetch'"):
        load_journal(spark, str(journal), tmp_path / "lake", selection=Selection.parse(purgatories=["fetch"]))
    with pytest.raises(ValueError, match="format must be one of parquet, delta, got 'csv'"):
        load_journal(spark, str(journal), tmp_path / "lake", file_format="csv")
    assert not (tmp_path / "lake").exists()
    load_journal(spark, str(journal), tmp_path / "lake")
    before = sorted((tmp_path / "lake").rglob("*.parquet"))
    with pytest.raises(JournalError, match="has no operations that match: parked since 9000-01-01"):
        load_journal(spark, str(journal), tmp_path / "lake", selection=Selection.parse(since="9000-01-01"))
    assert sorted((tmp_path / "lake").rglob("*.parquet")) == before


def test_a_load_by_a_function_checks_the_directory_too(
    spark: Any, journal: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Before it reads the journal."""
    (tmp_path / "lake" / "_delta_log").mkdir(parents=True)
    with pytest.raises(BadOutput, match="which is a table of Delta Lake"):
        load_journal(spark, "/nowhere", tmp_path / "lake")
    with pytest.raises(BadOutput, match=r"which has part-.*\.parquet and no _delta_log"):
        load_journal(spark, "/nowhere", journal, file_format="delta")


def test_a_load_replaces_nothing_that_no_load_has_written(
    spark: Any, journal: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dataset with folders for dates, with folders below them, and another journal all look like such a table.  Also
    through Spark Connect, where only the columns can be read, and in the catalog."""
    day = min(at.date() for at in recorded(journal)["parked_at"].to_pylist())
    events, hourly = tmp_path / "events" / f"date={day}", tmp_path / "hourly" / f"date={day}" / "hour=1"
    for folder in (events, hourly):
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"customer": ["c1", "c2"]}), folder / "part-0.parquet")
    other = tmp_path / "other" / f"date={day}"
    other.mkdir(parents=True)
    pq.write_table(recorded(journal), other / "part-a-1-18c0b5e5a00-000001.parquet")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    for name in ("events", "hourly", "other"):
        with pytest.raises(BadOutput, match=f"which has date={day} and no file _purgatory_table"):
            load_journal(spark, str(journal), tmp_path / name)
    spark.createDataFrame([("c1",)], "customer string").createOrReplaceTempView("customers")
    with pytest.raises(BadOutput, match="got table:customers, with the column customer"):
        load_journal(spark, str(journal), "table:customers")
    with monkeypatch.context() as connected:
        connected.setattr("purgatory.pipeline.lake.is_connect", lambda _: True)
        for name, column in (("events", "customer"), ("hourly", "customer")):
            with pytest.raises(BadOutput, match=f"with the column {column}"):
                load_journal(spark, str(journal), tmp_path / name)
        for _ in range(2):
            assert load_journal(spark, str(journal), tmp_path / "new").rows == 1_500
    assert before.items() <= {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}.items()


def test_a_format_without_its_jars_is_an_error_in_one_line(
    spark: Any, journal: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark's own message names the format."""
    assert main(["load", str(journal), "--out", str(tmp_path / "lake"), "--format", "delta", "--quiet"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: out cannot be written as delta, {tmp_path / 'lake'}: ")
    assert "DATA_SOURCE_NOT_FOUND" in line


def test_a_load_is_counted(
    spark: Any, journal: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, the lateness of those that expired, and the length of the load are metrics of the global provider."""
    metrics = pytest.importorskip("opentelemetry.metrics", reason="the extra 'otel' is not installed")
    sdk = pytest.importorskip("opentelemetry.sdk.metrics", reason="the extra 'otel' is not installed")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    reader = export.InMemoryMetricReader()
    monkeypatch.setattr(metrics, "get_meter", sdk.MeterProvider(metric_readers=[reader]).get_meter)
    assert main(["load", str(journal), "--out", str(tmp_path / "lake"), "--quiet", "--otel"]) == 0
    (resource,) = reader.get_metrics_data().resource_metrics
    points = {metric.name: metric.data.data_points[0] for metric in resource.scope_metrics[0].metrics}
    late = recorded(journal)["lateness"].drop_null()
    assert len(late) > 0
    found = {
        name.removeprefix("purgatory.load."): point.value for name, point in points.items() if hasattr(point, "value")
    }
    expected = {"rows": 1_500, "expired": len(late), "dropped": 0, "skipped": 0, "lateness": pc.mean(late).as_py()}
    assert found == pytest.approx(expected | {"lateness.max": pc.max(late).as_py()})
    assert points["purgatory.load.duration"].count == 1


def test_counting_a_load_needs_the_extra(
    journal: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said in one line, before Spark starts."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert main(["load", str(journal), "--out", str(journal / "lake"), "--otel"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: purgatory load --otel needs")
    assert "aiopurgatory[otel]" in line
