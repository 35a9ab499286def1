"""The job on a real Spark: several files, several batches, a kill, late rows."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyspark", "4.2")

import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812

from purgatory.pipeline.output.directory import BadOutput
from purgatory.pipeline.stream import job
from purgatory.pipeline.stream.batch import process_batch
from purgatory.pipeline.stream.dataframes import ROW_COLUMNS, dead_letters, outcomes, parse_rows
from purgatory.pipeline.stream.job import BatchProgress, LateRows, Settings, StreamFailed, read_batch, run
from purgatory.pipeline.stream.output_records import OUTPUT
from purgatory.pipeline.stream.processor import STATE_NAME
from purgatory.pipeline.stream.sinks import BatchCounts, DirectorySink, KafkaSink, read_records
from purgatory.pipeline.stream.traces import BEGIN_MS, disordered, trace, write_trace
from tests.pipeline.settings import QUICK_JAVA

from .engines import End, Rows, ends_of_records, in_one_go

pytestmark = pytest.mark.timeout(300)  # a JVM starts, on a machine that may be busy

DELAY = 3.0


def settings(tmp_path: Path, **more: Any) -> Settings:
    return Settings(
        source=str(tmp_path / "rows"), out=str(tmp_path / "out"), checkpoint=tmp_path / "checkpoint",
        delay=DELAY, files_per_batch=1, **more,
    )  # fmt: skip


def ends_in(spark: Any, directory: Path) -> list[End]:
    return ends_of_records((row.record, *row[0:7]) for row in read_records(spark, directory).collect())


def kept_state(spark: Any, checkpoint: Path) -> int:
    return int(spark.read.format("statestore").option("stateVarName", STATE_NAME).load(str(checkpoint)).count())


def arriving(rows: Rows, seed: int) -> Rows:
    return disordered(rows[:-1], int(DELAY * 1000), seed) + rows[-1:]


def test_a_stream_of_several_batches_the_batch_equivalent_and_the_core_agree(spark: Any, tmp_path: Path) -> None:
    """Parquet files in disorder, a batch each, rows of every kind and bad ones: the ends of the library, row for row;
    nothing is kept at the end, and the lines of progress add up."""
    rows = trace(7, 60, every_kind=True)
    bad: Rows = [
        {"kind": "park", "ts_ms": None, "group": "group-7-1", "op_id": "timeless"},
        {"kind": "sign", "ts_ms": BEGIN_MS + 5000, "group": "group-7-1", "key": "k0"},
        {"kind": "signal", "ts_ms": BEGIN_MS + 5000, "key": "k0"},
        {"kind": "heartbeat", "ts_ms": 10**15 // 5, "group": "-"},
        {"kind": "extend", "ts_ms": BEGIN_MS + 5000, "group": "group-7-1", "op_id": "x", "timeout_ms": -1},
        {"kind": "fail", "ts_ms": BEGIN_MS + 5000, "group": "group-7-1", "key": "k0"},
    ]
    arrived = arriving(rows, 7)
    write_trace(arrived[:100] + bad + arrived[100:], tmp_path / "rows", files=3)
    lines: list[BatchProgress] = []
    assert run(spark, settings(tmp_path), lines.append) == 0
    expected = in_one_go(rows)
    assert len(expected) == 360
    assert ends_in(spark, tmp_path / "out") == expected
    assert kept_state(spark, tmp_path / "checkpoint") == 0
    assert [line.batch_id for line in lines] == list(range(len(lines)))
    assert sum(line.rows for line in lines) == len(rows) + len(bad)
    assert (sum(line.outcomes for line in lines), sum(line.dead_letters for line in lines)) == (360, 6)
    assert max(line.live for line in lines) > 20
    assert lines[-1].live == 0
    assert max(line.lag or 0.0 for line in lines[:3]) > DELAY
    told = dead_letters(read_records(spark, tmp_path / "out")).select("reason").collect()
    assert sorted(row.reason for row in told) == [
        "error must be a string, got None",
        "group is missing",
        "kind must be one of park, extend, signal, cancel, fail, heartbeat, got 'sign'",
        "the row must be a JSON object with an int ts_ms",
        "timeout_ms must be at least 0, got -1",
        "ts_ms is more than 86400 s ahead of the clock",
    ]
    batch = parse_rows(read_batch(spark, str(tmp_path / "rows")), 86_400.0)
    records = process_batch(batch)
    assert ends_of_records(records.collect()) == expected
    (first,) = outcomes(records).orderBy("op_id").limit(1).withColumn("ms", F.unix_millis("parked_at")).collect()
    assert (first.op_id, first.ms) == next((end[1], end[3]) for end in sorted(expected, key=lambda end: end[1]))


@pytest.mark.slow
def test_a_path_of_a_source_is_no_pattern(spark: Any, tmp_path: Path) -> None:
    """Spark's readers would take it for one, and read the rows beside it; the output is no pattern either."""
    rows = trace(3, 5)
    for directory, kept in (("rows[1]", rows), ("rows1", trace(4, 1))):
        write_trace(kept, tmp_path / directory, files=1)
        (tmp_path / "json" / directory).mkdir(parents=True)
        (tmp_path / "json" / directory / "a.json").write_text("\n".join(map(json.dumps, kept)))
    places = {"source": str(tmp_path / "rows[1]"), "out": str(tmp_path / "out[1]"), "checkpoint": tmp_path / "state"}
    assert run(spark, Settings(**places, delay=DELAY), lambda _: None) == 0
    assert ends_in(spark, tmp_path / "out[1]") == in_one_go(rows)
    for source, form in ((tmp_path / "rows[1]", "parquet"), (tmp_path / "json" / "rows[1]", "json")):
        assert read_batch(spark, str(source), form).count() == len(rows)


