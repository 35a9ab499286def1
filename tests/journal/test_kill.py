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
    from tests.journal.kit import Fetch

    async def main():
        async with Journal(sys.argv[1], rows_per_file=50, interval=0.05) as journal:
            async with Purgatory("fetch", observers=[journal]) as purgatory:
                done = 0
                while True:
                    for _ in range(25):
                        operation = Fetch(30.0)
                        purgatory.try_complete_else_watch(operation, [f"key-{done % 7}"])
                        operation.force_complete()
                        done += 1
                    await asyncio.sleep(0)
                    statistics = journal.statistics()
                    if statistics.files:
                        print(statistics.written, flush=True)

    asyncio.run(main())
    """
)


@pytest.mark.parametrize("acknowledged", [50, 1_000, 3_000])
def test_every_visible_file_of_a_killed_process_reads(tmp_path: pathlib.Path, acknowledged: int) -> None:
    """After ``kill -9``, all rows that were reported as written are in complete files without gaps."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=os.getcwd()
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
    """The next journal in the directory removes partial files of dead processes, and no others."""
    prepare(tmp_path)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    from purgatory.journal.files import new_source

    host = new_source().rsplit("-", 2)[0]
    gone = tmp_path / f".part-{host}-{ended.pid}-18c-000001.tmp"
    alive = tmp_path / f".part-{host}-{os.getpid()}-18c-000001.tmp"
    elsewhere = tmp_path / f".part-other.host-{ended.pid}-18c-000001.tmp"
    for file in (gone, alive, elsewhere):
        file.write_bytes(b"half")
    assert data_files(tmp_path) == []
    prepare(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([alive, elsewhere])
