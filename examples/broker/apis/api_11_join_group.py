"""JoinGroup (11), versions 0-5.

Parks: in the coordinator's ``join`` purgatory, until the next generation begins.

From version 4 on, a dynamic member without an id first gets MEMBER_ID_REQUIRED and an id; it then joins again with that
id.

These versions are fully supported.
"""

from typing import Any

from kafka.protocol.consumer.group import JoinGroupRequest, JoinGroupResponse

from examples.broker.protocol.error_codes import Code
from examples.group import JoinRequest

from .api import Api, Call

_NAME_LENGTH = 249  # maximum length of a name that becomes part of a member id


async def answer(call: Call, request: Any) -> JoinGroupResponse:
    if request.group_instance_id is not None and not 1 <= len(request.group_instance_id) <= _NAME_LENGTH:
        return JoinGroupResponse(
            throttle_time_ms=0,
            error_code=Code.INVALID_REQUEST,
            generation_id=-1,
            protocol_name="",
            leader="",
            member_id=request.member_id,
            members=[],
        )
    session_timeout = request.session_timeout_ms / 1000
    rebalance_timeout = request.rebalance_timeout_ms / 1000 if call.version >= 1 else session_timeout
    asked = JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        session_timeout=session_timeout,
        rebalance_timeout=max(rebalance_timeout, 0.0),
        instance_id=request.group_instance_id,
        client_id=call.client_id[:_NAME_LENGTH],
        client_host=call.client_host,
        require_known_member_id=call.version >= 4,
    )
    del request
    result = await call.broker.groups.join(asked)
    return JoinGroupResponse(
        throttle_time_ms=0,
        error_code=result.error,
        generation_id=result.generation,
        protocol_name=result.protocol,
        leader=result.leader,
        member_id=result.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in result.members
        ],
    )


API = Api(11, 5, JoinGroupRequest, answer)
