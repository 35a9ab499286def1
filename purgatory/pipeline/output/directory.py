"""The directory that a command writes its results into: a path of this machine, or a URI."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from purgatory.errors import PurgatoryError
from purgatory.pipeline.locations import Location, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BadOutput", "check_out", "check_store", "reason_of", "replace_files", "write_files"]


_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO))


class BadOutput(PurgatoryError):
    """The results cannot be written to a path.  The message contains the path."""


def check_out(location: Location, name: str = "out") -> None:
    """Raise BadOutput unless ``location`` is a writable directory or can be created.  Nothing is left behind.

    A URI needs a session: see :func:`check_store`.
    """
    out = local_path(location)
    if out is None:
        return
    try:
        if out.exists() and not out.is_dir():
            raise BadOutput(f"{name} must be a directory, got {out}, which is a file")
        existing = next(path for path in (out, *out.absolute().parents) if path.exists())
        with tempfile.NamedTemporaryFile(prefix=".probe-", dir=existing):
            pass
    except (OSError, ValueError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        raise BadOutput(f"{name} must be a directory that can be written, got {out}: {reason}") from error


def check_store(spark: "SparkSession", location: Location, name: str = "out") -> None:
    """Raise BadOutput unless a file can be written to the directory of a URI.  Nothing is left behind.

    The check takes less time than finding out at the end of a report.
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
    """Yield an empty directory, and copy its files to ``location`` at the end.  Files of the same names are replaced.

    If the block raises, ``location`` is unchanged.  For a path, see :func:`replace_files`.  In a store, each file
    appears complete, one after the other.  ``spark``: the session for a URI; by default, the active one.
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
    """Yield an empty directory beside ``out``, and move its files into ``out`` at the end.

    If the block raises, ``out`` is unchanged.  BadOutput if ``out`` is a file, or a file cannot be written, for example
    because the disk is full.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.exists() and not out.is_dir():
            raise BadOutput(f"out must be a directory, got {out}, which is a file")
        unfinished = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise BadOutput(f"out cannot be written, {out}: {reason_of(error)}") from error
    try:
        yield unfinished
        out.mkdir(exist_ok=True)
        for file in unfinished.iterdir():
            file.replace(out / file.name)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise BadOutput(f"out cannot be written, {out}: {reason_of(error)}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
