"""Spark forks its Python workers from this process, which has loaded what most of them import."""

import gc

import pandas  # noqa: F401
import pyarrow.parquet  # noqa: F401
from pyspark.daemon import manager

if __name__ == "__main__":
    gc.freeze()  # workers collect garbage after each task
    manager()
