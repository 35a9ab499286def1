"""Merging small files: no row is lost or doubled, whatever stops it, wherever it stops."""

import errno
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

pytest.importorskip("pyarrow", reason="the extra 'journal' is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal import JournalError, compact
from purgatory.journal import compaction as module
from purgatory.journal.files import ARROW_SCHEMA, data_files, write_file


def table(source: str, begin: int, number: int) -> pa.Table:
    nothing = dict.fromkeys(ARROW_SCHEMA.names) | {"source": source, "outcome": "completed", "anchor_ms": 0}
    rows = [nothing | {"op_id": n, "keys": [str(n)], "parked_at": n, "finished_at": n + 1} for n in range(number)]
    return pa.Table.from_pylist([row | {"op_id": row["op_id"] + begin} for row in rows], schema=ARROW_SCHEMA)


def journal(path: pathlib.Path) -> list[tuple[str, int]]:
    """Two runs in two folders, in eighteen files of ten rows; returns the rows."""
    for folder in (path, path / "date=2026-11-22"):
        folder.mkdir(parents=True, exist_ok=True)
        for source in ("web-1-a", "web-2-b"):
            for number in range(5 if source == "web-1-a" else 4):
                begin = number * 10 + 1_000 * (folder != path)
                write_file(table(source, begin, 10), folder, source, number)
    return rows(path)


def rows(path: pathlib.Path) -> list[tuple[str, int]]:
    """Source and number of each row that readers see, sorted."""
    found = [row for file in data_files(path) for row in pq.ParquetFile(file).read(["source", "op_id"]).to_pylist()]
    return sorted((row["source"], row["op_id"]) for row in found)


def names(path: pathlib.Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


MERGED = [
    "date=2026-11-22/part-web-1-a-000000-to-000004.parquet",
    "date=2026-11-22/part-web-2-b-000000-to-000003.parquet",
    "part-web-1-a-000000-to-000004.parquet",
    "part-web-2-b-000000-to-000003.parquet",
]


@pytest.mark.parametrize("name", ["a:b", "s3:x", "file:y"])
def test_a_relative_path_with_a_colon_is_no_uri(
    tmp_path: pathlib.Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server writes such a journal, and pyarrow would take the path for a URI."""
    before = journal(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert compact(name, 100).after == 4
    assert rows(tmp_path / name) == before


def test_small_files_become_large_ones(tmp_path: pathlib.Path) -> None:
    """One for each run and folder, with all rows in order; a second compaction has nothing to do."""
    before = journal(tmp_path)
    done = compact(tmp_path)
    assert (done.before, done.after, done.rows) == (18, 4, 180)
    assert names(tmp_path) == MERGED
    assert rows(tmp_path) == before
    merged = pq.read_table(tmp_path / MERGED[2])
    assert merged["op_id"].to_pylist() == list(range(50))
    assert merged.schema.equals(ARROW_SCHEMA, check_metadata=True)
    done = compact(tmp_path)
    assert (done.before, done.after, done.rows) == (4, 4, 0)


def test_files_have_at_most_the_rows_that_are_asked_for(tmp_path: pathlib.Path) -> None:
    """A file with more than half of them stays as it is, and a merged file can be merged again."""
    before = journal(tmp_path)
    compact(tmp_path, rows_per_file=25)
    counts = sorted(pq.read_metadata(file).num_rows for file in data_files(tmp_path))
    assert counts == [10, 10, *[20] * 8]
    compact(tmp_path, rows_per_file=19)
    assert sorted(pq.read_metadata(file).num_rows for file in data_files(tmp_path)) == counts
    compact(tmp_path, rows_per_file=10**6)
    assert rows(tmp_path) == before
    assert len(data_files(tmp_path)) == 4


def test_the_rows_of_many_small_files_are_combined(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of its own for each file would take far more memory than its rows."""
    files = [write_file(table("web-1-a", number * 10, 10), tmp_path, "web-1-a", number) for number in range(12)]
    monkeypatch.setattr(module, "_ROW_GROUP", 55)
    monkeypatch.setattr(module, "_HELD", 3)
    pieces = list(module._pieces(files))
    assert [(piece.num_rows, piece["op_id"].num_chunks) for piece in pieces] == [(60, 2), (60, 2)]
    assert pa.concat_tables(pieces)["op_id"].to_pylist() == list(range(120))


def test_names_do_not_grow_with_every_run(tmp_path: pathlib.Path) -> None:
    """A server writes and a timer compacts: the first and the last number remain, however often they are merged."""
    for run in range(30):
        for number in (2 * run, 2 * run + 1):
            write_file(table("web-1-a", number, 1), tmp_path, "web-1-a", number)
        compact(tmp_path)
        assert names(tmp_path) == [f"part-web-1-a-000000-to-{2 * run + 1:06d}.parquet"]
    assert rows(tmp_path) == [("web-1-a", number) for number in range(60)]


def test_a_journal_that_earlier_releases_compacted_very_often_can_be_compacted(tmp_path: pathlib.Path) -> None:
    """The name of its first file is as long as names can be; what the failed runs left behind is removed."""
    long = "part-web-1-a-000000" + "".join(f"-to-{number:06d}" for number in range(1, 43, 2))
    os.replace(write_file(table("web-1-a", 0, 42), tmp_path, "web-1-a", 0), tmp_path / f"{long}.parquet")
    for number in (42, 43):
        write_file(table("web-1-a", number, 1), tmp_path, "web-1-a", number)
    (tmp_path / f".{long}.merge").write_bytes(b"half")
    compact(tmp_path)
    assert names(tmp_path) == ["part-web-1-a-000000-to-000043.parquet"]
    assert rows(tmp_path) == [("web-1-a", number) for number in range(44)]


def test_names_of_other_programs_may_look_like_those_of_merged_files(tmp_path: pathlib.Path) -> None:
    """A merged file never takes the name of a file that is there, and files of several runs have several names."""
    for number in range(4):
        for source, name in (("web-1-a", "copy-to"), ("web-2-b", "export-to-lake"), ("web-3-c", "export-to-store")):
            file = write_file(table(source, number, 1), tmp_path, source, number)
            os.replace(file, tmp_path / f"{name}-{number}.parquet")
    before = rows(tmp_path)
    for _ in range(2):
        compact(tmp_path)
        assert rows(tmp_path) == before
        assert names(tmp_path) == [
            "copy-to-0-to-3.parquet",
            "export-to-lake-0-to-3.parquet",
            "export-to-store-0-to-3.parquet",
        ]


def test_files_of_other_programs_and_older_releases(tmp_path: pathlib.Path) -> None:
    """A file without ``instance`` is merged; one with more columns, or rows of two runs, is left as it is."""
    for number in range(2):
        write_file(table("web-1-a", number * 10, 10).drop_columns(["instance"]), tmp_path, "web-1-a", number)
        more = table("web-1-a", 100 + number, 1).append_column("extra", pa.array([1]))
        write_file(more, tmp_path, "more-1-a", number)
        both = pa.concat_tables([table("web-1-a", 200 + number, 1), table("web-2-b", 200 + number, 1)])
        write_file(both, tmp_path, "both-1-a", number)
    before = rows(tmp_path)
    done = compact(tmp_path)
    assert (done.before, done.after, done.rows) == (6, 5, 20)
    assert rows(tmp_path) == before


def test_what_cannot_be_compacted(tmp_path: pathlib.Path) -> None:
    """No journal, a file, a corrupt file, a number that cannot be, a second process: nothing has changed."""
    with pytest.raises(JournalError, match="there is no journal at"):
        compact(tmp_path / "none")
    before = journal(tmp_path / "journal")
    with pytest.raises(ValueError, match="rows_per_file must be at least 1, got 0"):
        compact(tmp_path / "journal", 0)
    with (
        module._exclusive(tmp_path / "journal" / "date=2026-11-22"),
        pytest.raises(JournalError, match="being compacted by another"),
    ):
        compact(tmp_path / "journal")
    assert rows(tmp_path / "journal") == before
    corrupt = tmp_path / "journal" / "part-web-3-c-000000.parquet"
    corrupt.write_bytes(b"PAR1 no")
    here = names(tmp_path)
    with pytest.raises(JournalError, match=r"part-web-3-c-000000\.parquet is corrupt"):
        compact(tmp_path / "journal")
    assert names(tmp_path) == here
    with pytest.raises(JournalError, match="must be a directory, got a file"):
        compact(corrupt)


@pytest.mark.skipif(sys.platform == "win32", reason="a compaction needs a POSIX system")
def test_damaged_rows_are_a_named_error(tmp_path: pathlib.Path) -> None:
    """They are found while the rows are merged; the damaged file is unchanged, and no row of another file is lost."""
    before = journal(tmp_path)
    damaged = tmp_path / "part-web-2-b-000003.parquet"
    begin = pq.read_metadata(damaged).row_group(0).column(3).data_page_offset
    data = bytearray(damaged.read_bytes())
    data[begin : begin + 12] = bytes(byte ^ 0xFF for byte in data[begin : begin + 12])
    damaged.write_bytes(data)
    with pytest.raises(JournalError, match=r"part-web-2-b-000003\.parquet is corrupt: "):
        compact(tmp_path)
    assert damaged.read_bytes() == data
    damaged.unlink()
    compact(tmp_path)
    assert sorted({*before} - {*rows(tmp_path)}) == [("web-2-b", number) for number in range(30, 40)]


@pytest.mark.skipif(sys.platform == "win32", reason="a compaction needs a POSIX system")
def test_a_file_without_the_rows_of_its_footer_is_named(tmp_path: pathlib.Path) -> None:
    """No checksum covers the header of a page; here, it makes the page an index page, which readers skip."""
    before = journal(tmp_path)
    damaged = tmp_path / "part-web-2-b-000003.parquet"
    data = bytearray(damaged.read_bytes())
    data[pq.read_metadata(damaged).row_group(0).column(3).data_page_offset + 1] = 2
    damaged.write_bytes(data)
    with pytest.raises(JournalError, match=rf"{damaged.name} is corrupt: it must have 10 rows, got 0"):
        compact(tmp_path)
    assert damaged.read_bytes() == data
    damaged.unlink()
    compact(tmp_path)
    assert sorted({*before} - {*rows(tmp_path)}) == [("web-2-b", number) for number in range(30, 40)]


@pytest.mark.skipif(sys.platform == "win32", reason="a compaction needs a POSIX system")
def test_a_file_system_without_locks(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error gives the reason of the system, and does not speak of another process."""
    import fcntl

    def flock(descriptor: int, operation: int) -> NoReturn:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    before = journal(tmp_path / "journal")
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(JournalError, match="cannot be locked for a compaction: No locks available"):
        compact(tmp_path / "journal")
    assert rows(tmp_path / "journal") == before


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        "5",
        "no",
        "\udc80",
        "[" * 100_000,
        '{"unfinished": ".x", "merged": "x.parquet", "replaced": 5}',
        '{"unfinished": ".x", "merged": "x.parquet", "replaced": [5]}',
        '{"unfinished": ".x", "merged": ["x.parquet"], "replaced": []}',
        '{"unfinished": "../x", "merged": "x.parquet", "replaced": []}',
        '{"unfinished": ".x", "merged": "x.parquet", "replaced": ["/etc/passwd"]}',
        '{"unfinished": ".x", "merged": "", "replaced": []}',
        '{"unfinished": "..", "merged": "x.parquet", "replaced": []}',
        '{"unfinished": ".x", "merged": "x.parquet", "replaced": ["a\\u0000.parquet"]}',
        '{"unfinished": ".x", "merged": "x.parquet", "replaced": ["notes.txt"]}',
    ],
    ids=range(16),
)
def test_a_note_that_is_no_note_is_named(tmp_path: pathlib.Path, content: str) -> None:
    """Readers and ``compact`` refuse it; nothing has changed, in this folder or another one."""
    journal(tmp_path)
    note = tmp_path / "_merge" / "x.json"
    note.parent.mkdir()
    note.write_text(content, errors="surrogateescape")
    here = names(tmp_path)
    for use in (data_files, compact):
        with pytest.raises(JournalError, match=r"_merge/x\.json is corrupt: it must have the names of"):
            use(tmp_path)
    with pytest.raises(JournalError, match=r"_merge/x\.json is corrupt"):
        module._finish(note)
    assert names(tmp_path) == here


def test_a_file_that_cannot_be_read_is_not_corrupt(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the file and the reason of the system: it was removed, or belongs to another user."""
    journal(tmp_path)
    broken = tmp_path / "part-web-3-c-000000.parquet"
    broken.symlink_to(tmp_path / "none")
    with pytest.raises(JournalError, match=r"part-web-3-c-000000\.parquet cannot be read: No such file or directory$"):
        compact(tmp_path)
    broken.unlink()

    def refuse(path: pathlib.Path, *_arguments: Any, **_more: Any) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(pq, "ParquetFile", refuse)
        with pytest.raises(JournalError, match=r"part-web-1-a-000000\.parquet cannot be read: Permission denied$"):
            compact(tmp_path)
    (tmp_path / "_merge").mkdir()
    (tmp_path / "_merge" / "x.json").write_text("{}")
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", refuse)
        with pytest.raises(JournalError, match=r"_merge cannot be listed: Permission denied$"):
            compact(tmp_path)
    monkeypatch.setattr(pathlib.Path, "read_bytes", refuse)
    with pytest.raises(JournalError, match=r"_merge/x\.json cannot be read: Permission denied$"):
        compact(tmp_path)


class Stopped(BaseException):
    """Stops a compaction, as a kill would: nothing is cleaned up behind it."""


@pytest.mark.slow
def test_a_compaction_can_stop_at_every_step(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each call that changes the journal or flushes it: readers see each row once, and the next run finishes."""
    step = 0
    before = journal(tmp_path / "journal")
    while True:
        path = tmp_path / str(step)
        shutil.copytree(tmp_path / "journal", path)
        calls = 0

        def stop_at(function: Any, last: int = step) -> Any:
            def called(*arguments: Any, **more: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > last:
                    raise Stopped
                return function(*arguments, **more)

            return called

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", stop_at(os.replace))
            patch.setattr(os, "fsync", stop_at(os.fsync))
            for name in ("unlink", "mkdir", "rmdir"):
                patch.setattr(pathlib.Path, name, stop_at(getattr(pathlib.Path, name)))
            try:
                compact(path)
            except Stopped:
                ended = False
            else:
                ended = True
        assert rows(path) == before, step
        compact(path)
        assert rows(path) == before, step
        assert names(path) == MERGED, step
        assert not list(path.rglob("_merge")), step
        if ended:
            break
        step += 1
    assert step > 40


KILLED = textwrap.dedent(
    """
    import os, signal, sys
    from purgatory.journal import compact
    number, name = int(sys.argv[2]), sys.argv[3]
    function = getattr(os, name)

    def called(*arguments, **more):
        global number
        number -= 1
        if number < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **more)

    setattr(os, name, called)
    compact(sys.argv[1])
    """
)


@pytest.mark.parametrize(
    ("name", "number"), [("replace", 0), ("replace", 1), ("unlink", 0), ("unlink", 3), ("fsync", 4)]
)
def test_a_killed_compaction_loses_and_doubles_nothing(tmp_path: pathlib.Path, name: str, number: int) -> None:
    """SIGKILL during a merge: every row is there once, for a reader at that moment and after the next run."""
    before = journal(tmp_path)
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(number), name], cwd=os.getcwd())
    assert ended.returncode == -signal.SIGKILL
    assert rows(tmp_path) == before
    compact(tmp_path)
    assert rows(tmp_path) == before
    assert len(data_files(tmp_path)) == 4


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_merged_file_has_the_mode_of_those_that_it_replaces(
    tmp_path: pathlib.Path, umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the umask of the compaction is: no others can read the rows, and the same ones still can.  The note that
    readers need until the merge is finished has the same mode, and its folder has the mode of the journal's folder."""
    journal(tmp_path)
    for folder in (tmp_path, tmp_path / "date=2026-11-22"):
        folder.chmod(0o2750)
    for number, file in enumerate(data_files(tmp_path)):
        file.chmod(0o644 if number == 0 else 0o640)
    seen: list[int] = []
    finish = module._finish

    def noted(note: pathlib.Path) -> None:
        seen.append(note.stat().st_mode & 0o777)
        assert stat.S_IMODE(note.parent.stat().st_mode) == 0o2750
        finish(note)

    monkeypatch.setattr(module, "_finish", noted)
    chowned: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "chown", lambda _, *owner: chowned.append(owner))
    before = os.umask(umask)
    try:
        compact(tmp_path)
    finally:
        os.umask(before)
    files = data_files(tmp_path)
    assert [file.stat().st_mode & 0o777 for file in files] == [0o640] * 4
    assert seen == [0o640] * 4
    assert set(chowned) == {(-1, files[0].stat().st_gid), (files[0].stat().st_uid, -1)}


@pytest.mark.parametrize(
    ("files", "given", "mode"),
    [
        ([(0o664, 11, 21), (0o640, 11, 21)], (11, 21), 0o640),
        ([(0o664, 11, 22), (0o664, 11, 22)], (11, 20), 0o644),  # this process cannot give the group
        ([(0o640, 11, 22), (0o660, 11, 22)], (11, 20), 0o600),
        ([(0o660, 11, 21), (0o640, 11, 20)], (11, 20), 0o600),  # no group could read both files
        ([(0o640, 11, 21), (0o640, 12, 21)], (10, 21), 0o640),  # and no owner
    ],
)
def test_a_merged_file_can_be_read_by_no_process_that_could_not_read_all_files(
    files: list[tuple[int, int, int]], given: tuple[int, int], mode: int, tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The process has the user 10 and the group 20, and may give a file away, but not to the group 22."""
    owner, chmod = [10, 20], pathlib.Path.chmod
    path = tmp_path / "merged"
    path.touch()
    modes: list[int] = []

    def chown(_: object, user: int, group: int) -> None:
        if group == 22:
            raise PermissionError
        owner[:] = [user if user >= 0 else owner[0], group if group >= 0 else owner[1]]

    def status(mode: int, user: int, group: int) -> Any:
        return SimpleNamespace(st_mode=stat.S_IFREG | mode, st_uid=user, st_gid=group)

    def change(path: pathlib.Path, mode: int) -> None:
        modes.append(mode)
        chmod(path, mode)

    monkeypatch.setattr(os, "chown", chown)
    monkeypatch.setattr(pathlib.Path, "chmod", change)
    monkeypatch.setattr(pathlib.Path, "stat", lambda _: status(0o600, *owner))
    group: list[Any] = [SimpleNamespace(stat=lambda each=each: status(*each)) for each in files]
    module._share(path, group)
    assert (tuple(owner), oct(modes[-1])) == (given, oct(mode))


def test_a_file_system_without_owners_and_modes_can_be_compacted(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merged file then has what the system gives it."""
    before = journal(tmp_path)

    def refuse(*_: object) -> NoReturn:
        raise PermissionError

    monkeypatch.setattr(os, "chown", refuse)
    monkeypatch.setattr(pathlib.Path, "chmod", refuse)
    assert compact(tmp_path).after == 4
    assert rows(tmp_path) == before
