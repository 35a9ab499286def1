"""The HTML page of a replay."""

from typing import TYPE_CHECKING

from purgatory.pipeline.output.figures import Picture
from purgatory.pipeline.output.page import Card, Note, PageTable, render

if TYPE_CHECKING:
    from .what_if import WhatIf

__all__ = ["replay_page"]


_FIRST = ("tick_ms", "wheel_size", "cpu_us", "late_p99_ms", "late_max_ms", "stall_p99_ms", "stall_max_ms", "changed")


def replay_page(found: "WhatIf", pictures: dict[str, Picture]) -> str:
    """Return the page of a replay as HTML."""
    best = found.recommended
    cards = [
        Card("operations replayed", f"{found.operations:,}"),
        Card("settings", f"{found.table.num_rows}"),
        Card("recommended tick", f"{best['tick_ms']} ms"),
        Card("recommended wheel size", f"{best['wheel_size']}"),
        Card("changed outcomes", f"{found.changed:,}", bad=found.changed > 0),
    ]
    return render(
        title="The cost of other timer settings",
        subtitle=found.subtitle,
        cards=cards,
        notes=[Note(found.headline, found.reasons, good=True)],
        pictures=pictures.values(),
        tables=[
            PageTable(
                "settings",
                found.table.select(_first(found.table.column_names)),
                "One row per setting. The recommended one is marked.",
                best,
            )
        ],
        footer=f"Created {found.made_at:%Y-%m-%d %H:%M} UTC. The table is beside this page as Parquet and CSV.",
    )


def _first(names: list[str]) -> list[str]:
    """Return the columns that decide before the others."""
    return [*_FIRST, *(name for name in names if name not in _FIRST)]
