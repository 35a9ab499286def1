"""CreateTopics (19), versions 0-3.

Created at once; replicas are the leader and its simulated followers, so there are at most as many as those and one.

Left out: replica assignments (INVALID_REPLICA_ASSIGNMENT), configurations (accepted and ignored, with a word in the
log).
"""

import logging
from typing import Any

from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse

from .api import Api, Call
from .codes import Code
from .topics import Refused

_LOGGER = logging.getLogger("examples.broker")


async def answer(call: Call, request: Any) -> CreateTopicsResponse:
    names = [topic.name for topic in request.topics]
    results = []
    for topic in request.topics:
        code, message = Code.NONE, None
        try:
            if names.count(topic.name) > 1:
                raise Refused(Code.INVALID_REQUEST, "the topic is named more than once")
            _create(call, topic, request.validate_only)
        except Refused as refused:
            code, message = refused.code, str(refused)
        results.append(
            CreateTopicsResponse.CreatableTopicResult(name=topic.name, error_code=code, error_message=message)
        )
    return CreateTopicsResponse(throttle_time_ms=0, topics=results)


def _create(call: Call, topic: Any, validate_only: bool) -> None:
    if topic.assignments:
        raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, "replicas are not assigned here: give a replication factor")
    call.broker.topics.create(topic.name, topic.num_partitions, topic.replication_factor, only_check=validate_only)
    if topic.configs:
        ignored = ", ".join([config.name for config in topic.configs])
        _LOGGER.warning("topic %s: configuration is ignored: %s", topic.name, ignored)


API = Api(19, 3, CreateTopicsRequest, answer)
