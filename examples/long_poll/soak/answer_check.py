"""The responses of one server to the clients of the soak test, and the check that they are consistent.

A reader's request ends with a response (with enough bytes, or with fewer after a timeout), with a rejection (429 or
503), or with a disconnect.  If a connection ends without a response, this is an error unless the server is stopping; in
that case, the server's statistics must show that it never accepted the request.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["AnswerCheck", "Asked", "Counts"]

_MOST_COMPLAINTS = 20


@dataclass(frozen=True, slots=True)
class Asked:
    """A reader's request.  ``sent_at``: seconds on the client's clock."""

    topic: str
    offset: int
    min_bytes: int
    max_wait: float
    sent_at: float


@dataclass(slots=True)
class Counts:
    """The numbers of requests by outcome."""

    filled: int = 0
    timed_out: int = 0
    hung_up: int = 0
    turned_away: int = 0
    cut_off: int = 0
    posted: int = 0

    @property
    def requests(self) -> int:
        """The total number of requests from readers."""
        return self.filled + self.timed_out + self.hung_up + self.turned_away + self.cut_off


@dataclass(slots=True)
class _Topic:
    bodies: dict[int, str] = field(default_factory=dict)  # the first body seen for each offset
    acknowledged: list[tuple[float, int]] = field(default_factory=list)  # time of the acknowledgement, and offset
    end: int = 0


class AnswerCheck:
    """The responses that the clients of one server received, from its start to its end."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.lateness: list[float] = []
        self.wrong: list[str] = []
        self.stopping_since: float | None = None
        self._topics: defaultdict[str, _Topic] = defaultdict(_Topic)

    def complain(self, what: str) -> None:
        """Record a failure."""
        if len(self.wrong) < _MOST_COMPLAINTS:
            self.wrong.append(what)

    def end_of(self, topic: str) -> int:
        """Return the end offset of a topic as far as the clients know it."""
        return self._topics[topic].end

    # Responses

    def posted(self, topic: str, offset: int, body: str, now: float) -> None:
        """Record the offset that a writer received for its message."""
        self.counts.posted += 1
        self._saw(topic, offset, body)
        self._topics[topic].acknowledged.append((now, offset))

    def answered(self, asked: Asked, answer: Mapping[str, Any], now: float) -> None:
        """Record and check the response to a reader."""
        offset = asked.offset
        size = 0
        for message in answer["messages"]:
            if message["offset"] != offset:
                self.complain(f"{asked}: offset must be {offset}, got {message['offset']}")
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
        """Record the rejection of a reader."""
        self.counts.turned_away += 1
        if status in (429, 503) and retry_after is None:
            self.complain(f"{asked}: status {status} without Retry-After")
        if status not in (429, 503):
            self.complain(f"{asked}: status {status}")

    def cut_off(self, asked: Asked | None, error: object) -> None:
        """Record that a connection ended without a response.  ``asked``: what a reader asked for; None for a writer."""
        if asked is not None:
            self.counts.cut_off += 1
        if self.stopping_since is None:
            self.complain(f"{asked or 'a writer'}: no response, but {error!r}")

    # Checks

    def _saw(self, topic: str, offset: int, body: str) -> None:
        known = self._topics[topic]
        if known.bodies.setdefault(offset, body) != body:
            self.complain(f"message {offset} of {topic} was {known.bodies[offset][:40]!r}, and is {body[:40]!r}")
        known.end = max(known.end, offset + 1)

    def _check_time_out(self, asked: Asked, size: int, now: float) -> None:
        deadline = asked.sent_at + asked.max_wait
        if now < deadline:
            if self.stopping_since is None:
                self.complain(f"{asked}: timed out {deadline - now:.4f} s early with {size} bytes")
            return
        self.lateness.append(now - deadline)
        # Messages that were acknowledged before the deadline were available when the request timed out.
        topic = self._topics[asked.topic]
        there = max((offset for at, offset in topic.acknowledged if at < deadline), default=-1)
        bytes_there = sum(len(topic.bodies.get(offset, "")) for offset in range(asked.offset, there + 1))
        if bytes_there >= asked.min_bytes:
            self.complain(f"{asked}: timed out with {size} bytes although {bytes_there} were available")

    def check_at_rest(self, statistics: Mapping[str, Any]) -> None:
        """Compare the statistics of the server with the counts, while no request is in progress.

        A disconnect may overlap the response, so the server may count such a request under any outcome.
        """
        for gauge in ("parked", "watched", "keys", "num_delayed"):
            if statistics[gauge]:
                self.complain(f"{gauge} must be 0 while no request waits, got {statistics[gauge]}")
        ends = _ends(statistics)
        ended = sum(ends.values())
        if statistics["submitted"] != ended or statistics["failed"]:
            self.complain(f"the counters of the server do not add up: {dict(statistics)}")
        counts = self.counts
        for end, came in (("completed", counts.filled), ("expired", counts.timed_out), ("cancelled", 0)):
            if not came <= ends[end] <= came + counts.hung_up:
                self.complain(f"{end} must be {came} to {came + counts.hung_up}, got {ends[end]}")

    def check_exactly(self, before: Mapping[str, Any], after: Mapping[str, Any], counts: Counts) -> None:
        """Compare the change in the statistics with the responses, for a phase without disconnects.

        ``counts``: the counts at the time of ``before``.  Every accepted request must have a response of the same kind:
        a request that timed out with enough bytes would be a lost wakeup.
        """
        filled, timed_out = self.counts.filled - counts.filled, self.counts.timed_out - counts.timed_out
        expected = {"submitted": filled + timed_out, "completed": filled, "expired": timed_out, "cancelled": 0}
        counted = {"submitted": after["submitted"] - before["submitted"]}
        counted |= {end: number - _ends(before)[end] for end, number in _ends(after).items()}
        for end, number in expected.items():
            if counted[end] != number:
                self.complain(f"{end} must increase by {number}, got {counted[end]}")


def _ends(statistics: Mapping[str, Any]) -> dict[str, int]:
    """Return how many requests ended in each way.  To a client, closing looks like a timeout."""
    expired = statistics["expired"] + statistics.get("expired_by_closing", 0)
    return {"completed": statistics["completed"], "expired": expired, "cancelled": statistics["cancelled"]}
