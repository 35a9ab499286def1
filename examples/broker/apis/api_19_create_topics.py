"""CreateTopics (19), versions 0-3.

The broker creates the topics at once.  The replication factor cannot exceed the number of simulated followers plus the
leader.  If a request lists a topic more than once, the topic is not created and is returned once with INVALID_REQUEST,
as in Kafka.

Not supported: replica assignments (INVALID_REPLICA_ASSIGNMENT) and configurations (ignored, with a warning in the log).
"""

import logging
from collections import Counter
from typing import Any

from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse

from examples.broker.protocol.error_codes import Code
from examples.broker.storage.topics import Refused

from .api import Api, Call

_LOGGER = logging.getLogger("examples.broker")


async def answer(call: Call, request: Any) -> CreateTopicsResponse:
    named = Counter(topic.name for topic in request.topics)
    results = []
    for topic in {topic.name: topic for topic in request.topics}.values():
        code, message = Code.NONE, None
        try:
            if named[topic.name] > 1:
                raise Refused(Code.INVALID_REQUEST, "the request lists the topic more than once")
            _create(call, topic, request.validate_only)
        except Refused as refused:
            code, message = refused.code, str(refused)
        results.append(
            CreateTopicsResponse.CreatableTopicResult(name=topic.name, error_code=code, error_message=message)
        )
    return CreateTopicsResponse(throttle_time_ms=0, topics=results)


def _create(call: Call, topic: Any, validate_only: bool) -> None:
    if topic.assignments:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            raise Refused(
                Code.INVALID_REQUEST,
                "with replica assignments, number of partitions and replication factor must be -1, got"
                f" {topic.num_partitions} and {topic.replication_factor}",
            )
        raise Refused(
            Code.INVALID_REPLICA_ASSIGNMENT, "replica assignments are not supported; use a replication factor"
        )
    call.broker.topics.create(topic.name, topic.num_partitions, topic.replication_factor, only_check=validate_only)
    if topic.configs:
        _LOGGER.warning("topic %s: ignored %d configuration values", topic.name, len(topic.configs))


API = Api(19, 3, CreateTopicsRequest, answer, lasting=True)