@pytest.mark.slow
def test_a_backlog_is_worked_off_in_batches_of_limited_size(spark: Any, tmp_path: Path) -> None:
    """No batch has more files than the limit, whatever has piled up before the job starts or while it is down; the
    ends are those of the rows in one go."""
    rows = arriving(trace(5, 60), 5)
    write_trace(rows, tmp_path / "all", files=9)
    files = sorted((tmp_path / "all").glob("*.parquet"))
    sizes = [pq.read_metadata(file).num_rows for file in files]
    (tmp_path / "rows").mkdir()
    lines: list[BatchProgress] = []
    for piled in (files[:4], files[4:]):
        for file in piled:
            file.rename(tmp_path / "rows" / file.name)
        assert run(spark, replace(settings(tmp_path), files_per_batch=2), lines.append) == 0
    counts = [line.rows for line in lines if line.rows]
    assert counts == [sum(sizes[at : at + 2]) for at in range(0, 8, 2)] + [sizes[8]]
    assert sum(line.dropped for line in lines) == 0
    assert ends_in(spark, tmp_path / "out") == in_one_go(rows)


@pytest.mark.slow
def test_a_batch_that_was_written_and_not_marked_as_done_is_done_again(spark: Any, tmp_path: Path) -> None:
    """A crash between the two writes the same batch twice; each outcome is there once."""
    rows = trace(3, 10)
    write_trace(rows, tmp_path / "rows", files=1)
    run(spark, settings(tmp_path), print)
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    for mark in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        mark.unlink()
    lines: list[BatchProgress] = []
    run(spark, settings(tmp_path), lines.append)
    assert [line.batch_id for line in lines] == [int(commits[-1].name)]
    assert lines[0].outcomes > 0
    assert ends_in(spark, tmp_path / "out") == in_one_go(rows)


@pytest.mark.slow
def test_two_jobs_that_write_the_same_batch_write_each_outcome_once(spark: Any, tmp_path: Path) -> None:
    """A job that is started again while the earlier one still runs repeats its batch, and Spark stops one of them only
    at the end of the batch.  Their files do not mix, whichever job is first; one that comes later still is refused."""
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"

    def records(delay: float) -> Any:
        def slowly(batches):  # type: ignore[no-untyped-def]
            for batch in batches:
                time.sleep(delay)
                yield batch

        rows = spark.range(0, 100, 1, 4).mapInArrow(slowly, "id long")
        values = {"record": "'outcome'", "`group`": "'g'", "op_id": "id", "outcome": "'completed'", "parked_ms": "id"}
        columns = [column.split() for column in OUTPUT.split(", ")]
        return rows.selectExpr(*[f"cast({values.get(name, 'null')} as {kind}) {name}" for name, kind in columns])

    def write(wait: float, delay: float) -> BatchCounts:
        time.sleep(wait)
        return DirectorySink(out, checkpoint).write(records(delay), 5)

    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(write, 0.0, 0.8), threads.submit(write, 0.5, 0.3)]
    assert [job.result() for job in both] == [BatchCounts(100, 0, -100)] * 2
    found = [row.op_id for row in read_records(spark, out).collect()]
    assert sorted(map(int, found)) == list(range(100))
    assert pq.read_table(out).num_rows == 100
    (checkpoint / "commits").mkdir(parents=True)
    (checkpoint / "commits" / "5").touch()
    with pytest.raises(BadOutput, match="already has the batch 5 of another job"):
        write(0.0, 0.0)
    DirectorySink(out, checkpoint).write(records(0.0), 6)
    assert sorted(path.name for path in out.glob("batch=*")) == ["batch=000000005", "batch=000000006"]
    assert list((out / ".unfinished").iterdir()) == []


