"""Every table of the report against DuckDB, on journals that hold every edge, with and without a selection.

The SQL here shares no code with the report, and where possible no method either: the level of a purgatory is counted
anew for each moment, and the mean of a bucket is the sum of the time that each operation spent in it.
"""

import pathlib
from collections.abc import Iterable
from decimal import ROUND_CEILING, Decimal, localcontext
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa

from purgatory.journal.files import ARROW_SCHEMA
from purgatory.pipeline.recipe import Recipe
from purgatory.pipeline.report import aggregates
from purgatory.pipeline.report.report import Report, compute
from purgatory.pipeline.selection import EVERYTHING, Selection
from purgatory.pipeline.synthetic_journal import generate
from tests.pipeline.report.test_edges import EPOCH_MS as EDGES_MS
from tests.pipeline.report.test_edges import borders, falls, restarts
from tests.pipeline.report.test_one_pass import EPOCH_MS, MINUTE_MS, rows_of, write

pytestmark = pytest.mark.timeout(170)
BUCKET_MS = MINUTE_MS
STEP_MS = 5 * MINUTE_MS + 1
TOP = 12
HOUR_MS = 3_600_000
FAR_MS = 1 << 52

SELECTIONS = {
    "everything": EVERYTHING,
    "a part of the random rows": Selection(EPOCH_MS + 5 * MINUTE_MS + 150, EPOCH_MS + 12 * MINUTE_MS + 33),
    "from a change on": Selection(since_ms=EDGES_MS + 60_000),
    "before a change": Selection(until_ms=EDGES_MS + 60_000),
    "within one bucket": Selection(EDGES_MS + 5, EDGES_MS + 6),
    "names": Selection(purgatories=("fetch", "restarted", "long"), kinds=("DelayedFetch", "Op")),
    "names in a part": Selection(EDGES_MS + HOUR_MS // 2, EDGES_MS + 3 * HOUR_MS, ("restarted",)),
    "nothing parks, but something waits": Selection(
        EDGES_MS + 2 * HOUR_MS, EDGES_MS + 2 * HOUR_MS + 1, ("restarted", "long", "fetch", "produce")
    ),
}

VIEWS = """
CREATE VIEW everything AS SELECT *, outcome = 'dropped' AS gap, epoch_ms(parked_at) AS parked_ms,
    epoch_ms(finished_at) AS finished_ms, epoch_ms(deadline) AS deadline_ms FROM journal;
CREATE VIEW named AS SELECT * FROM everything WHERE (gap AND purgatory IS NULL) OR (
    (len($purgatories) = 0 OR list_contains($purgatories, purgatory))
    AND (gap OR len($kinds) = 0 OR list_contains($kinds, kind)));
CREATE VIEW selected AS SELECT * FROM named WHERE
    CASE WHEN gap THEN parked_ms < $until AND finished_ms >= $since
         ELSE parked_ms >= $since AND parked_ms < $until END;
CREATE VIEW operations AS SELECT * REPLACE (CASE WHEN outcome = 'expired'
        AND coalesce(expired_by_closing, coalesce(finished_ms < deadline_ms, true))
        THEN 'expired_by_closing' ELSE outcome END AS outcome),
    len(keys) = 0 AS immediate, finished_ms - parked_ms AS wait_ms,
    CASE WHEN outcome = 'expired' AND NOT coalesce(expired_by_closing, coalesce(finished_ms < deadline_ms, true))
        THEN finished_ms - deadline_ms END AS late_ms
    FROM selected WHERE NOT gap;
CREATE VIEW refusals AS SELECT purgatory, parked_ms + odd * (finished_ms - parked_ms) // (2 * refused) AS at_ms
    FROM (SELECT *, unnest(range(1, 2 * refused, 2)) AS odd FROM named WHERE refused > 0);
CREATE VIEW by_key AS SELECT purgatory, unnest(keys) AS key, outcome, wait_ms FROM operations;
CREATE VIEW spent AS SELECT purgatory, parked_ms, coalesce(finished_ms, last_ms + 1) AS gone_ms
    FROM named JOIN (SELECT source, max(coalesce(finished_ms, parked_ms)) AS last_ms FROM everything GROUP BY source)
    USING (source) WHERE NOT gap AND len(keys) > 0 AND parked_ms < $until AND gone_ms >= $since;
CREATE VIEW moments AS SELECT DISTINCT * FROM (
    SELECT purgatory, greatest(parked_ms, $since) AS at_ms FROM spent
    UNION ALL SELECT purgatory, gone_ms FROM spent WHERE gone_ms < $until
    UNION ALL SELECT purgatory, $until - 1 FROM spent WHERE gone_ms >= $until);
CREATE VIEW buckets AS
    SELECT purgatory, begin_ms, greatest(begin_ms, $since) AS from_ms, least(begin_ms + $bucket, $until) AS to_ms
    FROM (SELECT purgatory, unnest(generate_series(first, last)) * $bucket AS begin_ms FROM (
        SELECT purgatory, min(at_ms) // $bucket AS first, max(at_ms) // $bucket AS last FROM moments GROUP BY ALL));
CREATE VIEW levels AS SELECT purgatory, begin_ms, at_ms,
        count(*) FILTER (parked_ms <= at_ms AND gone_ms > at_ms) AS level
    FROM (SELECT purgatory, begin_ms, from_ms AS at_ms FROM buckets
          UNION SELECT purgatory, at_ms // $bucket * $bucket, at_ms FROM moments)
    JOIN spent USING (purgatory) GROUP BY ALL;
"""
MACROS = """
CREATE MACRO rounded(ms) AS CASE WHEN ms < 65536 THEN ms ELSE ms - ms % (1 << (length(bin(ms)) - 16)::BIGINT) END;
CREATE MACRO exactly(ms) AS ms;
CREATE MACRO least_share(found, n) AS (found / n + 4.5 / n - 3 * sqrt(found / n * (1 - found / n) / n + 2.25 / n / n))
    / (1 + 9 / n);
CREATE MACRO coarsely(ms) AS CASE WHEN ms < 256 THEN ms ELSE ms - ms % (1 << (length(bin(ms)) - 8)::BIGINT) END;
"""
SHARES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999))
QUANTILES = ", ".join(f"quantile_cont(ROUNDED({{0}}), {share}) AS {name}" for name, share in SHARES)
QUANTILES += ", max({0}) AS max"
ENDED = ("completed", "expired", "expired_by_closing", "cancelled", "failed", "pending")
COUNTS = ", ".join(f"count(*) FILTER (outcome = '{outcome}') AS {outcome}" for outcome in ENDED)
HOT = f"""SELECT purgatory, key, count(*) AS operations, {COUNTS},
    coalesce(sum(wait_ms), 0)::BIGINT AS total_wait, {QUANTILES.format("wait_ms")}
    FROM by_key GROUP BY ALL {{0}}, purgatory, key LIMIT {TOP}"""
