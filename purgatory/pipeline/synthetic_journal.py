"""Generate journals for measurements: seeded, of any size, with known answers.

Arrivals are uniform, with ``rate`` arrivals per second.  Keys have a Zipf distribution, and waits have a log-normal
distribution.  If an operation would wait longer than its timeout, it expires, slightly late.  The rows have the schema
of the journal; within a file, they are in the order of their ends.  The counts of the generated rows are in
``_answers.json`` beside the files.
"""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from purgatory.journal import JournalError
from purgatory.journal.files import ARROW_SCHEMA, data_files, prepare, write_file
from purgatory.journal.schema import CANCELLED, COMPLETED, DROPPED, EXPIRED, FAILED, OUTCOMES, PENDING

from .output.directory import reason_of
from .recipe import Recipe

__all__ = ["generate"]

_EPOCH_MS: Final = 1_700_000_000_000
_PENDING, _COMPLETED, _EXPIRED, _CANCELLED, _FAILED = (
    OUTCOMES.index(outcome) for outcome in (PENDING, COMPLETED, EXPIRED, CANCELLED, FAILED)
)
_KINDS: Final = (("fetch", "DelayedFetch"), ("fetch", "DelayedListing"), ("produce", "DelayedProduce"))
_KIND_SHARES: Final = (0.6, 0.1, 0.3)
_TIMEOUTS_MS: Final = (500, 5_000, 30_000, -1)  # -1: no deadline
_TIMEOUT_SHARES: Final = (0.3, 0.4, 0.25, 0.05)
_TOP: Final = 10
_LONGEST_WAIT_MS: Final = 1e15  # no journal spans a longer wait
_NONE: Final = np.iinfo(np.int64).min


def generate(path: Path, recipe: Recipe) -> dict[str, Any]:
    """Write the journal, and return the known answers.  Raises JournalError if the journal cannot be written to
    ``path``.

    The same recipe gives the same rows.  Raises ValueError if the directory already contains Parquet files.
    """
    prepare(path)
    if data_files(path):
        raise ValueError(f"journal must be a directory without a journal, got {path}, which contains Parquet files")
    weights = np.arange(1, recipe.keys + 1, dtype=np.float64) ** -recipe.skew
    ladder = np.cumsum(weights / weights.sum())
    closing_ms = _EPOCH_MS + round(recipe.rows / recipe.rate * 1000)
    tally = _Tally(recipe)
    for number, start in enumerate(range(0, recipe.rows, recipe.rows_per_file)):
        rows = min(recipe.rows_per_file, recipe.rows - start)
        draw = np.random.default_rng([recipe.seed, number])
        columns = _draw(draw, recipe, start, rows, ladder, closing_ms)
        tally.add(columns)
        table = _table(columns, recipe)
        try:
            write_file(table, path, f"synthetic-{recipe.seed}-0", number)
        except OSError as error:
            raise JournalError(f"the journal {path} cannot be written: {reason_of(error)}") from error
    answers = tally.answers()
    (path / "_answers.json").write_text(json.dumps(answers, indent=2) + "\n")
    return answers


