"""The tools of Kafka's distribution against the example broker, each in a JVM of its own."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")

from tests.kafka.jars import tool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # JVMs start, on a machine that may be busy


def run(name: str, *arguments: object, given: str = "", status: int = 0) -> str:
    """What the tool prints on both streams; it has to end with the status."""
    done = tool(name, *arguments, given=given)
    printed = done.stdout + done.stderr
    assert done.returncode == status, printed
    return printed


def test_what_the_console_producer_reads_the_console_consumer_prints(broker: str) -> None:
    """The consumer joins a group and commits; consumer-groups lists it, describes its lag, and resets its offsets."""
    at = ("--bootstrap-server", broker)
    run("TopicCommand", *at, "--create", "--topic", "console", "--partitions", 1, "--replication-factor", 3)
    run("ConsoleProducer", *at, "--topic", "console", given="one\ntwo\nthree\n")
    consume = ("--topic", "console", "--group", "readers", "--from-beginning", "--max-messages", 2)
    assert run("consumer.ConsoleConsumer", *at, *consume).startswith("one\ntwo\n")
    groups = "consumer.group.ConsumerGroupCommand"
    assert "readers" in run(groups, *at, "--list").split()
    described = run(groups, *at, "--describe", "--group", "readers")
    assert re.search(r"readers\s+console\s+0\s+2\s+3\s+1\s", described), described
    reset = ("--reset-offsets", "--to-earliest", "--topic", "console", "--group", "readers", "--execute")
    assert re.search(r"readers\s+console\s+0\s+0\s", run(groups, *at, *reset))


def events(printed: str) -> dict[str, list[dict[str, object]]]:
    """The events that a verifiable client prints, by name."""
    found: dict[str, list[dict[str, object]]] = {}
    for line in printed.splitlines():
        if line.startswith("{"):
            event = json.loads(line)
            found.setdefault(event["name"], []).append(event)
    return found


def test_the_verifiable_clients_see_every_record_once(broker: str) -> None:
    """All that is sent is acknowledged with offsets that count up, and consumed and committed."""
    at = ("--bootstrap-server", broker, "--topic", "verified", "--max-messages", 20)
    sent = events(run("VerifiableProducer", *at))
    assert [event["offset"] for event in sent["producer_send_success"]] == list(range(20))
    got = events(run("VerifiableConsumer", *at, "--group-id", "verifiers", "--reset-policy", "earliest"))
    assert sum(int(str(event["count"])) for event in got["records_consumed"]) == 20
    assert got["offsets_committed"][-1]["offsets"] == [{"topic": "verified", "partition": 0, "offset": 20}]
    assert got["offsets_committed"][-1]["success"] is True


def test_the_performance_tests_run_to_their_end(broker: str) -> None:
    """Every record is sent and every record is read; end-to-end latency has a figure for each message."""
    at = ("--bootstrap-server", broker, "--topic", "measured")
    sent = run("ProducerPerformance", *at, "--num-records", 500, "--record-size", 100, "--throughput", -1)
    assert "500 records sent" in sent
    last = run("ConsumerPerformance", *at, "--num-records", 500).splitlines()[1].split(", ")
    assert int(last[4]) == 500
    latency = run("EndToEndLatency", *at, "--num-records", 5, "--producer-acks", "all", "--record-size", 20)
    assert "Percentiles" in latency


def test_offsets_and_deleted_records_are_seen_by_the_tools(broker: str, tmp_path: Path) -> None:
    """delete-records moves the low watermark, and get-offsets returns both ends."""
    at = ("--bootstrap-server", broker)
    run("ConsoleProducer", *at, "--topic", "deleted", given="a\nb\nc\n")
    wanted = tmp_path / "offsets.json"
    wanted.write_text(json.dumps({"version": 1, "partitions": [{"topic": "deleted", "partition": 0, "offset": 2}]}))
    assert "low_watermark: 2" in run("DeleteRecordsCommand", *at, "--offset-json-file", wanted)
    assert "deleted:0:2" in run("GetOffsetShell", *at, "--topic", "deleted", "--time", -2)
    assert "deleted:0:3" in run("GetOffsetShell", *at, "--topic", "deleted")


def test_what_the_broker_lacks_is_unsupported_and_nothing_hangs(broker: str) -> None:
    """A tool that needs another API says which one, because ApiVersions does not list it."""
    at = ("--bootstrap-server", broker)
    run("TopicCommand", *at, "--create", "--topic", "plain", "--partitions", 1, "--replication-factor", 1)
    described = run("TopicCommand", *at, "--describe", "--topic", "plain", status=1)
    assert "does not support DESCRIBE_CONFIGS" in described
    deleted = run("consumer.group.ConsumerGroupCommand", *at, "--delete", "--group", "nobody")
    assert "does not support DELETE_GROUPS" in deleted
