"""The benchmark of the streaming job measures decisions that are made."""

import pytest

from benchmarks.stream import core


def test_the_decisions_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Every operation ends, also the one of a hot group that a signal completes, and each size has its row."""
    core(40, hot=[20])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["1", "20", "500"]
    assert lines[-1].split()[0] == "20"
