"""DescribeGroups (15), versions 0-3.

A group that does not exist is in state Dead, without an error, as in Kafka.

Left out: authorized operations (there is no authorization).
"""

from typing import Any

from kafka.protocol.admin import DescribeGroupsRequest, DescribeGroupsResponse

from examples.group import GroupDescription

from .api import Api, Call


async def answer(call: Call, request: Any) -> DescribeGroupsResponse:
    groups = [_describe(call.broker.groups.describe(group_id)) for group_id in request.groups]
    return DescribeGroupsResponse(throttle_time_ms=0, groups=groups)


def _describe(group: GroupDescription) -> Any:
    group_type = DescribeGroupsResponse.DescribedGroup
    return group_type(
        error_code=group.error,
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
