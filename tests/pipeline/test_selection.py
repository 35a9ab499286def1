"""The selection of a command line: times, names, and what is refused."""

import pathlib

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal.files import ARROW_SCHEMA
from purgatory.pipeline.selected_rows import row_groups
from purgatory.pipeline.selection import EVERYTHING, Selection, parse_time


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-11-22", 1_795_305_600_000),
        ("2026-11-22T10:30", 1_795_343_400_000),
        ("2026-11-22 10:30:00.250", 1_795_343_400_250),
        ("2026-11-22T10:30:00Z", 1_795_343_400_000),
        ("2026-11-22T10:30:00+01:00", 1_795_339_800_000),
        ("2026-11-22T10:30:00.000001", 1_795_343_400_001),
        (" 1795343400250 ", 1_795_343_400_250),
        ("1970-01-01", 0),
        ("1969-12-31T23:59:59.9995", 0),
        ("0001-01-01", -62_135_596_800_000),
    ],
)
def test_a_time_is_iso_8601_or_epoch_milliseconds(text: str, ms: int) -> None:
    """UTC without an offset; a fraction of a millisecond is rounded up, so no earlier row is selected."""
    assert parse_time(text, "since") == ms


@pytest.mark.parametrize("text", ["", "yesterday", "10:30", "1795343400", "20261122", "-1795343400250", "2026-13-01"])
def test_other_times_are_refused(text: str) -> None:
    """Among them epoch seconds, and a date without hyphens, which would select other rows without a word."""
    with pytest.raises(ValueError, match=r"^until must be a time such as .* at least 12 digits, got ") as raised:
        parse_time(text, "until")
    assert str(raised.value).endswith(repr(text))


def test_until_must_be_after_since() -> None:
    """The interval is half-open, so equal times select nothing."""
    for until in ("2026-11-22", "2026-11-21T23:59:59.999"):
        with pytest.raises(ValueError, match=r"until must be after since, 2026-11-22 00:00:00 UTC, got 2026-11-2"):
            Selection.parse("2026-11-22", until)
    assert Selection.parse("2026-11-22", "2026-11-22T00:00:00.001").until_ms == 1_795_305_600_001


def test_a_selection_describes_itself() -> None:
    """The page and the error without any row contain it."""
    assert str(EVERYTHING) == "all operations"
    assert EVERYTHING.is_everything
    selection = Selection.parse("2026-11-22", "1795343400250", ["a", "b", "a"], ["K"])
    assert selection.purgatories == ("a", "b")
    assert str(selection) == (
        "parked since 2026-11-22 00:00:00 UTC until 2026-11-22 10:30:00.250 UTC, purgatory a or b, kind K"
    )
    assert selection.nothing_in("j") == f"the journal j has no operations that match: {selection}"
    assert str(Selection(until_ms=1 << 60)) == f"parked until {1 << 60} ms"


def test_row_groups_without_a_selected_row_are_not_read(tmp_path: pathlib.Path) -> None:
    """By the bounds of their times and names.  A null end, a null name and a row group without bounds are read."""
    nothing = dict.fromkeys(ARROW_SCHEMA.names) | {"source": "s", "anchor_ms": 0, "outcome": "completed", "keys": ["k"]}

    def row(purgatory: str, parked: int, finished: int | None) -> dict[str, object]:
        return nothing | {"purgatory": purgatory, "kind": "K", "parked_at": parked, "finished_at": finished}

    rows = [row("b", 10, 20), row("d", 15, 30), row("b", 30, 40), row("c", 31, 50), row("é", 5, None), row("b", 9, 12)]
    rows += [nothing | {"outcome": "dropped", "parked_at": 60, "finished_at": 70}, row("b", 60, 61)]
    table = pa.Table.from_pylist(rows, schema=ARROW_SCHEMA)

    def read(selection: Selection, statistics: bool = True) -> list[int]:
        pq.write_table(table, tmp_path / "part.parquet", row_group_size=2, write_statistics=statistics)
        return row_groups(pq.read_metadata(tmp_path / "part.parquet"), selection)

    assert read(EVERYTHING) == [0, 1, 2, 3]
    assert read(Selection(since_ms=31)) == [1, 2, 3]
    assert read(Selection(since_ms=30)) == [0, 1, 2, 3]
    assert read(Selection(until_ms=30)) == [0, 2]
    assert read(Selection(until_ms=31)) == [0, 1, 2]
    assert read(Selection(since_ms=51, until_ms=60)) == [2]
    assert read(Selection(purgatories=("a", "z"))) == [2, 3]
    assert read(Selection(purgatories=("c",), kinds=("K",))) == [0, 1, 2, 3]
    assert read(Selection(kinds=("L",))) == [3]
    assert read(Selection(since_ms=51, until_ms=60, kinds=("L",)), statistics=False) == [0, 1, 2, 3]


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_that_is_no_date_in_utc_is_refused(text: str) -> None:
    """Its offset moves it out of the years 1 to 9999, so it could not be shown."""
    with pytest.raises(ValueError, match=r"^since must be a time in the years 1 to 9999 in UTC, got '"):
        parse_time(text, "since")
