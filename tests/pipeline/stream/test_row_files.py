"""The columns of row files: which types are read, and what is said of the others."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", "4.2")

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.pipeline.__main__ import main
from purgatory.pipeline.stream import job
from purgatory.pipeline.stream.batch import process_batch
from purgatory.pipeline.stream.dataframes import parse_rows
from purgatory.pipeline.stream.job import Settings, StreamFailed, read_batch, run
from purgatory.pipeline.stream.row_files import BadRowFile, RowFiles, check_row_files, value_is_whole
from purgatory.pipeline.stream.sinks import read_records
from purgatory.pipeline.stream.traces import BEGIN_MS

from .engines import End, Rows, ends_of_records, in_one_go

pytestmark = pytest.mark.timeout(300)

TEXT, WHOLE = pa.string(), pa.int64()
TYPES: dict[str, pa.DataType] = {
    "kind": TEXT, "ts_ms": WHOLE, "seq": WHOLE, "group": TEXT, "op_id": TEXT, "keys": pa.list_(TEXT),
    "condition": TEXT, "timeout_ms": WHOLE, "key": TEXT, "value": pa.float64(),
}  # fmt: skip


def park(op_id: str, level: int, group: str = "g") -> dict[str, Any]:
    condition = f"at_least({level})"
    row = {"kind": "park", "ts_ms": BEGIN_MS, "group": group, "op_id": op_id, "keys": ["k"], "condition": condition}
    return {**row, "timeout_ms": 1_000}


def sign(after_ms: int, value: float, group: str = "g") -> dict[str, Any]:
    return {"kind": "signal", "ts_ms": BEGIN_MS + after_ms, "group": group, "key": "k", "value": value}


def write(file: Path, rows: Rows, **types: pa.DataType) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    hidden = file.with_name(f".{file.name}")
    schema = pa.schema({**TYPES, **types})
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), hidden)
    hidden.rename(file)
    return file


def settings(tmp_path: Path) -> Settings:
    source, out = str(tmp_path / "rows"), str(tmp_path / "out")
    return Settings(source=source, out=out, checkpoint=tmp_path / "checkpoint", delay=1.0)


def ends_in(spark: Any, directory: Path) -> list[End]:
    return ends_of_records((row.record, *row[0:7]) for row in read_records(spark, directory).collect())


def in_batch(spark: Any, directory: Path) -> list[End]:
    return ends_of_records(process_batch(parse_rows(read_batch(spark, str(directory)))).collect())


HEARTBEAT = {"kind": "heartbeat", "ts_ms": BEGIN_MS + 10**7, "group": "-"}


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("ts_ms", pa.string(), "int64"),
        ("ts_ms", pa.float64(), "int64"),
        ("ts_ms", pa.timestamp("us", "UTC"), "int64"),
        ("seq", pa.uint64(), "int64"),
        ("timeout_ms", pa.bool_(), "int64"),
        ("value", pa.string(), "a number"),
        ("value", pa.decimal128(10, 2), "a number"),
        ("value", pa.float16(), "a number"),
        ("group", pa.int64(), "string"),
        ("error", pa.null(), "string"),
        ("keys", pa.string(), "a list of strings"),
        ("keys", pa.list_(pa.field("element", pa.int64())), "a list of strings"),
    ],
)
def test_a_column_that_spark_cannot_read_is_named_with_its_file(
    tmp_path: Path, name: str, kind: pa.DataType, expected: str
) -> None:
    """The name as it is in the file, which Spark compares without case."""
    file = write(tmp_path / "rows.parquet", [], **{name.upper(): kind})
    said = f"{file} cannot be read: the column {name.upper()} must be {expected}, got {kind}"
    with pytest.raises(BadRowFile, match=f"^{re.escape(said)}$"):
        check_row_files(tmp_path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ts_ms", pa.int32()),
        ("ts_ms", pa.uint32()),
        ("ts_ms", pa.timestamp("ms", "UTC")),
        ("ts_ms", pa.dictionary(pa.int32(), pa.int64())),
        ("seq", pa.null()),
        ("value", pa.int16()),
        ("value", pa.null()),
        ("group", pa.large_string()),
        ("group", pa.dictionary(pa.int32(), pa.string())),
        ("group", pa.binary()),
        ("keys", pa.large_list(pa.large_string())),
        ("another", pa.struct({"a": pa.int64()})),
    ],
)
def test_other_widths_of_a_type_are_read(tmp_path: Path, name: str, kind: pa.DataType) -> None:
    """What Spark reads as the type of the column is accepted, and columns that a row does not have are ignored."""
    empty = {"value": pa.int16()} if name != "value" else {}
    file = write(tmp_path / "rows.parquet", [], **empty, **{name: kind})
    assert check_row_files(tmp_path) == RowFiles((), (), (str(file),))


def test_only_the_files_that_spark_reads_are_checked(tmp_path: Path) -> None:
    """Folders of a partition count; hidden files, empty files, and other folders do not.  Rubbish is named."""
    whole = write(tmp_path / "day=1" / "whole.parquet", [sign(1, 5)], value=WHOLE)
    real = write(tmp_path / "real.parquet", [sign(1, 5.5)])
    for name in (".hidden.parquet", "_hidden", "folder/rows.parquet", ".day=1/rows.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"rubbish")
    (tmp_path / "empty.parquet").touch()
    assert check_row_files(tmp_path) == RowFiles((str(whole),), (str(real),), ())
    (tmp_path / "rubbish.parquet").write_bytes(b"rubbish")
    with pytest.raises(BadRowFile, match=r"rubbish\.parquet cannot be read: it is not a Parquet file$"):
        check_row_files(tmp_path)


def test_a_stream_reads_one_type_of_value(tmp_path: Path) -> None:
    """A new stream refuses files of both types; a continued one takes the type of the newest file that has a type."""
    assert not value_is_whole(tmp_path, new=True)
    whole = write(tmp_path / "whole.parquet", [sign(1, 5)], value=WHOLE)
    assert value_is_whole(tmp_path, new=True)
    real = write(tmp_path / "real.parquet", [sign(1, 5.5)])
    with pytest.raises(BadRowFile) as caught:
        value_is_whole(tmp_path, new=True)
    assert str(caught.value) == (
        "the column value must have the same type in all files of a stream,"
        f" got whole numbers in {whole} and double in {real}"
    )
    without = write(tmp_path / "without.parquet", [park("a", 5)], value=pa.null())
    os.utime(without, (3e9, 3e9))
    os.utime(real, (2e9, 2e9))
    assert not value_is_whole(tmp_path, new=False)
    os.utime(real, (1e9, 1e9))
    assert value_is_whole(tmp_path, new=False)


@pytest.mark.parametrize("command", ["stream", "backfill"])
def test_a_column_of_another_type_is_an_error_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Exit status 1 and one line with the file and the column; nothing is written."""
    monkeypatch.setattr("purgatory.pipeline.spark.session.spark_session", lambda *_: pytest.fail("Spark starts"))
    file = write(tmp_path / "rows" / "rows.parquet", [], ts_ms=TEXT)
    words = [command, "--source", str(tmp_path / "rows"), "--out", str(tmp_path / "out")]
    if command == "stream":
        words += ["--checkpoint", str(tmp_path / "checkpoint")]
    assert main(words) == 1
    said = f"error: {file} cannot be read: the column ts_ms must be int64, got string\n"
    assert capsys.readouterr().err == said
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


