"""DescribeGroups (15), versions 0-3.

A missing group gets the state Dead and no error, as in Kafka.  If a request lists a group more than once, the broker
describes it once; Kafka describes it each time.  When the descriptions together exceed ``max_fetch_bytes``, the
remaining groups get POLICY_VIOLATION.

Not supported: authorized operations (there is no authorization).
"""

from typing import Any

from kafka.protocol.admin import DescribeGroupsRequest, DescribeGroupsResponse

from examples.broker.protocol.error_codes import Code
from examples.group import ErrorCode, GroupDescription

from .api import Api, Call


async def answer(call: Call, request: Any) -> DescribeGroupsResponse:
    groups = call.broker.groups
    left = call.broker.settings.max_fetch_bytes
    described = []
    for group_id in dict.fromkeys(request.groups):
        left -= groups.size_of(group_id)
        if left >= 0:
            described.append(_describe(groups.describe(group_id), ErrorCode.NONE))
        else:
            described.append(_describe(GroupDescription(ErrorCode.NONE, group_id, ""), Code.POLICY_VIOLATION))
    return DescribeGroupsResponse(throttle_time_ms=0, groups=described)


def _describe(group: GroupDescription, code: int) -> Any:
    group_type = DescribeGroupsResponse.DescribedGroup
    return group_type(
        error_code=code or group.error,
        group_id=group.group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=[
            group_type.DescribedGroupMember(
                member_id=member.member_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ],
    )


API = Api(15, 3, DescribeGroupsRequest, answer)
