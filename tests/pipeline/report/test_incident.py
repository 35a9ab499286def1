"""The sentences about the worst interval, without Spark."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa

from purgatory.pipeline.report.incident import summary, timeline, worst_of
from purgatory.pipeline.report.time_span import TimeSpan, deploys_of
from purgatory.pipeline.report.unusual_intervals import TIMES, TimeSteps
from purgatory.pipeline.report.verdicts import KeyShares
from purgatory.pipeline.selection import EVERYTHING, Selection

BEGIN = datetime(2026, 11, 24, 14, tzinfo=UTC)
COUNTS = ("operations", "immediate", "pending", "refused", "expired", "failed", "cancelled")


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


def keys(**expired: tuple[int, int]) -> KeyShares:
    """Keys with numbers of expired and of all operations; one in twenty of all operations of the interval expired."""
    return KeyShares(expired, 500, 10_000)


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
        "No key stands out: at that time, 5.0% of the operations of shop · Payment expired, and the share of its"
        " busiest key is not higher by more than chance."
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
        (
            "Keys that stand out at that time: many (300 of 1,000 expired, and 200 of 9,000 without it); 5.0% of the"
            " operations of shop · A expired."
        )
    ]
    (none,) = [
        sentence
        for sentence in summary(times, steps("A", "B"), keys(low=(40, 1_000), few=(3, 20), some=(55, 1_000)), [])
        if "key" in sentence
    ]
    assert none == (
        "No key stands out: at that time, 5.0% of the operations of shop · A expired, and none of its 3 busiest keys"
        " has a share that is higher by more than chance (the closest is some, 55 of 1,000)."
    )


def of_keys(shares: KeyShares) -> str:
    """Return the sentence about the keys."""
    (said,) = [
        text
        for text in summary(table(interval("A", 20, 30, 0.9)), steps("A", "B"), shares, [])
        if "key" in text.lower()
    ]
    return said


@pytest.mark.parametrize(("found", "number", "others"), [(1_642, 1_642, 131), (1_239, 3_079, 531), (800, 1_000, 20)])
def test_a_key_with_most_of_the_operations_can_stand_out(found: int, number: int, others: int) -> None:
    """Its share is compared with that of the other operations; the share of all is nearly its own."""
    rest = {f"room-{each}": (0, others // 4) for each in range(4) if others >= 80}
    said = of_keys(KeyShares({"lobby": (found, number), **rest}, found, number + others))
    assert said == (
        f"Keys that stand out at that time: lobby ({found:,} of {number:,} expired, and 0 of {others:,} without it);"
        f" {found / (number + others):.1%} of the operations of shop · A expired."
    )


@pytest.mark.parametrize(
    ("found", "number", "among", "others"),
    [(1_642, 1_642, 0, 2), (1_239, 3_079, 0, 20), (1_239, 3_079, 180, 531), (950, 1_000, 84, 100)],
)
def test_a_key_does_not_stand_out_if_the_others_can_be_lower_by_chance(
    found: int, number: int, among: int, others: int
) -> None:
    """None of two, and none of twenty, is little evidence, however many operations the key has."""
    shares = KeyShares({"lobby": (found, number)}, found + among, number + others)
    assert of_keys(shares).endswith(
        "expired, and the share of its busiest key is not higher by more than chance"
        f" (the closest is lobby, {found:,} of {number:,})."
    )


def test_a_key_that_all_operations_have_is_not_compared() -> None:
    """No operation is without it.  Other keys of the same operations are compared."""
    same = {"lobby": (500, 1_000)}
    assert of_keys(KeyShares(same, 500, 1_000, 10)) == (
        "No key can be compared: at that time, all operations of shop · A that had to wait had the key lobby, and 50.0%"
        " of them expired."
    )
    both = of_keys(KeyShares(same | {"hall": (500, 1_000)}, 500, 1_000))
    assert "all operations of shop · A had the keys lobby, hall, and 50.0% of them" in both
    assert "out at that time: a (200 of 200 expired, and 300 of 800 without it); 50.0%" in of_keys(
        KeyShares(same | {"a": (200, 200)}, 500, 1_000)
    )
    assert (
        "none of its 2 busiest keys has a share that is higher by more than chance (the closest is a, 110"
        in of_keys(KeyShares(same | {"a": (110, 200)}, 500, 1_000))
    )


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
        "No new run of a server began in the reported time.",
    ]
    times = table(interval(None, 1, 2, 0.5, outcome="refused"))
    assert worst_of(times, steps()).outcome is None  # type: ignore[union-attr]
    refused = summary(times, steps(), None, [])
    assert refused[0].endswith("shop was worse: 50.00% of the operations were refused instead of 1.00%.")
    assert not any("key" in sentence for sentence in refused)


def test_the_share_of_the_keys_says_that_it_leaves_out_operations_that_never_waited() -> None:
    """The first sentence counts them, so its share of the same interval is lower."""
    times = table(interval("A", 20, 30, 0.04))
    for at_once, of in ((0, "shop · A"), (2_500, "shop · A that had to wait")):
        for counted in ((300, 1_000), (50, 1_000)):
            shares = KeyShares({"k": counted}, 500, 10_000, at_once)
            (said,) = [text for text in summary(times, steps("A", "B"), shares, []) if "key" in text.lower()]
            assert f"5.0% of the operations of {of} expired" in said


def refusing(*rows: tuple[str, str | None, int], every_kind: bool = True) -> TimeSteps:
    """Steps with the purgatory, the kind, and the number of operations refused in the minute 14:25."""
    counted = dict.fromkeys(COUNTS, 0) | {"operations": 500}
    table = [
        {"purgatory": purgatory, "kind": kind, "bucket": at(minute), **counted, "refused": refused * (minute == 25)}
        for purgatory, kind, refused in rows
        for minute in range(60)
    ]
    return TimeSteps(pa.Table.from_pylist(table), {}, 60_000, every_kind=every_kind)


def test_kinds_of_a_purgatory_that_refused_operations_are_not_called_unaffected() -> None:
    """Any of them may be the kind of the refused operations; of a purgatory as a whole, the share is judged."""
    shop = [("shop", None, 19_200), ("shop", "Payment", 0), ("shop", "Stock", 0)]
    mail = [("mail", None, 7), ("mail", "Send", 0), ("chat", None, 0), ("chat", "A", 0), ("chat", "B", 0)]
    data = [("data", None, 3), ("data", "A", 0), ("data", "B", 0)]
    times = table(interval(None, 20, 30, 0.5, outcome="refused"))
    found = summary(times, refusing(*shop, *mail, *data), None, [])
    assert found[1:] == [
        "Not affected: mail, chat · A, chat · B.",
        (
            "Perhaps affected: shop · Payment, shop · Stock, data · A, data · B. At that time, operations of unknown"
            " kinds were refused: 19,200 by shop, 3 by data."
        ),
        "No new run of a server began in the reported time.",
    ]
    earlier = table(interval(None, 5, 25, 0.5, outcome="expired"))
    assert summary(earlier, refusing(*shop), None, [])[1] == "Not affected: shop · Payment, shop · Stock."
    of_kind = table(interval("Payment", 20, 30, 0.5), interval(None, 20, 30, 0.5, outcome="refused"))
    assert summary(of_kind, refusing(*shop), keys(), [])[1:3] == [
        "Also worse at that time: shop.",
        "Perhaps affected: shop · Stock. At that time, operations of unknown kinds were refused: 19,200 by shop.",
    ]
    selected = summary(of_kind, refusing(*shop, *mail, every_kind=False), None, [])
    assert "Not affected: chat · A, chat · B." in selected
    assert "Perhaps affected: shop · Stock, mail. At that time" in selected[3], "mail: its only selected kind"


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
    lines = timeline(times, steps(), [at(minute)])
    (deploy,) = [line for line in lines if "new run" in line]
    assert deploy == f"{at(minute):%Y-%m-%d %H:%M:%S} UTC: a new run of a server began, {said}"
    assert lines.index(deploy) == (0 if minute < 20 else 2)
    assert "shop · A" in lines[minute < 20]
    assert summary(times, steps("A", "B"), keys(), [at(minute)])[-1].endswith(f"{said}.")


def test_without_a_worse_step_there_is_nothing_to_say() -> None:
    """Better intervals alone are no incident; many deploys are counted."""
    better = interval("A", 20, 30, 0.0) | {"verdict": "better"}
    assert summary(table(better), steps("A", "B"), keys(), [at(1)]) == []
    assert worst_of(table(better), steps()) is None
    assert timeline(table(better), steps(), [at(1)]) == []
    lines = timeline(table(interval("A", 20, 30, 0.9)), steps(), [at(minute) for minute in range(12)])
    assert lines[-1] == "and 4 more new runs of servers"


def ms(minute: float) -> int:
    return int(at(minute).timestamp() * 1000)


def begun(
    rows: Mapping[str, tuple[float, float]], selection: Selection = EVERYTHING, now: float = 100_000
) -> list[float]:
    """Return the minutes at which new runs began; ``rows``: the minutes of the first and the last row of each run."""
    span = TimeSpan()
    for source, (first, last) in rows.items():
        span.add(source, ms((first + last) / 2), ms(last), 0)  # the files of a run in any order
        span.add(source, ms(first), ms((first + last) / 2), 0)
    return [(each - BEGIN).total_seconds() / 60 for each in deploys_of(span, 60_000, selection, ms(now))]


def run(minute: float, process: int = 7) -> str:
    return f"a-host-{process}-{ms(minute):x}"


def test_a_deploy_is_a_later_run_in_the_selected_time() -> None:
    """Runs that began in one step are one deploy, and the first run of the journal is none."""
    rows = {"a": (0.0, 60.0), "b": (0.5, 40.0), "c": (40.0, 60.0), "d": (40.5, 60.0)}
    assert begun(rows) == [40]
    assert begun({run(minute): rows[name] for name, minute in zip(rows, (0, 0.25, 39, 39.5), strict=True)}) == [39]
    assert begun({}) == []


@pytest.mark.parametrize("named", [False, True])
def test_a_run_that_began_before_the_selected_time_is_no_deploy(named: bool) -> None:
    """Whatever a server's first selected row is: the other rows of the journal show that it ran before."""
    rows = {run(first, number) if named else str(number): (first, 240.0) for number, first in enumerate((0, 20, 150))}
    since, until = ms(120), ms(180)
    assert begun(rows) == [20, 150]
    assert begun(rows, Selection(since, until)) == [150]
    assert begun(rows, Selection(ms(160), until)) == []
    assert begun(rows, Selection(since, ms(150))) == []


