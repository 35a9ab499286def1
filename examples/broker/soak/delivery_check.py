"""The records that the clients of the soak test sent and received, and the check that they are consistent."""

import threading
from collections.abc import Iterator

__all__ = ["CLIENTS", "DeliveryCheck", "NumberSet"]

CLIENTS = ("aiokafka", "kafka-python", "confluent-kafka")


class NumberSet:
    """A set of numbers from 0 up, with one byte per number, so that it can hold the records of many hours."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks = bytearray()

    def add(self, number: int) -> None:
        """Add a number.  Adding it again has no effect."""
        lacking = number + 1 - len(self._marks)
        if lacking > 0:
            self._marks += bytes(lacking)
        self._marks[number] = 1

    def __len__(self) -> int:
        """Return the size of the set."""
        return self._marks.count(1)

    def __contains__(self, number: int) -> bool:
        return number < len(self._marks) and bool(self._marks[number])

    def __iter__(self) -> Iterator[int]:
        return (number for number, mark in enumerate(self._marks) if mark)

    def lacks(self, other: "NumberSet") -> int:
        """Return the number of elements of ``other`` that are not in this set."""
        return sum(number not in self for number in other)


class DeliveryCheck:
    """The acknowledged, logged, and seen records of each producer, filled from many threads."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.producers_done = threading.Event()
        self.acknowledged = {name: NumberSet() for name in CLIENTS}
        self.logged = {name: NumberSet() for name in CLIENTS}
        self.seen = {name: NumberSet() for name in CLIENTS}
        self.members = 0
        self.hostile = 0
        self.failures: list[str] = []
        self._latest = dict.fromkeys(CLIENTS, -1)

    def fail(self, what: str) -> None:
        """Record a failure."""
        self.failures.append(what)

    def add_logged(self, value: bytes) -> None:
        """Add the next record of the log.  Each producer writes increasing numbers to one partition."""
        name, number = read_value(value)
        if number <= self._latest[name]:
            self.fail(f"{name}: record {number} is a duplicate or out of order after {self._latest[name]}")
        self._latest[name] = number
        self.logged[name].add(number)

    def add_seen(self, value: bytes) -> None:
        """Add a record that a member of the group has received."""
        name, number = read_value(value)
        self.seen[name].add(number)

    def all_seen(self) -> bool:
        """Return whether the group has seen as many records as were acknowledged."""
        return all(len(self.seen[name]) >= len(self.acknowledged[name]) for name in CLIENTS)

    def records(self) -> int:
        """Return the number of acknowledged records."""
        return sum(map(len, self.acknowledged.values()))

    def verify(self) -> None:
        """Record a failure for every broken guarantee."""
        if not self.hostile:
            self.fail("no hostile connection was opened")
        for name in CLIENTS:
            if not self.acknowledged[name]:
                self.fail(f"{name}: no record was acknowledged")
            if lost := self.logged[name].lacks(self.acknowledged[name]):
                self.fail(f"{name}: {lost} acknowledged records are missing from the log")
            if unseen := self.seen[name].lacks(self.logged[name]):
                self.fail(f"{name}: the group has not seen {unseen} records of the log")


def read_value(value: bytes) -> tuple[str, int]:
    """Return the producer and the number that a record's value contains."""
    name, _, number = value.rpartition(b" ")
    return name.decode(), int(number)
