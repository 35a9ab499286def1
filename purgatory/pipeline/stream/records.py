"""What comes out: one flat record for ends, dead letters and the count of what waits.  Pure.

======================  ===============================================================================
``record``              columns that it fills
======================  ===============================================================================
``outcome``             ``op_id outcome parked_ms finished_ms deadline_ms``, and ``error`` of a failed one
``dead``                ``error``: the reason; ``text``: the row as it came
``live``                ``live``: how many operations have parked, in all groups; it is counted and not written
======================  ===============================================================================
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
    """What a line that was rejected on the way in has to say; None for a good one.

    A rejected line is the mark, the reason, a line break and the row as it came.
    """
    if not line.startswith(DEAD_MARK):
        return None
    reason, _, text = line[len(DEAD_MARK) :].partition("\n")
    return Dead(text, reason)


def record_of_end(group: str, end: Ended) -> tuple[Any, ...]:
    """The values of one record, in the order of ``OUTPUT``."""
    return (
        OUTCOME, group, end.op_id, end.outcome, end.parked_ms, end.finished_ms, end.deadline_ms, end.error, None, None,
    )  # fmt: skip


def record_of_dead(group: str, dead: Dead) -> tuple[Any, ...]:
    """The values of one record, in the order of ``OUTPUT``."""
    return (DEAD, group, None, None, None, None, None, dead.reason, dead.text, None)


def record_of_live(parked: int) -> tuple[Any, ...]:
    """The values of one record, in the order of ``OUTPUT``; it is of no group."""
    return (LIVE, "", None, None, None, None, None, None, None, parked)
