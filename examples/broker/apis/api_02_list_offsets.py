"""ListOffsets (2), versions 0-3.

Timestamp -1 means the high watermark, and -2 means the start of the log.  For any other timestamp, the result is the
first record below the high watermark that is not older than the timestamp.  The result is exact for uncompressed
batches; otherwise, it is the first offset of the batch.  One request reads at most ``timestamp_search_records``
records; after that, uncompressed batches are treated like compressed ones.

If a request lists a partition more than once, the partition gets INVALID_REQUEST once, as in Kafka.

Not supported: the other special timestamps (UNSUPPORTED_VERSION), more than one offset in version 0, and isolation
levels (without transactions, both return the same offsets).
"""

from collections import Counter
from typing import Any

from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse

from examples.broker.protocol.error_codes import Code
from examples.broker.storage.record_batch import SearchBudget

from .api import Api, Call

_LATEST, _EARLIEST = -1, -2
_NONE_FOUND = (-1, -1)


async def answer(call: Call, request: Any) -> ListOffsetsResponse:
    topic_type = ListOffsetsResponse.ListOffsetsTopicResponse
    named = Counter((topic.name, asked.partition_index) for topic in request.topics for asked in topic.partitions)
    budget = SearchBudget(call.broker.settings.timestamp_search_records)
    by_topic: dict[str, dict[int, Any]] = {}
    for topic in request.topics:
        by_topic.setdefault(topic.name, {}).update((asked.partition_index, asked) for asked in topic.partitions)
    topics = [
        topic_type(
            name=name,
            partitions=[
                _offset(call, name, asked, named[name, index] == 1, budget) for index, asked in partitions.items()
            ],
        )
        for name, partitions in by_topic.items()
    ]
    return ListOffsetsResponse(throttle_time_ms=0, topics=topics)


def _offset(call: Call, topic: str, asked: Any, named_once: bool, budget: SearchBudget) -> Any:
    code = Code.NONE
    offset, timestamp = _NONE_FOUND
    partition = call.broker.topics.partition(topic, asked.partition_index)
    if not named_once:
        code = Code.INVALID_REQUEST
    elif partition is None:
        code = Code.UNKNOWN_TOPIC_OR_PARTITION
    elif asked.timestamp == _LATEST:
        offset = partition.high_watermark
    elif asked.timestamp == _EARLIEST:
        offset = partition.log.start_offset
    elif asked.timestamp < 0:
        code = Code.UNSUPPORTED_VERSION
    else:
        found = partition.log.find_timestamp(asked.timestamp, partition.high_watermark, budget)
        offset, timestamp = found or _NONE_FOUND
    return ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        error_code=code,
        old_style_offsets=[offset] if offset >= 0 else [],
        timestamp=timestamp,
        offset=offset,
    )


API = Api(2, 3, ListOffsetsRequest, answer)
