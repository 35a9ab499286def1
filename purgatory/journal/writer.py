"""The journal's thread: writes batches to files and retries those that could not be written.

One batch becomes one file.  If the journal is partitioned by date, a batch is first divided into one batch for each
date; these are queued separately, so that a retry never writes a row twice.  A batch that could not be written is set
aside until the next attempt, and so are later batches for the same folder.  The files in a folder therefore stay in the
order in which the operations ended, and the other folders do not wait.  The event loop decides when to retry.  A batch
that can never be written is dropped: a gap takes its place in the queue and becomes a ``dropped`` row.  The caller of
``put`` limits the size of the queue.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from purgatory.texts import type_name

from .batch import Batch, by_date, to_table
from .files import create_folder, write_file

__all__ = ["Writer"]

_LOGGER = logging.getLogger("purgatory.journal")


class Writer:
    """A queue of batches and the thread that writes them.  Its public methods are called in the event loop's thread.

    ``on_failure`` is called, in any thread, when batches must be retried.  ``partitioned``: whether the files are in
    folders by date.  ``source``: the name of this run, set before the first ``put``.  ``waiting``: the number of rows
    that are not on disk yet.  The counters are changed by the writing thread or under the lock and may be read at any
    time.
    """

    def __init__(
        self, directory: Path, text: Callable[[Any], str], on_failure: Callable[[], None], *, partitioned: bool = False
    ) -> None:
        self.directory: Path = directory
        self.source: str = ""
        self.waiting: int = 0
        self.written: int = 0
        self.files: int = 0
        self.failures: int = 0
        self.unwritable: int = 0  # rows of batches that could not be written and were dropped
        self.last_error: str | None = None
        self._text = text
        self._on_failure = on_failure
        self._partitioned = partitioned
        self._queue: deque[Batch] = deque()
        self._lock = threading.Lock()
        self._busy = False
        self._failing: set[str | None] = set()  # the folders that the latest attempt could not write
        self._number = 0
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="purgatory-journal")

    @property
    def failing(self) -> bool:
        """Whether batches remain after the latest attempt."""
        return bool(self._failing)

    def put(self, batch: Batch) -> None:
        """Queue the batch and start writing."""
        with self._lock:
            self._queue.append(batch)
            self.waiting += batch.rows
        self.retry()

    def retry(self) -> "Future[None] | None":
        """Write the waiting batches, unless an attempt is running; return the future of the attempt."""
        with self._lock:
            if self._busy or not self._queue:
                return None
            self._busy = True
        return self._submit(self._drain) or _done()

    def finish(self) -> "Future[None]":
        """Try to write all waiting batches after the attempt that is running."""
        return self._submit(self._drain) or _done()

    def close(self, dropped: int) -> "Future[None]":
        """Try once more to write all waiting batches, drop those that still wait, and end the thread.

        ``dropped``: for the log, the number of rows that were dropped before they reached the queue.
        """
        ended = self._submit(lambda: self._end(dropped))
        if ended is None:
            self._drop_waiting(dropped)
        self._executor.shutdown(wait=False)
        return ended or _done()

    def _end(self, dropped: int) -> None:
        self._drain()
        self._drop_waiting(dropped)

    def _drop_waiting(self, dropped: int) -> None:
        with self._lock:
            self.unwritable += sum(batch.rows for batch in self._queue)
            self._queue.clear()
            self.waiting = 0
        if dropped + self.unwritable:
            _LOGGER.error("the journal %s has dropped %d rows", self.directory, dropped + self.unwritable)

    def _submit(self, attempt: Callable[[], None]) -> "Future[None] | None":
        """Start an attempt and return its future, which never fails; return None if no thread can start."""
        try:
            return self._executor.submit(attempt)
        except BaseException as error:
            self._give_up(error)
            if not isinstance(error, Exception):
                raise
        return None

    def _drain(self) -> None:
        """Try to write every waiting batch; for each folder, stop at the first batch that cannot be written."""
        aside: list[Batch] = []
        failed: set[str | None] = set()
        try:
            while (batch := self._next(aside, failed)) is not None:
                if batch.folder in failed or not self._write(batch):
                    failed.add(batch.folder)
                    with self._lock:
                        aside.append(self._queue.popleft())
        except BaseException as error:  # the next attempt begins with the same batches
            with self._lock:
                self._queue.extendleft(reversed(aside))
            self._give_up(error)

    def _next(self, aside: list[Batch], failed: set[str | None]) -> Batch | None:
        """Return the batch at the head of the queue, or None to end the attempt and requeue the batches set aside."""
        with self._lock:
            if self._queue:
                return self._queue[0]
            self._queue.extend(aside)
            self._failing = failed
            self._busy = False
            return None

    def _give_up(self, error: BaseException) -> None:
        """End an attempt that failed for a reason other than its folders."""
        with self._lock:
            self._busy = False
        self._failed(error, None)

    def _divide(self, batch: Batch) -> None:
        """Replace the batch at the head of the queue with one for each date."""
        parts = by_date(batch)
        with self._lock:
            self._queue.popleft()
            self._queue.extendleft(reversed(parts))

    def _write(self, batch: Batch) -> bool:
        """Divide, write, or drop one batch; return False if it must be retried."""
        try:
            if self._partitioned and batch.folder is None:
                self._divide(batch)
                return True
            table = to_table(batch, self.source, self._text)
            folder = self.directory if batch.folder is None else create_folder(self.directory, batch.folder)
            write_file(table, folder, self.source, self._number)
        except (OSError, MemoryError) as error:
            self._failed(error, batch.folder)
            return False
        except BaseException as error:  # a retry would fail in the same way
            self._drop(batch, error)
            return True
        self._number += 1
        self.files += 1
        self.written += batch.rows
        with self._lock:
            self._queue.popleft()
            self.waiting -= batch.rows
        for name in {None, batch.folder} & self._failing:
            self._failing.discard(name)
            _LOGGER.warning("the journal %s can be written again", self._path(name))
        return True

    def _drop(self, batch: Batch, error: BaseException) -> None:
        """Replace the batch at the head of the queue with a gap."""
        self._count(error)
        if not batch.rows:  # it is a gap, and its rows have already been counted
            _LOGGER.error("the journal %s cannot note that rows were dropped: %s", self.directory, self.last_error)
            with self._lock:
                self._queue.popleft()
            return
        gap = batch.as_gap()
        if batch.gap is not None:
            gap.merge(batch.gap)
        instead = Batch([], batch.anchor_ms, gap, refused=batch.refused)
        with self._lock:
            self._queue[0] = instead
            self.waiting -= batch.rows
            self.unwritable += batch.rows
        _LOGGER.error(
            "the journal %s has dropped %d rows that cannot be written: %s", self.directory, batch.rows, self.last_error
        )

    def _count(self, error: BaseException) -> None:
        with self._lock:
            self.failures += 1
        self.last_error = f"{type_name(error)}: {error}"

    def _failed(self, error: BaseException, folder: str | None) -> None:
        self._count(error)
        self._on_failure()
        if folder not in self._failing:
            self._failing.add(folder)
            path = self._path(folder)
            _LOGGER.error("the journal %s cannot be written and will be retried: %s", path, self.last_error)

    def _path(self, folder: str | None) -> Path:
        return self.directory if folder is None else self.directory / folder


def _done() -> "Future[None]":
    done = Future[None]()
    done.set_result(None)
    return done
