"""Metadata (3), versions 0-5.

The broker creates a missing topic if both the request and the settings allow it; before version 4, every request does.
The response contains one broker, which is the leader and the only visible replica of every partition: the followers are
simulated, and clients cannot connect to them.

Not supported: racks, offline replicas, and internal topics.
"""

from typing import Any

from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from examples.broker.protocol.error_codes import Code
from examples.broker.storage.topics import Refused, Topic

from .api import Api, Call


async def answer(call: Call, request: Any) -> MetadataResponse:
    broker = call.broker
    wants_all = request.topics is None or (call.version == 0 and not request.topics)
    create = call.version < 4 or request.allow_auto_topic_creation
    names = [topic.name for topic in broker.topics] if wants_all else [topic.name for topic in request.topics]
    node = MetadataResponse.MetadataResponseBroker(
        node_id=broker.node_id, host=broker.host, port=broker.port, rack=None
    )
    return MetadataResponse(
        throttle_time_ms=0,
        brokers=[node],
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        topics=[_describe(call, name, create and not wants_all) for name in dict.fromkeys(names)],
    )


def _describe(call: Call, name: str, create: bool) -> Any:
    broker = call.broker
    topic = broker.topics.get(name)
    code = Code.UNKNOWN_TOPIC_OR_PARTITION if broker.topics.may_be_named(name) else Code.INVALID_TOPIC_EXCEPTION
    if topic is None and create and broker.settings.auto_create:
        try:
            broker.topics.create(name)
        except Refused as refused:
            code = refused.code
        topic = broker.topics.get(name)
    return MetadataResponse.MetadataResponseTopic(
        error_code=code if topic is None else Code.NONE,
        name=name,
        is_internal=False,
        partitions=[] if topic is None else _partitions(topic, broker.node_id),
    )


def _partitions(topic: Topic, node_id: int) -> list[Any]:
    return [
        MetadataResponse.MetadataResponseTopic.MetadataResponsePartition(
            error_code=Code.NONE,
            partition_index=partition.key[1],
            leader_id=node_id,
            replica_nodes=[node_id],
            isr_nodes=[node_id],
            offline_replicas=[],
        )
        for partition in topic.partitions
    ]


API = Api(3, 5, MetadataRequest, answer)
