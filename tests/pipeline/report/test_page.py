"""The pictures, of names and keys that come from outside."""

import logging
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from logging.handlers import BufferingHandler
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
from matplotlib.figure import Figure

from purgatory.pipeline.output.figures import Picture, drawing, label, seconds
from purgatory.pipeline.report.page import (
    MOST_KINDS,
    _counts,
    _occupancy,
    _plots,
    drawn_purgatories,
    duration_ticks,
    report_plots,
)

NAMES = {
    "mathtext that does not parse": "$x^$",
    "mathtext that parses": "$x^2$",
    "one dollar": "cost in $",
    "TeX": r"\frac{1}{2} $\frac{1}{",
    "Chinese": "订单-北京",
    "Japanese": "注文の受付",
    "Korean": "주문",
    "Thai": "คำสั่งซื้อ",
    "emoji": "🚀 launch",
    "markup": "<b>&amp;</b>",
    "underscore": "_hidden",
    "control characters": "a\x00b\nc\td\x1b[0m",
    "long": "k" * 100_000,
    "empty": "",
    "lone surrogate": "s\udc80",
    "Arabic": "طلب رقم ١٢٣",
    "Hebrew": "הזמנה-42",
    "Hindi": "हिन्दी कुंजी",
    "joined emoji": "family 👨‍👩‍👧",
    "quotes": 'it\'s "quoted">',
}
# A report takes a second to draw; the slow tests draw the others.
QUICK = ("mathtext that does not parse", "markup", "control characters", "long", "lone surrogate")
OUTCOMES = ("completed", "expired", "cancelled", "failed", "pending")


def tables_of(name: str) -> dict[str, Any]:
    """The tables of a report in which every purgatory, kind and key is called ``name``."""
    at = datetime(2024, 1, 1, tzinfo=UTC)
    hot: dict[str, Any] = {"purgatory": name, "key": name, "operations": 3, "p50": 0.1, "p99": 2.0}
    return {
        "outcomes": pa.Table.from_pylist(
            [{"purgatory": name, "kind": name, "outcome": "completed", "share": 1.0, "operations": 3}]
        ),
        "occupancy": pa.Table.from_pylist([{"purgatory": name, "bucket": at, "peak": 3, "mean": 1.5}]),
        "wait_histogram": pa.Table.from_pylist(
            [{"purgatory": name, "outcome": "completed", "from": wait, "operations": 3} for wait in (0.1, 0.2)]
        ),
        "hot_keys": pa.Table.from_pylist([hot | dict.fromkeys(OUTCOMES, 0) | {"completed": 3}]),
    }


def plot(name: str, tables: dict[str, Any], bucket_ms: int = 1_000, **more: Any) -> Picture:
    """One picture of a report; the others are not drawn."""
    with drawing():
        return _plots(tables, bucket_ms, **more)[name]()


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if kind in QUICK else pytest.mark.slow) for kind, name in NAMES.items()],
    ids=list(NAMES),
)
def drawn(request: pytest.FixtureRequest) -> Iterator[tuple[str, dict[str, Any], list[logging.LogRecord]]]:
    """A name, as the journal writes it, the pictures with it, and what was logged while they were drawn."""
    name = request.param.encode("utf-8", "backslashreplace").decode()
    assert logging.getLogger().isEnabledFor(logging.WARNING)
    logged = BufferingHandler(1_000)
    logging.getLogger().addHandler(logged)
    try:
        pictures = report_plots(tables_of(name), 1_000)
    finally:
        logging.getLogger().removeHandler(logged)
    yield name, pictures, [record for record in logged.buffer if record.levelno >= logging.WARNING]
    logged.close()


@pytest.mark.slow
def test_any_text_can_be_drawn(drawn: Any) -> None:
    """No name or key ends the report, none is taken for a formula, and no missing glyph or font is warned of."""
    name, pictures, logged = drawn
    assert not logged
    shown = label(name).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for kind in ("outcomes", "hot_keys"):
        assert f"{shown} · {shown}".strip() in pictures[kind].svg.decode()
    for kind in ("occupancy", "waits"):
        assert shown in pictures[kind].svg.decode()
    assert all(picture.png.startswith(b"\x89PNG") for picture in pictures.values())


def test_steps_of_a_scale_are_durations() -> None:
    """Within one factor of ten, too, the axis of the waits has durations, and no formula as written."""
    svg = plot("waits", tables_of("p")).svg.decode()
    assert "200 ms" in svg
    assert "mathdefault" not in svg


