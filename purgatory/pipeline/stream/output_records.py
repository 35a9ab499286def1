"""The output: one flat record type for outcomes, dead letters, and the number of parked operations.

======================  ===================================================================================
``record``              columns with values
======================  ===================================================================================
``outcome``             ``op_id outcome parked_ms finished_ms deadline_ms``, and ``error`` if it failed
``dead``                ``error``: the reason; ``text``: the original row
``parked``              ``parked``: the number of operations that parked, in all groups; counted but not written
======================  ===================================================================================
"""

from typing import Any, Final

from .group import DeadLetter, OperationRecord

__all__ = [
    "DEAD_LETTER",
    "OUTCOME",
    "OUTPUT",
    "OUTPUT_NAMES",
    "PARKED",
    "dead_letter_record",
    "outcome_record",
    "parked_record",
    "parse_dead_letter",
]

OUTCOME: Final = "outcome"
DEAD_LETTER: Final = "dead"
PARKED: Final = "parked"

OUTPUT: Final = (
    "record STRING, group STRING, op_id STRING, outcome STRING, parked_ms LONG, finished_ms LONG, deadline_ms LONG,"
    " error STRING, text STRING, parked INT"
)
OUTPUT_NAMES: Final = tuple(column.split()[0] for column in OUTPUT.split(", "))

DEAD_LETTER_MARK: Final = "!"


def parse_dead_letter(line: str) -> DeadLetter | None:
    """Return the dead letter for a line that the input rejected, or None for a valid line.

    A rejected line consists of the mark, the reason, a line break, and the original row.
    """
    if not line.startswith(DEAD_LETTER_MARK):
        return None
    reason, _, text = line[len(DEAD_LETTER_MARK) :].partition("\n")
    return DeadLetter(text, reason)


def outcome_record(group: str, operation: OperationRecord) -> tuple[Any, ...]:
    """Return the record of an outcome; the values are in the order of ``OUTPUT``."""
    return (
        OUTCOME, group, operation.op_id, operation.outcome, operation.parked_ms, operation.finished_ms,
        operation.deadline_ms, operation.error, None, None,
    )  # fmt: skip


def dead_letter_record(group: str, dead_letter: DeadLetter) -> tuple[Any, ...]:
    """Return the record of a dead letter; the values are in the order of ``OUTPUT``."""
    return (DEAD_LETTER, group, None, None, None, None, None, dead_letter.reason, dead_letter.text, None)


def parked_record(parked: int) -> tuple[Any, ...]:
    """Return the record with the number of parked operations; it belongs to no group."""
    return (PARKED, "", None, None, None, None, None, None, None, parked)
