"""A cluster: an executor in a process of its own, without this package; data in an S3 store; a Spark Connect server."""

import pathlib
from typing import Any

import pytest

pytest.importorskip("pyspark", "4.2", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.pipeline.stream.traces import trace, write_trace
from tests.pipeline.cluster.conftest import Bucket, Cluster, command_runner
from tests.pipeline.stream.engines import ends_of_records, in_one_go

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def ends(bucket: Bucket, out: str) -> Any:
    """Return the ends of the trace, from the Parquet files of a directory."""
    found = []
    for name in bucket.names(f"{out}/batch="):
        if name.endswith(".parquet"):
            assert "/record=outcome/" in name
            table = pq.read_table(pa.BufferReader(bucket.get(name)))
            found += [("outcome", *row.values()) for row in table.drop_columns(["text"]).to_pylist()]
    return ends_of_records(found)


def test_a_cluster_reads_and_writes_an_object_store(
    bucket: Bucket, cluster: Cluster, made: Any, tmp_path: pathlib.Path
) -> None:
    """Report and stream, which continues from its checkpoint: nothing is on a disk that driver and executors share."""
    rows = trace(29, 12)
    write_trace(rows, tmp_path / "rows", files=1)
    for folder in (made[0], tmp_path / "rows"):
        for file in folder.glob("*.parquet"):
            bucket.put(f"{folder.name}/{file.name}", file.read_bytes())
    at = bucket.uri
    streaming = ["stream", "--source", f"{at}/rows", "--out", f"{at}/out", "--checkpoint", f"{at}/checkpoint"]
    commands = [
        ["report", f"{at}/journal", "--out", f"{at}/report", "--quiet"],
        streaming,
        streaming,
    ]
    printed, errors = cluster.run(commands)
    assert printed.count("status 0") == len(commands), printed + errors
    assert f"20,000 operations: {at}/report/index.html" in printed
    assert b"20 rows were dropped" in bucket.get("report/index.html")
    hot = pq.read_table(pa.BufferReader(bucket.get("report/hot_keys.parquet")))
    expected = [each["operations"] for each in made[1]["hot_keys"]]
    assert hot["operations"].to_pylist()[: len(expected)] == expected
    assert ends(bucket, "out") == in_one_go(rows)
    assert not [name for name in bucket.names("") if "/.probe-" in name or name.startswith("report/.")]


def test_a_spark_connect_server_runs_report_replay_and_backfill(
    cluster: Cluster, workers: dict[str, str], made: Any, tmp_path: pathlib.Path
) -> None:
    """The client has no context and no JVM.  The stream, and a URI for the page, are refused in one line.

    This is the last test of the cluster: later jobs of the driver's own session would look for the package of the
    client's session, which Spark has removed.
    """
    rows = trace(31, 12)
    write_trace(rows, tmp_path / "rows", files=1)
    remote = ["--remote", cluster.remote]
    journal, out, source = str(made[0]), str(tmp_path / "out"), str(tmp_path / "rows")
    commands = [
        ["report", journal, "--out", str(tmp_path / "report"), "--quiet", *remote],
        ["replay", journal, "--tick-ms", "5", "--wheel-size", "20", "--piece-rows", "30000", "--quiet", *remote],
        ["backfill", "--source", source, "--out", out, *remote],
    ]
    refused = {
        "out must be an empty directory": ["backfill", "--source", source, "--out", out, *remote],
        "source must be a directory of the server": ["backfill", "--source", f"{source}/none", "--out", out, *remote],
        "cannot be listed: [PATH_NOT_FOUND]": ["report", f"{journal}/none", "--out", out, *remote],
        "the stream cannot run on Spark Connect": ["stream", "--source", source, "--out", out, "--checkpoint", "c"],
        "out must be a path on this machine": ["report", journal, "--out", "s3a://lake/report", *remote],
    }
    refused["the stream cannot run on Spark Connect"] += remote
    with command_runner(workers | {"PYSPARK_PYTHON": ""}) as run:
        printed, errors = run([*commands, *refused.values()])
    assert printed.count("status 0") == len(commands), printed + errors
    assert printed.count("status 1") == len(refused), printed + errors
    for said in refused:
        assert "error: " in errors
        assert said in errors
    page = (tmp_path / "report" / "index.html").read_text()
    assert "20 rows were dropped" in page
    hot = pq.read_table(tmp_path / "report" / "hot_keys.parquet")["operations"].to_pylist()
    assert hot[:10] == [each["operations"] for each in made[1]["hot_keys"]]
    written = pq.read_table(out).drop_columns(["text"]).to_pylist()
    names = ("group", "op_id", "outcome", "parked_ms", "finished_ms", "deadline_ms", "error")
    assert ends_of_records(("outcome", *(row[name] for name in names)) for row in written) == in_one_go(rows)