def test_whole_numbers_are_values(spark: Any, tmp_path: Path) -> None:
    """A column of int64 gives the ends of the core, in a stream and in a batch, also beyond the precision of a float;
    a later file of double stops the stream with its name, and the batch reads both."""
    rows = [park("a", 1_500), park("b", 2_000), sign(5, 1_499), sign(6, 1_500), park("c", 2**53, "h")]
    rows += [sign(7, 2**53 - 1, "h"), sign(8, 2**53 + 1, "h"), HEARTBEAT]
    write(tmp_path / "rows" / "0.parquet", rows, value=WHOLE)
    expected = in_one_go(rows)
    assert [end[1:3] for end in expected] == [("a", "completed"), ("b", "expired"), ("c", "completed")]
    run(spark, settings(tmp_path), print)
    assert ends_in(spark, tmp_path / "out") == expected
    assert in_batch(spark, tmp_path / "rows") == expected
    more = [park("d", 3, "i"), sign(5, 2.5, "i"), sign(6, 3.5, "i")]
    later = write(tmp_path / "rows" / "1 later.parquet", more)
    assert in_batch(spark, tmp_path / "rows") == in_one_go(rows + more)
    os.utime(later, (1e9, 1e9))
    again = Settings(source=str(tmp_path / "rows"), out=str(tmp_path / "again"), checkpoint=tmp_path / "c", delay=1.0)
    with pytest.raises(BadRowFile, match="must have the same type in all files of a stream"):
        run(spark, again, print)
    (tmp_path / "c" / "offsets").mkdir(parents=True)  # as if an earlier run had processed some of the files
    with pytest.raises(StreamFailed) as caught:
        run(spark, again, print)
    assert str(caught.value) == f"{later} cannot be read: the column value must be bigint, got DOUBLE"


@pytest.mark.slow
def test_whole_numbers_in_a_store_are_values(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where only Spark reads the files, the first of them tells the type; one of another type is an error of a line."""
    monkeypatch.setattr(job, "local_path", lambda _: None)
    monkeypatch.setattr("purgatory.pipeline.commands.backfill.local_path", lambda _: None)
    rows = [park("a", 1_500), sign(6, 1_500), HEARTBEAT]
    file = write(tmp_path / "rows" / "rows.parquet", rows, value=WHOLE)
    assert in_batch(spark, tmp_path / "rows") == in_one_go(rows)
    run(spark, settings(tmp_path), print)
    assert ends_in(spark, tmp_path / "out") == in_one_go(rows)
    write(file, [{**row, "ts_ms": str(row["ts_ms"])} for row in rows], ts_ms=TEXT)
    capsys.readouterr()
    assert main(["backfill", "--source", str(tmp_path / "rows"), "--out", str(tmp_path / "none")]) == 1
    said = f"error: {file} cannot be read: the column ts_ms must be bigint, got BINARY"
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")] == [said]
