"""DeleteTopics (20), versions 0-3.

The broker deletes the topics at once.  Requests that wait for a partition of a deleted topic get
UNKNOWN_TOPIC_OR_PARTITION.  The committed offsets of the topics are deleted too.  If a request lists a topic more than
once, the topic is not deleted and is returned once with INVALID_REQUEST, as in Kafka.

Not supported: topic ids (added in version 6).
"""

from collections import Counter
from typing import Any

from kafka.protocol.admin import DeleteTopicsRequest, DeleteTopicsResponse

from examples.broker.protocol.error_codes import Code
from examples.broker.storage.topics import Refused

from .api import Api, Call


async def answer(call: Call, request: Any) -> DeleteTopicsResponse:
    results = []
    for name, times in Counter(request.topic_names).items():
        code = Code.NONE
        try:
            if times > 1:
                raise Refused(Code.INVALID_REQUEST, "the request lists the topic more than once")
            call.broker.topics.delete(name)
            call.broker.offsets.forget_topic(name)
        except Refused as refused:
            code = refused.code
        results.append(DeleteTopicsResponse.DeletableTopicResult(name=name, error_code=code))
    return DeleteTopicsResponse(throttle_time_ms=0, responses=results)


API = Api(20, 3, DeleteTopicsRequest, answer, lasting=True)
