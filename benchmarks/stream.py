"""What the streaming job costs: rows per second, state per operation, hot groups, and what that means at scale.

::

    python -m benchmarks.stream            # everything; takes a few minutes
    python -m benchmarks.stream core       # the decisions alone, without Spark
    python -m benchmarks.stream spark      # the whole job on this machine, and the sizing based on its figures
    python -m benchmarks.stream batch      # the same rows in one batch
    python -m benchmarks.stream backlog --rows 2000000    # rows that have piled up, processed in limited batches
    python -m benchmarks.stream sizing --row-us 285 --shard-us 2342 --waiting-us 1.4 --disk-bytes 47  # given figures

Other programs on the machine make wall-clock figures worse than they are, so the CPU time of the JVM and its Python
workers is shown as well, and the sizing is based on it.
"""

import argparse
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from purgatory.pipeline.stream.group import Group, encode_line
from purgatory.pipeline.stream.shard import Shard
from purgatory.pipeline.stream.traces import BEGIN_MS, write_trace

Rows = list[dict[str, Any]]

_KEPT_MS = 3_600_000
_FEW, _MANY = 32, 1_024  # numbers of shards
_MOST_WAITING = 50_000  # operations in a shard; with more, one task would hold a state of several megabytes
_DAY_S = 86_400
_PEAK = 3  # the load at the busiest time of a day, as a multiple of the mean
_TRIGGER_S = 10
_FILE_ROWS = 50_000
_BUSY = 0.5  # how much of a core to use, so that some is left for catching up


def make_rows(operations: int, per_group: int, *, span_ms: int = 60_000, timeout_ms: int = 20_000) -> Rows:
    """Return one park row with one key per operation; half of the operations are signaled, and the others expire."""
    draw = random.Random(1)
    rows: Rows = []
    for number in range(operations):
        group, key = f"group-{number // per_group}", f"key-{number % per_group}"
        ts_ms = BEGIN_MS + draw.randrange(span_ms)
        rows.append(_park(number, group, key, ts_ms, timeout_ms))
        if number % 2:
            at_ms = ts_ms + draw.randrange(1, timeout_ms)
            rows.append({"kind": "signal", "ts_ms": at_ms, "seq": 2 * number + 1, "group": group, "key": key})
    rows.sort(key=lambda row: int(row["ts_ms"]))
    return rows


def _park(number: int, group: str, key: str, ts_ms: int, timeout_ms: int) -> dict[str, Any]:
    row = {"kind": "park", "ts_ms": ts_ms, "seq": 2 * number, "group": group, "op_id": f"operation-{number}"}
    return {**row, "keys": [key], "condition": "count(1)", "timeout_ms": timeout_ms}


# The decisions alone


def core(operations: int, hot: Iterable[int] = (1_000, 10_000, 50_000)) -> None:
    """Measure groups of several sizes, woken once per second of their time, in one process."""
    say("the decisions alone, one process")
    say(f"{'operations a group':>20} {'rows/s':>10} {'us/row':>8} {'us/wake-up':>11} {'bytes/operation':>16}")
    for per_group in (1, 20, 500):
        groups: dict[str, Rows] = {}
        for row in make_rows(operations, per_group):
            groups.setdefault(row["group"], []).append(row)
        began = time.process_time()
        wakes = rows = ended = 0
        sizes: list[float] = []
        for name, own in groups.items():
            done, woken = _live_through(name, own, sizes)
            ended += done
            wakes += woken
            rows += len(own)
        took = time.process_time() - began
        assert ended == operations, f"{operations} operations parked, {ended} ended"
        per_row, per_wake, each = took / rows * 1e6, took / wakes * 1e6, statistics.median(sizes)
        say(f"{per_group:>20} {rows / took:>10,.0f} {per_row:>8.0f} {per_wake:>11.0f} {each:>16.0f}")
    say("\na hot group: all operations wait in one, and a batch brings one signal")
    say(f"{'operations':>20} {'s/batch':>10} {'us/operation':>13} {'state, MB':>10}")
    for waiting in hot:
        took, size = _hot_group(waiting)
        say(f"{waiting:>20,} {took:>10.3f} {took / waiting * 1e6:>13.1f} {size / 1e6:>10.2f}")


