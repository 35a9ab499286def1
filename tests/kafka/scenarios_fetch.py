"""Scenarios of fetches: when they wait, what ends the wait, and what is returned."""

from typing import Any

from kafka.protocol.admin import DeleteTopicsRequest
from kafka.protocol.metadata import MetadataRequest

from benchmarks.kafka_wire import make
from tests.kafka.scenarios import WAIT_MS, Side, batch, fetch_request, name_of, scenario

__all__: list[str] = []


@scenario
def empty(side: Side) -> None:
    """A fetch of an empty partition."""
    side.note(side.fetch((side.topic(), 0, 0)))


@scenario
def there(side: Side) -> None:
    """A fetch of what is there."""
    topic = side.topic()
    side.produce(topic, batch(b"a", b"b"))
    side.note(side.fetch((topic, 0, 0)))
    side.note(side.fetch((topic, 0, 1)))
    side.note(side.fetch((topic, 0, 2), max_wait_ms=0))


@scenario
def committed_only(side: Side) -> None:
    """A fetch of committed records, without transactions"""
    topic = side.topic()
    side.produce(topic, batch(b"a", b"b"))
    side.note(side.fetch((topic, 0, 0), isolation_level=1))
    side.note(side.fetch((topic, 0, 2), isolation_level=1))


@scenario
def too_few(side: Side) -> None:
    """A fetch for more bytes than come."""
    topic = side.topic()
    side.produce(topic, batch(b"a"))
    side.note(side.fetch((topic, 0, 0), min_bytes=100_000))


@scenario
def appended(side: Side) -> None:
    """A fetch, and an append meanwhile."""
    topic = side.topic()
    with side.meanwhile(lambda: side.fetch((topic, 0, 0))) as fetched:
        side.note(side.produce(topic, batch(b"a"), acks=-1))
        side.note(fetched.result())


@scenario
def appended_twice(side: Side) -> None:
    """A fetch that the second append satisfies."""
    topic = side.topic()
    with side.meanwhile(lambda: side.fetch((topic, 0, 0), min_bytes=300)) as fetched:
        side.note(side.produce(topic, batch(b"a" * 10), acks=-1))
        side.note(f"answered {fetched.done()}")
        side.note(side.produce(topic, batch(b"b" * 400), acks=-1))
        side.note(fetched.result())


@scenario
def two_partitions(side: Side) -> None:
    """A fetch of two partitions, and an append to the second."""
    topic = side.topic(2)
    with side.meanwhile(lambda: side.fetch((topic, 0, 0), (topic, 1, 0))) as fetched:
        side.produce(topic, batch(b"a"), partition=1)
        side.note(fetched.result())


@scenario
def together(side: Side) -> None:
    """A fetch whose bytes come from two partitions together."""
    topic = side.topic(2)
    with side.meanwhile(lambda: side.fetch((topic, 0, 0), (topic, 1, 0), min_bytes=400)) as fetched:
        side.produce(topic, batch(b"a" * 200), partition=0)
        side.produce(topic, batch(b"b" * 200), partition=1)
        side.note(fetched.result())


@scenario
def no_wait(side: Side) -> None:
    """Fetches that ask for no wait."""
    topic = side.topic()
    side.note(side.fetch((topic, 0, 0), max_wait_ms=0))
    side.note(side.fetch((topic, 0, 0), min_bytes=0))


@scenario
def out_of_range(side: Side) -> None:
    """Fetches outside the log."""
    topic = side.topic()
    side.produce(topic, batch(b"a", b"b", b"c"))
    side.note(side.fetch((topic, 0, 4)))
    side.note(side.fetch((topic, 0, -1)))
    side.delete_records(topic, 2)
    side.note(side.fetch((topic, 0, 1)))
    side.note(side.fetch((topic, 0, 2)))


@scenario
def unknown(side: Side) -> None:
    """Fetches of a topic and a partition that are not there."""
    topic = side.topic()
    side.note(side.fetch(("nowhere", 0, 0)))
    side.note(side.fetch((topic, 7, 0)))
    side.note(side.fetch((topic, 0, 0), (topic, 7, 0)))


@scenario
def epochs(side: Side) -> None:
    """A fetch with a leader epoch of the future."""
    topic = side.topic()
    side.note(side.fetch((topic, 0, 0), leader_epoch=9))


