"""confluent-kafka, which uses librdkafka, behind the common interface of the clients."""

import threading
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import confluent_kafka.admin

from tests.examples.broker.clients.base import HEARTBEAT_MS, PATIENCE, SESSION_MS, Member

__all__ = ["Confluent"]

confluent_admin: Any = confluent_kafka.admin


class _ConfluentMember(Member):
    def __init__(self, changed: threading.Condition, topic: str, options: dict[str, Any]) -> None:
        super().__init__(changed)
        self.topic, self.options = topic, options

    def poll_until(self, stopped: Callable[[], bool]) -> None:
        consumer = confluent_kafka.Consumer(self.options)
        try:
            consumer.subscribe([self.topic], on_revoke=self._revoked)
            while not stopped():
                message = consumer.poll(0.02)
                if message is not None and message.error() is None:
                    self.got(message.value() or b"")
                assigned = frozenset(p.partition for p in consumer.assignment())
                if assigned != self.assigned:
                    self.tell(assigned)
        finally:
            consumer.close()

    def _revoked(self, _: Any, partitions: Any) -> None:
        self.lost(p.partition for p in partitions)


class Confluent:
    """The client confluent-kafka, which uses librdkafka."""

    name = "confluent-kafka"
    codecs = ("gzip", "snappy", "lz4", "zstd")
    strategies = ("range", "cooperative-sticky")
    session_ms = SESSION_MS
    replicas = 3

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        admin: Any = confluent_kafka.admin.AdminClient({"bootstrap.servers": self.address})
        created = admin.create_topics([confluent_admin.NewTopic(topic, partitions, self.replicas)])
        created[topic].result(PATIENCE)

    def delete_records(self, topic: str, offset: int) -> int:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": self.address})
        deleted = admin.delete_records([confluent_kafka.TopicPartition(topic, 0, offset)])
        (future,) = deleted.values()
        return int(future.result(PATIENCE).low_watermark)

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
        options: dict[str, Any] = {
            "bootstrap.servers": self.address,
            "enable.idempotence": idempotent,
            "compression.type": codec or "none",
            "linger.ms": 0,
            "request.timeout.ms": int(timeout * 1000),
            "message.timeout.ms": int(timeout * 1000) + 1000,
        }
        if not idempotent:
            options["acks"] = acks
        producer = confluent_kafka.Producer(options)
        offsets: list[int] = []
        errors: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                errors.append(error)
            else:
                offsets.append(message.offset())

        where: dict[str, Any] = {} if partition is None else {"partition": partition}
        for value in values:
            producer.produce(topic, value, on_delivery=delivered, **where)
        assert producer.flush(PATIENCE) == 0
        if errors:
            raise confluent_kafka.KafkaException(errors[0])
        return offsets

    def _consumer(self, **options: Any) -> Any:
        waits = {f"fetch.{name}": value for name, value in options.items() if name != "group"}
        names = {"fetch.min_bytes": "fetch.min.bytes", "fetch.max_wait_ms": "fetch.wait.max.ms"}
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": options.get("group", "none"),
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **{names[name]: value for name, value in waits.items()},
            }
        )

    def consume(self, topic: str, number: int, **options: Any) -> list[bytes]:
        consumer = self._consumer(**options)
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
            values: list[bytes] = []
            deadline = time.monotonic() + PATIENCE
            while len(values) < number and time.monotonic() < deadline:
                message = consumer.poll(0.5)
                if message is not None:
                    assert message.error() is None, message.error()
                    values.append(message.value())
            return values
        finally:
            consumer.close()

    def offsets(self, topic: str) -> tuple[int, int]:
        consumer = self._consumer()
        try:
            first, last = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), PATIENCE)
            return first, last
        finally:
            consumer.close()

    def commit(self, group: str, topic: str, offset: int) -> int:
        consumer = self._consumer(group=group)
        consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, offset)], asynchronous=False)
        consumer.close()
        consumer = self._consumer(group=group)
        try:
            return int(consumer.committed([confluent_kafka.TopicPartition(topic, 0)], PATIENCE)[0].offset)
        finally:
            consumer.close()

    def member(
        self, changed: threading.Condition, topic: str, group: str, strategy: str, instance: str | None = None
    ) -> Member:
        static = {} if instance is None else {"group.instance.id": instance}
        return _ConfluentMember(
            changed,
            topic,
            {
                "bootstrap.servers": self.address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": self.session_ms,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "partition.assignment.strategy": strategy,
                **static,
            },
        ).start()
