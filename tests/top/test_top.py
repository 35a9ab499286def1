"""``purgatory top``: the inspector in a terminal and as plain text."""

import contextlib
import http.client
import http.server
import importlib.util
import io
import itertools
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from rich.console import Console

from purgatory.__main__ import main
from purgatory.top import client, command, terminal
from purgatory.top.client import Client, ServiceError
from purgatory.top.screen import View, clock_time, duration, render
from purgatory.top.terminal import Keyboard, State, pressed, show
from tests.asgi.inspector.conftest import Service, service
from tests.helpers import Op

__all__ = ["service"]

ROOT = Path(__file__).parents[2]


LOOK = command.LOOK


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print the first frame at once, in tests that are not about the checks."""
    monkeypatch.setattr(command, "LOOK", 0.0)


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


def test_a_part_of_the_failures_is_called_a_sample(busy: Service) -> None:
    """The frame has the last ten of fifteen; a key of which one operation ended has no share that means anything."""
    frame = Client(busy.url, {}, 10.0).frame()
    (room, _) = frame["rooms"]
    failure = {"at": 0, "ago": 1.0, "kind": "Op", "key": "a", "error": "E", "place": ""}
    room["failures"], room["totals"]["failed"] = [failure] * 10, 15
    once, often = ({"key": key, "type": "str", "id": key, "ended": n, "expired": n} for key, n in (("b", 1), ("c", 2)))
    room["hot"]["expired"] = [often, once]
    lines = [line.text for line in render(frame, View("orders", "expired"), width=200, rows=8)]
    assert "LAST FAILURES, a sample of 10 of 15" in lines
    assert [line.split()[:2] for line in lines[lines.index("KEYS of orders by expired, of a sample") + 2 :]][:2] == [
        ["c", "2"],
        [],
    ]
    room["totals"]["failed"], room["hot"]["expired"] = 10, [once]
    lines = [line.text for line in render(frame, View("orders", "expired"), width=200, rows=8)]
    assert "LAST FAILURES" in lines
    assert (
        lines[lines.index("KEYS of orders by expired, of a sample") + 1] == "no key of which several operations ended"
    )


def test_an_error_and_the_next_deadline_are_on_the_first_screen(
    busy: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failure has its age and place, and is above the keys; a check of a key without operations is listed."""
    assert main(["top", busy.url, "--room", "jobs <i>"]) == 0
    assert "longest waiting: " in (text := capsys.readouterr().out)
    assert re.search(
        r"longest waiting: .*, since (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d \S+, ends in .*, no task awaits it:"
        r" Op on email\n",
        text,
    )

    def fail(_: Op) -> None:
        raise LookupError("no total")

    def act() -> None:
        failing = Op(None)
        busy.orders.try_complete_else_watch(failing, ["invoice-1"])
        failing._on_try = fail
        for key in ("invoice-1", "order_7", "hot"):
            busy.orders.check(key)

    busy.call(act)
    while True:  # until a frame is newer
        assert main(["top", busy.url]) == 0
        lines = capsys.readouterr().out.splitlines()
        if "LAST FAILURES" in lines:
            break
        time.sleep(0.05)
    failure = lines[lines.index("LAST FAILURES") + 1]
    line = fail.__code__.co_firstlineno + 1
    assert re.fullmatch(
        rf".* ago: Op on invoice-1: LookupError: no total at .*tests/top/test_top\.py:{line} in fail", failure
    )
    assert lines.index("LAST FAILURES") < lines.index("KEYS of orders by waiting operations")
    (title,) = [line for line in lines if line.startswith("CHECKS in")]
    assert title.endswith(": 3, 2 of them of keys on which operations waited")
    assert ["order_7", "1"] in [line.split()[:2] for line in lines]
    assert ["hot", "120", "1"] in [[*line.split()[:2], line.split()[-1]] for line in lines if line.startswith("hot ")]


