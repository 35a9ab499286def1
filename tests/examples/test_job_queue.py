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


@pytest.mark.parametrize("workers", [1, 10, 150])
async def test_few_workers_leave_jobs_in_the_queue(workers: int) -> None:
    """More jobs arrive than workers wait: each job is done once or still in the queue."""
    report = await job_queue.simulate(workers, 1000, 1)
    done = int(re.findall(r"\d+", report[1])[2])
    left, lost, twice = map(int, re.findall(r"\d+", report[2]))
    assert (done + left, lost, twice) == (1000, 0, 0)


@pytest.mark.parametrize("option", ["--workers", "--jobs"])
def test_a_number_below_one_is_refused(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the option."""
    monkeypatch.setattr(sys, "argv", ["job_queue", option, "0"])
    with pytest.raises(SystemExit, match="2"):
        job_queue.main()
    assert f"{option} must be at least 1, got 0" in capsys.readouterr().err


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