TABLES = {
    "outcomes": """SELECT purgatory, kind, outcome, number AS operations,
        number / sum(number) OVER (PARTITION BY purgatory, kind) AS share, immediate
        FROM (SELECT purgatory, kind, outcome, count(*) AS number, count(*) FILTER (immediate) AS immediate
            FROM operations GROUP BY ALL) ORDER BY purgatory, kind, outcome""",
    "waits": f"""SELECT purgatory, kind, count(*) AS operations, avg(wait_ms) AS mean, {QUANTILES.format("wait_ms")}
        FROM operations WHERE NOT immediate AND wait_ms IS NOT NULL
        GROUP BY GROUPING SETS ((purgatory), (purgatory, kind)) ORDER BY purgatory, kind NULLS FIRST""",
    "lateness": f"""SELECT purgatory, count(late_ms) AS expired, count(*) - count(late_ms) AS expired_by_closing,
        {QUANTILES.format("late_ms")} FROM operations WHERE outcome IN ('expired', 'expired_by_closing')
        GROUP BY purgatory ORDER BY purgatory""",
    "wait_histogram": """SELECT purgatory, outcome, lower AS "from", count(*) AS operations
        FROM operations ASOF JOIN steps ON wait_ms >= least_ms
        WHERE NOT immediate AND wait_ms IS NOT NULL GROUP BY ALL ORDER BY purgatory, outcome, "from" """,
    "hot_keys": HOT.format("ORDER BY operations DESC"),
    "hot_keys_by_wait": HOT.format("HAVING sum(wait_ms) > 0 ORDER BY sum(wait_ms) DESC"),
    "hot_keys_by_expired": HOT.format(
        "HAVING operations >= 20 AND expired > 0 ORDER BY least_share(expired, operations) DESC, expired DESC"
    ),
    "over_time": f"""WITH each AS (
            SELECT purgatory, kind, parked_ms // $step * $step * 1000 AS bucket, outcome, immediate, 0 AS refused,
                CASE WHEN NOT immediate THEN wait_ms END AS wait_ms, late_ms FROM operations
            UNION ALL SELECT purgatory, NULL, at_ms // $step * $step * 1000, NULL, NULL, 1, NULL, NULL
                FROM refusals WHERE at_ms >= $since AND at_ms < $until)
        SELECT purgatory, kind, bucket, count(outcome) AS operations, {COUNTS}, sum(refused)::BIGINT AS refused,
            count(*) FILTER (immediate) AS immediate,
            {
        ", ".join(
            f"quantile_cont(coarsely({what}_ms), {share}) AS {what}_{name}"
            for what in ("wait", "late")
            for name, share in (("p50", 0.5), ("p99", 0.99))
        )
    }
        FROM each GROUP BY GROUPING SETS ((purgatory, bucket), (purgatory, kind, bucket))
        HAVING GROUPING(kind) = 1 OR kind IS NOT NULL ORDER BY purgatory, kind NULLS FIRST, bucket""",
    "dropped": """SELECT source, count(*) FILTER (NOT gap) AS operations,
        coalesce(sum(dropped), 0)::BIGINT AS dropped, epoch_us(min(parked_at)) AS first_at,
        epoch_us(max(coalesce(finished_at, parked_at))) AS last_at FROM selected GROUP BY source ORDER BY source""",
    "occupancy": """SELECT purgatory, begin_ms * 1000 AS bucket,
        (SELECT count(*) FROM spent s WHERE s.purgatory = b.purgatory AND parked_ms >= from_ms AND parked_ms < to_ms)
            AS parked,
        (SELECT count(*) FROM spent s WHERE s.purgatory = b.purgatory AND gone_ms >= from_ms AND gone_ms < to_ms)
            AS ended,
        (SELECT coalesce(sum(least(gone_ms, to_ms) - greatest(parked_ms, from_ms)), 0) FROM spent s
            WHERE s.purgatory = b.purgatory AND parked_ms < to_ms AND gone_ms > from_ms) / (to_ms - from_ms) AS mean,
        (SELECT max(level) FROM levels l WHERE l.purgatory = b.purgatory AND l.begin_ms = b.begin_ms) AS peak,
        (SELECT count(*) FROM spent s WHERE s.purgatory = b.purgatory AND parked_ms < to_ms AND gone_ms >= to_ms)
            AS at_end
        FROM buckets b ORDER BY purgatory, bucket""",
    "peaks": """SELECT purgatory, min(begin_ms) * 1000 AS bucket, level AS peak FROM levels
        WHERE level = (SELECT max(level) FROM levels other WHERE other.purgatory = levels.purgatory)
        GROUP BY purgatory, level ORDER BY purgatory""",
}
DURATIONS = {"mean", "p50", "p90", "p99", "p999", "max", "wait_p50", "wait_p99", "late_p50", "late_p99", "total_wait"}


