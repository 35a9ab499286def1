"""The report at scale: ``python -m benchmarks.pipeline [--rows 1000000,10000000,50000000]``.

The program generates a journal of each size, runs the report on it with two cores and a 1 GB driver, and computes six
of its tables with DuckDB, the usual choice on one machine: ``dropped``, ``outcomes``, ``waits``, ``lateness``, the
peaks in ``occupancy``, and ``hot_keys``.  Spark's report also has the other tables, pictures, and a page.  DuckDB gets
two threads and 1 GB of memory, or more if it runs out.  Each runs in a separate process.  The memory is the most that
the process and all its descendants held at once; the CPU time is their total.

The program compares the counts of the outcomes, the 50 keys with the most operations, with their numbers of operations
and of expired operations, and the highest peak of each purgatory.  All files are deleted at the end.  Requires
``pip install 'aiopurgatory[spark]' duckdb``.

::

    python -m benchmarks.pipeline --markdown    # the table of docs/pipeline.md
    python -m benchmarks.pipeline --rows 1000000 --unique 1.0    # each operation waits on a key of its own
    python -m benchmarks.pipeline --replay --rows 200000,1000000    # the replay with six settings, without DuckDB
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

__all__ = ["main"]

_MASTER = "local[2]"
_POLL_S = 0.1
_LIMITS = ("1GB", "2GB", "4GB", "8GB", "16GB")
_SETTINGS = ("--tick-ms", "1,5", "--wheel-size", "20,64,512")
_TICKS = os.sysconf("SC_CLK_TCK")
_DUCKDB = """
import sys, duckdb
journal, out, limit = sys.argv[1:]
db = duckdb.connect(config={"threads": 2, "memory_limit": limit, "temp_directory": out + "/spill"})
db.execute("SET preserve_insertion_order = false")
db.execute("SET TimeZone = 'UTC'")
db.execute(f"CREATE VIEW journal AS SELECT * FROM read_parquet('{journal}/*.parquet')")
db.execute('''CREATE VIEW operations AS SELECT purgatory, kind, keys, outcome, len(keys) = 0 AS immediate,
    epoch_ms(parked_at) AS parked_ms, epoch_ms(finished_at) AS finished_ms, finished_ms - parked_ms AS wait_ms, source,
    CASE WHEN outcome = 'expired' AND finished_at >= deadline THEN finished_ms - epoch_ms(deadline) END AS late_ms
    FROM journal WHERE outcome <> 'dropped' ''')
quantiles = "[0.5, 0.9, 0.99, 0.999]"
tables = {
    "dropped": '''SELECT source, count(*) FILTER (outcome <> 'dropped') AS operations, sum(dropped) AS dropped
        FROM journal GROUP BY ALL''',
    "outcomes": '''SELECT purgatory, kind, outcome, count(*) AS operations, count(*) FILTER (immediate) AS immediate
        FROM operations GROUP BY ALL ORDER BY ALL''',
    "waits": f'''SELECT purgatory, kind, count(*) AS operations, avg(wait_ms) AS mean,
        quantile_cont(wait_ms, {quantiles}) AS quantiles, max(wait_ms) / 1000 AS max
        FROM operations WHERE NOT immediate AND wait_ms IS NOT NULL
        GROUP BY GROUPING SETS ((purgatory), (purgatory, kind)) ORDER BY purgatory, kind NULLS FIRST''',
    "lateness": f'''SELECT purgatory, count(late_ms) AS expired, quantile_cont(late_ms, {quantiles}) AS quantiles
        FROM operations WHERE outcome = 'expired' GROUP BY ALL ORDER BY ALL''',
    "occupancy": '''WITH ends AS (SELECT source, epoch_ms(max(coalesce(finished_at, parked_at))) + 1 AS gone_ms
            FROM journal GROUP BY ALL),
        changes AS (
            SELECT purgatory, at_ms, sum(change) AS change FROM (
                SELECT purgatory, parked_ms AS at_ms, 1 AS change FROM operations WHERE NOT immediate
                UNION ALL
                SELECT purgatory, coalesce(finished_ms, gone_ms), -1 FROM operations JOIN ends USING (source)
                    WHERE NOT immediate
            ) GROUP BY ALL),
        levels AS (SELECT *, sum(change) OVER (PARTITION BY purgatory ORDER BY at_ms) AS level FROM changes)
        SELECT purgatory, at_ms // BUCKET AS bucket, max(level) AS peak FROM levels GROUP BY ALL ORDER BY ALL''',
    "hot_keys": f'''WITH each AS (SELECT purgatory, unnest(keys) AS key, outcome, wait_ms FROM operations),
        hottest AS (SELECT purgatory, key, count(*) AS number FROM each GROUP BY ALL
            ORDER BY number DESC, purgatory, key LIMIT 50)
        SELECT purgatory, key, count(*) AS operations, count(*) FILTER (outcome = 'expired') AS expired,
            quantile_cont(wait_ms, {quantiles}) AS quantiles
        FROM each JOIN hottest USING (purgatory, key) GROUP BY ALL ORDER BY operations DESC, purgatory, key''',
}
first, last = db.execute("SELECT min(parked_ms), max(coalesce(finished_ms, parked_ms)) FROM operations").fetchone()
bucket = next(n for n in (1000, 5000, 15000, 60000, 300000, 900000, 3600000) if (last - first) / n <= 2000)
for name, sql in tables.items():
    db.execute(f"COPY ({sql.replace('BUCKET', str(bucket))}) TO '{out}/{name}.parquet'")
