"""The measurement of the inspector's page runs and prints its table."""

import pytest

from benchmarks.inspector import main


def test_the_cost_of_the_page_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Both cases have a row, and every viewer has received frames."""
    assert main(["--parked", "50", "--viewers", "2", "--seconds", "0.3", "--rounds", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("50 operations parked, 2 viewers")
    assert [line.split("  ")[0] for line in lines[2:4]] == ["nobody looks", "2 viewers"]
    assert int(lines[4].split()[6].rstrip(",")) >= 2
