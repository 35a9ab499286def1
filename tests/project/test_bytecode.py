"""A run with several processes writes bytecode, and leaves no more of it than the environment allows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bytecode import FORBIDDEN, written


def test_what_is_forbidden_is_written_until_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process within the block writes a cache; at the end it is gone, and an earlier one has stayed."""
    monkeypatch.setenv(FORBIDDEN, "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    earlier, later = tmp_path / "earlier" / "__pycache__", tmp_path / "later" / "__pycache__"
    environments = tmp_path / ".venv" / "__pycache__"
    earlier.mkdir(parents=True)
    later.parent.mkdir()
    (later.parent / "module.py").touch()
    with written(tmp_path):
        assert not sys.dont_write_bytecode
        environments.mkdir(parents=True)
        subprocess.run([sys.executable, "-c", "import module"], cwd=later.parent, check=True, timeout=60)
        assert [path.suffix for path in later.iterdir()] == [".pyc"]
    assert (earlier.exists(), later.exists(), environments.exists()) == (True, False, True)
    assert (os.environ[FORBIDDEN], sys.dont_write_bytecode) == ("1", True)


def test_what_is_allowed_stays_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable, there is none at the end either."""
    monkeypatch.delenv(FORBIDDEN, raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    with written(tmp_path):
        pass
    assert (FORBIDDEN in os.environ, sys.dont_write_bytecode) == (False, False)
