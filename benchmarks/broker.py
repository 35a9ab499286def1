"""The example broker compared with a real single-node Kafka: the same clients use both in turn, on loopback.

*   *Wake-up.*  A fetch is parked, and a produce with acks=1 is sent on another connection.  Measured: the wall-clock
    time until the fetch is answered.
*   *Join barrier.*  All members of a stable group except the last have joined again.  Measured: the wall-clock time
    from the last JoinGroup request to the last response.
*   *CPU of a parked fetch.*  Fetches on open connections are parked and then answered by one record.  Measured: the CPU
    time of the broker process per fetch.
*   *Memory of a parked fetch.*  Measured: connection and request together.  For our broker, this is resident memory;
    for the JVM, it is the live heap after a full collection, because the JVM's options determine its resident memory.

Kafka keeps its log in files, whereas our broker keeps it in memory and is written in Python.  The figures show the cost
of waiting, which both brokers incur for every request; they do not show the cost of storage.
"""

import os
import resource
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka.protocol.admin import CreateTopicsRequest, DescribeGroupsRequest
from kafka.protocol.consumer import FetchRequest, JoinGroupRequest, OffsetFetchRequest, SyncGroupRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import ProduceRequest
from kafka.record.memory_records import MemoryRecordsBuilder

from .kafka_wire import Wire, make
from .maven import program
from .real_kafka import VERSION, RealKafka, class_path
from .row import Row, Scale, Unavailable, grouped, quantile

__all__ = ["prepare", "rows"]

SECTION = "broker"
PEER = f"Kafka {VERSION}"
JVM = ("-Xmx1g", "-Xms1g", "-XX:+UseG1GC")  # the heap and the collector of Kafka's own start script
_WAIT_MS = 60_000
# ConsumerProtocolSubscription version 0, without topics: Kafka's coordinator reads what consumers subscribe to.
_SUBSCRIPTION = struct.pack(">hii", 0, 0, -1)
_GROUP_DELAY_MS = 2_000  # all members of a group arrive within this time; each arrival extends it
_TIMEOUT_S = 60.0


def prepare() -> None:
    """Fetch the jars.  Raise Unavailable if that is not possible here."""
    if sys.platform != "linux":
        raise Unavailable("the CPU time and the memory of other processes are read on Linux only")
    program("jcmd")
    class_path()


@dataclass
class Side:
    """A broker: where it listens, its process, and how its memory is read."""

    port: int
    pid: int
    used: Callable[[], float]
    topics: int = 0

    def cpu(self) -> float:
        """Return the seconds of CPU time that the process has used."""
        return time.clock_gettime((~self.pid << 3) | 2)  # the id that clock_getcpuclockid(3) returns on Linux

    def topic(self) -> str:
        """Create a topic with one partition, and wait until its leader accepts requests."""
        self.topics += 1
        name = f"t{self.topics}"
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        ask = make(MetadataRequest, topics=[{"name": name}], allow_auto_topic_creation=False)
        with Wire(self.port) as wire:
            made = wire.ask(make(CreateTopicsRequest, topics=[topic], timeout_ms=30_000, validate_only=False))
            assert made.topics[0].error_code == 0, made
            _until(lambda: wire.ask(ask).topics[0].error_code == 0)
            _until(lambda: _produced(wire.ask(_produce(name))))
        return name


@contextmanager
def _ours() -> Iterator[Side]:
    limits = [
        "--initial-rebalance-delay",
        str(_GROUP_DELAY_MS / 1000),
        "--max-connections",
        "20000",
        "--idle-timeout",
        "3600",
    ]
    command = [sys.executable, "-m", "examples.broker", "--port", "0", *limits]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().rpartition(":")[2])
            yield Side(port, process.pid, lambda: _resident(process.pid))
        finally:
            process.terminate()


@contextmanager
def _real() -> Iterator[Side]:
    properties = {"group_initial_rebalance_delay_ms": _GROUP_DELAY_MS, "num_network_threads": 3, "num_io_threads": 8}
    with RealKafka(options=JVM, **properties) as broker:
        pid = broker.nodes[0].process.pid
        ask = make(OffsetFetchRequest, group_id="none", topics=None)
        with Wire(broker.port) as wire:
            _until(lambda: wire.ask(make(FindCoordinatorRequest, key="none", key_type=0)).error_code == 0)
            _until(lambda: wire.ask(ask).error_code == 0)
        yield Side(broker.port, pid, lambda: _live_heap(pid))


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the broker is not ready after {_TIMEOUT_S:g} s")
        time.sleep(0.02)


