"""Executors in processes of their own, without this package, and data in an S3 store."""

import pathlib
from typing import Any

import pytest

pytest.importorskip("pyspark", "4.2", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.pipeline.stream.traces import trace, write_trace
from tests.pipeline.cluster.conftest import Bucket, Cluster
from tests.pipeline.stream.engines import ends_of_records, in_one_go

pytestmark = pytest.mark.timeout(300)


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
