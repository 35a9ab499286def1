"""What the functions of tasks do in Spark's Python workers, whatever their subject."""

import gc

from pyspark import TaskContext

__all__ = ["freeze_modules"]


def freeze_modules() -> None:
    """Exclude from Python's garbage collector what this worker has loaded.  Other processes are left alone.

    Spark's workers collect all garbage after each task.  With pandas and PyArrow loaded, this takes 50 ms, which is
    longer than a short task.  Workers are used for many tasks, so only the first one freezes anything.
    """
    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.freeze()
