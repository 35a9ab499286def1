"""The page "A hang at three in the morning": each broken service shows what the page says."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from examples.hangs import SERVICES
from purgatory.__main__ import main
from purgatory.asgi import inspector
from purgatory.testing import VirtualClock
from purgatory.top.screen import View, render
from tests.asgi.tools import Call

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "hang.md").read_text(encoding="utf-8")
SECONDS = 70


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
    service = SERVICES[name](clock)
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
        for task in list(service._requests):
            task.cancel()


def _words(line: str) -> list[str]:
    return line.split()


def test_every_service_is_on_the_page() -> None:
    """The page has a section for each service."""
    assert {name for name in SERVICES if promised(name)} == set(SERVICES)


def test_the_page_reveals_no_cause_before_its_last_part() -> None:
    """A reader can practise: neither the command nor a heading names the cause, and the causes stand at the end."""
    symptoms, separator, causes = PAGE.partition("\n## The causes\n")
    assert separator
    files = [path.stem for path in (ROOT / "examples" / "hangs").glob("*.py") if path.stem[0] != "_"]
    for name in set(files) - {"service"}:
        assert name not in symptoms
        assert f"`examples/hangs/{name}.py`" in causes
    for number in SERVICES:
        assert f"](#service-{number})" in symptoms
        assert f"\n### Service {number}\n" in causes


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGUSR1")
def test_a_service_runs_and_dumps_on_a_signal(capsys: pytest.CaptureFixture[str]) -> None:
    """The command of the page serves the inspector, which ``purgatory top`` reads, and SIGUSR1 prints the dump."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "examples.hangs", "4", "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"inspector: http://127.0.0.1:{port}/purgatory/\n"
        ends = time.monotonic() + 20
        while main(["top", f"localhost:{port}/purgatory"]) != 0:
            assert time.monotonic() < ends
        assert "Presence" in capsys.readouterr().out
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline().startswith("purgatory 'orders', open, at ")
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(20) in (0, -signal.SIGTERM)
