"""Files of killed processes."""

import ctypes
import os
import pathlib
import sys
import time
from typing import Any, NoReturn

import pytest

pytest.importorskip("pyarrow", reason="the extra 'journal' is not installed")

from purgatory.journal.files import data_files, listed_alike, new_source, prepare, start_of

ALIVE, DEAD, FOREIGN = 4_000_001, 4_000_002, 4_000_003


class Kernel:
    """The three functions of Windows, for one process of each kind."""

    def __init__(self) -> None:
        self.closed: list[int] = []
        self.error = 0

    def OpenProcess(self, access: int, inherit: bool, pid: int) -> int:  # noqa: N802 - the name in Windows
        assert (access, inherit) == (0x1000, False)
        self.error = {ALIVE: 0, DEAD: 87, FOREIGN: 5}.get(pid, 0)
        return 0 if self.error else pid

    def GetLastError(self) -> int:  # noqa: N802
        return self.error

    def GetExitCodeProcess(self, handle: int, status: Any) -> int:  # noqa: N802
        status._obj.value = 259 if handle == ALIVE else 1
        return 1

    def CloseHandle(self, handle: int) -> None:  # noqa: N802
        self.closed.append(handle)


def test_on_windows_no_process_is_sent_a_signal(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, ``os.kill(pid, 0)`` sends Ctrl-C.  Files of processes that exist, of any user, stay."""

    def kill(pid: int, number: int) -> NoReturn:
        raise AssertionError(f"{pid} was sent {number}")

    kernel = Kernel()
    host, _, start = new_source().rsplit("-", 2)
    ended = ALIVE + 10  # its handle can still be opened
    files = {pid: tmp_path / f".part-{host}-{pid}-{start}-0.tmp" for pid in (ALIVE, DEAD, FOREIGN, ended)}
    for file in files.values():
        file.touch()
    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "windll", type("windll", (), {"kernel32": kernel}), raising=False)
    prepare(tmp_path)
    monkeypatch.undo()
    assert sorted(tmp_path.iterdir()) == sorted([files[ALIVE], files[FOREIGN]])
    assert sorted(kernel.closed) == [ALIVE, ended]


def test_a_number_that_no_process_has_is_left_alone(tmp_path: pathlib.Path) -> None:
    """Such a file is not one of this library."""
    host, _, start = new_source().rsplit("-", 2)
    foreign = tmp_path / f".part-{host}-{10**30}-{start}-0.tmp"
    foreign.touch()
    prepare(tmp_path)
    assert foreign.exists()


def test_the_name_of_a_run_has_its_start_time() -> None:
    """A name of another form, as in journals that were made by other programs, has none."""
    before_ms = time.time_ns() // 1_000_000
    start_ms = start_of(new_source())
    assert start_ms is not None
    assert before_ms <= start_ms < before_ms + 60_000
    assert start_of("my-host-7-18bcfe56800") == 0x18BCFE56800
    for source in ("", "a", "host-7-a", "synthetic-3-0", "18bcfe56800", "h-18bcfe56800", "h-7-18bcfe56800-x"):
        assert start_of(source) is None


@pytest.mark.parametrize(
    ("name", "alike"),
    [
        ("part.parquet", True),
        ("date=2026-11-22/part.parquet", True),
        ("_answers.json", True),
        ("_date/part=1.parquet", True),
        ("._x=1.parquet", True),
        ("_date=2026-11-21/part.parquet", False),
        ("date=2026-11-21/_old=1/part.parquet", False),
        ("_part=1.parquet", False),
        ("_metadata_of_it/part.parquet", False),
        ("_common_metadata/part.parquet", False),
        ("_merge/x.json", False),
        ("date=2026-11-21/_merge/x.json", False),
        ("copy._COPYING_/part.parquet", False),
    ],
)
def test_spark_hides_other_names(tmp_path: pathlib.Path, name: str, alike: bool) -> None:
    """It is given the files by name if its own listing of the directory would have others."""
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text('{"unfinished": ".x", "merged": "y.parquet", "replaced": []}')
    assert listed_alike(tmp_path) is alike
    assert [file.name for file in data_files(tmp_path)] == (
        ["part.parquet"] if name.startswith(("part", "date=2026-11-22", "copy")) else []
    )


def test_two_containers_that_start_at_once_have_different_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even with one host name, one process id, and one millisecond: otherwise, they would overwrite each other."""
    monkeypatch.setattr("purgatory.journal.files.time.time_ns", lambda: 1_790_000_000_000_000_000)
    monkeypatch.setattr("purgatory.journal.files._LATEST_START_MS", [0])
    one = new_source()
    monkeypatch.setattr("purgatory.journal.files._LATEST_START_MS", [0])
    other = new_source()
    assert one != other
    assert start_of(one) == start_of(other) == 1_790_000_000_000
