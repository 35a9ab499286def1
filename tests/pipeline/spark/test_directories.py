"""Directories by URI, through Hadoop's FileSystem: a view of a local directory under another scheme."""

import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from purgatory.pipeline.__main__ import main
from purgatory.pipeline.output.directory import BadOutput, check_out, check_store, write_files
from purgatory.pipeline.spark.directories import HadoopDirectory, LocalDirectory, StoreError, directory_at
from purgatory.pipeline.stream.sinks import read_records
from purgatory.pipeline.stream.traces import trace, write_trace
from tests.pipeline.stream.engines import ends_of_records, in_one_go

pytestmark = [pytest.mark.slow, pytest.mark.timeout(170)]
_NUMBERS = itertools.count()


@pytest.fixture
def store(spark: Any, tmp_path: pathlib.Path) -> Iterator[str]:
    """The URI of ``tmp_path / "store"``, in Hadoop's ViewFs.  Hadoop caches a file system by the host of its URI.

    The setting is Hadoop's, not that of one session: the active session, which commands use, may be another one.
    """
    (tmp_path / "store").mkdir()
    host = f"view-{next(_NUMBERS)}"
    setting = f"fs.viewfs.mounttable.{host}.link./store"
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set(setting, (tmp_path / "store").as_uri())
    yield f"viewfs://{host}/store"
    hadoop.unset(setting)


def test_both_kinds_of_directory_do_the_same(spark: Any, store: str, tmp_path: pathlib.Path) -> None:
    """Names, texts, and what is missing, by path and by URI."""
    for directory in (LocalDirectory(tmp_path / "local"), directory_at(f"{store}/there", spark)):
        assert directory.names() == directory.names("offsets") == []
        assert directory.read_text("mark") is None
        directory.write_text("mark", "ä\n7")
        directory.write_text("mark", "ä\n8")
        assert directory.read_text("mark") == "ä\n8"
        assert [name for name in directory.names() if not name.startswith(".")] == ["mark"]
        for text in ("1", "2"):
            directory.write_text("new", text)
            directory.replace("new", "deep/folder/old")
            assert directory.read_text("deep/folder/old") == text
            assert directory.read_text("new") is None
        assert directory.renames_folders
        for number in range(2):
            directory.write_text("new", str(number))
            directory.replace("new", f"some {number}/new")
            assert directory.rename_folder(f"some {number}", "whole") is (number == 0)
        assert directory.read_text("whole/new") == "0"
        assert directory.read_text("some 1/new") == "1"
        with pytest.raises((OSError, StoreError)):
            directory.rename_folder("none", "nowhere")
        assert directory.names("mark") == []
        with pytest.raises((OSError, StoreError)):
            directory.rename_folder("some 1", "mark")
        assert directory.read_text("mark") == "ä\n8"
        directory.remove("whole/new")
        assert directory.rename_folder("some 1", "whole")
        assert directory.read_text("whole/new") == "1"
        for name in ("whole", "some 1"):
            directory.remove(name)
        for name in ("deep/folder/old", "deep", "deep", "none/at/all"):
            directory.remove(name)
            assert directory.read_text(name) is None
        assert [name for name in directory.names() if not name.startswith(".")] == ["mark"]
    assert repr(directory) == f"{store}/there"
    assert (tmp_path / "store" / "there" / "mark").read_text() == "ä\n8"
    assert HadoopDirectory(spark, f"{store}/there").is_directory()
    assert not HadoopDirectory(spark, f"{store}/there/mark").is_directory()
    assert not HadoopDirectory(spark, f"{store}/none").is_directory()


def test_a_move_that_fails_leaves_the_earlier_file(spark: Any, store: str) -> None:
    """At no moment is it missing: another job may have written it."""
    directory = HadoopDirectory(spark, store)
    directory.write_text("folder/new", "2")
    directory.write_text("old", "1")
    with pytest.raises(StoreError, match="cannot be written"):
        directory.replace("folder", "old")
    assert directory.read_text("old") == "1"


