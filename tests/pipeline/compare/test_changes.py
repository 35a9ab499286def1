"""The verdicts on the changes between two reports, without Spark."""

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import numpy as np
import pyarrow as pa

from purgatory.pipeline.compare import Comparison
from purgatory.pipeline.compare.changes import VERDICTS, Figures, find_changes
from purgatory.pipeline.compare.page import row_texts
from purgatory.pipeline.report.unusual_intervals import TIMES
from purgatory.pipeline.selection import EVERYTHING

QUANTILES = ("p50", "p90", "p99", "p999")
ENDED = ("completed", "expired", "cancelled", "failed", "pending")


def figures(
    duration: float = 100.0,
    *,
    outcomes: dict[tuple[str, str, str], int] | None = None,
    waits: dict[tuple[str, str | None], tuple[int, float]] | None = None,
    late: dict[str, tuple[int, float]] | None = None,
    peaks: dict[str, int] | None = None,
    keys: dict[tuple[str, str], tuple[int, float]] | None = None,
    dropped: tuple[int, int] = (0, 0),
    refused: dict[str, tuple[int, int]] | None = None,
    every_kind: bool = True,
) -> Figures:
    """The tables of a report.  All quantiles of a wait or lateness are equal.

    ``refused``: how many operations of each purgatory were refused, and how many parked.
    """
    names: dict[str, Any] = dict.fromkeys(("purgatory", "kind", "key"), pa.string())

    def table(rows: list[dict[str, Any]], *columns: str) -> pa.Table:
        types = {name: names.get(name, pa.float64() if name in QUANTILES else pa.int64()) for name in columns}
        types |= {"outcome": pa.string()} if "outcome" in columns else {}
        return pa.Table.from_pylist(rows, schema=pa.schema(types))

    def spread(value: float) -> dict[str, float]:
        return dict.fromkeys(QUANTILES, value)

    tables = {
        "outcomes": table(
            [{"purgatory": p, "kind": k, "outcome": o, "operations": n} for (p, k, o), n in (outcomes or {}).items()],
            "purgatory", "kind", "outcome", "operations",
        ),
        "waits": table(
            [{"purgatory": p, "kind": k, "operations": n, **spread(v)} for (p, k), (n, v) in (waits or {}).items()],
            "purgatory", "kind", "operations", *QUANTILES,
        ),
        "lateness": table(
            [{"purgatory": p, "expired": n, **spread(v)} for p, (n, v) in (late or {}).items()],
            "purgatory", "expired", *QUANTILES,
        ),
        "peaks": table([{"purgatory": p, "peak": n} for p, n in (peaks or {}).items()], "purgatory", "peak"),
        "hot_keys": table(
            [
                {"purgatory": p, "key": k, "operations": n, **dict.fromkeys(ENDED, 0), "completed": n, **spread(v)}
                for (p, k), (n, v) in (keys or {}).items()
            ],
            "purgatory", "key", "operations", *ENDED, *QUANTILES,
        ),
        "dropped": table([{"operations": dropped[0], "dropped": dropped[1]}], "operations", "dropped"),
        "over_time": table(
            [{"purgatory": p, "kind": k, "refused": 0 if k else n, "operations": of}
             for p, (n, of) in (refused or {}).items() for k in (None, "K")],
            "purgatory", "kind", "refused", "operations",
        ),
    }  # fmt: skip
    return Figures(tables, duration, every_kind)


def verdicts(before: Figures, after: Figures, threshold: float = 0.1) -> dict[tuple[str | None, ...], str]:
    rows = find_changes(before, after, threshold).to_pylist()
    names = ("measure", "purgatory", "kind", "outcome", "key")
    return {tuple(row[name] for name in names if row[name] is not None): row["verdict"] for row in rows}


def of(**counts: int) -> dict[tuple[str, str, str], int]:
    return {("p", "K", outcome): number for outcome, number in counts.items()}


def test_a_report_beside_itself_has_no_change() -> None:
    """Every figure is the same."""
    one = figures(
        outcomes=of(completed=900, expired=50, cancelled=20, failed=20, pending=10),
        waits={("p", None): (900, 0.5), ("p", "K"): (900, 0.5)},
        late={"p": (50, 0.002)},
        peaks={"p": 30},
        keys={("p", "a"): (100, 0.4), ("p", "b"): (1, 0.0)},
        dropped=(1000, 5),
    )
    found = verdicts(one, one)
    assert set(found.values()) == {"same"}
    assert len(found) == 1 + 5 + 4 + 4 + 1 + 4 + 1


