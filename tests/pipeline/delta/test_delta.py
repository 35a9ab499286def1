"""The program of the page that writes outcomes and dead letters into Delta tables, on the Spark that Delta needs."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from purgatory.pipeline.__main__ import main
from purgatory.pipeline.lake import load_journal
from purgatory.pipeline.recipe import Recipe
from purgatory.pipeline.report import compute
from purgatory.pipeline.spark.session import spark_session
from purgatory.pipeline.stream.traces import BEGIN_MS, trace, write_trace
from purgatory.pipeline.synthetic_journal import generate
from tests.parts import missing
from tests.pipeline.delta.jars import DELTA, SPARK, delta_jars
from tests.pipeline.settings import QUICK_JAVA
from tests.pipeline.stream.engines import in_one_go

if not pyspark.__version__.startswith(f"{SPARK}."):
    pytest.skip(f"Delta Lake needs Spark {SPARK}, got {pyspark.__version__}", allow_module_level=True)

pytestmark = pytest.mark.timeout(300)  # a JVM starts, on a machine that may be busy

PAGE = Path(__file__).parents[3] / "docs" / "streaming.md"
SECTION = PAGE.read_text(encoding="utf-8").partition("## Delta Lake\n")[2].partition("\n## ")[0]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """A session with the settings of the page's command, and the jars that the page names."""
    (command,) = re.findall(r"^\$ spark-submit (.*)$", SECTION.replace("\\\n", " "), re.MULTILINE)
    words = shlex.split(command)
    assert words[words.index("--jars") + 1] == "$jars"
    assert all(f"`{jar}`" in SECTION for jar in DELTA)
    settings = dict(words[number + 1].split("=", 1) for number, word in enumerate(words) if word == "--conf")
    settings |= {
        "spark.jars": delta_jars(),
        "spark.driver.defaultJavaOptions": QUICK_JAVA,
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.codegen.wholeStage": "false",  # small queries: compiling them takes longest
    }
    if SparkSession.getActiveSession() is not None:
        missing("Spark is already running without Delta Lake: run these tests alone")
    with spark_session("local[2]", settings) as session:
        yield session


def log(table: Path) -> list[dict[str, Any]]:
    """Return the actions of all commits in the log of a Delta table, in order."""
    commits = sorted((table / "_delta_log").glob("*.json"))
    return [json.loads(line) for commit in commits for line in commit.read_text().splitlines()]


def transactions(table: Path) -> list[tuple[str, int]]:
    """Return the application and the version of each commit, in order."""
    return [(action["txn"]["appId"], action["txn"]["version"]) for action in log(table) if "txn" in action]