def _resident(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * float(os.sysconf("SC_PAGE_SIZE"))


def _live_heap(pid: int) -> float:
    """Return the size of the live objects in bytes, from the histogram after a full collection."""
    command = [program("jcmd"), str(pid), "GC.class_histogram"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    total = next(line for line in reversed(printed) if line.startswith("Total"))
    return float(total.split()[2])


def _batch() -> bytes:
    builder = MemoryRecordsBuilder(2, 0, 1 << 20)
    builder.append(1, None, b"x" * 100)
    builder.close()
    return bytes(builder.buffer())


def _produce(topic: str) -> Any:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": _batch()}]}]
    return make(ProduceRequest, transactional_id=None, acks=1, timeout_ms=30_000, topic_data=data)


def _produced(answer: Any) -> bool:
    return bool(answer.responses[0].partition_responses[0].error_code == 0)


def _fetch(topic: str, offset: int) -> Any:
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }
    return make(
        FetchRequest,
        replica_id=-1,
        max_wait_ms=_WAIT_MS,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": [partition]}],
        forgotten_topics_data=[],
        rack_id="",
    )


class WakeUp:
    """One fetch that is parked again and again."""

    def __init__(self, side: Side, stack: ExitStack) -> None:
        self.topic = side.topic()
        self.fetching, self.producing = (stack.enter_context(Wire(side.port)) for _ in range(2))
        self.offset = 1

    def sample(self) -> float:
        """Return the milliseconds from the produce to the answer to the fetch."""
        fetch, produce = _fetch(self.topic, self.offset), _produce(self.topic)
        self.fetching.send(fetch)
        time.sleep(0.003)  # by now, the fetch is parked; there is no event to wait for
        began = time.perf_counter()
        self.producing.send(produce)
        answer = self.fetching.receive(fetch)
        passed = time.perf_counter() - began
        assert answer.responses[0].partitions[0].records, "the fetch is answered without the record"
        self.producing.receive(produce)
        self.offset += 1
        return passed * 1e3


class Barrier:
    """A stable group whose members all join again."""

    def __init__(self, side: Side, stack: ExitStack, members: int) -> None:
        self.wires = [stack.enter_context(Wire(side.port)) for _ in range(members)]
        self.beside = stack.enter_context(Wire(side.port))
        first = self._request("")  # the response contains only a member id
        self.ids = [wire.ask(first).member_id for wire in self.wires]
        self._sync(self._join())

    def _request(self, member: str) -> Any:
        return make(
            JoinGroupRequest,
            group_id="barrier",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id=member,
            group_instance_id=None,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": _SUBSCRIPTION}],
        )

    def _prepares(self) -> bool:
        ask = make(DescribeGroupsRequest, groups=["barrier"], include_authorized_operations=False)
        return bool(self.beside.ask(ask).groups[0].group_state == "PreparingRebalance")

    def _join(self) -> list[Any]:
        """Have all members join; if the group already has a leader, the leader joins first."""
        requests = [self._request(member) for member in self.ids]
        self.wires[0].send(requests[0])
        _until(self._prepares)  # in a stable group, only the leader begins the next generation
        for wire, request in zip(self.wires[1:], requests[1:], strict=True):
            wire.send(request)
        last_sent = time.perf_counter()
        answers = [wire.receive(request) for wire, request in zip(self.wires, requests, strict=True)]
        self.passed = time.perf_counter() - last_sent
        generations = {answer.generation_id for answer in answers}
        assert len(generations) == 1, f"the members are in generations {generations}"
        self.ids = [answer.member_id for answer in answers]
        leader = next(index for index, answer in enumerate(answers) if answer.leader == answer.member_id)
        for column in (self.wires, self.ids, answers):
            column[0], column[leader] = column[leader], column[0]
        return answers

    def _sync(self, joined: list[Any]) -> None:
        requests = [
            make(
                SyncGroupRequest,
                group_id="barrier",
                generation_id=answer.generation_id,
                member_id=answer.member_id,
                group_instance_id=None,
                assignments=[{"member_id": each.member_id, "assignment": b"all"} for each in answer.members],
            )
            for answer in joined
        ]
        for wire, request in zip(self.wires, requests, strict=True):
            wire.send(request)
        for wire, request in zip(self.wires, requests, strict=True):
            wire.receive(request)

    def sample(self) -> float:
        """Return the milliseconds from the last request to the last response."""
        self._sync(self._join())
        return self.passed * 1e3


class Parked:
    """Fetches, each on its own connection, that are all answered by one record."""

    def __init__(self, side: Side, stack: ExitStack, number: int) -> None:
        self.side, self.topic = side, side.topic()
        before = side.used()
        self.wires = [stack.enter_context(Wire(side.port)) for _ in range(number)]
        self.producing = stack.enter_context(Wire(side.port))
        ask = make(MetadataRequest, topics=[], allow_auto_topic_creation=False)
        for wire in self.wires:  # after this, each connection has been accepted and read
            wire.ask(ask)
        self.offset = 1
        self._park()
        time.sleep(0.5)
        self.memory = (side.used() - before) / number
        self._answer()

    def _park(self) -> None:
        self._request = _fetch(self.topic, self.offset)
        for wire in self.wires:
            wire.send(self._request)

    def _answer(self) -> None:
        produce = _produce(self.topic)
        assert _produced(self.producing.ask(produce))
        for wire in self.wires:
            assert wire.receive(self._request).responses[0].partitions[0].records
        self.offset += 1

    def sample(self) -> float:
        """Return the microseconds of the broker's CPU time per fetch."""
        before = self.side.cpu()
        self._park()
        time.sleep(0.3)
        self._answer()
        return (self.side.cpu() - before) / len(self.wires) * 1e6


def rows(scale: Scale) -> Iterator[Row]:
    """Yield the rows of this section.  Raise Unavailable if Maven or a JDK is missing, or if this is not Linux."""
    prepare()
    number = scale.pick(4_000, 500)
    _allow_files(2 * number + 500)
    members = scale.pick(100, 20)
    with ExitStack() as stack:
        ours, real = stack.enter_context(_ours()), stack.enter_context(_real())
        sides = (ours, real)
        yield from _in_turn("fetch wake-up", [WakeUp(side, stack) for side in sides], scale.pick(1_000, 100))
        what = f"join barrier, {members} members"
        yield from _in_turn(what, [Barrier(side, stack, members) for side in sides], scale.pick(50, 10))
        parked = [Parked(side, stack, number) for side in sides]
        samples = _samples(parked, scale.pick(10, 3), warm=scale.pick(10, 3))
        own, theirs = (statistics.median(costs) for costs in samples)
        what = f"CPU of a fetch that is parked and answered, {grouped(number)} at once"
        yield Row(SECTION, what, "us", own, PEER, theirs, theirs / own)
        own, theirs = (each.memory for each in parked)
        note = "memory: resident of ours, live heap of the JVM; connection and request together"
        yield Row(
            SECTION, f"memory of a parked fetch, {grouped(number)} parked", "bytes", own, PEER, theirs, theirs / own
        )
        per_gb = [2**30 / each.memory for each in parked]
        yield Row(
            SECTION, "parked fetches per GiB", "count", per_gb[0], PEER, per_gb[1], per_gb[0] / per_gb[1], note=note
        )


def _samples(contenders: list[Any], number: int, warm: int) -> list[list[float]]:
    """Take samples of both in turn; the first ``warm`` do not count, because the JVM is then still compiling."""
    found: list[list[float]] = [[] for _ in contenders]
    for index in range(warm + number):
        for column, contender in zip(found, contenders, strict=True):
            cost = contender.sample()
            if index >= warm:
                column.append(cost)
    return found


def _in_turn(what: str, contenders: list[Any], number: int) -> Iterator[Row]:
    own, theirs = _samples(contenders, number, warm=number)
    for name, fraction in (("p50", 0.5), ("p99", 0.99)):
        mine, peer = quantile(own, fraction), quantile(theirs, fraction)
        yield Row(SECTION, f"{what}, {name}", "ms", mine, PEER, peer, peer / mine)


def _allow_files(number: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < number:
        if hard != resource.RLIM_INFINITY and hard < number:
            raise Unavailable(f"{number} files must be open at once, and the limit is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
