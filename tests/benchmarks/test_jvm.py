"""Kafka's own purgatory next to this one: the driver on a real JVM, and the behavior without a JVM."""

import os
import stat
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.jvm.kafka import Jvm, _pair, prepare
from benchmarks.maven import cache, classpath
from benchmarks.row import Unavailable
from tests.parts import missing

linux = pytest.mark.skipif(sys.platform != "linux", reason="the section needs Linux")


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Simulate a machine without programs and with an empty cache.  Return the only directory on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


@linux
def test_without_java_the_section_says_so_and_keeps_what_was_saved(
    nothing_installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command continues with the other sections, and the saved rows of this one are kept."""
    file = tmp_path / "rows.json"
    assert main(["jvm", "--here", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "jvm: not measured: there is no java on the PATH" in printed
    assert "budgets: 0 met, 0 not met" in printed
    assert not file.exists()


@pytest.mark.slow
@linux
@pytest.mark.timeout(900)  # the first run on a machine downloads the jars
def test_every_step_on_the_jvm_completes_an_operation() -> None:
    """The driver completes the oldest operation in each step, and its CPU time can be measured."""
    try:
        path = prepare()
    except Unavailable as error:
        missing(str(error))
    before = os.sched_getaffinity(0)
    with Jvm(path, "SerialGC", max(before)) as jvm:
        assert os.sched_getaffinity(jvm.pid) == {max(before)}
        costs = [jvm.steps(shape, 2_000) for shape in ((1_000, 1), (1_000, 3))]
    assert os.sched_getaffinity(0) == before
    assert all(cost > 0 for cost in costs)


@linux
def test_steps_that_complete_nothing_are_an_error(nothing_installed: Path) -> None:
    """The driver raises if it completes fewer operations than it has steps, and if it has ended."""
    _script(nothing_installed / "java", "read line; echo 1000; read line; echo 7")
    with Jvm("", "SerialGC", max(os.sched_getaffinity(0))) as jvm:
        with pytest.raises(RuntimeError, match="7 of 10 operations"):
            jvm.steps((1_000, 1), 10)
        with pytest.raises(RuntimeError, match="the JVM has ended with status 0"):
            jvm.steps((1_000, 1), 10)


def test_mean_and_best_are_rows_of_their_own() -> None:
    """The mean includes all rounds, and the best row the best round of each cell; cells are combined geometrically."""
    mean, best = _pair("one", "G1GC", [[4.0, 6.0]], [[1.0, 3.0]])
    assert (mean.what, best.what) == ("one, mean", "one, best")
    assert [mean.ours, mean.theirs, mean.ratio] == pytest.approx([5.0, 2.0, 0.4])
    assert [mean.low, mean.high] == pytest.approx([0.25, 0.5])
    assert [best.ours, best.theirs, best.ratio] == pytest.approx([4.0, 1.0, 0.25])
    mean, best = _pair("two", "G1GC", [[1.0, 3.0], [8.0, 8.0]], [[8.0, 8.0], [8.0, 8.0]])
    assert [mean.ours, mean.theirs, best.ours, best.theirs] == pytest.approx([4.0, 8.0, 8**0.5, 8.0])


def _script(file: Path, text: str) -> None:
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


@linux
def test_a_class_path_is_resolved_once(nothing_installed: Path, tmp_path: Path) -> None:
    """The second call does not start Maven; a missing jar causes a new resolution."""
    jar, calls = tmp_path / "one.jar", tmp_path / "calls"
    jar.touch()
    calls.touch()
    _script(
        nothing_installed / "mvn",
        f'for word; do case "$word" in -Dmdep.outputFile=*) echo {jar} > "${{word#*=}}";; esac; done; echo >> {calls}',
    )
    assert classpath("a:b:1") == str(jar)
    assert classpath("a:b:1") == str(jar)
    assert calls.read_text().count("\n") == 1
    jar.unlink()
    assert classpath("a:b:1") == str(jar)
    assert calls.read_text().count("\n") == 2


@linux
def test_what_maven_cannot_resolve_is_said(nothing_installed: Path) -> None:
    """The error contains the artifact and the first line of Maven's error; nothing is cached."""
    _script(nothing_installed / "mvn", "echo '[ERROR] no such thing'; exit 1")
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"a:b:1: \[ERROR\] no such thing"):
            classpath("a:b:1")
    assert list(cache().iterdir()) == []
