"""Journals that cannot be read, and what is said of them."""

import json
import pathlib
import re
import shutil
import traceback
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException, PythonException

from purgatory.journal import JournalError, compact
from purgatory.journal.files import ARROW_SCHEMA, check_footer, data_files, read_footer, write_file
from purgatory.journal.schema import VERSION_KEY
from purgatory.pipeline import journal_reader
from purgatory.pipeline.compare import compare
from purgatory.pipeline.journal_reader import (
    SPARK_SCHEMA,
    OpenJournal,
    check_files,
    corrupt_file,
    open_journal,
    read_journal,
    visible_files,
)
from purgatory.pipeline.recipe import Recipe
from purgatory.pipeline.replay.bounds import Scenario
from purgatory.pipeline.replay.estimates import estimate_journal
from purgatory.pipeline.replay.what_if import what_if
from purgatory.pipeline.report.report import compute
from purgatory.pipeline.selected_rows import read_batches
from purgatory.pipeline.synthetic_journal import generate

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


def test_a_single_file_may_have_another_name(spark: Any, small: pathlib.Path) -> None:
    """Spark reads what the tasks of a report read; Spark never reads a hidden file, so that is an error."""
    for name in ("journal.bin", "X.PARQUET", "_x.parquet", ".x.parquet"):
        file = small / name
        shutil.copy(data_files(small)[0], file)
        opened = open_journal(spark, str(file))
        if name[0] in "._":
            with pytest.raises(JournalError, match=rf"{name} must have a name that does not begin with '{name[0]}'"):
                _ = opened.dataframe
        else:
            assert opened.dataframe.count() == opened.rows


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
    write_note(tmp_path / "date=1970-01-01", note)
    opened = open_journal(spark, str(tmp_path))
    assert opened.rows == 6
    assert sorted(row["op_id"] for row in opened.dataframe.select("op_id").collect()) == list(range(6))


NO_SPARK: Any = SimpleNamespace(_jsparkSession=None)


@pytest.fixture
def small(tmp_path: pathlib.Path) -> pathlib.Path:
    """A journal of five files of ten rows, which a compaction merges."""
    path = tmp_path / "small"
    path.mkdir()
    nothing = dict.fromkeys(ARROW_SCHEMA.names) | {"source": "web-1-a", "outcome": "completed", "anchor_ms": 0}
    for number in range(5):
        own = range(number * 10, number * 10 + 10)
        rows = [nothing | {"op_id": op_id, "keys": ["k"], "parked_at": op_id, "finished_at": op_id} for op_id in own]
        write_file(pa.Table.from_pylist(rows, schema=ARROW_SCHEMA), path, "web-1-a", number)
    return path


def write_note(folder: pathlib.Path, note: dict[str, Any]) -> None:
    (folder / "_merge").mkdir()
    (folder / "_merge" / "x.json").write_text(json.dumps(note))


def damage(file: pathlib.Path) -> None:
    """Keep the footer, so that only the rows cannot be read."""
    content = bytearray(file.read_bytes())
    end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    content[4:end] = b"\xff" * (end - 4)
    file.write_bytes(content)


def numbers(opened: OpenJournal) -> list[int]:
    assert opened.files is not None
    return sorted(row for file in opened.files for row in pq.ParquetFile(file).read(["op_id"])["op_id"].to_pylist())


@pytest.mark.parametrize("skip_corrupt", [False, True])
def test_a_file_that_was_removed_before_its_footer_was_read_is_not_corrupt(
    small: pathlib.Path, monkeypatch: pytest.MonkeyPatch, skip_corrupt: bool
) -> None:
    """The files are listed again, and the file that replaces it is found.  A file that is removed again is named."""
    doing: list[Callable[[], Any]] = [lambda: compact(small)]

    def listed(path: pathlib.Path) -> list[pathlib.Path]:
        files = data_files(path)
        if doing:
            doing.pop()()
        return files

    monkeypatch.setattr(journal_reader, "data_files", listed)
    checked = check_files(str(small), skip_corrupt=skip_corrupt)
    assert checked is not None
    assert (checked.rows, len(checked.readable), checked.unreadable) == (50, 1, ())
    (merged,) = data_files(small)
    removed = [small / f"part-{name}.parquet" for name in "ab"]
    for file in removed:
        shutil.copy(merged, file)
    doing += [removed[1].unlink, removed[0].unlink]
    with pytest.raises(JournalError) as caught:
        check_files(str(small), skip_corrupt=skip_corrupt)
    assert str(caught.value) == f"{removed[1]} was removed while the journal was read; run the command again"


