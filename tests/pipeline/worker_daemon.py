"""Spark forks its Python workers from this process, which has loaded what most of them import."""

import pandas  # noqa: F401
import pyarrow.parquet  # noqa: F401
from pyspark.daemon import manager

if __name__ == "__main__":
    manager()
