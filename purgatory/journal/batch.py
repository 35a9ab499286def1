"""Converts recorded rows to the columns of a file, in the journal's thread.

The event loop appends the fields of every row to one flat list.  With a flat list, no row needs an object that the
garbage collector would have to track, and each column is a slice of the list.
"""

import time
from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from purgatory.core.operation.lifecycle import EXPIRED_BY_CLOSING, outcome_of
from purgatory.texts import class_name, type_name

from .files import ARROW_SCHEMA, date_folder
from .schema import DROPPED, EXPIRED

__all__ = ["OP_ID", "PURGATORY", "WIDTH", "Batch", "Gap", "Refused", "by_date", "key_text", "to_table", "warm_up"]

# The order in which the event loop records the fields of a row.
_STATE, PURGATORY, _KIND, OP_ID, _KEYS, _PARKED, _DEADLINE, _FINISHED = range(8)
WIDTH: Final = 8
_INSTANCE: Final = itemgetter(1)  # the instance, from the value that identifies a purgatory
_TEXT: Final = pa.string()
_LATEST_MS: Final = 253_402_300_799_999  # the end of the year 9999, the last year that Python and SQL dates support
_ROWS_PER_YIELD: Final = 1_000  # the rows to convert before letting the event loop's thread run


@dataclass(slots=True)
class Gap:
    """Lost rows: their number, and the times of the first row and the last row on the purgatory's clock."""

    count: int
    first_ms: int
    last_ms: int

    def merge(self, later: "Gap") -> None:
        self.count += later.count
        self.first_ms = min(self.first_ms, later.first_ms)
        self.last_ms = max(self.last_ms, later.last_ms)


class Refused(NamedTuple):
    """The number of operations that a purgatory refused between two times on its clock."""

    purgatory: str
    number: int
    first_ms: int
    last_ms: int


@dataclass(slots=True)
class Batch:
    """The rows of one file: ``values`` is flat, with ``WIDTH`` values per row.  Notes about refusals are not rows.

    ``folder``: the folder of the file within the journal; None until :func:`by_date` has divided the batch.
    """

    values: list[Any]
    anchor_ms: int
    gap: Gap | None = None
    folder: str | None = None
    refused: tuple[Refused, ...] = ()
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows = len(self.values) // WIDTH

    def as_gap(self) -> Gap:
        """Return a gap that takes the place of these rows; there must be at least one row."""
        for column in (_FINISHED, _PARKED):
            times = [ms for ms in self.values[column::WIDTH] if type(ms) is int]
            if times:
                return Gap(self.rows, min(times), max(times))
        return Gap(self.rows, 0, 0)  # rows that were recorded by hand, with no time


def by_date(batch: Batch) -> list[Batch]:
    """Return a batch for each UTC date on which operations in this batch were parked, in the order of the dates.

    A gap counts as parked at the time of its first row, as in the file.  A note about refused operations counts as
    parked at the beginning of its interval.  The rows of a date keep their order.
    """
    gap, anchor_ms = batch.gap, batch.anchor_ms
    parked: list[int] = batch.values[_PARKED::WIDTH]
    times = [*parked, *(note.first_ms for note in batch.refused)]
    if gap is not None:
        times.append(gap.first_ms)
    first, last = date_folder(min(times) + anchor_ms), date_folder(max(times) + anchor_ms)
    if first == last:
        batch.folder = first
        return [batch]
    folders: dict[str, list[Any]] = {}
    for number, parked_ms in enumerate(parked):
        row = batch.values[number * WIDTH : (number + 1) * WIDTH]
        folders.setdefault(date_folder(parked_ms + anchor_ms), []).extend(row)
    of_gap = None if gap is None else date_folder(gap.first_ms + anchor_ms)
    if of_gap is not None:
        folders.setdefault(of_gap, [])
    notes: dict[str, list[Refused]] = {}
    for note in batch.refused:
        folder = date_folder(note.first_ms + anchor_ms)
        folders.setdefault(folder, [])
        notes.setdefault(folder, []).append(note)
    return [
        Batch(values, anchor_ms, gap if folder == of_gap else None, folder, tuple(notes.get(folder, ())))
        for folder, values in sorted(folders.items())
    ]


def key_text(key: Hashable) -> str:
    """Return a key as text: a str is unchanged, bytes are decoded, and any other key becomes its ``repr``."""
    if isinstance(key, str):
        return key
    if isinstance(key, bytes):
        return key.decode("utf-8", "backslashreplace")
    return repr(key)


