"""The delayed operation of a reader: wait for enough bytes after an offset."""

from dataclasses import dataclass

from purgatory import DelayedOperation

from .topics import Messages, Topics

__all__ = ["Fetch", "FetchRequest"]


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """The request of a reader.  ``max_wait`` is in seconds."""

    topic: str
    offset: int
    min_bytes: int
    max_bytes: int
    max_wait: float


class Fetch(DelayedOperation[Messages]):
    """Wait for ``min_bytes`` after the offset.  Complete early if the message at the offset will be deleted.

    The result consists of the available messages, even if the operation expires.

    ``ready_at``: the position that the end of the topic must reach.  It is the threshold of the operation.
    """

    __slots__ = ("_topics", "ready_at", "request")

    def __init__(self, topics: Topics, request: FetchRequest) -> None:
        super().__init__(request.max_wait)
        self._topics = topics
        self.request = request
        self.ready_at = topics.get(request.topic).position(request.offset) + request.min_bytes

    def try_complete(self) -> bool:
        topic = self._topics.get(self.request.topic)
        return topic.end_position >= self.ready_at or self.request.offset < topic.next_start

    def on_complete(self) -> Messages:
        # The message at the offset still exists: a topic is trimmed only after the check that completes the readers of
        # the deleted messages.
        return self._topics.get(self.request.topic).read(self.request.offset, self.request.max_bytes)
