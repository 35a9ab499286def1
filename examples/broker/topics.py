"""The topics: created, found, deleted."""

import re
from collections.abc import Iterator

from purgatory import SystemTimer

from .codes import Code
from .partition import Moved, Partition
from .settings import Settings

__all__ = ["Refused", "Topic", "Topics"]

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class Refused(Exception):
    """The topic cannot be had; ``code`` says why to the client, the text to people."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Topic:
    """A topic and its partitions."""

    def __init__(self, name: str, partitions: list[Partition]) -> None:
        self.name = name
        self.partitions = partitions


class Topics:
    """All topics by name.  ``moved``: as a :class:`Partition` calls it."""

    def __init__(self, settings: Settings, timer: SystemTimer, moved: Moved) -> None:
        self._settings = settings
        self._timer = timer
        self._moved = moved
        self._topics: dict[str, Topic] = {}
        self._partitions = 0

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def __len__(self) -> int:
        return len(self._topics)

    def get(self, name: str) -> Topic | None:
        """The topic, or None."""
        return self._topics.get(name)

    def partition(self, name: str, index: int) -> Partition | None:
        """The partition, or None."""
        topic = self._topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def create(self, name: str, partitions: int = -1, replicas: int = -1, *, only_check: bool = False) -> None:
        """Create a topic; -1 stands for the default.  Raises :class:`Refused`, and has created nothing then."""
        if not _NAME.fullmatch(name) or name in (".", ".."):
            raise Refused(Code.INVALID_TOPIC_EXCEPTION, "a name has 1 to 249 of the characters a-z A-Z 0-9 . _ -")
        if name in self._topics:
            raise Refused(Code.TOPIC_ALREADY_EXISTS, f"topic {name!r} exists")
        settings = self._settings
        if partitions == -1:
            partitions = settings.default_partitions
        if replicas == -1:
            replicas = settings.followers + 1
        if partitions < 1:
            raise Refused(Code.INVALID_PARTITIONS, f"a topic has at least 1 partition, not {partitions}")
        if self._partitions + partitions > settings.max_partitions:
            raise Refused(Code.POLICY_VIOLATION, f"there would be more than {settings.max_partitions} partitions")
        if not 1 <= replicas <= settings.followers + 1:
            reason = f"a partition has 1 to {settings.followers + 1} replicas, not {replicas}"
            raise Refused(Code.INVALID_REPLICATION_FACTOR, reason)
        if not only_check:
            self._partitions += partitions
            made = [self._make(name, index, replicas - 1) for index in range(partitions)]
            self._topics[name] = Topic(name, made)

    def delete(self, name: str) -> None:
        """Delete a topic with all that is in it.  Raises :class:`Refused` if there is none of that name."""
        topic = self._topics.pop(name, None)
        if topic is None:
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        self._partitions -= len(topic.partitions)
        for partition in topic.partitions:
            partition.delete()

    def _make(self, name: str, index: int, followers: int) -> Partition:
        return Partition((name, index), followers, self._settings, self._timer, self._moved)
