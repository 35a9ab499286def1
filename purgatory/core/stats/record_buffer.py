"""Records instead of events, for an observer that stores every ending.

An observer that only needs the fields of an event pays for the object, for the call, and for taking the object apart.
A record buffer is filled by the purgatory itself: eight values per ending, appended to one flat list, and one call
when the list has reached a length.  Nothing in the list keeps an operation alive.
"""

from collections.abc import Hashable
from typing import Any

from mypy_extensions import mypyc_attr

__all__ = ["RecordBuffer", "append_record"]


@mypyc_attr(allow_interpreted_subclasses=True)
class RecordBuffer:
    """An observer that receives records.

    Each ending appends to ``values``: the state (1 completed, 2 expired, 3 cancelled, 4 failed, 5 expired by closing),
    the purgatory as ``(name, instance)``, the class of the operation or the ``kind=`` of a wait, ``op_id``, ``keys``,
    ``parked_ms``, ``deadline_ms`` or None, ``finished_ms``; all as in :class:`~purgatory.events.Event`.  When
    ``values`` is at least ``flush_at`` long, :meth:`flush` is called, which may replace the list.  An observer may also
    have its buffer in an attribute ``record_buffer``.
    """

    __slots__ = ("flush_at", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.flush_at: int = 1

    def flush(self) -> None:
        """Called when the list is long enough.  As with every observer, one that raises is detached and reported."""
        raise NotImplementedError


def append_record(
    buffer: RecordBuffer,
    state: int,
    purgatory: tuple[str, int | None],
    kind: type[Any] | str,
    op_id: int,
    keys: tuple[Hashable, ...],
    parked_ms: int,
    deadline_ms: int | None,
    finished_ms: int | None,
) -> None:
    """Append one record.  A function, because the compiler looks up the methods of a class that has subclasses."""
    values = buffer.values
    values.append(state)
    values.append(purgatory)
    values.append(kind)
    values.append(op_id)
    values.append(keys)
    values.append(parked_ms)
    values.append(deadline_ms)
    values.append(finished_ms)
    if len(values) >= buffer.flush_at:
        buffer.flush()
