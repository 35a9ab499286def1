"""A journal as a DataFrame.  Every file is checked first.

For a bad file, Spark reports only that some task failed.  The footer of each file is therefore read before Spark starts
(the reading takes milliseconds), and an error names the file.  Damage to the rows themselves is detected only while
they are read: :func:`corrupt_file` finds the file's name in Spark's error, and :func:`readable_files` reads all rows of
all files.

A compaction may remove a file between the listing and the reading.  Such a file is not damaged, and its rows are in a
merged file: the files are listed again, and the work is repeated once.  A compaction keeps the number of rows.  If
there are fewer rows the second time, the file was deleted rather than merged, and that is an error.

If only Spark can list the files, Spark also reads the notes about merges that have not been finished.
"""

import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from purgatory.journal import JournalError
from purgatory.journal.files import (
    NOTES,
    check_footer,
    checked_batches,
    data_files,
    listed_alike,
    parse_merge_note,
    read_footer,
)
from purgatory.journal.schema import COLUMNS
from purgatory.pipeline.locations import TABLE, TABLE_MARK, is_uri, listed_file_to_read, local_path, location_to_read
from purgatory.pipeline.spark.session import is_connect

__all__ = [
    "SPARK_SCHEMA",
    "CheckedFiles",
    "FileRemoved",
    "OpenJournal",
    "check_files",
    "corrupt_file",
    "first_reason",
    "open_journal",
    "read_journal",
    "readable_files",
    "visible_files",
]