def steps() -> pa.Table:
    """The steps of the histogram of waits: the least whole milliseconds of each, and its lower bound in seconds."""
    with localcontext() as context:
        context.prec = 60
        eighth = Decimal(1) / 8
        least = [(Decimal(10) ** (step * eighth)).to_integral_value(ROUND_CEILING) for step in range(100)]
    rows = [{"least_ms": -FAR_MS, "lower": 0.0}]
    rows += [{"least_ms": int(ms), "lower": 10 ** (step / 8 - 3)} for step, ms in enumerate(least)]
    return pa.Table.from_pylist(rows)


def with_duckdb(
    journal: str,
    selection: Selection,
    bucket_ms: int = BUCKET_MS,
    step_ms: int = STEP_MS,
    names: Iterable[str] = TABLES,
) -> dict[str, list[dict[str, Any]]]:
    values = {
        "purgatories": f"{list(selection.purgatories)}::VARCHAR[]",
        "kinds": f"{list(selection.kinds)}::VARCHAR[]",
        "since": -FAR_MS if selection.since_ms is None else selection.since_ms,
        "until": FAR_MS if selection.until_ms is None else selection.until_ms,
        "bucket": bucket_ms,
        "step": step_ms,
    }
    views, tables = VIEWS, {name: TABLES[name] for name in names}
    for name, value in values.items():
        views = views.replace(f"${name}", f"({value})")
        tables = {table: sql.replace(f"${name}", f"({value})") for table, sql in tables.items()}
    # Imported here: a process of the tests that has loaded DuckDB searches for garbage at its end, which takes seconds.
    duckdb = pytest.importorskip("duckdb", reason="the extra 'test' is not installed")
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        db.execute(f"CREATE TABLE journal AS SELECT * FROM read_parquet('{journal}/*.parquet')")
        db.register("steps", steps())
        db.execute(MACROS + views)
        made = {name: db.sql(sql).to_arrow_table().to_pylist() for name, sql in tables.items()}
        for name in {"waits", "lateness", "hot_keys"} & tables.keys():
            exact = db.sql(tables[name].replace("ROUNDED", "exactly")).to_arrow_table().to_pylist()
            assert_nearly_exact(made[name], exact)
        return made


