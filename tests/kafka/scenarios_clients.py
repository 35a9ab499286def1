"""Scenarios that every client runs, as it comes."""

import threading
import time
from typing import Any

from tests.examples.broker.clients.all_clients import PATIENCE, Member
from tests.kafka.scenarios import Side, client_scenario

__all__: list[str] = []


def _client(kind: Any, side: Side) -> Any:
    client = kind(side.port)
    client.replicas = 1
    return client


def _refusal(error: BaseException) -> str:
    """Return the kind of the error, without the address and the time that its text may have."""
    text = str(error)
    kind = type(error).__name__
    return text.partition(":")[0] if kind == "JavaError" else kind


@client_scenario
def acknowledgements(kind: Any, side: Side) -> None:
    """Produces with every kind of acknowledgement, and all consumed"""
    client, topic = _client(kind, side), side.topic()
    for acks, idempotent in ((0, False), (1, False), (-1, False), (-1, True)):
        values = [f"acks {acks} {idempotent} {number}".encode() for number in range(3)]
        offsets = client.produce(topic, values, acks=acks, idempotent=idempotent, partition=0)
        if acks == 0:
            deadline = time.monotonic() + PATIENCE
            while client.offsets(topic)[1] < 3 and time.monotonic() < deadline:
                time.sleep(0.02)
        else:
            side.note(str(offsets))
    side.note(str(client.consume(topic, 12)))
    side.note(str(client.offsets(topic)))


@client_scenario
def codecs(kind: Any, side: Side) -> None:
    """Compressed batches"""
    client, topic = _client(kind, side), side.topic()
    for codec in client.codecs:
        side.note(str(client.produce(topic, [codec.encode() * 200] * 2, codec=codec, acks=-1, partition=0)))
    side.note(str([len(value) for value in client.consume(topic, 2 * len(client.codecs))]))


@client_scenario
def long_poll(kind: Any, side: Side) -> None:
    """A long poll that an append ends"""
    client, topic = _client(kind, side), side.topic()
    began = time.monotonic()
    with side.meanwhile(lambda: client.consume(topic, 1, max_wait_ms=8000)) as consumed:
        client.produce(topic, [b"wake up"], acks=-1, partition=0)
        side.note(f"{consumed.result()} {side.when(time.monotonic() - began, 8000)}")


@client_scenario
def deletes(kind: Any, side: Side) -> None:
    """Deleted records"""
    client, topic = _client(kind, side), side.topic()
    client.produce(topic, [b"a", b"b", b"c"], acks=-1, partition=0)
    side.note(f"{client.delete_records(topic, 2)} {client.offsets(topic)} {client.consume(topic, 1)}")
    try:
        side.note(str(client.delete_records(topic, 9)))
    except Exception as error:
        side.note(_refusal(error))


@client_scenario
def commits(kind: Any, side: Side) -> None:
    """A committed offset"""
    client, topic = _client(kind, side), side.topic()
    client.produce(topic, [b"a", b"b"], acks=-1, partition=0)
    side.note(str(client.commit(f"group of {topic}", topic, 2)))


@client_scenario
def topics(kind: Any, side: Side) -> None:
    """Topics that cannot be created"""
    client, topic = _client(kind, side), side.topic()
    for name, partitions in ((topic, 1), ("a b", 1), (f"none-{topic}", 0)):
        try:
            client.create_topic(name, partitions)
            side.note("created")
        except AssertionError:
            side.note("refused")
        except Exception as error:
            side.note(_refusal(error))


@client_scenario
def too_large(kind: Any, side: Side) -> None:
    """A record that the broker refuses"""
    client, topic = _client(kind, side), side.topic()
    try:
        side.note(str(client.produce(topic, [b"x" * 1_048_500], acks=-1, partition=0, timeout=3.0)))
    except Exception as error:
        side.note(_refusal(error))
    side.note(str(client.offsets(topic)))


class _Group:
    """Members of one group on six partitions."""

    def __init__(self, client: Any, side: Side, strategy: str) -> None:
        self.client, self.side, self.strategy = client, side, strategy
        self.topic = side.topic(6)
        self.changed = threading.Condition()
        self.members: list[Member] = []

    def join(self, instance: str | None = None) -> Member:
        group = f"group of {self.topic}"
        member: Member = self.client.member(self.changed, self.topic, group, self.strategy, instance)
        self.members.append(member)
        return member

    def leave(self, member: Member) -> None:
        self.members.remove(member)
        member.close()

    def shared(self, *sizes: int) -> None:
        """Write down whether the members come to share all partitions in these numbers."""

        def is_so() -> bool:
            assigned = [member.assigned for member in self.members]
            whole = frozenset[int]().union(*assigned) == frozenset(range(6))
            return whole and sorted(map(len, assigned)) == sorted(sizes)

        with self.changed:
            self.side.note(f"{sizes} {self.changed.wait_for(is_so, 2 * PATIENCE)}")


@client_scenario
def shared(kind: Any, side: Side) -> None:
    """A group whose members come and go, with each strategy of the client"""
    client = _client(kind, side)
    for strategy in client.strategies:
        group = _Group(client, side, strategy)
        side.note(strategy)
        try:
            first = group.join()
            group.shared(6)
            second = group.join()
            group.shared(3, 3)
            if strategy == "cooperative-sticky":
                side.note(f"given up {len(first.revoked)}")
            group.leave(second)
            group.shared(6)
        finally:
            for member in list(group.members):
                group.leave(member)


@client_scenario
def static(kind: Any, side: Side) -> None:
    """A static member that leaves and returns within its session"""
    group = _Group(_client(kind, side), side, "range")
    try:
        group.join("one")
        two = group.join("two")
        group.shared(3, 3)
        had = two.assigned
        group.leave(two)
        again = group.join("two")
        group.shared(3, 3)
        side.note(f"the same partitions {again.assigned == had}")
    finally:
        for member in list(group.members):
            group.leave(member)
