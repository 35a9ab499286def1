"""Spark's Python workers, and the package as a file for those of a cluster."""

import gc
import os
import pathlib
import subprocess
import sys
import zipfile
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyspark
from pyspark.errors import PySparkException

from purgatory.pipeline.__main__ import main
from purgatory.pipeline.spark import workers
from purgatory.pipeline.spark.workers import freeze_modules, missing_in_workers, package_file, ship_package


def test_the_file_has_all_that_a_worker_imports(tmp_path: pathlib.Path) -> None:
    """The same package gives the same bytes, and Python imports it from the file alone."""
    first = package_file(tmp_path)
    assert first is not None
    content = first.read_bytes()
    again = package_file(tmp_path)
    assert again is not None
    assert again.read_bytes() == content
    names = zipfile.ZipFile(first).namelist()
    assert {"mypy_extensions.py", "purgatory/__init__.py", "purgatory/pipeline/output/page.html"} <= set(names)
    assert all(name.startswith("purgatory/") for name in names if name != "mypy_extensions.py")
    code = (
        f"import sys; sys.path.insert(0, {str(first)!r}); import purgatory.pipeline.stream.processor,"
        " purgatory.pipeline.report.one_pass as module; print(module.__file__)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert ran.stdout.startswith(str(first)), ran.stderr


def test_workers_of_this_machine_need_no_file(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the package of this process."""
    monkeypatch.setattr(workers, "package_file", lambda folder: pytest.fail("a file is made"))
    ship_package(spark)


def test_a_module_that_the_workers_lack_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any other error keeps its trace."""
    error = PySparkException("Job aborted\n  ModuleNotFoundError: No module named 'pyarrow'\n  at")
    said = missing_in_workers(error)
    assert said is not None
    assert "has no module 'pyarrow'" in said
    assert missing_in_workers(PySparkException("Job aborted")) is None
    assert missing_in_workers(ModuleNotFoundError("No module named 'pyarrow'")) is None

    def run(error: Exception) -> int:
        def fail(*_: object) -> int:
            raise error

        monkeypatch.setattr("purgatory.pipeline.commands.synthesize._run", fail)
        return main(["synthesize", "journal", "--rows", "1"])

    assert run(error) == 1
    assert capsys.readouterr().err == f"error: {said}\n"
    with pytest.raises(PySparkException, match="Job aborted"):
        run(PySparkException("Job aborted"))


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