def _live_through(name: str, rows: Rows, sizes: list[float]) -> tuple[int, int]:
    """Store and restore the group in every second with events; return the counts of ends and wake-ups."""
    state, clock_ms, ended, wakes, at = ("", ""), 0, 0, 0, 0
    next_ms: int | None = int(rows[0]["ts_ms"])
    while next_ms is not None:
        until_ms = next_ms + 1000
        first = at
        while at < len(rows) and rows[at]["ts_ms"] <= until_ms:
            at += 1
        group = Group(name, clock_ms, *state)
        group.add([encode_line(row["ts_ms"], json.dumps(row)) for row in rows[first:at]])
        ended += len(group.advance(until_ms))
        clock_ms, state, next_ms = group.clock_ms, group.state(), group.next_ms()
        wakes += 1
        if group.live:
            sizes.append(len(state[0]) / group.live)
        if at < len(rows):
            arrives_ms = int(rows[at]["ts_ms"])
            next_ms = arrives_ms if next_ms is None else min(next_ms, arrives_ms)
    return ended, wakes


def _hot_group(waiting: int) -> tuple[float, int]:
    """Return the CPU seconds of one batch, and the number of bytes that are stored."""
    group = Group("hot")
    parks = [_park(number, "hot", f"key-{number}", BEGIN_MS, _KEPT_MS) for number in range(waiting)]
    group.add([encode_line(row["ts_ms"], json.dumps(row)) for row in parks])
    group.advance(BEGIN_MS)
    state = group.state()
    began = time.process_time()
    group = Group("hot", BEGIN_MS, *state)
    group.add([_line({"kind": "signal", "ts_ms": BEGIN_MS + 5, "group": "hot", "key": "key-7"})])
    assert len(group.advance(BEGIN_MS + 10)) == 1
    group.state()
    return time.process_time() - began, len(state[0])


# The whole job


@dataclass
class Measured:
    """The figures for the sizing: the CPU microseconds per row, for each time that a shard is woken, and for each
    operation that then waits in the shard; and the bytes in the checkpoint per waiting operation."""

    row_us: float
    shard_us: float
    waiting_us: float
    disk_bytes: float


def whole_job(operations: int, batches: int) -> Measured:
    """Run the job with Spark on this machine and two task slots."""
    from purgatory.pipeline.spark.session import spark_session

    with tempfile.TemporaryDirectory() as name, spark_session("local[2]", _settings(name)) as spark:
        place = Path(name)
        _run(spark, place / "warm-up", make_rows(1000, 20), 4)
        say("the job on Spark, two task slots")
        say(
            f"{'operations a group':>20} {'shards':>7} {'rows':>9} {'s':>7} {'rows/s':>8} {'CPU s':>7}"
            f" {'CPU us/row':>11} {'rows/s a core':>14} {'s/batch':>8} {'most waiting':>13}"
        )
        costs: list[float] = []
        for per_group, shards in ((1, _FEW), (20, _FEW), (200, _FEW), (1, _MANY)):
            rows = make_rows(operations, per_group)
            before, began = cpu_s(), time.perf_counter()
            lines = _run(spark, place / f"of-{per_group}-in-{shards}", rows, batches, shards=shards)
            took, used = time.perf_counter() - began, cpu_s() - before
            ended = sum(one.outcomes for one in lines)
            assert ended == operations, f"{operations} operations parked, {ended} ended"
            typical, row_us = statistics.median(one.seconds for one in lines), used / len(rows) * 1e6
            say(
                f"{per_group:>20} {shards:>7} {len(rows):>9,} {took:>7.1f} {len(rows) / took:>8,.0f} {used:>7.1f}"
                f" {row_us:>11.0f} {1e6 / row_us:>14,.0f} {typical:>8.2f} {max(one.live for one in lines):>13,}"
            )
            costs.append(row_us)
        # In every batch, something happens in each shard, so the cost of more shards is the cost of waking them.
        shard_us = (costs[-1] - costs[0]) * len(rows) / ((_MANY - _FEW) * len(lines))
        waiting_us = statistics.median(_waiting_us(10_000) for _ in range(9))
        return Measured(costs[0], shard_us, waiting_us, _state_size(spark, place, operations))