def tooltips_of(svg: bytes) -> list[str]:
    """The texts of all tooltips; the SVG must be XML."""
    found = ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}g")
    groups = [group for group in found if group.get("class") == "tip"]
    assert all(group[0].tag.endswith("title") and group.get("id") is None for group in groups)
    assert b"tooltip:" not in svg
    return [group[0].text or "" for group in groups]


def test_exact_figures_are_in_tooltips(drawn: Any) -> None:
    """Each bar and each span of time has one, with the name as it is and without a script."""
    name, pictures, _ = drawn
    head = label(name, 200)
    begin = f"{head}: " if head else ""
    assert tooltips_of(pictures["outcomes"].svg) == [f"{head} · {head}: completed 100.00%, 3 operations"]
    assert tooltips_of(pictures["waits"].svg) == [
        f"{begin}completed, 100 ms to 133 ms: 3 operations",
        f"{begin}completed, 200 ms to 267 ms: 3 operations",
    ]
    (span,) = tooltips_of(pictures["occupancy"].svg)
    assert span == f"{begin}2024-01-01 00:00:00 to 00:00:01 UTC, peak 3, mean 1.50"
    assert tooltips_of(pictures["hot_keys"].svg) == [f"{head} · {head}: completed 3 of 3 operations"]


def test_a_long_time_has_few_tooltips() -> None:
    """Several buckets share one, with their highest peak and their mean, so that the page stays small."""
    at = datetime(2024, 1, 1, tzinfo=UTC)
    rows = [
        {"purgatory": "p", "bucket": at + timedelta(seconds=number), "peak": number, "mean": number / 2}
        for number in range(1_200)
    ]
    tables = tables_of("p") | {"occupancy": pa.Table.from_pylist(rows)}
    found = tooltips_of(plot("occupancy", tables).svg)
    assert len(found) == 120
    assert found[1] == "p: 2024-01-01 00:00:10 to 00:00:20 UTC, peak 19, mean 7.25"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("unit", "number"),
    [(timedelta(seconds=1), 60), (timedelta(minutes=1), 60), (timedelta(hours=1), 24), (timedelta(days=30.5), 12)],
)
def test_any_length_of_time_has_ticks(unit: timedelta, number: int) -> None:
    """For four to five minutes, hours, days, and years, too, matplotlib finds a step and does not warn."""
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    for length in (3.9, 4.5, 4.9, 5.1):
        rows = [
            {"purgatory": "p", "bucket": at, "peak": 3, "mean": 1.5} for at in (begin, begin + length * number * unit)
        ]
        with drawing():
            assert _occupancy(pa.Table.from_pylist(rows), 1_000).svg


def test_an_outcome_has_no_bar_where_it_has_no_operations() -> None:
    """A bar without a height cannot be pointed at, so the SVG does not contain it."""
    rows = [
        {"purgatory": "p", "outcome": outcome, "from": start, "operations": 2}
        for outcome, start in (("completed", 0.1), ("expired", 0.1), ("expired", 1.0))
    ]
    tables = tables_of("p") | {"wait_histogram": pa.Table.from_pylist(rows)}
    assert tooltips_of(plot("waits", tables).svg) == [
        "p: completed, 100 ms to 133 ms: 2 operations",
        "p: expired, 100 ms to 133 ms: 2 operations",
        "p: expired, 1 s to 1.33 s: 2 operations",
    ]


@pytest.mark.filterwarnings("error")
def test_a_report_in_which_nothing_waited_has_every_picture() -> None:
    """A picture without anything to show contains the reason, and no scale."""
    every = tables_of("p")
    tables = {name: table if name == "outcomes" else table.slice(0, 0) for name, table in every.items()}
    pictures = report_plots(tables, 1_000)
    for name, why in (
        ("occupancy", "No operation waited."),
        ("waits", "No operation that waited has ended."),
        ("hot_keys", "No operation waited on a key."),
    ):
        texts = [text.text for text in ET.fromstring(pictures[name].svg).iter("{http://www.w3.org/2000/svg}text")]
        assert texts == [why]
        assert pictures[name].png.startswith(b"\x89PNG")


def occupancy_from(begin: datetime, buckets: int, bucket_ms: int) -> bytes:
    """The picture of so many buckets in a row, as SVG."""
    rows = [
        {"purgatory": "p", "bucket": begin + timedelta(milliseconds=bucket_ms * number), "peak": 3, "mean": 1.5}
        for number in range(buckets)
    ]
    return plot("occupancy", tables_of("p") | {"occupancy": pa.Table.from_pylist(rows)}, bucket_ms).svg


