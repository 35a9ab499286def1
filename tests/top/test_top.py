"""``purgatory top``: the inspector in a terminal and as plain text."""

import contextlib
import http.server
import io
import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from rich.console import Console

from purgatory.__main__ import main
from purgatory.top.client import Client
from purgatory.top.screen import View, duration, render
from purgatory.top.terminal import Keyboard, State, pressed, show
from tests.asgi.inspector.conftest import Service, service
from tests.helpers import Op

__all__ = ["service"]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def busy(service: Service) -> Service:
    """Return a service in which operations wait."""

    def parks() -> None:
        for _ in range(120):
            service.orders.try_complete_else_watch(Op(None), ["hot"])
        service.orders.try_complete_else_watch(Op(600.0), ["7"])
        service.orders.try_complete_else_watch(Op(600.0), [7])
        service.jobs.try_complete_else_watch(Op(60.0), ["email"])

    service.call(parks)
    return service


def test_a_pipe_gets_plain_text_once(busy: Service, capsys: pytest.CaptureFixture[str]) -> None:
    """Findings, purgatories, keys, kinds and operations are lines without control characters."""
    assert main(["top", busy.url, "--rows", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() for line in lines)
    text = "\n".join(lines)
    assert "CRITICAL  orders: The relay is not connected" in text
    assert "relay of orders: NOT CONNECTED through LostTransport" in text
    assert "KEYS of orders by waiting operations" in text
    (row,) = [line.split() for line in lines if line.startswith("hot ")]
    assert row[:2] == ["hot", "120"]
    assert "'7'" in text  # a str that looks like an int
    assert "LONGEST WAITING, 3 of 122" in text


def test_a_purgatory_an_order_and_a_count_can_be_chosen(busy: Service, capsys: pytest.CaptureFixture[str]) -> None:
    """``--room`` selects the purgatory, ``--sort`` the order of its keys, ``--count`` the number of frames."""
    order = ["--room", "jobs <i>", "--sort", "total_wait", "--count", "2", "--interval", "0.1"]
    assert main(["top", busy.url.removeprefix("http://"), *order]) == 0
    text = capsys.readouterr().out
    assert text.count("KEYS of jobs <i> by total wait") == 2
    assert "email" in text


@contextlib.contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """Serve one answer to every request; yield the URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (403, b'{"detail": "not you"}', "answers 403: not you"),
        (500, b"<html>", "answers 500: no reason given"),
        (200, b"<html>", "is not an inspector of this version"),
        (200, b'{"version": 2, "rooms": []}', "is not an inspector of this version"),
        (200, b"[1]", "is not an inspector of this version"),
        (200, b'{"version": 1, "rooms": []}', "is not an inspector of this version"),
        (200, b"[" * 100_000, "is not an inspector of this version"),
        (500, b"[" * 4096, "answers 500: no reason given"),
        (403, b'{"detail": "\\u001b[2J"}', r"answers 403: \x1b[2J"),
    ],
)
def test_an_answer_that_is_no_frame_is_an_error(
    status: int, body: bytes, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 1, and the reason is on standard error, with the URL."""
    with answering(status, body) as url:
        assert main(["top", url]) == 1
    assert reason in capsys.readouterr().err


def test_a_service_that_does_not_answer_and_bad_arguments_are_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """An unreachable service is exit status 1, a bad argument 2."""
    assert main(["top", "127.0.0.1:1/purgatory"]) == 1
    assert "http://127.0.0.1:1/purgatory/state.json does not answer" in capsys.readouterr().err
    assert main(["top", "file:///etc/passwd"]) == 2
    for bad in (["--rows", "0"], ["--interval", "nan"], ["--header", "x"], ["--sort", "size"], []):
        with pytest.raises(SystemExit) as ended:
            main(["top", *(["localhost"] if bad else []), *bad])
        assert ended.value.code == 2


def test_headers_are_not_sent_to_another_origin(capsys: pytest.CaptureFixture[str]) -> None:
    """A redirect to another origin is followed without ``--header`` only: a token must not go there."""
    asked: list[str | None] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["Authorization"])
            port = self.server.server_address[1]
            if self.path.startswith(("/away", "/here")):
                host = "localhost" if self.path.startswith("/away") else "127.0.0.1"
                self.send_response(302)
                self.send_header("Location", f"http://{host}:{port}/page")
            else:
                self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        url, token = f"127.0.0.1:{server.server_address[1]}", ["--header", "Authorization: t"]
        for path, headers in (("away", token), ("here", token), ("away", [])):
            assert main(["top", f"{url}/{path}", *headers]) == 1
        server.shutdown()
        thread.join()
    assert asked == ["t", "t", "t", None, None]
    errors = capsys.readouterr().err.splitlines()
    assert "redirects to http://localhost:" in errors[0]
    assert all("is not an inspector" in error for error in errors[1:])