def test_a_text_on_this_machine_is_replaced_only_when_it_is_complete(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, or an end of the process, leaves the earlier text: a checkpoint cannot be used without it."""
    directory = LocalDirectory(tmp_path)
    directory.write_text("shards", "7\n")

    def fail(path: pathlib.Path, text: str, **_: Any) -> int:
        path.write_bytes(text.encode()[:1])
        raise OSError("No space left on device")

    monkeypatch.setattr(pathlib.Path, "write_text", fail)
    with pytest.raises(OSError, match="No space left"):
        directory.write_text("shards", "16\n")
    assert directory.read_text("shards") == "7\n"
    assert directory.names() == ["shards"]


def interrupted(out: str, spark: Any) -> None:
    with write_files(out, spark) as directory:
        (directory / "a b.html").write_text("3")
        (directory / "none").read_text()


def test_files_are_copied_when_all_are_complete(spark: Any, store: str, tmp_path: pathlib.Path) -> None:
    """An error changes nothing; later files replace those of the same name, and nothing unfinished is left."""
    out = f"{store}/deep/out"
    for text in ("1", "2"):
        with write_files(out, spark) as directory:
            (directory / "a b.html").write_text(text)
    with pytest.raises(FileNotFoundError):
        interrupted(out, spark)
    there = tmp_path / "store" / "deep" / "out"
    assert [file.name for file in there.iterdir() if not file.name.endswith(".crc")] == ["a b.html"]
    assert (there / "a b.html").read_text() == "2"


def test_a_store_that_cannot_be_written_is_an_error_before_the_work(
    spark: Any, store: str, tmp_path: pathlib.Path
) -> None:
    """An unknown scheme, a file in the way; a check leaves nothing."""
    check_store(spark, f"{store}/out")
    check_store(spark, tmp_path / "nowhere")
    check_out("s3a://bucket/needs-a-session")
    assert [file.name for file in (tmp_path / "store").rglob("*") if file.is_file()] == []
    (tmp_path / "store" / "file").write_text("")
    with pytest.raises(BadOutput, match=r'out must be a directory .* nostore://b/out cannot be opened: .* "nostore"'):
        check_store(spark, "nostore://b/out")
    with pytest.raises(BadOutput, match=r"checkpoint must be a directory .* cannot be written"):
        check_store(spark, f"{store}/file/out", "checkpoint")


def test_a_uri_needs_a_session(monkeypatch: pytest.MonkeyPatch, spark: Any) -> None:
    """The active session is the default."""
    monkeypatch.setattr(type(spark), "getActiveSession", classmethod(lambda cls: None))
    with pytest.raises(StoreError, match="s3a://b/out cannot be opened without a Spark session"):
        directory_at("s3a://b/out")


def test_commands_read_and_write_a_store(
    spark: Any, store: str, made: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Journal, report, and replay by URI: the page has the same figures as from a path."""
    for file in made[0].glob("*.parquet"):
        (tmp_path / "store" / "journal").mkdir(exist_ok=True)
        (tmp_path / "store" / "journal" / file.name).write_bytes(file.read_bytes())
    arguments = ["--out", f"{store}/report", "--quiet"]
    assert main(["report", f"{store}/journal", *arguments]) == 0
    assert f"20,000 operations: {store}/report/index.html" in capsys.readouterr().out
    assert (tmp_path / "store" / "report" / "waits.csv").stat().st_size
    assert main(["report", str(made[0]), "--out", (tmp_path / "by path").as_uri(), "--quiet"]) == 0
    for name in ("waits.csv", "hot_keys.csv", "occupancy.csv"):
        there, here = (tmp_path / folder / name for folder in ("store/report", "by path"))
        assert there.read_text() == here.read_text()
    assert main(["replay", f"{store}/journal", "--tick-ms", "5", "--wheel-size", "20", "--out", f"{store}/replay"]) == 0
    assert (tmp_path / "store" / "replay" / "replay.html").is_file()
    assert main(["report", f"{store}/none", *arguments]) == 1
    assert f"the journal {store}/none cannot be listed" in capsys.readouterr().err


@pytest.mark.timeout(300)
def test_the_stream_and_backfill_read_and_write_a_store(
    spark: Any, store: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Source, checkpoint, and out by URI: the outcomes of the trace; the checkpoint is that of these batches."""
    rows = trace(23, 10)
    write_trace(rows, tmp_path / "store" / "rows", files=1)
    streaming = ["stream", "--source", f"{store}/rows", "--out", f"{store}/out"]
    assert main([*streaming, "--checkpoint", f"{store}/checkpoint", "--shards", "2"]) == 0
    assert (tmp_path / "store" / "checkpoint" / "shards").read_text() == "2\n"
    for arguments, said in (
        (
            [*streaming, "--checkpoint", f"{store}/checkpoint", "--shards", "3"],
            "shards must be 2, as when the checkpoint",
        ),
        ([*streaming, "--checkpoint", f"{store}/other"], f"{store}/out holds the batches of another run"),
        (["backfill", "--source", f"{store}/rows", "--out", f"{store}/out"], "out must be an empty directory"),
        (
            ["backfill", "--source", f"{store}/none", "--out", f"{store}/o"],
            f"source must be a directory, got {store}/none",
        ),
    ):
        assert main(arguments) == 1
        assert said in capsys.readouterr().err
    assert main(["backfill", "--source", f"{store}/rows", "--out", f"{store}/backfill"]) == 0
    for name in ("out", "backfill"):
        written = read_records(spark, f"{store}/{name}").collect()
        assert ends_of_records((row.record, *row[0:7]) for row in written) == in_one_go(rows)
