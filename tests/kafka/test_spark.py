"""The streaming job between topics, with Spark's Kafka connector, at the real broker and at the example."""

import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", "4.2", reason="the extra 'spark' is not installed")
pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")
pytest.importorskip("confluent_kafka", reason="the extra 'test' is not installed")

import confluent_kafka
from kafka.protocol.admin import ListGroupsRequest

from benchmarks.kafka_wire import Wire, make
from purgatory.pipeline.__main__ import main
from purgatory.pipeline.stream.batch import process_batch
from purgatory.pipeline.stream.dataframes import parse_rows
from purgatory.pipeline.stream.job import BatchProgress, Settings, StreamFailed, run
from purgatory.pipeline.stream.sinks import KafkaSink
from purgatory.pipeline.stream.traces import BEGIN_MS, disordered, trace
from tests.examples.broker.clients.all_clients import client_named
from tests.kafka.fetch import main as fetch
from tests.pipeline.settings import QUICK_JAVA
from tests.pipeline.stream.engines import ends_of_records, in_one_go
from tests.pipeline.stream.test_job import start_and_kill

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("default"),
]  # a JVM starts; the clients' sockets

DELAY = 3.0
PAGE = Path(__file__).parents[2] / "docs" / "streaming.md"
BAD = ["no JSON", json.dumps({"kind": "sign", "ts_ms": BEGIN_MS + 5000, "group": "group-5-1", "key": "k0"})]


@dataclass
class Topics:
    """Topics of one test at one broker: rows in two partitions, outcomes and dead letters in one."""

    address: str
    name: str

    def create(self) -> None:
        client = client_named("kafka-python", int(self.address.rpartition(":")[2]))
        client.replicas = 1
        client.create_topic(self.rows, 2)
        for topic in (self.outcomes, self.dead_letters):
            client.create_topic(topic, 1)

    @property
    def rows(self) -> str:
        return f"{self.name}.rows"

    @property
    def outcomes(self) -> str:
        return f"{self.name}.outcomes"

    @property
    def dead_letters(self) -> str:
        return f"{self.outcomes}.dead"

    @property
    def server(self) -> dict[str, str]:
        # Spark keeps its producers: one must not connect again and again when the broker has gone.
        return {
            "kafka.bootstrap.servers": self.address,
            "kafka.reconnect.backoff.ms": "600000",
            "kafka.reconnect.backoff.max.ms": "600000",
        }

    def send(self, rows: list[dict[str, Any]], bad: list[str]) -> None:
        """Send the rows, keyed by their group, with the bad ones among them."""
        producer = confluent_kafka.Producer({"bootstrap.servers": self.address})
        for number, row in enumerate(rows):
            if number == len(rows) // 2:
                for text in bad:
                    producer.produce(self.rows, text.encode(), b"bad")
            producer.produce(self.rows, json.dumps(row).encode(), row["group"].encode())
        assert producer.flush(60) == 0

    def values(self, spark: Any, topic: str) -> Any:
        """Return the topic as a batch of texts, in a column ``value``."""
        frame = spark.read.format("kafka").options(**self.server, subscribe=topic).load()
        return frame.selectExpr("CAST(value AS STRING) AS value", "partition", "offset")

    def texts(self, spark: Any, topic: str) -> list[str]:
        """Return what is in a topic of one partition, in order."""
        return [row.value for row in self.values(spark, topic).orderBy("offset").collect()]

    def ends(self) -> dict[str, int]:
        """Return the end of each partition of the rows."""
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.address, "group.id": "none"})
        try:
            partitions = [confluent_kafka.TopicPartition(self.rows, number) for number in (0, 1)]
            return {str(each.partition): consumer.get_watermark_offsets(each)[1] for each in partitions}
        finally:
            consumer.close()


