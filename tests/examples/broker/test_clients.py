"""Four unmodified Kafka clients with the broker: aiokafka, kafka-python, confluent-kafka and the Java client."""

import asyncio
import contextlib
import itertools
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("aiokafka", reason="the extra 'test' is not installed")
pytest.importorskip("confluent_kafka", reason="the extra 'test' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")

import uvloop

from examples.broker import Server, Settings
from examples.group import GroupConfig
from purgatory import Event, Observer
from tests.examples.broker.clients.all_clients import CLIENTS, KILLED_SESSION_MS, PATIENCE, Member, client_named
from tests.examples.broker.clients.java_client import Java, JavaError, is_at_hand
from tests.examples.broker.request_harness import fetch_request, frame

# Warnings of the clients: sockets that their threads leave to the collector, coroutines of a closed loop.
# The first test of the Java client may have to download its jars.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]

SETTINGS = Settings(
    port=0, replication_delay=0.001, group=GroupConfig(initial_rebalance_delay=0.05, min_session_timeout=0.1)
)
TOPICS = (f"topic-{number}" for number in itertools.count())


class EventQueue(Observer):
    """A queue of the events of the broker's purgatories, for the thread that waits for one."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[tuple[str, str, tuple[Any, ...]]] = queue.SimpleQueue()

    def parked(self, event: Event) -> None:
        self.events.put(("parked", event.purgatory, event.keys))

    def completed(self, event: Event) -> None:
        self.events.put(("completed", event.purgatory, event.keys))

    def expired(self, event: Event) -> None:
        self.events.put(("expired", event.purgatory, event.keys))

    def wait_for(self, kind: str, purgatory: str, topic: str) -> list[str]:
        """Wait for an event.  Return the kinds of events for the topic up to that point."""
        kinds: list[str] = []
        while True:
            happened, where, keys = self.events.get(timeout=PATIENCE)
            if where == purgatory and (topic, 0) in keys:
                kinds.append(happened)
                if happened == kind:
                    return kinds


class BrokerThread:
    """A broker in a separate thread."""

    def __init__(self) -> None:
        self.seen = EventQueue()
        self.server: Any = None
        self._ready = threading.Event()
        self._loop: Any = None
        self._stop: Any = None
        self._thread = threading.Thread(target=lambda: uvloop.run(self._main()))

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with Server(SETTINGS, observers=[self.seen]) as self.server:
            self._ready.set()
            await self._stop.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def ask(self, function: Callable[[Any], Any]) -> Any:
        """Call the function in the broker's thread, and return its result."""

        async def run() -> Any:
            return function(self.server.broker)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE)


@pytest.fixture(scope="module")
def running() -> Iterator[BrokerThread]:
    """Yield one broker for all tests, which use separate topics and groups."""
    with BrokerThread() as running:
        yield running


@pytest.fixture(params=[client.name for client in CLIENTS])
def client(request: pytest.FixtureRequest, running: BrokerThread) -> Any:
    """Yield one of the clients."""
    return client_named(request.param, running.server.port)


@pytest.fixture
def topic() -> str:
    """Return a topic that no other test uses."""
    return next(TOPICS)


# One client


@pytest.mark.parametrize(("acks", "idempotent"), [(0, False), (1, False), (-1, False), (-1, True)])
def test_what_is_produced_is_consumed_in_order(client: Any, topic: str, acks: int, idempotent: bool) -> None:
    """Offsets count up at every acknowledgement level, except for acks=0, which returns no offset."""
    client.create_topic(topic)
    values = [b"value %d" % number for number in range(20)]
    offsets = client.produce(topic, values, acks=acks, idempotent=idempotent)
    if acks:
        assert offsets == list(range(20))
    assert client.consume(topic, 20) == values


def test_compressed_batches_pass_through(client: Any, topic: str) -> None:
    """The broker passes batches through, with every codec that the client supports."""
    client.create_topic(topic)
    values: list[bytes] = []
    for codec in client.codecs:
        sent = [codec.encode() * 500 for _ in range(3)]
        client.produce(topic, sent, codec=codec, acks=-1)
        values += sent
    assert client.consume(topic, len(values)) == values


def test_offsets_begin_and_end_where_records_do(client: Any, topic: str) -> None:
    """The end offset is the high watermark."""
    client.create_topic(topic)
    assert client.offsets(topic) == (0, 0)
    client.produce(topic, [b"a", b"b", b"c"], acks=-1)
    assert client.offsets(topic) == (0, 3)


def test_deleted_records_are_gone(client: Any, topic: str) -> None:
    """The log starts after the deleted records, and a consumer from the beginning gets the others."""
    client.create_topic(topic)
    client.produce(topic, [b"a", b"b", b"c"], acks=-1)
    assert client.delete_records(topic, 2) == 2
    assert client.offsets(topic) == (2, 3)


