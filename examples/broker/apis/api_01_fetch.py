"""Fetch (1), versions 0-11; effectively 4-11, because responses contain batches (message format 2).

Parks: ``DelayedFetch``, until ``min_bytes`` are readable.

A read ends at the high watermark and at the end of a segment.  The broker answers a fetch at once in two cases:

*   One of its partitions gets an error: a deleted topic, a different leader epoch, or an offset out of range.
*   The offset for one of its partitions lies in an older segment than the high watermark, so later appends cannot add
    anything to what the fetch can read there.

As in Kafka, a partition that does not exist when the request arrives gets an error in the response but does not end
the wait for the other partitions.  The response always contains the first batch, even if it exceeds ``max_bytes``.  If
a fetch begins at an offset between the high watermark and the end of the log, it waits.

If a request lists a partition twice, the last entry counts, as in Kafka.  While all parked fetches together exceed
``max_parked_partitions`` partitions, the broker immediately answers further fetches of many partitions with the records
that are available.

Not supported: fetch sessions (the session id is always 0, so clients send all partitions each time), down-conversion,
aborted transactions (both isolation levels read the same records), reading from other replicas, and throttling.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from kafka.protocol.consumer import FetchRequest, FetchResponse

from examples.broker.protocol.error_codes import Code
from examples.broker.storage.log import NOTHING, Read
from examples.broker.storage.partition import Key, Partition
from purgatory import DelayedOperation

from .api import PARKED_BYTES, Api, Call


class Wanted(NamedTuple):
    """The request for one partition."""

    topic: str
    number: int
    partition: Partition | None
    offset: int
    max_bytes: int
    leader_epoch: int

    def refusal(self) -> Code:
        """Return the error of the partition, or NONE if the partition is readable now or later."""
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
    """The answer for one partition: a consistent snapshot."""

    wanted: Wanted
    code: Code
    high_watermark: int
    start_offset: int
    read: Read


class DelayedFetch(DelayedOperation[list[Found]]):
    """Wait until all partitions together have ``min_bytes`` to read.  The result consists of the records that are
    readable at that time.
    """

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
            if partition is None:
                continue
            if wanted.refusal() is not Code.NONE:
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
        """For each partition, the high watermark at which its first record becomes readable."""
        return {wanted.partition.key: wanted.offset + 1 for wanted in self._wanted if wanted.partition is not None}


def read_all(wanted: Sequence[Wanted], max_bytes: int) -> list[Found]:
    """Read the available records, up to ``max_bytes`` in total.  The first batch may exceed the limit."""
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
    by_partition = {
        (topic.topic, asked.partition): Wanted(
            topic.topic,
            asked.partition,
            broker.topics.partition(topic.topic, asked.partition),
            asked.fetch_offset,
            max(asked.partition_max_bytes, 0),
            asked.current_leader_epoch,
        )
        for topic in request.topics
        for asked in topic.partitions
    }
    wanted = tuple(by_partition.values())
    max_bytes = min(max(request.max_bytes, 0), broker.settings.max_fetch_bytes)
    nothing_there = all(want.partition is None for want in wanted)
    at_once = nothing_there or request.max_wait_ms <= 0 or request.min_bytes <= 0
    if at_once or not broker.may_park_fetch(len(wanted)):
        return _response(read_all(wanted, max_bytes))
    operation = DelayedFetch(wanted, min(request.min_bytes, max_bytes), max_bytes, request.max_wait_ms / 1000)
    del request, by_partition
    call.hold(len(wanted) * PARKED_BYTES)
    broker.fetch_partitions += len(wanted)
    try:
        found = await broker.fetch.park(operation, operation.thresholds)
    finally:
        broker.fetch_partitions -= len(wanted)
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
