"""The real broker as a fixture: it serves every client, speaks both group protocols, and leaves nothing behind."""

import itertools
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("aiokafka", reason="the extra 'test' is not installed")
pytest.importorskip("confluent_kafka", reason="the extra 'test' is not installed")

from benchmarks.real_kafka import RealKafka
from tests.examples.broker.clients.all_clients import CLIENTS, PATIENCE, client_named
from tests.kafka.jars import jars

# The clients' own: sockets that their threads leave to the collector.
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

TOPICS = (f"topic-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def real_kafka() -> Iterator[RealKafka]:
    """The broker of the other files, which ends with this one: while it is idle, it needs 3 % of a CPU."""
    jars()
    with RealKafka(group_initial_rebalance_delay_ms=0, group_min_session_timeout_ms=100) as broker:
        yield broker


@pytest.fixture(params=[client.name for client in CLIENTS])
def client(request: pytest.FixtureRequest, real_kafka: RealKafka) -> Any:
    """One of the clients, at the real broker."""
    client = client_named(request.param, real_kafka.port)
    client.replicas = 1
    return client


def test_every_client_is_served(client: Any) -> None:
    """The clients that are shown with the example broker do the same at the real one."""
    topic = next(TOPICS)
    client.create_topic(topic)
    values = [b"value %d" % number for number in range(5)]
    assert client.produce(topic, values, acks=-1, idempotent=True, partition=0) == list(range(5))
    assert client.consume(topic, 5) == values
    assert client.delete_records(topic, 2) == 2
    assert client.offsets(topic) == (2, 5)
    assert client.commit(f"group of {topic}", topic, 3) == 3


@pytest.mark.parametrize("protocol", ["range", "consumer"])
def test_the_java_client_joins_with_either_group_protocol(real_kafka: RealKafka, protocol: str) -> None:
    """The classic one, and the one of KIP-848."""
    client = client_named("java", real_kafka.port)
    client.replicas = 1
    topic, changed = next(TOPICS), threading.Condition()
    client.create_topic(topic, 4)
    member = client.member(changed, topic, f"group of {topic}", protocol)
    try:
        with changed:
            assert changed.wait_for(lambda: len(member.assigned) == 4, PATIENCE)
    finally:
        member.close()


def test_a_broker_that_is_stopped_leaves_nothing() -> None:
    """Its process has ended, its port is free, its folder is gone."""
    jars()
    with RealKafka() as broker:
        folder = broker.folder
        assert folder.is_dir()
        socket.create_connection(("127.0.0.1", broker.port), PATIENCE).close()
    assert broker.nodes[0].process.poll() is not None
    assert not folder.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", broker.port), PATIENCE)


def test_a_broker_that_does_not_start_says_why() -> None:
    """An error in its configuration raises with what it printed."""
    jars()
    with pytest.raises(RuntimeError, match=r"num\.network\.threads"), RealKafka(num_network_threads=-1):
        pass
