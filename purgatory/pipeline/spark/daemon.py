"""Spark forks the Python workers of this machine from this process, which has loaded what all of them import.

Spark's own module loads nothing beforehand, so each worker imports pandas and PyArrow, which takes a second of CPU.
"""

import pandas  # noqa: F401 - PyArrow imports it with the first array
import pyarrow.parquet  # noqa: F401
from pyspark.daemon import manager

__all__: list[str] = []

if __name__ == "__main__":
    manager()
