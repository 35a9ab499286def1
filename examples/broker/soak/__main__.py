"""``python -m examples.broker.soak --seconds 60``: run three kinds of clients and hostile connections at the same time.

The broker runs in a separate process.  Three idempotent producers (aiokafka, kafka-python, librdkafka; acks=all) write
numbered records.  Three consumers that use the same libraries read the records as one group; these consumers are closed
and restarted at random.  Hostile connections send garbage, incomplete requests, and requests whose responses they do
not read.  One more reader follows the whole log and deletes the records that the group has committed, so the log stays
small.

At the end, these conditions must hold; otherwise, the exit code is 1:

*   Every acknowledged record is in the log exactly once, and the records of each producer are in the order in which the
    producer sent them.
*   The group has seen every record of the log.
*   No operation is parked, and no connection is open.
*   The memory use of the broker is flat: after the first tenth of the test, it grows by at most 4 MiB.  The log keeps
    at most one segment per partition.
*   The broker has logged no error and exits with code 0 on SIGTERM.
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

    from .clients import CONSUMERS, PATIENCE, PRODUCERS, TOPIC, purge, read_log
except ModuleNotFoundError as missing:
    message = f"the soak test needs {missing.name!r}, which is not installed: pip install -e '.[test]'"
    raise ModuleNotFoundError(message, name=missing.name) from missing
from .broker_process import BrokerProcess
from .delivery_check import CLIENTS, DeliveryCheck

__all__ = ["main"]

_PARTITIONS = 6
_SEGMENT_BYTES = 256 * 1024
_ROWS = 10
_ALLOWED_GROWTH = 4.0  # MiB, from the first row to the last


def run_members(consume: Any, address: str, delivery: DeliveryCheck, seed: int) -> None:
    """Run one member after another, each for a random time.  The last one stays until all records have been seen."""
    draw = random.Random(seed)
    while not delivery.producers_done.is_set():
        deadline = time.monotonic() + draw.uniform(1.0, 6.0)
        delivery.members += 1
        consume(address, delivery, lambda deadline=deadline: time.monotonic() > deadline)
    delivery.members += 1
    deadline = time.monotonic() + PATIENCE
    consume(address, delivery, lambda: time.monotonic() > deadline or delivery.all_seen())


# Hostile connections


def send_hostile_bytes(address: str, delivery: DeliveryCheck, seed: int) -> None:
    """Open hostile connections one after another."""
    draw = random.Random(seed)
    host, port = address.split(":")
    held: list[socket.socket] = []
    while not delivery.stop.is_set():
        with contextlib.suppress(OSError):
            connection = socket.create_connection((host, int(port)), 5)
            connection.sendall(_hostile_bytes(draw))
            delivery.hostile += 1
            held.append(connection)
            if len(held) > 20:
                held.pop(draw.randrange(len(held))).close()
        time.sleep(0.01)
    for connection in held:
        connection.close()


def _hostile_bytes(draw: random.Random) -> bytes:
    kind = draw.randrange(5)
    if kind == 0:
        return draw.randbytes(draw.randrange(1, 500))
    if kind == 1:
        return struct.pack(">i", draw.choice([-1, 0, 1 << 30, (1 << 31) - 1])) + draw.randbytes(50)
    if kind == 2:
        body = struct.pack(">hhih", draw.randrange(25), draw.randrange(8), 1, -1) + draw.randbytes(draw.randrange(60))
        return struct.pack(">i", len(body)) + body
    if kind == 3:
        return struct.pack(">ihhih", 5000, 0, 7, 1, -1)  # the start of a request that never completes
    return _long_fetch(3) * 50  # more responses than the client reads


def _long_fetch(partition: int) -> bytes:
    """Return a request that fetches from an empty partition and waits for a minute."""
    topic = TOPIC.encode()
    body = struct.pack(">hhih", 1, 4, 1, -1) + struct.pack(">iiiibi", -1, 60_000, 1, 1 << 20, 0, 1)
    body += struct.pack(">h", len(topic)) + topic + struct.pack(">iiqi", 1, partition, 0, 1 << 20)
    return struct.pack(">i", len(body)) + body


# Checks


class Memory:
    """The broker's memory and the size of its log, in MiB, with one row for each tenth of the test."""

    def __init__(self, broker: BrokerProcess, delivery: DeliveryCheck) -> None:
        self._broker = broker
        self._delivery = delivery
        self._began = time.monotonic()
        self.rows: list[tuple[float, float]] = []
        print("  seconds   records  members  trouble  memory,MiB  log,MiB")

    def sample(self) -> None:
        """Take a sample and print it as a row."""
        memory, log = self._broker.resident_mib(), self._broker.log_mib()
        self.rows.append((memory, log))
        seconds, delivery = time.monotonic() - self._began, self._delivery
        counts = f"{seconds:>9.0f}{delivery.records():>10}{delivery.members:>9}{delivery.hostile:>9}"
        print(f"{counts}{memory:>12.1f}{log:>9.1f}", flush=True)

    def verify(self) -> None:
        """Report a failure if the memory use is not flat, or if the log keeps records that can be deleted."""
        (first, _), (last, log) = self.rows[0], self.rows[-1]
        if last - first > _ALLOWED_GROWTH:
            self._delivery.fail(f"memory of the broker grew by {last - first:.1f} MiB")
        most = len(CLIENTS) * _SEGMENT_BYTES / (1 << 20)  # only full segments are freed
        if log > most:
            self._delivery.fail(f"log must have at most {most:.2f} MiB after the deletion, got {log:.1f}")


