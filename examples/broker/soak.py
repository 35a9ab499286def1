"""``python -m examples.broker.soak --seconds 60``: clients of all kinds at once, and those that mean no good.

A broker in a process of its own; three producers (aiokafka, kafka-python, librdkafka; idempotent, acks=all) write
numbered records, three consumers of the same three kinds share them in one group and are closed and started again at
random, and troublemakers send rubbish, half requests, requests whose answers they do not read or do not wait for.

At the end it must hold, or the exit code is 1:

*   every record that was acknowledged is in the log exactly once, and in the order in which its producer sent it;
*   the group has seen every record of the log;
*   nothing is parked any more, and no connection is left;
*   the broker has had no error of its own, and ends with exit code 0 when it is told to.
"""

import argparse
import contextlib
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import kafka

from .soak_clients import CONSUMERS, PATIENCE, PRODUCERS, TOPIC, Books

__all__ = ["main"]

_PARTITIONS = 6
_CLIENTS = ("aiokafka", "kafka-python", "confluent-kafka")


def be_members(consume: Any, address: str, books: Books, seed: int) -> None:
    """One member after another, each for a random while; the last stays until everything has been seen."""
    draw = random.Random(seed)
    while not books.producers_done.is_set():
        deadline = time.monotonic() + draw.uniform(1.0, 6.0)
        books.members += 1
        consume(address, books, lambda deadline=deadline: time.monotonic() > deadline)
    books.members += 1
    deadline = time.monotonic() + PATIENCE
    consume(address, books, lambda: time.monotonic() > deadline or all_seen(books))


def all_seen(books: Books) -> bool:
    """Whether the group has seen as many records as were acknowledged."""
    return len(books.seen) >= sum(len(numbers) for numbers in books.acknowledged.values())


# Troublemakers


def make_trouble(address: str, books: Books, seed: int) -> None:
    """Connections that no broker wants, one after the other."""
    draw = random.Random(seed)
    host, port = address.split(":")
    held: list[socket.socket] = []
    while not books.stop.is_set():
        with contextlib.suppress(OSError):
            connection = socket.create_connection((host, int(port)), 5)
            connection.sendall(_trouble(draw))
            books.troubles += 1
            held.append(connection)
            if len(held) > 20:
                held.pop(draw.randrange(len(held))).close()
        time.sleep(0.01)
    for connection in held:
        connection.close()


def _trouble(draw: random.Random) -> bytes:
    kind = draw.randrange(5)
    if kind == 0:
        return draw.randbytes(draw.randrange(1, 500))
    if kind == 1:
        return struct.pack(">i", draw.choice([-1, 0, 1 << 30, (1 << 31) - 1])) + draw.randbytes(50)
    if kind == 2:
        body = struct.pack(">hhih", draw.randrange(25), draw.randrange(8), 1, -1) + draw.randbytes(draw.randrange(60))
        return struct.pack(">i", len(body)) + body
    if kind == 3:
        return struct.pack(">ihhih", 5000, 0, 7, 1, -1)  # a request of which no more will come
    return _long_fetch(3) * 50  # more than is ever read


def _long_fetch(partition: int) -> bytes:
    """A fetch of an empty partition that waits for a minute."""
    topic = TOPIC.encode()
    body = struct.pack(">hhih", 1, 4, 1, -1) + struct.pack(">iiiibi", -1, 60_000, 1, 1 << 20, 0, 1)
    body += struct.pack(">h", len(topic)) + topic + struct.pack(">iiqi", 1, partition, 0, 1 << 20)
    return struct.pack(">i", len(body)) + body


# What must hold


