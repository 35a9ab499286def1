"""Random traces: rows for trials, tests, and measurements.  The same seed gives the same rows."""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["BEGIN_MS", "disordered", "trace", "write_trace"]

BEGIN_MS = 1_700_000_000_000

_CONDITIONS = (
    "count(1)", "count(2)", "count(3)", "all_keys", "all_keys(count(2))", "at_least(50)", "all_keys(at_least(30))",
)  # fmt: skip


def trace(
    seed: int,
    groups: int,
    *,
    operations: int = 6,
    span_ms: int = 20_000,
    grid_ms: int = 50,
    heartbeat: bool = True,
    every_kind: bool = False,
) -> list[dict[str, Any]]:
    """Return the rows of ``groups`` groups with ``operations`` operations each, in the order of their times.

    All times, including deadlines, are multiples of ``grid_ms`` within ``span_ms``, so that ties are frequent: between
    a signal and a deadline, between two deadlines, and between rows.  With ``heartbeat``, the last row is a heartbeat
    one day after the end.

    With ``every_kind``, the trace also contains rows that move deadlines (earlier, later, or into the past) or remove
    them, rows that fail operations, and cancellations by key.  The other rows are the same as without ``every_kind``.
    """
    draw = random.Random(seed)  # noqa: S311 - a simulation draws numbers, not secrets
    rows: list[dict[str, Any]] = []
    more = random.Random(f"every kind {seed}")  # noqa: S311
    for number in range(groups):
        own = list(_group(draw, f"group-{seed}-{number}", operations, span_ms, grid_ms))
        rows += own
        if every_kind:
            rows += _interventions(more, own, span_ms, grid_ms)
    rows.sort(key=_when)
    for seq, row in enumerate(rows):
        row["seq"] = seq
    if heartbeat:
        rows.append({"kind": "heartbeat", "ts_ms": BEGIN_MS + span_ms + 86_400_000, "seq": len(rows), "group": "-"})
    return rows


def _group(draw: random.Random, group: str, operations: int, span_ms: int, grid_ms: int) -> Iterator[dict[str, Any]]:
    steps = span_ms // grid_ms
    keys = [f"k{number}" for number in range(draw.choice((1, 2, 4)))]
    for number in range(operations):
        ts_ms = BEGIN_MS + draw.randrange(steps) * grid_ms
        row: dict[str, Any] = {"kind": "park", "ts_ms": ts_ms, "group": group, "op_id": f"{group}/{number}"}
        row["keys"] = draw.sample(keys, draw.randint(1, len(keys)))
        row["condition"] = draw.choice(_CONDITIONS)
        limit = draw.random()
        if limit < 0.6:
            row["timeout_ms"] = draw.randrange(steps // 4) * grid_ms
        elif limit < 0.95:
            row["deadline_ms"] = BEGIN_MS + draw.randrange(steps) * grid_ms
        else:
            row["condition"] = "count(1)"  # waits without a deadline for one of the signals below
            yield _signal(BEGIN_MS + span_ms, group, row["keys"][0], None)
        yield row
        if draw.random() < 0.1:
            yield {
                "kind": "cancel",
                "ts_ms": ts_ms + draw.randrange(steps // 4) * grid_ms,
                "group": group,
                "op_id": row["op_id"],
            }
    for _ in range(operations * 2):
        value = draw.choice((None, draw.randrange(100), draw.random() * 100))
        yield _signal(BEGIN_MS + draw.randrange(steps) * grid_ms, group, draw.choice(keys), value)


def _interventions(
    draw: random.Random, rows: list[dict[str, Any]], span_ms: int, grid_ms: int
) -> Iterator[dict[str, Any]]:
    """Yield rows that move or remove deadlines, or fail operations, for about half of the operations of a group.

    Up to two more rows fail or cancel all operations that wait on a key of the group.
    """
    steps = span_ms // grid_ms
    parks = [row for row in rows if row["kind"] == "park"]
    for park in parks:
        for _ in range(draw.choice((0, 0, 1, 2))):
            ts_ms = park["ts_ms"] + draw.randrange(steps // 8) * grid_ms
            row = {"kind": "extend", "ts_ms": ts_ms, "group": park["group"], "op_id": park["op_id"]}
            moved = draw.random()
            if moved < 0.45:
                row["deadline_ms"] = ts_ms + draw.randrange(-2, steps // 4) * grid_ms
            elif moved < 0.9:
                row["timeout_ms"] = draw.randrange(steps // 4) * grid_ms
            else:  # removed; it ends with the trace
                yield _fail(BEGIN_MS + 2 * span_ms, park["group"], op_id=park["op_id"])
            yield row
        if draw.random() < 0.1:
            yield _fail(park["ts_ms"] + draw.randrange(steps // 8) * grid_ms, park["group"], op_id=park["op_id"])
    for _ in range(draw.choice((0, 1, 2))):
        ts_ms, key = BEGIN_MS + draw.randrange(steps) * grid_ms, draw.choice(draw.choice(parks)["keys"])
        group = parks[0]["group"]
        if draw.random() < 0.5:
            yield _fail(ts_ms, group, key=key)
        else:
            yield {"kind": "cancel", "ts_ms": ts_ms, "group": group, "key": key}


def _fail(ts_ms: int, group: str, **target: str) -> dict[str, Any]:
    return {"kind": "fail", "ts_ms": ts_ms, "group": group, "error": f"LeaderChanged: at {ts_ms}", **target}


def _signal(ts_ms: int, group: str, key: str, value: float | None) -> dict[str, Any]:
    return {"kind": "signal", "ts_ms": ts_ms, "group": group, "key": key, "value": value}


def _when(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["ts_ms"], row["group"], row["kind"] != "park", json.dumps(row))


def disordered(rows: list[dict[str, Any]], delay_ms: int, seed: int) -> list[dict[str, Any]]:
    """Return the rows in random order of arrival: none arrives more than ``delay_ms`` after a row with a newer time."""
    draw = random.Random(seed)  # noqa: S311
    arriving = [(row["ts_ms"] + draw.randrange(delay_ms), number) for number, row in enumerate(rows)]
    arriving.sort()
    return [rows[number] for _, number in arriving]


def write_trace(rows: list[dict[str, Any]], directory: Path, files: int) -> None:
    """Write the rows, in this order, into Parquet files that a stream reads in the same order, by modification time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    text, whole = pa.string(), pa.int64()
    schema = pa.schema(
        {
            "kind": text, "ts_ms": whole, "seq": whole, "group": text, "op_id": text, "keys": pa.list_(text),
            "condition": text, "timeout_ms": whole, "deadline_ms": whole, "key": text, "value": pa.float64(),
            "error": text,
        }
    )  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    size = -(-len(rows) // files)
    for number in range(files):
        path = directory / f"rows-{number:04}.parquet"
        pq.write_table(pa.Table.from_pylist(rows[number * size : (number + 1) * size], schema=schema), path)
        os.utime(path, (BEGIN_MS // 1000 + number,) * 2)
