"""SyncGroup (14), versions 0-3.

Parks: in the coordinator's ``sync`` purgatory, until the leader has sent the assignments.

These versions are fully supported.
"""

from typing import Any

from kafka.protocol.consumer.group import SyncGroupRequest, SyncGroupResponse

from examples.group import SyncRequest

from .api import Api, Call

_ASSIGNMENT_BYTES = 512  # memory overhead of an assignment


async def answer(call: Call, request: Any) -> SyncGroupResponse:
    asked = SyncRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        generation=request.generation_id,
        assignments={sent.member_id: sent.assignment for sent in request.assignments},
        instance_id=request.group_instance_id,
    )
    call.hold(sum(_ASSIGNMENT_BYTES + len(assignment) for assignment in asked.assignments.values()))
    del request
    result = await call.broker.groups.sync(asked)
    return SyncGroupResponse(throttle_time_ms=0, error_code=result.error, assignment=result.assignment)


API = Api(14, 3, SyncGroupRequest, answer, lasting=True)
