"""What the soak's clients were told, and whether all of it can be true."""

import threading
from collections.abc import Iterator

__all__ = ["CLIENTS", "Books", "Marks"]

CLIENTS = ("aiokafka", "kafka-python", "confluent-kafka")


class Marks:
    """Numbers from 0 on, each marked or not.  A byte for each, so that hours of them can be kept."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks = bytearray()

    def add(self, number: int) -> None:
        """Mark it; marked twice is marked."""
        lacking = number + 1 - len(self._marks)
        if lacking > 0:
            self._marks += bytes(lacking)
        self._marks[number] = 1

    def __len__(self) -> int:
        """How many are marked."""
        return self._marks.count(1)

    def __contains__(self, number: int) -> bool:
        return number < len(self._marks) and bool(self._marks[number])

    def __iter__(self) -> Iterator[int]:
        return (number for number, mark in enumerate(self._marks) if mark)

    def lacks(self, other: "Marks") -> int:
        """How many are marked there and not here."""
        return sum(number not in self for number in other)


class Books:
    """What was acknowledged, what is in the log, what the group has seen, by producer; filled from many threads."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.producers_done = threading.Event()
        self.acknowledged = {name: Marks() for name in CLIENTS}
        self.logged = {name: Marks() for name in CLIENTS}
        self.seen = {name: Marks() for name in CLIENTS}
        self.members = 0
        self.troubles = 0
        self.failures: list[str] = []
        self._latest = dict.fromkeys(CLIENTS, -1)

    def fail(self, what: str) -> None:
        """A promise was not kept."""
        self.failures.append(what)

    def log(self, value: bytes) -> None:
        """The next record of a partition, as the log has it.  Each producer writes to one partition, numbers rising."""
        name, number = read_value(value)
        if number <= self._latest[name]:
            self.fail(f"{name}: record {number} comes after {self._latest[name]}: twice, or out of order")
        self._latest[name] = number
        self.logged[name].add(number)

    def see(self, value: bytes) -> None:
        """A member of the group has been given this record."""
        name, number = read_value(value)
        self.seen[name].add(number)

    def all_seen(self) -> bool:
        """Whether the group has seen as many records as were acknowledged."""
        return all(len(self.seen[name]) >= len(self.acknowledged[name]) for name in CLIENTS)

    def records(self) -> int:
        """How many were acknowledged."""
        return sum(map(len, self.acknowledged.values()))

    def judge(self) -> None:
        """Note every promise that was not kept."""
        if not self.troubles:
            self.fail("nobody made any trouble")
        for name in CLIENTS:
            if not self.acknowledged[name]:
                self.fail(f"{name} was never acknowledged anything")
            if lost := self.logged[name].lacks(self.acknowledged[name]):
                self.fail(f"{name}: {lost} acknowledged records are not in the log")
            if unseen := self.seen[name].lacks(self.logged[name]):
                self.fail(f"{name}: the group has not seen {unseen} records of the log")


def read_value(value: bytes) -> tuple[str, int]:
    """The producer and the number that a record's value tells."""
    name, _, number = value.rpartition(b" ")
    return name.decode(), int(number)
