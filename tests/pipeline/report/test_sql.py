"""The SQL views of the documentation, beside the checked tables."""

import pathlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.pipeline.selection import EVERYTHING
from tests.pipeline.report.test_duckdb import with_duckdb
from tests.pipeline.report.test_edges import EPOCH_MS, borders, clock_set, falls
from tests.pipeline.report.test_one_pass import MINUTE_MS, rows_of, write

VIEWS = pathlib.Path(__file__).parents[3] / "docs" / "sql" / "journal.sql"


LATER = ("expired_by_closing", "refused")
"""The columns that journals of earlier releases lack."""


@contextmanager
def views_of(journal: str) -> Iterator[Any]:
    """Yield a database with the views of the documentation on this journal."""
    duckdb: Any = pytest.importorskip("duckdb", reason="the extra 'test' is not installed")
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        db.execute(VIEWS.read_text().replace("'journal/**/*.parquet'", f"'{journal}/**/*.parquet'"))
        yield db


def rows_of_view(db: Any, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = db.sql(f"SELECT * FROM {name}").to_arrow_table().to_pylist()
    return rows


def test_the_views_read_a_journal_of_an_earlier_release(tmp_path: pathlib.Path) -> None:
    """Without the columns that came later, each view has the rows that it has when these columns are null."""
    new = write(tmp_path / "new", rows_of(1, 300, "one"))
    table = pq.read_table(f"{new}/part-0.parquet")
    (tmp_path / "old").mkdir()
    pq.write_table(table.drop_columns(LATER), tmp_path / "old" / "part-0.parquet")
    for name in LATER:
        nulls = pa.nulls(table.num_rows, table.schema.field(name).type)
        table = table.set_column(table.schema.get_field_index(name), name, nulls)
    pq.write_table(table, f"{new}/part-0.parquet")
    with views_of(str(tmp_path / "old")) as old, views_of(new) as same:
        for (name,) in same.sql("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall():
            # Not every view has an order of its own.
            assert sorted(rows_of_view(old, name), key=repr) == sorted(rows_of_view(same, name), key=repr), name
        assert {row["outcome"] for row in rows_of_view(old, "outcomes")} >= {"expired", "expired_by_closing"}


@pytest.mark.parametrize("change_ms", [60_000, -60_000])
def test_the_views_end_pending_operations_as_a_report_does(tmp_path: pathlib.Path, change_ms: int) -> None:
    """At the last record on the clock of their process, also if its wall clock was changed."""
    journal = write(tmp_path / "journal", *clock_set(change_ms))
    with views_of(journal) as db:
        ended = [(row["minute"].timestamp() * 1000 - EPOCH_MS, row["ended"]) for row in rows_of_view(db, "occupancy")]
    assert ended == sorted([(0, 1), (change_ms, 4)])


def test_the_views_have_the_figures_of_a_report(tmp_path: pathlib.Path) -> None:
    """Each column that both have is equal, on a journal with what is rare."""
    journal = write(tmp_path / "journal", rows_of(1, 300, "one"), rows_of(2, 200, "two"), [*falls(), *borders()])
    expected = with_duckdb(journal, EVERYTHING, MINUTE_MS, MINUTE_MS)
    # Only the report has rows for minutes in which nothing changed.
    expected["occupancy"] = [row for row in expected["occupancy"] if row["parked"] or row["ended"]]
    with views_of(journal) as db:
        assert {name for (name,) in db.sql("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()} == {
            *(expected.keys() - {"dropped"}),
            *("journal", "operations", "runs", "levels"),
        }
        for name, wanted in expected.items():
            found = rows_of_view(db, "runs" if name == "dropped" else name)
            if name == "dropped":
                found.sort(key=lambda row: row["source"])
            if name.startswith("hot_keys"):
                found = found[: len(wanted)]
            assert len(found) == len(wanted) > 0, name
            if "minute" in found[0]:
                minutes = [row["minute"].timestamp() * 1_000_000 for row in found]
                assert minutes == [row["bucket"] for row in wanted], name
            shared = found[0].keys() & wanted[0].keys() - {"first_at", "last_at"}
            assert len(shared) >= min(3, len(wanted[0]) - 1), name
            for column in shared:
                pairs = [(row[column], other[column]) for row, other in zip(found, wanted, strict=True)]
                assert all((one is None) == (other is None) for one, other in pairs), (name, column)
                if column in DURATIONS and name != "occupancy":
                    # A report rounds them, and has converted them when it is written.
                    rounding = 1 / 128 if name == "over_time" else 1 / 32_000
                    for one, ms in pairs:
                        assert one is None or ms / 1000 <= one * (1 + 1e-9) <= ms / 1000 * (1 + 2 * rounding)
                else:
                    assert [one for one, _ in pairs] == [pytest.approx(other) for _, other in pairs], (name, column)


DURATIONS = {"mean", "p50", "p99", "max", "total_wait", "wait_p50", "wait_p99", "late_p99"}
