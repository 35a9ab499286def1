"""Topics: messages in memory, with offsets and byte positions, independent of HTTP and time.

A message has an *offset* (0, 1, 2, ... in its topic) and a *position*, the number of bytes before it.  The condition
"``min_bytes`` are available after offset 7" is equivalent to "the end of the topic has reached a certain position".
The end position only increases, so a waiting reader uses it as the threshold in the purgatory.
"""

import base64
import json
import sys
from array import array
from bisect import bisect_right
from dataclasses import dataclass

__all__ = ["BadMessage", "Messages", "Topic", "Topics", "TopicsFull", "memory_of", "render"]

_INDEX_BYTES = 24  # size of a message's index entries: a reference and two numbers


class BadMessage(ValueError):
    """The body of a message is invalid.  The error message gives the reason."""


class TopicsFull(Exception):
    """The limit on topics, or on the bytes of all topics, is reached."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Consecutive messages, rendered as JSON.  ``next_offset``: the offset after the last one."""

    offset: int
    next_offset: int
    rendered: tuple[str, ...]

    def to_json(self, topic: str) -> str:
        """Return the response to a reader."""
        rows = ",".join(f'{{"offset":{self.offset + index},{message}}}' for index, message in enumerate(self.rendered))
        return f'{{"topic":{json.dumps(topic)},"messages":[{rows}],"next_offset":{self.next_offset}}}'


def render(body: bytes, *, is_json: bool) -> str:
    """Render a message for the response: ``"value":`` with JSON or text, or ``"base64":`` for other bytes.

    Raise BadMessage if the body is empty, or if it is not valid JSON although the content type is JSON.
    """
    if not body:
        raise BadMessage("message body must not be empty")
    if not is_json:
        try:
            return f'"value":{json.dumps(body.decode())}'
        except UnicodeDecodeError:
            return f'"base64":"{base64.b64encode(body).decode()}"'
    try:
        # Decode and encode again, so that readers get strict JSON.
        return f'"value":{json.dumps(json.loads(body), allow_nan=False)}'
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"message body must be JSON like its content type: {error}") from error


class Topic:
    """The messages of a topic.  The latest messages that fit in ``retain_bytes`` of memory are kept.

    A message takes more memory than its body because it is stored in rendered form, with the overhead of a Python
    object and of the index entries.
    """

    __slots__ = (
        "_ends",
        "_kept_ends",
        "_rendered",
        "_start",
        "_start_kept",
        "_start_position",
        "next_start",
        "retain_bytes",
    )

    def __init__(self, retain_bytes: int) -> None:
        self.retain_bytes = retain_bytes
        self._rendered: list[str] = []
        self._ends = array("q")  # the position after each message
        self._kept_ends = array("q")  # the total memory of all messages up to each one
        self._start = 0  # the offset of the first stored message
        self._start_position = 0  # its position
        self._start_kept = 0  # the total memory of all messages before it
        self.next_start = 0  # the first offset after the next trim

    @property
    def start(self) -> int:
        """The offset of the oldest stored message."""
        return self._start

    @property
    def end(self) -> int:
        """The offset of the next message."""
        return self._start + len(self._ends)

    @property
    def end_position(self) -> int:
        """The number of bytes appended since the start."""
        return self._ends[-1] if self._ends else self._start_position

    def position(self, offset: int) -> int:
        """Return the position of the offset.  Raise IndexError unless ``start <= offset <= end``."""
        if not self._start <= offset <= self.end:
            raise IndexError(f"offset must be {self._start} to {self.end}, got {offset}")
        index = offset - self._start
        return self._ends[index - 1] if index else self._start_position

    @property
    def kept_bytes(self) -> int:
        """The number of bytes of memory that the stored messages use."""
        return self._kept_end - self._start_kept

    @property
    def _kept_end(self) -> int:
        return self._kept_ends[-1] if self._kept_ends else self._start_kept

    def append(self, rendered: str, size: int) -> int:
        """Append a message of ``size`` bytes.  Return its offset."""
        self._kept_ends.append(self._kept_end + memory_of(rendered))
        self._ends.append(self.end_position + size)
        self._rendered.append(rendered)
        return self.end - 1

    def read(self, offset: int, max_bytes: int) -> Messages:
        """Return the messages from ``offset`` on, up to ``max_bytes``, but at least one message if any is available."""
        first = offset - self._start
        last = bisect_right(self._ends, self.position(offset) + max_bytes)
        if last == first and first < len(self._ends):
            last += 1
        return Messages(offset, self._start + last, tuple(self._rendered[first:last]))

    def prepare_trim(self) -> bool:
        """Set ``next_start``.  Return whether messages must be deleted because they exceed ``retain_bytes``.

        Deletion starts when they exceed the limit by a quarter.  It therefore runs in batches, at a low cost per
        message.
        """
        surplus = self._kept_end - self.retain_bytes
        if (surplus - self._start_kept) * 4 > self.retain_bytes:
            self.next_start = self._start + min(bisect_right(self._kept_ends, surplus), len(self._ends) - 1)
        return self.next_start > self._start

    def trim(self) -> int:
        """Delete the messages before ``next_start``.  Return their number."""
        number = self.next_start - self._start
        if number > 0:
            self._start_position = self._ends[number - 1]
            self._start_kept = self._kept_ends[number - 1]
            self._start = self.next_start
            del self._ends[:number]
            del self._kept_ends[:number]
            del self._rendered[:number]
        return max(0, number)


def memory_of(rendered: str) -> int:
    """Return the number of bytes of memory that a rendered message uses."""
    return sys.getsizeof(rendered) + _INDEX_BYTES


class Topics:
    """All topics by name.  Readers can wait on a topic that has no messages; such a topic takes no memory.

    ``max_total_bytes``: the limit on the memory of all messages.
    """

    def __init__(self, *, retain_bytes: int, max_topics: int, max_total_bytes: int = 4 << 30) -> None:
        self.retain_bytes = retain_bytes
        self.max_topics = max_topics
        self.max_total_bytes = max_total_bytes
        self.total_bytes = 0
        self._topics: dict[str, Topic] = {}
        self._nothing = Topic(retain_bytes)

    def __len__(self) -> int:
        return len(self._topics)

    def get(self, name: str) -> Topic:
        """Return the topic for reading."""
        return self._topics.get(name, self._nothing)

    def append(self, name: str, rendered: str, size: int) -> tuple[Topic, int]:
        """Append a message, and create the topic if necessary.  Raise TopicsFull if a limit is reached."""
        topic = self._topics.get(name)
        if self.total_bytes + memory_of(rendered) > self.max_total_bytes:
            raise TopicsFull(f"all topics together must take at most {self.max_total_bytes} bytes")
        if topic is None:
            if len(self._topics) >= self.max_topics:
                raise TopicsFull(f"number of topics must be at most {self.max_topics}")
            topic = self._topics[name] = Topic(self.retain_bytes)
        self.total_bytes += memory_of(rendered)
        return topic, topic.append(rendered, size)

    def trim(self, topic: Topic) -> None:
        """Delete the messages that ``prepare_trim`` selected."""
        before = topic.kept_bytes
        topic.trim()
        self.total_bytes -= before - topic.kept_bytes
