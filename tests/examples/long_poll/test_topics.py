"""The messages of the long poll: offsets, positions, and retention."""

import itertools
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.long_poll.topics import BadMessage, Topic, Topics, TopicsFull, memory_of, render


def test_offsets_count_messages_and_positions_count_bytes() -> None:
    """The second message begins at the end of the first one."""
    topic = Topic(1000)
    assert (topic.start, topic.end, topic.end_position) == (0, 0, 0)
    assert [topic.append("a", 5), topic.append("b", 7)] == [0, 1]
    assert [topic.position(offset) for offset in (0, 1, 2)] == [0, 5, 12]
    assert topic.end_position == 12


@pytest.mark.parametrize("offset", [-1, 2])
def test_a_position_is_asked_for_within_the_topic_only(offset: int) -> None:
    """An offset outside the topic raises an error with the valid range."""
    topic = Topic(1000)
    topic.append("a", 5)
    with pytest.raises(IndexError, match=r"must be 0 to 1, got "):
        topic.position(offset)


def test_a_read_stops_at_max_bytes() -> None:
    """A read returns as many whole messages as fit."""
    topic = Topic(1000)
    for name in "abc":
        topic.append(name, 10)
    assert topic.read(0, 20).rendered == ("a", "b")
    assert topic.read(0, 29).next_offset == 2
    assert topic.read(1, 1000).rendered == ("b", "c")
    assert topic.read(3, 1000).rendered == ()


def test_a_read_gives_one_message_even_if_it_is_too_long() -> None:
    """Otherwise a reader could never read past the message."""
    topic = Topic(1000)
    topic.append("long", 500)
    topic.append("b", 10)
    assert topic.read(0, 1).rendered == ("long",)


@given(st.lists(st.integers(1, 60), max_size=80), st.integers(1, 5000))
def test_what_is_kept_is_counted_in_memory(sizes: list[int], retain_bytes: int) -> None:
    """Positions never change; the topic keeps messages of about ``retain_bytes`` of memory."""
    topic = Topic(retain_bytes)
    positions = [0, *itertools.accumulate(sizes)]
    memory = [memory_of(str(number)) for number in range(len(sizes))]
    for number, size in enumerate(sizes):
        assert topic.append(str(number), size) == number
        assert topic.prepare_trim() == (topic.next_start > topic.start)
        topic.trim()
        assert topic.end == number + 1
        assert topic.start <= number
        for offset in range(topic.start, topic.end + 1):
            assert topic.position(offset) == positions[offset]
        assert topic.kept_bytes == sum(memory[topic.start : topic.end])
        if topic.start:
            assert sum(memory[topic.start - 1 : topic.end]) >= retain_bytes
        assert topic.kept_bytes <= retain_bytes * 1.25 + memory[topic.start] + 1
        read = topic.read(topic.start, 1 << 30)
        assert read.rendered == tuple(str(kept) for kept in range(topic.start, topic.end))


@pytest.mark.slow
@pytest.mark.parametrize("body", [b"x", "\u20ac".encode() * 300, b"\xff" * 300])
def test_a_topic_takes_no_more_memory_than_it_keeps(body: bytes) -> None:
    """This holds for one-byte messages, for text that grows sixfold when it is escaped, and for binary data."""
    topic = Topic(200_000)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20_000):
            topic.append(render(body, is_json=False), len(body))
            if topic.prepare_trim():
                topic.trim()
        assert tracemalloc.get_traced_memory()[0] - before < 1.5 * 200_000
    finally:
        tracemalloc.stop()


def test_all_topics_together_keep_a_limited_number_of_bytes() -> None:
    """A message above the limit is refused; trimming a topic frees space."""
    topics = Topics(retain_bytes=1000, max_topics=10, max_total_bytes=2000)
    number = 0
    while topics.total_bytes + memory_of("x" * 50) <= 2000:
        topics.append(f"t{number % 2}", "x" * 50, 50)
        number += 1
    with pytest.raises(TopicsFull, match="must take at most 2000 bytes"):
        topics.append("t0", "x" * 50, 50)
    assert topics.total_bytes == sum(topics.get(name).kept_bytes for name in ("t0", "t1")) <= 2000
    topic = topics.get("t0")
    topic.retain_bytes = 100
    assert topic.prepare_trim()
    topics.trim(topic)
    assert topics.total_bytes == sum(topics.get(name).kept_bytes for name in ("t0", "t1"))
    topics.append("t1", "x" * 50, 50)


@pytest.mark.parametrize(
    ("body", "is_json", "expected"),
    [
        (b'{"a": [1, null]}', True, {"value": {"a": [1, None]}}),
        (b"0", True, {"value": 0}),
        ("gr\u00fc\u00df \u2713 \"'".encode(), False, {"value": "gr\u00fc\u00df \u2713 \"'"}),
        (b"{not json", False, {"value": "{not json"}),
        (b"\xff\x00", False, {"base64": "/wA="}),
    ],
)
def test_a_message_is_rendered_as_json(body: bytes, is_json: bool, expected: object) -> None:
    """JSON stays JSON, text becomes a string, and binary data becomes base64."""
    assert json.loads("{" + render(body, is_json=is_json) + "}") == expected


@pytest.mark.parametrize(
    ("body", "is_json"),
    [
        (b"", True), (b"", False), (b"{", True), (b"NaN", True), (b"1e999", True), (b"\xff", True),
        (b"[" * 100_000, True), (b"9" * 5000, True),
    ],
)  # fmt: skip
def test_a_message_that_is_none_is_refused(body: bytes, is_json: bool) -> None:
    """An empty message, and one that declares JSON but is not strict JSON, are refused."""
    with pytest.raises(BadMessage):
        render(body, is_json=is_json)


def test_reading_a_topic_that_is_not_there_makes_none() -> None:
    """Readers of missing topics use no memory."""
    topics = Topics(retain_bytes=100, max_topics=1)
    assert topics.get("nowhere").end == 0
    assert len(topics) == 0


def test_there_are_not_more_topics_than_allowed() -> None:
    """A topic above the limit is refused; existing topics still accept messages."""
    topics = Topics(retain_bytes=100, max_topics=1)
    topics.append("one", "x", 1)
    with pytest.raises(TopicsFull, match="must be at most 1"):
        topics.append("two", "x", 1)
    assert topics.append("one", "x", 1)[1] == 1
    assert len(topics) == 1
