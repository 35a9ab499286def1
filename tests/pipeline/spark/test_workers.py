"""Spark's Python workers."""

import gc
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyspark

from purgatory.pipeline.spark.workers import freeze_modules


def test_what_a_worker_has_loaded_is_frozen_once(spark: Any) -> None:
    """Objects of later tasks are collected as ever, and this process is left alone."""

    def frozen(_: int) -> tuple[int, int]:
        freeze_modules()
        first = gc.get_freeze_count()
        later = [[each] for each in range(1_000)]
        freeze_modules()
        return first, gc.get_freeze_count() if later else -1

    here = gc.get_freeze_count()
    ((first, later),) = spark.sparkContext.parallelize([0], 1).map(frozen).collect()
    assert first > 10_000
    assert 0 <= later <= first
    freeze_modules()
    assert gc.get_freeze_count() == here


def test_workers_of_this_machine_import_the_installed_pyspark(spark: Any) -> None:
    """The ZIP file of the same modules, which Spark offers to them, has no bytecode."""
    ((there, path),) = spark.sparkContext.parallelize([0], 1).map(_pyspark_and_path).collect()
    assert there == pyspark.__file__
    assert not [part for part in path if part.endswith("pyspark.zip")]


def _pyspark_and_path(_: int) -> tuple[str, list[str]]:
    import sys

    return pyspark.__file__, sys.path
