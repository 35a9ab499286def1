"""A short nemesis test: every engine is broken for some seconds, and no wake-up is lost."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.parts import missing
from tests.relay.engines import ENGINES


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ENGINES)
def test_nothing_is_lost_while_everything_breaks(name: str) -> None:
    """Three processes wait for each other while their engine is killed, they are stopped, and their connections are
    cut.
    """
    reason = ENGINES[name].missing()
    if reason:
        missing(reason)
    command = [sys.executable, "-m", "tests.relay.nemesis", "--engine", name, "--seconds", "8"]
    command += ["--keys", "200", "--waiters", "50"]  # few writes: most of the time goes into them
    result = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False, timeout=170
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "waits lost                  0\n" in result.stdout
    assert "waits answered twice        0\n" in result.stdout
