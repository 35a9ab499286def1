"""Merge many small files of a journal into a few large ones.

No row is lost or duplicated, no matter when the process is killed.  The steps for each group of files:

1.  The merged file is written under a name that begins with a dot and is flushed to disk.  No reader sees it.
2.  A note with the names of the merged file and of the files that it replaces is written in one step, to the folder
    ``_merge``.  Spark does not list such a folder as a part of the journal, but reads it if it is given its name.
3.  The merged file is renamed to its visible name.  **From this moment on, the merged file counts**: while the note
    exists, :func:`~purgatory.journal.files.data_files` leaves out the files that the merged file replaces.
4.  The replaced files are removed, and then the note, and the folder if it is empty.

The next compaction finishes or undoes one that was killed: if the merged file is visible, the compaction performs step
4; if not, it removes the note and the unfinished file.  If a reader ignores the notes, as other programs do, it sees
the merged rows twice between steps 3 and 4; after a kill, it sees them twice until the next compaction.

Only complete files are merged, so a server may write to the journal at the same time.  Files from different runs or
different folders are not merged: a folder ``date=2026-11-22`` keeps its rows, and the footers keep the time bounds.
"""

import contextlib
import json
import operator
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from .errors import JournalError
from .files import (
    ARROW_SCHEMA,
    NOTES,
    READ_ERRORS,
    WRITE_OPTIONS,
    check_footer,
    checked_batches,
    data_files,
    merge_notes,
    notes_in,
    read_error,
    read_footer,
    read_merge_note,
)
from .schema import COLUMNS

__all__ = ["Compacted", "compact"]

_ROW_GROUP: Final = 128 * 1024
_HELD: Final = 1_000  # tables; even a table of a single row takes 16 kB
_TO: Final = re.compile(r"(-to-[^-]+)+$")  # earlier releases appended such a suffix with every run
_LATER: Final = frozenset(column.name for column in COLUMNS if column.added)


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compaction: the number of files before and after it, and the number of rows in merged files."""

    before: int
    after: int
    rows: int


def compact(journal: str | os.PathLike[str], rows_per_file: int = 1_000_000) -> Compacted:
    """Merge those files of a journal that have at most half of ``rows_per_file`` rows.

    Raises JournalError if the journal cannot be read, or if the footer of a file or a note is corrupt; in that case,
    nothing is changed.  Raises JournalError if the rows of a file turn out to be damaged while they are merged; in that
    case, this file is unchanged, and other files may have been merged.  Raises JournalError if another process is
    compacting a folder of the journal, or if the system has no POSIX locks.  Raises ValueError if ``rows_per_file`` is
    not positive.  Raises OSError if the disk is full or cannot be written to; in that case, the journal still contains
    every row exactly once.
    """
    if rows_per_file < 1:
        raise ValueError(f"rows_per_file must be at least 1, got {rows_per_file}")
    directory = Path(journal).absolute()  # pyarrow mistakes a relative path with a colon for a URI
    if directory.is_file():
        raise JournalError(f"the journal {directory} must be a directory, got a file")
    files = data_files(directory)
    for file in files:
        if (wrong := check_footer(read_footer(str(file)))) is not None:
            raise JournalError(wrong)
    folders = {file.parent for file in files} | {note.parent.parent for note in merge_notes(directory)}
    rows = sum(_compact_folder(folder, rows_per_file) for folder in sorted(folders))
    return Compacted(len(files), len(data_files(directory)), rows)


def _compact_folder(folder: Path, rows_per_file: int) -> int:
    notes = folder / NOTES
    with _exclusive(folder):
        try:
            for note in notes_in(folder):
                _finish(note)
            for unfinished in (*folder.glob(".part-*.merge"), *notes.glob(".*.json.tmp")):
                unfinished.unlink()
            files = [file for file in data_files(folder) if file.parent == folder]
            return sum(_merge(group) for group in _groups(files, rows_per_file))
        finally:
            with contextlib.suppress(OSError):  # it does not exist, or it is not empty
                notes.rmdir()


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder.  The system releases the lock if the process is killed."""
    try:
        import fcntl
    except ImportError:
        raise JournalError("a compaction needs Linux, macOS, or another POSIX system") from None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalError(f"the journal {folder} is being compacted by another process") from None
        except OSError as error:
            raise JournalError(f"the journal {folder} cannot be locked for a compaction: {error.strerror}") from error
        yield
    finally:
        os.close(descriptor)


def _groups(files: list[Path], rows_per_file: int) -> list[list[Path]]:
    """Return groups of at least two small files from the same run."""
    groups: list[list[Path]] = []
    held: dict[str, tuple[list[Path], int]] = {}
    for file in files:
        number, source = pq.read_metadata(file).num_rows, _source(file)
        if source is None or number * 2 > rows_per_file:
            continue
        group, rows = held.get(source, ([], 0))
        if rows + number > rows_per_file:
            group, rows = [], 0
        if not group:
            groups.append(group)
        group.append(file)
        held[source] = group, rows + number
    return [group for group in groups if len(group) > 1]