def test_more_failures_are_worse_and_fewer_are_better() -> None:
    """For each outcome that is not wanted; the other way round the verdicts are exchanged."""
    before, after = figures(outcomes=of(completed=9_900, failed=100)), figures(outcomes=of(completed=9_700, failed=300))
    assert verdicts(before, after) == {
        ("operations", "p", "K"): "same",
        ("share", "p", "K", "completed"): "worse",
        ("share", "p", "K", "failed"): "worse",
    }
    assert verdicts(after, before)["share", "p", "K", "failed"] == "better"
    assert verdicts(after, before)["share", "p", "K", "completed"] == "better"
    assert set(verdicts(before, after, threshold=2.5).values()) == {"same"}, "three times as many: below 250 % more"


def test_a_key_whose_operations_all_wait_has_no_wait_to_compare() -> None:
    """Its operations are compared; a wait that neither report has is not new."""
    one = figures(keys={("p", "k"): (5, 0.1)})
    column = one.tables["hot_keys"].schema.get_field_index("p99")
    waiting = one.tables["hot_keys"].set_column(column, "p99", pa.nulls(1, pa.float64()))
    pending = Figures({**one.tables, "hot_keys": waiting}, one.duration)
    assert verdicts(pending, pending) == {("operations of a key", "p", "k"): "same"}
    assert verdicts(pending, one)["wait of a key p99", "p", "k"] == "new"


def test_an_outcome_that_appears_is_judged() -> None:
    """The baseline has the operations, but none that failed: its share is zero."""
    found = verdicts(figures(outcomes=of(completed=10_000)), figures(outcomes=of(completed=9_900, failed=100)))
    assert found["share", "p", "K", "failed"] == "worse"
    more = verdicts(figures(outcomes=of(completed=9_900, pending=100)), figures(outcomes=of(completed=10_000)))
    assert more["share", "p", "K", "pending"] == "fewer", "operations that still wait are neither good nor bad"


def test_chance_is_not_a_change() -> None:
    """A share that doubles, of few operations; a count that doubles, of few operations; a peak of few."""
    before, after = figures(outcomes=of(completed=99, failed=1)), figures(outcomes=of(completed=98, failed=2))
    assert verdicts(before, after)["share", "p", "K", "failed"] == "same"
    assert (
        verdicts(figures(outcomes=of(completed=4)), figures(outcomes=of(completed=8)))["operations", "p", "K"] == "same"
    )
    assert verdicts(figures(peaks={"p": 4}), figures(peaks={"p": 8}))["peak", "p"] == "same"
    assert verdicts(figures(peaks={"p": 400}), figures(peaks={"p": 800}))["peak", "p"] == "worse"


def test_counts_are_compared_per_second() -> None:
    """Twice the operations in twice the time are the same rate."""
    before, after = figures(100.0, outcomes=of(completed=1_000)), figures(200.0, outcomes=of(completed=2_000))
    assert verdicts(before, after)["operations", "p", "K"] == "same"
    twice = figures(100.0, outcomes=of(completed=2_000))
    assert verdicts(before, twice)["operations", "p", "K"] == "more"
    assert verdicts(twice, before)["operations", "p", "K"] == "fewer"
    (row,) = find_changes(before, twice, 0.1).to_pylist()[:1]
    assert (row["unit"], row["baseline"], row["journal"], row["ratio"]) == ("per second", 10.0, 20.0, 2.0)


def test_a_quantile_needs_ten_operations_above_it() -> None:
    """Of 1 000 operations, p99 can be judged and p99.9 cannot."""
    before = figures(waits={("p", "K"): (1_000, 0.1)}, late={"p": (19, 0.1)})
    after = figures(waits={("p", "K"): (1_000, 0.3)}, late={"p": (1_000, 0.3)})
    assert verdicts(before, after) == {
        ("wait p50", "p", "K"): "worse",
        ("wait p90", "p", "K"): "worse",
        ("wait p99", "p", "K"): "worse",
        ("wait p99.9", "p", "K"): "unclear",
        **{(f"lateness {name}", "p"): "unclear" for name in ("p50", "p90", "p99", "p99.9")},
    }
    assert verdicts(after, before)["wait p99", "p", "K"] == "better"


