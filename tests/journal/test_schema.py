"""The documented schema, and optional parts that raise without their extra."""

import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("pyarrow", reason="the extra 'journal' is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.events import Outcome
from purgatory.journal import JournalError
from purgatory.journal.files import ARROW_SCHEMA, Footer, check_footer, data_files, read_footer
from purgatory.journal.schema import COLUMNS, DROPPED, OUTCOMES, SCHEMA_VERSION, VERSION_KEY, markdown

DOCS = pathlib.Path(__file__).parents[2] / "docs"


def test_the_documentation_shows_the_columns_as_they_are() -> None:
    """The table in the documentation is generated from the schema."""
    assert markdown() in (DOCS / "journal.md").read_text()


def test_the_journal_has_every_outcome() -> None:
    """The core records the number of a state, and the journal writes the name of its outcome."""
    assert (*(outcome.value for outcome in Outcome), DROPPED) == OUTCOMES


def test_a_file_of_this_version_can_be_read(tmp_path: pathlib.Path) -> None:
    """The footer of a valid file contains the number of rows and the version."""
    pq.write_table(ARROW_SCHEMA.empty_table(), tmp_path / "a.parquet")
    footer = read_footer(str(tmp_path / "a.parquet"))
    assert (footer.rows, footer.version, check_footer(footer)) == (0, SCHEMA_VERSION, None)
    assert footer.columns == {column.name for column in COLUMNS}


def test_a_file_without_the_columns_that_came_later_can_be_read(tmp_path: pathlib.Path) -> None:
    """A journal of an earlier release may lack three columns; all others are required."""
    empty = ARROW_SCHEMA.empty_table()
    for column in COLUMNS:
        pq.write_table(empty.drop_columns([column.name]), tmp_path / "a.parquet")
        reason = check_footer(read_footer(str(tmp_path / "a.parquet")))
        assert (reason is None) == column.added == (column.name in ("instance", "expired_by_closing", "refused"))
    assert all(column.nullable for column in COLUMNS if column.added)


def test_files_that_cannot_be_read_are_told_by_name(tmp_path: pathlib.Path) -> None:
    """For another version, missing columns and garbage, the message contains the file and the reason."""
    empty = ARROW_SCHEMA.empty_table()
    newer = tmp_path / "newer.parquet"
    pq.write_table(empty.replace_schema_metadata({VERSION_KEY: "99"}), newer)
    assert f"{newer} has schema version 99" in (check_footer(read_footer(str(newer))) or "")
    poor = tmp_path / "poor.parquet"
    pq.write_table(pa.table({"op_id": [1]}), poor)
    assert f"{poor} lacks the columns source, purgatory" in (check_footer(read_footer(str(poor))) or "")
    damaged = tmp_path / "damaged.parquet"
    pq.write_table(empty, damaged)
    damaged.write_bytes(damaged.read_bytes().replace(b"op_id", b"\xff" * 5))
    with pytest.raises(JournalError, match=r"damaged\.parquet is corrupt: .*can't decode byte 0xff"):
        read_footer(str(damaged))
    pq.write_table(empty, damaged)
    before = damaged.read_bytes()
    damaged.write_bytes(before.replace(b"VVRD", b"VVrD"))  # "UTC" in Base64, with another second letter
    assert damaged.read_bytes() != before
    with pytest.raises(JournalError, match=r"damaged\.parquet is corrupt: .*can't decode byte"):
        read_footer(str(damaged))
    with pytest.raises(JournalError) as unnamed:
        read_footer("/data/a\udcff.parquet")
    assert str(unnamed.value) == r"'/data/a\udcff.parquet' cannot be read: its name is not valid UTF-8"
    rubbish = tmp_path / "rubbish.parquet"
    rubbish.write_bytes(b"PAR1 this is not")
    with pytest.raises(JournalError, match="corrupt") as caught:
        read_footer(str(rubbish))
    assert str(rubbish) in str(caught.value)
    with pytest.raises(JournalError, match="no journal at"):
        data_files(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["outcome", "parked_at", "keys"])
def test_two_columns_of_one_name_are_not_a_journal(tmp_path: pathlib.Path, name: str) -> None:
    """Another program can write such a file; the message contains the file and the name."""
    path = tmp_path / "a.parquet"
    row = dict.fromkeys(ARROW_SCHEMA.names) | {"source": "s", "outcome": "completed", "anchor_ms": 0, "parked_at": 5}
    table = pa.Table.from_pylist([row | {"keys": []}], schema=ARROW_SCHEMA)
    pq.write_table(table.append_column(ARROW_SCHEMA.field(name), table[name]), path)
    said = f"{path} has other columns, {name} must occur once, got 2: it is not a journal of this version"
    assert check_footer(read_footer(str(path))) == said


def test_the_room_without_its_extra_says_what_to_install() -> None:
    """Importing it raises ImportError with the command; the rest of the package is not affected."""
    code = "import sys; sys.modules['pyarrow'] = None; import purgatory; import purgatory.journal"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith("ImportError: purgatory.journal needs 'pyarrow'")
    assert "pip install 'aiopurgatory[journal]'" in ran.stderr.splitlines()[-1]


def test_importing_the_house_loads_no_optional_dependency() -> None:
    """pyarrow, pyspark and their dependencies are loaded only when an optional part is imported."""
    code = (
        "import sys, purgatory, purgatory.testing;"
        "print([m for m in ('pyarrow', 'pyspark', 'pandas', 'numpy', 'matplotlib', 'rich') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_nulls_and_far_times_are_known_from_the_footer(tmp_path: pathlib.Path) -> None:
    """A column that is never null has no nulls; times outside the years 1 to 9999 are no dates in Python and SQL."""
    row = dict.fromkeys(ARROW_SCHEMA.names) | {"source": "s", "outcome": "completed", "anchor_ms": 0, "parked_at": 5}
    foreign = pa.schema([field.with_nullable(True) for field in ARROW_SCHEMA])
    path = tmp_path / "a.parquet"

    def written(**other: object) -> Footer:
        pq.write_table(pa.Table.from_pylist([row, row | other], schema=foreign), path)
        return read_footer(str(path))

    for name in ("source", "parked_at", "outcome", "anchor_ms"):
        reason = f"{path} has nulls in the columns {name}: it is not a journal"
        assert check_footer(written(**{name: None})) == reason
    assert check_footer(written()) is None
    assert written(parked_at=-62_135_596_800_000, finished_at=253_402_300_799_999).far == ()
    assert written(parked_at=-62_135_596_800_001).far == ("parked_at",)
    assert written(finished_at=253_402_300_800_000).far == ("finished_at",)
