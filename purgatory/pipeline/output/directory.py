"""The directory that a command writes its results into: a path of this machine, or a URI."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from purgatory.errors import PurgatoryError
from purgatory.pipeline.locations import Location, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BadOutput", "check_out", "check_store", "replace_files", "write_files"]


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
        reason = getattr(error, "strerror", None) or str(error)
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
        yield Path(made)
        store.upload(Path(made))


@contextmanager
def replace_files(out: Path) -> Iterator[Path]:
    """Yield an empty directory beside ``out``, and move its files into ``out`` at the end.

    If the block raises, ``out`` is unchanged.  BadOutput if ``out`` is a file.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.exists() and not out.is_dir():
        raise BadOutput(f"out must be a directory, got {out}, which is a file")
    unfinished = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield unfinished
        out.mkdir(exist_ok=True)
        for file in unfinished.iterdir():
            file.replace(out / file.name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
