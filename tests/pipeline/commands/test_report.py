"""What the commands write and say."""

import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from purgatory.journal.files import ARROW_SCHEMA
from purgatory.pipeline.__main__ import main

pytestmark = pytest.mark.timeout(170)
TABLES = ("outcomes", "waits", "lateness", "occupancy", "peaks", "hot_keys", "dropped", "wait_histogram")
TABLES += ("over_time", "hot_keys_by_wait", "hot_keys_by_expired")
PICTURES = ("outcomes", "outcomes_over_time", "waits_over_time", "occupancy", "waits", "hot_keys")
PICTURES += ("hot_keys_by_wait", "hot_keys_by_expired")


def test_report_writes_tables_plots_and_a_page(
    spark: Any, made: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each table as Parquet and CSV, each plot as PNG and SVG, and a page that refers to nothing outside itself."""
    out = tmp_path / "deep" / "report"
    assert main(["report", str(made[0]), "--out", str(out), "--top", "5"]) == 0
    said = capsys.readouterr()
    assert "20,000 operations" in said.out
    assert str(out / "index.html") in said.out
    assert "20 rows were dropped" in said.err
    assert "2/2 hot keys" in said.err
    for name in TABLES:
        table = pq.read_table(out / f"{name}.parquet")
        assert table.num_rows > 0
        text = pyarrow.csv.read_csv(out / f"{name}.csv")
        assert (text.num_rows, text.column_names) == (table.num_rows, table.column_names)
    assert pq.read_table(out / "hot_keys.parquet").num_rows == 5
    for name in PICTURES:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in (out / f"{name}.svg").read_bytes()
    page = (out / "index.html").read_text()
    assert page.count("<svg") == len(PICTURES)
    assert "20 rows were dropped" in page
    assert not re.search(r"<(script|link|img|iframe)\b", page)
    assert not re.search(r"(src|href)=\"https?:", page)
    assert sorted(path.name for path in out.parent.iterdir()) == ["report"], "nothing unfinished is left"


def test_keys_from_outside_cannot_write_the_page(spark: Any, tmp_path: pathlib.Path) -> None:
    """What servers were asked for is text in the page, whatever it looks like."""
    import asyncio

    from purgatory import Purgatory
    from purgatory.journal import Journal
    from tests.journal.kit import Fetch

    async def serve() -> None:
        async with Journal(tmp_path / "journal") as journal, Purgatory[Fetch]("p", observers=[journal]) as purgatory:
            purgatory.try_complete_else_watch(Fetch(), ["<script>alert(1)</script>", "$x$ & y"])

    asyncio.run(serve())
    assert main(["report", str(tmp_path / "journal"), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    page = (tmp_path / "out" / "index.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_a_server_in_which_nothing_had_to_wait(
    spark: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its report and its comparison have their tables and pictures; those of waits are empty."""
    journal = tmp_path / "journal"
    journal.mkdir()
    row = dict.fromkeys(ARROW_SCHEMA.names) | {"source": "s", "purgatory": "p", "kind": "Op", "op_id": 1, "keys": []}
    row |= {"parked_at": 10**12, "anchor_ms": 0, "outcome": "completed", "finished_at": 10**12}
    pq.write_table(pa.Table.from_pylist([row], schema=ARROW_SCHEMA), journal / "part-1.parquet")
    out = tmp_path / "out"
    assert main(["report", str(journal), "--out", str(out), "--compare", str(journal), "--quiet"]) == 0
    assert "1 operations" in capsys.readouterr().out
    page = (out / "index.html").read_text()
    assert page.count("<svg") == len(PICTURES)
    assert "No operation waited." in page
    comparison = (out / "compare.html").read_text()
    assert comparison.count("<svg") == 3
    assert "No waits to compare." in comparison
    for name in ("occupancy", "waits", "hot_keys", "peaks", "lateness", "wait_histogram"):
        assert pq.read_table(out / f"{name}.parquet").num_rows == 0


def test_what_cannot_be_done_is_said_in_one_line(
    spark: Any, made: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 1 and an error that names what is wrong; nothing is written."""
    file = tmp_path / "file"
    file.write_text("here")
    journal = str(made[0])
    for arguments, why in (
        (["report", str(tmp_path / "none"), "--out", str(tmp_path / "out")], "no journal at"),
        (["report", journal, "--out", str(tmp_path / "out"), "--top", "0"], "top must be at least 1, got 0"),
        (
            ["report", journal, "--out", str(tmp_path / "out"), "--step", "0.001"],
            r"step must be at least [0-9.]+ seconds for this length of time, got 0\.001$",
        ),
        (["replay", journal, "--wheel-size", "1"], "wheel_size must be at least 2"),
        (["replay", journal, "--sample", "0"], "sample must be a share"),
        (["synthesize", journal, "--rows", "5"], "which contains Parquet files"),
        (["synthesize", str(file), "--rows", "5"], "must be a directory, got a file"),
    ):
        assert main(arguments) == 1
        assert re.search(f"^error: .*{why}", capsys.readouterr().err, re.MULTILINE), arguments
    assert not (tmp_path / "out").exists()
    for arguments in (["report"], ["replay", journal, "--tick-ms", "a,b"], ["report", journal, "--conf", "x"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2


def test_synthesize_counts_rows_and_files(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One file is singular."""
    assert main(["synthesize", str(tmp_path / "one"), "--rows", "5"]) == 0
    assert main(["synthesize", str(tmp_path / "three"), "--rows", "5", "--rows-per-file", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[0] for line in lines] == ["5 rows in 1 file", "5 rows in 3 files"]


def test_the_room_without_its_extra_says_what_to_install() -> None:
    """Importing it raises ImportError with the command, and importing the package alone still works."""
    code = "import sys; sys.modules['pyspark'] = None; import purgatory; import purgatory.pipeline"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 1
    assert "pip install 'aiopurgatory[spark]'" in ran.stderr.splitlines()[-1]
