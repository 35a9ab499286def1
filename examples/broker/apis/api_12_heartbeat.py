"""Heartbeat (12), versions 0-1.

Extends the member's session, which is an operation in the coordinator's ``heartbeat`` purgatory.

Not supported: instance ids (added in version 3).
"""

from typing import Any

from kafka.protocol.consumer.group import HeartbeatRequest, HeartbeatResponse

from .api import Api, Call


async def answer(call: Call, request: Any) -> HeartbeatResponse:
    code = call.broker.groups.heartbeat(request.group_id, request.member_id, request.generation_id)
    return HeartbeatResponse(throttle_time_ms=0, error_code=code)


API = Api(12, 1, HeartbeatRequest, answer)
