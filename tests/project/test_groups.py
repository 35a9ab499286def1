"""With ``--dist loadgroup``, tests that share servers and sessions run in one process."""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

pytest.importorskip("xdist")

from tests.groups import group, turn

_ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_process_runs_the_tests_of_a_group() -> None:
    """A file without a group is a group of its own."""
    files = ("tests/frameworks/test_taskiq.py", "tests/project/test_licence.py", "tests/project/test_line_breaks.py")
    alone = ("tests/testing/test_manual_clock.py", "tests/core/test_texts.py")
    options = ("-v", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup")
    command = [sys.executable, "-m", "pytest", *options, *files, *alone]
    run = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=280)
    processes = defaultdict(set)
    for process, file in re.findall(r"^\[(gw\d)\].* PASSED (tests/\S+?\.py)::", run.stdout, re.MULTILINE):
        processes[group(file) or file].add(process)
    assert processes.keys() == {"frameworks", "project", *alone}, run.stdout + run.stderr
    assert [len(names) for names in processes.values()] == [1] * 4


def test_what_shares_a_session_is_a_group() -> None:
    """The tests of one Spark session, of one cluster, of one broker."""
    files = {
        "tests/pipeline/stream/test_job.py": "pipeline",
        "tests/kafka/test_spark.py": "pipeline",
        "tests/kafka/test_judge.py": "judge",
        "tests/pipeline/cluster/test_cluster.py": "cluster",
        "tests/kafka/test_real.py": "kafka",
        "tests/examples/orders/test_orders.py": "examples/orders",
        "tests/pipeline/stream/test_group.py": None,
        "tests/journal/test_journal.py": "journal",
        "tests/core/test_hooks.py": None,
        "tests/test_otel.py": None,
    }
    assert {file: group(file) for file in files} == files


def test_the_order_has_the_longest_group_first_and_names_only_what_there_is() -> None:
    """Each of its names has files; those that it does not name are last."""
    files = [str(file.relative_to(_ROOT)) for file in (_ROOT / "tests").rglob("test_*.py")]
    turns = {turn(file) for file in files}
    assert turns == set(range(max(turns) + 1))
    assert {group(file) for file in files if turn(file) == 0} == {"pipeline"}
    assert turn("tests/test_otel.py") == max(turns) > turn("tests/core/test_hooks.py")
