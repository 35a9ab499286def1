"""The page "A hang at three in the morning": its commands for the journal, on a service that breaks at 03:00."""

import pathlib
import re
import shlex
import subprocess
import sys
import types
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.pipeline.__main__ import main
from purgatory.pipeline.compare.page import lead
from purgatory.pipeline.selection import EVERYTHING

pytestmark = pytest.mark.timeout(170)
ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "hang.md").read_text(encoding="utf-8")
PART = PAGE.partition("\n## The next day, with the journal\n")[2].partition("\n## ")[0]
COMMANDS = [
    shlex.split(line) for block in re.findall(r"```sh\n(.*?)```", PART, re.DOTALL) for line in block.splitlines()
]
SHOWN = re.findall(r"```text\n(.*?)```", PART, re.DOTALL)[0].splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A directory with the journal of the first command of the page."""
    folder = tmp_path_factory.mktemp("night")
    (first, *_) = COMMANDS
    assert first[:2] == ["python", "-m"]
    subprocess.run([sys.executable, "-m", *first[2:-1], str(folder / first[-1])], cwd=ROOT, check=True, timeout=120)
    return folder


def run(folder: pathlib.Path, command: str) -> None:
    """Run the command of the page that has this name, with absolute paths: Spark's workers have another directory."""
    ((_, *words),) = [words for words in COMMANDS if words[1] == command]
    paths = {"journal", words[words.index("--out") + 1]}
    assert (
        main([*[str(folder / word) if at and word in paths else word for at, word in enumerate(words)], "--quiet"]) == 0
    )


def test_the_report_shows_when_the_service_broke(spark: Any, folder: pathlib.Path) -> None:
    """The intervals of the page are those of the report; no operation expires before, and none completes after."""
    run(folder, "report")
    rows = pq.read_table(folder / "report" / "over_time.parquet").to_pylist()
    whole = {f"{row['bucket']:%H:%M:%S}": row for row in rows if row["kind"] is None}
    for line in SHOWN:
        time, *numbers = line.split()
        found = whole[time]
        assert [found["operations"], found["completed"], found["expired"]] == [int(number) for number in numbers]
    assert all(row["expired"] == 0 for time, row in whole.items() if time < "02:59:45")
    assert all(row["completed"] == 0 for time, row in whole.items() if time >= "03:00")
    parked = pq.read_table(folder / "report" / "occupancy.parquet").to_pylist()
    peaks = {f"{row['bucket']:%H:%M}": row["peak"] for row in parked}
    assert (peaks["02:50"], peaks["03:02"], peaks["03:09"]) == (5, 120, 120)
    page = (folder / "report" / "index.html").read_text(encoding="utf-8")
    for heading in ("Outcomes over time", "Parked operations over time", "Keys by expired share"):
        assert f"*{heading}*" in PART
        assert f"<h2>{heading}" in page


def test_the_comparison_says_what_got_worse(spark: Any, folder: pathlib.Path) -> None:
    """The part of the journal after the change is compared with the part before."""
    run(folder, "compare")
    changes = pq.read_table(folder / "comparison" / "changes.parquet").to_pylist()
    worse = {(row["measure"], row["outcome"]): row for row in changes if row["verdict"] == "worse"}
    expired, peak = worse["share", "expired"], worse["peak", None]
    assert (expired["baseline"], expired["journal"]) == (0, 0.324)
    assert (peak["baseline"], peak["journal"]) == (5, 120)
    page = (folder / "comparison" / "compare.html").read_text(encoding="utf-8")
    assert "On 2026-11-24, from 03:00 UTC until the end of the journal, orders was worse" in page
    assert "03:08" not in page, "the hang did not end before the journal"


def test_a_comparison_in_short_steps_says_what_it_cannot_judge() -> None:
    """If no step is worse, the page says how many operations a change must concern, and how long a step lasts."""
    report = types.SimpleNamespace(step_ms=5000, selection=EVERYTHING)
    none = pa.table({"verdict": pa.array([], pa.string())})
    sentences = lead(types.SimpleNamespace(report=report, times=none))  # type: ignore[arg-type]
    assert sentences[1].startswith("A step is judged only if a change concerns at least ten of its operations.")
    assert "Here, a step lasts 5 s; " in sentences[1]
