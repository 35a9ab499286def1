"""``python -m examples.broker.soak --seconds 60``: clients of all kinds at once, and those that mean no good.

A broker in a process of its own; three producers (aiokafka, kafka-python, librdkafka; idempotent, acks=all) write
numbered records, three consumers of the same three kinds share them in one group and are closed and started again at
random, and troublemakers send rubbish, half requests, requests whose answers they do not read or do not wait for.
Somebody reads the whole log as it comes and deletes what the group is done with, so that the log has an end.

At the end it must hold, or the exit code is 1:

*   every record that was acknowledged is in the log exactly once, and in the order in which its producer sent it;
*   the group has seen every record of the log;
*   nothing is parked any more, and no connection is left;
*   the broker's memory is flat: after the first tenth of the time it grows by 4 MiB at most, and of the log no more is
    left than a segment for each partition;
*   the broker has had no error of its own, and ends with exit code 0 when it is told to.
"""

import argparse
import contextlib
import logging
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    import kafka

    from .soak_clients import CONSUMERS, PATIENCE, PRODUCERS, TOPIC, follow, purge
except ModuleNotFoundError as missing:
    message = f"the soak needs {missing.name}: pip install -e '.[test]'"
    raise ModuleNotFoundError(message, name=missing.name) from missing
from .soak_books import CLIENTS, Books
from .soak_broker import BrokerProcess

__all__ = ["main"]

_PARTITIONS = 6
_SEGMENT_BYTES = 256 * 1024
_ROWS = 10
_ALLOWED_GROWTH = 4.0  # MiB, from the first row to the last


def be_members(consume: Any, address: str, books: Books, seed: int) -> None:
    """One member after another, each for a random while; the last stays until everything has been seen."""
    draw = random.Random(seed)
    while not books.producers_done.is_set():
        deadline = time.monotonic() + draw.uniform(1.0, 6.0)
        books.members += 1
        consume(address, books, lambda deadline=deadline: time.monotonic() > deadline)
    books.members += 1
    deadline = time.monotonic() + PATIENCE
    consume(address, books, lambda: time.monotonic() > deadline or books.all_seen())


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


# What is judged


class Memory:
    """The broker's memory and its log's size, both in MiB, a row for each tenth of the time."""

    def __init__(self, broker: BrokerProcess, books: Books) -> None:
        self._broker = broker
        self._books = books
        self._began = time.monotonic()
        self.rows: list[tuple[float, float]] = []
        print("  seconds   records  members  trouble  memory,MiB  log,MiB")

    def look(self) -> None:
        """Print the next row."""
        memory, log = self._broker.resident_mib(), self._broker.log_mib()
        self.rows.append((memory, log))
        seconds, books = time.monotonic() - self._began, self._books
        counts = f"{seconds:>9.0f}{books.records():>10}{books.members:>9}{books.troubles:>9}"
        print(f"{counts}{memory:>12.1f}{log:>9.1f}", flush=True)

    def judge(self) -> None:
        """Note it if it is not flat, or if the log still has what everybody is done with."""
        (first, _), (last, log) = self.rows[0], self.rows[-1]
        if last - first > _ALLOWED_GROWTH:
            self._books.fail(f"the broker's memory has grown by {last - first:.1f} MiB")
        most = len(CLIENTS) * _SEGMENT_BYTES / (1 << 20)  # deleted is what fills a segment
        if log > most:
            self._books.fail(
                f"{log:.1f} MiB of the log are left, more than {most:.2f}, though all of it may be deleted"
            )


def soak(seconds: float, seed: int) -> int:
    """Do it; the exit code."""
    books = Books()
    with BrokerProcess(_PARTITIONS, _SEGMENT_BYTES) as broker:
        try:
            load(broker, books, seconds, seed)
        except Exception as error:
            books.fail(f"the load ended early: {error!r}")
        code = broker.stop()
        if code != 0:
            books.fail("the broker did not end" if code is None else f"the broker ended with exit code {code}")
        books.failures += [f"the broker said: {line.rstrip()}" for line in broker.errors]
    for name in CLIENTS:
        print(f"{name}: {len(books.acknowledged[name])} records acknowledged")
    print(f"{books.members} members came and went, {books.troubles} connections made trouble")
    for failure in books.failures:
        print(f"FAILED: {failure}")
    print("all promises kept" if not books.failures else f"{len(books.failures)} promises broken")
    return 1 if books.failures else 0


def load(broker: BrokerProcess, books: Books, seconds: float, seed: int) -> None:
    """Let them all at the broker for so long, and judge what they were told, and it.  Ends early if the broker does."""
    address = broker.address
    with contextlib.closing(kafka.KafkaAdminClient(bootstrap_servers=address)) as admin:
        admin.create_topics({TOPIC: {"num_partitions": _PARTITIONS, "replication_factor": 3}})
    producers = [_guarded(books, produce, address, books) for produce in PRODUCERS]
    members = [_guarded(books, be_members, consume, address, books, seed + n) for n, consume in enumerate(CONSUMERS)]
    trouble = [_guarded(books, make_trouble, address, books, seed + n) for n in range(10, 12)]
    reader = _guarded(books, follow, address, books)
    memory = Memory(broker, books)
    for _ in range(_ROWS):
        with contextlib.suppress(subprocess.TimeoutExpired):
            broker.process.wait(seconds / _ROWS)
            books.stop.set()
            return
        memory.look()
    books.stop.set()
    _join(broker, books, producers + trouble)
    books.producers_done.set()
    _join(broker, books, [*members, reader])
    books.judge()
    if not broker.has_ended:
        purge(address)
        deadline = time.monotonic() + PATIENCE
        while not (empty := broker.is_empty()) and time.monotonic() < deadline:
            time.sleep(0.1)
        if not empty:
            books.fail(f"something is left: {''.join(broker.table)}")
        memory.look()
        memory.judge()
        print("".join(broker.table), end="")


def _join(broker: BrokerProcess, books: Books, threads: Sequence[threading.Thread]) -> None:
    """Wait until they have ended, or have had twice the time that they take at most, or there is no broker any more."""
    deadline = time.monotonic() + 2 * PATIENCE
    for thread in threads:
        while thread.is_alive() and time.monotonic() < deadline and not broker.has_ended:
            thread.join(0.1)
        if thread.is_alive():
            books.fail(f"{thread.name} has not ended")


def _guarded(books: Books, function: Any, *arguments: Any) -> threading.Thread:
    def run() -> None:
        try:
            function(*arguments)
        except BaseException as error:
            books.fail(f"{function.__name__}: {error!r}")
            raise

    thread = threading.Thread(target=run, name=function.__name__, daemon=True)
    thread.start()
    return thread


def main(argv: Sequence[str] | None = None) -> int:
    """The command; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.broker.soak", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long")
    parser.add_argument("--seed", type=int, default=1, help="of what is random")
    arguments = parser.parse_args(argv)
    if not 0.0 < arguments.seconds < float("inf"):
        parser.error(f"--seconds is a number of seconds above 0, not {arguments.seconds}")
    if not Path("/proc/self/statm").exists():
        parser.error("the memory of another process is read from /proc, which this system does not have")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so the broker is ended, too
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it calls each rebalance an error; what is lost shows
    return soak(arguments.seconds, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