@pytest.mark.slow
def test_a_file_is_read_however_old_it_is(spark: Any, tmp_path: Path) -> None:
    """Spark's default is to ignore a file that is a week older than the newest one it has seen, without a word."""
    write_json(tmp_path / "rows", "1.json", [park(BEGIN_MS, "first")])
    run(spark, settings(tmp_path, file_format="json"), print)
    late = [park(BEGIN_MS, "old"), {"kind": "heartbeat", "ts_ms": BEGIN_MS + 1, "group": "-"}]
    write_json(tmp_path / "rows", "2.json", late)
    os.utime(tmp_path / "rows" / "2.json", (1e9, 1e9))
    lines: list[BatchProgress] = []
    run(spark, settings(tmp_path, file_format="json"), lines.append)
    assert sum(line.rows for line in lines) == 2


@pytest.mark.slow
def test_a_checkpoint_and_a_source_of_an_earlier_version_are_continued(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files without the column ``error`` were read with a schema that lacks it; later files in the same directory have
    it.  The outcomes are those of all rows."""
    rows = trace(13, 30, every_kind=True)
    second = next(number for number, row in enumerate(rows) if row["ts_ms"] > BEGIN_MS + 10_000)
    begin = [row for row in rows[:second] if row["kind"] in ("park", "signal")]
    write_trace(begin, tmp_path / "rows", files=1)
    (file,) = (tmp_path / "rows").iterdir()
    pq.write_table(pq.read_table(file).drop_columns("error"), file)
    os.utime(file, (1e9, 1e9))  # older than the later file, or Spark would ignore that one
    lines: list[BatchProgress] = []
    with monkeypatch.context() as earlier:
        earlier.setattr(job, "ROW_COLUMNS", ROW_COLUMNS.removesuffix(", error STRING"))
        run(spark, settings(tmp_path), lines.append)
    assert lines[-1].live > 10, "operations of the first run wait in its checkpoint"
    write_trace(rows[second:], tmp_path / "later", files=1)
    (tmp_path / "later" / file.name).rename(tmp_path / "rows" / "later.parquet")
    run(spark, settings(tmp_path), print)
    expected = in_one_go(begin + rows[second:])
    assert ends_in(spark, tmp_path / "out") == expected
    assert ends_of_records(process_batch(parse_rows(read_batch(spark, str(tmp_path / "rows")))).collect()) == expected


def write_json(directory: Path, name: str, rows: Rows) -> None:
    directory.mkdir(exist_ok=True)
    hidden = directory / f".{name}"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    hidden.rename(directory / name)


def park(ts_ms: int, op_id: str, **more: Any) -> dict[str, Any]:
    row = {"kind": "park", "ts_ms": ts_ms, "group": "g", "op_id": op_id, "keys": ["k"], "condition": "count(1)"}
    return {**row, **more}


@pytest.mark.slow
def test_rows_whose_group_is_no_text_are_dead_letters(spark: Any, tmp_path: Path) -> None:
    """Spark reads half a surrogate pair as a question mark, and other JSON as its text: such rows do not mix with those
    of the group of that name, in the stream as in the batch equivalent."""
    good = [park(BEGIN_MS, "a", group="?"), park(BEGIN_MS, "b", group="7")]
    bad = [park(BEGIN_MS, "a", group="\ud800"), park(BEGIN_MS, "b", group=7), park(BEGIN_MS, "c", group=["x"])]
    bad += [{"kind": "cancel", "ts_ms": BEGIN_MS + 1, "group": "\udc00", "op_id": "a"}]
    rest = [{"kind": "signal", "ts_ms": BEGIN_MS + 2, "group": name, "key": "k"} for name in ("?", "7")]
    write_json(tmp_path / "rows", "0.json", [*good, *bad, *rest, {"kind": "heartbeat", "ts_ms": BEGIN_MS + 10**6}])
    expected = in_one_go(good + rest)
    assert [end[:3] for end in expected] == [("7", "b", "completed"), ("?", "a", "completed")]
    reasons = [
        "group must be a string of valid Unicode, got '\\ud800'",
        "group must be a string of valid Unicode, got '\\udc00'",
        "group must be a string, got 7",
        "group must be a string, got ['x']",
    ]
    run(spark, settings(tmp_path, file_format="json"), print)
    written = read_records(spark, tmp_path / "out")
    assert ends_in(spark, tmp_path / "out") == expected
    assert sorted(row.reason for row in dead_letters(written).collect()) == sorted(reasons)
    records = process_batch(parse_rows(read_batch(spark, str(tmp_path / "rows"), "json"))).collect()
    assert ends_of_records(records) == expected
    assert sorted(row.error for row in records if row.record == "dead") == sorted(reasons)


@pytest.mark.slow
def test_rows_that_are_not_utf_8_are_dead_letters(spark: Any, tmp_path: Path) -> None:
    """Spark keeps the bytes of a line as they are, and Python could not decode them: each such line would have stopped
    the job, again after every restart."""
    good = [park(BEGIN_MS, "a"), {"kind": "signal", "ts_ms": BEGIN_MS + 2, "group": "g", "key": "k"}]
    heartbeat = {"kind": "heartbeat", "ts_ms": BEGIN_MS + 10**6}
    lines = [json.dumps(row).encode() for row in (*good, heartbeat)]
    lines += [json.dumps(park(BEGIN_MS, "b", group="café"), ensure_ascii=False).encode("latin-1")]
    lines += [json.dumps(heartbeat).encode()[:-1] + b', "note": "\xff"}', b"\xff\xfe{}"]
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "0.json").write_bytes(b"\n".join(lines))
    texts = sorted(line.decode(errors="replace") for line in lines[3:])
    run(spark, settings(tmp_path, file_format="json"), print)
    assert ends_in(spark, tmp_path / "out") == in_one_go(good)
    written = dead_letters(read_records(spark, tmp_path / "out")).collect()
    assert sorted((row.reason, row.text) for row in written) == [
        ("the row must be valid UTF-8", text) for text in texts
    ]
    records = process_batch(parse_rows(read_batch(spark, str(tmp_path / "rows"), "json"))).collect()
    assert ends_of_records(records) == in_one_go(good)
    assert sorted(row.text for row in records if row.record == "dead") == texts


def late_files(directory: Path) -> None:
    """Three files: the second ends the operation of the first, the third comes much too late and is late itself."""
    write_json(directory, "0.json", [park(BEGIN_MS, "in time", timeout_ms=1000)])
    for number in (1, 2):
        heartbeat = {"kind": "heartbeat", "ts_ms": BEGIN_MS + number * 100_000, "group": "-"}
        write_json(directory, f"{number}.json", [heartbeat])
        os.utime(directory / f"{number}.json", (2e9, 2e9 + number))
    write_json(directory, "3.json", [park(BEGIN_MS + 1, "too late", timeout_ms=1000)])
    os.utime(directory / "0.json", (1e9, 1e9))
    os.utime(directory / "3.json", (3e9, 3e9))


@pytest.mark.slow
def test_rows_beyond_the_delay_are_counted_and_the_job_stops_if_told_to(spark: Any, tmp_path: Path) -> None:
    """A dropped row is in the line of its batch and in what is returned; with fail_on_late the job ends with it."""
    late_files(tmp_path / "rows")
    lines: list[BatchProgress] = []
    assert run(spark, settings(tmp_path, file_format="json"), lines.append) == 1
    assert [line.dropped for line in lines if line.dropped] == [1]
    assert [end[1] for end in ends_in(spark, tmp_path / "out")] == ["in time"]
    strict = Settings(
        source=str(tmp_path / "rows"), out=str(tmp_path / "strict"), checkpoint=tmp_path / "strict-checkpoint",
        file_format="json", delay=DELAY, files_per_batch=1, fail_on_late=True,
    )  # fmt: skip
    with pytest.raises(LateRows, match="1 rows came more than 3 s late and were dropped"):
        run(spark, strict, lines.append)


@pytest.mark.slow
def test_a_batch_that_cannot_be_written_names_the_cause(spark: Any, tmp_path: Path) -> None:
    """In a line: Spark's own error ends where the traceback of the batch begins."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".unfinished").write_text("not a folder")
    late_files(tmp_path / "rows")
    with pytest.raises(StreamFailed) as caught:
        run(spark, settings(tmp_path, file_format="json"), print)
    assert re.fullmatch(r"batch 0 failed: \S+: .* not a directory: file:\S+", str(caught.value))


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "pattern"), [("state", "*.changelog"), (".", "metadata")])
def test_a_checkpoint_that_is_not_complete_is_named(spark: Any, tmp_path: Path, folder: str, pattern: str) -> None:
    """For example, one that was copied while a job wrote to it: one line with the cause."""
    late_files(tmp_path / "rows")
    plan = settings(tmp_path, file_format="json")
    run(spark, plan, print)
    damaged = [*(tmp_path / "checkpoint" / folder).rglob(pattern)]
    assert damaged
    for file in damaged:
        if folder == "state":
            file.unlink()
        else:
            file.write_text("nothing")
            (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    with pytest.raises(StreamFailed) as caught:
        run(spark, plan, print)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"the stream cannot start from the checkpoint {plan.checkpoint}: ")


