"""Signals while Spark starts: nothing that the start has begun remains."""

import os
import pathlib
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark import SparkContext, java_gateway

from purgatory.pipeline.spark import start
from purgatory.pipeline.spark.java import find_java
from tests.pipeline.settings import QUICK_JAVA

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for processes of Linux")
# The command report, which says where the start is: Java says it in the first stages, and Python in the last one.
COMMAND = """
import os, signal, sys
from pyspark import SparkContext
from purgatory.pipeline.__main__ import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
begin = SparkContext._do_init

def say(*arguments, **named):
    if os.environ["STAGE"] == "context":
        with open(os.environ["EVENTS"], "w") as events:
            print(SparkContext._gateway.proc.pid, file=events)
    return begin(*arguments, **named)

SparkContext._do_init = say
sys.exit(main(sys.argv[1:]))
"""
JAVA = """#!/bin/sh
case "$*" in
  *launcher.Main*) stage=launcher ;;
  *SparkSubmit*) stage=Java ;;
esac
if [ "$stage" = "$STAGE" ]; then echo $$ > "$EVENTS"; fi
exec {java} -Djava.io.tmpdir="$TMPDIR" "$@"
"""
SLEEPING = ["sh", "-c", "trap '' TERM; sleep 100 & echo $!; wait"]


def has_ended(pid: int) -> bool:
    """Wait until the process is gone or a zombie, which only its parent can remove."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 5)[0])
    finally:
        os.close(descriptor)


@pytest.mark.slow
@pytest.mark.timeout(170)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("stage", ["launcher", "Java", "context"])
def test_a_signal_while_java_starts_ends_java(
    stage: str, number: int, status: int, made: Any, tmp_path: pathlib.Path
) -> None:
    """Java has ended when the command ends, so nothing holds the command's output open, and no temporary file is left,
    neither of Java nor of Python.  Nothing is printed."""
    scratch, home, events = tmp_path / "scratch", tmp_path / "home", tmp_path / "events"
    scratch.mkdir()
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(JAVA.format(java=find_java().home / "bin" / "java"))
    (home / "bin" / "java").chmod(0o755)
    os.mkfifo(events)
    environment = os.environ | {"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment |= {"TMPDIR": str(scratch), "STAGE": stage, "EVENTS": str(events)}
    environment["PYTHONPATH"] = os.pathsep.join(path or "." for path in sys.path)
    environment.pop("PYSPARK_GATEWAY_PORT", None)
    command = [sys.executable, "-c", COMMAND, "report", str(made[0]), "--out", str(tmp_path / "out"), "--quiet"]
    command += ["--master", "local[1]", "--conf", f"spark.driver.defaultJavaOptions={QUICK_JAVA}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    with events.open() as said:
        java = int(said.readline())
    try:
        process.send_signal(number)
        assert process.wait(100) == status
        assert has_ended(java)
        output, _ = process.communicate(timeout=10)
        assert (output, list(scratch.iterdir())) == ("", [])
    finally:
        process.kill()
        if not has_ended(java):
            os.kill(java, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """PySpark's launcher before the first start; SIGTERM raises an exception."""

    def terminate(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(start, "_LAUNCH_S", 0.0)
    before = signal.signal(signal.SIGTERM, terminate)
    yield java_gateway
    assert signal.signal(signal.SIGTERM, before) is terminate


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_a_signal_before_or_while_or_after_the_process_is_made(
    moment: str, launcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is not made, or it ends; the exception comes when the start has failed."""

    def make(*arguments: Any, **named: Any) -> Any:
        made.append(subprocess.Popen(*arguments, **named))
        if moment == "during":
            signal.raise_signal(signal.SIGTERM)
        return made[0]

    def begin() -> None:
        with start.interruptible():
            if moment == "before":
                signal.raise_signal(signal.SIGTERM)
            held.append(moment)
            process = launcher.Popen(["sleep", "100"])
            if moment == "after":
                signal.raise_signal(signal.SIGTERM)
            held.append(moment)
            assert process.wait() == -signal.SIGTERM
            raise OSError("Java has ended")

    made: list[Any] = []
    held: list[str] = []
    monkeypatch.setattr(launcher, "Popen", make)
    with pytest.raises(KeyboardInterrupt):
        begin()
    assert (len(made), len(held)) == ((0, 1) if moment == "before" else (1, 2))
    assert launcher.Popen is make


def test_a_handler_that_raises_nothing_does_not_end_the_start(launcher: Any) -> None:
    """It is called, and the started process is left alone."""
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    with start.interruptible():
        process = launcher.Popen(["cat"], stdin=subprocess.PIPE)
        signal.raise_signal(signal.SIGTERM)
        process.communicate()
    assert (process.returncode, seen) == (0, [signal.SIGTERM])
    signal.signal(signal.SIGTERM, before)


def test_a_start_with_a_java_that_runs_already_is_interrupted_at_once(
    launcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That Java belongs to the program."""
    monkeypatch.setattr(SparkContext, "_gateway", object())
    begun: list[bool] = []

    def begin() -> None:
        with start.interruptible():
            begun.append(True)
            signal.raise_signal(signal.SIGTERM)
            begun.append(False)

    with pytest.raises(KeyboardInterrupt):
        begin()
    assert begun == [True]


def test_spark_installs_no_handler(launcher: Any) -> None:
    """Its handler calls Java, perhaps in the middle of another call of the same thread."""
    module: Any = sys.modules[SparkContext.__module__]
    before = signal.getsignal(signal.SIGINT)
    with start.interruptible():
        within = signal.getsignal(signal.SIGINT)
        module.signal.signal(module.signal.SIGINT, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGINT) is within
    assert module.signal is signal
    assert signal.getsignal(signal.SIGINT) is before


def test_a_process_that_ignores_sigterm_is_killed_with_its_descendants(monkeypatch: pytest.MonkeyPatch) -> None:
    """So nothing holds its output open."""
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(start, "_LAUNCH_S", 0.0)
    monkeypatch.setattr(start, "_END_S", 0.0)
    with subprocess.Popen(SLEEPING, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        sleeping = int(process.stdout.readline())
        start._end(process)
        assert process.stdout.read() == ""
    assert (process.returncode, has_ended(sleeping)) == (-signal.SIGKILL, True)
