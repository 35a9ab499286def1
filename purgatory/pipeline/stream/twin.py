"""The batch twin: the same groups, decided in one go, for replays and backfills."""

import importlib
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everyone gives it

from .frames import for_groups
from .group import Group
from .records import OUTPUT, OUTPUT_NAMES, dead_line, record_of_dead, record_of_end

__all__ = ["decide", "decided", "last_ms"]

Record = tuple[Any, ...]


def last_ms(rows: DataFrame) -> int:
    """The time of the last row, heartbeats included: up to there a trace says what has happened.  One pass."""
    last = rows.agg(F.max(F.unix_millis("event_time"))).first()
    return 0 if last is None or last[0] is None else int(last[0])


def decided(
    rows: DataFrame, until_ms: int | None = None, *, pending: bool = False, modules: tuple[str, ...] = ()
) -> DataFrame:
    """What ``prepared`` made, as a batch -> records, those that the stream makes when its watermark is ``until_ms``.

    ``until_ms``: how far the time goes; the time of the last row unless given.  Rows after it do not happen.
    ``pending``: also a record, with the outcome ``pending``, for each operation that waits then.
    """
    if until_ms is None:
        until_ms = last_ms(rows)
    return rows.transform(for_groups).groupBy("group").applyInPandas(_function(until_ms, pending, modules), OUTPUT)


def _function(until_ms: int, pending: bool, modules: tuple[str, ...]) -> Callable[..., Any]:
    # No annotations: Spark would take them for its own kind of type hints.
    def in_pandas(key, frame):  # type: ignore[no-untyped-def]
        import pandas as pd

        for module in modules:
            importlib.import_module(module)
        records = decide(key[0], frame["line"].tolist(), until_ms, pending)
        return pd.DataFrame(records, columns=list(OUTPUT_NAMES)).astype(_WHOLE)

    return in_pandas


# pandas would make floats of whole numbers where some are missing
_WHOLE = {"parked_ms": "Int64", "finished_ms": "Int64", "deadline_ms": "Int64", "live": "Int32"}


def decide(name: str, lines: list[str], until_ms: int, pending: bool = False) -> list[Record]:
    """The records of one group, all of whose rows are known.  Pure."""
    records: list[Record] = []
    good: list[str] = []
    for line in lines:
        bad = dead_line(line)
        if bad is None:
            good.append(line)
        else:
            records.append(record_of_dead(name, bad))
    group = Group(name)
    group.add(good)
    records += [record_of_end(name, end) for end in group.advance(until_ms)]
    records += [record_of_dead(name, dead) for dead in group.dead]
    if pending:
        records += [record_of_end(name, end) for end in group.pending()]
    return records
