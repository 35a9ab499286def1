"""The quickstart is short, and prints the expected lines."""

import inspect
import subprocess
import sys
from pathlib import Path

from examples import quickstart


def test_it_has_fewer_than_forty_lines() -> None:
    """The quickstart fits on one screen."""
    assert len(inspect.getsource(quickstart).splitlines()) < 40


def test_the_page_shows_the_program() -> None:
    """The page contains the program, word for word, without its docstring, after a shorter one."""
    page = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text(encoding="utf-8")
    assert f"```python\n{inspect.getsource(quickstart).partition(chr(10) * 2)[2]}```" in page


def test_it_shows_waits_that_end_by_a_task_a_thread_and_the_deadline() -> None:
    """The command prints three waits: a task answers the first and a thread the second; the third finds nothing."""
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
        "waiting: 3",
        "after 0: ['apples']",
        "after 1: ['bread']",
        "after 2: none in time",
    ]
