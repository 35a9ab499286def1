"""The well-meaning clients of the soak: three producers and three members of a group."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import aiokafka
import confluent_kafka
import kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

__all__ = ["CONSUMERS", "GROUP", "PATIENCE", "PRODUCERS", "TOPIC", "Books"]

TOPIC = "soak"
GROUP = "soakers"
PATIENCE = 30.0
_SESSION_MS = 2000


class Books:
    """What was acknowledged, and what was seen; filled from many threads."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.producers_done = threading.Event()
        self.acknowledged: dict[str, list[int]] = defaultdict(list)
        self.seen: set[bytes] = set()
        self.members = 0
        self.troubles = 0
        self.failures: list[str] = []

    def fail(self, what: str) -> None:
        self.failures.append(what)


# Producers: one record after the other, each noted once it is acknowledged


def produce_with_aiokafka(address: str, books: Books) -> None:
    async def run() -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True) as producer:
            number = 0
            while not books.stop.is_set():
                sent = [await producer.send(TOPIC, b"aiokafka %d" % (number + n), partition=0) for n in range(20)]
                await asyncio.gather(*sent)
                books.acknowledged["aiokafka"] += range(number, number + 20)
                number += 20

    asyncio.run(run())


def produce_with_kafka_python(address: str, books: Books) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=address)
    number = 0
    while not books.stop.is_set():
        sent = [producer.send(TOPIC, b"kafka-python %d" % (number + n), partition=1) for n in range(20)]
        for one in sent:
            one.get(PATIENCE)
        books.acknowledged["kafka-python"] += range(number, number + 20)
        number += 20
    producer.close()


def produce_with_confluent_kafka(address: str, books: Books) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 1})

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            books.acknowledged["confluent-kafka"].append(int(message.value().split()[1]))
        else:
            books.fail(f"confluent-kafka: {error}")

    number = 0
    while not books.stop.is_set():
        for n in range(20):
            producer.produce(TOPIC, b"confluent-kafka %d" % (number + n), partition=2, on_delivery=delivered)
        producer.flush(PATIENCE)
        number += 20


# Members of the group: until the deadline, then they leave


def consume_with_aiokafka(address: str, books: Books, until: Callable[[], bool]) -> None:
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
                    books.seen.update(message.value for message in messages)

    asyncio.run(run())


def consume_with_kafka_python(address: str, books: Books, until: Callable[[], bool]) -> None:
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
            books.seen.update(message.value for message in messages)
    consumer.close()


def consume_with_confluent_kafka(address: str, books: Books, until: Callable[[], bool]) -> None:
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
                books.seen.add(message.value() or b"")
    consumer.close()


PRODUCERS = (produce_with_aiokafka, produce_with_kafka_python, produce_with_confluent_kafka)
CONSUMERS = (consume_with_aiokafka, consume_with_kafka_python, consume_with_confluent_kafka)