def _draw(
    draw: np.random.Generator, recipe: Recipe, start: int, rows: int, ladder: Any, closing_ms: int
) -> dict[str, Any]:
    first, last = (_EPOCH_MS + n / recipe.rate * 1000 for n in (start, start + rows))
    parked = np.sort(draw.uniform(first, last, rows)).astype(np.int64)
    kind = draw.choice(len(_KINDS), rows, p=_KIND_SHARES)
    timeout = draw.choice(_TIMEOUTS_MS, rows, p=_TIMEOUT_SHARES)
    deadline = np.where(timeout < 0, _NONE, parked + timeout)
    wait = np.ceil(draw.lognormal(np.log(recipe.median_wait * 1000), recipe.spread, rows))
    wait = np.minimum(wait, _LONGEST_WAIT_MS).astype(np.int64)
    fate = draw.random(rows)
    outcome = np.full(rows, _COMPLETED)
    outcome[fate < recipe.cancelled + recipe.failed] = _FAILED
    outcome[fate < recipe.cancelled] = _CANCELLED
    expires = (timeout >= 0) & (wait > timeout)
    late = draw.geometric(0.6, rows) - 1
    outcome[expires] = _EXPIRED
    finished = np.where(expires, parked + timeout + late, parked + wait)
    immediate = draw.random(rows) < recipe.immediate
    outcome[immediate] = _COMPLETED
    finished = np.where(immediate, parked, finished)
    pending = finished > closing_ms
    outcome[pending] = _PENDING
    finished = np.where(pending, _NONE, finished)
    number_of_keys = np.where(immediate, 0, draw.choice([1, 2, 3], rows, p=[0.8, 0.15, 0.05]))
    number_of_keys = np.minimum(number_of_keys, recipe.keys)
    drawn = np.searchsorted(ladder, draw.random(int(number_of_keys.sum())))
    offsets = np.concatenate([[0], np.cumsum(number_of_keys)])
    drawn = _distinct(np.minimum(drawn, recipe.keys - 1), offsets, recipe.keys)
    if recipe.unique:
        own = (draw.random(rows) < recipe.unique) & (number_of_keys > 0)
        drawn[offsets[:-1][own]] = recipe.keys + start + 1 + np.flatnonzero(own)  # beyond the shared keys
    columns = {
        "op_id": np.arange(start + 1, start + rows + 1),
        "kind": kind,
        "outcome": outcome,
        "parked": parked,
        "deadline": deadline,
        "finished": finished,
    }
    order = np.lexsort((columns["op_id"], np.where(pending, closing_ms + 1, finished)))
    # The positions of the keys of each row, in the new order of the rows.
    each = number_of_keys[order]
    ends = np.concatenate([[0], np.cumsum(each)])
    places = np.arange(ends[-1]) + np.repeat(offsets[:-1][order] - ends[:-1], each)
    return {name: column[order] for name, column in columns.items()} | {"keys": drawn[places], "offsets": ends}


def _distinct(drawn: Any, offsets: Any, keys: int) -> Any:
    """Replace each repeated key of an operation with the next key, because the keys of an operation are distinct."""
    first = np.zeros(len(drawn), dtype=bool)
    first[offsets[:-1][offsets[:-1] < len(drawn)]] = True
    position = np.arange(len(drawn)) - np.maximum.accumulate(np.where(first, np.arange(len(drawn)), 0))
    for place in (1, 2):
        here = np.flatnonzero(position == place)
        for _ in range(place):
            for back in range(1, place + 1):
                same = drawn[here] == drawn[here - back]
                drawn[here[same]] = (drawn[here[same]] + 1) % keys
    return drawn


def _table(columns: dict[str, Any], recipe: Recipe) -> pa.Table:
    rows = len(columns["op_id"])
    keys = columns["keys"]
    own, place = np.unique(keys[keys >= recipe.keys], return_inverse=True)
    names = pa.array([f"key-{n:05d}" for n in range(recipe.keys)] + [_own_key(n - recipe.keys) for n in own.tolist()])
    numbers = keys.copy()
    numbers[keys >= recipe.keys] = recipe.keys + place
    key_texts = pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), names).cast(pa.string())
    keys_type = ARROW_SCHEMA.field("keys").type
    on_deadline = columns["outcome"] == _EXPIRED
    late = np.where(on_deadline, (columns["finished"] - columns["deadline"]) / 1000, 0.0)
    made = {
        "source": pa.repeat(f"synthetic-{recipe.seed}-0", rows),
        "purgatory": pa.array([p for p, _ in _KINDS]).take(pa.array(columns["kind"])),
        "kind": pa.array([k for _, k in _KINDS]).take(pa.array(columns["kind"])),
        "op_id": pa.array(columns["op_id"]),
        "keys": pa.ListArray.from_arrays(pa.array(columns["offsets"], pa.int32()), key_texts).cast(keys_type),
        "parked_at": _stamps(columns["parked"]),
        "deadline": _stamps(columns["deadline"]),
        "finished_at": _stamps(columns["finished"]),
        "outcome": pa.array(OUTCOMES).take(pa.array(columns["outcome"])),
        "lateness": pa.array(late, mask=~on_deadline),
        "dropped": pa.nulls(rows, pa.int64()),
        "anchor_ms": pa.repeat(pa.scalar(_EPOCH_MS - 1_000_000, pa.int64()), rows),
        "instance": pa.array([1 if p == _KINDS[0][0] else 2 for p, _ in _KINDS]).take(pa.array(columns["kind"])),
        "expired_by_closing": pa.repeat(pa.scalar(False), rows),
        "refused": pa.nulls(rows, pa.int64()),
    }
    table = pa.Table.from_arrays([made[name] for name in ARROW_SCHEMA.names], schema=ARROW_SCHEMA)
    if not recipe.dropped:
        return table
    gap = dict.fromkeys(ARROW_SCHEMA.names) | {
        "source": f"synthetic-{recipe.seed}-0",
        "outcome": DROPPED,
        "dropped": recipe.dropped,
        "parked_at": int(columns["parked"].min()),
        "finished_at": int(columns["parked"].max()),
        "anchor_ms": _EPOCH_MS - 1_000_000,
    }
    return pa.concat_tables([table, pa.Table.from_pylist([gap], schema=ARROW_SCHEMA)])