@pytest.mark.slow
def test_results_of_another_run_are_not_written_over(spark: Any, tmp_path: Path) -> None:
    """A new checkpoint with an old output directory is refused before anything happens."""
    (tmp_path / "out" / "batch=000000000").mkdir(parents=True)
    (tmp_path / "rows").mkdir()
    with pytest.raises(ValueError, match="holds the batches of another run"):
        run(spark, settings(tmp_path), print)
    with pytest.raises(ValueError, match="cannot be imported"):
        run(spark, settings(tmp_path, modules=("no_such_module_anywhere",)), print)


@pytest.fixture
def no_added_jars(spark: Any) -> Iterator[None]:
    """Within the test, Spark finds no data source in a jar that other tests have added to the one JVM."""
    thread = spark._jvm.java.lang.Thread.currentThread()
    loader = thread.getContextClassLoader()
    thread.setContextClassLoader(spark._jvm.java.lang.ClassLoader.getSystemClassLoader())
    yield
    thread.setContextClassLoader(loader)


@pytest.mark.slow
@pytest.mark.usefixtures("no_added_jars")
def test_without_the_connector_kafka_is_refused_in_words(spark: Any, tmp_path: Path) -> None:
    """Where the cluster has no Kafka connector the job says so; a sink without a topic is refused before."""
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "rows"}
    plan = Settings(source="kafka", out=str(tmp_path / "out"), checkpoint=tmp_path / "c", source_options=options)
    with pytest.raises(StreamFailed, match="Failed to find data source: kafka"):
        run(spark, plan, print)
    with pytest.raises(ValueError, match="topic="):
        KafkaSink({})