@pytest.mark.parametrize("waits", [(-1.0, -1.0), (-1.0, 0.3), (0.3, -1.0)])
def test_negative_waits_of_damaged_rows_are_compared_as_no_wait(waits: tuple[float, float]) -> None:
    """A report of them can be made, so a comparison can, too."""
    before, after = (figures(waits={("p", "K"): (1_000, wait)}) for wait in waits)
    found = verdicts(before, after)["wait p50", "p", "K"]
    assert found == ("same" if waits[0] == waits[1] else "worse" if waits[0] < 0 else "better")


def samples(seed: int, number: int, median: float) -> Figures:
    """The quantiles of log-normal waits."""
    draw = np.random.default_rng(seed).lognormal(np.log(median), 1.5, number)
    found = dict(zip(QUANTILES, np.quantile(draw, (0.5, 0.9, 0.99, 0.999)).tolist(), strict=True))
    one = figures(waits={("p", "K"): (number, 0.0)})
    row = one.tables["waits"].to_pylist()[0] | found
    return Figures({**one.tables, "waits": pa.Table.from_pylist([row], one.tables["waits"].schema)}, one.duration)


def test_waits_of_one_distribution_do_not_differ() -> None:
    """Two hundred pairs of samples of 300 or 20 000 waits: fewer than one verdict in a hundred is wrong."""
    for number in (300, 20_000):
        found = [verdicts(samples(2 * n, number, 0.4), samples(2 * n + 1, number, 0.4)).values() for n in range(200)]
        judged = [verdict for one in found for verdict in one if verdict in ("worse", "better")]
        assert len(judged) < 8, number


def test_waits_that_are_twice_as_long_differ() -> None:
    """The median of 1 000 waits is enough, and p99 of 20 000."""
    assert verdicts(samples(1, 1_000, 0.4), samples(2, 1_000, 0.8))["wait p50", "p", "K"] == "worse"
    assert verdicts(samples(1, 20_000, 0.8), samples(2, 20_000, 0.4))["wait p99", "p", "K"] == "better"


def test_a_millisecond_is_no_change() -> None:
    """It is the resolution of a journal, however small the wait."""
    before = figures(waits={("p", "K"): (10**6, 0.001)})
    assert set(verdicts(before, figures(waits={("p", "K"): (10**6, 0.002)})).values()) == {"same"}
    assert set(verdicts(before, figures(waits={("p", "K"): (10**6, 0.003)})).values()) == {"worse"}


def test_the_row_of_a_whole_purgatory_is_left_out_if_it_has_one_kind() -> None:
    """It would repeat that of the kind."""
    one = figures(waits={("p", None): (9, 1.0), ("p", "K"): (9, 1.0)})
    two = figures(waits={("p", None): (9, 1.0), ("p", "K"): (5, 1.0), ("p", "L"): (4, 1.0)})
    assert ("wait p50", "p") not in verdicts(one, one)
    assert ("wait p50", "p") in verdicts(one, two)


def test_what_only_one_journal_has_is_new_or_gone() -> None:
    """A purgatory, a kind, a key: no figure of the other journal can be compared with it."""
    some = figures(outcomes=of(completed=5), waits={("p", "K"): (5, 1.0)}, peaks={"p": 2}, keys={("p", "a"): (5, 1.0)})
    assert set(verdicts(figures(), some).values()) == {"new"}
    assert set(verdicts(some, figures()).values()) == {"gone"}


def test_hot_keys_are_compared_by_rate_and_wait() -> None:
    """A key without an operation in one journal is new there; its wait has nothing to be compared with."""
    before = figures(keys={("p", "a"): (2_000, 0.1), ("p", "b"): (900, 0.1)})
    after = figures(keys={("p", "a"): (4_000, 0.5), ("p", "b"): (0, 0.0)})
    assert verdicts(before, after) == {
        ("operations of a key", "p", "a"): "more",
        ("wait of a key p99", "p", "a"): "worse",
        ("operations of a key", "p", "b"): "gone",
    }


def test_dropped_rows_are_worse() -> None:
    """By their share; without any in both journals there is no such figure."""
    none, some = figures(dropped=(10_000, 0)), figures(dropped=(10_000, 100))
    assert verdicts(none, some) == {("dropped rows",): "worse"}
    assert verdicts(some, none) == {("dropped rows",): "better"}
    assert verdicts(none, none) == {}


