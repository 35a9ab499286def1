"""Topics: messages in memory, counted by offset and by bytes.  Knows neither HTTP nor time.

A message has an *offset* (0, 1, 2, ... in its topic) and lies at a *position*: the number of bytes that came before it.
"There are ``min_bytes`` beyond offset 7" is the same as "the topic's end has reached a certain position", a single
number that only grows.  That is what a waiting reader gives the purgatory as its threshold.
"""

import base64
import json
from bisect import bisect_right
from dataclasses import dataclass

__all__ = ["BadMessage", "Messages", "Topic", "Topics", "TopicsFull", "render"]


class BadMessage(ValueError):
    """The body of a message cannot be taken; says why."""


class TopicsFull(Exception):
    """There are as many topics as there may be."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Some messages in a row, rendered as JSON.  ``next_offset``: where to go on reading."""

    offset: int
    next_offset: int
    rendered: tuple[str, ...]

    def to_json(self, topic: str) -> str:
        """The answer to a reader."""
        rows = ",".join(f'{{"offset":{self.offset + index},{message}}}' for index, message in enumerate(self.rendered))
        return f'{{"topic":{json.dumps(topic)},"messages":[{rows}],"next_offset":{self.next_offset}}}'


def render(body: bytes, *, is_json: bool) -> str:
    """A message as it stands in an answer: ``"value":`` and JSON, or text, or base64 for bytes that are no text.

    BadMessage if it is empty, or if it should be JSON and is not.
    """
    if not body:
        raise BadMessage("the body is the message, and it is empty")
    if not is_json:
        try:
            return f'"value":{json.dumps(body.decode())}'
        except UnicodeDecodeError:
            return f'"base64":"{base64.b64encode(body).decode()}"'
    try:
        # Read and written again: what readers get is strict JSON, whatever spelling came in.
        return f'"value":{json.dumps(json.loads(body), allow_nan=False)}'
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"the content type says JSON and the body is none: {error}") from error


class Topic:
    """A row of messages.  The last ``retain_bytes`` of them stay, and always the newest."""

    __slots__ = ("_ends", "_rendered", "_start", "_start_position", "retain_bytes")

    def __init__(self, retain_bytes: int) -> None:
        self.retain_bytes = retain_bytes
        self._rendered: list[str] = []
        self._ends: list[int] = []  # the position behind each message
        self._start = 0  # the offset of the first message in the lists
        self._start_position = 0  # the position at which it begins

    @property
    def start(self) -> int:
        """The offset of the oldest message that is still there."""
        return self._start

    @property
    def end(self) -> int:
        """The offset that the next message will have."""
        return self._start + len(self._ends)

    @property
    def end_position(self) -> int:
        """How many bytes have ever been appended."""
        return self._ends[-1] if self._ends else self._start_position

    def position(self, offset: int) -> int:
        """Where the message of that offset begins, or will begin.  IndexError unless ``start <= offset <= end``."""
        if not self._start <= offset <= self.end:
            raise IndexError(f"offset {offset} is not within {self._start} to {self.end}")
        index = offset - self._start
        return self._ends[index - 1] if index else self._start_position

    def append(self, rendered: str, size: int) -> int:
        """Add a message of ``size`` bytes; return its offset."""
        self._ends.append(self.end_position + size)
        self._rendered.append(rendered)
        return self.end - 1

    def read(self, offset: int, max_bytes: int) -> Messages:
        """The messages from ``offset`` on, at most ``max_bytes`` of them, but at least one if there is one."""
        first = offset - self._start
        last = bisect_right(self._ends, self.position(offset) + max_bytes)
        if last == first and first < len(self._ends):
            last += 1
        return Messages(offset, self._start + last, tuple(self._rendered[first:last]))

    def trim(self) -> int:
        """Let go of the oldest messages that are not needed for the last ``retain_bytes``; return how many went.

        They go in batches, when there is a quarter more than that, so that letting go costs little per message.
        """
        surplus = self.end_position - self.retain_bytes
        if (surplus - self._start_position) * 4 <= self.retain_bytes:
            return 0
        number = bisect_right(self._ends, surplus)
        if number:
            self._start_position = self._ends[number - 1]
            self._start += number
            del self._ends[:number]
            del self._rendered[:number]
        return number


class Topics:
    """All topics by name.  One that was never written to exists for readers, empty, and takes no room."""

    def __init__(self, *, retain_bytes: int, max_topics: int) -> None:
        self.retain_bytes = retain_bytes
        self.max_topics = max_topics
        self._topics: dict[str, Topic] = {}
        self._nothing = Topic(retain_bytes)

    def __len__(self) -> int:
        return len(self._topics)

    def get(self, name: str) -> Topic:
        """The topic, for reading."""
        return self._topics.get(name, self._nothing)

    def append(self, name: str, rendered: str, size: int) -> tuple[Topic, int]:
        """Add a message to the topic, which is made if need be; TopicsFull if there are too many."""
        topic = self._topics.get(name)
        if topic is None:
            if len(self._topics) >= self.max_topics:
                raise TopicsFull(f"there are {self.max_topics} topics already, and no more are made")
            topic = self._topics[name] = Topic(self.retain_bytes)
        return topic, topic.append(rendered, size)
