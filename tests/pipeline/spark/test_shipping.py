"""The package as a file for the workers of a cluster."""

import pathlib
import subprocess
import sys
import zipfile
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.errors import PySparkException

from purgatory.pipeline.__main__ import main
from purgatory.pipeline.commands.options import remote_url
from purgatory.pipeline.spark import shipping
from purgatory.pipeline.spark.shipping import missing_in_workers, package_file, ship_package


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
    monkeypatch.setattr(shipping, "package_file", lambda folder: pytest.fail("a file is made"))
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


def test_a_remote_is_the_url_of_a_connect_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given instead of a master; SPARK_REMOTE, which Spark reads too, is the default."""

    def url(remote: str | None = None, master: str | None = None, **conf: str) -> str | None:
        options: Any = SimpleNamespace(remote=remote, master=master, conf=list(conf.items()))
        return remote_url(options)

    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert url() is None
    assert url("sc://host:15002") == "sc://host:15002"
    for wrong in ("host:15002", "sc://", "sc:///x", "http://host"):
        with pytest.raises(ValueError, match=r"remote must be a URL as sc://host:15002, got"):
            url(wrong)
    with pytest.raises(ValueError, match="either master or remote must be set, got 'local' and 'sc://h'"):
        url("sc://h", "local")
    monkeypatch.setenv("SPARK_REMOTE", "sc://other")
    assert url() == "sc://other"
    assert url("sc://h") == "sc://h"
    assert url(master="local") is None
