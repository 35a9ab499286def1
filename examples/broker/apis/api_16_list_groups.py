"""ListGroups (16), versions 0-1.

Not supported: states and filters (added in version 4).
"""

from typing import Any

from kafka.protocol.admin import ListGroupsRequest, ListGroupsResponse

from examples.broker.protocol.error_codes import Code

from .api import Api, Call


async def answer(call: Call, request: Any) -> ListGroupsResponse:  # noqa: ARG001 (the request has no fields)
    groups = [
        ListGroupsResponse.ListedGroup(group_id=group.group_id, protocol_type=group.protocol_type)
        for group in call.broker.groups.list_groups()
    ]
    return ListGroupsResponse(throttle_time_ms=0, error_code=Code.NONE, groups=groups)


API = Api(16, 1, ListGroupsRequest, answer)