@pytest.mark.parametrize(
    ("begin", "buckets", "bucket_ms"),
    [
        (datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), 1, 1_000),
        (datetime(9999, 12, 31, 23, 59, 50, tzinfo=UTC), 10, 1_000),
        (datetime(9999, 12, 27, tzinfo=UTC), 1, 604_800_000),
        (datetime(9999, 1, 4, tzinfo=UTC), 52, 604_800_000),
    ],
)
def test_a_report_of_the_end_of_the_calendar_can_be_drawn(begin: datetime, buckets: int, bucket_ms: int) -> None:
    """The last bucket ends with the year 9999, in the picture and in its tooltip."""
    found = tooltips_of(occupancy_from(begin, buckets, bucket_ms))
    assert len(found) == buckets
    assert found[0].startswith(f"p: {begin:%Y-%m-%d %H:%M:%S} to ")
    assert found[-1].endswith(" to 23:59:59 UTC, peak 3, mean 1.50")


COUNTS = (*OUTCOMES, "expired_by_closing", "refused", "immediate", "operations")


def over_time(steps: dict[datetime, dict[str, Any]], purgatory: str = "p", kind: str | None = None) -> pa.Table:
    """Rows of a purgatory or a kind at these times; every figure that is not given is 0 or null."""
    spread = dict.fromkeys(("wait_p50", "wait_p99", "late_p50", "late_p99"))
    rows = [
        {"purgatory": purgatory, "kind": kind, "bucket": at} | dict.fromkeys(COUNTS, 0) | spread | figures
        for at, figures in steps.items()
    ]
    schema = {"purgatory": pa.string(), "kind": pa.string(), "bucket": pa.timestamp("us", "UTC")}
    schema |= dict.fromkeys(COUNTS, pa.int64()) | dict.fromkeys(spread, pa.float64())
    return pa.Table.from_pylist(rows, pa.schema(schema))


def test_the_plots_over_time_show_steps_and_deploys() -> None:
    """A tooltip for each step, also for those in which nothing parked; a line where later runs of servers begin."""
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    steps = {
        begin: {"completed": 3, "wait_p50": 0.1, "wait_p99": 0.2},
        begin + timedelta(minutes=2): {"expired": 2, "expired_by_closing": 1, "refused": 7, "wait_p50": 5.0},
    }
    tables = tables_of("p") | {"over_time": over_time(steps)}
    names, deploys = ("outcomes_over_time", "waits_over_time"), [begin + timedelta(seconds=90)]
    pictures = {name: plot(name, tables, step_ms=60_000, deploys=deploys) for name in names}
    spans = [f"p: 2024-01-01 00:0{minute}:00 to 00:0{minute + 1}:00 UTC: " for minute in range(3)]
    assert tooltips_of(pictures["outcomes_over_time"].svg) == [
        spans[0] + "completed 3",
        spans[1],
        spans[2] + "expired 2, expired by closing 1, refused 7",
    ]
    nothing = "no operation that waited has ended"
    told = [f"wait p50 {p50}{p99}" for p50, p99 in (("100 ms", ", wait p99 200 ms"), ("5 s", ""))]
    found = tooltips_of(pictures["waits_over_time"].svg)
    assert found == [spans[0] + told[0], spans[1] + nothing, spans[2] + told[1]]
    assert "a new run of a server began" in pictures["waits_over_time"].caption


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("step", [timedelta(seconds=1), timedelta(days=7), timedelta(days=400)])
def test_plots_over_any_time_can_be_drawn(step: timedelta) -> None:
    """One step, the last ones of the calendar, far more steps than a plot has room for, and none at all."""
    end = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    ms = round(step / timedelta(milliseconds=1))
    for times in ([end], [end - step, end], [datetime(1970, 1, 1, tzinfo=UTC), end], []):
        tables = tables_of("p") | {"over_time": over_time({at: {"completed": 1, "wait_p50": 0.0} for at in times})}
        for name in ("outcomes_over_time", "waits_over_time"):
            assert plot(name, tables, step_ms=ms).png.startswith(b"\x89PNG")


def test_the_busiest_purgatories_have_plots_unless_others_are_chosen() -> None:
    """Eight with the most operations, in the order of their names; a name that is not in the journal has none."""
    rows = [{"purgatory": f"p{number:02}", "operations": number % 10} for number in range(20)]
    table = pa.Table.from_pylist(rows)
    assert drawn_purgatories(table) == ["p06", "p07", "p08", "p09", "p16", "p17", "p18", "p19"]
    assert drawn_purgatories(table, ["p01", "none", "p00"]) == ["p01", "p00"]


