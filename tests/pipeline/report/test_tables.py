"""The tables of a report against plain computations with numpy on the same files."""

import pathlib
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.pipeline.report.report import Report, compute

pytestmark = pytest.mark.timeout(170)
BUCKET_MS = 1_000
ENDED = ("completed", "expired", "cancelled", "failed")


class Plain:
    """The operations of a journal as numpy columns, times in epoch milliseconds, -1 for null."""

    def __init__(self, path: pathlib.Path) -> None:
        table = pa.concat_tables([pq.ParquetFile(file).read() for file in sorted(path.glob("*.parquet"))])
        self.dropped = sum(n or 0 for n in table["dropped"].to_pylist())
        table = table.filter(pa.compute.not_equal(table["outcome"], "dropped"))
        for name in ("purgatory", "kind", "outcome"):
            setattr(self, name, np.array(table[name].to_pylist()))
        for name in ("parked_at", "deadline", "finished_at"):
            setattr(self, name, table[name].cast(pa.int64()).fill_null(-1).to_numpy())
        self.keys: list[list[str]] = table["keys"].to_pylist()
        self.waited = np.array([bool(keys) for keys in self.keys])
        self.ended = self.finished_at >= 0  # type: ignore[attr-defined]
        self.wait = self.finished_at - self.parked_at  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@pytest.fixture(scope="module")
def plain(made: tuple[pathlib.Path, dict[str, Any]]) -> Plain:
    return Plain(made[0])


@pytest.fixture(scope="module")
def report(spark: Any, made: tuple[pathlib.Path, dict[str, Any]]) -> Report:
    return compute(spark, str(made[0]), top=25, bucket_ms=BUCKET_MS)


def rows(report: Report, name: str) -> list[dict[str, Any]]:
    return report.tables[name].to_pylist()  # type: ignore[no-any-return]


def quantiles(ms: Any) -> list[float]:
    return [float(q) for q in np.percentile(ms, [50, 90, 99, 99.9]) / 1000]


def shown(row: dict[str, Any]) -> list[float]:
    return [row[name] for name in ("p50", "p90", "p99", "p999")]


def test_outcomes_are_counted_exactly(report: Report, plain: Plain, made: Any) -> None:
    """Counts, shares and immediate ones per purgatory, kind and outcome; and the known answers of the recipe."""
    found = rows(report, "outcomes")
    for row in found:
        of_kind = (plain.purgatory == row["purgatory"]) & (plain.kind == row["kind"])
        mine = of_kind & (plain.outcome == row["outcome"])
        assert row["operations"] == mine.sum() > 0
        assert row["share"] == pytest.approx(mine.sum() / of_kind.sum(), abs=1e-12)
        assert row["immediate"] == (mine & ~plain.waited).sum()
    assert sum(row["operations"] for row in found) == len(plain.keys) == 20_000 == report.operations
    known = [{name: row[name] for name in ("purgatory", "kind", "outcome", "operations")} for row in found]
    assert known == made[1]["outcomes"]


def test_waits_are_exact_quantiles(report: Report, plain: Plain) -> None:
    """p50 to p99.9, mean and maximum of those that waited, by purgatory and by kind; above 65 s within 1 in 32 000."""
    found = rows(report, "waits")
    assert len(found) == 5
    for row in found:
        mine = plain.waited & plain.ended & (plain.purgatory == row["purgatory"])
        if row["kind"] is not None:
            mine &= plain.kind == row["kind"]
        assert row["operations"] == mine.sum()
        assert row["mean"] == pytest.approx(plain.wait[mine].mean() / 1000, rel=1e-12)
        assert row["max"] == plain.wait[mine].max() / 1000
        assert shown(row) == pytest.approx(quantiles(plain.wait[mine]), rel=1 / 32_000)


def test_lateness_is_exact(report: Report, plain: Plain) -> None:
    """Quantiles and maximum from deadline to answer, of those that expired on their deadline."""
    found = rows(report, "lateness")
    assert [row["purgatory"] for row in found] == ["fetch", "produce"]
    for row in found:
        mine = (plain.purgatory == row["purgatory"]) & (plain.outcome == "expired")
        late = (plain.finished_at - plain.deadline)[mine]
        assert (row["expired"], row["expired_by_closing"]) == ((late >= 0).sum(), (late < 0).sum())
        assert shown(row) == pytest.approx(quantiles(late), abs=1e-12)
        assert row["max"] == late.max() / 1000