def forget_last_commit(checkpoint: Path) -> int:
    """Remove the mark that says that the last batch is done, and return the number of that batch."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda mark: int(mark.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink()
    return int(last.name)


def test_a_repeated_batch_changes_neither_table(spark: Any, tmp_path: Path) -> None:
    """The job fails between the two tables, and later after both but before its checkpoint has the commit.  Each time
    it writes the batch again, and each table has every row of the ordinary output once."""
    rows = trace(3, 10, every_kind=True)
    bad = {"kind": "sign", "ts_ms": BEGIN_MS + 5000, "group": "group-3-1", "key": "k0"}
    write_trace([*rows[:50], bad, *rows[50:]], tmp_path / "rows", files=1)
    (program,) = re.findall(r"```py\n(.*?)```", SECTION, re.DOTALL)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(program, str(PAGE), "exec"), names)
    lake, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"
    outcomes, dead_letters = lake / "outcomes", lake / "dead_letters"
    written: list[int] = []
    write_batch, choose = names["write_batch"], names["dead_letters"]

    def counting(directory: str, records: Any, batch_id: int) -> None:
        written.append(batch_id)
        write_batch(directory, records, batch_id)

    def failing(records: Any) -> Any:
        if len(written) == 2:
            raise RuntimeError("no power")
        return choose(records)

    def run() -> str:
        query = names["start"](spark, str(tmp_path / "rows"), str(lake), str(checkpoint))
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return str(query.id)

    names |= {"write_batch": counting, "dead_letters": failing}
    with pytest.raises(StreamingQueryException, match="no power"):
        run()
    assert [version for _, version in transactions(outcomes)] == [0, 1], "one table has the batch that failed"
    assert [version for _, version in transactions(dead_letters)] == [0], "and the other one does not"

    query = run()
    assert written[:3] == [0, 1, 1], "the batch is written again"
    batches = list(range(written[-1] + 1))
    for table in (outcomes, dead_letters):
        assert transactions(table) == [(query, batch) for batch in batches], "each batch is in each table once"

    before = log(outcomes), log(dead_letters)
    last = forget_last_commit(checkpoint)
    written.clear()
    assert run() == query
    assert written == [last]
    assert (log(outcomes), log(dead_letters)) == before, "the repeated batch has left no commit"

    times = [f"unix_millis({name})" for name in ("parked_at", "finished_at", "deadline")]
    ends = spark.read.format("delta").load(str(outcomes)).selectExpr("group", "op_id", "outcome", *times, "error")
    assert sorted(map(tuple, ends.collect())) == in_one_go(rows)
    (dead,) = spark.read.format("delta").load(str(dead_letters)).collect()
    assert (dead.group, json.loads(dead.text)["kind"]) == ("group-3-1", "sign")


def test_a_journal_is_loaded_into_a_delta_table(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands of the page: a load that is repeated replaces its dates in one commit, and leaves the others."""
    generate(tmp_path / "journal", Recipe(300, seed=5, rate=0.003, keys=40))
    journal, lake = str(tmp_path / "journal"), f"table:delta.`{tmp_path / 'lake'}`"
    load = ["load", journal, "--format", "delta", "--quiet", "--out"]
    assert main([*load, str(tmp_path / "lake")]) == 0
    first, last = re.findall(r"\d{4}-\d\d-\d\d", capsys.readouterr().out)
    assert first < last
    assert main([*load, str(tmp_path / "lake"), "--since", last]) == 0
    assert capsys.readouterr().out.split(" rows of ")[1].startswith(last)
    (added,) = [[action["add"] for action in log(tmp_path / "lake") if "add" in action][-1]]
    assert added["partitionValues"] == {"date": last}
    assert [action["commitInfo"]["operation"] for action in log(tmp_path / "lake") if "commitInfo" in action] == [
        "WRITE"
    ] * 2
    one, other = compute(spark, journal), compute(spark, lake)
    for name, table in one.tables.items():
        assert table.equals(other.tables[name]), name
    spark.sql(f"CREATE DATABASE lake LOCATION '{tmp_path / 'lakes'}'")
    for _ in range(2):
        assert main([*load, "table:lake.journal"]) == 0
        assert compute(spark, "table:lake.journal").operations == one.operations == 300


@pytest.mark.parametrize("partitions", [[], ["purgatory"], ["date", "purgatory"]])
def test_a_delta_table_with_other_partitions_than_dates_is_refused(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], partitions: list[str]
) -> None:
    """In the catalog, where Spark would replace the whole table, and at a path, where Delta Lake itself refuses."""
    generate(tmp_path / "journal", Recipe(300, seed=5, rate=0.003, keys=40))
    journal, lake, other = str(tmp_path / "journal"), tmp_path / "lake", tmp_path / "other"
    last = load_journal(spark, journal, lake, file_format="delta").last
    rows = spark.read.format("delta").load(str(lake))
    rows.write.format("delta").partitionBy(*partitions).save(str(other))
    spark.sql(f"CREATE TABLE partitions USING delta LOCATION '{other}'")
    before = log(other)
    try:
        for out in ("table:partitions", str(other)):
            arguments = ["load", journal, "--format", "delta", "--quiet", "--since", last, "--out", out]
            assert main(arguments) == 1
            (line,) = capsys.readouterr().err.splitlines()
            assert re.match(r"error: out (must be a table partitioned by date|cannot be written as delta)", line)
            assert log(other) == before
    finally:
        spark.sql("DROP TABLE partitions")
