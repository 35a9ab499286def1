"""What the functions of tasks do in Spark's Python workers, whatever their subject."""

import functools
import gc

from pyspark import TaskContext

__all__ = ["freeze_modules"]


def freeze_modules() -> None:
    """Exclude from Python's garbage collector what this worker has loaded.  Other processes are left alone.

    Spark's workers collect all garbage after each task.  With pandas and PyArrow loaded, this takes 50 ms, which is
    longer than a short task.  Workers are used for many tasks, so only the first one freezes anything.
    """
    if TaskContext.get() is not None:
        _freeze()


@functools.cache  # to ask the collector whether it was done takes 8 ms: it counts what is frozen
def _freeze() -> None:
    gc.freeze()
