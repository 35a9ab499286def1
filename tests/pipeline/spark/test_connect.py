"""A command with a Spark Connect server that cannot be reached, or that is lost; each in a process of its own."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
pytest.importorskip("grpc", reason="needs a client of Spark Connect")

import grpc

from purgatory.pipeline.spark.connect import _is_unavailable, _retry_policy, connected_session

pytestmark = pytest.mark.timeout(100)

# The command, with shorter times.  It says when it begins to wait.
COMMAND = """
import signal, sys
from purgatory.pipeline.__main__ import main
from purgatory.pipeline.spark import connect

connect._CONNECT_S = float(sys.argv.pop(1))
connect._RETRIES = {"max_retries": int(sys.argv.pop(1)), "max_backoff": 50}
reach = connect._reach
def say(remote):
    print("connecting", file=sys.stderr, flush=True)
    return reach(remote)
connect._reach = say
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def refused() -> threading.Semaphore:
    """Released for each call that the server refuses."""
    return threading.Semaphore(0)


@pytest.fixture
def broken(refused: threading.Semaphore) -> Iterator[str]:
    """A server that is reached, and refuses each call as one does that is not available."""

    class Unavailable(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no type annotations
        def service(self, _: Any) -> Any:
            def refuse(_: Any, context: Any) -> None:
                refused.release()
                context.abort(grpc.StatusCode.UNAVAILABLE, "no power")

            return grpc.stream_unary_rpc_method_handler(lambda _, context: refuse(_, context))

    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads)
        server.add_generic_rpc_handlers((Unavailable(),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(None).wait()


@pytest.fixture
def unused() -> Iterator[str]:
    """An address on which no server listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def started(server: str, out: pathlib.Path, connect_s: float, retries: int) -> subprocess.Popen[str]:
    """Start a report, and return its process when it connects to the server."""
    left_out = ("SPARK_REMOTE", "PYSPARK_GATEWAY_PORT")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment["PYTHONPATH"] = os.pathsep.join(path or "." for path in sys.path)
    environment["no_grpc_proxy"] = "127.0.0.1"
    arguments = ["report", "/journal", "--remote", f"sc://{server}", "--out", str(out)]
    command = [sys.executable, "-c", COMMAND, str(connect_s), str(retries), *arguments, "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    assert process.stderr.readline() == "connecting\n"
    return process


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    with process:
        try:
            output, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    return process.returncode, output, errors


def test_a_server_that_cannot_be_reached_is_an_error_in_one_line(unused: str, tmp_path: pathlib.Path) -> None:
    """After a few seconds, and without the token."""
    said = f"error: the Spark Connect server {unused} cannot be reached within 0.3 s\n"
    assert ended(started(f"{unused}/;token=S3CRET", tmp_path, 0.3, 100)) == (1, "", said)


def test_a_server_that_is_lost_is_an_error_in_one_line(broken: str, tmp_path: pathlib.Path) -> None:
    """After a limited number of attempts; the session is not released, which would take as many."""
    said = f"error: the Spark Connect server {broken} can no longer be reached\n"
    assert ended(started(broken, tmp_path, 10, 3)) == (1, "", said)


SIGNALS = pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])


@SIGNALS
def test_a_signal_ends_a_command_that_connects(number: int, status: int, unused: str, tmp_path: pathlib.Path) -> None:
    """At once, with the status of a shell, and without a line."""
    process = started(unused, tmp_path, 100, 10_000)
    process.send_signal(number)
    assert ended(process) == (status, "", "")


@SIGNALS
def test_a_signal_ends_a_command_that_repeats_a_call(
    number: int, status: int, broken: str, refused: threading.Semaphore, tmp_path: pathlib.Path
) -> None:
    """The same, also if the signal arrives while gRPC handles the end of a call."""
    process = started(broken, tmp_path, 10, 10_000)
    assert refused.acquire(timeout=60)  # the first call
    assert refused.acquire(timeout=60)  # the same, repeated
    process.send_signal(number)
    assert ended(process) == (status, "", "")


@pytest.mark.parametrize("url", ["sc://h:1/;token=S3CRET=", "sc://:1/;token=S3CRET", "sc://h:x/;token=S3CRET"])
def test_a_url_that_is_none_is_an_error_without_its_token(url: str) -> None:
    """PySpark's own messages would contain it."""
    wanted = "remote must be a URL such as sc://host:15002/;NAME=VALUE, got"
    with pytest.raises(ValueError, match=wanted) as raised, connected_session(url, {}):
        pass
    assert "S3CRET" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_no_call_is_repeated_at_the_end_of_the_session() -> None:
    """The calls of other threads are not, either."""

    class Unavailable(grpc.RpcError):  # type: ignore[misc]
        def code(self) -> Any:
            return grpc.StatusCode.UNAVAILABLE

    ending = threading.Event()
    policy = _retry_policy(ending)
    assert policy.can_retry(Unavailable())
    ending.set()
    assert not policy.can_retry(Unavailable())
    assert not _is_unavailable(ValueError("StatusCode.UNAVAILABLE"))
