"""The schema of a journal: one row per operation, its columns, and their version.  The module is plain data.

A journal is a directory of Parquet files.  A file is complete from the moment it is visible; names that begin with a
dot or an underscore are not part of the journal.  Several processes may write to one directory.

**Versions.**  Every file has ``SCHEMA_VERSION`` under ``VERSION_KEY`` in its metadata.  A column that is added
later may be null and does not raise the version, so readers select the columns they need by name and ignore the rest.
The version rises when a column changes its meaning or is removed; a reader then refuses the file and names it.

**Time.**  Times are whole milliseconds of the purgatory's clock, which is monotonic and starts at an arbitrary point.
``anchor_ms`` is the epoch time, in milliseconds, at which that clock showed zero; it is measured for each file.  The
timestamps are the clock's time plus the anchor: differences within a row are exact, and rows of several processes can
be compared as far as the machines' wall clocks agree.  ``timestamp - anchor_ms`` is the time on the clock.
"""

from typing import Final, NamedTuple

__all__ = [
    "COLUMNS",
    "COMPLETED",
    "DROPPED",
    "ENDED",
    "EXPIRED",
    "OUTCOMES",
    "PENDING",
    "SCHEMA_VERSION",
    "VERSION_KEY",
    "Column",
    "markdown",
]

SCHEMA_VERSION: Final = 1
VERSION_KEY: Final = "purgatory.journal.version"

PENDING: Final = "pending"
COMPLETED: Final = "completed"
EXPIRED: Final = "expired"
CANCELLED: Final = "cancelled"
FAILED: Final = "failed"
DROPPED: Final = "dropped"

ENDED: Final = (COMPLETED, EXPIRED, CANCELLED, FAILED)
OUTCOMES: Final = (PENDING, *ENDED, DROPPED)


class Column(NamedTuple):
    """One column: ``type`` is one of string, strings, int64, double, bool, timestamp (milliseconds, UTC)."""

    name: str
    type: str
    nullable: bool
    meaning: str
    added: bool = False  # whether it was added after the version's first files, which therefore lack it


COLUMNS: Final = (
    Column("source", "string", False, "the process that wrote the row: host, process ID, and start time"),
    Column("purgatory", "string", True, "the name of the purgatory; null in a `dropped` row about lost rows"),
    Column(
        "kind", "string", True, "the class name of the operation, or the `kind=` of a wait; null in a `dropped` row"
    ),
    Column(
        "op_id",
        "int64",
        True,
        "the operation's number within the source, purgatory, and instance, in the order of parking; null in a"
        " `dropped` row",
    ),
    Column(
        "keys",
        "strings",
        True,
        "the keys on which the operation was parked, as text; empty if the operation never had to wait; null in a"
        " `dropped` row",
    ),
    Column(
        "parked_at",
        "timestamp",
        False,
        "the time when the operation was submitted; in a `dropped` row, the time of the first lost row",
    ),
    Column(
        "deadline",
        "timestamp",
        True,
        "the operation's deadline, rounded up to the timer's tick; at the latest, the end of the year 9999; null if the"
        " operation had no deadline",
    ),
    Column(
        "finished_at",
        "timestamp",
        True,
        "the time when the operation ended; null in a `pending` row; in a `dropped` row, the time of the last lost row",
    ),
    Column(
        "outcome",
        "string",
        False,
        "`completed`, `expired`, `cancelled`, or `failed`; `pending`: the operation was still waiting when the journal"
        " closed; `dropped`: not an operation but a note that rows were lost here or that operations were refused",
    ),
    Column(
        "lateness",
        "double",
        True,
        "the number of seconds from the deadline to the expiration; null unless the operation expired at its deadline",
    ),
    Column("dropped", "int64", True, "the number of lost rows; null except in a `dropped` row"),
    Column("anchor_ms", "int64", False, "the time, in epoch milliseconds, at which the purgatory's clock showed zero"),
    Column(
        "instance",
        "int64",
        True,
        "a number that distinguishes purgatories with the same name within one process; null in a `dropped` row and in"
        " files from releases without this column",
        added=True,
    ),
    Column(
        "expired_by_closing",
        "bool",
        True,
        "whether the operation expired because its purgatory closed rather than at its deadline; null in a `dropped`"
        " row and in files from releases without this column",
        added=True,
    ),
    Column(
        "refused",
        "int64",
        True,
        "the number of operations refused between `parked_at` and `finished_at` because of the purgatory's limits; null"
        " except in a `dropped` row that reports refusals; such a row reports no lost rows",
        added=True,
    ),
)


def markdown() -> str:
    """Return the columns as a Markdown table for the documentation."""
    lines = ["| column | type | null? | meaning |", "| --- | --- | --- | --- |"]
    for column in COLUMNS:
        null = "may be" if column.nullable else "never"
        lines.append(f"| `{column.name}` | {column.type} | {null} | {column.meaning} |")
    return "\n".join(lines) + "\n"
