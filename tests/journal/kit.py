"""Operations to record, and a function that reads the journal."""

import pathlib
from typing import Any

import pyarrow.parquet as pq

from purgatory import DelayedOperation

__all__ = ["Fetch", "Produce", "rows"]


class Fetch(DelayedOperation[str]):
    """An operation that completes when its flag is set."""

    def __init__(self, timeout: float | None = None, error: Exception | None = None) -> None:
        super().__init__(timeout)
        self.ready = False
        self.error = error

    def try_complete(self) -> bool:
        if self.ready and self.error is not None:
            raise self.error
        return self.ready

    def on_complete(self) -> str:
        return "late" if self.expired else "done"


class Produce(Fetch):
    """An operation of another kind."""


def rows(path: pathlib.Path) -> list[dict[str, Any]]:
    """Return every row of a journal, in the order of the files, folder by folder."""
    files = sorted(path.rglob("*.parquet"))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
