-- The tables of a report as DuckDB views.  Replace the path, and then run: SELECT * FROM outcomes;
-- The table `dropped` is the view `runs`.  Time is divided into minutes.
--
-- Quantiles are exact here, whereas a report rounds waits of more than 65.536 s.  In dbt, each view can be a model.

-- The second SELECT has no rows.  It defines the columns that journals from earlier releases lack.
CREATE VIEW journal AS
SELECT * FROM read_parquet('journal/**/*.parquet', union_by_name = true)
UNION ALL BY NAME SELECT NULL::BOOLEAN AS expired_by_closing, NULL::BIGINT AS refused WHERE false;

-- One row per operation, with times in milliseconds.  Earlier releases did not mark operations expired by closing.
CREATE VIEW operations AS
SELECT source, purgatory, kind, op_id, keys, parked_at, deadline, finished_at, anchor_ms,
    CASE WHEN outcome = 'expired' AND coalesce(expired_by_closing, coalesce(finished_at < deadline, true))
        THEN 'expired_by_closing' ELSE outcome END AS outcome,
    len(keys) = 0 AS immediate,
    epoch_ms(finished_at) - epoch_ms(parked_at) AS wait_ms,
    CASE WHEN outcome = 'expired' AND NOT coalesce(expired_by_closing, coalesce(finished_at < deadline, true))
        THEN epoch_ms(finished_at) - epoch_ms(deadline) END AS late_ms
FROM journal WHERE outcome <> 'dropped';

CREATE VIEW outcomes AS
SELECT purgatory, kind, outcome, count(*) AS operations,
    count(*) / sum(count(*)) OVER (PARTITION BY purgatory, kind) AS share,
    count(*) FILTER (immediate) AS immediate
FROM operations GROUP BY purgatory, kind, outcome ORDER BY ALL;

CREATE VIEW waits AS
SELECT purgatory, kind, count(*) AS operations, avg(wait_ms) / 1000 AS mean,
    quantile_cont(wait_ms, 0.5) / 1000 AS p50, quantile_cont(wait_ms, 0.99) / 1000 AS p99, max(wait_ms) / 1000 AS max
FROM operations WHERE NOT immediate AND wait_ms IS NOT NULL
GROUP BY GROUPING SETS ((purgatory), (purgatory, kind)) ORDER BY purgatory, kind NULLS FIRST;

CREATE VIEW lateness AS
SELECT purgatory, count(late_ms) AS expired, count(*) - count(late_ms) AS expired_by_closing,
    quantile_cont(late_ms, 0.99) / 1000 AS p99, max(late_ms) / 1000 AS max
FROM operations WHERE outcome IN ('expired', 'expired_by_closing') GROUP BY purgatory ORDER BY purgatory;

CREATE VIEW hot_keys AS
SELECT purgatory, key, count(*) AS operations, count(*) FILTER (outcome = 'expired') AS expired,
    coalesce(sum(wait_ms), 0) / 1000 AS total_wait, quantile_cont(wait_ms, 0.99) / 1000 AS p99
FROM (SELECT purgatory, unnest(keys) AS key, outcome, wait_ms FROM operations)
GROUP BY purgatory, key ORDER BY operations DESC, purgatory, key;

CREATE VIEW hot_keys_by_wait AS
SELECT * FROM hot_keys WHERE total_wait > 0 ORDER BY total_wait DESC, purgatory, key;

-- The order is that of the lower bound of the share: Wilson's score interval with three standard errors.
CREATE VIEW hot_keys_by_expired AS
SELECT * FROM hot_keys WHERE operations >= 20 AND expired > 0
ORDER BY (expired / operations + 4.5 / operations
        - 3 * sqrt(expired / operations * (1 - expired / operations) / operations + 2.25 / operations / operations))
    / (1 + 9 / operations) DESC, expired DESC, purgatory, key;

-- Eight bins for each factor of ten; `from` is the lower bound of a bin in seconds.
CREATE VIEW wait_histogram AS
SELECT purgatory, outcome,
    CASE WHEN wait_ms < 1 THEN 0 ELSE 10 ** (floor(8 * log10(wait_ms)) / 8 - 3) END AS "from", count(*) AS operations
