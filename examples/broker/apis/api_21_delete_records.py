"""DeleteRecords (21), versions 0-1.

Parks: ``DelayedDeleteRecords``, until the followers have deleted the records too.  After the timeout, the response is
REQUEST_TIMED_OUT, although the leader has deleted its records.

Offset -1 means the high watermark.  It is not an error if the records below the offset have already been deleted.

These versions are fully supported.
"""

from collections.abc import Sequence
from typing import Any

from kafka.protocol.admin import DeleteRecordsRequest, DeleteRecordsResponse

from examples.broker.protocol.error_codes import Code
from examples.broker.storage.partition import Partition
from purgatory import DelayedOperation

from .api import PARKED_BYTES, Api, Call

_HIGH_WATERMARK = -1


class Deleted:
    """The outcome for one partition.  ``start``: the new start of the leader's log."""

    __slots__ = ("code", "index", "partition", "start", "topic")

    def __init__(self, topic: str, index: int, partition: Partition | None) -> None:
        self.topic = topic
        self.index = index
        self.partition = partition
        self.code = Code.NONE
        self.start = -1

    @property
    def replicated(self) -> bool:
        """True if the operation need not wait for this partition.

        The partition is then replicated or deleted, or it has an error.
        """
        partition = self.partition
        return (
            partition is None or self.code is not Code.NONE or partition.gone or partition.low_watermark >= self.start
        )


class DelayedDeleteRecords(DelayedOperation[None]):
    """Wait until the low watermark of every partition has reached the new start of its log."""

    __slots__ = ("_deleted", "_ready")

    def __init__(self, deleted: Sequence[Deleted], timeout: float) -> None:
        super().__init__(timeout)
        self._deleted = deleted
        self._ready = 0  # the number of leading partitions that are replicated; these are not checked again

    def try_complete(self) -> bool:
        while self._ready < len(self._deleted) and self._deleted[self._ready].replicated:
            self._ready += 1
        return self._ready == len(self._deleted)

    def on_complete(self) -> None:
        for deleted in self._deleted:
            partition = deleted.partition
            if partition is not None and partition.gone:
                deleted.code = Code.UNKNOWN_TOPIC_OR_PARTITION
            elif not deleted.replicated:
                deleted.code = Code.REQUEST_TIMED_OUT


async def answer(call: Call, request: Any) -> DeleteRecordsResponse:
    by_topic: dict[str, dict[int, Any]] = {}
    for topic in request.topics:
        by_topic.setdefault(topic.name, {}).update((asked.partition_index, asked) for asked in topic.partitions)
    topics = [
        (name, [_delete(call, name, asked) for asked in partitions.values()]) for name, partitions in by_topic.items()
    ]
    everything = [deleted for _, partitions in topics for deleted in partitions]
    waits_for = {
        deleted.partition.key: deleted.start
        for deleted in everything
        if deleted.partition is not None and not deleted.replicated
    }
    if waits_for:
        operation = DelayedDeleteRecords(everything, max(request.timeout_ms, 0) / 1000)
        del request
        call.hold(len(everything) * PARKED_BYTES)
        await call.broker.delete_records.park(operation, waits_for)
    return _response(topics)


def _delete(call: Call, topic: str, asked: Any) -> Deleted:
    partition = call.broker.topics.partition(topic, asked.partition_index)
    deleted = Deleted(topic, asked.partition_index, partition)
    if partition is None:
        deleted.code = Code.UNKNOWN_TOPIC_OR_PARTITION
        return deleted
    high = partition.high_watermark
    offset = high if asked.offset == _HIGH_WATERMARK else asked.offset
    if not 0 <= offset <= high:
        deleted.code = Code.OFFSET_OUT_OF_RANGE
        return deleted
    partition.delete_before(offset)
    deleted.start = offset
    return deleted


def _response(topics: list[tuple[str, list[Deleted]]]) -> DeleteRecordsResponse:
    topic_type = DeleteRecordsResponse.DeleteRecordsTopicResult
    return DeleteRecordsResponse(
        throttle_time_ms=0,
        topics=[
            topic_type(
                name=name,
                partitions=[
                    topic_type.DeleteRecordsPartitionResult(
                        partition_index=deleted.index, low_watermark=_low_watermark(deleted), error_code=deleted.code
                    )
                    for deleted in partitions
                ],
            )
            for name, partitions in topics
        ],
    )


def _low_watermark(deleted: Deleted) -> int:
    if deleted.partition is None or deleted.code is not Code.NONE:
        return -1
    return deleted.partition.low_watermark


API = Api(21, 1, DeleteRecordsRequest, answer, lasting=True)
