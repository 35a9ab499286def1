"""One page of HTML that needs nothing but itself: figures first, then pictures, then the tables."""

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from .plots import Picture, seconds

if TYPE_CHECKING:
    from .report import Report
    from .whatif import WhatIf

__all__ = ["replay_page", "report_page"]

_MOST_ROWS = 200
_DURATIONS = {"mean", "p50", "p90", "p99", "p999", "max", "from"}
_HEADS = {"p999": "p99.9", "at_end": "at end"}
_EXPLAINED = {
    "outcomes": "How the operations of each kind ended; immediate ones completed without waiting.",
    "waits": "From being parked to the end, of those that had to wait. A row without a kind is the whole purgatory.",
    "lateness": "From the deadline to the answer, of those that expired. Closed: expired early, with their purgatory.",
    "peaks": "The highest number of operations that waited at once, exact to the millisecond, and when.",
    "hot_keys": "The keys with the most operations.",
    "dropped": "Each run of a server that wrote into this journal, and the rows it had to drop.",
}
_TEMPLATE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
:root { color-scheme: light dark; --ink: #222; --dim: #666; --paper: #fff; --line: #e3e3e3; --strong: #ccc;
  --bad: #b3450a; --warn: #fff8ea; --good: #eef6fb; --hover: #f7f9fb; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e4e4; --dim: #a3a3a3; --paper: #171717; --line: #363636; --strong: #5a5a5a;
    --bad: #ff9a5c; --warn: #2e2413; --good: #132632; --hover: #202427; }
  /* The pictures are drawn for white paper: turned round, white is the colour of this page and each hue is itself. */
  figure svg { filter: invert(.91) hue-rotate(180deg); }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 62rem; padding: 1.5rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .2rem; }
p.sub, figcaption, .why { color: var(--dim); margin: .1rem 0 .6rem; overflow-wrap: anywhere; }
code { font-size: .92em; overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); gap: .7rem; margin: 1.2rem 0; }
.card { border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .8rem; }
.card b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.card span { color: var(--dim); font-size: .85rem; }
.card.bad b, .note b { color: var(--bad); }
.note { border-left: 4px solid #e69f00; background: var(--warn); padding: .6rem .9rem; margin: 1rem 0;
  overflow-wrap: anywhere; }
