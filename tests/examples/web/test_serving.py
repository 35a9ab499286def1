"""The page without a browser: its responses, its limits, and its cost for the observed program."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
from typing import Any

import pytest

from examples.join_group.__main__ import main
from examples.join_group.cli import parse
from examples.web import Groups, Page
from purgatory import Purgatory, SystemTimer


def _get(page: Page, path: str, host: str | None = None) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", int(page.url.rsplit(":")[-1].strip("/")), timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def _groups(timer: SystemTimer) -> Groups:
    return Groups({}, timer, timer.time(), until=60.0, speed=None)


async def test_the_page_loads_nothing_from_elsewhere(purgatory: Purgatory[Any]) -> None:
    """The three files are served unchanged, and their policy forbids every other source."""
    with Page("test", [purgatory], groups=_groups(purgatory.timer)) as page:
        for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "javascript")):
            status, headers, body = await asyncio.to_thread(_get, page, path)
            assert status == 200
            assert kind in headers["content-type"]
            assert headers["content-security-policy"].startswith("default-src 'self'")
            assert b"://" not in body
        assert (await asyncio.to_thread(_get, page, "/etc/passwd"))[0] == 404


async def test_another_name_for_it_is_refused(purgatory: Purgatory[Any]) -> None:
    """Requests with another host name are refused, so other pages cannot read this one."""
    with Page("test", [purgatory], groups=_groups(purgatory.timer)) as page:
        assert (await asyncio.to_thread(_get, page, "/", "elsewhere.example"))[0] == 400
        assert (await asyncio.to_thread(_get, page, "/", "localhost"))[0] == 200


async def test_the_groups_and_the_purgatories_are_read_in_their_event_loop(purgatory: Purgatory[Any]) -> None:
    """``/groups.json`` and the inspector answer from the thread of the page; without groups, only the inspector."""
    with Page("test", [purgatory], groups=_groups(purgatory.timer)) as page:
        status, _, body = await asyncio.to_thread(_get, page, "/groups.json")
        assert (status, json.loads(body)["number"], json.loads(body)["until"]) == (200, 0, 60.0)
        status, _, body = await asyncio.to_thread(_get, page, "/purgatory/state.json")
        assert (status, json.loads(body)["rooms"][0]["name"]) == (200, purgatory.name)
    with Page("test", [purgatory]) as page:
        status, headers, _ = await asyncio.to_thread(_get, page, "/")
        assert (status, headers["location"]) == (307, "/purgatory/")
        assert (await asyncio.to_thread(_get, page, "/groups.json"))[0] == 404


async def test_leaving_the_block_ends_the_streams_of_the_viewers(
    purgatory: Purgatory[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A viewer's stream ends as it should: the server does not have to cancel it after its grace period."""
    with Page("test", [purgatory]) as page:
        connection = http.client.HTTPConnection("127.0.0.1", int(page.url.rsplit(":")[-1].strip("/")), timeout=10)
        await asyncio.to_thread(connection.request, "GET", "/purgatory/events")
        answer = await asyncio.to_thread(connection.getresponse)
        assert (await asyncio.to_thread(answer.readline)).strip()
        leaving = asyncio.to_thread(page.__exit__, None, None, None)
        _, rest = await asyncio.gather(leaving, asyncio.to_thread(answer.read))
    assert rest.endswith(b"\n\n")
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]
    connection.close()


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
