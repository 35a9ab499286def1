"""Files of a journal: how they are named, how one comes to be, how its head is read.

A file is written under a name that begins with a dot, flushed to the disk, and renamed.  Whoever lists the directory
sees whole files only, whatever happens to the writer.
"""

import contextlib
import os
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from .errors import JournalError
from .schema import COLUMNS, SCHEMA_VERSION, VERSION_KEY

__all__ = ["ARROW_SCHEMA", "Head", "check_head", "data_files", "new_source", "prepare", "read_head", "write_file"]

_TYPES: Final = {
    "string": pa.string(),
    "strings": pa.list_(pa.field("element", pa.string(), nullable=False)),
    "int64": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("ms", tz="UTC"),
}
ARROW_SCHEMA: Final = pa.schema(
    [pa.field(column.name, _TYPES[column.type], nullable=column.nullable) for column in COLUMNS],
    metadata={VERSION_KEY: str(SCHEMA_VERSION)},
)
_UNFINISHED: Final = re.compile(r"\.part-(?P<host>.+)-(?P<pid>\d+)-[0-9a-f]+-\d+\.tmp")
_PROBE: Final = b"x" * 65_536


def new_source() -> str:
    """A name for this run of this process: host, process id, start in milliseconds."""
    return f"{_host()}-{os.getpid()}-{time.time_ns() // 1_000_000:x}"


def prepare(directory: Path) -> None:
    """Make the directory, and see for sure that files can be written there.  JournalError if not.

    What a process that is gone left unfinished is removed.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise JournalError(f"the journal {directory} is a file: a journal is a directory") from None
    except OSError as error:
        raise JournalError(f"the journal {directory} cannot be made: {error}") from error
    probe = directory / f".probe-{new_source()}.tmp"
    try:
        _write_through(probe, _PROBE)
    except OSError as error:
        raise JournalError(f"the journal {directory} cannot be written: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
    _remove_unfinished(directory)


def write_file(table: pa.Table, directory: Path, source: str, number: int) -> Path:
    """Write one file; it appears whole or not at all.  OSError if it cannot be written."""
    unfinished = directory / f".part-{source}-{number:06d}.tmp"
    finished = directory / f"part-{source}-{number:06d}.parquet"
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd")
    try:
        _write_through(unfinished, memoryview(buffer.getvalue()))
        os.replace(unfinished, finished)
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    return finished


def data_files(path: Path) -> list[Path]:
    """The files of a journal (a directory, or one file), in the order of their names.  JournalError if there is none.

    As with Spark, what begins with a dot or an underscore does not count.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise JournalError(f"there is no journal at {path}")
    return sorted(
        file
        for file in path.rglob("*.parquet")
        if not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
    )


@dataclass(frozen=True, slots=True)
class Head:
    """What a file says of itself: ``version`` is None where it does not say."""

    path: str
    rows: int
    columns: frozenset[str]
    version: int | None


def read_head(path: str) -> Head:
    """Read the end of a file, where Parquet keeps its head.  JournalError names a file that is corrupt."""
    try:
        with pq.ParquetFile(path) as file:
            metadata = file.metadata
            names = frozenset(file.schema_arrow.names)
            said = (metadata.metadata or {}).get(VERSION_KEY.encode())
            rows = metadata.num_rows
    except (OSError, pa.ArrowException) as error:
        raise JournalError(f"{path} is corrupt: {str(error).splitlines()[0]}") from error
    try:
        version = None if said is None else int(said)
    except ValueError:
        raise JournalError(f"{path} is corrupt: its schema version is {said!r}") from None
    return Head(path, rows, names, version)


def check_head(head: Head) -> str | None:
    """Why the file cannot be read as a journal, or None if it can."""
    if head.version is not None and head.version != SCHEMA_VERSION:
        return (
            f"{head.path} has schema version {head.version}, this release reads version {SCHEMA_VERSION}:"
            f" use the release that wrote it"
        )
    missing = [column.name for column in COLUMNS if column.name not in head.columns]
    if missing:
        return f"{head.path} lacks the columns {', '.join(missing)}: it is not a journal of version {SCHEMA_VERSION}"
    return None


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "_", socket.gethostname()) or "localhost"


def _write_through(path: Path, data: bytes | memoryview) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _remove_unfinished(directory: Path) -> None:
    """Files that a killed process of this machine left behind, never those of one that lives."""
    for file in directory.glob(".part-*.tmp"):
        match = _UNFINISHED.fullmatch(file.name)
        if match is not None and match["host"] == _host() and not _alive(int(match["pid"])):
            file.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
