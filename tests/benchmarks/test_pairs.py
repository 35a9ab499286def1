"""The comparison of two checkouts: its loads work with this version, and bad arguments are refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.pairs import __main__ as pairs
from benchmarks.pairs.loads import LOADS
from benchmarks.pairs.variants import VARIANTS

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
@pytest.mark.parametrize("name", LOADS)
def test_each_load_gives_a_sample(name: str) -> None:
    """A process that imports this checkout takes one sample."""
    if "journal" in name:
        pytest.importorskip("pyarrow")
    command = [sys.executable, "-m", "benchmarks.pairs.child", str(ROOT), "load", name]
    found = subprocess.run(command, cwd=ROOT, input="\n", capture_output=True, text=True, check=True)
    assert float(found.stdout) > 0


@pytest.mark.slow
def test_a_checkout_beside_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """A row has both costs, the ratio, and its range."""
    assert pairs.main([str(ROOT), "--only", "park + cancel", "--pairs", "3"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.endswith("; 3 pairs of processes")
    base, _, now, _, ratio, *_ = row.split()
    assert float(base.replace(",", "")) > 0
    assert float(now.replace(",", "")) > 0
    assert 0.2 < float(ratio) < 5
    assert row.endswith("  park + cancel")


@pytest.mark.parametrize("name", VARIANTS)
def test_each_feature_is_where_it_is_looked_for(name: str) -> None:
    """The line that a variant changes is in the sources once."""
    variant = VARIANTS[name]
    assert (ROOT / variant.file).read_text(encoding="utf-8").count(variant.line) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "either BASE or --without must be given"),
        ([str(ROOT), "--without", "thread-check"], "either BASE or --without must be given"),
        ([str(ROOT), "--pairs", "2"], "--pairs must be at least 3, got 2"),
    ],
)
def test_bad_arguments_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command measures nothing."""
    with pytest.raises(SystemExit):
        pairs.main(arguments)
    assert message in capsys.readouterr().err


def test_the_loads_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """``--list`` prints one name for each line."""
    assert pairs.main(["--list"]) == 0
    assert "park + cancel" in capsys.readouterr().out.splitlines()
