"""What the options of several commands mean."""

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
from rich.console import Console

from purgatory.pipeline.__main__ import main
from purgatory.pipeline.commands import estimate, replay
from purgatory.pipeline.commands.options import (
    check_master,
    local_settings,
    name_and_value,
    print_skipped,
    remote_url,
)
from purgatory.pipeline.replay import estimates
from purgatory.pipeline.replay.bounds import Bounds, Scenario
from purgatory.pipeline.replay.what_if import WhatIf


def test_a_remote_is_the_url_of_a_connect_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given instead of a master; SPARK_REMOTE, which Spark reads too, is the default."""

    def url(remote: str | None = None, master: str | None = None, **conf: str) -> str | None:
        options: Any = SimpleNamespace(remote=remote, master=master, conf=list(conf.items()))
        return remote_url(options)

    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert url() is None
    assert url("sc://host:15002") == "sc://host:15002"
    for wrong in ("host:15002", "sc://", "sc:///x", "http://host"):
        with pytest.raises(ValueError, match=r"remote must be a URL such as sc://host:15002, got"):
            url(wrong)
    with pytest.raises(ValueError, match="either master or remote must be set, got 'local' and 'sc://h'"):
        url("sc://h", "local")
    monkeypatch.setenv("SPARK_REMOTE", "sc://other")
    assert url() == "sc://other"
    assert url("sc://h") == "sc://h"
    assert url(master="local") is None


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: name_and_value("spark.hadoop.fs.s3a.secret.key:secret"), "must be NAME=VALUE, got text with no =;"),
        (lambda: name_and_value("kafka.sasl.jaas.config secret"), "must be NAME=VALUE, got text with no =;"),
        (lambda: name_and_value("=secret"), "must be NAME=VALUE, got text with no name;"),
        (lambda: check_master("sc://me@h:1/;token=secret"), "which is a remote, got 'sc://***@h:1/;***'"),
        (lambda: check_master("bad;token=secret"), "a URL such as spark://host:port, got 'bad;***'"),
        (lambda: remote("https://me:secret@h/;token=secret"), "sc://host:15002, got 'https://***@h/;***'"),
        (lambda: remote("sc://h:1/;token=secret", "local"), "must be set, got 'local' and 'sc://h:1/;***'"),
    ],
)
def test_an_error_about_an_option_has_no_secret(call: Callable[[], object], said: str) -> None:
    """Standard error often goes to a log."""
    with pytest.raises((ValueError, argparse.ArgumentTypeError)) as refused:
        call()
    assert said in str(refused.value)
    assert "secret" not in str(refused.value).removesuffix("it may contain a secret")


def remote(url: str, master: str | None = None) -> str | None:
    options: Any = SimpleNamespace(remote=url, master=master, conf=[])
    return remote_url(options)


def test_java_compiles_quickly_where_the_rows_are_few(tmp_path: Path) -> None:
    """Settings of the commands: for a job on this machine that ends soon, and never above those of a cluster."""
    quick = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1"}
    changes = {"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true"}
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "rows.parquet").write_bytes(b"rows")
    for master in (None, "local", "local[2]"):
        assert local_settings(str(tmp_path), master) == quick | changes
        assert local_settings(str(tmp_path), master, endless=True) == changes
        assert local_settings("kafka", master) == changes
    manager = "spark.sql.streaming.checkpointFileManagerClass"
    assert local_settings("kafka", None, checkpoint=str(tmp_path))[manager].endswith(
        "FileSystemBasedCheckpointFileManager"
    )
    assert local_settings("kafka", None, checkpoint="s3a://bucket/checkpoint") == changes
    for checkpoint in (None, str(tmp_path)):
        assert local_settings(str(tmp_path), "spark://host:7077", checkpoint=checkpoint) == {}
    with (tmp_path / "day=1" / "many.parquet").open("wb") as file:
        file.truncate((32 << 20) + 1)
    assert local_settings(str(tmp_path), None) == changes


NAMES = ("orders[eu]", "orders[us]", "orders[/eu]", ":warning:")


def test_names_and_paths_are_printed_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Square brackets and colons would be markup: two purgatories would have one name, or the command would fail."""
    console = Console(width=200)
    print_skipped([f"/data/{name}/part-1.parquet is corrupt" for name in NAMES], console)
    printed = capsys.readouterr().out.splitlines()
    assert printed == [f"skipped: /data/{name}/part-1.parquet is corrupt" for name in NAMES]
    columns = "tick_ms wheel_size cpu_us late_p99_ms late_max_ms stall_p99_ms cascades buckets heap_operations changed"
    settings, at = pa.table({name: [1] for name in columns.split()}), datetime(2026, 11, 22, tzinfo=UTC)
    for name in NAMES:
        found = WhatIf(
            f"/data/{name}", settings, 5, 1.0, 0, (), {}, "", (), 1.0, (), datetime(2026, 11, 22, tzinfo=UTC)
        )
        console.print(replay._table(found))
        assert f"/data/{name}: 5 operations" in capsys.readouterr().out

    def estimated(_: object, journal: str, scenarios: list[Scenario], **__: object) -> estimates.Estimates:
        bounds = Bounds(10, (5, 5), (5, 5), (0, 0), (1, 1), (100, 100))
        every = [Scenario(), *scenarios]
        rows = [
            {"scenario": at, "purgatory": name, "part": 0, "bounds": bounds}
            for at in range(len(every))
            for name in NAMES
        ]
        table = estimates._table(every, rows, {}, 1_000)
        return estimates.Estimates(journal, table, 40, (), at)

    monkeypatch.setattr(estimate, "session_for_journal", lambda *_, **__: nullcontext())
    monkeypatch.setattr(estimates, "estimate_journal", estimated)
    assert main(["estimate", "journal", "--timeout", "10"]) == 0
    printed = capsys.readouterr().out.splitlines()
    for name in NAMES:
        assert sum(f" {name} " in line for line in printed) == 2
