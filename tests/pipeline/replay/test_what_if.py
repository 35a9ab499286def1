"""The replay on Spark, and the recommendation."""

import pathlib
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

import purgatory.pipeline.replay.what_if as module
from purgatory.journal import JournalError
from purgatory.journal.files import ARROW_SCHEMA
from purgatory.pipeline.__main__ import main
from purgatory.pipeline.journal_reader import open_journal
from purgatory.pipeline.recipe import Recipe
from purgatory.pipeline.replay.bounds import Scenario
from purgatory.pipeline.replay.estimates import estimate_journal
from purgatory.pipeline.replay.pieces import find_pieces, replay_pieces
from purgatory.pipeline.replay.simulation import replay
from purgatory.pipeline.replay.what_if import what_if
from purgatory.pipeline.selection import EVERYTHING, Selection
from purgatory.pipeline.stream.input_rows import LAST_MS
from purgatory.pipeline.synthetic_journal import generate

from .test_simulation import recorded

pytestmark = pytest.mark.timeout(170)
OPERATIONS = 5_000


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A synthetic journal in four files."""
    path = tmp_path_factory.mktemp("replayed") / "journal"
    generate(path, Recipe(OPERATIONS, seed=7, rate=150.0, keys=300, rows_per_file=1_250))
    return path


@pytest.mark.parametrize("files", [True, False], ids=["files", "rows from Spark"])
def test_settings_on_spark_count_what_one_replay_counts(
    spark: Any, journal: pathlib.Path, files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one piece per purgatory the sums are those of plain replays, whether the tasks or Spark read the files."""
    monkeypatch.setattr("purgatory.pipeline.replay.pieces.reads_files", lambda *_: files)
    found = what_if(spark, str(journal), [5, 1], [20, 64], piece_rows=50_000)
    assert (found.operations, found.changed, found.share) == (OPERATIONS, 0, 1.0)
    rows = found.table.to_pylist()
    assert [(r["tick_ms"], r["wheel_size"]) for r in rows] == [(1, 20), (1, 64), (5, 20), (5, 64)]
    traces = [recorded(journal, purgatory) for purgatory in ("fetch", "produce")]
    for r in rows:
        plain = [replay(trace, r["tick_ms"], r["wheel_size"]) for trace in traces]
        for counted in ("cascades", "buckets", "heap_operations", "wakeups"):
            assert r[counted] == sum(getattr(p, counted) for p in plain) / OPERATIONS
        assert r["expired"] == sum(p.expired for p in plain)
        assert r["late_max_ms"] == max(max(p.late_ms) for p in plain)
        assert r["cpu_us"] > 0


@pytest.mark.parametrize("zones", [("Asia/Tokyo",), ("Etc/UTC", "UTC"), ("Asia/Tokyo", "UTC")])
@pytest.mark.parametrize("unit", ["ms", "us"])
def test_files_with_other_time_zones_are_replayed_and_estimated(
    spark: Any, journal: pathlib.Path, tmp_path: pathlib.Path, zones: tuple[str, ...], unit: str
) -> None:
    """A program that rewrites a file may write its own zone, which does not change the times."""
    for number, file in enumerate(sorted(journal.glob("*.parquet"))):
        table = pq.read_table(file)
        for name in ("parked_at", "deadline", "finished_at"):
            times = table[name].cast(pa.timestamp(unit, zones[number % len(zones)]))
            table = table.set_column(table.schema.get_field_index(name), name, times)
        pq.write_table(table, tmp_path / file.name)
    for piece_rows in (500, 50_000):
        replayed = [what_if(spark, str(path), [1], [20], piece_rows=piece_rows) for path in (journal, tmp_path)]
        one, other = (found.table.drop_columns("cpu_us") for found in replayed)
        assert one.equals(other)
    one, other = (estimate_journal(spark, str(path), [Scenario(500)]).table for path in (journal, tmp_path))
    assert one.equals(other)