def test_a_link_to_a_missing_file_is_not_a_removed_file(small: pathlib.Path) -> None:
    """It stays in the list: an error with its name, or a note of it."""
    (small / "part-x.parquet").symlink_to("nowhere")
    with pytest.raises(JournalError, match=r"part-x\.parquet cannot be read: No such file or directory; --skip"):
        check_files(str(small))
    checked = check_files(str(small), skip_corrupt=True)
    assert checked is not None
    assert (checked.rows, len(checked.unreadable)) == (50, 1)


def _as_the_driver(file: str) -> None:
    pq.read_metadata(file)


def _as_a_task(file: str) -> None:
    try:
        list(read_batches(file, ["op_id"], lambda _: [0]))
    except OSError as error:
        both = [line for one in (error.__cause__, error) for line in traceback.format_exception(one, chain=False)]
        raise PythonException("".join(both)) from error


def _as_a_task_of_spark(file: str) -> None:
    try:
        pathlib.Path(file).read_bytes()
    except FileNotFoundError as error:
        where = pathlib.Path(file).as_uri()
        raise PySparkException(
            f"[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file {where}. File does not exist."
        ) from error


def _as_a_listing_of_spark(file: str) -> None:
    if not pathlib.Path(file).exists():
        raise AnalysisException(f"[PATH_NOT_FOUND] Path does not exist: file:{file}. SQLSTATE: 42K03")


@pytest.mark.parametrize("skip_corrupt", [False, True])
@pytest.mark.parametrize("read", [_as_the_driver, _as_a_task, _as_a_task_of_spark, _as_a_listing_of_spark])
def test_the_work_is_repeated_if_a_file_was_removed(
    small: pathlib.Path, read: Callable[[str], None], skip_corrupt: bool
) -> None:
    """Whatever has noticed that: the merged file has all rows.  A file that is merged again is an error."""
    calls: list[int] = []

    def work(opened: OpenJournal) -> list[int]:
        assert opened.files is not None
        if not calls:
            compact(small)
        calls.append(len(opened.files))
        for file in opened.files:
            read(file)
        return numbers(opened)

    found, opened = read_journal(NO_SPARK, str(small), work, skip_corrupt=skip_corrupt)
    assert found == list(range(50))
    assert (calls, opened.rows, opened.skipped) == ([5, 1], 50, ())

    def remove(opened: OpenJournal) -> None:
        assert opened.files is not None
        victim = pathlib.Path(opened.files[-1])
        victim.rename(small / f"part-a-merged-{len(removed)}.parquet")
        removed.append(victim)
        read(str(victim))

    removed: list[pathlib.Path] = []
    for name in "ab":
        shutil.copy(data_files(small)[0], small / f"part-x-{name}.parquet")
    with pytest.raises(JournalError) as caught:
        read_journal(NO_SPARK, str(small), remove, skip_corrupt=skip_corrupt)
    assert [file.name for file in removed] == ["part-x-b.parquet", "part-x-a.parquet"]
    assert str(caught.value) == f"{removed[1]} was removed while the journal was read; run the command again"


@pytest.mark.parametrize("skip_corrupt", [False, True])
def test_a_file_that_was_deleted_and_not_merged_is_an_error(small: pathlib.Path, skip_corrupt: bool) -> None:
    """Its rows are in no other file: the work is not repeated with fewer rows, and the error names the file."""
    victim = min(data_files(small))
    calls: list[int] = []

    def work(opened: OpenJournal) -> list[int]:
        assert opened.files is not None
        calls.append(len(opened.files))
        victim.unlink(missing_ok=True)
        for file in opened.files:
            _as_the_driver(file)
        return numbers(opened)

    with pytest.raises(JournalError) as caught:
        read_journal(NO_SPARK, str(small), work, skip_corrupt=skip_corrupt)
    assert str(caught.value) == f"{victim} was removed while the journal was read; run the command again"
    assert calls == [5]
    assert read_journal(NO_SPARK, str(small), work, skip_corrupt=skip_corrupt)[0] == list(range(10, 50))


