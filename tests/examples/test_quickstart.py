"""The quickstart is short, and prints the expected lines."""

import inspect
import subprocess
import sys
from pathlib import Path

from examples import quickstart


def test_it_has_fewer_than_forty_lines() -> None:
    """The quickstart fits on one screen."""
    assert len(inspect.getsource(quickstart).splitlines()) < 40


def test_it_shows_requests_parking_completing_and_expiring() -> None:
    """The command prints one request that completes, and one that expires with the available orders."""
    root = Path(quickstart.__file__).resolve().parents[1]
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.quickstart"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert ran.stderr == ""
    assert ran.returncode == 0
    assert ran.stdout.splitlines() == [
        "parked: <Purgatory 'fetch' open parked=2 watched=2 num_delayed=2>",
        "ordered apples - completed 0",
        "ordered bread - completed 1",
        "COMPLETED ['apples', 'bread']",
        "EXPIRED ['apples', 'bread']",
    ]
