"""aiokafka behind the common interface of the clients."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka
import aiokafka.admin
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as AioSticky

from tests.examples.broker.clients.base import HEARTBEAT_MS, PATIENCE, SESSION_MS, Member, fetch_waits

__all__ = ["Aio"]


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
    """The client aiokafka."""

    name = "aiokafka"
    codecs = ("gzip",)
    strategies = ("range", "sticky")
    session_ms = SESSION_MS
    replicas = 1

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        async def run() -> None:
            admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=self.address)
            await admin.start()
            try:
                response = await admin.create_topics([aiokafka.admin.NewTopic(topic, partitions, self.replicas)])
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

        with self._consumer(**fetch_waits(options)) as run:
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
                "session_timeout_ms": self.session_ms,
                "heartbeat_interval_ms": HEARTBEAT_MS,
                "partition_assignment_strategy": (assignor,),
            },
        ).start()
