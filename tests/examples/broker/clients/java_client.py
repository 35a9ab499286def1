"""The Java client behind the common interface: one JVM for all instances, controlled over its standard input."""

import atexit
import base64
import functools
import itertools
import queue
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.maven import compile_java
from benchmarks.real_kafka import java, short_run
from tests.examples.broker.clients.base import HEARTBEAT_MS, PATIENCE, SESSION_MS, Member
from tests.kafka.jars import CLIENT, jars

__all__ = ["Java", "JavaError", "is_at_hand"]

_ASSIGNORS = {"range": "RangeAssignor", "sticky": "StickyAssignor", "cooperative-sticky": "CooperativeStickyAssignor"}
_START_S = 60.0  # a JVM starts, on a machine that may be busy

Told = Callable[[str, str], None]


class JavaError(Exception):
    """The client raised an exception; the text is the name of the Java class and its message."""


class _Jvm:
    """The process, and a thread that forwards its output."""

    def __init__(self) -> None:
        path = jars()
        classes = compile_java(CLIENT, path)
        self._process = subprocess.Popen(
            java(f"{path}:{classes}", "Client", options=(*short_run(path), "-Dlog4j2.level=OFF")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )
        self._numbers = itertools.count()
        self._told: dict[str, Told] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()
        atexit.register(self.close)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, kind, text = line.rstrip("\n").split("\t", 2)
            told = self._told.pop(number) if kind in ("ok", "error") else self._told[number]
            told(kind, text)
        for told in list(self._told.values()):
            told("error", "the JVM has ended")

    def start(self, operation: str, told: Told, **given: Any) -> str:
        """Start an operation; ``told`` is called with each line about it, in another thread."""
        number = str(next(self._numbers))
        self._told[number] = told
        words = [f"{name}={value}" for name, value in given.items() if value is not None]
        self._write("\t".join([number, operation, *words]))
        return number

    def stop(self, number: str) -> None:
        """Make a member of a group close its consumer."""
        self._write(f"{number}\tclose")

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()


def is_at_hand() -> bool:
    """Return whether the Java client is available; if every part is required, fail instead of returning False."""
    try:
        jars()
    except pytest.skip.Exception:
        return False
    return True


@functools.cache
def _jvm() -> _Jvm:
    return _Jvm()


class _JavaMember(Member):
    def __init__(self, changed: threading.Condition, given: dict[str, Any]) -> None:
        super().__init__(changed)
        self._given = given
        self._ended: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    def start(self) -> "Member":
        self._number = _jvm().start("member", self._heard, **self._given)
        return self

    def _heard(self, kind: str, text: str) -> None:
        if kind == "value":
            self.got(base64.b64decode(text))
        elif kind == "revoked":
            self.lost(map(int, text.split(",")))
        elif kind == "assigned":
            self.tell(int(number) for number in text.split(",") if number)
        else:
            self._ended.put((kind, text))
            self.tell(())

    def close(self) -> None:
        _jvm().stop(self._number)
        self.wait()

    def wait(self) -> None:
        """Wait until the consumer has ended.  Raise JavaError if it ended by itself."""
        kind, text = self._ended.get(timeout=PATIENCE)
        if kind == "error":
            raise JavaError(text)


class Java:
    """Kafka's Java client."""

    name = "java"
    codecs = ("gzip", "snappy", "lz4", "zstd")
    strategies = ("range", "sticky", "cooperative-sticky")
    session_ms = SESSION_MS
    replicas = 3

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        _jvm()

    def _do(self, operation: str, **given: Any) -> str:
        ended: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        _jvm().start(operation, lambda *told: ended.put(told), **{"bootstrap.servers": self.address, **given})
        kind, text = ended.get(timeout=2 * PATIENCE)
        if kind == "error":
            raise JavaError(text)
        return text

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        self._do("create", topic=topic, partitions=partitions, replicas=self.replicas)

    def delete_records(self, topic: str, offset: int) -> int:
        return int(self._do("delete", topic=topic, offset=offset))

    def groups(self) -> set[str]:
        """Return the names of all groups."""
        return set(self._do("groups").split(","))

    def produce(
        self,
        topic: str,
        values: list[bytes],
        *,
        acks: Any = 1,
        idempotent: bool = False,
        codec: str | None = None,
        timeout: float = PATIENCE,
        partition: int | None = None,
    ) -> list[int]:
        options = {
            "acks": acks,
            "enable.idempotence": str(idempotent).lower(),
            "compression.type": codec or "none",
            "linger.ms": 0,
            "request.timeout.ms": int(timeout * 1000),
            "delivery.timeout.ms": int(timeout * 1000) + 1000,
        }
        sent = ",".join(base64.b64encode(value).decode() for value in values)
        offsets = self._do("produce", topic=topic, values=sent, partition=partition, **options)
        return [int(offset) for offset in offsets.split(",")]

    def consume(self, topic: str, number: int, **options: Any) -> list[bytes]:
        names = {"min_bytes": "fetch.min.bytes", "max_wait_ms": "fetch.max.wait.ms"}
        given = {names[name]: value for name, value in options.items()}
        values = self._do("consume", topic=topic, number=number, patience=int(PATIENCE * 1000), **given)
        return [base64.b64decode(value) for value in values.split(",")]

    def offsets(self, topic: str) -> tuple[int, int]:
        first, last = self._do("offsets", topic=topic).split(",")
        return int(first), int(last)

    def commit(self, group: str, topic: str, offset: int) -> int:
        return int(self._do("commit", topic=topic, offset=offset, **{"group.id": group}))

    def member(
        self, changed: threading.Condition, topic: str, group: str, strategy: str, instance: str | None = None
    ) -> Member:
        """Start a member.  ``strategy`` is an assignor, or ``consumer`` for the group protocol of KIP-848."""
        options: dict[str, Any] = {"group.protocol": "consumer"}
        if strategy != "consumer":
            options = {
                "session.timeout.ms": self.session_ms,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "partition.assignment.strategy": f"org.apache.kafka.clients.consumer.{_ASSIGNORS[strategy]}",
            }
        options |= {"group.id": group, "group.instance.id": instance, "auto.offset.reset": "earliest"}
        return _JavaMember(changed, {"topic": topic, "bootstrap.servers": self.address, **options}).start()