"""


class _Failed(Exception):
    """A command has failed."""


def main() -> int:
    """Measure, and print the figures; the exit status is 1 if the compared figures differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", default="1000000,10000000,50000000", help="sizes, with commas (default: %(default)s)")
    parser.add_argument("--rows-per-file", type=int, default=250_000)
    parser.add_argument("--unique", type=float, default=0.0, help="share of operations that wait on a key of their own")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="make the journals here, and use what is here already")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--replay", action="store_true", help="measure the replay with six settings instead")
    parser.add_argument("--markdown", action="store_true", help="print the table of the documentation")
    options = parser.parse_args()
    if options.replay:
        return _replays([int(part) for part in options.rows.split(",")], options)
    figures = []
    with tempfile.TemporaryDirectory(prefix="purgatory-scale-") as folder:
        for rows in (int(part) for part in options.rows.split(",")):
            figures.append(measure(Path(folder), rows, options.rows_per_file, options.keep, options.unique))
            print(json.dumps(figures[-1]), file=sys.stderr, flush=True)
    if options.markdown:
        print(markdown(figures))
    else:
        show(figures)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if all(figure["same"] for figure in figures) else 1


def measure(
    folder: Path, rows: int, rows_per_file: int, keep: Path | None = None, unique: float = 0.0
) -> dict[str, Any]:
    """Run both reports on one journal; return their seconds and peak megabytes."""
    journal, spark_out, duck_out = _journal(folder, rows, unique, keep), folder / "spark", folder / "duckdb"
    pipeline = [sys.executable, "-m", "purgatory.pipeline"]
    _make(journal, rows, rows_per_file, unique)
    size = sum(file.stat().st_size for file in journal.glob("*.parquet"))
    duck_out.mkdir()
    spark = _run([*pipeline, "report", str(journal), "--out", str(spark_out), "--master", _MASTER])
    duckdb, limit = _with_duckdb(journal, duck_out)
    same = _same(spark_out, duck_out)
    for made in (spark_out, duck_out, *([journal] if keep is None else [])):
        shutil.rmtree(made)
    return {
        "rows": rows,
        "bytes_per_row": size / rows,
        **{f"spark_{name}": value for name, value in spark.items()},
        **{f"duckdb_{name}": value for name, value in duckdb.items()},
        "duckdb_limit": limit,
        "same": same,
    }


def _journal(folder: Path, rows: int, unique: float, keep: Path | None) -> Path:
    if keep is None:
        return folder / "journal"
    return keep / (f"{rows}-unique-{unique:g}" if unique else str(rows))


def _make(journal: Path, rows: int, rows_per_file: int, unique: float = 0.0) -> None:
    # However many rows there are, they lie within one day: more rows mean more operations at once, not a longer span.
    rate = str(max(1_000.0, rows / 20_000))
    knobs = ["--rows", str(rows), "--rate", rate, "--rows-per-file", str(rows_per_file), "--unique", str(unique)]
    if not (journal / "_answers.json").exists():
        made = [sys.executable, "-m", "purgatory.pipeline", "synthesize", str(journal), *knobs]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL)


def _replays(sizes: list[int], options: argparse.Namespace) -> int:
    """Replay a journal of each size with six settings, and print the cost."""
    table = Table(box=SIMPLE_HEAD)
    for head in ("rows", "settings", "s", "CPU s", "MB"):
        table.add_column(head, justify="right")
    figures = []
    for rows in sizes:
        with tempfile.TemporaryDirectory(prefix="purgatory-scale-") as folder:
            journal = _journal(Path(folder), rows, options.unique, options.keep)
            _make(journal, rows, options.rows_per_file, options.unique)
            command = [sys.executable, "-m", "purgatory.pipeline", "replay", str(journal), *_SETTINGS]
            took = _run([*command, "--out", f"{folder}/out", "--master", _MASTER])
        figures.append({"rows": rows, "settings": 6, **took})
        table.add_row(f"{rows:,}", "6", f"{took['s']:.1f}", f"{took['cpu_s']:.1f}", f"{took['mb']:,.0f}")
    Console(width=110).print(table)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def _with_duckdb(journal: Path, out: Path) -> tuple[dict[str, float], str]:
    """Return the cost, and the smallest memory limit with which DuckDB succeeded."""
    for limit in _LIMITS:
        try:
            return _run([sys.executable, "-c", _DUCKDB, str(journal), str(out), limit]), limit
        except _Failed as failed:
            if "OutOfMemory" not in str(failed) or limit == _LIMITS[-1]:
                raise
            print(f"DuckDB: out of memory with {limit}", file=sys.stderr, flush=True)
    raise AssertionError("there is a limit")