def test_a_file_that_was_deleted_while_the_damage_was_sought_is_an_error(
    small: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of the damaged file may be left out, but not those of the deleted one."""
    damaged, deleted = small / "part-web-1-a-000002.parquet", small / "part-web-1-a-000004.parquet"
    damage(damaged)
    check_rows = journal_reader._check_rows

    def delete_and_check(file: str) -> Any:
        deleted.unlink(missing_ok=True)
        return check_rows(file)

    monkeypatch.setattr(journal_reader, "_check_rows", delete_and_check)

    def work(opened: OpenJournal) -> None:
        assert opened.files is not None
        for file in opened.files:
            _as_a_task(file)

    with pytest.raises(JournalError) as caught:
        read_journal(NO_SPARK, str(small), work, skip_corrupt=True)
    assert str(caught.value) == f"{deleted} was removed while the journal was read; run the command again"


def test_a_file_that_was_removed_while_the_damage_was_sought_is_not_skipped(
    small: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The damaged file is; the rows of the other one are in a merged file, and are read."""
    damaged, removed = small / "part-web-1-a-000002.parquet", small / "part-web-1-a-000004.parquet"
    damage(damaged)
    check_rows = journal_reader._check_rows

    def merge_and_check(file: str) -> Any:
        if file == str(removed):
            removed.rename(small / "part-web-1-a-merged.parquet")
        return check_rows(file)

    monkeypatch.setattr(journal_reader, "_check_rows", merge_and_check)

    def work(opened: OpenJournal) -> list[int]:
        assert opened.files is not None
        for file in opened.files:
            _as_a_task(file)
        return numbers(opened)

    found, opened = read_journal(NO_SPARK, str(small), work, skip_corrupt=True)
    assert found == [*range(20), *range(30, 50)]
    assert (opened.rows, len(opened.skipped)) == (40, 1)
    assert opened.skipped[0].startswith(f"{damaged} is corrupt: ")


def test_a_journal_of_damaged_files_only_is_an_error(small: pathlib.Path) -> None:
    """Nothing is left to read if all of them are skipped."""
    files = data_files(small)
    for file in files:
        damage(file)
    with pytest.raises(JournalError) as caught:
        read_journal(NO_SPARK, str(small), lambda _: _as_a_task(str(files[0])), skip_corrupt=True)
    assert str(caught.value) == f"{files[0]} is corrupt: its rows cannot be read, and no other rows are left"


@pytest.mark.parametrize("skip_corrupt", [False, True])
def test_a_file_that_the_workers_do_not_find_is_not_corrupt(small: pathlib.Path, skip_corrupt: bool) -> None:
    """It exists on this machine: the error says what the journal needs, and no file is skipped."""
    file = min(data_files(small))

    def work(_: OpenJournal) -> None:
        raise PySparkException(
            f"[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file {file.as_uri()}. File does not"
        )

    with pytest.raises(JournalError) as caught:
        read_journal(NO_SPARK, str(small), work, skip_corrupt=skip_corrupt)
    assert str(caught.value) == (
        f"{file} does not exist on a worker of Spark: move the journal to a disk that all workers share"
    )


def test_a_removed_file_that_spark_listed_later_than_this_process(small: pathlib.Path) -> None:
    """It is not among the files of the journal, and Spark's error names it."""
    files = []

    def work(opened: OpenJournal) -> int:
        files.append(opened.files)
        if len(files) == 1:
            _as_a_task_of_spark(str(small / "part-later.parquet"))
        return len(files)

    assert read_journal(NO_SPARK, str(small), work)[0] == 2
    assert [len(some or ()) for some in files] == [5, 5]


def test_another_error_is_raised_although_a_file_was_removed(small: pathlib.Path) -> None:
    """A compaction does not explain it."""

    def work(opened: OpenJournal) -> None:
        compact(small)
        raise error

    for error in (PySparkException("out of memory"), RuntimeError("no")):
        with pytest.raises(type(error), match=str(error)):
            read_journal(NO_SPARK, str(small), work)


def test_a_file_that_only_spark_listed_and_that_was_removed(
    small: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's error shows that; the work is repeated once."""
    opened = OpenJournal(NO_SPARK, ("hdfs://h/j",), None, None, ())
    monkeypatch.setattr(journal_reader, "open_journal", lambda *_, **__: opened)
    calls = []

    def work(opened: OpenJournal) -> int:
        calls.append(1)
        if len(calls) == succeeds:
            return 7
        raise PySparkException(
            "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file hdfs://h/j/a%20b.parquet. File does"
        )

    succeeds = 2
    assert read_journal(NO_SPARK, "hdfs://h/j", work, skip_corrupt=True) == (7, opened)
    succeeds = 0
    with pytest.raises(JournalError) as caught:
        read_journal(NO_SPARK, "hdfs://h/j", work, skip_corrupt=True)
    assert len(calls) == 4
    assert str(caught.value) == "hdfs://h/j/a b.parquet was removed while the journal was read; run the command again"


def test_spark_misses_no_file_that_was_removed_while_it_listed_them(spark: Any, small: pathlib.Path) -> None:
    """It would leave the file out without an error; so it would with a setting of the session."""
    opened = open_journal(spark, str(small))
    compact(small)
    with pytest.raises(JournalError, match="was removed while the journal was read"):
        _ = opened.dataframe
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        opened = open_journal(spark, str(small))
        _ = opened.dataframe
        (file,) = data_files(small)
        file.unlink()
        with pytest.raises(Exception, match="FILE_NOT_EXIST"):
            opened.dataframe.collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


def _without_cpu(table: pa.Table) -> list[dict[str, Any]]:
    return list(table.drop_columns("cpu_us").to_pylist())


MADE: dict[str, Callable[[Any, str], list[dict[str, Any]]]] = {
    "report": lambda spark, path: compute(spark, path, skip_corrupt=True).tables["outcomes"].to_pylist(),
    "replay": lambda spark, path: _without_cpu(what_if(spark, path, [1], [20], skip_corrupt=True).table),
    "estimate": lambda spark, path: estimate_journal(spark, path, [Scenario()], skip_corrupt=True).table.to_pylist(),
}


@pytest.mark.parametrize("command", [*MADE, "compare"])
def test_every_command_reads_a_journal_that_is_merged_in_the_meantime(
    spark: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Its result has all rows, and no file is skipped."""
    path = tmp_path / "journal"
    generate(path, Recipe(900, seed=3, rate=50.0, keys=20, rows_per_file=300))

    def opened(*arguments: Any, **more: Any) -> OpenJournal:
        journal = open_journal(*arguments, **more)
        done.append(compact(path, 10_000).rows)
        return journal

    one = compute(spark, str(path), top=3)
    other = replace(one, tables=one.tables | {"hot_keys": one.tables["hot_keys"].slice(1)})

    def result() -> list[dict[str, Any]]:
        if command == "compare":
            return list(compare(spark, one, other, skip_corrupt=True).changes.to_pylist())
        return MADE[command](spark, str(path))

    expected = result()
    done: list[int] = []
    monkeypatch.setattr(journal_reader, "open_journal", opened)
    assert result() == expected
    assert done[0] == 900


ODD = """it's a "b" [x]; 100% %20 #1? {y}. é: c"""
READING = "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file "
ENCODED = """it's%20a%20%22b%22%20%5Bx%5D;%20100%25%20%2520%20%231%3F%20%7By%7D.%20é:%20c"""  # as Spark prints it


@pytest.mark.parametrize(
    ("said", "file"),
    [
        (f"{READING}file:///j/{ENCODED}/a%20b.parquet.  SQLSTATE", f"/j/{ODD}/a b.parquet"),
        (f"{READING}hdfs://h:1/j/{ENCODED}/a.parquet. Data type", f"hdfs://h:1/j/{ODD}/a.parquet"),
        (f'{READING}file:/j/it\'s a "b"/a.parquet. Could not read footer.', '/j/it\'s a "b"/a.parquet'),
        (f"{READING}s3a://b/table/part-0.  SQLSTATE", "s3a://b/table/part-0"),
        ("java.lang.RuntimeException: hdfs://h/j/a%20b.parquet is not a Parquet file", "hdfs://h/j/a b.parquet"),
        ("a Parquet writer failed", None),
        ("no space in /j/a.txt", None),
    ],
)
def test_the_file_in_an_error_of_spark(said: str, file: str | None) -> None:
    """With all characters of its path; without a file, the error has another cause."""
    text = f"An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: {said} KD001\n\tat a.b(c)"
    assert corrupt_file(PySparkException(text)) == file


def test_the_file_in_an_error_of_a_task(small: pathlib.Path) -> None:
    """Its traceback also has the line that raises the error."""
    for name in (ODD, "with\nline", "plain"):
        file = small / name / "a b.parquet"
        file.parent.mkdir()
        shutil.copy(min(data_files(small)), file)
        damage(file)
        with pytest.raises(PythonException) as caught:
            _as_a_task(str(file))
        assert corrupt_file(caught.value) == str(file)


def test_a_damaged_file_is_named_whatever_its_path_is(spark: Any, small: pathlib.Path) -> None:
    """Whether a task or Spark itself reads it."""
    journal = small.rename(small.with_name(ODD.replace(":", "")))  # Hadoop refuses a colon in a pattern
    damaged = (journal / "part-web-1-a-000002.parquet").rename(journal / "part 2's.parquet")
    damage(damaged)
    said = f"{damaged} is corrupt: its rows cannot be read; --skip-corrupt skips it"
    with pytest.raises(JournalError) as caught:
        compute(spark, str(journal))
    assert str(caught.value) == said
    with pytest.raises(JournalError) as caught:
        read_journal(spark, str(journal), lambda opened: opened.dataframe.toArrow())
    assert str(caught.value) == said


def test_a_damaged_file_that_only_spark_can_list_must_be_moved(spark: Any, small: pathlib.Path) -> None:
    """``skip_corrupt`` does not apply, so the error does not advise it."""
    damaged = min(data_files(small))
    damage(damaged)
    spark.read.schema(SPARK_SCHEMA).parquet(str(small)).createOrReplaceTempView("damaged")
    for skip in (False, True):
        with pytest.raises(JournalError) as caught:
            compute(spark, "table:damaged", skip_corrupt=skip)
        assert str(caught.value) == f"{damaged} is corrupt: its rows cannot be read; move it out of the journal"


HIDDEN = ("_date=2026-11-21", "date=2026-11-22/_old=1", "_metadata_of_it", ".date=2026-11-23", "_old")


@pytest.mark.parametrize("by_spark", [False, True])
def test_spark_reads_no_hidden_names(
    spark: Any, small: pathlib.Path, monkeypatch: pytest.MonkeyPatch, by_spark: bool
) -> None:
    """Spark itself would read those with an equals sign.  Also where only Spark can list the files, and if the journal
    is in such a folder itself."""
    journal = small.with_name("_a=1") / ODD.replace(":", "")
    journal.parent.mkdir()
    small.rename(journal)
    first, *_ = data_files(journal)
    for folder in HIDDEN:
        (journal / folder).mkdir(parents=True)
        shutil.copy(first, journal / folder / first.name)
    shutil.copy(first, journal / "_part=1.parquet")
    (journal / "copy._COPYING_").mkdir()
    if by_spark:
        monkeypatch.setattr(journal_reader, "local_path", lambda _: None)
        monkeypatch.setattr(journal_reader, "location_to_read", escaped)
    else:
        shutil.move(first, journal / "copy._COPYING_" / first.name)
    opened = open_journal(spark, str(journal))
    assert opened.rows == (None if by_spark else 50)
    assert sorted(row.op_id for row in opened.dataframe.select("op_id").collect()) == list(range(50))
    for file in data_files(journal):
        file.unlink()
    with pytest.raises(JournalError, match="is empty: it contains no Parquet file"):
        open_journal(spark, str(journal))


def escaped(path: str) -> str:
    """Return a pattern for the path, as :func:`location_to_read` does."""
    return re.sub(r"[\[\]{}*?]", r"\\\g<0>", path)


@pytest.mark.parametrize(
    ("location", "hidden", "visible"),
    [
        ("hdfs:///j", "hdfs://h:1/j/_a=1/x.parquet", "hdfs://h:1/j/a=1/x.parquet"),
        ("hdfs://h/_b=1/*/", "hdfs://h/_b=1/c/_x=1.parquet", "hdfs://h/_b=1/_d=1/x.parquet"),
        ("s3a://_b", "s3a://_b/_a=1/x.parquet", "s3a://_b/x.parquet"),
        ("/j/_a=1", "file:///j/_a=1/_a=1/x.parquet", "file:///j/_a=1/x.parquet"),
        ("_a=1", "file:///j/_a=1/_a=1/x.parquet", "file:///j/_a=1/x.parquet"),
    ],
)
def test_what_is_hidden_in_a_store(location: str, hidden: str, visible: str) -> None:
    """Only the names below the location count; a relative location ends where the paths of the files part."""
    assert visible_files(location, [visible, hidden]) == [visible]
    assert visible_files(location, []) == []


def test_a_merge_that_begins_after_the_check(spark: Any, small: pathlib.Path) -> None:
    """Spark would read the rows twice: those of the merged file, and those of the files that it replaces."""
    opened = open_journal(spark, str(small))
    files = data_files(small)
    shutil.copy(files[0], small / "part-merged.parquet")
    note = {"unfinished": ".x", "merged": "part-merged.parquet", "replaced": [files[0].name]}
    write_note(small, note)
    assert opened.dataframe.count() == 50


class Stopped(BaseException):
    """Stops a compaction, as a kill would."""


def compact_and_stop(path: pathlib.Path) -> None:
    """Merge files, and stop when the second file that was merged is to be removed."""
    removed: list[str] = []
    unlink = pathlib.Path.unlink

    def stop(path: pathlib.Path, missing_ok: bool = False) -> None:
        if path.suffix == ".parquet":
            removed.append(path.name)
            if len(removed) == 2:
                raise Stopped
        unlink(path, missing_ok)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pathlib.Path, "unlink", stop)
        with pytest.raises(Stopped):
            compact(path)


@pytest.fixture
def only_spark_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with Spark Connect, or in a store."""
    monkeypatch.setattr(journal_reader, "local_path", lambda _: None)
    monkeypatch.setattr(journal_reader, "location_to_read", escaped)


@pytest.mark.parametrize("name", [ODD.replace(":", ""), "a:b"])
@pytest.mark.parametrize("folders", [(), ("date=2026-11-21",), ("date=2026-11-21", "date=2026-11-22")])
@pytest.mark.usefixtures("only_spark_lists")
def test_spark_reads_the_notes_of_a_merge_that_was_killed(
    spark: Any, small: pathlib.Path, folders: tuple[str, ...], name: str
) -> None:
    """No row is counted twice: in the journal's own folder, in those of dates, and in each of them as a journal."""
    journal = small.with_name(name)
    shutil.copytree(small, journal)
    for folder in folders:
        shutil.copytree(small, journal / folder)
    for folder in (journal, *(journal / folder for folder in folders)):
        compact_and_stop(folder)
        assert len(list(folder.glob("*.parquet"))) == 5  # one has been removed, and one is the merged one
    for path in (journal, *(journal / folder for folder in folders)):
        expected = sorted([*range(50)] * (1 if path != journal else 1 + len(folders)))
        assert sorted(row.op_id for row in open_journal(spark, str(path)).dataframe.collect()) == expected
    compact(journal)
    assert open_journal(spark, str(journal)).dataframe.count() == 50 * (1 + len(folders))


@pytest.mark.parametrize("command", MADE)
@pytest.mark.usefixtures("only_spark_lists")
def test_every_command_counts_a_merged_row_once(spark: Any, tmp_path: pathlib.Path, command: str) -> None:
    """Also where only Spark can list the files, and the merge was killed."""
    path = tmp_path / "journal"
    generate(path, Recipe(900, seed=3, rate=50.0, keys=20, rows_per_file=300))
    expected = MADE[command](spark, str(path))
    compact_and_stop(path)
    assert MADE[command](spark, str(path)) == expected


@pytest.mark.usefixtures("only_spark_lists")
def test_a_note_that_only_spark_reads(spark: Any, small: pathlib.Path) -> None:
    """A corrupt one is named, unless its folder is hidden or has no two files; while the merged file is not visible,
    the files count; and any other error of Spark is an error in one line."""
    first, *others = data_files(small)
    for number in range(2):
        for name in ("_hidden=1", "date=2026-11-21", "date=2026-11-22"):
            folder = small / "of" / name
            folder.mkdir(exist_ok=True, parents=True)
            shutil.copy(first, folder / f"part-{number}.parquet")
    write_note(small, {"unfinished": ".x", "merged": "part-none.parquet", "replaced": [first.name]})
    write_note(small / "of" / "_hidden=1", {})
    assert open_journal(spark, str(small)).dataframe.count() == 90
    write_note(small / "of" / "date=2026-11-21", {})
    note = f"file:{small}/of/date=2026-11-21/_merge/x.json"
    with pytest.raises(JournalError, match=f"^{re.escape(note)} is corrupt: it must have the names of a merged file"):
        open_journal(spark, str(small))
    (small / "of" / "date=2026-11-21" / "_merge" / "x.json").unlink()
    (small / "of" / "a:b").mkdir()
    with pytest.raises(JournalError, match=r"cannot be listed: .*: a:b$"):
        open_journal(spark, str(small))
    (small / "of" / "a:b").rmdir()
    assert open_journal(spark, str(small)).dataframe.count() == 90
    (small / "_merge" / "x.json").write_text("{}")
    for file in others:
        file.unlink()
    assert open_journal(spark, str(small)).dataframe.count() == 50


@pytest.mark.usefixtures("only_spark_lists")
def test_a_file_that_is_removed_while_spark_reads_the_notes(
    spark: Any, small: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is opened again, because the compaction has continued in the meantime."""
    shutil.copytree(small, small / "date=2026-11-21")
    without_replaced = journal_reader._without_replaced
    calls: list[int] = []

    def read_and_merge(spark: Any, files: Any) -> list[str]:
        counted = without_replaced(spark, files)
        calls.append(len(counted))
        compact(small)
        return counted

    monkeypatch.setattr(journal_reader, "_without_replaced", read_and_merge)
    compact_and_stop(small)
    assert read_journal(spark, str(small), lambda opened: opened.dataframe.count())[0] == 100
    assert calls == [6, 2]


def test_a_single_changed_bit_in_the_rows_is_found(spark: Any, tmp_path: pathlib.Path) -> None:
    """Without the checksum of the page, the rows would be read with another value and without an error."""
    nothing = dict.fromkeys(ARROW_SCHEMA.names) | {"source": "web-1-a", "outcome": "completed", "anchor_ms": 0}
    rows = [nothing | {"op_id": n * n, "keys": [str(n)], "parked_at": n, "finished_at": n + 1} for n in range(500)]
    table = pa.Table.from_pylist(rows, schema=ARROW_SCHEMA)
    files = [write_file(table, tmp_path, "web-1-a", number) for number in range(2)]
    intact = files[1].read_bytes()
    chunk = pq.read_metadata(files[1]).row_group(0).column(ARROW_SCHEMA.get_field_index("op_id"))

    def differs_silently(at: int) -> bool:
        files[1].write_bytes(intact[:at] + bytes([intact[at] ^ 1]) + intact[at + 1 :])
        try:
            return bool(pq.ParquetFile(files[1]).read() != table)
        except (OSError, pa.ArrowException):
            return False

    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    assert any(differs_silently(at) for at in range(begin + chunk.total_compressed_size // 2, begin, -1))
    with pytest.raises(OSError, match=files[1].name):
        list(read_batches(str(files[1]), ["op_id"], lambda _: [0]))
    with pytest.raises((PySparkException, Py4JJavaError)) as caught:
        open_journal(spark, str(tmp_path)).dataframe.agg({"op_id": "sum"}).collect()
    assert corrupt_file(caught.value) == str(files[1])
    with pytest.raises(JournalError, match=rf"{files[1].name} is corrupt"):
        compact(tmp_path)
    assert journal_reader.readable_files(map(str, files)).readable == (str(files[0]),)


@pytest.mark.parametrize("lost", ["row", "value"])
def test_damage_outside_the_checksums_is_found(tmp_path: pathlib.Path, lost: str) -> None:
    """In the header of a page: without an error, rows would be missing, or values would not be in their dictionary."""
    nothing = dict.fromkeys(ARROW_SCHEMA.names) | {"source": "web-1-a", "anchor_ms": 0, "keys": ["k"], "parked_at": 1}
    for number in range(2):
        rows = [nothing | {"op_id": n, "outcome": outcome} for n, outcome in enumerate("abc")]
        file = write_file(pa.Table.from_pylist(rows, schema=ARROW_SCHEMA), tmp_path, "web-1-a", number)
    chunk = pq.read_metadata(file).row_group(0).column(ARROW_SCHEMA.get_field_index("outcome"))
    content = bytearray(file.read_bytes())
    if lost == "row":
        content[chunk.data_page_offset + 1] = 2  # an index page, which readers skip
    else:
        length = content.index(b"\x15\x06\x15", chunk.dictionary_page_offset) + 1
        content[length] = 2  # one value rather than three
    file.write_bytes(content)

    def work(opened: OpenJournal) -> list[str]:
        assert opened.files is not None
        return [
            text
            for name in opened.files
            for batch in read_batches(name, ["outcome"], lambda _: [0])
            for text in batch["outcome"].to_pylist()
        ]

    with pytest.raises(
        JournalError, match=rf"{file.name} is corrupt: its rows cannot be read; --skip-corrupt skips it"
    ):
        read_journal(NO_SPARK, str(tmp_path), work)
    found, opened = read_journal(NO_SPARK, str(tmp_path), work, skip_corrupt=True)
    assert (found, opened.rows, len(opened.skipped)) == (["a", "b", "c"], 3, 1)
    assert opened.skipped[0].startswith(f"{file} is corrupt: ")


@pytest.mark.parametrize("parked_at", [253_402_300_800_000, -62_135_596_800_001])
def test_a_file_with_a_time_that_is_no_date_is_named(tmp_path: pathlib.Path, parked_at: int) -> None:
    """Before Spark starts; --skip-corrupt skips the file."""
    row = dict.fromkeys(ARROW_SCHEMA.names) | {"source": "s", "outcome": "completed", "anchor_ms": 0, "op_id": 1}
    for number, ms in enumerate((5, parked_at)):
        table = pa.Table.from_pylist([row | {"keys": ["a"], "parked_at": ms}], schema=ARROW_SCHEMA)
        file = write_file(table, tmp_path, "s", number)
    with pytest.raises(
        JournalError, match=rf"{file.name} has times outside the years 1 to 9999 in the columns parked_at"
    ):
        check_files(str(tmp_path))
    left = check_files(str(tmp_path), skip_corrupt=True)
    assert left is not None
    assert len(left.readable) == 1


def test_the_directory_of_a_loaded_table_is_named_as_a_table(tmp_path: pathlib.Path) -> None:
    """Its files are not foreign, so the error does not advise to move them; the name works for any path."""
    table = tmp_path / "lake`s" / "date=2026-11-22"
    table.mkdir(parents=True)
    times = {name: pa.timestamp("ns", "UTC") for name in ("parked_at", "deadline", "finished_at")}
    fields = [field.with_type(times.get(field.name, field.type)) for field in ARROW_SCHEMA]
    pq.write_table(pa.schema(fields).empty_table(), table / "part-0.parquet")
    with pytest.raises(JournalError, match=r"move it out of the journal's directory"):
        check_files(str(table.parent))
    (table.parent / "_purgatory_table").touch()
    named = re.escape(f"is a table that a load has written: as a journal, it is table:parquet.`{tmp_path}/lake``s`")
    with pytest.raises(JournalError, match=named):
        check_files(str(table.parent))


@pytest.mark.parametrize("skip_corrupt", [False, True])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (pa.ArrowMemoryError("malloc of size 64 failed\n"), "malloc of size 64 failed"),
        (MemoryError(), "not enough memory"),
        (OSError(11, "Failed to launch worker thread"), "[Errno 11] Failed to launch worker thread"),
        (PermissionError(13, "Permission denied"), "[Errno 13] Permission denied"),
    ],
)
def test_a_file_is_not_corrupt_because_a_worker_lacks_memory(
    small: pathlib.Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str, skip_corrupt: bool
) -> None:
    """Nor because the system refuses to read it: nothing is skipped, and the line says why."""
    file = sorted(small.glob("*.parquet"))[2]

    def work(opened: OpenJournal) -> int:
        with monkeypatch.context() as patch:
            patch.setattr("purgatory.pipeline.selected_rows.pq.ParquetFile", fail)
            _as_a_task(str(file))
        return 0

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    with pytest.raises(JournalError) as caught:
        read_journal(NO_SPARK, str(small), work, skip_corrupt=skip_corrupt)
    assert str(caught.value) == f"{file} cannot be read: {reason}"