def test_the_plot_of_outcomes_shows_the_busiest_kinds_of_many() -> None:
    """With a bar for each of thousands, the picture alone would take gigabytes; the caption states what is left out."""
    share = {"outcome": "completed", "share": 1.0}
    rows = [{"purgatory": f"p{n:02}", "kind": "K", "operations": n + 1} | share for n in range(MOST_KINDS + 2)]
    tables = tables_of("p") | {"outcomes": pa.Table.from_pylist(rows)}
    bars = [f"p{n:02} · K" for n in range(MOST_KINDS + 2)]
    busiest, chosen = plot("outcomes", tables), plot("outcomes", tables, chosen=["p00"])
    assert [text for text in texts_of(busiest.svg) if text in bars] == bars[:1:-1], "in the order of their names"
    shown = f"Shown are {MOST_KINDS} of {MOST_KINDS + 2} kinds: "
    assert f"{shown}those with the most operations." in busiest.caption
    assert f"{shown}the kinds of the chosen purgatories, and then" in chosen.caption
    assert [text for text in texts_of(chosen.svg) if text in bars] == [*bars[:2:-1], bars[0]], "chosen: first"
    tables["outcomes"] = pa.Table.from_pylist(rows[:MOST_KINDS])
    whole = plot("outcomes", tables)
    assert [text for text in texts_of(whole.svg) if text in bars] == bars[MOST_KINDS - 1 :: -1]
    assert "Shown are" not in whole.caption