def _own_key(op_id: int) -> str:
    return f"request-{op_id:011d}"


def _stamps(ms: Any) -> pa.Array:
    return pa.array(ms, pa.int64(), mask=ms == _NONE).cast(pa.timestamp("ms", tz="UTC"))


class _Tally:
    """Counts of the generated rows."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._files = 0
        self._outcomes = np.zeros((len(_KINDS), len(OUTCOMES)), dtype=np.int64)
        self._total_wait_ms = 0
        self._longest_ms = 0
        self._latest_ms = 0
        self._keys = np.zeros((2, recipe.keys), dtype=np.int64)
        self._own: tuple[list[int], list[int]] = ([], [])  # by purgatory: the first keys that have only one operation
        self._unique = 0

    def add(self, columns: dict[str, Any]) -> None:
        self._files += 1
        np.add.at(self._outcomes, (columns["kind"], columns["outcome"]), 1)
        each = np.diff(columns["offsets"])
        ended = (columns["finished"] != _NONE) & (each > 0)
        waits = (columns["finished"] - columns["parked"])[ended]
        self._total_wait_ms += int(waits.sum())
        self._longest_ms = max(self._longest_ms, int(waits.max(initial=0)))
        late = (columns["finished"] - columns["deadline"])[columns["outcome"] == _EXPIRED]
        self._latest_ms = max(self._latest_ms, int(late.max(initial=0)))
        purgatories = (columns["kind"] == len(_KINDS) - 1).astype(np.int64)
        of_key = np.repeat(purgatories, each)
        shared = columns["keys"] < self._recipe.keys
        np.add.at(self._keys, (of_key[shared], columns["keys"][shared]), 1)
        self._unique += int((~shared).sum())
        for number, first in enumerate(self._own):
            own = columns["keys"][~shared & (of_key == number)] - self._recipe.keys
            first[:] = sorted([*first, *own.tolist()])[:_TOP]

    def answers(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        outcomes = [
            {"purgatory": purgatory, "kind": kind, "outcome": OUTCOMES[state], "operations": int(number)}
            for (purgatory, kind), counts in zip(_KINDS, self._outcomes, strict=True)
            for state, number in enumerate(counts)
            if number
        ]
        names = ("fetch", "produce")
        flat = [(-int(n), names[p], f"key-{k:05d}") for p, k in zip(*np.nonzero(self._keys), strict=True)
                for n in [self._keys[p, k]]]  # fmt: skip
        flat += [(-1, names[p], _own_key(op_id)) for p, first in enumerate(self._own) for op_id in first]
        return {
            "rows": self._recipe.rows,
            "files": self._files,
            "dropped": self._recipe.dropped * self._files,
            "unique_keys": self._unique,
            "outcomes": sorted(outcomes, key=lambda row: (row["purgatory"], row["kind"], row["outcome"])),
            "total_wait_ms": self._total_wait_ms,
            "longest_wait_ms": self._longest_ms,
            "latest_ms": self._latest_ms,
            "hot_keys": [
                {"purgatory": purgatory, "key": key, "operations": -number}
                for number, purgatory, key in sorted(flat)[:_TOP]
            ],
        }