def test_occupancy_is_exact_to_the_millisecond(report: Report, plain: Plain) -> None:
    """Arrivals, ends, mean, peak and final level of every second, from a level for each single millisecond.

    What still waited at the end of the only source ends right after its last record.
    """
    last = max(plain.parked_at.max(), plain.finished_at.max())
    gone = np.where(plain.ended, plain.finished_at, last + 1)
    for purgatory in ("fetch", "produce"):
        mine = plain.waited & (plain.purgatory == purgatory)
        parked, finished = plain.parked_at[mine], gone[mine]
        first = int(parked.min()) // BUCKET_MS * BUCKET_MS
        length = (int(max(parked.max(), finished.max())) // BUCKET_MS + 1) * BUCKET_MS - first
        come, go = (np.bincount(times - first, minlength=length) for times in (parked, finished))
        level = np.cumsum(come - go).reshape(-1, BUCKET_MS)
        found = [row for row in rows(report, "occupancy") if row["purgatory"] == purgatory]
        assert len(found) == len(level)
        assert [row["bucket"].timestamp() * 1000 for row in found] == list(range(first, first + length, BUCKET_MS))
        assert [row["parked"] for row in found] == come.reshape(-1, BUCKET_MS).sum(axis=1).tolist()
        assert [row["ended"] for row in found] == go.reshape(-1, BUCKET_MS).sum(axis=1).tolist()
        assert [row["at_end"] for row in found] == level[:, -1].tolist()
        assert [row["peak"] for row in found] == level.max(axis=1).tolist()
        assert [row["mean"] for row in found] == pytest.approx(level.mean(axis=1).tolist(), abs=1e-9)
        (peak,) = [row for row in rows(report, "peaks") if row["purgatory"] == purgatory]
        assert peak["peak"] == level.max()


def test_hot_keys_are_the_hottest(report: Report, plain: Plain, made: Any) -> None:
    """The 25 keys with the most operations, in order, with how they ended and how long they waited."""
    by_key: dict[tuple[str, str], list[int]] = {}
    for number, keys in enumerate(plain.keys):
        for key in keys:
            by_key.setdefault((plain.purgatory[number], key), []).append(number)
    hottest = sorted(by_key, key=lambda pair: (-len(by_key[pair]), *pair))[:25]
    found = rows(report, "hot_keys")
    assert [(row["purgatory"], row["key"]) for row in found] == hottest
    for row in found:
        mine = np.array(by_key[row["purgatory"], row["key"]])
        assert row["operations"] == len(mine)
        for outcome in (*ENDED, "pending"):
            assert row[outcome] == (plain.outcome[mine] == outcome).sum()
        waits = plain.wait[mine][plain.ended[mine]]
        assert shown(row) == pytest.approx(quantiles(waits), rel=1 / 32_000)
        assert row["max"] == waits.max() / 1000
    top = [{name: row[name] for name in ("purgatory", "key", "operations")} for row in found[:10]]
    assert top == made[1]["hot_keys"]


def test_dropped_rows_are_reported(report: Report, plain: Plain, made: Any) -> None:
    """What each source had to drop, and what it wrote."""
    (row,) = rows(report, "dropped")
    assert row["dropped"] == plain.dropped == made[1]["dropped"] == report.dropped == 20
    assert row["operations"] == 20_000
    assert row["first_at"].timestamp() * 1000 == plain.parked_at.min()


def test_the_histogram_of_waits_holds_them_all(report: Report, plain: Plain) -> None:
    """Every wait lies between the start of its step and the next, eight steps per factor of ten."""
    found = rows(report, "wait_histogram")
    for purgatory in ("fetch", "produce"):
        for outcome in ENDED:
            mine = plain.waited & plain.ended & (plain.purgatory == purgatory) & (plain.outcome == outcome)
            steps = [row for row in found if (row["purgatory"], row["outcome"]) == (purgatory, outcome)]
            assert sum(row["operations"] for row in steps) == mine.sum()
            for row in steps:
                low, high = row["from"] * 1000, row["from"] * 1000 * 10**0.125
                if row["from"] and low < 60_000:
                    inside = (plain.wait[mine] >= low * (1 - 1e-9)) & (plain.wait[mine] < high * (1 - 1e-9))
                    assert row["operations"] == inside.sum()
