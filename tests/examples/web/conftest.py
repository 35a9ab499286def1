"""A real browser, and the simulator with its page in a separate process."""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.parts import missing

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Yield headless Chromium, closed after the module, because asyncio believes that a loop runs while it is open."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    if not Path(CHROMIUM).exists():
        missing("chromium is not installed: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Simulator:
    """``python -m examples.join_group --web`` on one port, which can be started and killed repeatedly."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        """Start the process, and return when it listens."""
        command = [sys.executable, "-m", "examples.join_group", "--web", "--port", str(self.port), "--plain", *more]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self._process = process
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], 20.0)
        line = process.stdout.readline() if ready else b"nothing within 20 s"
        assert line.decode().strip() == f"live page: {self.url}"

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def wait(self) -> str:
        """Wait until the process ends.  Return its output."""
        assert self._process is not None
        output, _ = self._process.communicate(timeout=20)
        assert self._process.returncode == 0
        self._process = None
        return output.decode()


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    """Yield a simulator that is not running."""
    simulator = Simulator()
    yield simulator
    simulator.kill()


@pytest.fixture(scope="module")
def running() -> Iterator[Simulator]:
    """Yield a simulator that runs for all tests of a module."""
    simulator = Simulator()
    simulator.start("--groups", "12", "--members", "6")
    yield simulator
    simulator.kill()


@pytest.fixture
def said() -> list[str]:
    """Return the console messages and uncaught exceptions of a page."""
    return []


@pytest.fixture
def open_page(browser: Any, said: list[str]) -> Iterator[Callable[..., Any]]:
    """Yield a function that opens a page in a new context: ``open_page(url, **options of the context)``."""
    contexts = []

    def open_it(url: str, **options: Any) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"uncaught: {error}"))
        page.goto(url)
        page.locator("#tiles li").first.wait_for()
        return page

    yield open_it
    for context in contexts:
        context.close()