def test_an_offset_that_is_committed_is_found_again(client: Any, topic: str) -> None:
    """Another consumer of the group finds the committed offset."""
    client.create_topic(topic)
    client.produce(topic, [b"a"], acks=-1)
    assert client.commit(f"group of {topic}", topic, 1) == 1


@contextlib.contextmanager
def in_thread(function: Callable[[], Any]) -> Iterator["queue.SimpleQueue[Any]"]:
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()
    thread = threading.Thread(target=lambda: results.put(function()))
    thread.start()
    try:
        yield results
    finally:
        thread.join(PATIENCE)


def test_a_long_poll_wakes_on_data(client: Any, topic: str, running: BrokerThread) -> None:
    """A consumer that waits for ten seconds gets the record when it arrives."""
    client.create_topic(topic)
    with in_thread(lambda: client.consume(topic, 1, max_wait_ms=10_000)) as results:
        running.seen.wait_for("parked", "fetch", topic)
        began = time.monotonic()
        client.produce(topic, [b"wake up"], acks=-1)
        running.seen.wait_for("completed", "fetch", topic)
        assert results.get(timeout=PATIENCE) == [b"wake up"]
        assert time.monotonic() - began < 5


def test_a_long_poll_for_more_bytes_is_not_woken_by_fewer(client: Any, topic: str, running: BrokerThread) -> None:
    """A small record leaves the fetch parked; the record that reaches the size completes it with both."""
    client.create_topic(topic)
    with in_thread(lambda: client.consume(topic, 2, max_wait_ms=10_000, min_bytes=4000)) as results:
        running.seen.wait_for("parked", "fetch", topic)
        client.produce(topic, [b"small"], acks=-1)
        partition = running.server.broker.topics.partition(topic, 0)
        assert running.ask(lambda broker: partition.high_watermark) == 1
        assert running.ask(lambda broker: dict(broker.fetch.hot_keys(1000)).get((topic, 0))) == 1
        client.produce(topic, [b"x" * 5000], acks=-1)
        assert running.seen.wait_for("completed", "fetch", topic)[-1:] == ["completed"]
        assert results.get(timeout=PATIENCE) == [b"small", b"x" * 5000]


def test_acks_all_on_a_stalled_topic_fails_and_its_data_stays_unreadable(
    client: Any, topic: str, running: BrokerThread
) -> None:
    """The client gives up after its timeouts; the record is in the log, but no consumer can read it."""
    topic = f"stalled-{topic}"
    client.create_topic(topic)
    with pytest.raises(Exception, match=re.compile("time", re.IGNORECASE)):
        client.produce(topic, [b"a"], acks=-1, timeout=0.4)
    running.seen.wait_for("parked", "produce", topic)
    assert client.offsets(topic) == (0, 0)
    assert running.ask(lambda broker: broker.topics.partition(topic, 0).log.end_offset) >= 1


# Groups


class Group:
    """The members of one group, and their assignments."""

    def __init__(self, client: Any, topic: str, strategy: str, partitions: int = 6) -> None:
        self.client, self.topic, self.strategy, self.partitions = client, topic, strategy, partitions
        self.name = f"group of {topic}"
        self.changed = threading.Condition()
        self.members: list[Member] = []

    def join(self, instance: str | None = None) -> Member:
        member: Member = self.client.member(self.changed, self.topic, self.name, self.strategy, instance)
        self.members.append(member)
        return member

    def wait_for(self, *sizes: int) -> None:
        """Wait until the members share all partitions in these numbers."""

        def shared() -> bool:
            assigned = [member.assigned for member in self.members]
            whole = frozenset[int]().union(*assigned) == frozenset(range(self.partitions))
            return whole and sorted(map(len, assigned)) == sorted(sizes)

        with self.changed:
            assert self.changed.wait_for(shared, PATIENCE), [sorted(member.assigned) for member in self.members]

    def leave(self, member: Member) -> None:
        member.close()
        self.members.remove(member)

    def close(self) -> None:
        for member in self.members:
            member.close()


STRATEGIES = [(client.name, strategy) for client in CLIENTS for strategy in client.strategies]


@pytest.mark.parametrize(("name", "strategy"), STRATEGIES)
def test_a_group_shares_its_partitions_as_members_come_and_go(
    name: str, strategy: str, topic: str, running: BrokerThread
) -> None:
    """One member has all six partitions, two have three each, three have two each, and two have three again.

    With cooperative assignment, no member revokes a partition that it keeps.
    """
    client = client_named(name, running.server.port)
    client.create_topic(topic, 6)
    group = Group(client, topic, strategy)
    try:
        first = group.join()
        group.wait_for(6)
        group.join()
        group.wait_for(3, 3)
        if strategy == "cooperative-sticky":
            assert len(first.revoked) == 3
        third = group.join()
        group.wait_for(2, 2, 2)
        group.leave(third)
        group.wait_for(3, 3)
        if strategy == "cooperative-sticky":
            assert len(first.revoked) == 4
    finally:
        group.close()


