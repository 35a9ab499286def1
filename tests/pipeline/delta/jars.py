"""The jars of Delta Lake, which PySpark does not contain, or a skip with the reason.

Delta Lake is published for one minor version of Spark at a time: ``SPARK``.  ``.ci/previous-spark`` runs its tests with
that release.  The other tests use a newer Spark, for which Maven Central did not serve Delta Lake when this was
written.

python -m tests.pipeline.delta.jars       fetch them, and print their paths, separated by commas
"""

import os
import sys
from typing import Final

from benchmarks.maven import classpath
from tests.pipeline.jars import or_skip, print_paths

__all__ = ["DELTA", "SPARK", "delta_class_path", "delta_jars", "main"]

SPARK: Final = "4.2"
# The other jars that Delta names are in Spark, or not used.
DELTA: Final = (f"io.delta:delta-spark_{SPARK}_2.13:4.4.0", "io.delta:delta-storage:4.4.0")


def delta_class_path() -> str:
    """Return the paths of the jars, separated by commas, as ``spark.jars`` expects them; Unavailable without Maven."""
    return classpath(*DELTA, transitive=False).replace(os.pathsep, ",")


def delta_jars() -> str:
    """Return the paths of the jars, or skip the test where they cannot be had."""
    return or_skip(delta_class_path)


def main() -> int:
    """Run the command; the status is 1 where a jar is missing."""
    return print_paths(delta_class_path)


if __name__ == "__main__":
    sys.exit(main())
