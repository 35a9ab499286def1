"""The benchmark of the brokers: each contender parks requests, is answered, and returns a figure."""

import sys
from contextlib import ExitStack

import pytest

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")

from benchmarks.__main__ import main
from benchmarks.broker import Barrier, Parked, WakeUp, _ours, _samples

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the section needs Linux")


def test_each_contender_gives_a_figure_at_the_example_broker() -> None:
    """Wake-ups, barriers and parked fetches can be measured repeatedly with the same topics and group."""
    with ExitStack() as stack:
        side = stack.enter_context(_ours())
        for contender in (WakeUp(side, stack), Barrier(side, stack, 3), Parked(side, stack, 5)):
            assert all(contender.sample() > 0 for _ in range(3))


def test_the_rounds_that_warm_up_are_not_counted() -> None:
    """Both contenders are measured alternately, and the first rounds are not counted."""
    order: list[str] = []

    class Contender:
        def __init__(self, name: str) -> None:
            self.name = name

        def sample(self) -> float:
            order.append(self.name)
            return float(len(order))

    assert _samples([Contender("a"), Contender("b")], 1, warm=2) == [[5.0], [6.0]]
    assert order == ["a", "b"] * 3


def test_without_a_jdk_the_section_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    """Without a JDK, the section reports it, and the command continues with the other sections."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["broker", "--here"]) == 0
    assert "broker: not measured: there is no jcmd on the PATH" in capsys.readouterr().out