def test_an_answer_that_does_not_end_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """``--timeout`` limits the whole answer, also if the service sends a byte now and then."""
    ended = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                while not ended.wait(0.02):
                    self.wfile.write(b" ")

        def log_message(self, *_: Any) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        assert main(["top", f"127.0.0.1:{server.server_address[1]}", "--timeout", "0.2"]) == 1
        ended.set()
        server.shutdown()
        thread.join()
    assert "the answer was not complete within 0.2 s" in capsys.readouterr().err


def test_an_unknown_purgatory_is_named(busy: Service, capsys: pytest.CaptureFixture[str]) -> None:
    """The error lists the names that exist."""
    assert main(["top", busy.url, "--room", "nowhere"]) == 1
    assert "there is no purgatory 'nowhere', only 'orders', 'jobs <i>'" in capsys.readouterr().err


def test_headers_are_sent(capsys: pytest.CaptureFixture[str], busy: Service) -> None:
    """``--header`` passes the authentication of a proxy; here, a host that the inspector refuses."""
    assert main(["top", busy.url, "--header", "Host: attacker.example"]) == 1
    assert "answers 400" in capsys.readouterr().err


def test_plain_text_in_a_file_has_the_whole_reason(
    busy: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only a terminal has a width."""
    frame = Client(busy.url, {}, 10.0).frame()
    frame["findings"] = [{"level": "critical", "room": None, "text": "a reason " * 40}]
    monkeypatch.setattr(Client, "frame", lambda _: frame)
    assert main(["top", busy.url]) == 0
    assert "a reason " * 40 in capsys.readouterr().out


def test_no_text_of_the_service_moves_the_cursor(busy: Service) -> None:
    """Lines are cut to the width, and control characters of a hostile service are replaced."""
    frame = Client(busy.url, {}, 10.0).frame()
    frame["title"] = "\x1b[2J" * 100
    frame["rooms"][0]["hot"]["watchers"][0]["key"] = "a\nb\x07" + "c" * 500
    for line in render(frame, View(), width=70, rows=5):
        assert len(line.text) <= 70
        assert line.text.isprintable()


def test_durations_have_a_unit() -> None:
    """Durations are rounded to two or three digits."""
    texts = [duration(seconds) for seconds in (0.0, 0.0042, 0.25, 3.14, 42.0, 90.0, 7200.0, 1e6)]
    assert texts == ["0 ms", "4.2 ms", "250 ms", "3.1 s", "42 s", "1.5 min", "2.0 h", "12 d"]


class _Keys(Keyboard):
    """A keyboard whose keys are given; each is pressed after a frame."""

    def __init__(self, keys: str, then: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._keys = iter(keys)
        self._then = then

    def __enter__(self) -> Self:
        return self

    def key(self, timeout: float) -> str:
        key = next(self._keys)
        if key == "!":
            self._then()
            return ""
        return key


def test_the_live_view_follows_the_keys(busy: Service) -> None:
    """Keys change the order and the purgatory; a service that stops is shown, and the last frame stays."""
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=120, height=40)
    keys = _Keys("ten! q", then=busy.stop)
    assert show(Client(busy.url, {}, 0.5), View(), 0.0, None, keys, console) == 0
    text = output.getvalue()
    orders = ("KEYS of orders by total wait", "KEYS of orders by expired, of a sample", "KEYS of jobs <i>")
    for shown in (*orders, "does not answer", "trying again", "PAUSED"):
        assert shown in text


def test_each_key_has_its_meaning() -> None:
    """The next purgatory follows the one that is shown; unknown keys change nothing."""
    frame = {"rooms": [{"name": "a", "parked": 1}, {"name": "b", "parked": 2}, {"name": "c", "silent": True}]}
    state = State(View())
    assert pressed(state, "n", frame).view.room == "a"  # after b, the fullest
    assert pressed(State(View("a")), "\t", frame).view.room == "b"
    assert pressed(state, "n", None) == pressed(state, "x", frame) == pressed(state, "", frame) == state
    assert pressed(state, "q", frame).ended
    assert pressed(pressed(state, " ", frame), " ", frame) == state


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudoterminals")
def test_in_a_real_terminal(busy: Service) -> None:
    """The command shows the live view, obeys a key at once, and leaves the terminal as it was."""
    import termios

    leader, follower = pty.openpty()
    before = termios.tcgetattr(follower)
    command = [sys.executable, "-m", "purgatory", "top", busy.url, "--interval", "0.2"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(
        command, cwd=ROOT, stdin=follower, stdout=follower, stderr=follower, env=environment
    ) as process:
        seen = _read_until(leader, "KEYS of orders by waiting operations")
        os.write(leader, b"t")
        seen += _read_until(leader, "by total wait")
        os.write(leader, b"q")
        _read_until(leader, "\x1b[?1049l")  # the other screen is left
        assert process.wait(20) == 0
    assert "\x1b[?1049h" in seen
    assert termios.tcgetattr(follower) == before
    os.close(leader)
    os.close(follower)


def _read_until(descriptor: int, text: str) -> str:
    seen = ""
    ends = time.monotonic() + 20
    while text not in seen:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, ends - time.monotonic()))
        assert ready, seen
        seen += os.read(descriptor, 65536).decode(errors="replace")
    return seen
