"""The example broker under load: ``python -m benchmarks.broker_load``.  For a comparison with Kafka, see ``broker``.

*   *Parked at once.*  Fetches (and JoinGroup requests) wait in one process, each on its own connection and encoded as a
    client encodes it.  The peers of these connections are in memory, because the default limits of a process do not
    allow that many sockets.  Then one record is produced; it answers every fetch.
*   *Round trips.*  One client sends requests with acks=all over a real socket to a broker in another process, and keeps
    several requests in flight.  Like Kafka, the broker handles one request per connection at a time, so a round trip
    is: frame in, decode, append, park, two followers' copies, wake, encode, frame out.
"""

import argparse
import asyncio
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, Self

from kafka.protocol.consumer import FetchRequest, JoinGroupRequest
from kafka.protocol.producer import ProduceRequest
from kafka.record.memory_records import MemoryRecordsBuilder

from examples.broker import Server, Settings
from examples.broker.network.connection import Connection
from examples.group import GroupConfig

__all__ = ["main"]

_WAIT_MS = 600_000


def frame(request: Any, version: int, correlation_id: int = 1) -> bytes:
    """Return the request as a client sends it."""
    body = struct.pack(">hhih", request.API_KEY, version, correlation_id, -1) + bytes(request.encode(version=version))
    return struct.pack(">i", len(body)) + body


def fetch_frame(topic: str) -> bytes:
    """Return a request that fetches from one partition and waits for one byte."""
    topic_type = FetchRequest.FetchTopic
    partition = topic_type.FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=0, log_start_offset=-1, partition_max_bytes=1 << 20
    )
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=_WAIT_MS,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[topic_type(topic=topic, partitions=[partition])],
        forgotten_topics_data=[],
        rack_id="",
    )
    return frame(request, 11)


def join_frame(group: str) -> bytes:
    """Return a JoinGroup request in a version that does not require a member id in advance."""
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"topics")
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=_WAIT_MS,
        rebalance_timeout_ms=_WAIT_MS,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
    )
    return frame(request, 3)


def produce_frame(topic: str, acks: int, size: int) -> bytes:
    """Return a produce request with one record."""
    builder = MemoryRecordsBuilder(2, 0, 1 << 20)
    builder.append(1, None, b"x" * size)
    builder.close()
    topic_type = ProduceRequest.TopicProduceData
    data = topic_type.PartitionProduceData(index=0, records=bytes(builder.buffer()))
    request = ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout_ms=60_000,
        topic_data=[topic_type(name=topic, partition_data=[data])],
    )
    return frame(request, 7)


class Memory:
    """The other end of a connection; it counts the responses."""

    __slots__ = ("answered",)

    def __init__(self, answered: list[int]) -> None:
        self.answered = answered

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 0) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        """Return 0: every byte has been sent."""

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.answered[0] += 1

    def close(self) -> None:
        """Do nothing: there is no socket."""

    abort = close


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


