"""A missing part skips a test, or fails it if all parts are required."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parts import REQUIRED, missing

_ROOT = Path(__file__).parents[2]


def test_a_missing_part_skips_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable the test is skipped, and the reason contains the missing part."""
    monkeypatch.delenv(REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="there is no mvn"):
        missing("there is no mvn")


def test_a_required_part_fails_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variable the same test fails."""
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="there is no mvn"):
        missing("there is no mvn")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [(), ("-n", "1", "--dist", "loadgroup")])
def test_the_summary_names_a_part_that_is_not_collected(tmp_path: Path, processes: tuple[str, ...]) -> None:
    """The line is also there where other processes collect the tests."""
    if processes:
        pytest.importorskip("xdist")
    (tmp_path / "without_pyarrow.py").write_text("import sys\nsys.modules['pyarrow'] = None\n")
    environment = {name: value for name, value in os.environ.items() if name != REQUIRED}
    environment["PYTHONPATH"] = os.pathsep.join([str(_ROOT), str(tmp_path)])
    options = ("-q", "-p", "no:cacheprovider", "-p", "without_pyarrow", *processes)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests/journal", "tests/project/test_licence.py"],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.stdout.count("not tested: the journal; not installed: pyarrow") == 1, run.stdout + run.stderr
