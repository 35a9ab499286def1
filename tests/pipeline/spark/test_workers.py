"""Spark's Python workers."""

import gc
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyspark

from purgatory.pipeline.spark import workers
from purgatory.pipeline.spark.workers import freeze_modules


def test_what_a_worker_has_loaded_is_frozen_once(spark: Any) -> None:
    """Objects of later tasks are collected as ever."""

    def frozen(_: int) -> tuple[int, int]:
        freeze_modules()
        first = gc.get_freeze_count()
        later = [[each] for each in range(1_000)]
        freeze_modules()
        return first, gc.get_freeze_count() if later else -1

    ((first, later),) = spark.sparkContext.parallelize([0], 1).map(frozen).collect()
    assert first > 10_000
    assert 0 <= later <= first


def test_outside_of_a_task_nothing_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the user is left alone."""
    monkeypatch.setattr(workers, "_freeze", lambda: pytest.fail("this process is frozen"))
    freeze_modules()


def test_workers_of_this_machine_import_the_installed_pyspark(spark: Any) -> None:
    """The ZIP file of the same modules, which Spark offers to them, has no bytecode."""
    ((there, path),) = spark.sparkContext.parallelize([0], 1).map(_pyspark_and_path).collect()
    assert there == pyspark.__file__
    assert not [part for part in path if part.endswith("pyspark.zip")]


def test_workers_of_this_machine_are_forked_with_pandas_loaded(spark: Any) -> None:
    """They are children of the module that loads it, also if their task uses no pandas."""

    def look(_: int) -> tuple[bool, str]:
        parent = pathlib.Path(f"/proc/{os.getppid()}/cmdline")
        return "pandas" in sys.modules, parent.read_text() if parent.exists() else "purgatory.pipeline.spark.daemon"

    ((loaded, parent),) = spark.sparkContext.parallelize([0], 1).map(look).collect()
    assert loaded
    assert "purgatory.pipeline.spark.daemon" in parent


def _pyspark_and_path(_: int) -> tuple[str, list[str]]:
    return pyspark.__file__, sys.path


@pytest.mark.parametrize("module", ["purgatory.pipeline.report.one_pass", "purgatory.pipeline.replay.pieces"])
def test_the_functions_of_tasks_load_no_library_that_draws(module: str) -> None:
    """Each worker imports their module, which needs neither plots nor the page nor pandas."""
    code = (
        f"import sys, {module};"
        "print([name for name in ('matplotlib', 'PIL', 'jinja2', 'pandas') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert ran.stdout == "[]\n"