def test_plain_text_comes_after_some_seconds_of_looking(
    busy: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks are counted only while somebody looks, so a key that is checked each second is not called unchecked."""
    monkeypatch.setattr(command, "LOOK", LOOK)
    assert main(["top", busy.url, "--room", "jobs <i>"]) == 0
    (title,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("CHECKS in")]
    seen = re.match(r"CHECKS in (\d+\.\d) s: 0, ", title)
    assert seen
    assert 3.0 <= float(seen[1]) < 8.0
    frame = Client(busy.url, {}, 10.0).frame()
    for room in frame["rooms"]:
        room["checks"]["seconds"] = 0.5  # a clock that does not move
    frames = iter([frame] * 1_000)
    monkeypatch.setattr(Client, "frame", lambda _: next(frames))
    monkeypatch.setattr(command, "LOOK", 0.2)
    assert main(["top", busy.url]) == 0


def test_a_frame_that_has_timed_out_is_not_asked_for_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a request is that of its end, so the next frame is not delayed by a second timeout."""
    now, asked = 1_000.0, 0

    def hang(*_: object, **__: object) -> None:
        nonlocal now, asked
        now, asked = now + 10, asked + 1
        raise TimeoutError

    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: now))
    service = Client("127.0.0.1:1", {}, 10.0)
    monkeypatch.setattr(service._opener, "open", hang)
    with pytest.raises(ServiceError):
        service.frame()
    service.stay()
    assert asked == 1
    now += 5
    service.stay()
    assert asked == 2


@pytest.mark.parametrize("last", [False, True])
def test_a_frame_that_does_not_come_is_a_line(
    busy: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], last: bool
) -> None:
    """Frames are saved while a service hangs, so the next ones are still printed; the last one is the exit status."""
    answers = iter([True, False] if last else [True, False, True])
    read = Client.frame

    def frame(self: Client) -> dict[str, Any]:
        if not next(answers):
            raise ServiceError("it does not answer")
        return read(self)

    monkeypatch.setattr(Client, "frame", frame)
    assert main(["top", busy.url, "--count", "2" if last else "3", "--interval", "0.1"]) == int(last)
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.count("CHECKS in") == (1 if last else 2)
    assert "\n\nerror: it does not answer\n" in printed.out


@pytest.mark.parametrize("live", [False, True])
def test_checks_are_counted_until_the_next_frame(
    busy: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], live: bool
) -> None:
    """The inspector stops ten seconds after a request, so a long interval has requests in between."""
    now = 1_000.0
    asked: list[float] = []
    frames: list[float] = []
    ask, read = Client._ask, Client.frame

    def request(self: Client, *arguments: Any) -> bytes:
        asked.append(now)
        return ask(self, *arguments)

    def frame(self: Client) -> dict[str, Any]:
        frames.append(now)
        return read(self)

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    class Waiting(_Keys):
        def key(self, timeout: float) -> str:
            sleep(timeout)
            return "q" if now > 1_040 else ""

    monkeypatch.setattr(Client, "_ask", request)
    monkeypatch.setattr(Client, "frame", frame)
    for module in (command, client, terminal):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    if live:
        console = Console(file=io.StringIO(), force_terminal=True, width=120, height=40)
        assert show(Client(busy.url, {}, 10.0), View(), 12.0, None, Waiting(""), console) == 0
    else:
        assert main(["top", busy.url, "--count", "4", "--interval", "12"]) == 0
        assert capsys.readouterr().out.count("CHECKS in") == 4
    gaps = [after - before for before, after in itertools.pairwise(asked)]
    assert max(gaps) <= 5.0
    assert {at - 1_000 for at in frames} == {0, 12, 24, 36}, "a frame has the longest turn since the one before"


def test_one_row_has_one_window(busy: Service) -> None:
    """Rates and waits are those of the last minute; operations that completed at once did not wait, so are apart."""
    frame = Client(busy.url, {}, 10.0).frame()
    frame["rooms"] = frame["rooms"][:1]
    frame["findings"] = []
    counts = {"waited": 12, "immediate": 6000, "expired": 1, "failed": 0, "refused": 30}
    frame["rooms"][0]["minute"].update(seconds=60.0, wait={"count": 0}, lateness={"count": 0}, **counts)
    lines = [line.text for line in render(frame, View(), width=400, rows=8)]
    assert "Nothing stands out." in lines
    place = lines.index("PURGATORIES, rates and waits of the last 60 s")
    columns = dict(zip(lines[place + 1].split(), lines[place + 2].split(), strict=False))
    assert (columns["DONE/s"], columns["EXPIRED/s"], columns["FAILED/s"], columns["REFUSED/s"], columns["AT"]) == (
        "0.2", "<0.1", "0.0", "0.5", "100",
    )  # fmt: skip