def test_refused_operations_are_worse() -> None:
    """By their share of the operations of the purgatory, if the operations of all kinds are known."""
    none, some = figures(refused={"p": (0, 1_000)}), figures(refused={"p": (1_000, 1_000)})
    (row,) = find_changes(none, some, 0.1).to_pylist()
    assert (row["verdict"], row["baseline"], row["journal"]) == ("worse", 0.0, 0.5)
    assert (row["purgatory"], row["kind"], row["outcome"]) == ("p", None, "refused")
    assert (row["baseline_operations"], row["journal_operations"]) == (1_000, 2_000)
    assert verdicts(some, none) == {("share", "p", "refused"): "better"}
    assert verdicts(figures(), some) == {("share", "p", "refused"): "new"}
    assert verdicts(some, figures()) == {("share", "p", "refused"): "gone"}
    assert verdicts(none, none) == {}
    of_kind = figures(refused={"p": (1_000, 1_000)}, every_kind=False)
    assert verdicts(none, of_kind) == verdicts(of_kind, none) == {}


def test_every_verdict_is_listed() -> None:
    """The list is the order in which a comparison shows them."""
    assert set(VERDICTS) == {"worse", "better", "more", "fewer", "new", "gone", "unclear", "same"}


def test_a_comparison_is_json_in_every_encoding() -> None:
    """The text is ASCII, so that a terminal that lacks a character of a name escapes nothing within the JSON."""
    at = datetime(2026, 11, 22, tzinfo=UTC)
    report: Any = SimpleNamespace(
        journal="journal-é \udcff",
        selection=EVERYTHING,
        first_at=at,
        last_at=at,
        step_ms=60_000,
        operations=1,
        dropped=0,
        skipped=(),
    )
    text = Comparison(report, report, find_changes(figures(), figures(), threshold=0.1), 0.1, at).as_json()
    assert text.isascii()
    assert json.loads(text)["journal"]["journal"] == report.journal


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"completed": 1_140, "expired": 8_860}, {"completed": 920, "expired": 9_080}, ("worse", "worse")),
        ({"completed": 1_000, "expired": 9_000}, {"completed": 980, "expired": 9_020}, ("same", "same")),
        ({"completed": 500, "expired": 9_500}, {"completed": 100, "expired": 9_900}, ("worse", "worse")),
        ({"completed": 9_500, "expired": 500}, {"completed": 9_900, "expired": 100}, ("better", "better")),
        ({"completed": 5_000, "expired": 5_000}, {"completed": 5_400, "expired": 4_600}, ("same", "same")),
    ],
)
def test_the_smaller_share_is_judged(before: Any, after: Any, expected: tuple[str, str]) -> None:
    """Of an outcome and the rest: a fifth fewer completions are a change, although most operations expire as before."""
    found = verdicts(figures(outcomes=of(**before)), figures(outcomes=of(**after)))
    assert (found["share", "p", "K", "completed"], found["share", "p", "K", "expired"]) == expected
    back = verdicts(figures(outcomes=of(**after)), figures(outcomes=of(**before)))
    turned = {"worse": "better", "better": "worse", "same": "same"}
    if expected[0] != "same":
        assert back["share", "p", "K", "completed"] == turned[expected[0]]


@pytest.mark.parametrize(("day", "since"), [(0, "14:20:00"), (2, "2026-11-26 14:20:00")])
def test_an_interval_of_a_later_day_has_its_date(day: int, since: str) -> None:
    """The figure of the whole journal is the same; the note names the interval in which it is worse."""
    begin = datetime(2026, 11, 24, 9, tzinfo=UTC)
    at = begin + timedelta(days=day, hours=5, minutes=20)
    row: dict[str, Any] = {"verdict": "worse", "measure": "share", "unit": "share", "outcome": "failed"}
    row |= {"purgatory": "p", "since": at, "until": at + timedelta(minutes=10), "to_end": False, "baseline": 0.01}
    row |= {"journal": 0.9, "extreme": 0.9, "extreme_at": at, "operations": 100}
    times = pa.Table.from_pylist([row], schema=TIMES)
    report: Any = SimpleNamespace(first_at=begin)
    one = figures(outcomes=of(completed=9_900, failed=100))
    comparison = Comparison(report, report, find_changes(one, one, threshold=0.1), 0.1, at, times)
    notes = {each["note"] for each in row_texts(comparison, "same")}
    assert notes == {"", f"but worse from {since} to 14:30:00: 90.00%"}
