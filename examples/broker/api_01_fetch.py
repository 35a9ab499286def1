"""Fetch (1), versions 0-11; what is returned are batches (message format 2), so in effect 4-11.

Parks: ``DelayedFetch``, while fewer than ``min_bytes`` can be read.

Reads end at the high watermark and at the end of a segment.  A fetch is answered at once where there is an error in one
of its partitions (it is gone, the leader epoch is another, the offset is out of range), and where an offset lies on an
older segment than the high watermark: no append will ever add to what it can read there.  The first batch of the
response comes even if it exceeds ``max_bytes``.  An offset between the high watermark and the end of the log waits.

Left out: fetch sessions (the session id is always 0, so clients name all partitions each time), down-conversion,
aborted transactions (both isolation levels read the same), other replicas to read from, throttling.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from kafka.protocol.consumer import FetchRequest, FetchResponse

from purgatory import DelayedOperation

from .api import Api, Call
from .codes import Code
from .log import NOTHING, Read
from .partition import Key, Partition


class Wanted(NamedTuple):
    """What is asked of one partition."""

    topic: str
    number: int
    partition: Partition | None
    offset: int
    max_bytes: int
    leader_epoch: int

    def refusal(self) -> Code:
        """Why nothing can be read; NONE: something can, now or later."""
        partition = self.partition
        if partition is None or partition.gone:
            return Code.UNKNOWN_TOPIC_OR_PARTITION
        if 0 <= self.leader_epoch < partition.leader_epoch:
            return Code.FENCED_LEADER_EPOCH
        if self.leader_epoch > partition.leader_epoch:
            return Code.UNKNOWN_LEADER_EPOCH
        if not partition.log.start_offset <= self.offset <= partition.log.end_offset:
            return Code.OFFSET_OUT_OF_RANGE
        return Code.NONE


class Found(NamedTuple):
    """What is answered for one partition, as it was at one moment."""

    wanted: Wanted
    code: Code
    high_watermark: int
    start_offset: int
    read: Read


class DelayedFetch(DelayedOperation[list[Found]]):
    """Waits until there are ``min_bytes`` to read in all partitions together; then, or when time is up, reads them."""

    __slots__ = ("_max_bytes", "_min_bytes", "_wanted")

    def __init__(self, wanted: Sequence[Wanted], min_bytes: int, max_bytes: int, timeout: float) -> None:
        super().__init__(timeout)
        self._wanted = wanted
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes

    def try_complete(self) -> bool:
        readable = 0
        for wanted in self._wanted:
            partition = wanted.partition
            if partition is None or wanted.refusal() is not Code.NONE:
                return True
            high = partition.high_watermark
            if wanted.offset < high:
                if partition.log.on_older_segment(wanted.offset, high):
                    return True
                readable += min(partition.log.bytes_between(wanted.offset, high), wanted.max_bytes)
        return readable >= self._min_bytes

    def on_complete(self) -> list[Found]:
        return read_all(self._wanted, self._max_bytes)

    @property
    def thresholds(self) -> dict[Key, int]:
        """A partition adds something once its high watermark is behind the first record that is wanted."""
        thresholds: dict[Key, int] = {}
        for wanted in self._wanted:
            key = (wanted.topic, wanted.number)
            thresholds[key] = min(thresholds.get(key, wanted.offset + 1), wanted.offset + 1)
        return thresholds


def read_all(wanted: Sequence[Wanted], max_bytes: int) -> list[Found]:
    """Read what there is, up to ``max_bytes`` together, but for the first batch."""
    found: list[Found] = []
    left = max_bytes
    nothing_yet = True
    for want in wanted:
        code = want.refusal()
        if code is not Code.NONE:
            found.append(Found(want, code, -1, -1, NOTHING))
            continue
        partition = want.partition
        assert partition is not None, f"{want} is refused, not read"
        read = NOTHING
        if left > 0 and want.offset < partition.high_watermark:
            limit = min(left, want.max_bytes)
            read = partition.log.read(want.offset, partition.high_watermark, limit, nothing_yet)
            nothing_yet = nothing_yet and not read.size
            left -= read.size
        found.append(Found(want, code, partition.high_watermark, partition.log.start_offset, read))
    return found


async def answer(call: Call, request: Any) -> FetchResponse:
    if request.session_id:
        return FetchResponse(throttle_time_ms=0, error_code=Code.FETCH_SESSION_ID_NOT_FOUND, session_id=0, responses=[])
    broker = call.broker
    wanted = [
        Wanted(
            topic.topic,
            asked.partition,
            broker.topics.partition(topic.topic, asked.partition),
            asked.fetch_offset,
            max(asked.partition_max_bytes, 0),
            asked.current_leader_epoch,
        )
        for topic in request.topics
        for asked in topic.partitions
    ]
    max_bytes = min(max(request.max_bytes, 0), broker.settings.max_fetch_bytes)
    if not wanted or request.max_wait_ms <= 0 or request.min_bytes <= 0:
        found = read_all(wanted, max_bytes)
    else:
        operation = DelayedFetch(wanted, min(request.min_bytes, max_bytes), max_bytes, request.max_wait_ms / 1000)
        found = await broker.fetch.park(operation, operation.thresholds)
    return _response(found)


def _response(found: list[Found]) -> FetchResponse:
    topic_type = FetchResponse.FetchableTopicResponse
    partition_type = topic_type.PartitionData
    by_topic: dict[str, list[Any]] = {}
    for answered in found:
        partition = partition_type(
            partition_index=answered.wanted.number,
            error_code=answered.code,
            high_watermark=answered.high_watermark,
            last_stable_offset=answered.high_watermark,
            log_start_offset=answered.start_offset,
            aborted_transactions=None,
            preferred_read_replica=-1,
            records=answered.read.data,
        )
        by_topic.setdefault(answered.wanted.topic, []).append(partition)
    responses = [topic_type(topic=name, partitions=partitions) for name, partitions in by_topic.items()]
    return FetchResponse(throttle_time_ms=0, error_code=Code.NONE, session_id=0, responses=responses)


API = Api(1, 11, FetchRequest, answer)
