"""Journals that cannot be read, and what is said of them."""

import json
import pathlib
import shutil
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal import JournalError
from purgatory.journal.files import ARROW_SCHEMA, check_footer, read_footer
from purgatory.journal.schema import VERSION_KEY
from purgatory.pipeline import journal_reader
from purgatory.pipeline.journal_reader import open_journal
from purgatory.pipeline.replay.what_if import what_if
from purgatory.pipeline.report.report import compute

pytestmark = pytest.mark.timeout(170)


@pytest.fixture
def copy(tmp_path: pathlib.Path, made: Any) -> pathlib.Path:
    path = tmp_path / "journal"
    shutil.copytree(made[0], path)
    return path


def bad_files(path: pathlib.Path) -> dict[str, pathlib.Path]:
    """One file of each kind of trouble that its head shows."""
    files = {name: path / f"part-x-{name}.parquet" for name in ("newer", "poor", "rubbish", "empty")}
    pq.write_table(ARROW_SCHEMA.empty_table().replace_schema_metadata({VERSION_KEY: "2"}), files["newer"])
    pq.write_table(pa.table({"op_id": [1], "outcome": ["completed"]}), files["poor"])
    files["rubbish"].write_bytes(b"PAR1 nothing PAR1")
    files["empty"].write_bytes(b"")
    return files


def test_each_bad_file_is_named_and_can_be_left_out(spark: Any, copy: pathlib.Path) -> None:
    """Another version, missing columns, rubbish, nothing at all: an error with the file's name, or a note of it."""
    for name, file in bad_files(copy).items():
        others = [other for other in copy.glob("part-x-*") if other != file]
        for other in others:
            other.rename(other.with_suffix(".aside"))
        with pytest.raises(JournalError) as caught:
            open_journal(spark, str(copy))
        assert str(file) in str(caught.value), name
        for other in others:
            other.with_suffix(".aside").rename(other)
    opened = open_journal(spark, str(copy), skip_corrupt=True)
    assert len(opened.skipped) == 4
    assert opened.rows == 20_004
    assert opened.dataframe.count() == 20_004


def test_damage_within_a_file_is_found_while_reading(spark: Any, copy: pathlib.Path) -> None:
    """A file whose head is sound and whose rows are not: named, or left out with all tables made from the rest."""
    victim = sorted(copy.glob("*.parquet"))[1]
    content = bytearray(victim.read_bytes())
    content[200:-20_000] = b"\xff" * (len(content) - 20_200)
    victim.write_bytes(content)
    with pytest.raises(JournalError, match="corrupt") as caught:
        compute(spark, str(copy))
    assert str(victim) in str(caught.value)
    report = compute(spark, str(copy), skip_corrupt=True)
    assert report.operations == 15_000
    assert len(report.skipped) == 1
    assert str(victim) in report.skipped[0]


def test_a_journal_without_rows_says_so(spark: Any, tmp_path: pathlib.Path) -> None:
    """Nowhere, an empty directory, files without rows: each its own message, with the path."""
    for make, why in (
        (lambda path: None, "no journal at"),
        (lambda path: path.mkdir(), "no Parquet file"),
        (lambda path: pq.write_table(ARROW_SCHEMA.empty_table(), path / "part-1.parquet"), "no rows"),
    ):
        path = tmp_path / "journal"
        make(path)
        with pytest.raises(JournalError, match=why) as caught:
            compute(spark, str(path))
        assert str(path) in str(caught.value)


def test_hidden_and_unfinished_files_are_not_part_of_it(spark: Any, copy: pathlib.Path) -> None:
    """Names that begin with a dot or an underscore are skipped by the check and by Spark alike."""
    for name in (".part-host-1-a-000001.tmp", "_part.parquet", ".part.parquet"):
        (copy / name).write_bytes(b"half a file")
    opened = open_journal(spark, str(copy))
    assert opened.files is not None
    assert len(opened.files) == 4
    assert opened.dataframe.count() == opened.rows == 20_004


