"""An S3 server, a Spark cluster that also serves Spark Connect, and a Python for workers that lacks this package."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple
from xml.etree import ElementTree

import pyspark
import pytest

import purgatory
from purgatory.pipeline.spark.java import find_java, quiet_home
from tests.pipeline.cluster.jars import s3a_jars
from tests.pipeline.cluster.run_commands import DONE
from tests.pipeline.settings import QUICK_JAVA

_PATIENCE_S = 120.0
_LONGEST_S = 500.0
HOME = pathlib.Path(purgatory.__file__).parents[1]
PYSPARK = pathlib.Path(pyspark.__file__).parent
# Removes the folder of this package from the path of the workers.  A package that Spark has sent is in a ZIP file.
_HIDE = """import os, sys
sys.path[:] = [path for path in sys.path if not os.path.isfile(os.path.join(path, "purgatory", "__init__.py"))]
"""


class Bucket:
    """A bucket of an S3 server on this machine, used through plain HTTP: the server checks no signatures."""

    def __init__(self, address: str, jars: str) -> None:
        self.address = address
        self.uri = "s3a://lake"
        self.settings = {
            "spark.jars": jars,
            "spark.hadoop.fs.s3a.endpoint": address,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            # The fast copy needs the asynchronous client of the SDK, whose Netty is not that of Spark.
            "spark.hadoop.fs.s3a.optimized.copy.from.local.enabled": "false",
            "spark.hadoop.fs.s3a.access.key": "access",
            "spark.hadoop.fs.s3a.secret.key": "secret",
        }
        self._request("PUT", "")

    def put(self, name: str, content: bytes) -> None:
        self._request("PUT", name, content)

    def get(self, name: str) -> bytes:
        return self._request("GET", name)

    def names(self, prefix: str) -> list[str]:
        """Return the names of the objects that begin with the prefix, without those that stand for directories."""
        answer = ElementTree.fromstring(self._request("GET", f"?list-type=2&max-keys=10000&prefix={prefix}"))
        names = [each.text or "" for each in answer.iter() if each.tag.endswith("}Key")]
        return [name for name in names if not name.endswith("/")]

    def _request(self, method: str, name: str, content: bytes | None = None) -> bytes:
        path = name if name.startswith("?") else urllib.parse.quote(name)
        # The server expects the credentials of a signature, but does not verify it.
        credential = "AWS4-HMAC-SHA256 Credential=access/20260101/us-east-1/s3/aws4_request"
        headers = {"Authorization": credential, "Content-Type": "application/octet-stream"}
        request = urllib.request.Request(f"{self.address}/lake/{path}", content, headers, method=method)
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
            return bytes(answer.read())


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    """An empty bucket."""
    jars = s3a_jars()
    command = [sys.executable, "-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with started(command, dict(os.environ), "Running on http") as line:
        yield Bucket(line.split()[-1].strip("."), jars)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Spark whose workers lack this package, and which writes nothing into PySpark."""
    folder = tmp_path_factory.mktemp("workers")
    (folder / "hide").mkdir()
    (folder / "hide" / "sitecustomize.py").write_text(_HIDE)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}/hide" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    home = folder / "spark"
    home.mkdir()
    for name in ("bin", "jars", "python", "sbin"):
        (home / name).symlink_to(PYSPARK / name)
    own = {
        "XDG_CACHE_HOME": str(folder / "cache"),  # a script that starts this python is of use to this cluster only
        "JAVA_HOME": str(quiet_home(find_java())),
        "PYSPARK_PYTHON": str(python),
        "PYTHONPATH": str(HOME),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOG_DIR": str(folder / "log"),
        "SPARK_PID_DIR": str(folder / "log"),
    }
    left_out = ("SPARK_REMOTE", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_DRIVER_PYTHON")
    return {name: value for name, value in os.environ.items() if name not in left_out} | own


class Commands:
    """Runs commands of the pipeline in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self._process = process
        self._errors = errors

    def __call__(self, commands: list[list[str]]) -> tuple[str, str]:
        """Run the commands one after the other; return what they wrote to standard output and to standard error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        begin = os.fstat(self._errors.fileno()).st_size
        print(json.dumps(commands), file=self._process.stdin, flush=True)
        said = []
        for line in self._process.stdout:
            if line == f"{DONE}\n":
                break
            said.append(line)
        self._errors.seek(begin)
        return "".join(said), self._errors.read()


@contextmanager
def command_runner(environment: dict[str, str], *session: str) -> Iterator[Commands]:
    """Start a process for commands, with the arguments of ``run_commands``.  It ends with the context."""
    command = [sys.executable, "-m", "tests.pipeline.cluster.run_commands", *session]
    with (
        tempfile.TemporaryFile("a+") as errors,  # the process appends, wherever this one reads
        subprocess.Popen(
            command, env=environment, cwd=HOME, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        watchdog = threading.Timer(_LONGEST_S, process.kill)
        watchdog.start()
        try:
            yield Commands(process, errors)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
            watchdog.cancel()


class Cluster(NamedTuple):
    """A cluster of an executor, in a process of its own, whose driver also serves Spark Connect."""

    run: Commands
    remote: str


@pytest.fixture(scope="module")
def cluster(bucket: Bucket, workers: dict[str, str]) -> Iterator[Cluster]:
    """A cluster that knows the bucket."""
    port = free_port()
    settings = bucket.settings | {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.defaultJavaOptions": QUICK_JAVA,
        "spark.executor.defaultJavaOptions": f"{QUICK_JAVA} -XX:+UseSerialGC",  # as in the driver
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.sql.codegen.wholeStage": "false",  # small queries: compiling them takes longest
        "spark.sql.shuffle.partitions": "2",
    }
    with command_runner(workers, "local-cluster[1,2,1024]", json.dumps(settings)) as run:
        yield Cluster(run, f"sc://127.0.0.1:{port}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def started(command: list[str], environment: dict[str, str], ready: str) -> Iterator[str]:
    """Start a server, yield the line that contains ``ready``, and stop the server and its processes at the end."""
    server = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert server.stdout is not None
    watchdog = threading.Timer(_PATIENCE_S, server.kill)
    watchdog.start()
    lines = []
    try:
        for line in server.stdout:
            lines.append(line)
            if ready in line:
                break
        else:
            raise AssertionError("".join(lines))
        watchdog.cancel()
        reader = threading.Thread(target=_read, args=(server.stdout,))
        reader.start()
        yield line.strip()
    finally:
        watchdog.cancel()
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(_PATIENCE_S)
        server.stdout.close() if not lines else reader.join(_PATIENCE_S)


def _read(output: IO[str]) -> None:
    with output:
        for _ in output:
            pass
