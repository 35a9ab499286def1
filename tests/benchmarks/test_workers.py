"""The benchmark of one and two workers, with a few requests."""

import importlib.util
import os
import sys

import pytest

from benchmarks import workers
from benchmarks.__main__ import main
from benchmarks.row import Row, Scale, Unavailable
from tests.parts import missing

pytest.importorskip("uvloop")
pytest.importorskip("httptools")

linux = pytest.mark.skipif(sys.platform != "linux", reason="the section needs Linux")

FEW = [workers.Shape(0, 8, 1), workers.Shape(8, 8, 1), workers.Shape(16, 4, 10)]


def _measured(monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    try:
        workers.prepare()
    except Unavailable as error:
        missing(str(error))
    monkeypatch.setattr(workers, "shapes", lambda _: FEW)
    return list(workers.rows(Scale(quick=True)))


@pytest.mark.slow
@linux
def test_requests_in_both_workers_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each form has a rate, a CPU time, and latencies; only two workers have answers to the other one's publishes."""
    rows = _measured(monkeypatch)
    assert all(row.ours > 0 and row.theirs for row in rows)
    for kind in ("answers, 1 per", "answers, 10 per", "CPU per answer, 1 per", "answer in the same worker, p50"):
        forms = [row.what.partition(": ")[2] for row in rows if row.what.startswith(kind)]
        assert forms[:2] == [workers.RELAYED, workers.UNIX]
    assert any(row.what == f"answers, 1 per publish: {workers.REDIS}" for row in rows) == (not workers.missing_redis())
    across = [row.what.partition(": ")[2] for row in rows if row.what.startswith("answer across workers, p99")]
    assert across[0] == workers.UNIX


@linux
def test_without_redis_the_other_forms_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table has no row for Redis; a note below it names the reason."""
    monkeypatch.setattr(workers, "missing_redis", lambda: "there is no server")
    rows = _measured(monkeypatch)
    assert not any(workers.REDIS in row.what for row in rows)
    assert all(row.ours > 0 and row.theirs for row in rows)
    assert rows[-1].note == f"{workers.REDIS}: not measured: there is no server"


@linux
def test_without_the_web_stack_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command names the missing package, and does not fail."""
    found = importlib.util.find_spec
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name))
    assert main(["workers", "--quick", "--here"]) == 0
    assert "workers: not measured: uvicorn is not installed" in capsys.readouterr().out