def test_an_idle_server_and_one_whose_first_files_were_deleted_are_no_deploys() -> None:
    """The start time in the name of the run tells when the run began; runs before the first row are not shown."""
    assert begun({run(0, 1): (0.5, 60.0), run(0, 2): (47.0, 60.0)}) == []
    assert begun({run(-900, 1): (0.5, 60.0), run(-600, 2): (3.0, 60.0), run(30, 3): (31.0, 60.0)}) == [30]


def test_runs_of_a_simulated_time_begin_with_their_first_rows() -> None:
    """Their names have the time at which the simulation ran, before or after the times of the rows."""
    for ran in (-100_000.0, 5_000.0):
        rows = {run(ran, 1): (0.0, 40.0), run(ran + 0.1, 2): (40.0, 60.0)}
        assert begun(rows, now=ran + 1) == [40]


def test_an_interval_to_the_end_of_the_journal_has_no_end() -> None:
    """The hang may go on after the journal, so the sentences name no time at which it ended."""
    wait = {"measure": "wait p50", "unit": "seconds", "outcome": None, "baseline": 0.4}
    times = table(
        interval("A", 20, 30, 0.9, to_end=True),
        interval("A", 21, 28, 4.992, **wait, to_end=True),
        interval("A", 20, 22, 0.2, outcome="failed", to_end=False),
    )
    first, *_, deploy = summary(times, steps("A", "B"), keys(), [at(31)])
    assert first == (
        "On 2026-11-24, from 14:20 UTC until the end of the journal, shop · A was worse: 90.00% of the operations"
        " expired instead of 1.00%, and 20.00% of the operations failed instead of 1.00% (from 14:20:00 to 14:22:00),"
        " and the median wait was 5 s instead of 400 ms (from 14:21:00)."
    )
    assert deploy == "A new run of a server, as with a deploy, began at 14:31:00, 11 min after the change began."
    lines = timeline(times, steps(), [])
    assert worst_of(times, steps()) == (("shop", "A"), at(20), at(30), "expired")
    assert lines[0].startswith("2026-11-24 14:20:00 UTC until the end of the journal, shop · A: expired share 90.00%")


def test_a_time_of_another_day_has_its_date() -> None:
    """A journal can last for days, so a time alone is of the day that the sentence or the line has named."""
    times = table(
        interval("A", 540, 660, 0.9),
        interval("A", 600, 640, 0.2, outcome="failed", extreme=0.4, extreme_at=at(630)),
    )
    first, *_, deploy = summary(times, steps("A"), keys(), [at(2_000)])
    assert first.startswith("On 2026-11-24, from 23:00 to 2026-11-25 01:00 UTC, shop · A was worse: 90.00%")
    assert first.endswith("failed instead of 1.00% (from 2026-11-25 00:00:00 to 00:40:00).")
    assert deploy.startswith("A new run of a server, as with a deploy, began at 2026-11-25 23:20:00, ")
    (failed,) = [line for line in timeline(times, steps(), []) if "failed" in line]
    assert failed.startswith("2026-11-25 00:00:00 to 00:40:00 UTC, ")
    assert failed.endswith("(at most 40.00%, at 00:30:00)")
    over_midnight = interval("A", 540, 660, 0.2, extreme=0.4, extreme_at=at(630))
    assert timeline(table(over_midnight), steps(), [])[0].endswith("(at most 40.00%, at 2026-11-25 00:30:00)")