def test_a_single_file_and_a_url_can_be_read(spark: Any, copy: pathlib.Path) -> None:
    """One file is a journal; file: URLs are paths."""
    file = min(copy.glob("*.parquet"))
    assert open_journal(spark, str(file)).dataframe.count() == 5_001
    assert open_journal(spark, copy.as_uri()).rows == 20_004


def test_what_spark_cannot_list_is_an_error_of_one_line(spark: Any) -> None:
    """A scheme without a file system: the path, and Spark's reason."""
    with pytest.raises(JournalError) as caught:
        compute(spark, "nothing://host/journal")
    assert str(caught.value).startswith("the journal nothing://host/journal cannot be listed: ")
    assert 'No FileSystem for scheme "nothing"' in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_type_that_only_spark_has_seen_is_not_corruption(
    spark: Any, copy: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the heads of the files cannot be looked at before, the message has the file and the kind of trouble."""
    monkeypatch.setattr(journal_reader, "local_path", lambda _: None)
    file = min(copy.glob("*.parquet"))
    table = pq.ParquetFile(file).read()
    wrong = table.set_column(table.schema.get_field_index("op_id"), "op_id", table["op_id"].cast(pa.string()))
    pq.write_table(wrong, file)
    for skip_corrupt in (False, True):
        with pytest.raises(JournalError, match="has a column of another type") as caught:
            what_if(spark, str(copy), [1], [20], skip_corrupt=skip_corrupt)
        assert str(file) in str(caught.value)
        assert "corrupt" not in str(caught.value)


def test_other_widths_of_a_type_are_read(tmp_path: pathlib.Path) -> None:
    """What another program has rewritten, with large strings, dictionaries or microseconds, is a journal."""
    table = ARROW_SCHEMA.empty_table()
    for name, kind in (
        ("source", pa.large_string()),
        ("kind", pa.dictionary(pa.int32(), pa.string())),
        ("keys", pa.large_list(pa.large_string())),
        ("parked_at", pa.timestamp("us", "UTC")),
        ("op_id", pa.int32()),
        ("lateness", pa.float32()),
    ):
        column = ARROW_SCHEMA.get_field_index(name)
        pq.write_table(table.set_column(column, name, pa.nulls(0, kind)), tmp_path / "part.parquet")
        assert check_footer(read_footer(str(tmp_path / "part.parquet"))) is None


def test_folders_and_an_unfinished_merge(spark: Any, tmp_path: pathlib.Path) -> None:
    """Files in folders of dates count; files that a merged file replaces do not, also if Spark reads them."""
    rows = [
        dict.fromkeys(ARROW_SCHEMA.names)
        | {"source": "s", "op_id": number, "outcome": "completed", "keys": ["k"], "anchor_ms": 0}
        | {"parked_at": number, "finished_at": number}
        for number in range(6)
    ]
    for folder, name, part in (
        ("date=1970-01-01", "part-s-000000", rows[:2]),
        ("date=1970-01-01", "part-s-000001", rows[2:4]),
        ("date=1970-01-01", "part-s-000000-to-000001", rows[:4]),
        ("date=1970-01-02", "part-s-000002", rows[4:]),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        table = pa.Table.from_pylist(part, schema=ARROW_SCHEMA)
        pq.write_table(table, tmp_path / folder / f"{name}.parquet")
    replaced = [f"part-s-{number:06d}.parquet" for number in range(2)]
    note = {"unfinished": ".x", "merged": "part-s-000000-to-000001.parquet", "replaced": replaced}
    (tmp_path / "date=1970-01-01" / "_merge-x.json").write_text(json.dumps(note))
    opened = open_journal(spark, str(tmp_path))
    assert opened.rows == 6
    assert sorted(row["op_id"] for row in opened.dataframe.select("op_id").collect()) == list(range(6))