def test_a_search_shows_who_waits_on_a_key(busy: Service, capsys: pytest.CaptureFixture[str]) -> None:
    """``--search`` lists the keys that contain the text, the best match first, and the operations on that."""
    assert main(["top", busy.url, "--search", "ho", "--rows", "2"]) == 0
    text = capsys.readouterr().out
    assert "KEYS of orders that contain 'ho'" in text
    assert "WAITING on hot, 2 of 120" in text
    assert "No operation waits on exactly 'ho'." in text.splitlines()
    assert "by waiting operations" not in text
    assert main(["top", busy.url, "--room", "jobs <i>", "--search", "hot"]) == 0
    assert "No operation waits on such a key." in capsys.readouterr().out
    assert main(["top", busy.url, "--search", "hot"]) == 0
    assert "No operation" not in capsys.readouterr().out


def test_a_finding_is_never_cut(busy: Service) -> None:
    """In a narrow terminal, it takes several lines."""
    frame = Client(busy.url, {}, 10.0).frame()
    frame["findings"] = [{"level": "critical", "room": None, "text": "a reason " * 40 + "the end"}]
    lines = render(frame, View(), width=60, rows=3)
    shown = [line.text for line in lines if line.style == "critical" and "reason" in line.text]
    assert max(map(len, shown)) <= 60
    assert " ".join(" ".join(shown).split()) == "CRITICAL " + "a reason " * 40 + "the end"


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
    capsys.readouterr()
    for port in ("65537", "http"):
        assert main(["top", f"127.0.0.1:{port}/purgatory"]) == 2
        assert "the port of the URL must be a number from 0 to 65535, got" in capsys.readouterr().err
    for bad in (["--rows", "0"], ["--interval", "nan"], ["--header", "x"], ["--sort", "size"], []):
        with pytest.raises(SystemExit) as ended:
            main(["top", *(["localhost"] if bad else []), *bad])
        assert ended.value.code == 2


