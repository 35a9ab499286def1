"""The refused operations of a journal, of which only the purgatory and the time are known."""

import json
import pathlib
import random
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal.files import ARROW_SCHEMA
from purgatory.pipeline.__main__ import main
from purgatory.pipeline.commands.compare import WORSE
from purgatory.pipeline.compare import compare
from purgatory.pipeline.compare.page import lead
from purgatory.pipeline.report.incident import summary
from purgatory.pipeline.report.page import report_page, report_plots
from purgatory.pipeline.report.report import Report, compute
from purgatory.pipeline.report.unusual_intervals import OWN_THRESHOLD, find_own_times
from purgatory.pipeline.selection import Selection

pytestmark = pytest.mark.timeout(170)
EPOCH_MS = 28_333_320 * 60_000  # the start of an hour
MINUTES = 60
RUSH = range(20, 30)
STOCK = Selection(kinds=("Stock",))


def rows(seed: int, *, rush: bool) -> list[dict[str, Any]]:
    """An hour of a purgatory with two kinds, and of one with a single kind; one of them refuses payments in a rush."""
    draw, made = random.Random(seed), []
    blank = dict.fromkeys(ARROW_SCHEMA.names) | {"source": "run", "anchor_ms": EPOCH_MS}
    for minute in range(MINUTES):
        begin = EPOCH_MS + minute * 60_000
        for purgatory, kind, number in (("shop", "Payment", 90), ("shop", "Stock", 60), ("mail", "Send", 80)):
            for _ in range(number + draw.randrange(20)):
                parked = begin + draw.randrange(60_000)
                one = {"purgatory": purgatory, "kind": kind, "op_id": len(made), "keys": ["k"], "outcome": "completed"}
                made.append(blank | one | {"parked_at": parked, "finished_at": parked + draw.randrange(1, 900)})
        noted = [("shop", draw.randrange(200, 400))] if rush and minute in RUSH else []
        noted += [("mail", draw.randrange(1, 3))] if minute % 7 == 0 else []
        for purgatory, refused in noted:
            note = {"purgatory": purgatory, "outcome": "dropped", "refused": refused}
            made.append(blank | note | {"parked_at": begin + 5_000, "finished_at": begin + 45_000})
    return made


Hour = tuple[str, list[dict[str, Any]]]


def written(path: pathlib.Path, made: list[dict[str, Any]]) -> Hour:
    path.mkdir()
    pq.write_table(pa.Table.from_pylist(made, schema=ARROW_SCHEMA), path / "part-1.parquet")
    return str(path), made


@pytest.fixture(scope="module")
def hours(tmp_path_factory: pytest.TempPathFactory) -> tuple[Hour, Hour]:
    """The journals of a calm hour and of an hour with a rush, and their rows."""
    folder = tmp_path_factory.mktemp("refused")
    return written(folder / "calm", rows(1, rush=False)), written(folder / "rush", rows(2, rush=True))


@pytest.fixture(scope="module")
def reports(spark: Any, hours: tuple[Hour, Hour]) -> dict[str, Report]:
    """The reports on both hours, of all kinds and of one kind."""
    (calm, _), (rush, _) = hours
    made = {"calm": (calm, Selection()), "rush": (rush, Selection())}
    made |= {"calm stock": (calm, STOCK), "rush stock": (rush, STOCK)}
    return {name: compute(spark, path, selection=selection) for name, (path, selection) in made.items()}


def counted(made: list[dict[str, Any]], purgatory: str, minutes: range = range(MINUTES)) -> tuple[int, int]:
    """Return how many operations a purgatory refused, and how many were submitted, counted one by one."""
    refused = parked = 0
    for row in made:
        if row["purgatory"] == purgatory and (row["parked_at"] - EPOCH_MS) // 60_000 in minutes:
            refused += row["refused"] or 0
            parked += row["outcome"] != "dropped"
    return refused, refused + parked


