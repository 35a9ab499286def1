"""A process that is killed during a write leaves only readable files."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("pyarrow", reason="the extra 'journal' is not installed")

from purgatory.journal.files import data_files, prepare
from tests.journal.kit import rows

SERVER = textwrap.dedent(
    """
    import asyncio, sys
    from purgatory import Purgatory
    from purgatory.journal import Journal
    from purgatory.testing import VirtualClock
    from tests.journal.kit import Fetch

    async def main():
        clock = VirtualClock() if sys.argv[2:] else None
        options = {"clock": clock, "epoch_ms": 0, "partition_by": sys.argv[2]} if sys.argv[2:] else {}
        async with Journal(sys.argv[1], rows_per_file=50, interval=0.05, **options) as journal:
            async with Purgatory("fetch", observers=[journal], clock=clock) as purgatory:
                done = 0
                while True:
                    for _ in range(25):
                        operation = Fetch(30.0)
                        purgatory.try_complete_else_watch(operation, [f"key-{done % 7}"])
                        operation.force_complete()
                        done += 1
                    await asyncio.sleep(0)
                    if clock is not None:
                        await clock.advance(25_200.0)  # seven hours
                    statistics = journal.statistics()
                    if statistics.files:
                        print(statistics.written, flush=True)
                    while clock is None and done > journal.statistics().written + 500:
                        await asyncio.sleep(0.001)  # leaves the interpreter to the thread that writes

    asyncio.run(main())
    """
)


@pytest.mark.slow
@pytest.mark.parametrize("partition_by", [[], ["date"]])
@pytest.mark.parametrize("acknowledged", [50, 1_000, 3_000])
def test_every_visible_file_of_a_killed_process_reads(
    tmp_path: pathlib.Path, acknowledged: int, partition_by: list[str]
) -> None:
    """After ``kill -9``, all rows that were reported as written are in complete files without gaps."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path), *partition_by], stdout=subprocess.PIPE, text=True, cwd=os.getcwd()
    )
    assert server.stdout is not None
    written = 0
    try:
        for line in server.stdout:
            written = int(line)
            if written >= acknowledged:
                break
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
        server.stdout.close()
    found = [row["op_id"] for row in rows(tmp_path)]
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= written >= acknowledged


def test_what_a_killed_process_left_unfinished_is_cleared_away(tmp_path: pathlib.Path) -> None:
    """The next journal removes partial files of dead processes, also those in folders of dates, and no others.

    A process of a container may have the process id of a dead one: an earlier run with this id is dead too.
    """
    prepare(tmp_path)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    from purgatory.journal.files import new_source

    source = new_source()
    host = source.rsplit("-", 2)[0]
    folder = tmp_path / "date=2026-11-22"
    folder.mkdir()
    (tmp_path / "date=2026-11-23").write_text("not a folder")
    gone = tmp_path / f".part-{host}-{ended.pid}-18c-000001.tmp"
    earlier = tmp_path / f".part-{host}-{os.getpid()}-18c-000001.tmp"
    alive = tmp_path / f".part-{source}-000001.tmp"
    running = tmp_path / f".part-{host}-{os.getppid()}-18c-000001.tmp"
    elsewhere = tmp_path / f".part-other.host-{ended.pid}-18c-000001.tmp"
    for file in (gone, earlier, alive, running, elsewhere):
        file.write_bytes(b"half")
        (folder / file.name).write_bytes(b"half")
    assert data_files(tmp_path) == []
    prepare(tmp_path)
    kept = sorted(file.relative_to(tmp_path) for file in tmp_path.rglob(".part-*"))
    assert kept == sorted(
        pathlib.Path(where, file.name) for where in ("", folder.name) for file in (alive, running, elsewhere)
    )


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_process_that_is_killed_as_it_opens_a_journal_leaves_nothing_for_ever(tmp_path: pathlib.Path) -> None:
    """The file with which it verifies that it can write is removed at the next start, too."""
    killed = """
import os, pathlib, signal, sys
from purgatory.journal import files
files.os.fsync = lambda number: os.kill(os.getpid(), signal.SIGKILL)
files.prepare(pathlib.Path(sys.argv[1]))
"""
    assert subprocess.run([sys.executable, "-c", killed, str(tmp_path)], check=False).returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    prepare(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_process_can_fork_while_a_thread_opens_a_journal() -> None:
    """The thread holds a lock, which no thread of the forked process would release."""
    forks = """
import os, signal, threading
from purgatory.journal import files
opening, going_on, host = threading.Event(), threading.Event(), files._host
def host_when_allowed():
    opening.set()
    going_on.wait(30)
    return host()
files._host = host_when_allowed
threading.Thread(target=files.new_source).start()
opening.wait()
threading.Timer(0.05, going_on.set).start()
pid = os.fork()  # waits until the thread has the name
if pid == 0:
    signal.alarm(10)
    going_on.set()
    files.new_source()
    os._exit(0)
going_on.set()
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", forks], check=False).returncode == 0


def test_a_leftover_that_cannot_be_removed_is_no_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of a date belongs to another user, or another program removes it: the others are cleaned up."""
    from purgatory.journal.files import new_source

    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    name = f".part-{new_source().rsplit('-', 2)[0]}-{ended.pid}-18c-000001.tmp"
    files = [tmp_path / f"date=2026-11-{day}" / name for day in (21, 22, 23)]
    for file in files:
        file.parent.mkdir()
        file.write_bytes(b"half")
    unlink = pathlib.Path.unlink

    def refuse_one(path: pathlib.Path, missing_ok: bool = False) -> None:
        if path == files[1]:
            raise PermissionError("the folder belongs to another user")
        unlink(path, missing_ok)

    monkeypatch.setattr(pathlib.Path, "unlink", refuse_one)
    prepare(tmp_path)
    assert [file for file in files if file.exists()] == [files[1]]


BETWEEN_DATES = textwrap.dedent(
    """
    import asyncio, os, signal, sys
    from purgatory import Purgatory
    from purgatory.journal import Journal
    from purgatory.testing import VirtualClock
    from tests.journal.kit import Fetch

    rename, renamed = os.replace, 0

    def replace(*arguments):
        global renamed
        renamed += 1
        if renamed > int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        rename(*arguments)

    async def main():
        clock = VirtualClock()
        async with Journal(sys.argv[1], clock=clock, epoch_ms=0, partition_by="date") as journal:
            purgatory = Purgatory("fetch", observers=[journal], clock=clock)
            for _ in range(3):
                purgatory.try_complete_else_watch(Fetch(), ["a"])
                await clock.advance(86_400.0)
            os.replace = replace

    asyncio.run(main())
    """
)


@pytest.mark.parametrize("renamed", [0, 1, 2])
def test_a_kill_between_the_files_of_two_dates_leaves_complete_files(tmp_path: pathlib.Path, renamed: int) -> None:
    """The later dates of the batch are missing, as the whole batch without folders; the next journal cleans up."""
    ended = subprocess.run([sys.executable, "-c", BETWEEN_DATES, str(tmp_path), str(renamed)], cwd=os.getcwd())
    assert ended.returncode == -signal.SIGKILL
    assert [row["op_id"] for row in rows(tmp_path)] == list(range(1, renamed + 1))
    assert len(data_files(tmp_path)) == renamed
    assert [file.parent.name for file in tmp_path.rglob(".part-*")] == [f"date=1970-01-0{renamed + 1}"]
    prepare(tmp_path)
    assert list(tmp_path.rglob(".part-*")) == []
    assert len(data_files(tmp_path)) == renamed
