"""An HTML page that loads nothing from outside: figures first, then pictures, then tables."""

from collections.abc import Iterable, Mapping, Sequence
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
_COARSE = {"wait_p50", "wait_p99", "late_p50", "late_p99"}  # too low by up to 1/128, so only two digits are certain
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
    """A highlighted paragraph.  ``good``: whether it is a recommendation rather than a warning."""

    head: str
    lines: Iterable[str]
    good: bool = False


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table with one sentence about it.  ``chosen``: the values of the columns that identify the marked row.

    ``optional``: columns of numbers that the page leaves out if all numbers are 0 or missing.  ``verdicts``: whether
    the first column contains verdicts, which determine the style of the rows.
    """

    name: str
    table: pa.Table
    why: str
    chosen: Mapping[str, Any] = field(default_factory=dict)
    optional: Sequence[str] = ()
    verdicts: bool = False


def render(
    title: str,
    subtitle: str,
    cards: Iterable[Card],
    notes: Iterable[Note],
    pictures: Iterable[Picture],
    tables: Iterable[PageTable],
    footer: str,
    *,
    lead: Sequence[str] = (),
    files: Sequence[str] = (),
) -> str:
    """Return the page as HTML.  All text is escaped.

    ``lead``: the sentences with which the page begins.  ``files``: names of files beside the page, to which the footer
    links.
    """
    return _PAGE.render(
        title=title,
        subtitle=subtitle,
        cards=cards,
        notes=notes,
        pictures=[_inline(picture) for picture in pictures],
        tables=[_table(table) for table in tables],
        footer=footer,
        lead=lead,
        files=files,
    )


def _inline(picture: Picture) -> dict[str, Any]:
    svg = picture.svg.decode()
    inline = Markup(svg[svg.index("<svg") :])  # noqa: S704 - matplotlib made it, and escapes texts
    return {"title": picture.title, "caption": picture.caption, "svg": inline}


def _table(shown: PageTable) -> dict[str, Any]:
    table, chosen = shown.table, shown.chosen
    empty = [name for name in shown.optional if name in table.column_names and not any(table[name].to_pylist())]
    table = table.drop_columns(empty)
    left_out = (
        f" Without the columns in which every figure is 0 or missing: {', '.join(map(_head, empty))}." if empty else ""
    )
    numbers = {field.name: not pa.types.is_string(field.type) for field in table.schema}
    rows = table.slice(0, _MOST_ROWS).to_pylist()
    return {
        "name": shown.name.replace("_", " ").capitalize(),
        "why": shown.why + left_out,
        "heads": [{"name": _head(name), "number": number} for name, number in numbers.items()],
        "rows": [
            {
                "cells": [{"text": _text(column, row[column]), "number": numbers[column]} for column in row],
                "chosen": bool(chosen) and all(row[key] == value for key, value in chosen.items()),
                "verdict": str(next(iter(row.values()))).split()[0] if shown.verdicts else "",
            }
            for row in rows
        ],
        "more": max(0, table.num_rows - _MOST_ROWS),
    }


def _head(column: str) -> str:
    return _HEADS.get(column, column.replace("_", " "))


def _text(column: str, value: Any) -> str:
    if value is None:
        return "–" if column != "kind" else "(all)"
    if isinstance(value, str):
        return value
    if column in _DURATIONS or column in _COARSE:
        return seconds(value, 2 if column in _COARSE else 3)
    if column == "share":
        return f"{value:.2%}"
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, int):
        return f"{value:,}"
    if hasattr(value, "strftime"):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return str(value)
