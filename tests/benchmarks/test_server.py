"""The benchmark of the long poll on uvicorn: every variant answers, and a wrong answer is an error."""

import importlib.util
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.row import Scale, Unavailable
from benchmarks.server import prepare
from benchmarks.server.load import Client, Load, Shape, responses
from benchmarks.server.process import ServerProcess
from benchmarks.server.section import NAMES, Samples, rows_of, shapes

linux = pytest.mark.skipif(sys.platform != "linux", reason="the section needs Linux")

APART = Shape("apart", clients=12, keys=1, publishes=5, apart=True)
TOGETHER = Shape("together", clients=12, keys=3, publishes=3, apart=False)


@pytest.mark.slow
@linux
@pytest.mark.parametrize("form", [*NAMES, "undetected"])
def test_each_publish_completes_what_it_must(form: str) -> None:
    """Every variant works in both shapes; the CPU time and memory of the server process are measured."""
    core = max(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    with ServerProcess(form, core) as server:
        assert os.sched_getaffinity(server.pid) == {core}
        for shape in (APART, TOGETHER):
            with Load(server.port, shape, prefix=shape.name) as load:
                load.warm_up(3)
                cpu, collector = server.cpu(), load.collector()
                load.connect()
                latencies = load.one_pass() + load.one_pass(busy=True) + load.one_pass()
                assert len(latencies) == 2 * shape.publishes
                assert all(latency > 0 for latency in latencies)
                assert 0 <= load.collector() - collector <= server.cpu() - cpu
        assert server.resident() > 1 << 20
    assert os.sched_getaffinity(0) == before
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


@pytest.mark.slow
@linux
def test_a_server_does_not_outlive_its_parent() -> None:
    """The server ends when the other end of its standard input is closed, even if the parent was killed."""
    script = (
        "import os, sys; from benchmarks.server.process import ServerProcess;"
        " print(ServerProcess('wait', max(os.sched_getaffinity(0))).pid, flush=True); os._exit(9)"
    )
    root = Path(__file__).parent.parent.parent
    parent = subprocess.run([sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE, check=False)
    assert parent.returncode == 9  # and its standard output has ended, which the server has inherited


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_responses_are_taken_off_the_buffer_when_they_are_complete(size: int) -> None:
    """Responses are split correctly, however the bytes arrive; the rest stays for the next response."""
    sent = (
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nx: y\r\n\r\nabc"
        b"HTTP/1.1 204 No Content\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 5\r\n\r\nsor"
    )
    buffer, seen = bytearray(), []
    for start in range(0, len(sent), size):
        buffer += sent[start : start + size]
        seen += responses(buffer)
    assert seen == [(200, b"abc"), (204, b""), (200, b"")]
    assert buffer.endswith(b"\r\n\r\nsor")
    buffer += b"ry"
    assert list(responses(buffer)) == [(500, b"sorry")]
    assert not buffer


def test_a_response_without_a_length_is_an_error() -> None:
    """A response without a length raises an error instead of waiting forever."""
    with pytest.raises(ValueError, match="must have a content-length"):
        list(responses(bytearray(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")))


@contextmanager
def _answering(*answers: bytes) -> Iterator[int]:
    """Run a server that answers each request of one connection with the next of these responses.  Yield its port."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            for answer in answers:
                connection.recv(65536)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join()


def test_a_client_refuses_what_is_no_answer() -> None:
    """A status other than 200, and a connection that the server closes, raise an error."""
    with _answering(b"HTTP/1.1 204 No Content\r\n\r\n") as port:
        client = Client(port)
        client.send("GET", "/")
        with pytest.raises(RuntimeError, match="must answer 200, got 204"):
            client.response()
        client.send("GET", "/")
        with pytest.raises((RuntimeError, ConnectionResetError)):
            client.response()
        client.socket.close()


@pytest.mark.slow
@linux
def test_an_answer_that_is_not_due_is_an_error() -> None:
    """A server that answers a request before its entry exists raises an error."""
    with ServerProcess("wait", max(os.sched_getaffinity(0))) as server, Load(server.port, APART) as load:
        load.connect()
        other = Client(server.port)
        other.send("POST", "/topics/0")
        assert other.response() == b"1"
        refused = r"must be due, got 200 b'2'|must end at \[b'1'\], got \[b'2'\]"
        with pytest.raises(RuntimeError, match=refused):
            load.publish()
        other.socket.close()


@pytest.mark.slow
@linux
def test_a_publish_that_would_complete_another_number_is_an_error() -> None:
    """A publish must complete the number of requests that the shape defines."""
    with (
        ServerProcess("event", max(os.sched_getaffinity(0))) as server,
        Load(server.port, TOGETHER) as load,
        pytest.raises(RuntimeError, match="must complete 4, got 0"),
    ):
        load.publish()


def _samples(cpu: dict[str, list[float]]) -> dict[str, Samples]:
    return {form: Samples(cpu[form], cpu[form], [1.0], [1.0], [2.0]) for form in NAMES}


def test_ours_is_the_form_that_fits_the_shape() -> None:
    """The thresholds are used where a publish completes one of many; the budgets are attached to the right rows."""
    cpu = {"wait": [30.0], "thresholds": [1.0], "event": [33.0], "event-reader": [40.0], "condition": [50.0]}
    many, one, all_of_key = (rows_of(shape, _samples(cpu)) for shape in shapes(Scale()))
    for rows in (many, one):
        assert {row.ours for row in rows if row.what.startswith("CPU")} == {1.0}
    assert {row.ours for row in all_of_key if row.what.startswith("CPU")} == {30.0}
    budgets = [row for rows in (many, one, all_of_key) for row in rows if row.budget]
    assert [(row.peer, row.ratio, row.met(compiled=True)) for row in budgets] == [
        ("asyncio.timeout + Event", 33.0, True),
        ("asyncio.timeout + Event", 1.1, True),
        ("timeout + Event + reader task", 40 / 30, True),
    ]
    cpu["wait"] = [38.5]  # 1.17 of one form, and 0.96 of the other
    budgets = [row for row in rows_of(shapes(Scale())[2], _samples(cpu)) if row.budget]
    assert [row.met(compiled=True) for row in budgets] == [False, False]
    assert not [row for row in rows_of(shapes(Scale(quick=True))[0], _samples(cpu)) if row.budget]


@linux
def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is not installed, or a limit of open files that is too low, is reported."""
    prepare()
    with monkeypatch.context() as patch:
        patch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
        with pytest.raises(Unavailable, match="10200 open files are needed, and the limit is 4096"):
            prepare()
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvloop" else find(name))
    with pytest.raises(Unavailable, match="uvloop is not installed: install the extra 'examples'"):
        prepare()