T = TypeVar("T")
_TYPES: Final[dict[str, DataType]] = {
    "string": StringType(),
    "strings": ArrayType(StringType()),
    "int64": LongType(),
    "double": DoubleType(),
    "bool": BooleanType(),
    "timestamp": TimestampType(),
}
SPARK_SCHEMA: Final = StructType([StructField(column.name, _TYPES[column.type]) for column in COLUMNS])
_FAILED_READS: Final = (
    re.compile(r"FAILED_READ_FILE (?P<file>[^\s{]+): "),  # read_batches; the traceback also contains its source
    re.compile(r"Encountered error while reading file (?P<file>\S+?|.+?\.parquet)\.\s"),
    re.compile(r"(?P<file>(?:[A-Za-z][A-Za-z0-9+.-]+:)?/[^\s'\"]*?\.parquet)"),
)
_UNREAD: Final = re.compile(r"CANNOT_READ_FILE (?P<file>[^\s{]+): (?P<reason>.*)")  # likewise
_SCHEME: Final = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]+:(?://[^/]*)?")
_THREADS: Final = 8


class FileRemoved(JournalError):
    """A file of the journal was removed after it had been listed.

    ``rows``: the number of rows when the journal was opened, or 0 if it is unknown.
    """

    def __init__(self, file: str) -> None:
        self.rows = 0
        super().__init__(f"{file} was removed while the journal was read; run the command again")


@dataclass(frozen=True)
class OpenJournal:
    """A journal that can be read.

    ``files`` and ``rows`` (the number of rows) are None if only Spark can list the files (``hdfs:``, ``table:``).
    ``paths``: what Spark reads.  ``skipped``: for each skipped file, the reason.
    """

    spark: SparkSession
    paths: tuple[str, ...]
    files: tuple[str, ...] | None
    rows: int | None
    skipped: tuple[str, ...]

    @cached_property
    def dataframe(self) -> DataFrame:
        """The rows, as a DataFrame.

        Spark lists the files at the first access, so a pass whose tasks read the files themselves does not wait for
        that listing.  Raises FileRemoved if a file has been removed by then.
        """
        if self.paths[0].startswith(TABLE):
            return _of_table(self.spark, self.paths[0])
        for file in self.files or ():  # a single file: a directory's hidden files are not listed
            if (name := os.path.basename(file)).startswith((".", "_")):
                raise JournalError(
                    f"{file} must have a name that does not begin with {name[0]!r}: Spark does not read it"
                )
        rows = self._read(map(location_to_read, self.paths))
        if self.files is None:
            listed = rows.inputFiles()
            visible = visible_files(self.paths[0], listed)
            if listed and not visible:
                raise JournalError(f"the journal {self.paths[0]} is empty: {_reason_for_no_rows(0, 0)}")
            counted = _without_replaced(self.spark, visible)
            if len(counted) == len(listed):
                return rows
            try:
                rows = self._read(map(listed_file_to_read, counted))
                _ = rows.columns  # with Spark Connect, the server looks for the files only now
            except AnalysisException as error:
                if not _is_missing(error):
                    raise
                raise FileRemoved(f"a file of the journal {self.paths[0]}") from error
            return rows
        if self.paths != self.files and not listed_alike(Path(self.paths[0])):  # a merge has begun since the check
            rows = self._read(map(location_to_read, self.files))
        for file in self.files:  # Spark omits a file without an error if it is removed during the listing
            if not os.path.exists(file):
                raise FileRemoved(file)
        return rows

    def _read(self, paths: Iterable[str]) -> DataFrame:
        reader = self.spark.read.schema(SPARK_SCHEMA).option("recursiveFileLookup", "true")
        reader = reader.option("ignoreMissingFiles", "false")  # the session may have another setting
        reader = reader.option("parquet.page.verify-checksum.enabled", "true")
        if self.paths != self.files:  # a directory
            reader = reader.option("pathGlobFilter", "*.parquet")
        return reader.parquet(*paths)


@dataclass(frozen=True, slots=True)
class CheckedFiles:
    """The ``readable`` files, the number of ``rows`` in them, and a reason for each ``unreadable`` file."""

    directory: str | None
    readable: tuple[str, ...]
    rows: int
    unreadable: tuple[str, ...]


def open_journal(spark: SparkSession, path: str, *, skip_corrupt: bool = False) -> OpenJournal:
    """Check every file, and return the journal.  ``table:NAME`` is a table or a view in Spark's catalog.

    Raises JournalError, with the name of the file, if a file is corrupt, has another schema version, or lacks columns.
    With ``skip_corrupt``, such a file is skipped.  Raises JournalError if there are no rows.
    """
    # In a Spark Connect session, a path is a path on the server.
    checked = None if is_connect(spark) else check_files(path, skip_corrupt=skip_corrupt)
    if checked is None:
        opened = OpenJournal(spark, (path,), None, None, ())
        try:
            _ = opened.dataframe.columns  # with Spark Connect, this is the first request to the server
        except (PySparkException, Py4JJavaError) as error:
            raise JournalError(f"the journal {path} cannot be listed: {first_reason(error)}") from error
        return opened
    # Spark lists a directory once, but handles thousands of file names one by one.
    paths = (checked.directory,) if checked.directory is not None and not checked.unreadable else checked.readable
    return OpenJournal(spark, paths, checked.readable, checked.rows, checked.unreadable)


def check_files(path: str, *, skip_corrupt: bool = False) -> CheckedFiles | None:
    """Read the footer of every file, without Spark.  Return None if only Spark can list the files.

    Raises JournalError as :func:`open_journal` does.  If a file is removed in the meantime, the files are listed again;
    raises FileRemoved if this happens again.
    """
    if path.startswith(TABLE):
        return None
    directory = local_path(path)
    if directory is None:
        return None
    return _twice(lambda _: _check_files(path, directory, skip_corrupt))


def _twice(work: Callable[[FileRemoved | None], T]) -> T:
    """Return the result of ``work``, which is repeated once, with the error, if a file has been removed."""
    try:
        return work(None)
    except FileRemoved as error:
        removed = error
    return work(removed)


def _check_files(path: str, directory: Path, skip_corrupt: bool) -> CheckedFiles:
    files = data_files(directory)
    with ThreadPoolExecutor(_THREADS) as pool:
        results = list(pool.map(_check_file, map(str, files)))
    unreadable = tuple(str(result) for result in results if not isinstance(result, int))
    if unreadable and not skip_corrupt:
        foreign = next((result for result in results if isinstance(result, _Foreign)), None)
        more = f" (and {len(unreadable) - 1} more files)" if len(unreadable) > 1 else ""
        if foreign is not None and (directory / TABLE_MARK).is_file():
            quoted = str(directory).replace("`", "``")
            raise JournalError(
                f"the journal {path} is a table that a load has written: as a journal, it is {TABLE}parquet.`{quoted}`"
            )
        if foreign is not None:  # --skip-corrupt would also skip damaged files, which is a different matter
            raise JournalError(f"{foreign}{more}; move it out of the journal's directory")
        raise JournalError(f"{unreadable[0]}{more}; --skip-corrupt skips such files")
    readable = tuple(str(file) for file, result in zip(files, results, strict=True) if isinstance(result, int))
    rows = sum(result for result in results if isinstance(result, int))
    if not rows:
        raise JournalError(f"the journal {path} is empty: {_reason_for_no_rows(len(files), len(unreadable))}")
    as_it_is = directory.is_dir() and listed_alike(directory)
    return CheckedFiles(str(directory) if as_it_is else None, readable, rows, unreadable)


def read_journal(
    spark: SparkSession, path: str, work: Callable[[OpenJournal], T], *, skip_corrupt: bool = False
) -> tuple[T, OpenJournal]:
    """Open a journal, and return the result of ``work``.

    Raises JournalError if a file turns out to be damaged.  With ``skip_corrupt``, the work is repeated without such
    files.  If a file is removed in the meantime, the journal is opened again, and the work is repeated; raises
    FileRemoved if this happens again, or if the journal has fewer rows than before.
    """
    return _twice(lambda removed: _read_journal(spark, path, work, skip_corrupt, removed))


def _read_journal(
    spark: SparkSession,
    path: str,
    work: Callable[[OpenJournal], T],
    skip_corrupt: bool,
    removed: FileRemoved | None,
) -> tuple[T, OpenJournal]:
    """Open a journal, and return the result of ``work``.  ``removed``: the error of the first attempt."""
    opened = open_journal(spark, path, skip_corrupt=skip_corrupt)
    if removed is not None and opened.rows is not None and opened.rows < removed.rows:  # no compaction has done that
        raise removed
    try:
        return _work_on(opened, work, skip_corrupt)
    except FileRemoved as error:
        error.rows = opened.rows or 0
        raise


def _work_on(opened: OpenJournal, work: Callable[[OpenJournal], T], skip_corrupt: bool) -> tuple[T, OpenJournal]:
    try:
        return _result(work, opened), opened
    except (PySparkException, Py4JJavaError, OSError) as error:  # OSError: read_batches in this process
        _raise_unread(error)
        file = corrupt_file(error)
        if file is None:
            raise
        if "PARQUET_COLUMN_DATA_TYPE_MISMATCH" in str(error):  # the footer of the file was not checked
            raise JournalError(f"{file} has a column of another type: it is not a journal of this version") from error
        if "FILE_NOT_EXIST" in str(error):  # otherwise, it would have been a FileRemoved
            raise JournalError(
                f"{file} does not exist on a worker of Spark: move the journal to a disk that all workers share"
            ) from error
        if opened.files is None:  # --skip-corrupt does not apply
            raise JournalError(f"{file} is corrupt: its rows cannot be read; move it out of the journal") from error
        if not skip_corrupt:
            raise JournalError(f"{file} is corrupt: its rows cannot be read; --skip-corrupt skips it") from error
        left = readable_files(opened.files)
        if not left.unreadable or not left.readable:
            raise JournalError(f"{file} is corrupt: its rows cannot be read, and no other rows are left") from error
        skipped = (*opened.skipped, *left.unreadable)
        again = OpenJournal(opened.spark, left.readable, left.readable, left.rows, skipped)
        return _result(work, again), again


def _result(work: Callable[[OpenJournal], T], opened: OpenJournal) -> T:
    """Return the result of ``work``.  Raises FileRemoved if it fails because a file has been removed."""
    try:
        return work(opened)
    except (PySparkException, Py4JJavaError, OSError) as error:
        removed = _removed_file(error, opened.files)
        if removed is None:
            raise
        raise FileRemoved(removed) from error


def _removed_file(error: BaseException, files: Iterable[str] | None) -> str | None:
    """Return a file that has been removed, or None if that does not explain the error."""
    text, named = str(error), corrupt_file(error)
    if "FILE_NOT_EXIST" in text and named is not None and (files is None or not os.path.exists(named)):
        return named  # Spark may have listed it later than this process
    if files is None or (named is None and "PATH_NOT_FOUND" not in text and not isinstance(error, FileNotFoundError)):
        return None
    return next((file for file in files if not os.path.exists(file)), None)


def _raise_unread(error: Exception) -> None:
    """Raise JournalError if a worker could not read a file, but not because of the file."""
    match = _UNREAD.search(str(error))
    if match is not None:
        raise JournalError(f"{unquote(match['file'])} cannot be read: {match['reason'].strip()}") from error


def corrupt_file(error: BaseException) -> str | None:
    """Return the file that Spark could not read, according to the error, or None if the error has another cause."""
    text = str(error)
    if "FAILED_READ_FILE" not in text and "Parquet" not in text and "parquet" not in text:
        return None
    match = next(filter(None, (pattern.search(text) for pattern in _FAILED_READS)), None)
    if match is None:
        return None
    return unquote(match["file"] if is_uri(match["file"]) else urlsplit(match["file"]).path)


def readable_files(files: Iterable[str]) -> CheckedFiles:
    """Read every row.  Raises FileRemoved if a file has been removed."""
    names = list(files)
    with ThreadPoolExecutor(_THREADS) as pool:
        results = list(pool.map(_check_rows, names))
    readable = tuple(name for name, result in zip(names, results, strict=True) if isinstance(result, int))
    rows = sum(result for result in results if isinstance(result, int))
    return CheckedFiles(None, readable, rows, tuple(result for result in results if isinstance(result, str)))


def visible_files(location: str, files: Iterable[str]) -> list[str]:
    """Return the files that Spark has found at a location, without those that begin with a dot or an underscore, or are
    in such a folder.

    Only names below the location count.  If the location is relative, the common folder of all files is taken for it.
    """
    found = {file: _parts(file) for file in files}
    path = _SCHEME.sub("", location)
    if path and not path.startswith("/"):
        path = posixpath.commonpath([posixpath.dirname(_SCHEME.sub("", file)) for file in found] or "/")
    depth = len(_parts(path))
    return [file for file, parts in found.items() if not any(part.startswith((".", "_")) for part in parts[depth:])]


def _without_replaced(spark: SparkSession, files: Sequence[str]) -> list[str]:
    """Return the files without those that a merged file replaces, as :func:`~purgatory.journal.files.data_files` does.

    ``files``: all visible files, as Spark has listed them.  The notes are read later; if a merge has been finished in
    the meantime, a file has been removed, and Spark will fail to read it.
    """
    found = {tuple(_parts(unquote(file))): file for file in files}
    folders, replaced = {path[:-1] for path in found}, set[tuple[str, ...]]()
    for location in _locations_of_notes(files):
        reader = spark.read.format("binaryFile").option("pathGlobFilter", "*.json").option("ignoreMissingFiles", "true")
        try:
            notes = reader.load(location).select("path", "content").collect()
        except AnalysisException as error:
            if not _is_missing(error):
                raise
            continue
        for note in notes:
            folder = tuple(_parts(note.path)[:-2])
            if folder not in folders:  # a hidden one
                continue
            told = parse_merge_note(note.path, bytes(note.content))
            if (*folder, told.merged) in found:
                replaced.update((*folder, name) for name in told.replaced)
    return [file for path, file in found.items() if path not in replaced]


def _is_missing(error: AnalysisException) -> bool:
    return "PATH_NOT_FOUND" in str(error)


def _locations_of_notes(files: Iterable[str]) -> Iterator[str]:
    """Yield where Spark finds the notes about these files.  A folder with a single file needs none.

    A pattern finds the notes of all folders of dates at once.  Hadoop refuses a pattern with a colon.
    """
    beside: dict[str, list[str]] = {}
    for folder, number in Counter(map(posixpath.dirname, files)).items():
        if number > 1:
            beside.setdefault(posixpath.dirname(folder), []).append(folder)
    for parent, folders in beside.items():
        if len(folders) > 1 and not any(":" in part for folder in folders for part in _parts(folder)):
            yield f"{listed_file_to_read(parent)}/*/{NOTES}"
        else:
            yield from (f"{listed_file_to_read(folder)}/{NOTES}" for folder in folders)


def _parts(location: str) -> list[str]:
    """Return the names in the path of a location."""
    return [part for part in _SCHEME.sub("", location).split("/") if part]


class _Foreign(str):
    """The reason that an intact file is not part of a journal."""

    __slots__ = ()


def _check_file(file: str) -> int | str:
    """Return the number of rows in a file, or the reason that the file cannot be read.

    Raises FileRemoved if the file has been removed.
    """
    try:
        footer = read_footer(file)
    except JournalError as error:
        if isinstance(error.__cause__, FileNotFoundError) and not os.path.lexists(file):  # not a link without a target
            raise FileRemoved(file) from error
        return str(error)
    wrong = check_footer(footer)
    if wrong is None and footer.far:
        wrong = f"{file} has times outside the years 1 to 9999 in the columns {', '.join(footer.far)}"
    return footer.rows if wrong is None else _Foreign(wrong)


def _check_rows(file: str) -> int | str:
    """Return the number of rows in a file, or the reason that they cannot be read."""
    try:
        with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
            rows = int(parquet.metadata.num_rows)
            for batch in checked_batches(parquet.iter_batches(), rows):
                batch.validate(full=True)
            return rows
    except FileNotFoundError as error:
        raise FileRemoved(file) from error
    except (OSError, pa.ArrowException) as error:
        return f"{file} is corrupt: {_first_line(error)}"


def _of_table(spark: SparkSession, path: str) -> DataFrame:
    """Return a table from the catalog.  Raises JournalError if it lacks columns, except those that were added later."""
    rows = spark.table(path.removeprefix(TABLE))
    missing = [column.name for column in COLUMNS if column.name not in rows.columns]
    needed = [column.name for column in COLUMNS if column.name in missing and not column.added]
    if needed:
        raise JournalError(f"{path} lacks the columns {', '.join(needed)}: it is not a journal")
    types = {field.name: field.dataType for field in SPARK_SCHEMA}
    return rows.select(
        *[
            (F.lit(None) if column.name in missing else F.col(column.name)).cast(types[column.name]).alias(column.name)
            for column in COLUMNS
        ]
    )


def first_reason(error: BaseException) -> str:
    """Return the first line of an error from Spark or Java."""
    java = getattr(error, "java_exception", None)
    return _first_line(error if java is None else java.toString())


def _first_line(error: Any) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _reason_for_no_rows(files: int, unreadable: int) -> str:
    if not files:
        return "it contains no Parquet file"
    if unreadable == files:
        return f"none of its {files} files can be read"
    return "its files hold no rows"
