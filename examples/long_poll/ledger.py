"""What the readers and writers of a soak were told by one server, and whether all of it can be true.

A reader's request has one of these ends: an answer (with enough, or timed out with less), a refusal (429, 503), or the
reader hangs up.  A connection that ends without an answer is an error, unless the server is being stopped; then the
server's own books have to show that it never took the request.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Asked", "Counts", "Ledger"]

_MOST_COMPLAINTS = 20


@dataclass(frozen=True, slots=True)
class Asked:
    """A reader's request, and when it was sent (seconds of the client's clock)."""

    topic: str
    offset: int
    min_bytes: int
    max_wait: float
    sent_at: float


@dataclass(slots=True)
class Counts:
    """How the requests of readers ended."""

    filled: int = 0
    timed_out: int = 0
    hung_up: int = 0
    turned_away: int = 0
    cut_off: int = 0
    posted: int = 0

    @property
    def requests(self) -> int:
        """All that were sent by readers."""
        return self.filled + self.timed_out + self.hung_up + self.turned_away + self.cut_off


@dataclass(slots=True)
class _Topic:
    bodies: dict[int, str] = field(default_factory=dict)  # as first seen, by offset
    acknowledged: list[tuple[float, int]] = field(default_factory=list)  # when the writer knew, and the offset
    end: int = 0


class Ledger:
    """The books of the clients of one server, from its start to its end."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.lateness: list[float] = []
        self.wrong: list[str] = []
        self.stopping_since: float | None = None
        self._topics: defaultdict[str, _Topic] = defaultdict(_Topic)

    def complain(self, what: str) -> None:
        """Note something that must not be."""
        if len(self.wrong) < _MOST_COMPLAINTS:
            self.wrong.append(what)

    def end_of(self, topic: str) -> int:
        """The highest offset from which on one may read, as far as the clients know."""
        return self._topics[topic].end

    # What the clients are told

    def posted(self, topic: str, offset: int, body: str, now: float) -> None:
        """A writer was told the offset of its message."""
        self.counts.posted += 1
        self._saw(topic, offset, body)
        self._topics[topic].acknowledged.append((now, offset))

    def answered(self, asked: Asked, answer: Mapping[str, Any], now: float) -> None:
        """A reader got an answer."""
        offset = asked.offset
        size = 0
        for message in answer["messages"]:
            if message["offset"] != offset:
                self.complain(f"{asked}: message {message['offset']} came where {offset} belongs")
            self._saw(asked.topic, message["offset"], message["value"])
            size += len(message["value"])
            offset += 1
        if answer["next_offset"] != offset:
            self.complain(f"{asked}: next_offset is {answer['next_offset']} after message {offset - 1}")
        if size >= asked.min_bytes:
            self.counts.filled += 1
        else:
            self.counts.timed_out += 1
            self._check_time_out(asked, size, now)

    def turned_away(self, asked: Asked, status: int, retry_after: str | None) -> None:
        """A reader was refused."""
        self.counts.turned_away += 1
        if status in (429, 503) and retry_after is None:
            self.complain(f"{asked}: status {status} does not say when to come again")
        if status not in (429, 503):
            self.complain(f"{asked}: status {status}")

    def cut_off(self, asked: Asked | None, error: object) -> None:
        """A connection ended without an answer, a reader's (``asked``) or a writer's."""
        if asked is not None:
            self.counts.cut_off += 1
        if self.stopping_since is None:
            self.complain(f"{asked or 'a writer'}: no answer, but {error!r}")

    # What must be true

    def _saw(self, topic: str, offset: int, body: str) -> None:
        known = self._topics[topic]
        if known.bodies.setdefault(offset, body) != body:
            self.complain(f"message {offset} of {topic} is {body[:40]!r} and {known.bodies[offset][:40]!r}")
        known.end = max(known.end, offset + 1)

    def _check_time_out(self, asked: Asked, size: int, now: float) -> None:
        deadline = asked.sent_at + asked.max_wait
        if now < deadline:
            if self.stopping_since is None:
                self.complain(f"{asked}: timed out {deadline - now:.4f} s early with {size} bytes")
            return
        self.lateness.append(now - deadline)
        # What a writer knew of before the deadline was there when the server gave up waiting.
        topic = self._topics[asked.topic]
        there = max((offset for at, offset in topic.acknowledged if at < deadline), default=-1)
        bytes_there = sum(len(topic.bodies.get(offset, "")) for offset in range(asked.offset, there + 1))
        if bytes_there >= asked.min_bytes:
            self.complain(f"{asked}: timed out with {size} bytes when {bytes_there} were there")

    def check_at_rest(self, books: Mapping[str, Any]) -> None:
        """No request is under way: the server's books against these.

        One who hangs up may have crossed his answer; so he counts for any of the server's ends.
        """
        for gauge in ("parked", "watched", "keys", "num_delayed"):
            if books[gauge]:
                self.complain(f"nobody waits, and {gauge} is {books[gauge]}")
        if books["submitted"] != sum(books[end] for end in ("completed", "expired", "cancelled")) or books["failed"]:
            self.complain(f"the server's books do not balance: {dict(books)}")
        counts = self.counts
        for end, came in (("completed", counts.filled), ("expired", counts.timed_out), ("cancelled", 0)):
            if not came <= books[end] <= came + counts.hung_up:
                self.complain(f"{end} is {books[end]} where {came} came in and {counts.hung_up} hung up")

    def check_exactly(self, before: Mapping[str, Any], after: Mapping[str, Any], counts: Counts) -> None:
        """Between two looks at the server's books nobody hung up; ``counts`` are those at the first look.

        Every request that the server took has come in as an answer, of the kind that the server says: one that timed
        out with enough in it would be a wake-up that was lost.
        """
        filled, timed_out = self.counts.filled - counts.filled, self.counts.timed_out - counts.timed_out
        expected = {"submitted": filled + timed_out, "completed": filled, "expired": timed_out, "cancelled": 0}
        for end, number in expected.items():
            if after[end] - before[end] != number:
                self.complain(f"nobody hung up, {end} went up by {after[end] - before[end]}, and {number} is expected")
