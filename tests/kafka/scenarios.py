"""What is tried at both brokers: a scenario is a function that writes down what it saw.

A line of a transcript holds codes, offsets, orders and times in classes; names, ids and addresses that differ from run
to run are left out or numbered.  The lines of one scenario at the real broker and at ours are compared by
``tests.kafka.judge``.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.admin import CreateTopicsRequest, DeleteRecordsRequest
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from benchmarks.kafka_wire import Wire, make
from examples.broker.protocol.error_codes import Code
from examples.group.error_codes import ErrorCode

__all__ = [
    "CLIENT_SCENARIOS",
    "SCENARIOS",
    "STALLING",
    "WAIT_MS",
    "Side",
    "batch",
    "client_scenario",
    "name_of",
    "scenario",
    "stalling_scenario",
    "values_in",
]

WAIT_MS = 2500
_AT_ONCE = 0.6  # of the wait: what comes earlier did not wait for the deadline
_SETTLE_S = 0.3  # for a request to be parked before something happens to it

Scenario = Callable[["Side"], None]
ClientScenario = Callable[[Any, "Side"], None]  # the first argument is the class of a client
SCENARIOS: dict[str, Scenario] = {}
CLIENT_SCENARIOS: dict[str, ClientScenario] = {}
STALLING: set[str] = set()  # run alone, after the others: a broker that has stopped answering would disturb them
_NAMES = itertools.count()


def scenario(function: Scenario) -> Scenario:
    """Register the function; its first docstring line without the full stop is its name."""
    assert function.__doc__ is not None
    SCENARIOS[function.__doc__.partition("\n")[0].rstrip(".")] = function
    return function


def stalling_scenario(function: Scenario) -> Scenario:
    """Register a function in which a follower lags."""
    assert function.__doc__ is not None
    STALLING.add(function.__doc__.partition("\n")[0].rstrip("."))
    return scenario(function)


def client_scenario(function: ClientScenario) -> ClientScenario:
    """Register a function that is run once with each client."""
    assert function.__doc__ is not None
    CLIENT_SCENARIOS[function.__doc__.partition("\n")[0].rstrip(".")] = function
    return function


def name_of(code: int) -> str:
    """Return the name of an error code."""
    for codes in (Code, ErrorCode):
        if code in codes._value2member_map_:
            return codes(code).name
    return f"error {code}"


def batch(
    *values: bytes,
    producer: tuple[int, int, int] = (-1, -1, -1),
    timestamps: tuple[int, ...] = (),
    magic: int = 2,
    codec: int = 0,
) -> bytes:
    """Return a record batch; ``producer`` is id, epoch and first sequence number."""
    builder = MemoryRecordsBuilder(
        magic, codec, 1 << 24, producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2]
    )
    for number, value in enumerate(values):
        builder.append(timestamps[number] if timestamps else 1000 + number, None, value)
    builder.close()
    return bytes(builder.buffer())


def values_in(records: bytes | None) -> list[str]:
    """Return the offset and value of each record of a response."""
    found = []
    batches: Any = MemoryRecords(records or b"")
    while batches.has_next():
        for record in batches.next_batch():
            value = record.value.decode()
            found.append(f"{record.offset}:{value if len(value) < 20 else f'{len(value)} bytes'}")
    return found


@dataclass
class Side:
    """One broker under one scenario.

    ``follow`` and ``stall`` let a follower begin, and have it lag; without them a topic lags by its name.
    """

    port: int
    follow: Callable[[], None] | None = None
    stall: Callable[[], None] | None = None
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()

    def note(self, line: str) -> None:
        """Write down a line."""
        self.lines.append(line)

    def known(self, kind: str, value: str) -> str:
        """Return the value as a number of its kind, in the order of first sight; an empty value stays empty."""
        if not value:
            return ""
        with self._lock:
            if value not in self._known:
                self._known[value] = f"{kind}{1 + sum(name.startswith(kind) for name in self._known.values())}"
            return self._known[value]

    @staticmethod
    def when(seconds: float, wait_ms: int = WAIT_MS) -> str:
        """Return the class of a time beside a deadline."""
        wait = wait_ms / 1000
        if seconds < _AT_ONCE * wait:
            return "at once"
        if seconds < wait - 0.02:  # a deadline is whole milliseconds, and clocks are read at two ends
            return "before the deadline"
        return "at the deadline" if seconds < wait + 2.5 else "long after the deadline"

    def wire(self) -> Wire:
        """Return a new connection; the scenario closes it."""
        return Wire(self.port)

    @contextmanager
    def meanwhile(self, function: Callable[[], Any]) -> "Iterator[Future[Any]]":
        """Run the function in another thread while the block runs; the block begins when it has settled."""
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(function)
            time.sleep(_SETTLE_S)
            yield future

    def topic(
        self, partitions: int = 1, *, prefix: str = "t", replicas: int = 1, assignment: tuple[int, ...] = ()
    ) -> str:
        """Create a topic and wait until it has leaders and all replicas are in sync.

        ``assignment``: the brokers that have a replica, the leader first.
        """
        name = f"{prefix}-{next(_NAMES)}"
        with self.wire() as wire:
            topic = {
                "name": name,
                "num_partitions": partitions,
                "replication_factor": replicas,
                "assignments": [],
                "configs": [],
            }
            if assignment:
                assigned = [{"partition_index": n, "broker_ids": list(assignment)} for n in range(partitions)]
                topic |= {"num_partitions": -1, "replication_factor": -1, "assignments": assigned}
            made = wire.ask(make(CreateTopicsRequest, topics=[topic], timeout_ms=30_000, validate_only=False))
            assert made.topics[0].error_code == 0, made
            asked = make(MetadataRequest, topics=[{"name": name}], allow_auto_topic_creation=False)
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                found = wire.ask(asked).topics[0]
                if found.error_code == 0 and all(
                    p.error_code == 0 and p.leader_id >= 0 and len(p.isr_nodes) >= len(assignment)
                    for p in found.partitions
                ):
                    break
                time.sleep(0.02)
            # A leader may be named before it serves: ask it for an offset.
            while any(self.offset(name, -1, number, wire)[0] for number in range(partitions)):
                assert time.monotonic() < deadline, f"{name} has no leader"
                time.sleep(0.02)
        return name

    def stalled_topic(self) -> str:
        """Return a topic with a follower that lags."""
        if self.follow is None or self.stall is None:
            return self.topic(prefix="stall", replicas=2)
        self.follow()
        name = self.topic(prefix="stall", assignment=(1, 2))
        self.stall()
        return name

    def produce(
        self,
        topic: str,
        records: bytes | None,
        *,
        acks: int = 1,
        partition: int = 0,
        timeout_ms: int = 30_000,
        transactional_id: str | None = None,
    ) -> str:
        """Produce and return what was answered."""
        with self.wire() as wire:
            request = produce_request(
                topic,
                records,
                acks=acks,
                partition=partition,
                timeout_ms=timeout_ms,
                transactional_id=transactional_id,
            )
            answer = wire.ask(request).responses[0].partition_responses[0]
            return f"{name_of(answer.error_code)} offset {answer.base_offset}"

    def fetch(self, *wanted: tuple[str, int, int], wire: Wire | None = None, **options: Any) -> str:
        """Fetch (topic, partition, offset)s and return what was answered, and in which class of time."""
        request = fetch_request(*wanted, **options)
        if wire is None:
            with self.wire() as wire:
                response, seconds = wire.timed(request)
        else:
            response, seconds = wire.timed(request)
        parts = [
            f"{name_of(part.error_code)} hw {part.high_watermark} start {part.log_start_offset}"
            f" {values_in(part.records)}"
            for topic in response.responses
            for part in topic.partitions
        ]
        top = "" if response.error_code == 0 else f"{name_of(response.error_code)} "
        wait_ms = options.get("max_wait_ms", WAIT_MS)
        return f"{top}{'; '.join(parts)} {self.when(seconds, wait_ms or WAIT_MS)}"

    def offset(self, topic: str, timestamp: int, partition: int = 0, wire: Wire | None = None) -> tuple[int, int, int]:
        """Return error code, offset and timestamp of ListOffsets."""
        asked = {"name": topic, "partitions": [{"partition_index": partition, "timestamp": timestamp}]}
        request = make(ListOffsetsRequest, replica_id=-1, isolation_level=0, topics=[asked])
        if wire is None:
            with self.wire() as wire:
                answer = wire.ask(request)
        else:
            answer = wire.ask(request)
        part = answer.topics[0].partitions[0]
        return part.error_code, part.offset, part.timestamp

    def delete_records(self, topic: str, offset: int, partition: int = 0) -> str:
        """Delete records and return what was answered."""
        asked = {"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}
        with self.wire() as wire:
            answer = wire.ask(make(DeleteRecordsRequest, topics=[asked], timeout_ms=30_000))
        part = answer.topics[0].partitions[0]
        return f"{name_of(part.error_code)} low watermark {part.low_watermark}"

    def producer_id(self) -> tuple[int, int]:
        """Return a new producer id and its epoch."""
        with self.wire() as wire:
            for _ in range(200):
                answer = wire.ask(make(InitProducerIdRequest, transactional_id=None, transaction_timeout_ms=60_000))
                if answer.error_code == 0:
                    return answer.producer_id, answer.producer_epoch
                time.sleep(0.05)
        raise AssertionError(f"no producer id: {answer}")


def produce_request(
    topic: str,
    records: bytes | None,
    *,
    acks: int = 1,
    partition: int = 0,
    timeout_ms: int = 30_000,
    transactional_id: str | None = None,
) -> Any:
    """Return a produce of one batch to one partition."""
    data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
    return make(ProduceRequest, transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=data)


def fetch_request(
    *wanted: tuple[str, int, int],
    max_wait_ms: int = WAIT_MS,
    min_bytes: int = 1,
    max_bytes: int = 1 << 24,
    partition_max_bytes: int = 1 << 24,
    leader_epoch: int = -1,
    session_id: int = 0,
    session_epoch: int = -1,
    isolation_level: int = 0,
) -> Any:
    """Return a fetch of (topic, partition, offset)s, without a session unless one is given."""
    topics = [
        {
            "topic": topic,
            "partitions": [
                {
                    "partition": partition,
                    "current_leader_epoch": leader_epoch,
                    "fetch_offset": offset,
                    "log_start_offset": -1,
                    "partition_max_bytes": partition_max_bytes,
                }
            ],
        }
        for topic, partition, offset in wanted
    ]
    return make(
        FetchRequest,
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=topics,
        forgotten_topics_data=[],
        rack_id="",
    )