@pytest.mark.slow
def test_the_messages_for_kafka_have_the_group_as_their_key(spark: Any) -> None:
    """Outcomes go to the topic, dead letters to the one beside it, each as a JSON object, the count to neither."""
    schema = (
        "record STRING, group STRING, op_id STRING, outcome STRING, parked_ms LONG, finished_ms LONG, deadline_ms LONG,"
        " error STRING, text STRING, parked INT"
    )
    rows: list[tuple[Any, ...]] = [
        ("outcome", "g", "a", "expired", 1, 2, 2, None, None, None),
        ("dead", "h", None, None, None, None, None, "why", "{}", None),
        ("parked", "g", None, None, None, None, None, None, None, 1),
    ]
    sink = KafkaSink({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "ends"})
    messages = sink.messages(spark.createDataFrame(rows, schema)).collect()
    sent = {row.topic: (row.key, json.loads(row.value)) for row in messages}
    assert sent == {
        "ends": ("g", {
            "group": "g", "op_id": "a", "outcome": "expired", "parked_at": "1970-01-01T00:00:00.001Z",
            "finished_at": "1970-01-01T00:00:00.002Z", "deadline": "1970-01-01T00:00:00.002Z",
        }),
        "ends.dead": ("h", {"group": "h", "reason": "why", "text": "{}"}),
    }  # fmt: skip


