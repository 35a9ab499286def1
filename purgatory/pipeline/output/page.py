"""An HTML page that loads nothing from outside: figures first, then pictures, then tables."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import pyarrow as pa
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from .figures import Picture, seconds

__all__ = ["Card", "Note", "PageTable", "render"]

_MOST_ROWS = 200
_DURATIONS = {"mean", "p50", "p90", "p99", "p999", "max", "from", "total_wait"}
_DURATIONS |= {"wait_p50", "wait_p99", "late_p50", "late_p99"}
_HEADS = {"p999": "p99.9", "at_end": "at end"}
_TEMPLATE = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
_PAGE = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(_TEMPLATE)


@dataclass(frozen=True, slots=True)
class Card:
    """A figure with its name.  ``bad`` highlights it."""

    name: str
    value: str
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """A highlighted paragraph.  ``good``: it is a recommendation, not a warning."""

    head: str
    lines: Iterable[str]
    good: bool = False


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table with one sentence about it.  ``chosen``: the values of the columns that identify the marked row."""

    name: str
    table: pa.Table
    why: str
    chosen: Mapping[str, Any] = field(default_factory=dict)


def render(
    title: str,
    subtitle: str,
    cards: Iterable[Card],
    notes: Iterable[Note],
    pictures: Iterable[Picture],
    tables: Iterable[PageTable],
    footer: str,
) -> str:
    """Return the page as HTML.  All texts are escaped."""
    return _PAGE.render(
        title=title,
        subtitle=subtitle,
        cards=cards,
        notes=notes,
        pictures=[_inline(picture) for picture in pictures],
        tables=[_table(table) for table in tables],
        footer=footer,
    )


def _inline(picture: Picture) -> dict[str, Any]:
    svg = picture.svg.decode()
    inline = Markup(svg[svg.index("<svg") :])  # noqa: S704 - matplotlib made it, and escapes texts
    return {"title": picture.title, "caption": picture.caption, "svg": inline}


def _table(shown: PageTable) -> dict[str, Any]:
    table, chosen = shown.table, shown.chosen
    numbers = {field.name: not pa.types.is_string(field.type) for field in table.schema}
    rows = table.slice(0, _MOST_ROWS).to_pylist()
    return {
        "name": shown.name.replace("_", " ").capitalize(),
        "why": shown.why,
        "heads": [{"name": _HEADS.get(n, n.replace("_", " ")), "number": number} for n, number in numbers.items()],
        "rows": [
            {
                "cells": [{"text": _text(column, row[column]), "number": numbers[column]} for column in row],
                "chosen": bool(chosen) and all(row[key] == value for key, value in chosen.items()),
            }
            for row in rows
        ],
        "more": max(0, table.num_rows - _MOST_ROWS),
    }


def _text(column: str, value: Any) -> str:
    if value is None:
        return "–" if column != "kind" else "(all)"
    if isinstance(value, str):
        return value
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