@scenario
def first_batch(side: Side) -> None:
    """Limits below the size of the first batch."""
    topic = side.topic(2)
    side.produce(topic, batch(b"a" * 5000), partition=0)
    side.produce(topic, batch(b"b" * 5000), partition=1)
    side.note(side.fetch((topic, 0, 0), (topic, 1, 0), max_bytes=100))
    side.note(side.fetch((topic, 0, 0), (topic, 1, 0), partition_max_bytes=100))
    side.note(side.fetch((topic, 0, 0), (topic, 1, 0), max_bytes=6000))


@scenario
def whole_batches(side: Side) -> None:
    """A limit that ends in the second batch."""
    topic = side.topic()
    for letter in (b"a", b"b", b"c"):
        side.produce(topic, batch(letter * 1000))
    with side.wire() as wire:
        request = fetch_request((topic, 0, 0), max_bytes=1500)
        part = wire.ask(request).responses[0].partitions[0]
        whole = len(part.records or b"") >= 1000
        side.note(f"{name_of(part.error_code)} at least one batch {whole}, all {len(part.records) > 3000}")


@scenario
def older_segment(side: Side) -> None:
    """A fetch from a segment that is closed."""
    topic = side.topic()
    for letter in (b"a", b"b", b"c"):
        side.note(side.produce(topic, batch(letter * 600_000)))
    side.note(side.fetch((topic, 0, 0), min_bytes=30_000_000, max_bytes=50_000_000, partition_max_bytes=40_000_000))


@scenario
def rolled(side: Side) -> None:
    """A fetch, and the segment is closed meanwhile."""
    topic = side.topic()
    side.produce(topic, batch(b"a" * 600_000))
    wanted: dict[str, Any] = {"min_bytes": 30_000_000, "max_bytes": 50_000_000, "partition_max_bytes": 40_000_000}
    with side.meanwhile(lambda: side.fetch((topic, 0, 0), **wanted)) as fetched:
        side.note(side.produce(topic, batch(b"b" * 600_000)))
        side.note(fetched.result())


@scenario
def deleted_topic(side: Side) -> None:
    """A fetch, and the topic is deleted meanwhile."""
    topic = side.topic()
    with side.meanwhile(lambda: side.fetch((topic, 0, 0))) as fetched, side.wire() as wire:
        answer = wire.ask(make(DeleteTopicsRequest, topic_names=[topic], timeout_ms=10_000))
        side.note(name_of(answer.responses[0].error_code))
        side.note(fetched.result())


@scenario
def deleted_records(side: Side) -> None:
    """A fetch whose records are deleted while it waits."""
    topic = side.topic()
    side.produce(topic, batch(b"a", b"b"))
    side.produce(topic, batch(b"c"))
    with side.meanwhile(lambda: side.fetch((topic, 0, 0), min_bytes=100_000)) as fetched:
        side.note(side.delete_records(topic, 2))
        side.note(fetched.result())


@scenario
def in_order(side: Side) -> None:
    """Two requests on one connection, of which the first waits."""
    topic = side.topic()
    with side.wire() as wire:
        fetch = fetch_request((topic, 0, 0), max_wait_ms=WAIT_MS)
        ask = make(MetadataRequest, topics=[], allow_auto_topic_creation=False)
        numbers = [wire.send(fetch), wire.send(ask)]
        answered = [int.from_bytes(wire.receive_bytes()[:4], "big") for _ in numbers]
        side.note(f"in order {answered == numbers}")


@scenario
def session_unknown(side: Side) -> None:
    """A fetch in a session that is not there."""
    side.note(side.fetch((side.topic(), 0, 0), session_id=12345, session_epoch=3))


@scenario
def session_new(side: Side) -> None:
    """A fetch that requests a session."""
    topic = side.topic()
    with side.wire() as wire:
        answer = wire.ask(fetch_request((topic, 0, 0), session_epoch=0, max_wait_ms=0))
        side.note(f"{name_of(answer.error_code)} session {'given' if answer.session_id else 'none'}")


@scenario
def twice(side: Side) -> None:
    """A fetch that names a partition twice"""
    topic = side.topic()
    side.produce(topic, batch(b"a", b"b"))
    side.produce(topic, batch(b"c"))
    side.note(side.fetch((topic, 0, 0), (topic, 0, 2)))
    side.note(side.fetch((topic, 0, 9), (topic, 0, 2)))