def test_a_static_member_returns_without_a_rebalance(client: Any, topic: str, running: BrokerThread) -> None:
    """The member returns within its session and has the same partitions, in the same generation."""
    client.create_topic(topic, 6)
    group = Group(client, topic, "range")
    try:
        group.join("one")
        returning = group.join("two")
        group.wait_for(3, 3)
        had = returning.assigned
        generation = running.ask(lambda broker: broker.groups.groups[group.name].generation)
        group.leave(returning)
        returned = group.join("two")
        group.wait_for(3, 3)
        assert returned.assigned == had
        assert running.ask(lambda broker: broker.groups.groups[group.name].generation) == generation
    finally:
        group.close()


@pytest.mark.slow
def test_a_member_that_is_killed_leaves_after_its_session(client: Any, topic: str, running: BrokerThread) -> None:
    """After SIGKILL, the other members get its partitions when its session ends, and not before."""
    client.create_topic(topic, 6)
    group = Group(client, topic, "range")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    program = "tests.examples.broker.clients.member_process"
    command = [sys.executable, "-m", program, client.name, str(running.server.port)]
    with subprocess.Popen([*command, topic, group.name], stdout=subprocess.PIPE, text=True, env=environment) as doomed:
        try:
            assert doomed.stdout is not None
            assert doomed.stdout.readline() == "6\n"
            group.join()
            assert doomed.stdout.readline() == "3\n"
            doomed.kill()
            killed = time.monotonic()
            group.wait_for(6)
            passed = time.monotonic() - killed
            assert KILLED_SESSION_MS / 1000 - 0.3 <= passed < KILLED_SESSION_MS / 1000 + 2
        finally:
            doomed.kill()
            group.close()


def test_a_consumer_of_the_newer_group_protocol_is_refused_for_good(topic: str, running: BrokerThread) -> None:
    """The Java client reports that the API of KIP-848 is missing, and does not retry forever."""
    client = client_named("java", running.server.port)
    client.create_topic(topic, 6)
    member = client.member(threading.Condition(), topic, f"group of {topic}", "consumer")
    with pytest.raises(JavaError, match="UnsupportedVersionException"):
        member.wait()


# All of them


def test_all_clients_at_once_on_one_broker(topic: str, running: BrokerThread) -> None:
    """All clients produce to the same topic and consume it as members of one group."""
    clients = [client(running.server.port) for client in CLIENTS if client is not Java or is_at_hand()]
    each = 12 // len(clients)
    clients[0].create_topic(topic, 12)
    group = Group(clients[0], topic, "range", 12)
    sent: set[bytes] = set()
    try:
        for client in clients:
            group.client = client
            group.join()
        group.wait_for(*[each] * len(clients))
        threads = []
        for client in clients:
            values = [f"{client.name} {number}".encode() for number in range(60)]
            sent.update(values)
            for partition in range(12):
                part = values[partition::12]
                arguments = {"acks": -1, "idempotent": True, "partition": partition}
                threads.append(threading.Thread(target=client.produce, args=(topic, part), kwargs=arguments))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        with group.changed:
            assert group.changed.wait_for(lambda: sum(len(m.values) for m in group.members) >= len(sent), PATIENCE)
        got = [value for member in group.members for value in member.values]
        assert sorted(got) == sorted(sent)
        assert all(len(member.values) == len(sent) / len(clients) for member in group.members)
    finally:
        group.close()


# The command


@pytest.mark.parametrize("options", [[], ["--no-uvloop"]])
def test_the_command_says_when_it_is_ready_and_ends_with_everyone_answered(options: list[str]) -> None:
    """The command prints one line on stdout; SIGTERM answers a parked request, and the exit code is 0."""
    command = [sys.executable, "-m", "examples.broker", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            ready = process.stdout.readline()
            found = re.fullmatch(r"broker ready on 127\.0\.0\.1:(\d+)\n", ready)
            assert found is not None, ready
            with socket.create_connection(("127.0.0.1", int(found[1])), PATIENCE) as connection:
                client = client_named("aiokafka", int(found[1]))
                client.create_topic("t")
                connection.sendall(frame(fetch_request(("t", 0, 0), max_wait_ms=60_000), 11))
                client.offsets("t")
                process.send_signal(signal.SIGTERM)
                answer = connection.recv(1000)
                assert answer[4:8] == b"\x00\x00\x00\x07"
                assert connection.recv(1000) == b""
            assert process.wait(PATIENCE) == 0
            assert (process.stdout.read(), process.stderr.read()) == ("", "")
        finally:
            process.kill()