def test_the_first_sentences_call_no_kind_unaffected_that_may_have_been_refused(
    reports: dict[str, Report], hours: tuple[Hour, Hour]
) -> None:
    """The share is that of the purgatory; the other purgatory refused a few, which is usual there."""
    report = reports["rush"]
    refused, submitted = counted(hours[1][1], "shop", RUSH)
    times = find_own_times(report.steps, OWN_THRESHOLD)
    (row,) = times.to_pylist()
    assert (row["purgatory"], row["kind"], row["outcome"]) == ("shop", None, "refused")
    assert row["journal"] == pytest.approx(refused / submitted, rel=1e-12)
    first, *others, _ = summary(times, report.steps, report.key_shares, report.deploys)
    assert f"shop was worse: {refused / submitted:.2%} of the operations were refused instead of 0.00%." in first
    assert others == [
        "Not affected: mail.",
        (
            "Perhaps affected: shop · Payment, shop · Stock. At that time, operations of unknown kinds were refused:"
            f" {refused:,} by shop."
        ),
    ]


def test_a_selected_kind_has_no_share_of_refused_operations(
    spark: Any, reports: dict[str, Report], hours: tuple[Hour, Hour]
) -> None:
    """The number is that of all kinds, so it says so; no share can be computed from it."""
    report = reports["rush stock"]
    refused, _ = counted(hours[1][1], "shop")
    mail, _ = counted(hours[1][1], "mail")
    assert sum(row["refused"] for row in report.tables["over_time"].to_pylist()) == refused + mail
    assert find_own_times(report.steps, OWN_THRESHOLD).num_rows == 0
    plots = report_plots(report.tables, report.bucket_ms, report.step_ms, every_kind=False)
    assert b"refused, all kinds" in plots["outcomes_over_time"].svg
    page = report_page(report, plots)
    assert "No step of time is worse" in page
    assert "of the operations were refused" not in page
    not_judged = f"Refused operations of unknown kinds are not judged: {refused:,} by shop, {mail:,} by mail."
    assert not_judged in page
    assert not_judged not in report_page(reports["rush"], {})
    assert f"<b>{refused + mail:,}</b><span>refused, all kinds</span>" in page
    comparison = compare(spark, reports["calm stock"], report)
    assert comparison.times.num_rows == 0
    assert "refused" not in comparison.changes["outcome"].to_pylist()
    assert lead(comparison)[0].startswith("No step of the journal is worse")
    assert lead(comparison)[-1] == not_judged
    calm = compare(spark, report, reports["calm stock"])
    assert lead(calm)[-1].endswith(f"not judged: {counted(hours[0][1], 'mail')[0]:,} by mail.")


def test_more_refused_operations_are_a_figure_that_got_worse(
    spark: Any, reports: dict[str, Report], hours: tuple[Hour, Hour]
) -> None:
    """For each purgatory that refused an operation, by its share of all operations that were submitted."""
    comparison = compare(spark, reports["calm"], reports["rush"])
    found = {row["purgatory"]: row for row in comparison.changes.to_pylist() if row["outcome"] == "refused"}
    assert {name: (row["verdict"], row["measure"], row["kind"]) for name, row in found.items()} == {
        "mail": ("same", "share", None),
        "shop": ("worse", "share", None),
    }
    for name, row in found.items():
        for side, (_, made) in zip(("baseline", "journal"), hours, strict=True):
            refused, submitted = counted(made, name)
            assert row[side] == pytest.approx(refused / submitted, rel=1e-12)
            assert row[f"{side}_operations"] == submitted
    assert compare(spark, reports["rush"], reports["calm"]).counts["better"] == 1


def test_the_exit_status_of_a_comparison_counts_refused_operations(
    spark: Any, hours: tuple[Hour, Hour], capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless a kind is selected, of which it is not known whether it was refused."""
    arguments = ["compare", hours[0][0], hours[1][0], "--top", "1", "--quiet", "--json", "--fail-on-worse"]
    assert main(arguments) == WORSE
    worse = [row for row in json.loads(capsys.readouterr().out)["changes"] if row["verdict"] == "worse"]
    assert [(row["purgatory"], row["outcome"]) for row in worse] == [("shop", "refused")]
    assert main([*arguments, "--kind", "Stock"]) == 0
