"""A session that does not start, the directories of sessions that were killed, and the log; without Java."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import types
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
pytest.importorskip("fcntl", reason="needs POSIX locks")

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from purgatory.pipeline.__main__ import main
from purgatory.pipeline.spark import session

EXITED = PySparkRuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.")
CALL = "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"


@pytest.fixture
def scratch(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The directory for temporary files; there is no session, and a new one needs no Java."""
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(session, "_prepare_environment", lambda: None)
    for name in ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    return tmp_path / "scratch"


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (EXITED, None, str(EXITED)),
        (Py4JNetworkError("Answer from Java side is empty"), -9, "its Java process has ended: SIGKILL ended it, as"),
        (ConnectionRefusedError(111, "Connection refused"), 3, "its Java process has ended: it ran out of memory; "),
        (ConnectionRefusedError(111, "Connection refused"), None, "[Errno 111] Connection refused"),
        (Py4JError(f"{CALL}: java.lang.IllegalArgumentException: System memory\n\tat org"), None, "java.lang.Illegal"),
    ],
)
def test_spark_that_does_not_start_is_an_error_in_one_line(
    scratch: pathlib.Path, made: Any, error: Exception, status: int | None, said: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """With the first reason, and without a traceback; the temporary directory is gone."""

    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", fail)
    process = types.SimpleNamespace(poll=lambda: status, wait=lambda _: status)
    gateway = None if status is None else types.SimpleNamespace(proc=process)
    monkeypatch.setattr(SparkContext, "_gateway", gateway)
    for owner, names in ((SparkContext, ("_jvm", "_active_spark_context")), (SparkSession, ("_instantiatedSession",))):
        for name in names:
            monkeypatch.setattr(owner, name, None)
    if hasattr(SparkSession, "_activeSession"):
        monkeypatch.setattr(SparkSession, "_activeSession", None)
    assert main(["report", str(made[0]), "--out", str(scratch / "out"), "--quiet"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: Spark did not start: {said}")
    assert list(scratch.glob("purgatory-*")) == []


def test_an_interrupted_start_is_no_error_of_spark(scratch: pathlib.Path) -> None:
    """The command then ends with the status of the signal."""
    error = ConnectionResetError()
    error.__context__ = KeyboardInterrupt()
    with pytest.raises(ConnectionResetError), session._started():
        raise error


def test_the_directories_of_killed_processes_are_removed(scratch: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Not those of a process that runs, or that may not have locked its directory yet, and none without a lock file.  A
    link is not followed."""
    code = "import sys, time; from purgatory.pipeline.spark.session import _lock; from pathlib import Path\n"
    code += "print(_lock(Path(sys.argv[1])), flush=True); time.sleep(100)"
    processes = {}
    for name in ("runs", "killed", "new"):
        directory = scratch / f"purgatory-spark-{name}"
        (directory / "local").mkdir(parents=True)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
        command = [sys.executable, "-c", code, str(directory)]
        processes[name] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        for name, process in processes.items():
            assert process.stdout is not None
            assert int(process.stdout.readline()) > 2
            if name != "runs":
                process.kill()
                process.wait()
        victim = tmp_path / "victim"
        shutil.copytree(scratch / "purgatory-spark-killed", victim)
        (scratch / "purgatory-spark-link").symlink_to(victim)
        (scratch / "purgatory-spark-other").mkdir()
        for file in (*scratch.glob("*/lock"), victim / "lock"):
            if "new" not in file.parent.name:
                os.utime(file, (0, 0))
        session._remove_abandoned(scratch)
        left = {path.name.rpartition("-")[2] for path in scratch.iterdir()}
        assert left == {"runs", "new", "link", "other"}
        assert (victim / "local").is_dir()
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()


def test_a_path_with_brackets_causes_no_warning() -> None:
    """Spark warns at each access, although no stream has written the directory; the log of a session omits that."""
    text = (pathlib.Path(session.__file__).parent / "log4j2.properties").read_text(encoding="utf-8")
    (pattern,) = re.findall(r"settings\.regex = (.*)", text)
    said = "Assume no metadata directory. Error while looking for metadata directory in the path: /tmp/a[1]."
    assert re.fullmatch(pattern, said)
    assert not re.fullmatch(pattern, "No space left on device")


@pytest.mark.parametrize(
    ("failed", "cause", "said"),
    [
        ("to file:/full disk/lake/.spark-staging-862fa9d2-a0df", "org.apache.hadoop.fs.FSError: ", "the results to {}"),
        ("to file:/full disk/lake/.unfinished/000000000-0a1b", "org.apache.hadoop.fs.FSError: ", "the results to {}"),
        ("to file:/full disk/lake", "org.apache.hadoop.fs.FSError: ", "the results to {}"),
        ("to file:/full disk/lake", "", "its temporary files to /scratch"),
        (None, "org.apache.hadoop.fs.FSError: ", "the results"),
        (None, "", "its temporary files to /scratch"),
    ],
    ids=["a load", "a batch", "other results", "sorting before the write", "the end of a write", "no results"],
)
def test_a_full_disk_is_that_of_the_results_or_of_temporary_files(failed: str | None, cause: str, said: str) -> None:
    """Spark's temporary files may have a disk of their own, so the error names the place that is full."""
    task = "" if failed is None else f"[TASK_WRITE_FAILED] Task failed while writing rows {failed}. SQLSTATE: 58030\n"
    error = Py4JError(f"{CALL}: {task}Caused by: {cause}java.io.IOException: No space left on device\n\tat java.base")
    stopping: Any = types.SimpleNamespace(stop=lambda: None)
    with pytest.raises(session.SparkEnded) as raised, session.stopped_at_end(stopping, pathlib.Path("/scratch")):
        raise error
    place = said.format("file:/full disk/lake")
    assert str(raised.value) == f"Spark cannot write {place}: No space left on device"
