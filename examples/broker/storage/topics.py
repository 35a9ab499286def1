"""The topics of the broker."""

import re
from collections.abc import Iterator

from examples.broker.protocol.error_codes import Code
from examples.broker.settings import Settings
from purgatory import SystemTimer

from .partition import Moved, Partition
from .producer_state import ProducerCount
from .storage_limit import StorageLimit

__all__ = ["Refused", "Topic", "Topics"]

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class Refused(Exception):
    """The broker refuses the request.  ``code``: the error code for the client.  The message gives the reason."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Topic:
    """A topic and its partitions."""

    def __init__(self, name: str, partitions: list[Partition]) -> None:
        self.name = name
        self.partitions = partitions


class Topics:
    """All topics by name.  ``moved``: the callback of :class:`Partition`."""

    def __init__(self, settings: Settings, timer: SystemTimer, moved: Moved) -> None:
        self._settings = settings
        self._timer = timer
        self._moved = moved
        self._topics: dict[str, Topic] = {}
        self._partitions = 0
        self._producer_count = ProducerCount(settings.max_all_producers)
        self.storage = StorageLimit(settings.max_log_bytes, self._all_partitions)

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def __len__(self) -> int:
        return len(self._topics)

    def get(self, name: str) -> Topic | None:
        """Return the topic, or None."""
        return self._topics.get(name)

    def partition(self, name: str, index: int) -> Partition | None:
        """Return the partition, or None."""
        topic = self._topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    @staticmethod
    def may_be_named(name: str) -> bool:
        """Return whether the name is a valid topic name in Kafka."""
        return _NAME.fullmatch(name) is not None and name not in (".", "..")

    def create(self, name: str, partitions: int = -1, replicas: int = -1, *, only_check: bool = False) -> None:
        """Create a topic; -1 selects the default.  Raise :class:`Refused`, and create nothing, if that fails."""
        if not self.may_be_named(name):
            reason = "topic name must have 1 to 249 of the characters a-z A-Z 0-9 . _ -"
            raise Refused(Code.INVALID_TOPIC_EXCEPTION, reason)
        if name in self._topics:
            raise Refused(Code.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
        settings = self._settings
        if partitions == -1:
            partitions = settings.default_partitions
        if replicas == -1:
            replicas = settings.followers + 1
        if partitions < 1:
            raise Refused(Code.INVALID_PARTITIONS, f"number of partitions must be at least 1, got {partitions}")
        if self._partitions + partitions > settings.max_partitions:
            raise Refused(
                Code.POLICY_VIOLATION, f"total number of partitions must be at most {settings.max_partitions}"
            )
        if not 1 <= replicas <= settings.followers + 1:
            reason = f"replication factor must be 1 to {settings.followers + 1}, got {replicas}"
            raise Refused(Code.INVALID_REPLICATION_FACTOR, reason)
        if not only_check:
            self._partitions += partitions
            made = [self._make(name, index, replicas - 1) for index in range(partitions)]
            self._topics[name] = Topic(name, made)

    def delete(self, name: str) -> None:
        """Delete a topic and its records.  Raise :class:`Refused` if it does not exist."""
        topic = self._topics.pop(name, None)
        if topic is None:
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
        self._partitions -= len(topic.partitions)
        for partition in topic.partitions:
            partition.delete()

    def _make(self, name: str, index: int, followers: int) -> Partition:
        shared = (self.storage, self._producer_count)
        return Partition((name, index), followers, self._settings, self._timer, self._moved, *shared)

    def _all_partitions(self) -> Iterator[Partition]:
        return (partition for topic in self._topics.values() for partition in topic.partitions)