def _source(file: Path) -> str | None:
    """Return the run that wrote all rows of a file; None if several runs did, or if a merge would lose columns."""
    metadata = pq.read_metadata(file)
    schema = metadata.schema.to_arrow_schema()
    if not _is_ours(schema) or not metadata.num_rows:
        return None
    column = schema.names.index("source")
    sources: set[str | None] = set()
    for number in range(metadata.num_row_groups):
        statistics = metadata.row_group(number).column(column).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        try:
            sources |= {statistics.min, statistics.max}
        except UnicodeDecodeError as error:
            raise read_error(file, error) from error
    return sources.pop() if len(sources) == 1 else None


def _is_ours(schema: pa.Schema) -> bool:
    wanted = [field for field in ARROW_SCHEMA if field.name in schema.names or field.name not in _LATER]
    found = [(field.name, field.type) for field in schema]
    return found == [(field.name, field.type) for field in wanted]


def _merge(group: list[Path]) -> int:
    folder = group[0].parent
    name = _name(group)
    unfinished, merged = folder / f".{name}.merge", folder / f"{name}.parquet"
    if merged.exists():
        raise JournalError(f"the journal {folder} already contains {merged.name}, a file of the same rows")
    note = folder / NOTES / f"{name}.json"
    rows = _write(group, unfinished)
    _write_note(note, unfinished, merged, group)
    os.replace(unfinished, merged)
    _flush(folder)
    _finish(note)
    return rows


def _name(group: list[Path]) -> str:
    """Return the name of the merged file: the name of the first file, "-to-", and the number of the last file.

    The first file may itself be a merged one; names must not grow with every run, because file systems limit their
    length.
    """
    first, last = group[0].stem, group[-1].stem.rpartition("-")[2]
    name = f"{_TO.sub('', first)}-to-{last}"
    taken = (group[0].parent / f"{name}.parquet").exists()  # other programs may have used names of this form
    return f"{first}-to-{last}" if taken else name


def _write(group: list[Path], unfinished: Path) -> int:
    expected: int = sum(pq.read_metadata(file).num_rows for file in group)
    unfinished.unlink(missing_ok=True)
    os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        with pq.ParquetWriter(unfinished, ARROW_SCHEMA, **WRITE_OPTIONS) as writer:
            for table in _pieces(group):
                writer.write_table(table, row_group_size=_ROW_GROUP)
        written = pq.read_metadata(unfinished).num_rows
        if written != expected:
            raise JournalError(f"{unfinished} must have {expected} rows, got {written}: a file has changed")
        _share(unfinished, group)
        _flush(unfinished)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return expected


def _share(path: Path, group: list[Path]) -> None:
    """Give a new file the owner of the files that it replaces, if the system allows that, and their common mode.

    Apart from this process, no process can read the new file that could not read all of those files, whatever the umask
    of this process.  If the files have different owners, this process stays the owner.  If they have different groups,
    or if the system does not allow their group, the group that the file has instead gets no more than all others.
    """
    statuses = [file.stat() for file in group]
    owners, groups = {status.st_uid for status in statuses}, {status.st_gid for status in statuses}
    # The group comes first, because only the owner can give a group.
    if len(groups) == 1:
        with contextlib.suppress(OSError):
            os.chown(path, -1, statuses[0].st_gid)
    if len(owners) == 1:
        with contextlib.suppress(OSError):
            os.chown(path, statuses[0].st_uid, -1)
    mode = reduce(operator.and_, (stat.S_IMODE(status.st_mode) for status in statuses))
    if groups != {path.stat().st_gid}:
        mode &= ~stat.S_IRWXG | (mode & stat.S_IRWXO) << 3
    with contextlib.suppress(OSError):  # not every file system has permissions
        path.chmod(mode)


def _pieces(group: list[Path]) -> Iterator[pa.Table]:
    """Yield the rows of the files in order, in tables of about one row group."""
    held: list[pa.Table] = []
    rows = 0
    for file in group:
        try:
            with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
                for batch in checked_batches(parquet.iter_batches(_ROW_GROUP), parquet.metadata.num_rows):
                    held.append(_with_all_columns(pa.Table.from_batches([batch])))
                    rows += batch.num_rows
                    if rows >= _ROW_GROUP:
                        yield pa.concat_tables(held)
                        held, rows = [], 0
                    elif len(held) == _HELD:
                        held = [pa.concat_tables(held).combine_chunks()]
        except READ_ERRORS as error:
            raise read_error(file, error) from error
    if held:
        yield pa.concat_tables(held)


def _with_all_columns(table: pa.Table) -> pa.Table:
    columns = [
        table[field.name] if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
        for field in ARROW_SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=ARROW_SCHEMA)


def _write_note(note: Path, unfinished: Path, merged: Path, group: list[Path]) -> None:
    text = json.dumps({"unfinished": unfinished.name, "merged": merged.name, "replaced": [file.name for file in group]})
    if not note.parent.is_dir():
        note.parent.mkdir()
        _share(note.parent, [unfinished.parent])
        _flush(unfinished.parent)
    beside = note.with_name(f".{note.name}.tmp")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    _share(beside, group)
    os.replace(beside, note)
    _flush(note.parent)


def _finish(note: Path) -> None:
    """Remove the files that a merged file replaces, or undo the merge if the merged file is not visible."""
    told, folder = read_merge_note(note), note.parent.parent
    if (folder / told.merged).exists():
        for name in told.replaced:
            (folder / name).unlink(missing_ok=True)
        _flush(folder)
    else:
        (folder / told.unfinished).unlink(missing_ok=True)
    note.unlink()
    _flush(note.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
