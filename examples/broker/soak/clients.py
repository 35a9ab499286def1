"""The regular clients of the soak test: three producers, three group members, and a reader of the whole log."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import aiokafka
import confluent_kafka
import kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from .delivery_check import CLIENTS, DeliveryCheck

__all__ = ["CONSUMERS", "PATIENCE", "PRODUCERS", "TOPIC", "purge", "read_log"]

TOPIC = "soak"
GROUP = "soakers"
PATIENCE = 30.0
_SESSION_MS = 2000
_PURGE_EVERY = 1.0  # seconds


# Producers: they record every acknowledged number


def produce_with_aiokafka(address: str, delivery: DeliveryCheck) -> None:
    async def run() -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True) as producer:
            number = 0
            while not delivery.stop.is_set():
                sent = [await producer.send(TOPIC, b"aiokafka %d" % (number + n), partition=0) for n in range(20)]
                await asyncio.gather(*sent)
                for _ in sent:
                    delivery.acknowledged["aiokafka"].add(number)
                    number += 1

    asyncio.run(run())


def produce_with_kafka_python(address: str, delivery: DeliveryCheck) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=address)
    number = 0
    while not delivery.stop.is_set():
        sent = [producer.send(TOPIC, b"kafka-python %d" % (number + n), partition=1) for n in range(20)]
        for one in sent:
            one.get(PATIENCE)
            delivery.acknowledged["kafka-python"].add(number)
            number += 1
    producer.close()


def produce_with_confluent_kafka(address: str, delivery: DeliveryCheck) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 1})

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            delivery.acknowledged["confluent-kafka"].add(int(message.value().split()[1]))
        else:
            delivery.fail(f"confluent-kafka: {error}")

    number = 0
    while not delivery.stop.is_set():
        for n in range(20):
            producer.produce(TOPIC, b"confluent-kafka %d" % (number + n), partition=2, on_delivery=delivered)
        producer.flush(PATIENCE)
        number += 20


# Members of the group: they consume until ``until()`` returns True, and then leave


def consume_with_aiokafka(address: str, delivery: DeliveryCheck, until: Callable[[], bool]) -> None:
    async def run() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            TOPIC,
            bootstrap_servers=address,
            group_id=GROUP,
            auto_offset_reset="earliest",
            session_timeout_ms=_SESSION_MS,
            heartbeat_interval_ms=200,
            partition_assignment_strategy=(RangePartitionAssignor,),
        )
        async with consumer:
            while not until():
                for messages in (await consumer.getmany(timeout_ms=100)).values():
                    for message in messages:
                        delivery.add_seen(message.value)

    asyncio.run(run())


def consume_with_kafka_python(address: str, delivery: DeliveryCheck, until: Callable[[], bool]) -> None:
    consumer = kafka.KafkaConsumer(
        TOPIC,
        bootstrap_servers=address,
        group_id=GROUP,
        auto_offset_reset="earliest",
        session_timeout_ms=_SESSION_MS,
        heartbeat_interval_ms=200,
    )
    while not until():
        for messages in consumer.poll(timeout_ms=1000).values():
            for message in messages:
                delivery.add_seen(message.value)
    consumer.close()


def consume_with_confluent_kafka(address: str, delivery: DeliveryCheck, until: Callable[[], bool]) -> None:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": _SESSION_MS,
            "heartbeat.interval.ms": 200,
            "partition.assignment.strategy": "range",
        }
    )
    consumer.subscribe([TOPIC])
    while not until():
        for message in consumer.consume(500, 0.1):
            if message.error() is None:
                delivery.add_seen(message.value() or b"")
    consumer.close()


# Reader of the whole log


def read_log(address: str, delivery: DeliveryCheck) -> None:
    """Read all records in the order of the log, and delete those that the group has committed.

    Return when the producers have ended and the end of the log is reached.  Report a failure if no record arrives for a
    long time.
    """
    settings = {"bootstrap.servers": address, "group.id": GROUP, "enable.auto.commit": False}
    reader = confluent_kafka.Consumer(settings | {"auto.offset.reset": "error"})
    admin = kafka.KafkaAdminClient(bootstrap_servers=address)
    next_offsets = [0] * len(CLIENTS)
    reader.assign([confluent_kafka.TopicPartition(TOPIC, index, 0) for index in range(len(CLIENTS))])
    came = purged = time.monotonic()
    while not (delivery.producers_done.is_set() and _at_the_end(reader, next_offsets)):
        for message in reader.consume(500, 0.1):
            came = time.monotonic()
            if message.error() is not None:
                delivery.fail(f"the log cannot be read: {message.error()}")
                return
            partition, offset, value = message.partition(), message.offset(), message.value()
            if partition is None or offset is None or value is None:
                raise RuntimeError(f"a message without an error must have an offset and a value, got {message!r}")
            if offset != next_offsets[partition]:
                delivery.fail(f"offset must be {next_offsets[partition]}, got {offset}")
            next_offsets[partition] = offset + 1
            delivery.add_logged(value)
        if time.monotonic() - came > PATIENCE:
            delivery.fail(f"the log could only be read up to {next_offsets}")
            break
        if time.monotonic() - purged > _PURGE_EVERY:
            _purge(reader, admin, next_offsets)
            purged = time.monotonic()
    reader.close()
    admin.close()


def purge(address: str) -> None:
    """When no other client needs them, delete all records that the group has committed."""
    reader = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": GROUP, "enable.auto.commit": False})
    with contextlib.closing(reader), contextlib.closing(kafka.KafkaAdminClient(bootstrap_servers=address)) as admin:
        _purge(reader, admin, _ends(reader))


def _at_the_end(reader: Any, next_offsets: list[int]) -> bool:
    return next_offsets == _ends(reader)


def _ends(reader: Any) -> list[int]:
    return [reader.get_watermark_offsets(partition, PATIENCE)[1] for partition in _partitions()]


def _partitions() -> list[Any]:
    return [confluent_kafka.TopicPartition(TOPIC, index) for index in range(len(CLIENTS))]


def _purge(reader: Any, admin: Any, next_offsets: list[int]) -> None:
    """Delete the records that this reader has read and the group has committed."""
    committed = [max(0, partition.offset) for partition in reader.committed(_partitions(), PATIENCE)]
    done = [min(pair) for pair in zip(committed, next_offsets, strict=True)]
    admin.delete_records({kafka.TopicPartition(TOPIC, index): offset for index, offset in enumerate(done) if offset})


PRODUCERS = (produce_with_aiokafka, produce_with_kafka_python, produce_with_confluent_kafka)
CONSUMERS = (consume_with_aiokafka, consume_with_kafka_python, consume_with_confluent_kafka)