FROM operations WHERE NOT immediate AND wait_ms IS NOT NULL GROUP BY ALL ORDER BY purgatory, outcome, "from";

-- One row per purgatory and minute, and one per kind.  Refused operations have no rows of their own and no kind;
-- `dropped` rows contain their number.  They are spread evenly over the time range of such a row.
CREATE VIEW over_time AS
SELECT purgatory, kind, minute, count(outcome) AS operations, count(*) FILTER (outcome = 'expired') AS expired,
    count(*) FILTER (outcome = 'expired_by_closing') AS expired_by_closing, sum(refused)::BIGINT AS refused,
    quantile_cont(wait_ms, 0.5) / 1000 AS wait_p50, quantile_cont(wait_ms, 0.99) / 1000 AS wait_p99,
    quantile_cont(late_ms, 0.99) / 1000 AS late_p99
FROM (
    SELECT purgatory, kind, date_trunc('minute', parked_at) AS minute, outcome,
        CASE WHEN NOT immediate THEN wait_ms END AS wait_ms, late_ms, 0 AS refused FROM operations
    UNION ALL
    SELECT purgatory, NULL, date_trunc('minute', parked_at + to_milliseconds(n * range_ms // (2 * refused))),
        NULL, NULL, NULL, 1
    FROM (SELECT purgatory, parked_at, refused, epoch_ms(finished_at) - epoch_ms(parked_at) AS range_ms,
            unnest(range(1, 2 * refused, 2)) AS n FROM journal WHERE refused > 0)
)
GROUP BY GROUPING SETS ((purgatory, minute), (purgatory, kind, minute))
HAVING GROUPING(kind) = 1 OR kind IS NOT NULL ORDER BY purgatory, kind NULLS FIRST, minute;

-- One row per server run; each deployment begins new runs.
CREATE VIEW runs AS
SELECT source, min(parked_at) AS first_at, max(coalesce(finished_at, parked_at)) AS last_at,
    count(*) FILTER (outcome <> 'dropped') AS operations, coalesce(sum(dropped), 0) AS dropped
FROM journal GROUP BY source ORDER BY first_at;

-- For each millisecond in which operations parked or ended: how many, and the number of waiting operations at its end.
-- A pending operation ends in the millisecond after the last record of its server run, on the run's own clock.
CREATE VIEW levels AS
SELECT purgatory, at_ms, sum(parked) AS parked, sum(ended) AS ended,
    sum(sum(parked - ended)) OVER (PARTITION BY purgatory ORDER BY at_ms) AS waiting
FROM (
    SELECT purgatory, epoch_ms(parked_at) AS at_ms, 1 AS parked, 0 AS ended FROM operations WHERE NOT immediate
    UNION ALL
    SELECT purgatory, coalesce(epoch_ms(finished_at), last_ms + anchor_ms + 1), 0, 1
    FROM operations JOIN (
        SELECT source, max(epoch_ms(coalesce(finished_at, parked_at)) - anchor_ms) AS last_ms
        FROM journal GROUP BY source
    ) USING (source) WHERE NOT immediate
)
GROUP BY purgatory, at_ms;

-- One row per purgatory and minute in which operations parked or ended.  The peak includes the start of the minute.
CREATE VIEW occupancy AS
SELECT purgatory, to_timestamp(at_ms // 60000 * 60) AS minute, sum(parked)::BIGINT AS parked, sum(ended)::BIGINT AS ended,
    arg_max(waiting, at_ms) - sum((parked - ended) * (at_ms % 60000)) / 60000 AS mean,
    max(greatest(waiting, CASE WHEN at_ms % 60000 > 0 THEN waiting - parked + ended ELSE 0 END))::BIGINT AS peak,
    arg_max(waiting, at_ms)::BIGINT AS at_end
FROM levels GROUP BY purgatory, minute ORDER BY purgatory, minute;

CREATE VIEW peaks AS
SELECT DISTINCT ON (purgatory) purgatory, minute, peak FROM occupancy ORDER BY purgatory, peak DESC, minute;
