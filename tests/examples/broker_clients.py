"""Three Kafka clients behind one face, as they come: aiokafka, kafka-python, confluent-kafka (librdkafka).

Everything here is synchronous.  A :class:`Member` of a group polls in a thread of its own, as an application would, and
tells what it has been assigned.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka
import aiokafka.admin
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as AioSticky
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor as KafkaRange
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as KafkaSticky

confluent_admin: Any = confluent_kafka.admin

__all__ = ["CLIENTS", "Member", "client_named"]

PATIENCE = 15.0  # seconds; nothing waits so long unless it fails
SESSION_MS = 1000
HEARTBEAT_MS = 100


class Member:
    """A consumer in a group.  ``assigned``: its partitions now; ``revoked``: all that it ever lost to a rebalance."""

    def __init__(self, changed: threading.Condition) -> None:
        self.changed = changed
        self.assigned: frozenset[int] = frozenset()
        self.revoked: list[int] = []
        self.values: list[bytes] = []
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True)

    def start(self) -> "Member":
        self._thread.start()
        return self

    def close(self) -> None:
        """Leave the group, as the client does when it is closed."""
        self._stop.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the client does not close"
        if self.error is not None:
            raise self.error

    def tell(self, assigned: Any) -> None:
        with self.changed:
            self.assigned = frozenset(assigned)
            self.changed.notify_all()

    def lost(self, partitions: Any) -> None:
        self.revoked += list(partitions)

    def got(self, value: bytes) -> None:
        with self.changed:
            self.values.append(value)
            self.changed.notify_all()

    def _main(self) -> None:
        try:
            self.poll_until(self._stop.is_set)
        except BaseException as error:
            self.error = error
        finally:
            self.tell(())

    def poll_until(self, stopped: Callable[[], bool]) -> None:
        raise NotImplementedError


# aiokafka


class _AioListener(aiokafka.abc.ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: Member) -> None:
        self.member = member

    async def on_partitions_revoked(self, revoked: Any) -> None:
        self.member.lost(p.partition for p in revoked)

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self.member.tell(p.partition for p in assigned)


class _AioMember(Member):
    def __init__(self, changed: threading.Condition, topic: str, options: dict[str, Any]) -> None:
        super().__init__(changed)
        self.topic, self.options = topic, options

    def poll_until(self, stopped: Callable[[], bool]) -> None:
        asyncio.run(self._poll(stopped))

    async def _poll(self, stopped: Callable[[], bool]) -> None:
        consumer = aiokafka.AIOKafkaConsumer(**self.options)
        consumer.subscribe([self.topic], listener=_AioListener(self))
        await consumer.start()
        try:
            while not stopped():
                for messages in (await consumer.getmany(timeout_ms=20)).values():
                    for message in messages:
                        self.got(message.value)
        finally:
            await consumer.stop()


class Aio:
    """aiokafka."""

    name = "aiokafka"
    codecs = ("gzip",)
    strategies = ("range", "sticky")

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        async def run() -> None:
            admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=self.address)
            await admin.start()
            try:
                response = await admin.create_topics([aiokafka.admin.NewTopic(topic, partitions, 1)])
                assert [entry[1] for entry in response.topic_errors] == [0]
            finally:
                await admin.close()

        asyncio.run(run())

    def delete_records(self, topic: str, offset: int) -> int:
        async def run() -> int:
            admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=self.address)
            await admin.start()
            try:
                tp = aiokafka.TopicPartition(topic, 0)
                before = aiokafka.admin.RecordsToDelete(before_offset=offset)
                return int((await admin.delete_records({tp: before}))[tp])
            finally:
                await admin.close()

        return asyncio.run(run())

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
        async def run() -> list[int]:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self.address,
                acks="all" if acks == -1 else acks,
                enable_idempotence=idempotent,
                compression_type=codec,
                request_timeout_ms=int(timeout * 1000),
            )
            await producer.start()
            try:
                sent = [await producer.send(topic, value, partition=partition) for value in values]
                return [(await one).offset if acks else -1 for one in sent]
            finally:
                await producer.stop()

        return asyncio.run(run())

    @contextlib.contextmanager
    def _consumer(self, **options: Any) -> Iterator[Any]:
        with asyncio.Runner() as runner:

            async def start() -> Any:
                consumer = aiokafka.AIOKafkaConsumer(
                    bootstrap_servers=self.address, auto_offset_reset="earliest", enable_auto_commit=False, **options
                )
                await consumer.start()
                return consumer

            consumer = runner.run(start())
            try:
                yield lambda coroutine: runner.run(asyncio.wait_for(coroutine(consumer), PATIENCE))
            finally:
                runner.run(consumer.stop())

    def consume(self, topic: str, number: int, **options: Any) -> list[bytes]:
        tp = aiokafka.TopicPartition(topic, 0)

        async def read(consumer: Any) -> list[bytes]:
            consumer.assign([tp])
            return [(await consumer.getone()).value for _ in range(number)]

        with self._consumer(**_waits(options)) as run:
            return list(run(read))

    def offsets(self, topic: str) -> tuple[int, int]:
        tp = aiokafka.TopicPartition(topic, 0)

        async def ask(consumer: Any) -> tuple[int, int]:
            return (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]

        with self._consumer() as run:
            first, last = run(ask)
            return first, last

    def commit(self, group: str, topic: str, offset: int) -> int:
        tp = aiokafka.TopicPartition(topic, 0)

        async def commit(consumer: Any) -> None:
            consumer.assign([tp])
            await consumer.commit({tp: offset})

        async def committed(consumer: Any) -> int:
            consumer.assign([tp])
            return int(await consumer.committed(tp))

        with self._consumer(group_id=group) as run:
            run(commit)
        with self._consumer(group_id=group) as run:
            return int(run(committed))

    def member(
        self, changed: threading.Condition, topic: str, group: str, strategy: str, instance: str | None = None
    ) -> Member:
        assignor = {"range": AioRange, "sticky": AioSticky}[strategy]
        return _AioMember(
            changed,
            topic,
            {
                "bootstrap_servers": self.address,
                "group_id": group,
                "group_instance_id": instance,
                "auto_offset_reset": "earliest",
                "session_timeout_ms": SESSION_MS,
                "heartbeat_interval_ms": HEARTBEAT_MS,
                "partition_assignment_strategy": (assignor,),
            },
        ).start()


# kafka-python


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
                # Long, because a poll that ends while the answer to SyncGroup is under way forgets that it had asked.
                for messages in consumer.poll(timeout_ms=500).values():
                    for message in messages:
                        self.got(message.value)
        finally:
            consumer.close()


class KafkaPython:
    """kafka-python."""

    name = "kafka-python"
    codecs = ("gzip",)
    strategies = ("range", "sticky", "cooperative-sticky")

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        admin = kafka.KafkaAdminClient(bootstrap_servers=self.address)
        try:
            admin.create_topics({topic: {"num_partitions": partitions, "replication_factor": 3}})
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
        consumer = self._consumer(**_waits(options))
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
                "session_timeout_ms": SESSION_MS,
                "heartbeat_interval_ms": HEARTBEAT_MS,
                "partition_assignment_strategy": (assignor,),
            },
        ).start()


# confluent-kafka


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
    """confluent-kafka, which is librdkafka."""

    name = "confluent-kafka"
    codecs = ("gzip", "snappy", "lz4", "zstd")
    strategies = ("range", "cooperative-sticky")

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        admin: Any = confluent_kafka.admin.AdminClient({"bootstrap.servers": self.address})
        created = admin.create_topics([confluent_admin.NewTopic(topic, partitions, 3)])
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
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "partition.assignment.strategy": strategy,
                **static,
            },
        ).start()


def _waits(options: dict[str, Any]) -> dict[str, Any]:
    return {f"fetch_{name}": value for name, value in options.items()}


CLIENTS: tuple[Any, ...] = (Aio, KafkaPython, Confluent)


def client_named(name: str, port: int) -> Any:
    """The client of that name, talking to the port."""
    return next(client for client in CLIENTS if client.name == name)(port)
