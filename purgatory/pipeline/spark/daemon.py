"""The process from which Spark forks the Python workers on this machine; it has already imported what they need.

Spark's own module loads nothing in advance, so each worker needs a second of CPU time to import pandas, PyArrow, and
the rest of PySpark.
"""

import pandas  # noqa: F401 - PyArrow imports it with the first array
import pyarrow.compute
import pyarrow.parquet  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

__all__: list[str] = []

if __name__ == "__main__":
    manager()
