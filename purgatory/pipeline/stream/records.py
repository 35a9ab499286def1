"""The output: one flat record type for ends, dead letters, and the number of parked operations.  Pure.

======================  ===================================================================================
``record``              columns with values
======================  ===================================================================================
``outcome``             ``op_id outcome parked_ms finished_ms deadline_ms``, and ``error`` if it failed
``dead``                ``error``: the reason; ``text``: the original row
``live``                ``live``: the number of operations that parked, in all groups; counted but not written
======================  ===================================================================================
"""

from typing import Any, Final

from .group import Dead, Ended

__all__ = [
    "DEAD",
    "LIVE",
    "OUTCOME",
    "OUTPUT",
    "OUTPUT_NAMES",
    "dead_line",
    "record_of_dead",
    "record_of_end",
    "record_of_live",
]

OUTCOME: Final = "outcome"
DEAD: Final = "dead"
LIVE: Final = "live"

OUTPUT: Final = (
    "record STRING, group STRING, op_id STRING, outcome STRING, parked_ms LONG, finished_ms LONG, deadline_ms LONG,"
    " error STRING, text STRING, live INT"
)
OUTPUT_NAMES: Final = tuple(column.split()[0] for column in OUTPUT.split(", "))

DEAD_MARK: Final = "!"


def dead_line(line: str) -> Dead | None:
    """Return the dead letter for a line that the input rejected, or None for a valid line.

    A rejected line consists of the mark, the reason, a line break, and the original row.
    """
    if not line.startswith(DEAD_MARK):
        return None
    reason, _, text = line[len(DEAD_MARK) :].partition("\n")
    return Dead(text, reason)


def record_of_end(group: str, end: Ended) -> tuple[Any, ...]:
    """Return the record of an end; the values have the order of ``OUTPUT``."""
    return (
        OUTCOME, group, end.op_id, end.outcome, end.parked_ms, end.finished_ms, end.deadline_ms, end.error, None, None,
    )  # fmt: skip


def record_of_dead(group: str, dead: Dead) -> tuple[Any, ...]:
    """Return the record of a dead letter; the values have the order of ``OUTPUT``."""
    return (DEAD, group, None, None, None, None, None, dead.reason, dead.text, None)


def record_of_live(parked: int) -> tuple[Any, ...]:
    """Return the record of the number of parked operations; it belongs to no group."""
    return (LIVE, "", None, None, None, None, None, None, None, parked)