def assert_nearly_exact(rows: list[dict[str, Any]], exact: list[dict[str, Any]]) -> None:
    """The rounding makes a quantile less than 1 in 32 000 too low, and never too high."""
    for row, wanted in zip(rows, exact, strict=True):
        for name, _ in SHARES:
            if wanted[name] is not None:
                assert wanted[name] * (1 - 1 / 32_000) <= row[name] <= wanted[name] * (1 + 1e-12)


def assert_same(report: Report | SimpleNamespace, expected: dict[str, list[dict[str, Any]]]) -> None:
    assert report.tables.keys() == expected.keys(), "every table is compared"
    for name, rows in expected.items():
        table = report.tables[name]
        for number, field in enumerate(table.schema):
            if pa.types.is_timestamp(field.type):
                table = table.set_column(number, field.name, table[field.name].cast(pa.int64()))
        assert table.num_rows == len(rows), name
        assert not rows or table.column_names == list(rows[0]), name
        for column in table.column_names:
            found, wanted = table[column].to_pylist(), [row[column] for row in rows]
            if pa.types.is_floating(table.schema.field(column).type):
                divisor = 1000 if column in DURATIONS and name != "occupancy" else 1
                assert [value is None for value in found] == [value is None for value in wanted], (name, column)
                found = [value for value in found if value is not None]
                wanted = [value / divisor for value in wanted if value is not None]
                assert found == pytest.approx(wanted, rel=1e-9), (name, column)
            else:
                assert found == wanted, (name, column)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random rows of three runs with ties and rare rows, restarts with pending operations, and borders of waits."""
    one, two, three = rows_of(1, 300, "random-1"), rows_of(2, 200, "random-2"), rows_of(3, 100, "random-3")
    edges = [*restarts(), *falls(), *borders()]
    last = dict.fromkeys(ARROW_SCHEMA.names) | {"source": "run-4", "outcome": "dropped", "dropped": 3}
    end = EDGES_MS + 6 * HOUR_MS
    last |= {"parked_at": end, "finished_at": end + 17, "anchor_ms": EDGES_MS}
    files = (one[:150], one[150:] + two[:50], two[50:], three[:1], three[1:], [], edges[::2], [*edges[1::2], last])
    return write(tmp_path_factory.mktemp("edges") / "journal", *files, row_group_size=30)


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS.keys())
def test_every_table_is_that_of_duckdb(spark: Any, journal: str, selection: Selection) -> None:
    """Counts, times and texts are equal; so are durations, if DuckDB rounds as documented before it sorts."""
    expected = with_duckdb(journal, selection)
    made = compute(spark, journal, top=TOP, bucket_ms=BUCKET_MS, step_ms=STEP_MS, selection=selection)
    assert_same(made, expected)


def test_many_keys_that_each_appear_once(spark: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of DuckDB, but those whose check counts every moment anew, which takes hours for so many rows.

    There are more keys than the driver keeps before it adds up those that are equal.
    """
    monkeypatch.setattr(aggregates, "_MOST_KEY_ROWS", 50_000)
    answers = generate(tmp_path / "journal", Recipe(53_000, rate=1_000, unique=1.0, rows_per_file=12_500))
    assert answers["unique_keys"] > aggregates._MOST_KEY_ROWS
    names = TABLES.keys() - {"occupancy", "peaks"}
    report = compute(spark, str(tmp_path / "journal"), top=TOP)
    expected = with_duckdb(str(tmp_path / "journal"), EVERYTHING, report.bucket_ms, report.step_ms, names)
    assert_same(SimpleNamespace(tables={name: report.tables[name] for name in names}), expected)
