"""The sentences about the worst interval, without Spark."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa

from purgatory.pipeline.report.incident import summary, timeline
from purgatory.pipeline.report.times import TIMES, TimeSteps

BEGIN = datetime(2026, 11, 24, 14, tzinfo=UTC)
COUNTS = ("operations", "immediate", "pending", "refused")


def at(minute: float) -> datetime:
    return BEGIN + timedelta(minutes=minute)


def interval(kind: str | None, since: int, until: int, here: float, **about: Any) -> dict[str, Any]:
    row = {"verdict": "worse", "measure": "share", "unit": "share", "outcome": "expired", "purgatory": "shop"}
    row |= {"kind": kind, "since": at(since), "until": at(until), "baseline": 0.01, "journal": here, "extreme": here}
    return row | {"extreme_at": at(since), "operations": 1_000} | about


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=TIMES)


def steps(*kinds: str, few: str = "") -> TimeSteps:
    rows = [
        {"purgatory": "shop", "kind": kind, "bucket": at(minute)} | dict.fromkeys(COUNTS, 0) | {"operations": number}
        for kind, number in ((None, 500), *((kind, 5 if kind == few else 100) for kind in kinds))
        for minute in range(60)
    ]
    return TimeSteps(pa.Table.from_pylist(rows), {}, 60_000)


def keys(**expired: tuple[int, int]) -> dict[str, pa.Table]:
    """Tables of keys with numbers of expired and of all operations; one in twenty of all operations expired."""
    rows = [
        {"purgatory": "shop", "key": key, "expired": found, "operations": n, "failed": 0, "cancelled": 0}
        for key, (found, n) in expired.items()
    ]
    outcomes = [
        {"purgatory": "shop", "kind": "A", "outcome": outcome, "operations": number, "immediate": 0}
        for outcome, number in (("completed", 9_500), ("expired", 500))
    ]
    return {"hot_keys": pa.Table.from_pylist(rows), "outcomes": pa.Table.from_pylist(outcomes)}


def test_the_first_sentence_has_the_time_the_kind_and_the_figures() -> None:
    """The kind is preferred to its purgatory, and one sentence has the share and the wait."""
    wait = {"measure": "wait p50", "unit": "seconds", "outcome": None, "baseline": 0.4}
    times = table(
        interval(None, 20, 30, 0.4, operations=2_500),
        interval("Payment", 20, 30, 0.9, operations=1_000),
        interval("Payment", 21, 30, 4.992, **wait),
    )
    first, *others = summary(times, steps("Payment", "Stock"), keys(a=(50, 1_000)), [at(40)])
    assert first == (
        "On 2026-11-24, from 14:20 to 14:30 UTC, shop · Payment was worse: 90.00% of the operations expired instead of"
        " 1.00%, and the median wait was 5 s instead of 400 ms (from 14:21:00 to 14:30:00)."
    )
    unaffected, of_keys, deploy = others
    assert unaffected == "Not affected: shop · Stock."
    assert of_keys == (
        "No key stands out: in the whole journal, 5.0% of all operations of shop expired, and none of its 1 busiest"
        " keys has a share that is higher by more than chance (most on a, 50 of 1,000)."
    )
    assert deploy == (
        "A new run of a server, as with a deploy, began at 14:40:00, 20 min after the change began, and 10 min after"
        " it ended."
    )


def test_keys_stand_out_only_by_more_than_chance() -> None:
    """Three of twenty are three times the share of all, and can be chance; 300 of 1,000 cannot."""
    times = table(interval("A", 20, 30, 0.9))
    tables = keys(few=(3, 20), many=(300, 1_000), usual=(50, 1_000), tiny=(1, 1))
    assert [sentence for sentence in summary(times, steps("A", "B"), tables, []) if "Keys" in sentence] == [
        "Keys that stand out in the whole journal: many (300 of 1,000 expired); 5.0% of all operations of shop expired."
    ]


def test_a_kind_with_few_operations_is_not_called_unaffected() -> None:
    """Kinds that are worse at the same time are named; a purgatory that refused operations has no keys to look at."""
    times = table(
        interval("A", 20, 30, 0.9), interval("B", 25, 35, 0.5), interval("C", 50, 52, 0.3), interval("A", 55, 56, 0.2)
    )
    found = summary(times, steps("A", "B", "C", "D", "E", few="E"), keys(), [])
    assert found[0].startswith("On 2026-11-24, from 14:20 to 14:30 UTC, shop · A was worse")
    assert found[1:] == [
        "Also worse at that time: shop · B.",
        "Not affected: shop · C, shop · D.",
        "Too few operations to judge: shop · E.",
        "No new run of a server began in this journal.",
    ]
    refused = summary(table(interval(None, 1, 2, 0.5, outcome="refused")), steps(), keys(a=(9, 90)), [])
    assert refused[0].endswith("shop was worse: 50.00% of the operations were refused instead of 1.00%.")
    assert not any("key" in sentence for sentence in refused)


@pytest.mark.parametrize(
    ("minute", "said"),
    [
        (5, "15 min before the change"),
        (20, "when the change began"),
        (24.5, "4.5 min after the change began"),
        (31, "11 min after the change began, and 60 s after it ended"),
    ],
)
def test_a_deploy_is_placed_in_time(minute: float, said: str) -> None:
    """The lines are in the order of time, so a later deploy comes after the interval."""
    times = table(interval(None, 20, 30, 0.4, operations=2_500), interval("A", 20, 30, 0.9))
    lines = timeline(times, [at(minute)])
    (deploy,) = [line for line in lines if "new run" in line]
    assert deploy == f"{at(minute):%Y-%m-%d %H:%M:%S} UTC: a new run of a server began, {said}"
    assert lines.index(deploy) == (0 if minute < 20 else 2)
    assert "shop · A" in lines[minute < 20]
    assert summary(times, steps("A", "B"), keys(), [at(minute)])[-1].endswith(f"{said}.")


def test_without_a_worse_step_there_is_nothing_to_say() -> None:
    """Better intervals alone are no incident; many deploys are counted."""
    better = interval("A", 20, 30, 0.0) | {"verdict": "better"}
    assert summary(table(better), steps("A", "B"), keys(), [at(1)]) == []
    assert timeline(table(better), [at(1)]) == []
    lines = timeline(table(interval("A", 20, 30, 0.9)), [at(minute) for minute in range(12)])
    assert lines[-1] == "and 4 more new runs of servers"
