"""The types that users see."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.timeout(180)
def test_a_type_checker_understands_the_public_surface() -> None:
    """mypy --strict agrees with every assert_type, and finds the mistakes that are marked as such."""
    command = [sys.executable, "-m", "mypy", "--strict", "tests/typing/api.py"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_package_says_that_it_is_typed() -> None:
    """The marker file for type checkers is part of the package."""
    import purgatory

    assert (Path(purgatory.__file__).parent / "py.typed").exists()
