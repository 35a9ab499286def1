"""The packing of comes and goes, without Spark: what any division into tasks must agree on."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

np: Any = pytest.importorskip("numpy")
pa: Any = pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")
pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from purgatory.pipeline.report.occupancy import packed_changes, summed  # noqa: E402 - only where it is installed


def rows(parked: list[int], finished: list[int | None], purgatory: str = "p") -> Any:
    """A table as the tasks get it."""
    return pa.table(
        {
            "purgatory": pa.array([purgatory] * len(parked), pa.string()),
            "parked_ms": pa.array(parked, pa.int64()),
            "finished_ms": pa.array(finished, pa.int64()),
        }
    )


def together(pieces: list[Any], bucket_ms: int) -> dict[tuple[str, int], dict[str, Any]]:
    """What comes of each bucket if the rows are packed piece by piece."""
    schema = {"purgatory": pa.string(), "bucket_ms": pa.int64(), "parked": pa.int64(), "ended": pa.int64()}
    packed = [row for piece in pieces for row in packed_changes(piece, bucket_ms)]
    table = pa.Table.from_pylist(packed, schema=pa.schema([*schema.items(), ("changes", pa.binary())]))
    found = {}
    for purgatory, begin in sorted({(row["purgatory"], row["bucket_ms"]) for row in packed}):
        mine = pa.array([row["purgatory"] == purgatory and row["bucket_ms"] == begin for row in packed])
        found[purgatory, begin] = summed(table.filter(mine), bucket_ms)
    return found


def test_who_comes_and_goes_at_one_millisecond_is_never_a_peak() -> None:
    """The level is that at the end of a millisecond, whatever the order of its changes in the files."""
    (bucket,) = together([rows([10, 12], [12, 14])], 100).values()
    assert (bucket["parked"], bucket["ended"], bucket["high"], bucket["area"]) == (2, 2, 1, 4)


def test_the_level_at_the_start_is_no_peak_if_the_first_millisecond_changes_it() -> None:
    """Four leave and none come at the first millisecond: the bucket never has the level it begins with."""
    (_, bucket) = together([rows([90, 91, 92, 93], [100, 100, 100, 100])], 100).values()
    assert (bucket["parked"], bucket["ended"], bucket["high"]) == (0, 4, -4)
    (_, bucket) = together([rows([90, 91, 92, 93], [101, 101, 101, 101])], 100).values()
    assert (bucket["parked"], bucket["ended"], bucket["high"]) == (0, 4, 0)


def test_an_end_in_a_later_bucket_counts_there() -> None:
    """A bucket knows only its own changes, as if it had begun with nobody."""
    found = together([rows([90], [250])], 100)
    assert {begin: (b["parked"], b["ended"], b["high"], b["area"]) for (_, begin), b in found.items()} == {
        0: (1, 0, 1, 10),
        200: (0, 1, 0, -50),
    }


def test_who_still_waits_has_come_and_not_gone() -> None:
    """A row without an end is one change."""
    (bucket,) = together([rows([5], [None])], 100).values()
    assert (bucket["parked"], bucket["ended"], bucket["high"], bucket["area"]) == (1, 0, 1, 95)


@pytest.mark.parametrize("bucket_ms", [7, 1_000, 40 * 86_400_000], ids=["fine", "second", "beyond 32 bits"])
def test_pieces_do_not_matter(bucket_ms: int) -> None:
    """However the rows are divided among tasks, a bucket comes to the same."""
    draw = np.random.default_rng(3)
    parked = draw.integers(1_700_000_000_000, 1_700_000_000_900, 400)
    finished = parked + draw.integers(0, 300, 400)
    whole = [rows(parked.tolist(), finished.tolist())]
    parts = [rows(parked[n::7].tolist(), finished[n::7].tolist()) for n in range(7)]
    assert together(whole, bucket_ms) == together(parts, bucket_ms)
    assert sum(bucket["parked"] for bucket in together(whole, bucket_ms).values()) == 400


def test_purgatories_are_kept_apart() -> None:
    """The same bucket of two purgatories is two buckets."""
    both = pa.concat_tables([rows([1, 2], [9, 9], "a"), rows([3], [4], "b")])
    assert {name: bucket["high"] for (name, _), bucket in together([both], 10).items()} == {"a": 2, "b": 1}


def plainly(operations: list[tuple[int, int | None]], bucket_ms: int) -> dict[int, tuple[int, int, int, int, int]]:
    """Each bucket from the first change to the last, worked out millisecond by millisecond.

    Arrivals, ends, the highest level at the end of a millisecond, the sum of these levels, and the last of them.
    """
    times = [at for operation in operations for at in operation if at is not None]
    found = {}
    level = 0
    for begin in range(min(times) // bucket_ms * bucket_ms, max(times) + 1, bucket_ms):
        come = go = 0
        levels = []
        for at in range(begin, begin + bucket_ms):
            come_now = sum(1 for parked, _ in operations if parked == at)
            gone_now = sum(1 for _, finished in operations if finished == at)
            level += come_now - gone_now
            come, go = come + come_now, go + gone_now
            levels.append(level)
        found[begin] = (come, go, max(levels), sum(levels), level)
    return found


@st.composite
def waits(draw: st.DrawFn) -> tuple[int, int | None]:
    parked = draw(st.integers(0, 60))
    return parked, draw(st.none() | st.integers(parked, 80))


@given(st.lists(waits(), min_size=1, max_size=30), st.sampled_from([1, 2, 7, 10, 100]), st.integers(1, 4))
def test_every_bucket_is_what_counting_each_millisecond_gives(
    operations: list[tuple[int, int | None]], bucket_ms: int, pieces: int
) -> None:
    """Arrivals, ends, peak, mean and final level of any operations, in any division into tasks."""
    parts = [operations[n::pieces] for n in range(pieces) if operations[n::pieces]]
    found = together([rows([p for p, _ in part], [f for _, f in part]) for part in parts], bucket_ms)
    level = 0
    for begin, expected in plainly(operations, bucket_ms).items():
        nothing = {"parked": 0, "ended": 0, "high": 0, "area": 0}
        bucket = found.pop(("p", begin), nothing)
        peak, area = level + bucket["high"], level * bucket_ms + bucket["area"]
        level += bucket["parked"] - bucket["ended"]
        assert (bucket["parked"], bucket["ended"], peak, area, level) == expected
    assert not found
