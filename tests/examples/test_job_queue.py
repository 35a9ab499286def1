"""The job queue: no job is lost or done twice while workers are cancelled."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples import job_queue


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_the_balance_is_right(seed: int) -> None:
    """Every job is done once, although workers are cancelled with a job in flight."""
    report = await job_queue.simulate(500, 2000, seed)
    handed_over, given_back, done = map(int, re.findall(r"\d+", report[1]))
    assert done == 2000
    assert handed_over == done + given_back
    assert given_back > 100, "workers are cancelled with a job in flight"
    assert report[2] == "jobs left in the queue: 0, lost: 0, done twice: 0"


def test_the_command_prints_the_report() -> None:
    """The command of the docstring prints the balance and the CPU time per job."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.job_queue", "--workers", "200", "--jobs", "500"],
        cwd=Path(job_queue.__file__).resolve().parents[1],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = ran.stdout.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("200 workers waited, 500 jobs arrived, ")
    assert lines[3].startswith("CPU time per job: ")
