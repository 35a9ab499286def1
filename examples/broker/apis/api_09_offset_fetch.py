"""OffsetFetch (9), versions 0-3.

A partition without a committed offset gets offset -1 and no error.  A request without topics (null, from version 2)
returns all committed offsets of the group.  If a request lists a partition more than once, the broker returns it once;
Kafka returns it each time.

Not supported: leader epochs and stable offsets (added in versions 5 and 7).
"""

from typing import Any

from kafka.protocol.consumer import OffsetFetchRequest, OffsetFetchResponse

from examples.broker.protocol.error_codes import Code

from .api import Api, Call


async def answer(call: Call, request: Any) -> OffsetFetchResponse:
    asked: dict[str, dict[int, None]] = {}
    if request.topics is None:
        for name, index in call.broker.offsets.keys(request.group_id):
            asked.setdefault(name, {})[index] = None
    else:
        for topic in request.topics:
            asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = [
        OffsetFetchResponse.OffsetFetchResponseTopic(
            name=name, partitions=[_committed(call, request.group_id, name, index) for index in indexes]
        )
        for name, indexes in asked.items()
    ]
    return OffsetFetchResponse(throttle_time_ms=0, topics=topics, error_code=Code.NONE)


def _committed(call: Call, group_id: str, topic: str, index: int) -> Any:
    committed = call.broker.offsets.fetch(group_id, (topic, index))
    return OffsetFetchResponse.OffsetFetchResponseTopic.OffsetFetchResponsePartition(
        partition_index=index,
        committed_offset=-1 if committed is None else committed.offset,
        metadata="" if committed is None else committed.metadata,
        error_code=Code.NONE,
    )


API = Api(9, 3, OffsetFetchRequest, answer)
