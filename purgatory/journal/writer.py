"""The journal's thread: takes batches, writes files, keeps what could not be written and tries again.

One batch becomes one file.  A batch that could not be written stays at the head of the line, so the order of the files
is the order of the endings; the loop says when to try again.  The line is bounded by the one who fills it.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .batch import Batch, Gap, to_table
from .files import write_file

__all__ = ["Writer"]

_LOGGER = logging.getLogger("purgatory.journal")


class Writer:
    """Batches in, files out.  ``take``, ``retry`` and the counters belong to the loop's thread, the rest to its own.

    ``waiting`` counts rows that are not on disk yet.  The counters are only ever changed by the writing thread or
    under the lock, and reading one is a single step.
    """

    def __init__(self, directory: Path, source: str, text: Callable[[Any], str]) -> None:
        self.directory: Path = directory
        self.source: str = source
        self.waiting: int = 0
        self.written: int = 0
        self.files: int = 0
        self.failures: int = 0
        self.unwritable: int = 0  # rows of batches that can never be written
        self.last_error: str | None = None
        self.failing: bool = False
        self._text = text
        self._line: deque[Batch] = deque()
        self._lock = threading.Lock()
        self._busy = False
        self._number = 0
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="purgatory-journal")

    def take(self, batch: Batch) -> None:
        """Write the batch in the other thread, as soon as possible."""
        with self._lock:
            self._line.append(batch)
            self.waiting += batch.rows
        self.retry()

    def retry(self) -> "Future[None] | None":
        """Write the waiting batches, unless an attempt is running; return the future of the attempt."""
        with self._lock:
            if self._busy or not self._line:
                return None
            self._busy = True
        return self._executor.submit(self._drain)

    def finish(self) -> "Future[None]":
        """Try once more to write all waiting batches; those that still wait afterwards are dropped."""
        return self._executor.submit(self._drain)

    def let_go(self) -> None:
        """End the thread after its current work."""
        self._executor.shutdown(wait=False)

    def give_up(self) -> list[Gap]:
        """Drop the batches that still wait, and return what was lost."""
        lost = [batch.as_gap() for batch in self._line if batch.rows]
        self._line.clear()
        self.waiting = 0
        return lost

    def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._line:
                    self._busy = False
                    return
                batch = self._line[0]
            if not self._write(batch):
                with self._lock:
                    self._busy = False
                return
            with self._lock:
                self._line.popleft()
                self.waiting -= batch.rows

    def _write(self, batch: Batch) -> bool:
        """False if the batch must be tried again."""
        try:
            table = to_table(batch, self.source, self._text)
        except Exception as error:  # it would fail the same way for ever
            self._failed(error)
            self.unwritable += batch.rows
            return True
        try:
            write_file(table, self.directory, self.source, self._number)
        except OSError as error:
            self._failed(error)
            return False
        self._number += 1
        self.files += 1
        self.written += batch.rows
        if self.failing:
            self.failing = False
            _LOGGER.warning("the journal %s is written again", self.directory)
        return True

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"
        if not self.failing:
            self.failing = True
            _LOGGER.error("the journal %s cannot be written, it keeps trying: %s", self.directory, error)