def markdown(figures: list[dict[str, Any]]) -> str:
    """Return the figures as the table of docs/pipeline.md, rounded to the digits on which two runs agree."""
    rest = ["CPU seconds", "rows per CPU second", "memory"]
    heads = ["rows", "bytes per row", "Spark: seconds", *rest, "DuckDB: seconds", *rest]
    lines = [heads, ["---:"] * len(heads)]
    for figure in figures:
        cells = [f"{figure['rows']:,}", f"{figure['bytes_per_row']:.1f}"]
        for name in ("spark", "duckdb"):
            seconds, cpu_s, megabytes = (figure[f"{name}_{unit}"] for unit in ("s", "cpu_s", "mb"))
            cells += [_two_digits(seconds), _two_digits(cpu_s), f"{round(figure['rows'] / cpu_s, -3):,.0f}"]
            cells.append(f"{megabytes / 1000:.2f} GB")
        lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _two_digits(value: float) -> str:
    return f"{float(f'{value:.2g}'):g}"


def show(figures: list[dict[str, Any]]) -> None:
    """Print the figures as a table."""
    table = Table(box=SIMPLE_HEAD)
    for head in (
        "rows",
        "bytes/row",
        "Spark s",
        "CPU s",
        "rows/s",
        "MB",
        "DuckDB s",
        "CPU s",
        "rows/s",
        "MB",
        "of",
        "same",
    ):
        table.add_column(head, justify="right")
    for figure in figures:
        cells = [f"{figure['rows']:,}", f"{figure['bytes_per_row']:.1f}"]
        for name in ("spark", "duckdb"):
            seconds = figure[f"{name}_s"]
            cells += [f"{seconds:.1f}", f"{figure[f'{name}_cpu_s']:.1f}"]
            cells += [f"{figure['rows'] / seconds:,.0f}", f"{figure[f'{name}_mb']:,.0f}"]
        table.add_row(*cells, figure["duckdb_limit"], "yes" if figure["same"] else "NO")
    Console(width=110).print(table)


def _run(command: list[str]) -> dict[str, float]:
    """Return seconds, CPU seconds, and the most megabytes that the process and all its descendants held at once."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    most = 0.0
    cpu: dict[int, float] = {}
    ended = threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(_POLL_S):
            most = max(most, _look(process.pid, cpu))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    _, errors = process.communicate()
    seconds = time.perf_counter() - started
    ended.set()
    watcher.join()
    if process.returncode:
        raise _Failed(f"{command[:2]} failed: {errors[-2_000:]}")
    return {"s": seconds, "cpu_s": sum(cpu.values()), "mb": most}


def _look(pid: int, cpu: dict[int, float]) -> float:
    """Return the resident megabytes of a process and all its descendants; store their CPU seconds so far in ``cpu``."""
    kilobytes, waiting = 0, [pid]
    while waiting:
        this = waiting.pop()
        try:
            status = Path(f"/proc/{this}/status").read_text()
            used = Path(f"/proc/{this}/stat").read_text().rpartition(")")[2].split()
            tasks = list(Path(f"/proc/{this}/task").iterdir())
            # A child belongs to the thread that started it.
            waiting += [int(child) for task in tasks for child in (task / "children").read_text().split()]
        except OSError:
            continue  # the process has ended
        cpu[this] = (int(used[11]) + int(used[12])) / _TICKS
        kilobytes += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    return kilobytes / 1024


def _same(spark_out: Path, duck_out: Path) -> bool:
    """Return whether both reports have the same counts, hot keys, and peaks."""

    def rows(out: Path, name: str, *columns: str) -> list[tuple[object, ...]]:
        return [tuple(row.values()) for row in pq.read_table(out / f"{name}.parquet").select(columns).to_pylist()]

    counted = ("purgatory", "kind", "outcome", "operations", "immediate")
    hot = ("purgatory", "key", "operations", "expired")
    if any(rows(spark_out, n, *c) != rows(duck_out, n, *c) for n, c in (("outcomes", counted), ("hot_keys", hot))):
        return False
    peaks: dict[object, int] = {}
    for purgatory, peak in rows(duck_out, "occupancy", "purgatory", "peak"):
        peaks[purgatory] = max(peaks.get(purgatory, 0), int(float(str(peak))))
    found = pq.read_table(spark_out / "peaks.parquet").to_pylist()
    return {row["purgatory"]: row["peak"] for row in found} == peaks


if __name__ == "__main__":
    sys.exit(main())
