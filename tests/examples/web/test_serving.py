"""The page without a browser: its responses, its limits, and its cost for the observed program."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from examples.join_group.__main__ import main
from examples.join_group.cli import parse
from examples.web import Collector, LoopLagMonitor, Page
from purgatory import DelayedOperation, Purgatory, SystemTimer
from purgatory.testing import VirtualClock


class _Never(DelayedOperation[None]):
    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        return None


class _CountingCollector:
    """A collector that counts its calls."""

    def __init__(self) -> None:
        self.looks = 0

    def collect(self) -> dict[str, Any]:
        self.looks += 1
        return {"looks": self.looks}


def _connect(page: Page) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", int(page.url.rsplit(":")[-1].strip("/")), timeout=10)


def _get(page: Page, path: str, host: str | None = None) -> tuple[int, http.client.HTTPMessage, bytes]:
    with contextlib.closing(_connect(page)) as connection:
        connection.request("GET", path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


@contextlib.contextmanager
def _looking(page: Page, collector: Any) -> Iterator[None]:
    """Run a thread that updates the page continuously."""
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.001):
            page.update(collector)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_the_page_loads_nothing_from_elsewhere() -> None:
    """The three files are served unchanged, and their policy forbids every other source."""
    with Page() as page:
        for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "javascript")):
            status, headers, body = _get(page, path)
            assert status == 200
            assert kind in headers["content-type"]
            assert headers["content-security-policy"].startswith("default-src 'self'")
            assert b"://" not in body.replace(b"http://www.w3.org/2000/svg", b"")
        assert _get(page, "/etc/passwd")[0] == 404


def test_another_name_for_it_is_refused() -> None:
    """Requests with another host name are refused, so other pages cannot read this one."""
    with Page() as page:
        assert _get(page, "/", host="elsewhere.example")[0] == 400
        assert _get(page, "/", host="localhost")[0] == 200


def test_without_a_watcher_nobody_looks() -> None:
    """Without a browser no snapshot is taken."""
    collector: Any = _CountingCollector()
    with Page() as page:
        for _ in range(100):
            page.update(collector)
    assert collector.looks == 0


def test_the_next_frame_is_to_be_had_as_json() -> None:
    """``/state`` returns a frame that was created after the request."""
    collector = _CountingCollector()
    with Page() as page, _looking(page, collector):
        status, _, body = _get(page, "/state")
    frame = json.loads(body)
    assert status == 200
    assert frame["looks"] == frame["number"] >= 1
    assert frame["ended"] is False


def test_too_many_watchers_are_refused_and_the_others_let_go_at_the_end() -> None:
    """Above the limit the response is 503; when the page closes, the open streams end."""
    collector: Any = _CountingCollector()
    with contextlib.ExitStack() as stack:
        with Page() as page:
            page.broadcast.max_watchers = 1
            connection = stack.enter_context(contextlib.closing(_connect(page)))
            connection.request("GET", "/events")
            stream = connection.getresponse()
            assert (stream.status, stream.readline(), stream.readline()) == (200, b"retry: 1000\n", b"\n")
            with _looking(page, collector):
                assert b'"ended":false' in stream.readline()
            assert _get(page, "/events")[0] == 503
            page.update_at_end(collector)
        assert b'"ended":true' in stream.read()


async def test_a_frame_shows_what_waits(clock: VirtualClock) -> None:
    """Buckets, statistics, hot keys and rates of a frame are those of the timer and its purgatories."""
    async with SystemTimer(clock=clock) as timer, Purgatory[_Never]("room", timer=timer) as room:
        collector = Collector("test", timer, [room])
        assert collector.collect()["timer"]["next_ms"] is None
        for seconds in (0.005, 0.45, 30.0, 30.0):
            room.try_complete_else_watch(_Never(seconds), ["a", ("b", 1)])
        frame = collector.collect()
        assert [sum(bucket[2] for bucket in level["buckets"]) for level in frame["timer"]["levels"]] == [1, 0, 1, 2]
        assert frame["timer"]["next_ms"] == 5
        assert sorted(frame["purgatories"][0]["hot"]) == [["a", 4], ["b / 1", 4]]
        await clock.advance(1.0)
        after = collector.collect()
        assert (after["now"], after["timer"]["size"]) == (1.0, 2)
        assert after["purgatories"][0]["expired_rate"] == 2.0
        json.dumps(after)


@pytest.mark.slow
def test_a_run_is_the_same_with_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """The page does not change the simulation."""
    order = ["--plain", "--groups", "3", "--members", "4", "--duration", "60s", "--speed", "max"]
    prints = []
    for more in ([], ["--web", "--port", "0"]):
        assert main([*order, *more]) == 0
        # The width of the column depends on times.
        prints += [line.split() for line in capsys.readouterr().out.splitlines() if "fingerprint" in line]
    assert len(prints) == 2
    assert prints[0] == prints[1]


def test_a_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The run does not start, and the message contains the port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--plain", "--web", "--port", str(port)]) == 1
    assert f"the live page cannot listen on 127.0.0.1:{port}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "8000"], "--port requires --web"),
        (["--web", "--port", "65536"], "port must be an integer from 0 to 65535"),
    ],
)
def test_a_bad_port_is_explained(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status is 2, and the message states the valid range."""
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_with_the_page_a_run_is_long_and_slow_unless_it_is_told() -> None:
    """The default is a day at ten times real time; given options take precedence."""
    order = parse(["--web"])
    assert (order.scenario.duration, order.speed, order.web_port) == (86_400.0, 10.0, 8000)
    order = parse(["--web", "--duration", "5m", "--speed", "2", "--port", "0"])
    assert (order.scenario.duration, order.speed, order.web_port) == (300.0, 2.0, 0)
    assert parse([]).web_port is None


def test_the_broker_names_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    """The broker does not run without the requested page."""
    pytest.importorskip("kafka", reason="the broker needs its extra: pip install 'aiopurgatory[broker]'")
    from examples.broker.__main__ import main as broker

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert broker(["--port", "0", "--no-uvloop", "--web", "--web-port", str(port)]) == 1
    assert capsys.readouterr().err.startswith(f"the live page cannot listen on 127.0.0.1:{port}: ")


async def test_the_meter_sees_a_long_turn() -> None:
    """A turn that blocks the loop is measured, without the excluded time."""
    loop = asyncio.get_running_loop()
    woken = loop.create_future()
    with LoopLagMonitor() as meter:
        meter._woken(loop, due=-1.0)  # as if the loop had been held since long
        assert meter.longest > 1.0
        assert meter.lap() == meter.longest
        assert meter.lap() == 0.0
        loop.call_later(0.02, woken.set_result, None)
        await woken
