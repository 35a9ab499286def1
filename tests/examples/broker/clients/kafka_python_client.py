"""kafka-python behind the common interface of the clients."""

import threading
import time
from collections.abc import Callable
from typing import Any

import kafka
import kafka.admin
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor as KafkaRange
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as KafkaSticky

from tests.examples.broker.clients.base import HEARTBEAT_MS, PATIENCE, SESSION_MS, Member, fetch_waits

__all__ = ["KafkaPython"]


class _KafkaListener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: Member) -> None:
        self.member = member
        self.consumer: Any = None

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.member.lost(p.partition for p in revoked)
        self.member.tell(p.partition for p in self.consumer.assignment() if p not in revoked)

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.member.tell(p.partition for p in self.consumer.assignment())


class _KafkaMember(Member):
    def __init__(self, changed: threading.Condition, topic: str, options: dict[str, Any]) -> None:
        super().__init__(changed)
        self.topic, self.options = topic, options

    def poll_until(self, stopped: Callable[[], bool]) -> None:
        consumer = kafka.KafkaConsumer(**self.options)
        try:
            listener = _KafkaListener(self)
            listener.consumer = consumer
            consumer.subscribe([self.topic], listener=listener)
            while not stopped():
                # Long, because a poll that ends before the response to SyncGroup arrives loses the rebalance.
                for messages in consumer.poll(timeout_ms=500).values():
                    for message in messages:
                        self.got(message.value)
        finally:
            consumer.close()


class KafkaPython:
    """The client kafka-python."""

    name = "kafka-python"
    codecs = ("gzip",)
    strategies = ("range", "sticky", "cooperative-sticky")
    session_ms = SESSION_MS
    replicas = 3

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        admin = kafka.KafkaAdminClient(bootstrap_servers=self.address)
        try:
            admin.create_topics({topic: {"num_partitions": partitions, "replication_factor": self.replicas}})
        finally:
            admin.close()

    def delete_records(self, topic: str, offset: int) -> int:
        admin = kafka.KafkaAdminClient(bootstrap_servers=self.address)
        try:
            tp = kafka.TopicPartition(topic, 0)
            answer = admin.delete_records({tp: offset})[tp]
            return int(answer["low_watermark"] if isinstance(answer, dict) else answer.low_watermark)
        finally:
            admin.close()

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
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.address,
            acks=acks,
            enable_idempotence=idempotent,
            compression_type=codec,
            request_timeout_ms=int(timeout * 1000),
            delivery_timeout_ms=int(timeout * 1000) + 1,
        )
        try:
            sent = [producer.send(topic, value, partition=partition) for value in values]
            return [one.get(PATIENCE).offset for one in sent]
        finally:
            producer.close(timeout=1)

    def _consumer(self, **options: Any) -> Any:
        return kafka.KafkaConsumer(
            bootstrap_servers=self.address, auto_offset_reset="earliest", enable_auto_commit=False, **options
        )

    def consume(self, topic: str, number: int, **options: Any) -> list[bytes]:
        consumer = self._consumer(**fetch_waits(options))
        try:
            consumer.assign([kafka.TopicPartition(topic, 0)])
            values: list[bytes] = []
            deadline = time.monotonic() + PATIENCE
            while len(values) < number and time.monotonic() < deadline:
                for messages in consumer.poll(timeout_ms=1000, max_records=number - len(values)).values():
                    values += [message.value for message in messages]
            return values
        finally:
            consumer.close()

    def offsets(self, topic: str) -> tuple[int, int]:
        consumer = self._consumer()
        try:
            tp = kafka.TopicPartition(topic, 0)
            return consumer.beginning_offsets([tp])[tp], consumer.end_offsets([tp])[tp]
        finally:
            consumer.close()

    def commit(self, group: str, topic: str, offset: int) -> int:
        tp = kafka.TopicPartition(topic, 0)
        consumer = self._consumer(group_id=group)
        consumer.assign([tp])
        consumer.commit({tp: kafka.OffsetAndMetadata(offset, "", -1)})
        consumer.close()
        consumer = self._consumer(group_id=group)
        try:
            return int(consumer.committed(tp))
        finally:
            consumer.close()

    def member(
        self, changed: threading.Condition, topic: str, group: str, strategy: str, instance: str | None = None
    ) -> Member:
        assignor = {"range": KafkaRange, "sticky": KafkaSticky, "cooperative-sticky": CooperativeStickyAssignor}[
            strategy
        ]
        return _KafkaMember(
            changed,
            topic,
            {
                "bootstrap_servers": self.address,
                "group_id": group,
                "group_instance_id": instance,
                "auto_offset_reset": "earliest",
                "session_timeout_ms": self.session_ms,
                "heartbeat_interval_ms": HEARTBEAT_MS,
                "partition_assignment_strategy": (assignor,),
            },
        ).start()