.note.good { border-color: #0072b2; background: var(--good); } .note.good b { color: inherit; }
figure { margin: 1.6rem 0; overflow-x: auto; } figure svg { width: 100%; min-width: 36rem; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .22rem .7rem; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { border-bottom: 2px solid var(--strong); } .n { text-align: right; } tr:hover td { background: var(--hover); }
tr.chosen td { background: var(--good); font-weight: 600; }
footer { margin-top: 3rem; color: var(--dim); font-size: .85rem; }
@media print { .scroll { overflow: visible; } body { max-width: none; } }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p class="sub">{{ subtitle }}</p>
<div class="cards">
{% for card in cards %}
<div class="card{{ ' bad' if card.bad }}"><b>{{ card.value }}</b><span>{{ card.name }}</span></div>
{% endfor %}</div>
{% for note in notes %}<div class="note{{ ' good' if note.good }}"><b>{{ note.head }}</b>
{% for line in note.lines %}<div>{{ line }}</div>{% endfor %}</div>
{% endfor %}
{% for picture in pictures %}
<figure><h2>{{ picture.title }}</h2><figcaption>{{ picture.caption }}</figcaption>{{ picture.svg }}</figure>
{% endfor %}
{% for table in tables %}
<h2>{{ table.name }}</h2><p class="why">{{ table.why }}</p>
<div class="scroll"><table><thead><tr>
{% for head in table.heads %}<th{{ ' class=n' if head.number }}>{{ head.name }}</th>{% endfor %}
</tr></thead><tbody>
{% for row in table.rows %}<tr{{ ' class=chosen' if row.chosen }}>
{% for cell in row.cells %}<td{{ ' class=n' if cell.number }}>{{ cell.text }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% if table.more %}<p class="why">and {{ table.more }} more rows, in the file.</p>{% endif %}
{% endfor %}
<footer>{{ footer }}</footer>
</body>
</html>
"""
_PAGE = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(_TEMPLATE)


def report_page(report: "Report", pictures: dict[str, Picture]) -> str:
    """The page of a report."""
    tables = report.tables
    totals: dict[str, int] = {}
    for row in tables["outcomes"].to_pylist():
        totals[row["outcome"]] = totals.get(row["outcome"], 0) + row["operations"]
    late = [row["p99"] for row in tables["lateness"].to_pylist() if row["p99"] is not None]
    waits = [row for row in tables["waits"].to_pylist() if row["kind"] is None]
    cards = [_card("operations", f"{report.operations:,}")]
    cards += [_card(outcome, f"{number:,}") for outcome, number in sorted(totals.items(), key=lambda pair: -pair[1])]
    cards += [_card(f"wait p99 · {row['purgatory']}", seconds(row["p99"])) for row in waits[:3]]
    if late:
        cards.append(_card("worst lateness p99", seconds(max(late))))
    cards.append(_card("rows dropped", f"{report.dropped:,}", bad=report.dropped > 0))
    notes = []
    if report.dropped:
        line = "Servers could not write these rows in time; every count below is too low by as much."
        notes.append({"head": f"{report.dropped:,} rows were dropped", "lines": [line], "good": False})
    if report.skipped:
        notes.append({"head": f"{len(report.skipped)} files were left out", "lines": report.skipped, "good": False})
    sources = tables["dropped"].to_pylist()
    first = min(row["first_at"] for row in sources)
    last = max(row["last_at"] for row in sources)
    files = "" if report.files is None else f" in {report.files:,} files"
    runs = f"{len(sources)} run{'s' if len(sources) != 1 else ''} of servers"
    return _PAGE.render(
        title="What waited, and how it ended",
        subtitle=f"{report.journal}: {first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} UTC, {runs}{files}",
        cards=cards,
        notes=notes,
        pictures=[_shown(picture) for picture in pictures.values()],
        tables=[_table(name, tables[name], why) for name, why in _EXPLAINED.items()],
        footer=f"Made {report.made_at:%Y-%m-%d %H:%M} UTC. Every table is beside this page as Parquet and CSV.",
    )


def replay_page(whatif: "WhatIf", pictures: dict[str, Picture]) -> str:
    """The page of a replay."""
    best = whatif.recommended
    cards = [
        _card("operations replayed", f"{whatif.operations:,}"),
        _card("settings", f"{whatif.table.num_rows}"),
        _card("recommended tick", f"{best['tick_ms']} ms"),
        _card("recommended wheel size", f"{best['wheel_size']}"),
        _card("outcomes that changed", f"{whatif.changed:,}", bad=whatif.changed > 0),
    ]
    return _PAGE.render(
        title="What other settings would have cost",
        subtitle=whatif.subtitle,
        cards=cards,
        notes=[{"head": whatif.headline, "lines": whatif.reasons, "good": True}],
        pictures=[_shown(picture) for picture in pictures.values()],
        tables=[_table("settings", whatif.table, "One row per setting; the recommended one is marked.", best)],
        footer=f"Made {whatif.made_at:%Y-%m-%d %H:%M} UTC. The table is beside this page as Parquet and CSV.",
    )


def _card(name: str, value: str, *, bad: bool = False) -> dict[str, Any]:
    return {"name": name, "value": value, "bad": bad}


def _shown(picture: Picture) -> dict[str, Any]:
    svg = picture.svg.decode()
    inline = Markup(svg[svg.index("<svg") :])  # noqa: S704 - it was drawn here
    return {"title": picture.title, "caption": picture.caption, "svg": inline}


def _table(name: str, table: pa.Table, why: str, chosen: dict[str, Any] | None = None) -> dict[str, Any]:
    numbers = {field.name: not pa.types.is_string(field.type) for field in table.schema}
    rows = table.slice(0, _MOST_ROWS).to_pylist()
    return {
        "name": name.replace("_", " ").capitalize(),
        "why": why,
        "heads": [{"name": _HEADS.get(n, n.replace("_", " ")), "number": number} for n, number in numbers.items()],
        "rows": [
            {
                "cells": [{"text": _text(column, row[column]), "number": numbers[column]} for column in row],
                "chosen": chosen is not None and all(row[key] == value for key, value in chosen.items()),
            }
            for row in rows
        ],
        "more": max(0, table.num_rows - _MOST_ROWS),
    }


def _text(column: str, value: Any) -> str:
    if value is None:
        return "–" if column != "kind" else "(all)"
    if column in _DURATIONS:
        return seconds(value)
    if column == "share":
        return f"{value:.2%}"
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, int):
        return f"{value:,}"
    if hasattr(value, "strftime"):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return str(value)