def texts_of(svg: bytes) -> list[str]:
    return [text.text or "" for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_kinds_have_plots_over_time_of_their_own() -> None:
    """Of a purgatory with several kinds; the whole is drawn too where it alone knows what it refused."""
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    rows = [
        over_time({begin: {"completed": 9, "refused": 3, "wait_p50": 1.0}}),
        *(over_time({begin: {"completed": 4, "wait_p50": 1.0}}, kind=kind) for kind in ("A", "B")),
        over_time({begin: {"completed": 1, "wait_p50": 1.0}}, "q"),
        over_time({begin: {"completed": 1, "wait_p50": 1.0}}, "q", "C"),
    ]
    outcomes = [
        {"purgatory": name, "kind": "A", "outcome": "completed", "share": 1.0, "operations": 3} for name in "pq"
    ]
    tables = tables_of("p") | {"over_time": pa.concat_tables(rows), "outcomes": pa.Table.from_pylist(outcomes)}
    pictures = [plot(name, tables).svg for name in ("outcomes_over_time", "waits_over_time")]
    titles = {"p", "p · A", "p · B", "q", "q · C"}
    shown = [[text for text in texts_of(svg) if text in titles] for svg in pictures]
    assert shown == [["p", "p · A", "p · B", "q"], ["p · A", "p · B", "q"]]
    assert tooltips_of(pictures[1])[0].startswith("p · A: ")
    kinds = [over_time({begin: {"completed": 1}}, kind=f"K{number}") for number in range(13)]
    tables["over_time"] = pa.concat_tables([rows[0], *kinds])
    assert "K1" not in " ".join(texts_of(plot("outcomes_over_time", tables).svg)), "there is no room"


def test_every_plot_over_time_marks_deploys_with_their_time() -> None:
    """Also the plot of parked operations; if there are many, without the times, which would overlap."""
    begin = datetime(2024, 1, 1, 14, tzinfo=UTC)
    minutes = [begin + timedelta(minutes=number) for number in range(60)]
    tables = tables_of("p") | {"over_time": over_time({at: {"completed": 1, "wait_p50": 1.0} for at in minutes})}
    tables["occupancy"] = pa.Table.from_pylist(
        [{"purgatory": "p", "bucket": at, "peak": 3, "mean": 1.0} for at in minutes]
    )
    for runs, times in ((1, ["14:41"]), (11, [])):
        deploys = [begin + timedelta(minutes=41 + n) for n in range(runs)]
        for name in ("outcomes_over_time", "waits_over_time", "occupancy"):
            picture = plot(name, tables, 60_000, deploys=deploys)
            texts = texts_of(picture.svg)
            assert "new run of a server" in texts
            assert [text for text in texts if text.startswith("14:4") and text != "14:40"] == times
            assert "a new run of a server began" in picture.caption


def test_a_caption_has_the_length_of_a_tooltip() -> None:
    """A tooltip that covers several steps is not taken for one of a step."""
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    for buckets, said in ((120, None), (720, "30 s")):
        rows = [
            {"purgatory": "p", "bucket": begin + timedelta(seconds=5 * n), "peak": 3, "mean": 1.5}
            for n in range(buckets)
        ]
        caption = plot("occupancy", tables_of("p") | {"occupancy": pa.Table.from_pylist(rows)}, 5_000).caption
        assert "in steps of 5 s." in caption
        assert ("tooltip" in caption) == (said is not None)
        assert said is None or f"Each tooltip covers up to {said}." in caption


def test_the_expired_share_is_beside_that_of_all_operations() -> None:
    """A reader sees whether a key is unusual, and of how many operations."""
    key = {"purgatory": "p", "key": "k", "operations": 40, "expired": 12, "total_wait": 80.0, "p50": 1.0, "p99": 5.0}
    outcomes = [
        {"purgatory": "p", "kind": "K", "outcome": outcome, "share": 0.5, "operations": number, "immediate": 0}
        for outcome, number in (("completed", 900), ("expired", 100))
    ]
    tables = tables_of("p") | {"outcomes": pa.Table.from_pylist(outcomes)}
    tables |= dict.fromkeys(("hot_keys_by_expired", "hot_keys_by_wait"), pa.Table.from_pylist([key]))
    by_expired, by_wait = plot("hot_keys_by_expired", tables), texts_of(plot("hot_keys_by_wait", tables).svg)
    assert "Of all operations, 10.0% expired" in by_expired.caption
    assert "30.0%: 12 of 40 expired" in texts_of(by_expired.svg)
    assert "80 s: 40 operations, mean 2 s, p99 5 s" in by_wait
    assert {"0", "30 s", "60 s"} <= set(by_wait)


@pytest.mark.parametrize("most", [1, 3, 7, 12, 45, 1_300, 90_000])
def test_ticks_of_counts_are_whole_numbers(most: int) -> None:
    """A label between two numbers would show a rounded one, and some numbers twice."""
    axes = Figure().subplots()
    axes.set_ylim(0, most * 1.12)
    _counts(axes.yaxis)
    texts = [label.get_text() for label in axes.get_yticklabels()]
    ticks = axes.get_yticks()
    assert len(texts) >= 2
    assert texts == [f"{round(tick):,}" for tick in ticks]
    assert all(tick == round(tick) for tick in ticks)


@pytest.mark.parametrize(
    ("most", "ticks"),
    [(0.011, ["0 ms", "2 ms", "4 ms"]), (8.0, ["0 ms", "2 s", "4 s"]), (9_000, ["0 ms", "30 min", "60 min"])],
)
def test_ticks_of_durations_are_whole_units(most: float, ticks: list[str]) -> None:
    """No tick is at 33.3 min; six of them are enough, for a year too."""
    assert [seconds(tick) for tick in duration_ticks(most)[:3]] == ticks
    for length in (most, 0.002, 3e7, 1e12):
        assert 2 <= len(duration_ticks(length)) <= 7


def corners(path: str) -> list[float]:
    """The left, right, lower, and upper end of a path in an SVG."""
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", path)]
    if " H " in path:
        x0, y0, x1, y1, _ = numbers
        return [*sorted((x0, x1)), *sorted((y0, y1))]
    return [min(numbers[::2]), max(numbers[::2]), min(numbers[1::2]), max(numbers[1::2])]


@pytest.mark.parametrize("name", ["occupancy", "outcomes_over_time", "waits_over_time"])
def test_columns_with_tooltips_cover_their_plot(name: str) -> None:
    """The first begins at the left end of the axes, the last ends at the right one, and all are as high as the axes."""
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    minutes = [begin + timedelta(minutes=number) for number in range(30)]
    tables = tables_of("p") | {"over_time": over_time({at: {"completed": 1, "wait_p50": 1.0} for at in minutes})}
    tables["occupancy"] = pa.Table.from_pylist(
        [{"purgatory": "p", "bucket": at, "peak": 3, "mean": 1.0} for at in minutes]
    )
    svg = plot(name, tables, 60_000).svg.decode()
    places = [corners(path) for path in re.findall(r'<g class="tip"[^>]*><title>[^<]*</title><path d="([^"]*)"', svg)]
    assert len(places) == 30
    (axes,) = re.findall(r'<g id="axes_1">\s*<g id="patch_\d+">\s*<path d="([^"]*)"', svg)
    left, right, low, high = corners(axes)
    assert (places[0][0], places[-1][1]) == pytest.approx((left, right), abs=0.02)
    assert all(place[2:] == pytest.approx([low, high], abs=0.02) for place in places)
