"""A real browser, and the simulator with its page in a separate process."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import browser, open_context, said

__all__ = ["browser", "open_context", "said"]

ROOT = Path(__file__).parents[3]


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
def open_page(open_context: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that opens the page of the groups, and waits for them."""

    def open_it(url: str, **options: Any) -> Any:
        page = open_context(url, **options)
        page.locator("#tiles li").first.wait_for()
        return page

    return open_it
