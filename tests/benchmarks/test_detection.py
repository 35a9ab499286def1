"""The benchmark of detecting a hang-up: its comparison, and what it needs."""

import pytest

from benchmarks import detection
from benchmarks.row import Unavailable
from benchmarks.server import section


def test_the_costs_are_divided() -> None:
    """Differences and ratios of the means; without differences between the runs, the interval has no width."""
    costs = {"wait": [30.0] * 4, "undetected": [22.0] * 4, "event-reader": [40.0] * 4, "event": [20.0] * 4}
    assert [line[50:].strip() for line in detection.comparison(costs)][4:] == [
        "2.0 (2.0 to 2.0)",
        "8.0 (8.0 to 8.0)",
        "20.0 (20.0 to 20.0)",
        "1.100 (1.100 to 1.100)",
        "0.750 (0.750 to 0.750)",
    ]


def test_runs_that_differ_widen_the_interval() -> None:
    """A resample has the same runs of every form, because they were made at the same time."""
    same = [10.0, 20.0, 30.0]
    *_, ratio = detection.comparison(dict.fromkeys(detection.FORMS, same))
    assert ratio.endswith("1.000 (1.000 to 1.000)")
    first, *_ = detection.comparison(dict.fromkeys(detection.FORMS, same))
    assert first.endswith("20.0 (10.0 to 30.0)")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the section of the server cannot be measured, this benchmark cannot, either."""

    def refuse() -> None:
        raise Unavailable("uvicorn is not installed")

    monkeypatch.setattr(section, "prepare", refuse)
    assert detection.main([]) == 1
    assert capsys.readouterr().err == "uvicorn is not installed\n"
