"""The benchmark of many waiting requests, with a few."""

import pytest

from benchmarks import connections

pytest.importorskip("uvloop")
pytest.importorskip("httptools")


def test_each_form_is_measured_as_far_as_it_can_do_it(capsys: pytest.CaptureFixture[str]) -> None:
    """The table has a row for each form; only the purgatory answers when the server stops."""
    connections.main(["--requests", "200"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip().startswith("200")]
    assert [len(row) for row in rows] == [1 + 2 + 5, 1 + 3 + 2, 1 + 6 + 4]


def test_an_unknown_form_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the forms."""
    with pytest.raises(SystemExit):
        connections.main(["semaphore"])
    assert "FORM must be one of thresholds, event, event-reader, got semaphore" in capsys.readouterr().err
