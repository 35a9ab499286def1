"""The packing of comes and goes, without Spark: what any division into tasks must agree on."""

from typing import Any

import pytest

np: Any = pytest.importorskip("numpy")
pa: Any = pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")
pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from purgatory.pipeline.occupancy import packed_changes, summed  # noqa: E402 - only where it is installed


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
    schema = {"purgatory": pa.string(), "bucket_ms": pa.int64(), "come": pa.int64(), "go": pa.int64()}
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
    assert (bucket["come"], bucket["go"], bucket["high"], bucket["area"]) == (2, 2, 1, 4)


def test_an_end_in_a_later_bucket_counts_there() -> None:
    """A bucket knows only its own changes, as if it had begun with nobody."""
    found = together([rows([90], [250])], 100)
    assert {begin: (b["come"], b["go"], b["high"], b["area"]) for (_, begin), b in found.items()} == {
        0: (1, 0, 1, 10),
        200: (0, 1, -1, -50),
    }


def test_who_still_waits_has_come_and_not_gone() -> None:
    """A row without an end is one change."""
    (bucket,) = together([rows([5], [None])], 100).values()
    assert (bucket["come"], bucket["go"], bucket["high"], bucket["area"]) == (1, 0, 1, 95)


@pytest.mark.parametrize("bucket_ms", [7, 1_000, 40 * 86_400_000], ids=["fine", "second", "beyond 32 bits"])
def test_pieces_do_not_matter(bucket_ms: int) -> None:
    """However the rows are divided among tasks, a bucket comes to the same."""
    draw = np.random.default_rng(3)
    parked = draw.integers(1_700_000_000_000, 1_700_000_000_900, 400)
    finished = parked + draw.integers(0, 300, 400)
    whole = [rows(parked.tolist(), finished.tolist())]
    parts = [rows(parked[n::7].tolist(), finished[n::7].tolist()) for n in range(7)]
    assert together(whole, bucket_ms) == together(parts, bucket_ms)
    assert sum(bucket["come"] for bucket in together(whole, bucket_ms).values()) == 400


def test_purgatories_are_kept_apart() -> None:
    """The same bucket of two purgatories is two buckets."""
    both = pa.concat_tables([rows([1, 2], [9, 9], "a"), rows([3], [4], "b")])
    assert {name: bucket["high"] for (name, _), bucket in together([both], 10).items()} == {"a": 2, "b": 1}