def start_and_kill(command: list[str], seen: Callable[[str], bool]) -> str:
    """Run the command in a process group of its own, kill all of it once a line of its output is as wanted, and return
    what it has written to standard error."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True, env=environment
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if seen(line):
                    break
            else:
                errors.seek(0)
                pytest.fail(f"it ended before it could be killed: {errors.read()}")
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
        errors.seek(0)
        return errors.read()


class KilledJob(NamedTuple):
    """A job that was killed: its rows and its directories, and what it wrote to standard error."""

    rows: Rows
    where: Path
    printed: str


def kill_a_job(where: Path) -> KilledJob:
    """Run a job in a process of its own, and kill it in the middle of a batch."""
    rows = trace(11, 40, every_kind=True)
    write_trace(arriving(rows, 11), where / "rows", files=5)
    command = [sys.executable, "-m", "purgatory.pipeline", "stream", "--delay", str(DELAY), "--files-per-batch", "1"]
    command += ["--master", "local[1]"]
    quick = f"spark.driver.defaultJavaOptions={QUICK_JAVA}"
    for setting in ("spark.sql.shuffle.partitions=1", "spark.sql.codegen.wholeStage=false", quick):
        command += ["--conf", setting]  # a second Java has to start for this: let it do little
    for name, folder in (("--source", "rows"), ("--out", "out"), ("--checkpoint", "checkpoint")):
        command += [name, str(where / folder)]
    return KilledJob(rows, where, start_and_kill(command, lambda line: re.match(r"batch +1 ", line) is not None))


@pytest.fixture(scope="module", autouse=True)
def killing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Future[KilledJob]]:
    """The job that is killed runs beside the other tests of this file, if its own test is to run at all."""
    wanted = any(item.name == test_a_killed_job_goes_on_where_it_was.__name__ for item in request.session.items)
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(kill_a_job, tmp_path_factory.mktemp("killed")) if wanted else Future()


@pytest.mark.slow
def test_a_killed_job_goes_on_where_it_was(spark: Any, killing: Future[KilledJob]) -> None:
    """SIGKILL in the middle of a batch; started again on its checkpoint, it gives every outcome once."""
    rows, where, printed = killing.result()
    assert printed == "", "Spark warns neither of a new shard nor of a timer, and prints no progress of its own"
    before = len(ends_in(spark, where / "out"))
    lines: list[BatchProgress] = []
    run(spark, settings(where), lines.append)
    assert 0 < before < 240
    assert lines[0].batch_id >= 2
    assert ends_in(spark, where / "out") == in_one_go(rows)
    assert lines[-1].live == 0, "it has counted on from what waited in the checkpoint"
    assert kept_state(spark, where / "checkpoint") == 0


@pytest.mark.slow
def test_the_checkpoint_of_another_job_is_refused(spark: Any, tmp_path: Path) -> None:
    """Its batches would replace those of the output that has the same numbers.  Also without the location, as earlier
    releases left it."""
    for name in ("one", "two"):
        write_trace(trace(3, 5), tmp_path / name / "rows", files=1)
        run(spark, settings(tmp_path / name), print)
    before = ends_in(spark, tmp_path / "one" / "out")
    mixed = replace(settings(tmp_path / "one"), checkpoint=tmp_path / "two" / "checkpoint")
    with pytest.raises(ValueError, match=f"out must be {tmp_path}/two/out, as when .* got {tmp_path}/one/out"):
        run(spark, mixed, print)
    assert ends_in(spark, tmp_path / "one" / "out") == before
    (tmp_path / "two" / "checkpoint" / "out").unlink()
    (tmp_path / "one" / "out" / "batch=000000099").mkdir()
    with pytest.raises(ValueError, match=r"holds a batch 99, and .* is not its checkpoint"):
        run(spark, mixed, print)
    run(spark, settings(tmp_path / "two"), print)  # of an earlier release
    assert (tmp_path / "two" / "checkpoint" / "out").read_text() == f"{tmp_path}/two/out\n"
