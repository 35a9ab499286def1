"""The files of a journal: their names, how they are written, and how their footers are read.

A file is written under a name that begins with a dot, flushed to disk, and then renamed.  A listing of the directory
therefore shows only complete files, whatever happens to the writer.

If a journal is partitioned by date, its files are in folders such as ``date=2026-11-22``, as Hive names them.
"""

import contextlib
import json
import os
import re
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .errors import JournalError
from .schema import COLUMNS, SCHEMA_VERSION, VERSION_KEY

__all__ = [
    "ARROW_SCHEMA",
    "NOTES",
    "READ_ERRORS",
    "WRITE_OPTIONS",
    "Footer",
    "MergeNote",
    "check_footer",
    "checked_batches",
    "create_folder",
    "data_files",
    "date_folder",
    "listed_alike",
    "merge_notes",
    "new_source",
    "notes_in",
    "parse_merge_note",
    "prepare",
    "read_error",
    "read_footer",
    "read_merge_note",
    "start_of",
    "write_file",
]

_TYPES: Final = {
    "string": pa.string(),
    "strings": pa.list_(pa.field("element", pa.string(), nullable=False)),
    "int64": pa.int64(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "timestamp": pa.timestamp("ms", tz="UTC"),
}
ARROW_SCHEMA: Final = pa.schema(
    [pa.field(column.name, _TYPES[column.type], nullable=column.nullable) for column in COLUMNS],
    metadata={VERSION_KEY: str(SCHEMA_VERSION)},
)
WRITE_OPTIONS: Final[dict[str, Any]] = {"compression": "zstd", "write_page_checksum": True}
NOTES: Final = "_merge"  # the folder of the notes: no reader lists its files, but Spark reads it by its name
READ_ERRORS: Final = (OSError, pa.ArrowException, UnicodeDecodeError)  # what pyarrow raises for a file
_UNFINISHED: Final = re.compile(r"\.part-(?P<source>(?P<host>.+)-(?P<pid>\d+)-[0-9a-f]+)-\d+\.tmp")
_RANDOM: Final = 4  # bytes at the end of the name of a run
_START: Final = re.compile(r"-\d+-([0-9a-f]{11})(?:[0-9a-f]{8})?\Z")  # 11 digits: from 2004 to 2527
_LATEST_START_MS: Final = [0]  # the latest start time of the sources in this process
_SOURCES: Final[set[str]] = set()  # the sources of this process and of the process from which it was forked
_START_LOCK: Final = threading.Lock()
_HIDDEN_NAME: Final = re.compile(r"\.[^/.\0][^/\0]*")
_DATA_NAME: Final = re.compile(r"[^/\0]+\.parquet")
_NOTE: Final = "it must have the names of a merged file and of the files that it replaces"
_PROBE: Final = b"x" * 65_536
_DATE: Final = "date="
_QUERY_LIMITED_INFORMATION: Final = 0x1000  # these three are from the Windows API
_STILL_ACTIVE: Final = 259
_INVALID_PARAMETER: Final = 87
_DAY_MS: Final = 86_400_000
_EPOCH: Final = date(1970, 1, 1).toordinal()
_FIRST_MS: Final = (date.min.toordinal() - _EPOCH) * _DAY_MS
_LAST_MS: Final = (date.max.toordinal() - _EPOCH + 1) * _DAY_MS - 1


def new_source() -> str:
    """Return a name for this run of this process: host, process id, and start time in milliseconds with random digits.

    All names in a process are different: if a name with this millisecond already exists, the next millisecond is used.
    The random digits distinguish containers that share a host name and a directory and start in the same millisecond.
    """
    with _START_LOCK:
        start_ms = _LATEST_START_MS[0] = max(time.time_ns() // 1_000_000, _LATEST_START_MS[0] + 1)
        source = f"{_host()}-{os.getpid()}-{start_ms:x}{os.urandom(_RANDOM).hex()}"
        _SOURCES.add(source)
    return source


if hasattr(os, "register_at_fork"):  # Windows has no fork()
    os.register_at_fork(
        before=_START_LOCK.acquire, after_in_parent=_START_LOCK.release, after_in_child=_START_LOCK.release
    )


def start_of(source: str) -> int | None:
    """Return the start time in the name of a run, in epoch milliseconds, or None if the name has no such time."""
    start = _START.search(source)
    return None if start is None else int(start[1], 16)


def prepare(directory: Path) -> None:
    """Create the directory and verify that files can be written there.  Raises JournalError if either fails.

    Unfinished files of processes that no longer exist are removed.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise JournalError(f"the journal {directory} must be a directory, got a file") from None
    except OSError as error:
        raise JournalError(f"the journal {directory} cannot be created: {error}") from error
    probe = directory / f".part-{new_source()}-0.tmp"  # the next start removes it if this process is killed
    try:
        _write_through(probe, _PROBE)
    except OSError as error:
        raise JournalError(f"the journal {directory} cannot be written: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
    _remove_unfinished(directory)


def date_folder(epoch_ms: int) -> str:
    """Return the name of the folder for this time: ``date=`` followed by the UTC date, for the years 1 to 9999."""
    day = min(max(_EPOCH + epoch_ms // _DAY_MS, 1), date.max.toordinal())
    return f"{_DATE}{date.fromordinal(day).isoformat()}"


def create_folder(directory: Path, name: str) -> Path:
    """Return the folder of a journal, and create it if it is missing.  Raises OSError if it cannot be created.

    A new folder has the permissions of the journal's directory, so the same processes can write to both.
    """
    folder = directory / name
    try:
        folder.mkdir()
    except FileExistsError:
        return folder
    with contextlib.suppress(OSError):  # not every file system has permissions
        folder.chmod(stat.S_IMODE(directory.stat().st_mode))
    return folder


def write_file(table: pa.Table, directory: Path, source: str, number: int) -> Path:
    """Write one file; it appears whole or not at all.  Raises OSError if it cannot be written."""
    unfinished = directory / f".part-{source}-{number:06d}.tmp"
    finished = directory / f"part-{source}-{number:06d}.parquet"
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, **WRITE_OPTIONS)
    try:
        _write_through(unfinished, memoryview(buffer.getvalue()))
        os.replace(unfinished, finished)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    return finished


def data_files(path: Path) -> list[Path]:
    """Return the files of a journal (a directory or one file), in the order of their names.

    As in Spark, names that begin with a dot or an underscore are skipped, and links to folders are followed.  Files
    that a merged file replaces are skipped, too.  Raises JournalError if there is no such journal, or if it cannot be
    listed.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise JournalError(f"there is no journal at {path}")
    return sorted(_listed(path))


def merge_notes(path: Path) -> list[Path]:
    """Return the notes about merges that have not been finished; see :mod:`purgatory.journal.compaction`."""
    return sorted(note for folder, _ in _folders(path, path) for note in notes_in(folder))


def notes_in(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the notes about merges in this folder.  Raises JournalError if they cannot be listed."""
    notes = Path(folder, NOTES)
    try:
        return sorted(notes / name for name in os.listdir(notes) if name.endswith(".json"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise JournalError(f"{notes} cannot be listed: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class MergeNote:
    """The note about a merge that has not been finished: names of files in its folder."""

    unfinished: str
    merged: str
    replaced: tuple[str, ...]


def read_merge_note(path: Path) -> MergeNote:
    """Read a note.

    Raises JournalError, with the name of the note, if it cannot be read or is corrupt, and FileNotFoundError if it does
    not exist.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {error.strerror}") from error
    return parse_merge_note(str(path), content)


def parse_merge_note(path: str, content: bytes) -> MergeNote:
    """Return the note with this content.  Raises JournalError, with the name of the note, if it is corrupt."""
    try:
        told = json.loads(content.decode("utf-8"))
        note = MergeNote(told["unfinished"], told["merged"], tuple(told["replaced"]))
        sound = _HIDDEN_NAME.fullmatch(note.unfinished) and all(
            map(_DATA_NAME.fullmatch, (note.merged, *note.replaced))
        )
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise JournalError(f"{path} is corrupt: {_NOTE}") from error
    if not sound:
        raise JournalError(f"{path} is corrupt: {_NOTE}")
    return note


def listed_alike(path: Path) -> bool:
    """Return whether Spark's own listing of the directory has the files of :func:`data_files` and no others.

    Spark ignores notes about merges.  Of the names that begin with an underscore, it reads those that contain "=", such
    as a folder that was renamed to ``_date=2026-11-21``, and those that begin like Parquet's summary files.  It hides
    names that end with ``._COPYING_``.
    """
    return not any(
        folder.endswith("._COPYING_") or any(name == NOTES or _is_read_by_spark(name) for name in files)
        for folder, files in _folders(path, path)
    )


def _is_read_by_spark(hidden: str) -> bool:
    return hidden.startswith("_") and ("=" in hidden or hidden.startswith(("_metadata", "_common_metadata")))


def _replaced(folder: str, files: list[str]) -> set[str]:
    """Return the files of a folder that a merged file replaces and that therefore no longer count.

    ``files``: the files that have been listed.  The notes are listed later: if there is no note about two such files
    then, the merge has been finished, and the reader will find that a file has been removed.
    """
    replaced: set[str] = set()
    for path in notes_in(folder):
        try:
            note = read_merge_note(path)
        except FileNotFoundError:  # the merge has been finished since the notes were listed
            continue
        if note.merged in files:
            replaced.update(note.replaced)
    return replaced


def _listed(path: Path) -> Iterator[Path]:
    for folder, files in _folders(path, path):
        replaced = _replaced(folder, files)
        for name in files:
            if name.endswith(".parquet") and not name.startswith((".", "_")) and name not in replaced:
                yield Path(folder, name)


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _folders(
    path: Path, folder: str | Path, above: tuple[tuple[int, int], ...] = ()
) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder that is not hidden, with the names in it that are not folders.

    A link to a folder counts as a folder, as in Spark.  ``above``: the folders that contain this one.  Raises
    JournalError if the folder cannot be listed, or if it contains a link to a folder that contains it: Spark would read
    its files again and again.
    """
    folders, files = [], []
    try:
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in above:
            raise JournalError(f"the journal {path} cannot be listed: {folder} is a link to a folder that contains it")
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith((".", "_")) or not _is_folder(entry):
                    files.append(entry.name)
                else:
                    folders.append(entry.path)
                if entry.name.startswith(_DATE) and entry.is_symlink() and not os.path.exists(entry.path):
                    missing = f"{entry.path} is a link to {os.readlink(entry.path)}, which is missing"
                    raise JournalError(f"the journal {path} cannot be listed: {missing}")
    except OSError as error:
        raise JournalError(f"the journal {path} cannot be listed: {error}") from error
    yield os.fspath(folder), files
    for below in folders:
        yield from _folders(path, below, (*above, (status.st_dev, status.st_ino)))


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a file.  ``version`` is None if the file states no version.

    ``mistyped``: a description of each column that occurs more than once, or whose type differs from the schema of a
    journal.  ``nulls``: the columns that have nulls although a journal has none there.  ``far``: the columns with times
    outside the years 1 to 9999.
    """

    path: str
    rows: int
    columns: frozenset[str]
    version: int | None
    mistyped: tuple[str, ...] = ()
    nulls: tuple[str, ...] = ()
    far: tuple[str, ...] = ()


def read_footer(path: str) -> Footer:
    """Read the footer of a file.  Raises JournalError, with the file's name, if the file is unreadable or corrupt."""
    try:
        with pq.ParquetFile(path) as file:
            metadata = file.metadata
            schema = file.schema_arrow
            columns = frozenset(schema.names)
            stored = (metadata.metadata or {}).get(VERSION_KEY.encode())
            rows = metadata.num_rows
            mistyped = _mistyped(schema)  # reads the texts of the schema, such as a time zone
            nulls, far = ((), ()) if mistyped else (_with_nulls(metadata), _with_far_times(metadata, schema))
    except UnicodeEncodeError as error:
        raise JournalError(f"{path!a} cannot be read: its name is not valid UTF-8") from error
    except READ_ERRORS as error:
        raise read_error(path, error) from error
    try:
        version = None if stored is None else int(stored)
    except ValueError:
        raise JournalError(f"{path} is corrupt: its schema version must be an int, got {stored!r}") from None
    return Footer(path, rows, columns, version, mistyped, nulls, far)


def read_error(path: str | os.PathLike[str], error: Exception) -> JournalError:
    """Return the error to raise for one of :data:`READ_ERRORS`: the system cannot read the file, or it is corrupt."""
    if isinstance(error, OSError) and error.errno is not None:  # an error from the system, not from pyarrow
        return JournalError(f"{path} cannot be read: {os.strerror(error.errno)}")
    return JournalError(f"{path} is corrupt: {str(error).partition(chr(10))[0]}")


def checked_batches(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a file, whose footer promises this number of rows.

    Raises ArrowInvalid if there are more or fewer rows, or if a value is missing from its dictionary.  The checksum of
    a page does not cover its header, and if that is damaged, pyarrow may read other rows without an error.
    """
    found = 0
    for batch in batches:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pa.types.is_dictionary(column.type):
                indices, values = pc.min_max(column.indices).as_py(), len(column.dictionary)
                if indices["max"] is not None and not 0 <= indices["min"] <= indices["max"] < values:
                    raise pa.ArrowInvalid(f"the indices of {name} must be 0 to {values - 1}, got {indices}")
        found += batch.num_rows
        yield batch
    if found != rows:
        raise pa.ArrowInvalid(f"it must have {rows} rows, got {found}")


def check_footer(footer: Footer) -> str | None:
    """Return why the file cannot be read as a journal, or None if it can."""
    if footer.version is not None and footer.version != SCHEMA_VERSION:
        return (
            f"{footer.path} has schema version {footer.version}, but this release reads version {SCHEMA_VERSION}:"
            f" use the release that wrote it"
        )
    missing = [column.name for column in COLUMNS if column.name not in footer.columns and not column.added]
    if missing:
        return f"{footer.path} lacks the columns {', '.join(missing)}: it is not a journal of version {SCHEMA_VERSION}"
    if footer.mistyped:
        return f"{footer.path} has other columns, {'; '.join(footer.mistyped)}: it is not a journal of this version"
    if footer.nulls:
        return f"{footer.path} has nulls in the columns {', '.join(footer.nulls)}: it is not a journal"
    return None


def _mistyped(schema: pa.Schema) -> tuple[str, ...]:
    expected = {column.name: column.type for column in COLUMNS}
    found = [field for field in schema if field.name in expected]
    repeated = [name for name in expected if schema.names.count(name) > 1]
    return (
        *(f"{name} must occur once, got {schema.names.count(name)}" for name in repeated),
        *(
            f"{field.name} is {field.type}, must be {expected[field.name]}"
            for field in found
            if not _ACCEPTED[expected[field.name]](field.type)
        ),
    )


def _with_nulls(metadata: pq.FileMetaData) -> tuple[str, ...]:
    required = [column.name for column in COLUMNS if not column.nullable]
    return tuple(
        name for name in required if any(s.has_null_count and s.null_count for s in _statistics(metadata, name))
    )


def _with_far_times(metadata: pq.FileMetaData, schema: pa.Schema) -> tuple[str, ...]:
    def is_far(name: str, statistics: Any) -> bool:
        per_ms = 1000 if schema.field(name).type.unit == "us" else 1
        first_ms, last_ms = statistics.min_raw // per_ms, statistics.max_raw // per_ms  # a date would raise an error
        return bool(first_ms < _FIRST_MS or last_ms > _LAST_MS)

    times = [column.name for column in COLUMNS if column.type == "timestamp"]
    return tuple(name for name in times if any(s.has_min_max and is_far(name, s) for s in _statistics(metadata, name)))


def _statistics(metadata: pq.FileMetaData, name: str) -> Iterator[Any]:
    """Yield the statistics of a column in each row group that has them."""
    index = {metadata.schema.column(number).path: number for number in range(metadata.num_columns)}.get(name)
    if index is not None:
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        yield from (group.column(index).statistics for group in groups if group.column(index).is_stats_set)


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_texts(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _is_text(kind.value_type)


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.tz is not None and kind.unit in ("ms", "us")


# A program that rewrites a journal may choose another width of the same type.
_ACCEPTED: Final[dict[str, Callable[[pa.DataType], bool]]] = {
    "string": _is_text,
    "strings": _is_texts,
    "int64": lambda kind: bool(pa.types.is_signed_integer(kind)),
    "double": lambda kind: kind in (pa.float32(), pa.float64()),
    "bool": lambda kind: bool(pa.types.is_boolean(kind)),
    "timestamp": _is_time,
}


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "_", socket.gethostname()) or "localhost"


def _write_through(path: Path, data: bytes | memoryview) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _remove_unfinished(directory: Path) -> None:
    """Remove the files that a killed process on this machine left behind, but never a running process's files."""
    for folder in (directory, *directory.glob(f"{_DATE}*")):
        with contextlib.suppress(OSError):  # another program may have removed the folder, or may own it
            for file in folder.glob(".part-*.tmp"):
                match = _UNFINISHED.fullmatch(file.name)
                if match is not None and match["host"] == _host() and not _alive(match["source"], int(match["pid"])):
                    file.unlink(missing_ok=True)


def _alive(source: str, pid: int) -> bool:
    if pid == os.getpid():  # in a container, the killed server and the next one may both have process id 1
        return source in _SOURCES
    if sys.platform == "win32":
        return _alive_on_windows(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's process, or a number that no process has: not a file of ours
        return True
    return True


def _alive_on_windows(pid: int) -> bool:
    """Return whether the process exists.  On Windows, ``os.kill(pid, 0)`` would send it Ctrl-C."""
    import ctypes

    kernel = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]  # exists only on Windows
    handle = kernel.OpenProcess(_QUERY_LIMITED_INFORMATION, False, pid)
    if not handle:
        return bool(kernel.GetLastError() != _INVALID_PARAMETER)  # another error: the process belongs to another user
    try:
        status = ctypes.c_ulong()
        known = kernel.GetExitCodeProcess(handle, ctypes.byref(status))
        return not known or status.value == _STILL_ACTIVE
    finally:
        kernel.CloseHandle(handle)
