"""What the options of several commands mean."""

import argparse
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from purgatory.pipeline.commands.options import check_master, local_settings, name_and_value, remote_url


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
