"""The pieces of a journal with many purgatories, without Spark."""

import pickle
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal.files import ARROW_SCHEMA
from purgatory.pipeline.replay import pieces as module
from purgatory.pipeline.replay.pieces import COLUMNS, Piece, plain
from purgatory.pipeline.selected_rows import needed_columns
from purgatory.pipeline.selection import EVERYTHING, Selection

BEGIN_MS = 1_790_000_000_000


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Five files of 40 purgatories of two processes; one is of an earlier release, and one has microseconds, row groups
    of 7, and no dictionaries.  There are also dropped rows."""
    rng, path = np.random.default_rng(5), tmp_path_factory.mktemp("pieces")
    found = []
    for number in range(5):
        rows = []
        for op_id in range(400):
            outcome = "dropped" if op_id % 50 == 0 else ("completed", "expired", "cancelled")[op_id % 3]
            parked = BEGIN_MS + number * 10_000 + int(rng.integers(0, 12_000))
            row = dict.fromkeys(ARROW_SCHEMA.names) | {"source": f"h-{op_id % 2}-a", "outcome": outcome}
            row |= {"purgatory": f"p{rng.integers(0, 10)}", "instance": int(rng.integers(0, 2)), "kind": "K"}
            row |= {"op_id": op_id, "keys": ["k"], "parked_at": parked, "deadline": parked + 500}
            rows.append(row | {"finished_at": parked + 300, "anchor_ms": BEGIN_MS - 1_000})
        table, options = pa.Table.from_pylist(rows, schema=ARROW_SCHEMA), {}
        if number == 1:
            table = table.drop_columns(["instance", "expired_by_closing", "refused"])
        if number == 2:
            options = {"coerce_timestamps": "us", "row_group_size": 7, "use_dictionary": False}
        found.append(str(path / f"part-{number}.parquet"))
        pq.write_table(table, found[-1], **options)
    return found


def found_pieces(files: list[str], selection: Selection, piece_rows: int) -> list[Piece]:
    count = partial(module._count, selection=selection, step=max(1, piece_rows // 64))
    cells = module._count_files(needed_columns(module._FIRST, selection), selection, count, [files])
    return module._pieces([module._Counted(*pickle.loads(cell)) for cell in cells], piece_rows)


def rows_of(table: pa.Table, _: int, piece: Piece) -> list[Any]:
    columns = [np.asarray(plain(table[name])).tolist() for name in ("source", "purgatory", "instance", "op_id")]
    times = [(np.asarray(table[name].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()))).tolist() for name in TIMES]
    assert table.schema.names == list(COLUMNS)
    return [piece, *zip(*columns, *times, strict=True)]


TIMES = ("parked_at", "deadline", "finished_at")


@pytest.mark.parametrize("piece_rows", [7, 30, 100_000])
@pytest.mark.parametrize(
    "selection",
    [EVERYTHING, Selection(since_ms=BEGIN_MS + 9_000, until_ms=BEGIN_MS + 33_333), Selection.parse(purgatories=["p3"])],
    ids=["all", "a time", "a purgatory"],
)
def test_pieces_in_one_task_are_those_of_a_task_each(
    files: list[str], piece_rows: int, selection: Selection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rows in the same order, and each operation in one piece; each file is read once for a task."""
    monkeypatch.setattr(module, "freeze_modules", lambda: None)
    pieces = found_pieces(files, selection, piece_rows)
    work = partial(module._work_on_files, rows_of, COLUMNS, selection)
    alone = [result for numbered in enumerate(pieces) for result in work([numbered])]
    reads: list[str] = []
    read_batches = module.read_batches

    def counted(name: str, *arguments: Any) -> Iterator[pa.RecordBatch]:
        reads.append(name)
        return read_batches(name, *arguments)

    monkeypatch.setattr(module, "read_batches", counted)
    for tasks in (1, 3):
        reads.clear()
        groups = module._together(pieces, tasks)
        together = [result for group in groups for result in work(group)]
        assert len(groups) <= 2 * tasks
        assert len(reads) <= len(groups) * len(files)
        assert sorted(together, key=lambda one: one[0]) == alone
    rows = [row for _, (_, *mine) in alone for row in mine]
    assert len(rows) == len(set(rows)) == sum(piece_counts(files, selection))
    assert sum(piece.rows for piece in pieces) == pytest.approx(len(rows), rel=0.2)


def piece_counts(files: list[str], selection: Selection) -> Iterator[int]:
    for name in files:
        for batch in pq.ParquetFile(name).iter_batches():
            yield module._operations(batch, selection).num_rows


def test_large_pieces_have_a_task_each() -> None:
    """Small pieces share one, up to a number of rows."""
    pieces = [Piece(("s", f"p{n}", 0), 0, 9, ("a",), rows) for n, rows in enumerate((90_000, 200_000, 5, 6, 90_000, 7))]
    groups = [[number for number, _ in group] for group in module._together(pieces, 1)]
    assert groups == [[0], [1], [2, 3, 4, 5]]
    assert [len(group) for group in module._together(pieces[2:4], 2)] == [1, 1]