def read_back(address: str, expected: int, books: Books) -> list[list[bytes]]:
    """The values of the whole log, by partition; a failure if for too long nothing more of it comes."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest", enable_auto_commit=False)
    partitions = [kafka.TopicPartition(TOPIC, index) for index in range(_PARTITIONS)]
    consumer.assign(partitions)
    ends = consumer.end_offsets(partitions)
    values: list[list[bytes]] = [[] for _ in partitions]
    whole = sum(ends.values())
    deadline = time.monotonic() + PATIENCE
    while (read := sum(map(len, values))) < whole:
        if time.monotonic() > deadline:
            books.fail(f"only {read} of {whole} records could be read back")
            break
        for partition, messages in consumer.poll(timeout_ms=1000, max_records=expected).items():
            values[partition.partition] += [message.value for message in messages]
            deadline = time.monotonic() + PATIENCE
    consumer.close()
    return values


def judge(books: Books, log: list[list[bytes]]) -> None:
    """Note every promise that was not kept."""
    whole = [value for values in log for value in values]
    for index, name in enumerate(_CLIENTS):
        numbers = [int(value.split()[1]) for value in log[index]]
        acknowledged = books.acknowledged[name]
        if not acknowledged:
            books.fail(f"{name} was never acknowledged anything")
        if numbers != sorted(set(numbers)):
            books.fail(f"{name}: records twice, or out of order")
        lost = set(acknowledged) - set(numbers)
        if lost:
            books.fail(f"{name}: {len(lost)} acknowledged records are not in the log")
    unseen = set(whole) - books.seen
    if unseen:
        books.fail(f"the group has not seen {len(unseen)} of {len(whole)} records")


class BrokerProcess:
    """The broker under test, and what it says of itself each second."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "examples.broker", "--port", "0", "--stats", "--partitions", str(_PARTITIONS)]
        command += ["--initial-rebalance-delay", "0.1", "--min-session-timeout", "0.5", "--frame-timeout", "5"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[-1]
        self.said: list[str] = []
        self.errors: list[str] = []
        self._threads = [threading.Thread(target=self._listen), threading.Thread(target=self._hear_errors)]
        for thread in self._threads:
            thread.start()

    def _listen(self) -> None:
        self.said += iter(self.process.stdout or ())

    def _hear_errors(self) -> None:
        self.errors += iter(self.process.stderr or ())

    def resident_mib(self) -> float:
        """Its memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * 4096 / (1 << 20)

    def log_mib(self) -> float:
        """What its latest table says of the log, which it keeps in memory."""
        found = re.search(r"log (\d+) bytes", self.said[-1])
        return int(found[1]) / (1 << 20) if found else 0.0

    def is_empty(self) -> bool:
        """Whether its latest table says that nobody waits and nobody is connected."""
        return bool(self.said) and re.search(r"^connections 0,.* buffered 0 bytes", self.said[-1]) is not None

    def stop(self) -> int:
        """Tell it to end; its exit code."""
        self.process.terminate()
        code = self.process.wait(PATIENCE)
        for thread in self._threads:
            thread.join()
        return code


def soak(seconds: float, seed: int) -> int:
    """Do it; the exit code."""
    books, broker = Books(), BrokerProcess()
    address = broker.address
    with contextlib.closing(kafka.KafkaAdminClient(bootstrap_servers=address)) as admin:
        admin.create_topics({TOPIC: {"num_partitions": _PARTITIONS, "replication_factor": 3}})
    started_with = broker.resident_mib()
    producers = [_guarded(books, produce, address, books) for produce in PRODUCERS]
    members = [_guarded(books, be_members, consume, address, books, seed + n) for n, consume in enumerate(CONSUMERS)]
    trouble = [_guarded(books, make_trouble, address, books, seed + n) for n in range(10, 12)]
    time.sleep(seconds)
    books.stop.set()
    for thread in producers + trouble:
        thread.join()
    books.producers_done.set()
    for thread in members:
        thread.join()
    records = sum(len(numbers) for numbers in books.acknowledged.values())
    judge(books, read_back(address, records, books))
    deadline = time.monotonic() + PATIENCE
    while not broker.is_empty() and time.monotonic() < deadline:
        time.sleep(0.1)
    if not broker.is_empty():
        books.fail(f"something is left: {broker.said[-1:]}")
    print("".join(broker.said[-8:]), end="")
    ended_with = broker.resident_mib()
    code = broker.stop()
    if code:
        books.fail(f"the broker ended with exit code {code}")
    books.failures += [f"the broker said: {line.rstrip()}" for line in broker.errors]
    for name in _CLIENTS:
        print(f"{name}: {len(books.acknowledged[name])} records acknowledged")
    print(f"{books.members} members came and went, {books.troubles} connections made trouble")
    log_mib = broker.log_mib()
    print(
        f"the broker's memory: {started_with:.0f} MiB at first, {ended_with:.0f} MiB at the end,"
        f" when its log holds {log_mib:.0f} MiB of records"
    )
    for failure in books.failures:
        print(f"FAILED: {failure}")
    print("all promises kept" if not books.failures else f"{len(books.failures)} promises broken")
    return 1 if books.failures else 0


def _guarded(books: Books, function: Any, *arguments: Any) -> threading.Thread:
    def run() -> None:
        try:
            function(*arguments)
        except BaseException as error:
            books.fail(f"{function.__name__}: {error!r}")
            raise

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def main() -> int:
    """The command; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.broker.soak", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long")
    parser.add_argument("--seed", type=int, default=1, help="of what is random")
    arguments = parser.parse_args()
    return soak(arguments.seconds, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
