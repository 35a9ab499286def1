"""A command whose Spark ends too early, with a Java process of its own."""

import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from tests.pipeline.settings import QUICK_JAVA

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(170),
    pytest.mark.skipif(not pathlib.Path("/proc/self/task").is_dir(), reason="finds Java in /proc"),
]
# The command report, with a Spark job in place of its work that lasts until the test ends it.
COMMAND = """
import signal, sys, time
from purgatory.pipeline import report
from purgatory.pipeline.__main__ import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it

def compute(spark, *_, **__):
    def work(_):
        print("working", file=sys.stderr, flush=True)
        time.sleep(100)
    spark.sparkContext.parallelize([0], 1).map(work).collect()

report.compute = compute
sys.exit(main(sys.argv[1:]))
"""


def children(pid: int) -> list[int]:
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def kill_java(process: subprocess.Popen[str]) -> None:
    (java,) = children(process.pid)
    os.kill(java, signal.SIGKILL)


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        (lambda process: process.send_signal(signal.SIGINT), 130, ""),
        (lambda process: process.send_signal(signal.SIGTERM), 143, ""),
        (kill_java, 1, "error: Spark's Java process has ended: SIGKILL ended it, as Linux does if the machine"),
    ],
    ids=["SIGINT", "SIGTERM", "Java is killed"],
)
def test_a_command_that_is_ended_leaves_no_traceback_and_no_files(
    end: Any, status: int, said: str, made: Any, tmp_path: pathlib.Path
) -> None:
    """The status is that of a shell; without Java, one line has the reason; the temporary directories are gone."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch)}
    environment["PYTHONPATH"] = os.pathsep.join(path or "." for path in sys.path)
    command = [sys.executable, "-c", COMMAND, "report", str(made[0]), "--out", str(tmp_path / "out"), "--quiet"]
    command += ["--master", "local[1]", "--conf", f"spark.driver.defaultJavaOptions={QUICK_JAVA}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    assert process.stderr.readline() == "working\n"
    end(process)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == status
    lines = errors.splitlines()
    assert len(lines) == bool(said), errors
    assert errors.startswith(said)
    assert list(scratch.glob("purgatory-*")) == []
