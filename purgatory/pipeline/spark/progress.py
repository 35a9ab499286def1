"""The progress of Spark's jobs: a bar on a terminal; otherwise, one line per step."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from .session import is_connect

__all__ = ["Steps", "progress"]

_POLL_S: Final = 0.2


class Steps:
    """The steps of a command.  If there is no console, nothing is shown."""

    def __init__(self, spark: SparkSession, bar: Progress | None, console: Console | None, total: int) -> None:
        # A client of Spark Connect does not see the tasks.
        self._tracker = None if is_connect(spark) else spark.sparkContext.statusTracker()
        self._bar = bar
        self._console = console
        self._total = total
        self._done = 0
        self._task: TaskID | None = None if bar is None else bar.add_task("", total=total, tasks="")
        self._ended = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="purgatory-progress", daemon=True)
        if bar is not None and self._tracker is not None:
            self._poller.start()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Show one step while the block runs."""
        started = time.perf_counter()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=name, completed=self._done)
        yield
        self._done += 1
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done, tasks="")
        elif self._console is not None:
            took = time.perf_counter() - started
            self._console.print(f"{self._done}/{self._total} {name}: {took:.1f} s", highlight=False)

    def end(self) -> None:
        self._ended.set()
        if self._poller.is_alive():
            self._poller.join()

    def _poll(self) -> None:
        assert self._tracker is not None
        while not self._ended.wait(_POLL_S):
            tasks = done = 0
            for stage in self._tracker.getActiveStageIds():
                info = self._tracker.getStageInfo(stage)
                if info is not None:
                    tasks += info.numTasks
                    done += info.numCompletedTasks
            if tasks and self._bar is not None and self._task is not None:
                part = min(done / tasks, 0.99)
                self._bar.update(self._task, completed=self._done + part, tasks=f"{done}/{tasks} tasks")


@contextmanager
def progress(spark: SparkSession, total: int, console: Console | None) -> Iterator[Steps]:
    """Yield the ``total`` steps of a command.  If ``console`` is None, nothing is shown."""
    bar = None
    if console is not None and console.is_terminal:
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[tasks]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        bar.start()
    steps = Steps(spark, bar, console, total)
    try:
        yield steps
    finally:
        steps.end()
        if bar is not None:
            bar.stop()
