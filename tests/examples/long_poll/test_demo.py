"""The demonstration of the long poll, with the real server, prints the expected steps."""

import subprocess
import sys
from pathlib import Path

import pytest

import examples

ROOT = Path(examples.__file__).resolve().parents[1]


@pytest.mark.slow
def test_the_demonstration_shows_an_answer_a_hang_up_and_a_shutdown() -> None:
    """Both remaining readers get the message, and SIGTERM answers the last reader long before its 30 seconds."""
    command = [sys.executable, "-m", "examples.long_poll.demo"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 5
    assert "disconnects" in lines[1]
    assert "both readers have (200, [{'offset': 0, 'value': 'apples'}])" in lines[2]
    assert "the reader has (200, [])" in lines[4]
    assert "exited with code 0" in lines[4]
    assert float(lines[4].split()[0]) < 25, "the last reader was not answered by the signal"