def soak(seconds: float, seed: int) -> int:
    """Run the soak test and return the exit code."""
    delivery = DeliveryCheck()
    with BrokerProcess(_PARTITIONS, _SEGMENT_BYTES) as broker:
        try:
            load(broker, delivery, seconds, seed)
        except Exception as error:
            delivery.fail(f"the load ended early: {error!r}")
        code = broker.stop()
        if code != 0:
            delivery.fail("the broker did not exit" if code is None else f"the broker exited with code {code}")
        delivery.failures += [f"the broker printed: {line.rstrip()}" for line in broker.errors]
    for name in CLIENTS:
        print(f"{name}: {len(delivery.acknowledged[name])} records acknowledged")
    print(f"{delivery.members} members came and went, {delivery.hostile} connections made trouble")
    for failure in delivery.failures:
        print(f"FAILED: {failure}")
    print("all promises kept" if not delivery.failures else f"{len(delivery.failures)} promises broken")
    return 1 if delivery.failures else 0


def load(broker: BrokerProcess, delivery: DeliveryCheck, seconds: float, seed: int) -> None:
    """Run all clients for ``seconds`` seconds, and then check the results.  Return early if the broker exits."""
    address = broker.address
    with contextlib.closing(kafka.KafkaAdminClient(bootstrap_servers=address)) as admin:
        admin.create_topics({TOPIC: {"num_partitions": _PARTITIONS, "replication_factor": 3}})
    producers = [_guarded(delivery, produce, address, delivery) for produce in PRODUCERS]
    members = [
        _guarded(delivery, run_members, consume, address, delivery, seed + n) for n, consume in enumerate(CONSUMERS)
    ]
    trouble = [_guarded(delivery, send_hostile_bytes, address, delivery, seed + n) for n in range(10, 12)]
    reader = _guarded(delivery, read_log, address, delivery)
    memory = Memory(broker, delivery)
    for _ in range(_ROWS):
        with contextlib.suppress(subprocess.TimeoutExpired):
            broker.process.wait(seconds / _ROWS)
            delivery.stop.set()
            return
        memory.sample()
    delivery.stop.set()
    _join(broker, delivery, producers + trouble)
    delivery.producers_done.set()
    _join(broker, delivery, [*members, reader])
    delivery.verify()
    if not broker.has_ended:
        purge(address)
        if not broker.wait_until_at_rest():
            delivery.fail(f"the broker is not idle: {''.join(broker.table)}")
        memory.sample()
        memory.verify()
        print("".join(broker.table), end="")


def _join(broker: BrokerProcess, delivery: DeliveryCheck, threads: Sequence[threading.Thread]) -> None:
    """Wait until the threads have ended or the broker has exited, for at most twice the time limit of an operation."""
    deadline = time.monotonic() + 2 * PATIENCE
    for thread in threads:
        while thread.is_alive() and time.monotonic() < deadline and not broker.has_ended:
            thread.join(0.1)
        if thread.is_alive():
            delivery.fail(f"thread {thread.name} has not ended")


def _guarded(delivery: DeliveryCheck, function: Any, *arguments: Any) -> threading.Thread:
    def run() -> None:
        try:
            function(*arguments)
        except BaseException as error:
            delivery.fail(f"{function.__name__}: {error!r}")
            raise

    thread = threading.Thread(target=run, name=function.__name__, daemon=True)
    thread.start()
    return thread


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.broker.soak", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of the test")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers")
    arguments = parser.parse_args(argv)
    if not 0.0 < arguments.seconds < float("inf"):
        parser.error(f"--seconds must be above 0 and finite, got {arguments.seconds}")
    if not Path("/proc/self/statm").exists():
        parser.error("the soak test reads the memory of the broker from /proc, which this system does not have")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the broker stops too
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # aiokafka logs each rebalance as an error
    return soak(arguments.seconds, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