def test_pieces_hold_every_operation_once(spark: Any, journal: pathlib.Path) -> None:
    """Cut into pieces of about 500, nothing is lost or doubled; a sample takes whole pieces."""
    opened = open_journal(spark, str(journal))
    pieces = find_pieces(spark, opened, EVERYTHING, 500).pieces
    assert len(pieces) == 11
    found = replay_pieces(spark, opened, pieces, [(1, 20), (5, 20)], EVERYTHING)
    assert [row["piece"] for row in found] == [*range(11), *range(11)]
    assert all(300 < row["operations"] < 700 for row in found)
    whole = what_if(spark, str(journal), [1], [20], piece_rows=500)
    assert (whole.operations, whole.changed) == (OPERATIONS, 0)
    half = what_if(spark, str(journal), [1], [20], piece_rows=500, sample=0.5)
    assert half.share == pytest.approx(0.5, abs=0.1)
    assert half.operations == pytest.approx(OPERATIONS / 2, rel=0.3)
    one, other = whole.table.to_pylist()[0], half.table.to_pylist()[0]
    assert one["cascades"] == pytest.approx(other["cascades"], rel=0.2)


def test_a_replay_of_no_operation_is_refused_before_anything_is_replayed(
    spark: Any, journal: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A selection that matches nothing, and a journal of dropped rows only: the errors of a report."""
    monkeypatch.setattr(module, "replay_pieces", lambda *_: pytest.fail("there is nothing to replay"))
    late = Selection(since_ms=LAST_MS)
    with pytest.raises(JournalError, match="has no operations that match: parked since 9999-12-31") as caught:
        what_if(spark, str(journal), [1], [20], selection=late)
    assert str(caught.value) == late.nothing_in(str(journal))
    dropped = dict.fromkeys(ARROW_SCHEMA.names) | {"source": "s", "outcome": "dropped", "dropped": 3, "anchor_ms": 0}
    dropped |= {"parked_at": 10**12, "finished_at": 10**12}
    pq.write_table(pa.Table.from_pylist([dropped], schema=ARROW_SCHEMA), tmp_path / "part-1.parquet")
    with pytest.raises(JournalError, match="is empty: it has no operations"):
        what_if(spark, str(tmp_path), [1], [20])


def test_replay_writes_a_table_a_picture_and_a_page(
    spark: Any, journal: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command tells the recommendation and its reason, and writes the same down."""
    out = tmp_path / "out"
    arguments = ["replay", str(journal), "--tick-ms", "1,20", "--wheel-size", "20", "--out", str(out)]
    assert main([*arguments, "--lateness-ms", "2"]) == 0
    said = capsys.readouterr().out
    assert "Take tick_ms=1, wheel_size=20" in said
    assert "1 of 2 settings exceed it." in said
    assert {path.name for path in out.iterdir()} == {
        "replay.html",
        "settings.csv",
        "settings.parquet",
        "settings.png",
        "settings.svg",
    }
    page = (out / "replay.html").read_text()
    assert "Take tick_ms=1, wheel_size=20" in page
    assert page.count("<svg") == 1


def test_a_row_that_ends_before_it_parks_is_an_error_in_one_line(
    spark: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the operation, its purgatory, and its source."""
    row = dict.fromkeys(ARROW_SCHEMA.names) | {"source": "s", "purgatory": "p", "kind": "k", "op_id": 7, "keys": ["a"]}
    row |= {"outcome": "completed", "parked_at": 2_000, "finished_at": 1_999, "anchor_ms": 0, "deadline": 3_000}
    pq.write_table(pa.Table.from_pylist([row], schema=ARROW_SCHEMA), tmp_path / "part-1.parquet")
    assert main(["replay", str(tmp_path), "--quiet"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    reason = "operation 7 of purgatory 'p', source 's', ends before it parks"
    assert line == f"error: the journal {tmp_path} cannot be replayed: {reason}"