@pytest.mark.parametrize(
    "arguments", [["http://me:s3cret@127.0.0.1:1/page"], ["me:s3cret@127.0.0.1:1"], ["me:s3cret@\u2100"]]
)
def test_a_user_in_the_url_is_refused_and_not_repeated(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """The error names ``--header`` instead."""
    assert main(["top", *arguments]) == 2
    error = capsys.readouterr().err
    assert "--header" in error
    assert "s3cret" not in error


@pytest.mark.parametrize("header", ["Bearer s3cret", "X: s3cret€", "X: s3cret\n"])
def test_a_malformed_header_is_not_repeated(capsys: pytest.CaptureFixture[str], header: str) -> None:
    """It may be a token whose name was forgotten."""
    with pytest.raises(SystemExit):
        main(["top", "127.0.0.1:1", "--header", header])
    error = capsys.readouterr().err
    assert "must " in error
    assert "s3cret" not in error


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


@contextlib.contextmanager
def dying(answer: bytes, *, drip: bytes = b"") -> Iterator[str]:
    """Send these bytes to every client, then ``drip`` again and again; yield the URL."""
    ended = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                if ended.is_set():
                    return
                connection.recv(65_536)
                connection.sendall(answer)
                while not ended.wait(0.02):
                    connection.sendall(drip)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        ended.set()
        with socket.create_connection(listener.getsockname()):
            thread.join()
        listener.close()


_UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 100000\r\n\r\n{"


@pytest.mark.parametrize(
    ("answer", "drip", "reason"),
    [
        (_UNAVAILABLE, b"", "answers 503: the reason cannot be read (the answer was not complete within 0.2 s)"),
        (_UNAVAILABLE, b" ", "answers 503: the reason cannot be read (the answer was not complete within 0.2 s)"),
        (b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 9999\r\n\r\n", b" ", "not complete within 0.2 s"),
        (b"HTTP/1.1 200 OK\r\nX: ", b" ", "the answer was not complete within 0.2 s"),
    ],
    ids=["silence", "drip", "redirect", "headers"],
)
def test_every_part_of_an_answer_ends_with_the_timeout(
    answer: bytes, drip: bytes, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--timeout`` also limits the headers, the body of an error, and the body of a redirect."""
    with dying(answer, drip=drip) as url:
        assert main(["top", url, "--timeout", "0.2"]) == 1
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("line", [b"\x1b]0;title\x07\x1b[2J", b"HTTP/1.1 \x1b[2J", b"\x1b[2J/1.1 200 OK"])
def test_an_answer_moves_no_cursor(line: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """An error may repeat what the service has sent, but not a character that the terminal obeys."""
    with dying(line + b"\r\n\r\n") as url:
        assert main(["top", url, "--timeout", "5"]) == 1
    shown = capsys.readouterr().err
    assert "does not answer: " in shown
    assert shown.rstrip("\n").isprintable()


def test_an_error_whose_reason_cannot_be_read_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that dies while it sends an error response has at least sent the status."""

    def reset(*_: Any) -> bytes:
        raise ConnectionResetError(104, "reset by peer")

    monkeypatch.setattr(http.client.HTTPResponse, "read", reset)
    with answering(503, b"{") as url, pytest.raises(ServiceError, match=r"answers 503: .* \(.*reset by peer\)"):
        Client(url, {}, 10.0).frame()


_FRAME = {
    "version": 1, "title": "t", "findings": [], "loop": {"lag": 0}, "relays": [], "rooms": [],
    "time": 0, "worker": {"pid": 1, "host": "h", "uptime": 1},
}  # fmt: skip


@pytest.mark.parametrize("other", [{"rooms": [1]}, {"rooms": [{}]}, {"worker": None}, {"relays": 3}, {"loop": {}}])
def test_a_malformed_frame_is_an_error_on_the_screen(other: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Plain text ends with the reason, and the live view shows the reason and tries again."""
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=200, height=40)
    with answering(200, json.dumps({**_FRAME, **other}).encode()) as url:
        assert main(["top", url]) == 1
        assert show(Client(url, {}, 10.0), View(), 60.0, None, _Keys("nq"), console) == 0
    assert "sends a frame that cannot be shown" in capsys.readouterr().err
    assert "sends a frame that cannot be shown" in output.getvalue()


def test_a_path_may_contain_letters_of_any_language(capsys: pytest.CaptureFixture[str]) -> None:
    """They are sent as a browser sends them; what is already in that form stays as it is."""
    with dying(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") as url:
        assert main(["top", f"{url}/\u00fc/%C3%BC(1)/"]) == 1
    assert f"{url}/%C3%BC/%C3%BC(1)/state.json answers 404" in capsys.readouterr().err


def test_a_host_or_a_header_that_cannot_be_sent_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A label of a host name has at most 63 letters, also in a redirect; a header is Latin-1."""
    host = "a" * 70 + ".example"
    assert main(["top", host]) == 1
    with dying(b"HTTP/1.1 302 Found\r\nLocation: http://%b/\r\nContent-Length: 0\r\n\r\n" % host.encode()) as url:
        assert main(["top", url, "--timeout", "5"]) == 1
    assert capsys.readouterr().err.count("does not answer: ") == 2
    with pytest.raises(ServiceError, match=r"does not answer: .*latin-1"):
        Client("127.0.0.1:1", {"X": "€"}, 1.0).frame()
    with pytest.raises(SystemExit):
        main(["top", "127.0.0.1:1", "--header", "X: €"])
    assert "must have an ASCII name and a Latin-1 value" in capsys.readouterr().err


def test_a_purgatory_is_chosen_by_its_full_name(busy: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frame has a shorter name than the purgatory."""
    frame = Client(busy.url, {}, 10.0).frame()
    frame["rooms"][1]["name"] = "x" * 119 + "…"
    monkeypatch.setattr(Client, "frame", lambda _: frame)
    assert main(["top", busy.url, "--room", "x" * 130]) == 0


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


def test_a_clock_time_has_its_zone_and_a_date_if_it_is_on_another_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zone is the one of the terminal, because an operator compares the time with a log."""
    at = datetime(2026, 11, 24, 3, 0, 5, tzinfo=UTC).timestamp()
    try:
        for zone, now, shown in (
            ("UTC", at + 60, "03:00:05 UTC"),
            ("CET-1CEST", at + 60, "04:00:05 CET"),
            ("UTC", at + 86_400, "2026-11-24 03:00:05 UTC"),
        ):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            assert clock_time(at, now) == shown
        for impossible in (1e15, 1e17, 1e19):  # each raises another error
            with pytest.raises(ServiceError, match="a frame that cannot be shown"), Client("h", {}, 1.0).showing():
                clock_time(impossible, at)
    finally:
        monkeypatch.undo()
        time.tzset()


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


def test_a_search_is_typed_in_the_live_view(busy: Service) -> None:
    """A slash begins a search, Enter runs it, and Escape returns to all keys; a search follows the purgatory."""
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=120, height=40)
    keys = _Keys("/hox\x7fq\x7f\rn\x1bq")
    assert show(Client(busy.url, {}, 0.5), View(), 60.0, None, keys, console) == 0
    text = output.getvalue()
    for shown in (
        "search: ho_   Enter: search",
        "KEYS of orders that contain 'ho'",
        "WAITING on hot, 9 of 120",
        "KEYS of jobs <i> that contain 'ho'",
        "KEYS of jobs <i> by waiting operations",
    ):
        assert shown in text
    typing = State(View(), typed="a")
    assert pressed(typing, "\x1b", None) == State(View())
    assert pressed(typing, "\x00", None) == typing


def test_each_key_has_its_meaning() -> None:
    """The next purgatory follows the one that is shown; unknown keys change nothing."""
    frame = {"rooms": [{"name": "a", "parked": 1}, {"name": "b", "parked": 2}, {"name": "c", "silent": True}]}
    state = State(View())
    assert pressed(state, "n", frame).view.room == "a"  # after b, the fullest
    assert pressed(State(View("a")), "\t", frame).view.room == "b"
    assert pressed(state, "n", None) == pressed(state, "x", frame) == pressed(state, "", frame) == state
    assert pressed(state, "q", frame).ended
    assert pressed(pressed(state, " ", frame), " ", frame) == state


@pytest.mark.skipif(sys.platform == "win32", reason="select() takes sockets only")
@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        ([b"wq"], "wq"),
        ([b"\x1b[Aq"], "q"),
        ([b"\x1b[1;5A\x1bOBq\x1b"], "q\x1b"),
        ([b"\x1b", b"[", b"Aq"], "q"),
        (["/\xe9".encode()[:2], "/\xe9".encode()[2:]], "/\xe9"),
        ([b"/\xe9x"], "/\ufffdx"),
    ],
)
def test_keys_may_arrive_together_or_in_parts(typed: list[bytes], keys: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key waits for the next one, arrows are no keys, and a byte that is not UTF-8 is no error."""
    reader, writer = os.pipe()
    parts = iter(typed)
    real = select.select

    def selecting(*arguments: Any) -> Any:
        """Type the next part."""
        if part := next(parts, b""):
            os.write(writer, part)
        return real(*arguments)

    with open(reader, encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(select, "select", selecting)
        keyboard = Keyboard()
        found = [keyboard.key(0.0) for _ in range(5)]
        assert "".join(found) == keys
        os.close(writer)
        monkeypatch.setattr(select, "select", real)
        state = State(View(), typed="a")
        for _ in range(2):
            state = pressed(state, keyboard.key(0.0), None)
        assert state.ended


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


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudoterminals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_the_terminal_as_it_was(busy: Service, number: signal.Signals) -> None:
    """The other screen is left, the echo is on again, and the exit status is that of a shell."""
    import termios

    leader, follower = pty.openpty()
    before = termios.tcgetattr(follower)
    command = [sys.executable, "-m", "purgatory", "top", busy.url]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=environment,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # nohup ignores SIGHUP, and children inherit that
    ) as process:
        _read_until(leader, "KEYS of orders by waiting operations")
        process.send_signal(number)
        _read_until(leader, "\x1b[?1049l")  # before waiting: a terminal that nobody reads is full after a few kilobytes
        assert process.wait(20) == 128 + number
    assert termios.tcgetattr(follower) == before
    os.close(leader)
    os.close(follower)


def test_a_system_without_sighup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has no such signal; the live view starts there."""
    monkeypatch.delattr(signal, "SIGHUP", raising=False)
    spec = importlib.util.find_spec("purgatory.top.terminal")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with module._exiting_on_signals():
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def _read_until(descriptor: int, text: str) -> str:
    seen = ""
    ends = time.monotonic() + 20
    while text not in seen:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, ends - time.monotonic()))
        assert ready, seen
        seen += os.read(descriptor, 65536).decode(errors="replace")
    return seen