@pytest.fixture(scope="module", autouse=True)
def silent_producers(spark: Any) -> Iterator[None]:
    """Silence the producers that Spark keeps for minutes: the brokers stop before it closes them."""
    yield
    logging = spark.sparkContext._jvm.org.apache.logging.log4j
    logging.core.config.Configurator.setLevel("org.apache.kafka.clients", logging.Level.OFF)


@pytest.fixture(params=["real", "example"])
def topics(request: pytest.FixtureRequest, spark: Any) -> Topics:
    """Topics at one of the brokers."""
    if request.param == "real":
        address = f"127.0.0.1:{request.getfixturevalue('real_kafka').port}"
    else:
        address = request.getfixturevalue("broker")
    made = Topics(address, f"spark-{request.param}")
    made.create()
    return made


def fail_at(monkeypatch: pytest.MonkeyPatch, batch: int, *, written: bool) -> None:
    """Have the sink raise at that batch, before it writes or when it has written."""
    write = KafkaSink.write

    def failing(self: KafkaSink, records: Any, number: int) -> Any:
        counts = write(self, records, number) if number != batch or written else None
        if number == batch:
            raise RuntimeError(f"no power in batch {number}")
        return counts

    monkeypatch.setattr(KafkaSink, "write", failing)


def planned(checkpoint: Path) -> list[dict[str, int]]:
    """Return up to which offset of each partition the checkpoint says that each batch reads."""
    logs = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    plans = [json.loads(path.read_text().splitlines()[-1]) for path in logs]
    return [next(iter(plan.values())) for plan in plans]