class LongestTurn:
    """The longest turn of the event loop."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._stopped = False

    async def watch(self) -> None:
        last = time.perf_counter()
        while not self._stopped:
            await asyncio.sleep(0)
            now = time.perf_counter()
            self.longest = max(self.longest, now - last)
            last = now

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.watch())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopped = True
        await self._task


def connect(server: Server, count: list[int], sent: bytes) -> Connection:
    """Return a connection on which a request has arrived."""
    connection = Connection(server)
    connection.connection_made(Memory(count))
    connection.data_received(sent)
    return connection


async def parked_at_once(fetches: int, joins: int, group_size: int) -> None:
    """Park the requests, answer them, and print how long that took."""
    group = GroupConfig(initial_rebalance_delay=_WAIT_MS / 1000)
    settings = Settings(port=0, max_connections=fetches + joins + 10, replication_delay=0.0, group=group)
    async with Server(settings) as server:
        broker = server.broker
        broker.topics.create("t")
        answered, joined = [0], [0]
        before, began = resident_bytes(), time.perf_counter()
        sent = fetch_frame("t")
        connections = []
        for number in range(fetches):
            connections.append(connect(server, answered, sent))
            if number % 500 == 499:
                await asyncio.sleep(0)
        await until(lambda: len(broker.fetch) == fetches)
        passed = time.perf_counter() - began
        each = (resident_bytes() - before) / fetches
        print(f"{fetches} fetches parked at once in {passed:.2f} s: {fetches / passed:,.0f}/s, {each:,.0f} bytes each")
        before, began = resident_bytes(), time.perf_counter()
        for number in range(joins):
            connections.append(connect(server, joined, join_frame(f"group-{number // group_size}")))
            if number % 500 == 499:
                await asyncio.sleep(0)
        await until(lambda: sum(g.awaiting_join for g in broker.groups.groups.values()) == joins)
        passed = time.perf_counter() - began
        each = (resident_bytes() - before) / joins
        print(f"{joins} joins parked beside them in {passed:.2f} s: {joins / passed:,.0f}/s, {each:,.0f} bytes each")
        async with LongestTurn() as turns:
            began = time.perf_counter()
            producer = connect(server, [0], produce_frame("t", -1, 100))
            await until(lambda: answered[0] == fetches)
            passed = time.perf_counter() - began
        print(f"one record answers all {fetches} in {passed:.2f} s, the longest loop turn being {turns.longest:.2f} s")
        for connection in [*connections, producer]:
            connection.connection_lost(None)
        await until(lambda: not server.connections)


async def until(condition: Any) -> None:
    """Let the event loop run until the condition holds."""
    while not condition():
        await asyncio.sleep(0)


class Pipeline(asyncio.Protocol):
    """A client that keeps ``window`` requests in flight until ``number`` of them are answered."""

    def __init__(self, request: bytes, number: int, window: int) -> None:
        self.request, self.number, self.window = request, number, window
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waits: list[float] = []
        self.errors = 0
        self._sent: deque[float] = deque()
        self._buffer = bytearray()
        self._left = number

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._send(self.window)

    def _send(self, number: int) -> None:
        number = min(number, self._left)
        if number:
            self._left -= number
            self._sent.extend([time.perf_counter()] * number)
            self._transport.write(self.request * number)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        answered = 0
        while len(self._buffer) >= 4:
            (size,) = struct.unpack_from(">i", self._buffer)
            if len(self._buffer) < size + 4:
                break
            # size, correlation id, one topic: name "t", one partition: index, error
            (error,) = struct.unpack_from(">h", self._buffer, 4 + 4 + 4 + 3 + 4 + 4)
            self.errors += error != 0
            del self._buffer[: size + 4]
            self.waits.append(time.perf_counter() - self._sent.popleft())
            answered += 1
        self._send(answered)
        if len(self.waits) == self.number:
            self._transport.close()
            if not self.done.done():
                self.done.set_result(None)


async def round_trips(port: int, number: int, window: int, acks: int, delay: float) -> None:
    """Produce records, and print how fast that was."""
    loop = asyncio.get_running_loop()
    client = Pipeline(produce_frame("t", acks, 100), number, window)
    began = time.perf_counter()
    await loop.create_connection(lambda: client, "127.0.0.1", port)
    await client.done
    passed = time.perf_counter() - began
    if client.errors:
        raise SystemExit(f"{client.errors} of {number} requests failed")
    waits = sorted(client.waits)
    print(
        f"acks={'all' if acks == -1 else acks}, followers copy in {delay * 1e3:g} ms, {window} in flight:"
        f" {number / passed:,.0f} round trips/s, p50 {waits[number // 2] * 1e3:.1f} ms,"
        f" p99 {waits[number * 99 // 100] * 1e3:.1f} ms"
    )


def with_broker(delay: float, options: list[str], number: int, windows: list[tuple[int, int]]) -> None:
    """Start a broker, send it requests, and stop it."""
    command = [sys.executable, "-m", "examples.broker", "--port", "0", "--replication-delay", str(delay), *options]
    root = Path(__file__).resolve().parent.parent
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().rpartition(":")[2])
            make_topic(port)
            for acks, window in windows:
                run(round_trips(port, number, window, acks, delay), options)
        finally:
            process.terminate()
            assert process.wait(10) == 0, "the broker ended with an error"


def make_topic(port: int) -> None:
    """Create topic t with two followers, using kafka-python."""
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{port}")
    admin.create_topics({"t": {"num_partitions": 1, "replication_factor": 3}})
    admin.close()


def run(coroutine: Any, options: list[str]) -> None:
    """Run the coroutine on the same kind of event loop as the broker uses."""
    if "--no-uvloop" in options:
        asyncio.run(coroutine)
    else:
        import uvloop

        uvloop.run(coroutine)


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fetches", type=int, default=50_000, help="parked at once")
    parser.add_argument("--joins", type=int, default=10_000, help="parked at once")
    parser.add_argument("--group-size", type=int, default=50, help="members of a group")
    parser.add_argument("--requests", type=int, default=20_000, help="round trips")
    parser.add_argument("--no-uvloop", action="store_true", help="both sides on asyncio's own loop")
    arguments = parser.parse_args()
    options = ["--no-uvloop"] if arguments.no_uvloop else []
    print(f"Python {sys.version.split()[0]}, {'asyncio' if options else 'uvloop'}")
    run(parked_at_once(arguments.fetches, arguments.joins, arguments.group_size), options)
    with_broker(0.0, options, arguments.requests, [(1, 64), (-1, 64), (-1, 1)])
    with_broker(0.001, options, min(arguments.requests, 2000), [(-1, 64)])


if __name__ == "__main__":
    main()
