"""LeaveGroup (13), versions 0-1.

Not supported: several members in one request, and instance ids (both added in version 3).
"""

from typing import Any

from kafka.protocol.consumer.group import LeaveGroupRequest, LeaveGroupResponse

from .api import Api, Call


async def answer(call: Call, request: Any) -> LeaveGroupResponse:
    code = call.broker.groups.leave(request.group_id, request.member_id)
    return LeaveGroupResponse(throttle_time_ms=0, error_code=code)


API = Api(13, 1, LeaveGroupRequest, answer, lasting=True)
