"""OffsetCommit (8), versions 0-3.

The broker commits at once if the member belongs to the current generation, or if the group is empty and the request
carries no member id.  Committed offsets are not replicated, so nothing is parked.

Not supported: retention times, commit timestamps, and leader epochs (added in version 6).
"""

from typing import Any

from kafka.protocol.consumer import OffsetCommitRequest, OffsetCommitResponse

from examples.broker.protocol.error_codes import Code
from examples.broker.storage.committed_offsets import Committed
from examples.group import ErrorCode

from .api import Api, Call


async def answer(call: Call, request: Any) -> OffsetCommitResponse:
    generation = request.generation_id_or_member_epoch
    is_new = request.group_id not in call.broker.groups.groups
    code = call.broker.groups.check_commit(request.group_id, request.member_id, generation)
    topic_type = OffsetCommitResponse.OffsetCommitResponseTopic
    topics = [
        topic_type(
            name=topic.name,
            partitions=[_commit(call, request.group_id, topic.name, sent, code) for sent in topic.partitions],
        )
        for topic in request.topics
    ]
    if is_new and not call.broker.offsets.keys(request.group_id):
        call.broker.groups.delete(request.group_id)  # this request created the group but committed nothing
    return OffsetCommitResponse(throttle_time_ms=0, topics=topics)


def _commit(call: Call, group_id: str, topic: str, sent: Any, group_code: ErrorCode) -> Any:
    broker = call.broker
    metadata = sent.committed_metadata or ""
    code: int = group_code
    if group_code is not ErrorCode.NONE:
        pass
    elif broker.topics.partition(topic, sent.partition_index) is None:
        code = Code.UNKNOWN_TOPIC_OR_PARTITION
    elif len(metadata) > broker.settings.max_offset_metadata:
        code = Code.OFFSET_METADATA_TOO_LARGE
    else:
        key = (topic, sent.partition_index)
        if not broker.offsets.commit(group_id, key, Committed(sent.committed_offset, metadata)):
            code = Code.POLICY_VIOLATION
    return OffsetCommitResponse.OffsetCommitResponseTopic.OffsetCommitResponsePartition(
        partition_index=sent.partition_index, error_code=code
    )


API = Api(8, 3, OffsetCommitRequest, answer, lasting=True)
