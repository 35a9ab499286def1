"""The messages of the long poll: offsets, positions, and what is kept."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.long_poll.topics import BadMessage, Topic, Topics, TopicsFull, render


def test_offsets_count_messages_and_positions_count_bytes() -> None:
    """The second message begins where the first one ended."""
    topic = Topic(1000)
    assert (topic.start, topic.end, topic.end_position) == (0, 0, 0)
    assert [topic.append("a", 5), topic.append("b", 7)] == [0, 1]
    assert [topic.position(offset) for offset in (0, 1, 2)] == [0, 5, 12]
    assert topic.end_position == 12


@pytest.mark.parametrize("offset", [-1, 2])
def test_a_position_is_asked_for_within_the_topic_only(offset: int) -> None:
    """What lies outside has no position, and the error says what lies inside."""
    topic = Topic(1000)
    topic.append("a", 5)
    with pytest.raises(IndexError, match=r"not within 0 to 1"):
        topic.position(offset)


def test_a_read_stops_at_max_bytes() -> None:
    """Whole messages are given, as many as fit."""
    topic = Topic(1000)
    for name in "abc":
        topic.append(name, 10)
    assert topic.read(0, 20).rendered == ("a", "b")
    assert topic.read(0, 29).next_offset == 2
    assert topic.read(1, 1000).rendered == ("b", "c")
    assert topic.read(3, 1000).rendered == ()


def test_a_read_gives_one_message_even_if_it_is_too_long() -> None:
    """Otherwise a reader would never get past it."""
    topic = Topic(1000)
    topic.append("long", 500)
    topic.append("b", 10)
    assert topic.read(0, 1).rendered == ("long",)


@given(st.lists(st.integers(1, 60), max_size=80), st.integers(1, 200))
def test_what_is_kept_is_enough_for_every_reader(sizes: list[int], retain_bytes: int) -> None:
    """Positions never change, the last ``retain_bytes`` are always there, and not much more than that."""
    topic = Topic(retain_bytes)
    positions = [0, *itertools.accumulate(sizes)]
    for number, size in enumerate(sizes):
        assert topic.append(str(number), size) == number
        topic.trim()
        assert topic.end == number + 1
        assert topic.start <= number
        for offset in range(topic.start, topic.end + 1):
            assert topic.position(offset) == positions[offset]
        if topic.start:
            assert positions[topic.end] - positions[topic.start] >= retain_bytes
        assert positions[topic.end] - positions[topic.start] <= retain_bytes * 1.25 + sizes[topic.start]
        read = topic.read(topic.start, 1 << 30)
        assert read.rendered == tuple(str(kept) for kept in range(topic.start, topic.end))


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
    """JSON stays JSON, text is a string, and bytes that are no text are base64."""
    assert json.loads("{" + render(body, is_json=is_json) + "}") == expected


@pytest.mark.parametrize(
    ("body", "is_json"),
    [
        (b"", True), (b"", False), (b"{", True), (b"NaN", True), (b"1e999", True), (b"\xff", True),
        (b"[" * 100_000, True), (b"9" * 5000, True),
    ],
)  # fmt: skip
def test_a_message_that_is_none_is_refused(body: bytes, is_json: bool) -> None:
    """Nothing empty, and nothing that says it is JSON and would not be JSON in an answer."""
    with pytest.raises(BadMessage):
        render(body, is_json=is_json)


def test_reading_a_topic_that_is_not_there_makes_none() -> None:
    """Readers of made-up names cost no memory."""
    topics = Topics(retain_bytes=100, max_topics=1)
    assert topics.get("nowhere").end == 0
    assert len(topics) == 0


def test_there_are_not_more_topics_than_allowed() -> None:
    """A topic too many is refused, and those that are there still take messages."""
    topics = Topics(retain_bytes=100, max_topics=1)
    topics.append("one", "x", 1)
    with pytest.raises(TopicsFull, match="1 topics already"):
        topics.append("two", "x", 1)
    assert topics.append("one", "x", 1)[1] == 1
    assert len(topics) == 1
