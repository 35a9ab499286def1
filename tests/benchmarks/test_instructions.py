"""The benchmark that counts instructions: its loads work, and it names what it needs."""

import shutil

import pytest

from benchmarks import instructions


@pytest.mark.parametrize("name", instructions.LOADS)
def test_each_load_does_its_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load runs to its end without callgrind."""
    monkeypatch.setattr(instructions.gc, "disable", lambda: None)
    assert instructions.main([name, "--run", "--steps", "20"]) == 0


def test_valgrind_is_needed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without valgrind the command ends with a message."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert instructions.main(["timer"]) == 1
    assert capsys.readouterr().err == "valgrind is not installed\n"


def test_an_unknown_load_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The message lists the loads."""
    with pytest.raises(SystemExit):
        instructions.main(["nothing"])
    assert "there is no load nothing: choose from class" in capsys.readouterr().err
