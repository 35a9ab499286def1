"""The tables of one pass are the same in every way to get them, on journals that hold what is rare."""

import pathlib
import random
from functools import partial
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal import JournalError
from purgatory.journal.files import ARROW_SCHEMA
from purgatory.pipeline.journal_reader import OpenJournal
from purgatory.pipeline.report import one_pass, write_report
from purgatory.pipeline.report.aggregates import COLUMNS, Aggregates, Span, add_rows
from purgatory.pipeline.report.report import Report, compute
from purgatory.pipeline.selection import EVERYTHING, Selection

pytestmark = pytest.mark.timeout(170)
EPOCH_MS = 28_333_333 * 60_000
MINUTE_MS = 60_000
OUTCOMES = ("completed", "expired", "cancelled", "failed")


def rows_of(seed: int, number: int, source: str, *, spread_ms: int = 20 * MINUTE_MS) -> list[dict[str, Any]]:
    """Random operations of one run, on a coarse grid so that ties are frequent, and rows that are rare."""
    draw = random.Random(seed)
    rows = []
    for op_id in range(1, number + 1):
        row = dict.fromkeys(ARROW_SCHEMA.names) | {"source": source, "op_id": op_id, "anchor_ms": EPOCH_MS}
        row["purgatory"] = draw.choice(("fetch", "produce", "заказ", "only-immediate"))
        row["kind"] = draw.choice(("DelayedFetch", "Delayed\tProduce"))
        immediate = row["purgatory"] == "only-immediate" or draw.random() < 0.1
        row["keys"] = [] if immediate else [f"k{draw.randrange(9)}-键" for _ in range(draw.randint(1, 3))]
        row["keys"] = list(dict.fromkeys(row["keys"]))
        parked = EPOCH_MS + draw.randrange(spread_ms // 50) * 50
        wait = draw.choice((0, 0, 1, 9, 10, 99, 100, 1_000, 65_535, 65_536, 65_537, 131_073, 86_400_123, 3_000))
        row["parked_at"], row["outcome"] = parked, "completed"
        row["finished_at"] = parked if immediate else parked + wait
        if not immediate:
            row["outcome"] = draw.choice(OUTCOMES)
            row["deadline"] = draw.choice((None, parked + wait, parked + max(0, wait - 7), parked + wait + 1_000))
            if draw.random() < 0.1:
                row |= {"outcome": "pending", "finished_at": None}
            elif row["outcome"] == "expired":
                on_time = row["deadline"] is not None and row["finished_at"] >= row["deadline"]
                row["expired_by_closing"] = draw.choice((None, True, False if on_time else None))
        rows.append(row)
    gap = dict.fromkeys(ARROW_SCHEMA.names) | {"source": source, "outcome": "dropped", "dropped": seed + 1}
    rows.insert(number // 2, gap | {"parked_at": EPOCH_MS + 5, "finished_at": EPOCH_MS + 9, "anchor_ms": EPOCH_MS})
    for minute, purgatory in ((3, "fetch"), (3, "fetch"), (9, "produce"), (9, "full-at-once")):
        begin = EPOCH_MS + minute * MINUTE_MS
        note = gap | {"dropped": None, "purgatory": purgatory, "refused": seed * minute, "anchor_ms": EPOCH_MS}
        rows.insert(number // 3, note | {"parked_at": begin, "finished_at": begin + 5_000})
    return rows


def write(path: pathlib.Path, *files: list[dict[str, Any]], **options: Any) -> str:
    path.mkdir()
    for number, rows in enumerate(files):
        pq.write_table(pa.Table.from_pylist(rows, schema=ARROW_SCHEMA), path / f"part-{number}.parquet", **options)
    return str(path)


def assert_same(report: Report, expected: dict[str, pa.Table]) -> None:
    assert report.tables.keys() == expected.keys()
    for name, table in expected.items():
        found = report.tables[name]
        assert found.column_names == table.column_names, name
        assert [field.type for field in found.schema] == [field.type for field in table.schema], name
        for column in table.column_names:
            values, wanted = found[column].to_pylist(), table[column].to_pylist()
            if pa.types.is_floating(table.schema.field(column).type):
                assert [value is None for value in values] == [value is None for value in wanted], (name, column)
                numbers = [value for value in wanted if value is not None]
                assert [value for value in values if value is not None] == pytest.approx(numbers, rel=1e-12), (
                    name,
                    column,
                )
            else:
                assert values == wanted, (name, column)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three runs in five files, one of which has two runs, and a file without rows."""
    one, two, three = rows_of(1, 400, "run-1"), rows_of(2, 300, "run-2"), rows_of(3, 200, "run-3")
    files = (one[:200], one[200:] + two[:100], two[100:], three[:1], three[1:], [])
    return write(tmp_path_factory.mktemp("rare") / "journal", *files, row_group_size=70)


@pytest.fixture(scope="module")
def expected(spark: Any, journal: str) -> dict[str, pa.Table]:
    """The tables as ``test_duckdb`` compares them: from the files, added up on the driver."""
    return compute(spark, journal, top=12, bucket_ms=MINUTE_MS).tables


@pytest.mark.parametrize(
    ("files", "on_driver"),
    [(False, 0), (True, 0)],
    ids=["rows from Spark", "files, added up in tasks"],
)
def test_every_way_gives_the_same_tables(
    spark: Any,
    journal: str,
    expected: dict[str, pa.Table],
    files: bool,
    on_driver: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows from Spark's reader, which tasks add up, or from the files: the same tables."""
    monkeypatch.setattr(one_pass, "reads_files", lambda *_: files)
    monkeypatch.setattr(one_pass, "_MERGED_ON_DRIVER", on_driver)
    monkeypatch.setattr(one_pass, "_ROWS_PER_TASK", 250)
    assert_same(compute(spark, journal, top=12, bucket_ms=MINUTE_MS), expected)


def test_rows_without_the_columns_that_came_later(tmp_path: pathlib.Path) -> None:
    """A task reads them from files of earlier releases as if these columns were null."""
    table = pa.Table.from_pylist(rows_of(1, 300, "run"), schema=ARROW_SCHEMA)
    later = ("expired_by_closing", "refused", "instance")
    old, same = tmp_path / "old.parquet", tmp_path / "same.parquet"
    pq.write_table(table.drop_columns(later), old)
    for name in later:
        nulls = pa.nulls(table.num_rows, table.schema.field(name).type)
        table = table.set_column(table.schema.get_field_index(name), name, nulls)
    pq.write_table(table, same)
    anchor_ms = table["anchor_ms"][0].as_py()
    span = Span(MINUTE_MS, {"run": EPOCH_MS + 21 * MINUTE_MS - anchor_ms})

    def tables(path: pathlib.Path) -> dict[str, list[dict[str, Any]]]:
        cells = one_pass._scan_files(COLUMNS, partial(add_rows, span=span), EVERYTHING, 1, [[str(path)]])
        total = Aggregates()
        total.add_cells(cell for _, cell in cells)
        total.finish(MINUTE_MS, 5)
        return {name: made.to_pylist() for name, made in one_pass.tables_of(total, span).items()}

    found = tables(old)
    assert found == tables(same)
    assert all(found.values())
    assert {row["outcome"] for row in found["outcomes"]} >= {"expired", "expired_by_closing"}
    assert {row["refused"] for row in found["over_time"]} == {0}


def test_files_that_another_program_has_rewritten_give_the_same_tables(
    spark: Any, journal: str, expected: dict[str, pa.Table], tmp_path: pathlib.Path
) -> None:
    """Large strings, dictionaries, microseconds, no statistics, columns in another order."""
    table = pa.concat_tables([pq.ParquetFile(file).read() for file in sorted(pathlib.Path(journal).glob("*.parquet"))])
    stamp, text = pa.timestamp("us", tz="UTC"), pa.dictionary(pa.int32(), pa.string())
    types = {"parked_at": stamp, "finished_at": stamp, "deadline": stamp, "kind": text, "source": pa.large_string()}
    types["keys"] = pa.large_list(pa.large_string())
    for name, kind in types.items():
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(kind))
    (tmp_path / "journal").mkdir()
    table = table.select(sorted(table.column_names))
    pq.write_table(table, tmp_path / "journal" / "part.parquet", write_statistics=False)
    assert_same(compute(spark, str(tmp_path / "journal"), top=12, bucket_ms=MINUTE_MS), expected)


def test_a_journal_of_immediate_operations_has_tables(spark: Any, tmp_path: pathlib.Path) -> None:
    """Nothing waited: the tables about waits, keys and levels are empty, and have their columns."""
    rows = [row for row in rows_of(4, 80, "run") if row["outcome"] != "dropped" and not row["keys"]]
    journal = write(tmp_path / "journal", rows)
    report = compute(spark, journal, bucket_ms=MINUTE_MS)
    assert report.operations == len(rows)
    for name in ("waits", "lateness", "wait_histogram", "occupancy", "hot_keys", "peaks"):
        assert report.tables[name].num_rows == 0


SELECTIONS = {
    "since": Selection(since_ms=EPOCH_MS + 7 * MINUTE_MS + 12_345),
    "until": Selection(until_ms=EPOCH_MS + 9 * MINUTE_MS + 23_456),
    "both, and names": Selection(
        EPOCH_MS + 5 * MINUTE_MS, EPOCH_MS + 12 * MINUTE_MS + 50, ("fetch", "заказ"), ("DelayedFetch",)
    ),
    "less than a bucket": Selection(EPOCH_MS + 5 * MINUTE_MS + 150, EPOCH_MS + 5 * MINUTE_MS + 20_150),
}


@pytest.mark.slow
@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS.keys())
def test_tables_of_a_selection(spark: Any, journal: str, selection: Selection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files, with row groups that are skipped, and rows from Spark: the same tables."""
    report = compute(spark, journal, top=12, bucket_ms=MINUTE_MS, selection=selection)
    assert 0 < report.operations < 900
    monkeypatch.setattr(one_pass, "reads_files", lambda *_: False)
    assert_same(compute(spark, journal, top=12, bucket_ms=MINUTE_MS, selection=selection), report.tables)


def test_a_table_of_the_catalog_is_a_journal(spark: Any, journal: str, expected: dict[str, pa.Table]) -> None:
    """Any DataFrame with the columns is; those that were added later may be missing."""
    spark.read.parquet(journal).drop("instance").createOrReplaceTempView("rows_of_a_journal")
    assert_same(compute(spark, "table:rows_of_a_journal", top=12, bucket_ms=MINUTE_MS), expected)
    spark.read.parquet(journal).drop("keys", "source").createOrReplaceTempView("other_rows")
    with pytest.raises(JournalError, match="table:other_rows lacks the columns source, keys"):
        compute(spark, "table:other_rows")
    with pytest.raises(JournalError, match="the journal table:no_such_table cannot be listed"):
        compute(spark, "table:no_such_table")


def test_spark_does_not_list_files_that_the_tasks_read(spark: Any, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of local files makes no DataFrame, so Java does not load Spark SQL."""

    def fail(opened: OpenJournal) -> Any:
        raise AssertionError(f"a DataFrame of {opened.paths} was made")

    monkeypatch.setattr(OpenJournal, "dataframe", property(fail))
    journal, answers = made
    assert compute(spark, str(journal)).operations == answers["rows"]


def test_a_purgatory_to_draw_must_be_in_the_report(spark: Any, made: Any, tmp_path: pathlib.Path) -> None:
    """A wrong name would silently give a page without plots of any purgatory."""
    with pytest.raises(ValueError, match="draw must be purgatories of the report, got 'nosuch'"):
        write_report(compute(spark, str(made[0])), str(tmp_path / "out"), spark, draw=["fetch", "nosuch"])
    assert not (tmp_path / "out").exists()
