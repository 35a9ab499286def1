"""Records instead of events, for an observer that stores the end of every operation.

An observer that needs only the fields of an event pays for creating the object, for the call, and for reading the
fields.  The purgatory itself fills a record buffer: for each operation that ends, it appends eight values to one flat
list, and when the list has reached a given length, it makes one call.  Nothing in the list keeps an operation
alive.
"""

from collections.abc import Hashable
from typing import Any

from mypy_extensions import mypyc_attr

__all__ = ["RecordBuffer", "append_record"]


@mypyc_attr(allow_interpreted_subclasses=True)
class RecordBuffer:
    """An observer that receives records.

    For each operation that ends, the purgatory appends to ``values``: the state (1 completed, 2 expired, 3 cancelled, 4
    failed, 5 expired by closing), the purgatory as ``(name, instance)``, the class of the operation or the ``kind``
    argument of a wait, ``op_id``, ``keys``, ``parked_ms``, ``deadline_ms`` or None, and ``finished_ms``; all as in
    :class:`~purgatory.events.Event`.  When the length of ``values`` has reached ``flush_at``, :meth:`flush` is called;
    that method may replace the list.  An observer may instead have its buffer in an attribute named ``record_buffer``.
    """

    __slots__ = ("flush_at", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.flush_at: int = 1

    def flush(self) -> None:
        """Called when the list is long enough.  A buffer that raises is detached and reported, as every observer is."""
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
    """Append one record.

    This is a function because compiled code looks up a method of a class with subclasses at each call.
    """
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