def _settings(source: str) -> dict[str, str]:
    """Return the settings of the commands, for two task slots."""
    from purgatory.pipeline.commands.options import local_settings

    return {**local_settings(source, "local[2]", checkpoint=source), "spark.sql.shuffle.partitions": "2"}


def _waiting_us(waiting: int) -> float:
    """Return the CPU microseconds for each operation that waits in a shard while another of its groups is active."""
    shard = Shard()
    shard.advance(
        {f"group-{n}": [_line(_park(n, f"group-{n}", "key", BEGIN_MS, _KEPT_MS))] for n in range(waiting)}, BEGIN_MS
    )
    text = shard.state()
    began = time.process_time()
    for second in range(1, 11):
        shard = Shard(text)
        row = {"kind": "signal", "ts_ms": BEGIN_MS + second, "group": "group-7", "key": "other"}
        shard.advance({"group-7": [_line(row)]}, BEGIN_MS + second)
        text = shard.state()
    assert shard.live == waiting
    return (time.process_time() - began) / 10 / waiting * 1e6


def _line(row: dict[str, Any]) -> str:
    return encode_line(row["ts_ms"], json.dumps(row))


def _run(
    spark: Any, place: Path, rows: Rows, files: int, *, to_the_end: bool = True, shards: int | None = None
) -> list[Any]:
    from purgatory.pipeline.stream.job import BatchProgress, Settings, run

    last_ms = BEGIN_MS + (_KEPT_MS * 30 if to_the_end else 120_000)
    heartbeat = {"kind": "heartbeat", "ts_ms": last_ms, "seq": 0, "group": "-"}
    write_trace([*rows, heartbeat], place / "rows", files)
    lines: list[BatchProgress] = []
    plan = Settings(
        str(place / "rows"), str(place / "out"), place / "checkpoint", delay=1.0, files_per_batch=1, shards=shards
    )
    run(spark, plan, lines.append)
    return lines


def _state_size(spark: Any, place: Path, operations: int) -> float:
    """Print the size of the state while all operations wait; return the bytes per operation in the checkpoint."""
    from pyspark.sql import functions as F  # noqa: N812

    say("\nstate, with all operations waiting")
    say(f"{'operations a group':>20} {'waiting':>9} {'shards':>9} {'bytes held/operation':>21} {'bytes on disk':>14}")
    disk = 0.0
    for per_group in (1, 20):
        spot = place / f"kept-{per_group}"
        rows = [row for row in make_rows(operations, per_group, timeout_ms=_KEPT_MS) if row["kind"] == "park"]
        _run(spark, spot, rows, 1, to_the_end=False)
        state = spark.read.format("statestore").option("stateVarName", "shard").load(str(spot / "checkpoint"))
        length = F.sum(F.length("value.groups") + 24)
        row = state.agg(F.sum("value.live").alias("live"), F.count("*").alias("shards"), length.alias("held")).first()
        assert row.live == operations, f"{row.live} wait of {operations}"
        newest = _newest_version(spot / "checkpoint" / "state")
        held, each = row.held / row.live, newest / row.live
        say(f"{per_group:>20} {row.live:>9,} {row.shards:>9,} {held:>21.0f} {each:>14.0f}")
        disk = max(disk, each)
    return disk


