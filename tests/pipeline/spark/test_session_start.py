"""A session that does not start; without Java."""

import pathlib
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
