"""ListOffsets (2), versions 0-3.

-1 is the high watermark, -2 the start of the log, a timestamp the first record that is not older (exact in uncompressed
batches, else the first offset of the batch), below the high watermark.

Left out: the other special timestamps (INVALID_REQUEST), more than one offset in version 0, isolation levels (both are
the same without transactions).
"""

from typing import Any

from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse

from .api import Api, Call
from .codes import Code

_LATEST, _EARLIEST = -1, -2
_NONE_FOUND = (-1, -1)


async def answer(call: Call, request: Any) -> ListOffsetsResponse:
    topic_type = ListOffsetsResponse.ListOffsetsTopicResponse
    topics = [
        topic_type(name=topic.name, partitions=[_offset(call, topic.name, asked) for asked in topic.partitions])
        for topic in request.topics
    ]
    return ListOffsetsResponse(throttle_time_ms=0, topics=topics)


def _offset(call: Call, topic: str, asked: Any) -> Any:
    code = Code.NONE
    offset, timestamp = _NONE_FOUND
    partition = call.broker.topics.partition(topic, asked.partition_index)
    if partition is None:
        code = Code.UNKNOWN_TOPIC_OR_PARTITION
    elif asked.timestamp == _LATEST:
        offset = partition.high_watermark
    elif asked.timestamp == _EARLIEST:
        offset = partition.log.start_offset
    elif asked.timestamp < 0:
        code = Code.INVALID_REQUEST
    else:
        found = partition.log.find_timestamp(asked.timestamp, partition.high_watermark)
        offset, timestamp = found or _NONE_FOUND
    return ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        error_code=code,
        old_style_offsets=[offset] if offset >= 0 else [],
        timestamp=timestamp,
        offset=offset,
    )


API = Api(2, 3, ListOffsetsRequest, answer)