def batch_equivalent(operations: int) -> None:
    """Run the batch equivalent, from files to files, with Spark on this machine and two task slots."""
    from purgatory.pipeline.spark.session import spark_session
    from purgatory.pipeline.stream.batch import process_batch
    from purgatory.pipeline.stream.dataframes import parse_rows
    from purgatory.pipeline.stream.job import read_batch

    with tempfile.TemporaryDirectory() as name, spark_session("local[2]", _settings(name)) as spark:

        def measure(place: Path, rows: Rows) -> float:
            """Return the CPU seconds that the batch takes."""
            write_trace([*rows, {"kind": "heartbeat", "ts_ms": BEGIN_MS + _KEPT_MS, "group": "-"}], place / "rows", 4)
            before = cpu_s()
            process_batch(parse_rows(read_batch(spark, str(place / "rows")))).write.parquet(str(place / "out"))
            used = cpu_s() - before
            ended = spark.read.parquet(str(place / "out")).count()
            parked = sum(row["kind"] == "park" for row in rows)
            assert ended == parked, f"{parked} operations parked, {ended} ended"
            return used

        measure(Path(name) / "warm-up", make_rows(1000, 20))
        say("the batch equivalent on Spark, two task slots")
        say(f"{'operations a group':>20} {'rows':>9} {'CPU s':>7} {'CPU us/row':>11}")
        for per_group in (1, 20, 200):
            rows = make_rows(operations, per_group)
            used = measure(Path(name) / f"of-{per_group}", rows)
            say(f"{per_group:>20} {len(rows):>9,} {used:>7.1f} {used / len(rows) * 1e6:>11.0f}")


