"""The live page of the broker."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="the broker needs its extra: pip install 'aiopurgatory[broker]'")

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def broker() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a broker with its page, and the URL of the page."""
    command = [sys.executable, "-m", "examples.broker", "--port", "0", "--web", "--web-port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("broker ready on ")
        yield process, process.stdout.readline().removeprefix("live page: ").strip()
        process.kill()


def test_it_shows_the_purgatories_of_the_broker(
    broker: tuple[subprocess.Popen[str], str], browser: Any, said: list[str]
) -> None:
    """The page shows all six purgatories, and a signal ends the broker at once while a page is open."""
    process, url = broker
    page = browser.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.goto(f"{url}purgatory/")
    page.locator("#rooms tr").nth(5).wait_for()
    assert page.locator("h1").inner_text() == "Broker"
    assert page.locator("#rooms th").all_inner_texts() == [
        "produce", "fetch", "delete_records", "join", "sync", "heartbeat",
    ]  # fmt: skip
    assert said == []
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    page.close()