def to_table(batch: Batch, source: str, text: Callable[[Any], str]) -> pa.Table:
    """Return the batch as a table with the schema of the journal.

    The function releases the GIL often, so that the event loop is not held up.
    """
    values = batch.values
    states = values[_STATE::WIDTH]
    outcome = _dictionary(states, _outcome)
    _release_gil()
    by_closing = _dictionary(states, _is_by_closing, pa.bool_())
    _release_gil()
    kind = _dictionary(values[_KIND::WIDTH], _kind_text)
    _release_gil()
    labels = values[PURGATORY::WIDTH]
    purgatory = _dictionary(labels, _purgatory_name)
    _release_gil()
    instance = _dictionary(labels, _INSTANCE, pa.int64())
    _release_gil()
    keys = _texts(values[_KEYS::WIDTH], text)
    parked = _column(values, _PARKED)
    deadline = _column(values, _DEADLINE)
    finished = _column(values, _FINISHED)
    _release_gil()
    # This limit affects only the lateness, which is null for a deadline later than any possible end.
    deadline = pc.min_element_wise(deadline, _LATEST_MS - batch.anchor_ms, skip_nulls=False)
    late = pc.subtract(finished, deadline)
    at_deadline = pc.and_not(pc.equal(outcome, EXPIRED), by_closing)
    on_time = pc.and_(at_deadline, pc.greater_equal(late, 0))
    rows = batch.rows
    columns = {
        "source": pa.repeat(source, rows),
        "purgatory": purgatory,
        "kind": kind,
        "op_id": _column(values, OP_ID),
        "keys": keys,
        "parked_at": _timestamps(parked, batch.anchor_ms),
        "deadline": _timestamps(deadline, batch.anchor_ms),
        "finished_at": _timestamps(finished, batch.anchor_ms),
        "outcome": outcome,
        "lateness": pc.if_else(on_time, pc.divide(pc.cast(late, pa.float64()), 1000.0), None),
        "dropped": pa.nulls(rows, pa.int64()),
        "anchor_ms": pa.repeat(pa.scalar(batch.anchor_ms, pa.int64()), rows),
        "instance": instance,
        "expired_by_closing": by_closing,
        "refused": pa.nulls(rows, pa.int64()),
    }
    table = pa.Table.from_arrays([columns[name] for name in ARROW_SCHEMA.names], schema=ARROW_SCHEMA)
    notes = [] if batch.gap is None else [_gap_row(batch.gap, source, batch.anchor_ms)]
    notes += [_refused_row(note, source, batch.anchor_ms) for note in batch.refused]
    return pa.concat_tables([table, pa.Table.from_pylist(notes, schema=ARROW_SCHEMA)]) if notes else table


def warm_up() -> None:
    """Import and set up everything before the loop is busy: the first table takes 100 times as long as later ones."""
    values: list[Any] = [1, ("", 0), Batch, 0, ("", 0), 0, None, 0]
    pq.write_table(to_table(Batch(values, 0, Gap(1, 0, 0)), "", key_text), pa.BufferOutputStream(), compression="zstd")


def _gap_row(gap: Gap, source: str, anchor_ms: int) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(ARROW_SCHEMA.names)
    row.update(source=source, outcome=DROPPED, dropped=gap.count, anchor_ms=anchor_ms)
    row.update(parked_at=gap.first_ms + anchor_ms, finished_at=gap.last_ms + anchor_ms)
    return row


def _refused_row(note: Refused, source: str, anchor_ms: int) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(ARROW_SCHEMA.names)
    row.update(source=source, outcome=DROPPED, refused=note.number, anchor_ms=anchor_ms)
    row.update(purgatory=_encodable(note.purgatory))
    row.update(parked_at=note.first_ms + anchor_ms, finished_at=note.last_ms + anchor_ms)
    return row


def _column(values: list[Any], field: int) -> pa.Array:
    numbers = values[field::WIDTH]
    try:
        buffer = array("q", numbers)  # three times as fast as pa.array(), which inspects each value
    except TypeError:  # at least one is None
        return pa.array(numbers, pa.int64())
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(buffer)])


def _dictionary(values: list[Any], text_of: Callable[[Any], Any], kind: pa.DataType = _TEXT) -> pa.Array:
    """Return a column with the text of each value; few of the values are distinct.

    The values are distinguished by identity, because the metaclass of a user's class may raise from ``__hash__`` or
    ``__eq__``.
    """
    if len(set(map(id, values))) == 1:
        return pa.repeat(pa.scalar(text_of(values[0]), kind), len(values))
    numbers = list(map(id, values))
    texts = {number: text_of(value) for number, value in dict(zip(numbers, values, strict=True)).items()}
    _release_gil()
    return pa.array(list(map(texts.__getitem__, numbers)), kind)


def _outcome(state: int) -> str:
    return outcome_of(state).value


def _is_by_closing(state: int) -> bool:
    return state == EXPIRED_BY_CLOSING


def _kind_text(kind: type | str) -> str:
    return _encodable(kind if isinstance(kind, str) else class_name(kind))


def _purgatory_name(label: tuple[str, int | None]) -> str:
    return _encodable(label[0])


def _encodable(text: str) -> str:
    """Return the text with lone surrogates replaced with escape sequences."""
    return str.encode(text, "utf-8", "backslashreplace").decode()


def _timestamps(times: pa.Array, anchor_ms: int) -> pa.Array:
    return pc.cast(pc.add(times, anchor_ms), pa.timestamp("ms", tz="UTC"))


def _texts(rows: Sequence[tuple[Hashable, ...]], text: Callable[[Any], str]) -> pa.Array:
    values: list[str] = []
    for start in range(0, len(rows), _ROWS_PER_YIELD):
        some: list[Any] = list(chain.from_iterable(rows[start : start + _ROWS_PER_YIELD]))
        if text is not key_text or any(type(key) is not str for key in some):
            some = [_safely(text, key) for key in some]
        values += some
        _release_gil()
    offsets = pa.py_buffer(array("i", accumulate(map(len, rows), initial=0)))
    keys_type = ARROW_SCHEMA.field("keys").type
    try:
        texts = pa.array(values, pa.string())
    except UnicodeEncodeError:  # the text contains a lone surrogate
        texts = pa.array(list(map(_encodable, values)), pa.string())
    return pa.Array.from_buffers(keys_type, len(rows), [None, offsets], children=[texts])


def _safely(text: Callable[[Any], str], key: Hashable) -> str:
    """Return the text of a key.  A key that cannot be converted must not affect the other rows of the file.

    An interrupt or a cancellation counts as an error in the key, because nothing else in the journal's thread can raise
    one.
    """
    try:
        return str(text(key))
    except BaseException as error:
        return f"<{type_name(key)}: {type_name(error)}>"


def _release_gil() -> None:
    # This call does not wait for anything.  A thread that sleeps, however briefly, releases the GIL.
    time.sleep(0.0001)
