"""The keys of the worst interval, counted by Spark and one by one."""

import pathlib
import random
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal.files import ARROW_SCHEMA
from purgatory.pipeline.report.incident import summary
from purgatory.pipeline.report.report import compute
from purgatory.pipeline.report.unusual_intervals import OWN_THRESHOLD, find_own_times

pytestmark = pytest.mark.timeout(170)
EPOCH_MS = 28_333_320 * 60_000
SLOW = range(20, 30)


def test_neighboring_sentences_name_the_operations_of_their_shares(spark: Any, tmp_path: pathlib.Path) -> None:
    """The first share is of all operations, and that of the keys is of those that had to wait."""
    draw, rows = random.Random(5), []
    blank = dict.fromkeys(ARROW_SCHEMA.names) | {"source": "run", "purgatory": "p", "kind": "K", "anchor_ms": EPOCH_MS}
    for number in range(12_000):
        offset = draw.randrange(3_600_000)
        parked, waits = EPOCH_MS + offset, draw.random() < 0.7
        late = waits and offset // 60_000 in SLOW and draw.random() < 0.5
        one = {"op_id": number, "keys": [f"k{draw.randrange(5)}"] if waits else [], "parked_at": parked}
        ended = parked + (5_000 if late else 20 if waits else 0)
        one |= {"outcome": "expired" if late else "completed", "finished_at": ended, "deadline": parked + 5_000}
        rows.append(blank | one)
    note = blank | {"kind": None, "outcome": "dropped", "parked_at": EPOCH_MS + 25 * 60_000}
    notes = [note | {"refused": 1}, note | {"purgatory": None, "dropped": 1}]
    notes = [each | {"finished_at": note["parked_at"] + 9} for each in notes]
    pq.write_table(pa.Table.from_pylist(rows + notes, schema=ARROW_SCHEMA), tmp_path / "part-1.parquet")
    report = compute(spark, str(tmp_path))
    within = [row for row in rows if (row["parked_at"] - EPOCH_MS) // 60_000 in SLOW]
    waited = [row for row in within if row["keys"]]
    expired = sum(row["outcome"] == "expired" for row in within)
    shares = report.key_shares
    assert shares is not None
    assert (shares.found, shares.waited, shares.at_once) == (expired, len(waited), len(within) - len(waited))
    times = find_own_times(report.steps, OWN_THRESHOLD)
    first, *_, of_keys, _ = summary(times, report.steps, shares, report.deploys)
    assert f"{expired / len(within):.2%} of the operations expired" in first
    assert f"{expired / len(waited):.1%} of the operations of p that had to wait expired" in of_keys