def test_a_job_between_topics_gives_what_the_batch_equivalent_gives_and_goes_on_from_its_checkpoint(
    topics: Topics, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure before a batch is written costs nothing; one between the write and the commit has that batch written
    twice, which the columns of an operation tell; offsets are in the checkpoint only, each batch once."""
    rows = trace(5, 20)
    arrived = disordered(rows[:-1], int(DELAY * 1000), 5) + rows[-1:]
    topics.send(arrived, BAD)
    settings = Settings(
        source="kafka",
        out="kafka",
        checkpoint=tmp_path / "checkpoint",
        delay=DELAY,
        source_options={
            **topics.server, "subscribe": topics.rows, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "150",
        },
        sink_options={**topics.server, "topic": topics.outcomes},
    )  # fmt: skip
    lines: list[BatchProgress] = []

    with monkeypatch.context() as patch:
        fail_at(patch, 1, written=False)
        with pytest.raises(StreamFailed, match=r"batch 1 failed: no power in batch 1$"):
            run(spark, settings, lines.append)
    assert [line.batch_id for line in lines] == [0]
    begun = topics.texts(spark, topics.outcomes)
    assert len(begun) == lines[0].outcomes

    with monkeypatch.context() as patch:
        fail_at(patch, 2, written=True)
        with pytest.raises(StreamFailed, match=r"batch 2 failed: no power in batch 2$"):
            run(spark, settings, lines.append)
    assert [line.batch_id for line in lines] == [0, 1], "the batch that failed is done again, and only that one"
    before = sum(line.outcomes for line in lines)
    interrupted = topics.texts(spark, topics.outcomes)
    repeated = interrupted[before:]
    assert len(repeated) > 0
    assert max(Counter(interrupted).values()) == 1, "up to here no record is there twice"
    plan = planned(settings.checkpoint)

    assert run(spark, settings, lines.append) == 0
    assert [line.batch_id for line in lines] == list(range(len(lines)))
    assert planned(settings.checkpoint)[: len(plan)] == plan, "what a batch reads is decided once"
    assert planned(settings.checkpoint)[-1] == topics.ends()
    assert sum(line.rows for line in lines) == len(rows) + len(BAD), "no row is read twice"

    batch = process_batch(parse_rows(topics.values(spark, topics.rows).select("value"), settings.max_ahead))
    expected = in_one_go(rows)
    assert len(expected) == 120
    assert ends_of_records(batch.collect()) == expected
    messages = KafkaSink(settings.sink_options).messages(batch).collect()
    of_batch = Counter((message.topic, message.value) for message in messages)
    outcomes, dead = topics.texts(spark, topics.outcomes), topics.texts(spark, topics.dead_letters)
    found = Counter([(topics.outcomes, text) for text in outcomes] + [(topics.dead_letters, text) for text in dead])
    assert found.keys() == of_batch.keys(), "none is missing, and none is new"
    twice = Counter((topics.outcomes, text) for text in repeated)
    assert found - of_batch == twice, "the batch that was written and not committed is there twice, and no other record"

    schema = "group STRING, op_id STRING, parked_at TIMESTAMP, outcome STRING"
    parsed = topics.values(spark, topics.outcomes).selectExpr(f"from_json(value, '{schema}') AS end").select("end.*")
    assert parsed.dropDuplicates(["group", "op_id", "parked_at"]).count() == len(expected)
    assert len(dead) == len(BAD)
    with Wire(int(topics.address.rpartition(":")[2])) as wire:
        groups = [group.group_id for group in wire.ask(make(ListGroupsRequest)).groups]
    assert not [name for name in groups if name.startswith("spark")], "the broker keeps no offsets of the job"


def test_the_commands_of_the_page_go_on_after_a_kill(
    broker: str, spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGKILL while a batch runs; the same command again, and the page's way to remove duplicates, give every outcome
    once."""
    section = PAGE.read_text(encoding="utf-8").partition("## Kafka\n")[2].partition("\n## ")[0]
    section = section.replace("127.0.0.1:9092", broker).replace("\\\n", " ")
    sending, reading = re.findall(r"```py\n(.*?)```", section, re.DOTALL)
    exec(sending, {})
    assert fetch(["--connector"]) == 0
    jars = capsys.readouterr().out.strip()
    (command,) = re.findall(r"^\$ purgatory (stream .*)$", section, re.MULTILINE)
    words = shlex.split(command.replace("$jars", jars).replace(" checkpoint ", f" {tmp_path / 'checkpoint'} "))
    words += ["--source-option", "maxOffsetsPerTrigger=150", "--master", "local[1]"]
    quick = f"spark.driver.defaultJavaOptions={QUICK_JAVA}"
    for setting in ("spark.sql.shuffle.partitions=1", "spark.sql.codegen.wholeStage=false", quick):
        words += ["--conf", setting]  # a second Java has to start for this: let it do little
    start_and_kill([sys.executable, "-m", "purgatory", *words], lambda line: re.match(r"batch +1 ", line) is not None)
    assert main(words) == 0
    assert re.match(r"batch +2 ", capsys.readouterr().out)
    names: dict[str, Any] = {"spark": spark}
    exec(reading, names)
    expected = in_one_go(trace(1, 20))
    found = names["once"].selectExpr("group", "op_id", "outcome", "unix_millis(parked_at)", "unix_millis(finished_at)")
    assert sorted(tuple(row) for row in found.collect()) == [end[:5] for end in expected]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "One of the following options must be specified for Kafka source: "),
        (
            {"subscribe": "rows", "assign": "{}"},
            "Only one of the following options can be specified for Kafka source: ",
        ),
        ({"subscribe": "rows", "kafka.auto.offset.reset": "earliest"}, "Kafka option 'auto.offset.reset' "),
    ],
    ids=["no topic", "two choices of topics", "an option that Spark sets itself"],
)
def test_options_that_the_source_refuses_are_an_error_in_one_line(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, str], said: str
) -> None:
    """Spark refuses them before it connects to a broker."""
    command = ["stream", "--source", "kafka", "--out", str(tmp_path / "out"), "--checkpoint", str(tmp_path / "c")]
    for name, value in {"kafka.bootstrap.servers": "127.0.0.1:1", **options}.items():
        command += ["--source-option", f"{name}={value}"]
    assert main(command) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: the source cannot be read: {said}")
