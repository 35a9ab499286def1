"""How the files of a batch get to their place: without Spark, which has written them to a hidden folder."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", "4.2")

from purgatory.pipeline.commands.backfill import _check_empty
from purgatory.pipeline.output.directory import BadOutput
from purgatory.pipeline.spark.directories import LocalDirectory
from purgatory.pipeline.stream import sinks
from purgatory.pipeline.stream.sinks import BatchCounts, DirectorySink

NEW = {f"record={record}/part-{number:05}.parquet" for record in ("dead", "outcome") for number in range(2)}
RECORDS: Any = SimpleNamespace(sparkSession=SimpleNamespace(_jsparkSession=None))
COUNTS = BatchCounts(4, 4, 0)


class Killed(BaseException):
    """The end of the process: nothing that the code does afterwards has an effect."""


@pytest.fixture(autouse=True)
def spark_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark writes the files, their checksums, and a mark."""

    def write(sink: DirectorySink, _: Any, folder: str) -> BatchCounts:
        for name in NEW:
            file = Path(str(sink.directory), folder, name.replace(".parquet", "-4f1c.c000.snappy.parquet"))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(name)
            file.with_name(f".{file.name}.crc").touch()
        Path(str(sink.directory), folder, "_SUCCESS").touch()
        return COUNTS

    monkeypatch.setattr(DirectorySink, "_write", write)


def visible(out: Path) -> dict[str, set[str]]:
    """Return the files of each batch, without the mark."""
    return {
        batch.name: {str(file.relative_to(batch)) for file in batch.rglob("*") if file.is_file()} - {"_SUCCESS"}
        for batch in out.glob("batch=*")
    }


@pytest.mark.parametrize("checkpoint", [None, "checkpoint"])
def test_a_reader_sees_the_whole_batch_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: str | None
) -> None:
    """Wherever the process is killed.  A killed backfill can then be run again, and a killed stream continues."""
    kill_at = steps = 0
    files = {name: getattr(LocalDirectory, name) for name in ("names", "replace", "remove", "rename_folder")}

    def step(name: str) -> Any:
        def one(*arguments: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps >= kill_at:
                raise Killed
            return files[name](*arguments)

        return one

    while True:
        kill_at, steps = kill_at + 1, 0
        out = tmp_path / str(kill_at)
        sink = DirectorySink(out, checkpoint and tmp_path / checkpoint)
        with monkeypatch.context() as patch:
            for name in files:
                patch.setattr(LocalDirectory, name, step(name))
            try:
                assert sink.write(RECORDS, 0) == COUNTS
            except Killed:
                pass
            else:
                break
        assert visible(out) in ({}, {"batch=000000000": NEW})
        if not visible(out):
            _check_empty(LocalDirectory(out))
        if checkpoint or not visible(out):
            assert sink.write(RECORDS, 0) == COUNTS
            assert visible(out) == {"batch=000000000": NEW}
    assert kill_at > 6
    assert visible(out) == {"batch=000000000": NEW}
    assert (out / "batch=000000000" / "_SUCCESS").exists()
    assert list((out / ".unfinished").iterdir()) == []


def test_a_batch_that_another_job_finishes_first_gets_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file replaces the one that has the same records; other files are removed."""
    move_files = sinks._move_files

    def move(*arguments: Any) -> None:
        move_files(*arguments)
        other = tmp_path / "batch=000000003" / "record=dead" / "part-00007.parquet"
        if not other.parent.exists():
            other.parent.mkdir(parents=True)
            other.touch()

    monkeypatch.setattr(sinks, "_move_files", move)
    DirectorySink(tmp_path, tmp_path / "checkpoint").write(RECORDS, 3)
    assert visible(tmp_path) == {"batch=000000003": NEW}
    assert (tmp_path / "batch=000000003" / "record=dead" / "part-00001.parquet").read_text() in NEW


def test_a_store_that_copies_when_it_renames_copies_each_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark comes last.  A run that finds a batch without it says so."""
    moved: list[tuple[str, str]] = []
    replace = LocalDirectory.replace

    def move(directory: LocalDirectory, name: str, target: str) -> None:
        if target.endswith("_SUCCESS"):
            with pytest.raises(
                ValueError, match=r"the batch is not complete: remove .*batch=0+ if a killed backfill has left it$"
            ):
                _check_empty(directory)
        moved.append((name, target))
        replace(directory, name, target)

    monkeypatch.setattr(LocalDirectory, "renames_folders", False)
    monkeypatch.setattr(LocalDirectory, "replace", move)
    DirectorySink(tmp_path).write(RECORDS, 0)
    assert [target for _, target in moved] == [f"batch=000000000/{name}" for name in (*sorted(NEW), "_SUCCESS")]
    with pytest.raises(ValueError, match=r"holds the batches of another run$"):
        _check_empty(LocalDirectory(tmp_path))


@pytest.mark.parametrize(
    "names",
    [
        ["batch=000000000/record=outcome/part-00000.parquet", "batch=000000001/record=outcome/part-00000.parquet"],
        ["batch=000000001/record=outcome/part-00000.parquet"],
        ["batch=000000000"],
    ],
)
def test_only_what_a_backfill_can_have_left_is_to_be_removed(tmp_path: Path, names: list[str]) -> None:
    """A backfill writes one batch.  Others are a stream's, even if no batch has a mark, and a file is no batch."""
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"holds the batches of another run$"):
        _check_empty(LocalDirectory(tmp_path))


def test_what_spark_wrote_elsewhere_is_not_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers have another disk; an empty batch leaves nothing."""
    monkeypatch.setattr(DirectorySink, "_write", lambda *_: COUNTS)
    with pytest.raises(BadOutput, match="out must be a URI or a directory that Spark shares with this machine"):
        DirectorySink(tmp_path).write(RECORDS, 0)
    monkeypatch.setattr(DirectorySink, "_write", lambda *_: BatchCounts(0, 0, 0))
    assert DirectorySink(tmp_path).write(RECORDS, 0) == BatchCounts(0, 0, 0)
    assert visible(tmp_path) == {}
