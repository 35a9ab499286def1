"""The HTML page of a report."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from purgatory.pipeline.output.figures import Picture, seconds
from purgatory.pipeline.output.page import Card, Note, PageTable, render

if TYPE_CHECKING:
    from .report import Report

__all__ = ["report_page"]

_EXPLAINED: Final = {
    "outcomes": "How the operations of each kind ended. An immediate operation completed without waiting.",
    "waits": "Time from parking to the end, of operations that waited. A row without a kind is the whole purgatory.",
    "lateness": "Time from the deadline to expiry. Expired by closing: the purgatory closed before the deadline.",
    "peaks": "The highest number of operations that waited at once, and the first bucket that reached it.",
    "hot_keys": "The keys with the most operations.",
    "hot_keys_by_wait": "The keys whose operations waited longest, all together.",
    "hot_keys_by_expired": "The keys with the greatest share of expired operations, of those with at least 20.",
    "over_time": "By the step of time in which the operations parked or were refused. A row without a kind is the whole"
    " purgatory; of refused operations, no kind is known.",
    "dropped": "Each run of a server that wrote into this journal, and the number of rows it dropped.",
}


def report_page(report: "Report", pictures: dict[str, Picture], draw: Sequence[str] = ()) -> str:
    """Return the page of a report as HTML.  ``draw``: the purgatories that the reader has chosen for the plots."""
    # Imported here: the tasks import this package too, and need none of the libraries that draw.
    from .plots import drawn_purgatories

    tables = report.tables
    totals: dict[str, int] = {}
    for row in tables["outcomes"].to_pylist():
        totals[row["outcome"]] = totals.get(row["outcome"], 0) + row["operations"]
    late = [row["p99"] for row in tables["lateness"].to_pylist() if row["p99"] is not None]
    waits = [row for row in tables["waits"].to_pylist() if row["kind"] is None]
    cards = [Card("operations", f"{report.operations:,}")]
    in_order = sorted(totals.items(), key=lambda pair: -pair[1])
    cards += [Card(outcome.replace("_", " "), f"{number:,}") for outcome, number in in_order]
    over_time = tables["over_time"]
    refused = sum(over_time.filter(pc.is_null(over_time["kind"]))["refused"].to_pylist())
    if refused:
        cards.append(Card("refused", f"{refused:,}", bad=True))
    cards += [Card(f"wait p99 · {row['purgatory']}", seconds(row["p99"])) for row in waits[:3]]
    if late:
        cards.append(Card("worst lateness p99", seconds(max(late))))
    cards.append(Card("rows dropped", f"{report.dropped:,}", bad=report.dropped > 0))
    notes = []
    every, drawn = set(tables["outcomes"]["purgatory"].to_pylist()), drawn_purgatories(tables["outcomes"], draw)
    if len(drawn) < len(every):
        which = "that were chosen" if draw else "with the most operations"
        line = "Choose others with --draw NAME, which can be repeated. The tables have all of them."
        notes.append(Note(f"{len(drawn)} of {len(every)} purgatories have plots, those {which}", [line], good=True))
    if report.dropped:
        line = "The servers could not write these rows in time. The counts below do not include them."
        notes.append(Note(f"{report.dropped:,} rows were dropped", [line]))
    if report.skipped:
        notes.append(Note(f"{len(report.skipped)} files were skipped", report.skipped))
    sources = tables["dropped"].to_pylist()
    files = "" if report.files is None else f" in {report.files:,} file{'s' if report.files != 1 else ''}"
    runs = f"{len(sources)} run{'s' if len(sources) != 1 else ''} of servers"
    selected = "" if report.selection.is_everything else f"; only {report.selection}"
    times = f"{report.first_at:%Y-%m-%d %H:%M:%S} to {report.last_at:%Y-%m-%d %H:%M:%S} UTC"
    return render(
        title="Parked operations",
        subtitle=f"{report.journal}: {times}, {runs}{files}{selected}",
        cards=cards,
        notes=notes,
        pictures=pictures.values(),
        tables=[PageTable(name, tables[name], why) for name, why in _EXPLAINED.items()],
        footer=f"Created {report.made_at:%Y-%m-%d %H:%M} UTC. Each table is beside this page as Parquet and CSV.",
    )
