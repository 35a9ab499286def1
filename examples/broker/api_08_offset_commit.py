"""OffsetCommit (8), versions 0-3.

Committed at once, if the member is of the current generation (or the group is empty and nobody claims to be one): there
is no log of offsets that would have to be replicated, so nothing is parked.

Left out: retention times, commit timestamps; leader epochs (they come with version 6).
"""

from typing import Any

from kafka.protocol.consumer import OffsetCommitRequest, OffsetCommitResponse

from examples.group import ErrorCode

from .api import Api, Call
from .codes import Code
from .offsets import Committed


async def answer(call: Call, request: Any) -> OffsetCommitResponse:
    generation = request.generation_id_or_member_epoch
    code = call.broker.groups.check_commit(request.group_id, request.member_id, generation)
    topic_type = OffsetCommitResponse.OffsetCommitResponseTopic
    topics = [
        topic_type(
            name=topic.name,
            partitions=[_commit(call, request.group_id, topic.name, sent, code) for sent in topic.partitions],
        )
        for topic in request.topics
    ]
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


API = Api(8, 3, OffsetCommitRequest, answer)
