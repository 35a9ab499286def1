"""DeleteTopics (20), versions 0-3.

Deleted at once; whoever waits for one of its partitions is answered UNKNOWN_TOPIC_OR_PARTITION.  Committed offsets in
it are forgotten.

Left out: topic ids (they come with version 6).
"""

from typing import Any

from kafka.protocol.admin import DeleteTopicsRequest, DeleteTopicsResponse

from .api import Api, Call
from .codes import Code
from .topics import Refused


async def answer(call: Call, request: Any) -> DeleteTopicsResponse:
    results = []
    for name in request.topic_names:
        code = Code.NONE
        try:
            call.broker.topics.delete(name)
            call.broker.offsets.forget_topic(name)
        except Refused as refused:
            code = refused.code
        results.append(DeleteTopicsResponse.DeletableTopicResult(name=name, error_code=code))
    return DeleteTopicsResponse(throttle_time_ms=0, responses=results)


API = Api(20, 3, DeleteTopicsRequest, answer)
