"""Commands on a real Spark Connect server, which a process of its own serves."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow.dataset as ds
import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
pytest.importorskip("grpc", reason="needs a client of Spark Connect")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(170)]

SERVER = """
import sys
from purgatory.pipeline.spark.session import spark_session
from tests.pipeline.settings import SETTINGS

connect = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": sys.argv[1],
}
with spark_session("local[1]", SETTINGS | connect):
    print("serving", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    without = ("SPARK_REMOTE", "PYSPARK_GATEWAY_PORT")
    environment = {name: value for name, value in os.environ.items() if name not in without}
    environment["PYTHONPATH"] = os.pathsep.join(path or "." for path in sys.path)
    environment["no_grpc_proxy"] = "127.0.0.1"
    return environment


@pytest.fixture(scope="module")
def server(environment: dict[str, str]) -> Iterator[str]:
    """The URL of the server, which ends when its standard input is closed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", SERVER, str(port)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "serving\n":
            pytest.fail(process.communicate()[1])
        yield f"sc://127.0.0.1:{port}"
        process.communicate()


def run(environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "purgatory.pipeline", *arguments, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)
    return done.returncode, done.stderr


def test_a_load_makes_a_table_and_can_be_repeated(
    server: str, environment: dict[str, str], made: Any, tmp_path: pathlib.Path
) -> None:
    """The directory need not exist: the server finds no files in it only when the columns are asked for."""
    journal, out = str(made[0]), tmp_path / "lake"
    for folder in (out, tmp_path / "empty", out):
        (tmp_path / "empty").mkdir(exist_ok=True)
        assert run(environment, "load", journal, "--out", str(folder), "--remote", server) == (0, "")
        assert ds.dataset(folder, partitioning="hive").count_rows() == ds.dataset(journal).count_rows()


def test_a_directory_with_other_files_is_an_error_in_one_line(
    server: str, environment: dict[str, str], made: Any, tmp_path: pathlib.Path
) -> None:
    """The server fails to read them as a table."""
    (tmp_path / "notes.txt").write_text("no table\n", encoding="utf-8")
    status, printed = run(environment, "load", str(made[0]), "--out", str(tmp_path), "--remote", server)
    assert status == 1
    assert printed.startswith(f"error: out must be a table that Spark can read, got {tmp_path}: ")
    assert printed.count("\n") == 1


def test_a_format_without_its_jars_is_an_error_in_one_line(
    server: str, environment: dict[str, str], made: Any, tmp_path: pathlib.Path
) -> None:
    """As without a server."""
    out = tmp_path / "lake"
    status, said = run(environment, "load", str(made[0]), "--out", str(out), "--format", "delta", "--remote", server)
    assert status == 1
    assert said.startswith(f"error: out cannot be written as delta, {out}: ")
    assert said.count("\n") == 1


def test_a_report_is_made(server: str, environment: dict[str, str], made: Any, tmp_path: pathlib.Path) -> None:
    """The command reads the journal here, or the server does; the page is here."""
    status, said = run(environment, "report", str(made[0]), "--out", str(tmp_path / "page"), "--remote", server)
    assert (status, said) == (0, "20 rows were dropped by the servers and are missing from the counts\n")
    assert (tmp_path / "page" / "index.html").is_file()


def test_a_row_of_a_merge_that_was_killed_is_counted_once(
    server: str, environment: dict[str, str], made: Any, tmp_path: pathlib.Path
) -> None:
    """The server reads the note about it, in any folder; a note that is corrupt is an error in one line."""
    journal, rows = tmp_path / "journal", ds.dataset(str(made[0])).count_rows()
    for folder in ("date=2026-11-21", "date=2026-11-22"):
        shutil.copytree(made[0], journal / folder)
        first, *_ = sorted(file.name for file in (journal / folder).glob("*.parquet"))
        shutil.copy(journal / folder / first, journal / folder / "part-merged.parquet")
        note = {"unfinished": ".x", "merged": "part-merged.parquet", "replaced": [first, "part-removed.parquet"]}
        (journal / folder / "_merge").mkdir()
        (journal / folder / "_merge" / "x.json").write_text(json.dumps(note))
    out = tmp_path / "lake"
    assert run(environment, "load", str(journal), "--out", str(out), "--remote", server) == (0, "")
    assert ds.dataset(out, partitioning="hive").count_rows() == 2 * rows
    (journal / folder / "_merge" / "x.json").write_text("{}")
    status, said = run(environment, "load", str(journal), "--out", str(out), "--remote", server)
    assert (status, said.count("\n")) == (1, 1)
    assert said.startswith(f"error: file:{journal / folder}/_merge/x.json is corrupt: it must have the names of a ")
