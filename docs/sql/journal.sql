-- The tables of a report as DuckDB views.  Replace the path, and then run: SELECT * FROM outcomes;
--
-- Quantiles are exact here, whereas a report rounds waits of more than 65.536 s.  In dbt, each view can be a model.

-- The second SELECT has no rows.  It defines the columns that journals from earlier releases lack.
CREATE VIEW journal AS
SELECT * FROM read_parquet('journal/**/*.parquet', union_by_name = true)
UNION ALL BY NAME SELECT NULL::BOOLEAN AS expired_by_closing, NULL::BIGINT AS refused WHERE false;

-- One row per operation, with times in milliseconds.  Earlier releases did not mark operations expired by closing.
CREATE VIEW operations AS
SELECT source, purgatory, kind, op_id, keys, parked_at, deadline, finished_at,
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

-- One row per purgatory and minute.  Refused operations have no rows of their own; `dropped` rows contain their number.
CREATE VIEW over_time AS
SELECT purgatory, minute, count(outcome) AS operations, count(*) FILTER (outcome = 'expired') AS expired,
    count(*) FILTER (outcome = 'expired_by_closing') AS expired_by_closing, sum(refused) AS refused,
    quantile_cont(wait_ms, 0.5) / 1000 AS wait_p50, quantile_cont(wait_ms, 0.99) / 1000 AS wait_p99
FROM (
    SELECT purgatory, date_trunc('minute', parked_at) AS minute, outcome,
        CASE WHEN NOT immediate THEN wait_ms END AS wait_ms, 0 AS refused FROM operations
    UNION ALL
    SELECT purgatory, date_trunc('minute', parked_at), NULL, NULL, refused FROM journal WHERE refused > 0
)
GROUP BY purgatory, minute ORDER BY purgatory, minute;

-- One row per server run; each deployment begins new runs.
CREATE VIEW runs AS
SELECT source, min(parked_at) AS first_at, max(coalesce(finished_at, parked_at)) AS last_at,
    count(*) FILTER (outcome <> 'dropped') AS operations, coalesce(sum(dropped), 0) AS dropped
FROM journal GROUP BY source ORDER BY first_at;
