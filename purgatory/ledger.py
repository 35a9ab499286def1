"""Rows instead of events: for an observer that writes down every ending.  Floor 3.

An event is an object for one moment; who only wants its fields in a file pays for making it, for being called, and for
taking it apart.  A ledger is filled by the house itself: eight cells per ending on one flat list, and a call when the
list has reached a length.  Nothing in the list keeps an operation alive.
"""

from collections.abc import Hashable
from typing import Any

from mypy_extensions import mypyc_attr

__all__ = ["Ledger", "note_in"]


@mypyc_attr(allow_interpreted_subclasses=True)
class Ledger:
    """An observer that is given rows.

    Each ending appends to ``cells``: the state (1 completed, 2 expired, 3 cancelled, 4 failed), the name of the
    purgatory, the class of the operation, ``op_id``, ``keys``, ``parked_ms``, ``deadline_ms`` or None, ``finished_ms``;
    all as in :class:`~purgatory.events.Event`.  When ``cells`` is at least ``turn_at`` long, :meth:`turn` is called,
    which may put another list in its place.
    """

    __slots__ = ("cells", "turn_at")

    def __init__(self) -> None:
        self.cells: list[Any] = []
        self.turn_at: int = 1

    def turn(self) -> None:
        """The list is long enough.  As with every observer, one that raises is detached and reported."""
        raise NotImplementedError


def note_in(
    ledger: Ledger,
    state: int,
    purgatory: str,
    kind: type[Any],
    op_id: int,
    keys: tuple[Hashable, ...],
    parked_ms: int,
    deadline_ms: int | None,
    finished_ms: int | None,
) -> None:
    """Append one row.  A function: a method of a class that Python code derives from would be looked up by its name."""
    cells = ledger.cells
    cells.append(state)
    cells.append(purgatory)
    cells.append(kind)
    cells.append(op_id)
    cells.append(keys)
    cells.append(parked_ms)
    cells.append(deadline_ms)
    cells.append(finished_ms)
    if len(cells) >= ledger.turn_at:
        ledger.turn()
