"""Aggregates as they go from task to task, without Spark."""

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from purgatory.pipeline.report.aggregates import Aggregates


def of_keys(keys: list[str]) -> Aggregates:
    """One operation of each key."""
    made = Aggregates()
    columns = (
        pa.array(["p"] * len(keys), pa.string()),
        pa.array(keys, pa.string()),
        pa.array([1] * len(keys), pa.int64()),
    )
    made.keys.add(pa.Table.from_arrays(columns, ["purgatory", "key", "operations"]))
    return made


@pytest.mark.parametrize("parts", [1, 16])
def test_many_distinct_keys_are_sent_once(parts: int) -> None:
    """What goes to the next task is little more than the keys themselves, whatever chunks they are in."""
    keys = [f"request-{number:012d}" for number in range(200_000)]
    cells = [cell for _, cell in of_keys(keys).cells(parts)]
    assert sum(map(len, cells)) < 1.5 * sum(len(key) + 1 + 4 + 4 + 8 for key in keys)
    total = Aggregates()
    total.add_cells(cells)
    assert total.keys.table().num_rows == len(keys)
    assert total.keys.top(2)["key"].to_pylist() == keys[:2]


@given(st.lists(st.text(max_size=3), max_size=40), st.integers(1, 5))
def test_the_parts_have_all_keys(keys: list[str], parts: int) -> None:
    """Each key is in one part, the same one in every task, with the number of its operations."""
    cells = [cell for some in (keys[::2], keys[1::2]) for cell in of_keys(some).cells(parts)]
    total = Aggregates()
    part_of: dict[str, int] = {}
    for part, cell in cells:
        total.add_cells([cell])
        alone = Aggregates()
        alone.add_cells([cell])
        for key in alone.keys.table()["key"].to_pylist():
            assert part_of.setdefault(key, part) == part < parts
    counted = {row["key"]: row["operations"] for row in total.keys.table().to_pylist()}
    assert counted == {key: keys.count(key) for key in keys}
