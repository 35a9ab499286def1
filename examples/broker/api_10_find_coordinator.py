"""FindCoordinator (10), versions 0-1.

This broker coordinates every group.

Left out: transactions: asked for their coordinator it says TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which clients take
for final, where "not available" would make them ask for ever.
"""

from typing import Any

from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from .api import Api, Call
from .codes import Code

_GROUP = 0


async def answer(call: Call, request: Any) -> FindCoordinatorResponse:
    broker = call.broker
    if request.key_type != _GROUP:
        return FindCoordinatorResponse(
            throttle_time_ms=0,
            error_code=Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            error_message="this broker knows no transactions",
            node_id=-1,
            host="",
            port=-1,
        )
    return FindCoordinatorResponse(
        throttle_time_ms=0,
        error_code=Code.NONE,
        error_message=None,
        node_id=broker.node_id,
        host=broker.host,
        port=broker.port,
    )


API = Api(10, 1, FindCoordinatorRequest, answer)
