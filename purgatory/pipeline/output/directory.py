"""The directory into which a command writes its results: a path on this machine, or a URI."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Final

from purgatory.errors import PurgatoryError
from purgatory.pipeline.locations import TABLE, Location, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BadOutput", "check_apart", "check_out", "check_store", "reason_of", "replace_files", "write_files"]


_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO))


class BadOutput(PurgatoryError):
    """The results cannot be written to a path.  The message contains the path."""


def check_out(location: Location, name: str = "out", *, files: Iterable[str] = ()) -> None:
    """Raise BadOutput unless ``location`` is a writable directory or can be created.  Nothing is left behind.

    ``files``: names of files to be written, which must not be names of directories there.  A URI needs a session: see
    :func:`check_store`.
    """
    out = local_path(location)
    if out is None:
        return
    try:
        existing = next(path for path in (out, *out.absolute().parents) if path.exists() or path.is_symlink())
        _check_directory(existing, out, name)
        _check_files(out, files, name)
        with tempfile.NamedTemporaryFile(prefix=".probe-", dir=existing):
            pass
    except (OSError, ValueError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        raise BadOutput(f"{name} must be a directory that can be written, got {out}: {reason}") from error


def _check_directory(path: Path, out: Path, name: str) -> None:
    """Raise BadOutput if the path, which is ``out`` or contains it, exists and is not a directory."""
    if path.is_dir():
        return
    given = f"{out}, which" if path == out else f"{out}, within {path}, which"
    if path.exists():
        raise BadOutput(f"{name} must be a directory, got {given} is a file")
    if path.is_symlink():
        raise BadOutput(f"{name} must be a directory, got {given} is a link to {os.readlink(path)}, which is missing")


def _check_files(out: Path, names: Iterable[str], name: str = "out") -> None:
    """Raise BadOutput if one of the files to be written has the name of a directory in ``out``."""
    for file in names:
        if (out / file).is_dir():
            raise BadOutput(f"{name} must have no directory with the name of a file to be written, got {out / file}")


def check_apart(location: Location, inputs: Iterable[Location], name: str = "out", *, below: bool = False) -> None:
    """Raise BadOutput if ``location`` is one of the inputs or lies within one, because its files would become input.

    ``below``: also raise BadOutput if an input lies within ``location``, for a writer that replaces folders there.
    """
    place = _place(location)
    for given in inputs:
        other = _place(given)
        if place.is_relative_to(other):
            raise BadOutput(f"{name} must lie outside {given}, which the command reads, got {location}")
        if below and other.is_relative_to(place):
            raise BadOutput(f"{name} must not contain {given}, which the command reads, got {location}")


def _place(location: Location) -> PurePath:
    """Return the real path of a location on this machine; for any other location, a path only for comparisons."""
    path = None if str(location).startswith(TABLE) else local_path(location)
    return PurePosixPath(str(location)) if path is None else Path(os.path.realpath(path))


def check_store(spark: "SparkSession", location: Location, name: str = "out") -> None:
    """Raise BadOutput unless a file can be written to the directory with this URI.  Nothing is left behind.

    Without the check, a report would fail only at its end.
    """
    if local_path(location) is not None:
        return
    from purgatory.pipeline.spark.directories import HadoopDirectory, StoreError

    try:
        HadoopDirectory(spark, str(location)).check_writable()
    except StoreError as error:
        raise BadOutput(f"{name} must be a directory that can be written: {error}") from error


def reason_of(error: OSError) -> str:
    """Return the system's reason for an error, without a path."""
    return os.strerror(error.errno) if error.errno is not None else str(error)


@contextmanager
def write_files(location: Location, spark: "SparkSession | None" = None) -> Iterator[Path]:
    """Yield an empty directory, and copy its files to ``location`` at the end.  Files with the same names are replaced.

    If the block raises, ``location`` is unchanged.  For a path, see :func:`replace_files`.  In a store, the files
    appear one by one, and each is complete when it appears.  ``spark``: the session for a URI; by default, the active
    one.
    """
    out = local_path(location)
    if out is not None:
        with replace_files(out) as directory:
            yield directory
        return
    from purgatory.pipeline.spark.directories import HadoopDirectory, directory_at

    store = directory_at(location, spark)
    assert isinstance(store, HadoopDirectory)
    with tempfile.TemporaryDirectory(prefix="purgatory-") as made:
        try:
            yield Path(made)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise BadOutput(f"out cannot be prepared in {made}: {reason_of(error)}") from error
        store.upload(Path(made))


@contextmanager
def replace_files(out: Path) -> Iterator[Path]:
    """Yield an empty directory, and move its files into ``out`` at the end.

    The directory is hidden in ``out``, or beside it if ``out`` does not exist yet: ``out`` may be a mount point, and
    its parent may be read-only.  If the block raises, ``out`` is unchanged.  Raises BadOutput if ``out`` is a file, or
    if a file cannot be written (for example, because the disk is full).
    """
    try:
        _check_directory(out, out, "out")
        if not out.exists():
            out.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=out if out.exists() else out.parent))
    except OSError as error:
        raise BadOutput(f"out cannot be written to {out}: {reason_of(error)}") from error
    try:
        try:
            yield unfinished
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise BadOutput(f"out cannot be written to {out}: {reason_of(error)}") from error
        _move_files(unfinished, out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _move_files(unfinished: Path, out: Path) -> None:
    files = list(unfinished.iterdir())
    _check_files(out, [file.name for file in files])
    try:
        out.mkdir(exist_ok=True)
        for file in files:
            file.replace(out / file.name)
    except OSError as error:
        raise BadOutput(f"out cannot be written to {out}: {reason_of(error)}") from error
