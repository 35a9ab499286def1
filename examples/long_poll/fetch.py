"""The operation that waits: a reader at an offset, until enough has been appended or time is up."""

from dataclasses import dataclass

from purgatory import DelayedOperation

from .topics import Messages, Topics

__all__ = ["Fetch", "FetchRequest"]


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """What a reader asks for; ``max_wait`` in seconds."""

    topic: str
    offset: int
    min_bytes: int
    max_bytes: int
    max_wait: float


class Fetch(DelayedOperation[Messages]):
    """Done when there are ``min_bytes`` beyond the offset; its result is what there is, whichever way it ends.

    ``ready_at``: the position that the end of the topic has to reach: the threshold under which it is parked.
    """

    __slots__ = ("_topics", "ready_at", "request")

    def __init__(self, topics: Topics, request: FetchRequest) -> None:
        super().__init__(request.max_wait)
        self._topics = topics
        self.request = request
        self.ready_at = topics.get(request.topic).position(request.offset) + request.min_bytes

    def try_complete(self) -> bool:
        return self._topics.get(self.request.topic).end_position >= self.ready_at

    def on_complete(self) -> Messages:
        # The offset is still there: a topic is trimmed only after its readers were checked, and keeps at least as
        # many bytes as any reader may wait for.
        return self._topics.get(self.request.topic).read(self.request.offset, self.request.max_bytes)