def backlog(rows: int, files_per_batch: int) -> None:
    """With Spark in two task slots, process rows that have piled up; each file covers a minute and has 50,000 rows."""
    from purgatory.pipeline.spark.session import spark_session
    from purgatory.pipeline.stream.job import BatchProgress, Settings, run

    with tempfile.TemporaryDirectory() as name, spark_session("local[2]", _settings(name)) as spark:
        place, files = Path(name), max(1, round(rows / _FILE_ROWS))
        minute = make_rows(_FILE_ROWS * 2 // 3, 20)
        for number in range(files):
            later = [
                {**row, "ts_ms": row["ts_ms"] + 60_000 * number, "group": f"{row['group']}-{number}"} for row in minute
            ]
            if number == files - 1:
                later.append({"kind": "heartbeat", "ts_ms": BEGIN_MS + 2 * _KEPT_MS + 60_000 * files, "group": "-"})
            write_trace(later, place / "one", 1)
            os.utime(place / "one" / "rows-0000.parquet", (BEGIN_MS // 1000 + number,) * 2)
            (place / "rows").mkdir(exist_ok=True)
            (place / "one" / "rows-0000.parquet").rename(place / "rows" / f"rows-{number:04}.parquet")
        say(f"a backlog of {files * len(minute):,} rows, two task slots, {files_per_batch} files in a batch")
        lines: list[BatchProgress] = []

        def show(line: BatchProgress) -> None:
            lines.append(line)
            say(str(line))

        before, began = cpu_s(), time.perf_counter()
        out, checkpoint = str(place / "out"), place / "checkpoint"
        run(spark, Settings(str(place / "rows"), out, checkpoint, delay=1.0, files_per_batch=files_per_batch), show)
        took, used, done = time.perf_counter() - began, cpu_s() - before, sum(line.rows for line in lines)
        parked = files * sum(row["kind"] == "park" for row in minute)
        ended, dropped = sum(line.outcomes for line in lines), sum(line.dropped for line in lines)
        assert (ended, dropped) == (parked, 0), f"{parked} operations parked, {ended} ended, {dropped} rows dropped"
        most = max(line.rows for line in lines)
        say(
            f"{done:,} rows in {took:.0f} s, {used:.0f} CPU s: {done / took:,.0f} rows/s, {used / done * 1e6:.0f} CPU"
            f" us/row; at most {most:,} rows in a batch, {max(line.live for line in lines):,} operations waiting"
        )


def _newest_version(state: Path) -> int:
    """Return the total size, in bytes, of the largest change log of each partition.

    The largest change log comes from the batch that parked all operations.
    """
    total = 0
    for partition in (path.parent for path in state.rglob("1.changelog")):
        total += max(path.stat().st_size for path in partition.glob("*.changelog"))
    return total


def cpu_s() -> float:
    """Return the CPU seconds of this process and all its descendants, such as the JVM, or 0 if not on Linux."""
    proc = Path("/proc")
    if not proc.is_dir():
        return 0.0
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # the process has ended in the meantime
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            used[int(entry.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    total, todo = 0.0, [os.getpid()]
    while todo:
        pid = todo.pop()
        total += used.get(pid, 0.0)
        todo += children.get(pid, [])
    return total


# At scale


def sizing(measured: Measured) -> None:
    """Print what the figures mean for 10^6, 10^8, and 10^9 operations per day with two rows each."""
    say(
        f"\nat scale, from {measured.row_us:.0f} us of CPU a row, {measured.shard_us:.0f} us a wake-up of a shard,"
        f" {measured.waiting_us:.1f} us for each that waits in it,\n{measured.disk_bytes:.0f} bytes an operation:"
        f" a batch every {_TRIGGER_S} s, two rows an operation,\n"
        f"the busiest time {_PEAK} x the mean, cores {_BUSY:.0%} busy"
    )
    say(
        f"{'operations a day':>17} {'wait':>6} {'rows/s peak':>12} {'waiting':>14} {'shards':>11} {'us/row':>7}"
        f" {'cores':>7} {'executors of 4':>15} {'state':>8}"
    )
    for operations in (10**6, 10**8, 10**9):
        for label, wait_s in (("30 s", 30), ("1 h", 3_600), ("1 day", _DAY_S)):
            rate = 2 * operations * _PEAK / _DAY_S
            waiting = min(operations * _PEAK / _DAY_S * wait_s, float(operations))
            row_us, shards = min(
                (_row_us(measured, rate, waiting, 2**power), 2**power)
                for power in range(5, 26)
                if waiting / 2**power <= _MOST_WAITING
            )
            cores = max(1, -(-rate * row_us / 1e6 // _BUSY))
            say(
                f"{operations:>17,} {label:>6} {rate:>12,.0f} {waiting:>14,.0f} {shards:>11,} {row_us:>7,.0f}"
                f" {cores:>7,.0f} {-(-cores // 4):>15,.0f} {_bytes(waiting * measured.disk_bytes):>8}"
            )


def _row_us(measured: Measured, rate: float, waiting: float, shards: int) -> float:
    """Return the CPU time per row with ``shards`` shards: fewer shards wake less often, but each holds more state."""
    rows = rate * _TRIGGER_S
    woken = shards * -math.expm1(-rows / shards)  # the shards that receive rows in a batch
    return measured.row_us + woken * (measured.shard_us + measured.waiting_us * waiting / shards) / rows


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def say(text: str) -> None:
    """Print the text immediately."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stream", description="What the streaming job costs.")
    parser.add_argument(
        "part", nargs="?", choices=("all", "core", "spark", "batch", "backlog", "sizing"), default="all"
    )
    parser.add_argument("--operations", type=int, default=40_000, help="parked per measurement (default 40,000)")
    parser.add_argument("--batches", type=int, default=8, help="in which their rows come (default 8)")
    parser.add_argument("--rows", type=int, default=2_000_000, help="of the backlog (default 2,000,000)")
    parser.add_argument("--files-per-batch", type=int, default=4, help="of the backlog (default 4)")
    for name, meaning in (
        ("row-us", "CPU microseconds a row"),
        ("shard-us", "and each time a shard is woken"),
        ("waiting-us", "and for each operation that waits in it then"),
        ("disk-bytes", "state of an operation"),
    ):
        parser.add_argument(f"--{name}", type=float, help=f"sizing: {meaning}")
    arguments = parser.parse_args()
    if arguments.part in ("all", "core"):
        core(min(arguments.operations, 10_000))
    if arguments.part in ("all", "spark"):
        say("")
        sizing(whole_job(arguments.operations, arguments.batches))
    if arguments.part in ("all", "batch"):
        say("")
        batch_equivalent(arguments.operations)
    if arguments.part == "backlog":
        backlog(arguments.rows, arguments.files_per_batch)
    if arguments.part == "sizing":
        given = (arguments.row_us, arguments.shard_us, arguments.waiting_us, arguments.disk_bytes)
        if None in given:
            parser.error("sizing needs all four figures: the part 'spark' measures them")
        sizing(Measured(*given))


if __name__ == "__main__":
    main()
