"""The options of the commands that read rows of a stream, and their settings for Spark."""

import argparse
from typing import TYPE_CHECKING, Final

from purgatory.pipeline.locations import is_local_mode, local_path

from .options import FIRST_COMPILER, add_spark_options, seconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["add_row_options", "check_source", "check_source_of", "local_settings"]

# A batch then writes the changes of the state, not the whole state.
_CHANGELOG: Final = {"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true"}
# On this machine, Spark's default starts four programs to rename a file: one per path, and as many for the checksum.
_FILE_MANAGER: Final = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
_SMALL: Final = 32 << 20  # bytes of row files, about 400,000 rows: from there on, the second compiler pays


def add_row_options(parser: argparse.ArgumentParser, *, connect: bool) -> None:
    """Add ``--format``, ``--max-ahead``, ``--conditions``, and the options for Spark.

    ``connect``: whether the command runs on Spark Connect; otherwise the help omits ``--remote``.
    """
    parser.add_argument(
        "--format",
        choices=("parquet", "json"),
        default="parquet",
        help="the format of the row files (default: %(default)s)",
    )
    parser.add_argument(
        "--max-ahead",
        type=seconds,
        default=86_400.0,
        metavar="S",
        help="rows more than S seconds ahead of the clock become dead letters (default: %(default)g)",
    )
    parser.add_argument(
        "--conditions", action="append", default=[], metavar="MODULE", help="a module that registers conditions"
    )
    add_spark_options(parser, connect=connect)


def check_source(source: str, *, kafka: bool = False) -> None:
    """Raise ValueError unless the source is a directory, a URI or, if ``kafka`` is set, kafka.

    A URI needs a session: see :func:`check_source_of`.
    """
    directory = local_path(source)
    if not (kafka and source == "kafka") and directory is not None and not directory.is_dir():
        raise ValueError(f"source must be a directory{', or kafka' if kafka else ''}, got {source}")


def check_source_of(spark: "SparkSession", source: str) -> None:
    """Raise ValueError unless the URI names a directory, and StoreError if it cannot be read."""
    if local_path(source) is not None:
        return
    from purgatory.pipeline.spark.directories import HadoopDirectory

    if not HadoopDirectory(spark, source).is_directory():
        raise ValueError(f"source must be a directory, got {source}")


def local_settings(
    source: str, master: str | None, *, endless: bool = False, checkpoint: str | None = None
) -> dict[str, str]:
    """Return settings for a job on this machine, and none for a cluster, which has its own.

    ``endless``: the job does not stop when it has processed the rows that are in the source now.  ``checkpoint``: its
    location; settings for a checkpoint on this machine are added.
    """
    if not is_local_mode(master):
        return {}
    settings = _CHANGELOG if checkpoint is None or local_path(checkpoint) is None else _CHANGELOG | _FILE_MANAGER
    directory = local_path(source)
    if endless or directory is None or not directory.is_dir():
        return settings
    size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    return settings | FIRST_COMPILER if size <= _SMALL else settings
