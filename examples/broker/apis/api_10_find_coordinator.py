"""FindCoordinator (10), versions 0-1.

This broker coordinates every group.

Not supported: transactions.  A request for a transaction coordinator gets TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which
clients treat as final.  After COORDINATOR_NOT_AVAILABLE, they would retry forever.
"""

from typing import Any

from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from examples.broker.protocol.error_codes import Code

from .api import Api, Call

_GROUP, _TRANSACTION = 0, 1


async def answer(call: Call, request: Any) -> FindCoordinatorResponse:
    broker = call.broker
    if request.key_type == _TRANSACTION:
        return _refusal(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "this broker does not support transactions")
    if request.key_type != _GROUP:
        return _refusal(Code.INVALID_REQUEST, f"key type must be 0 (group) or 1 (transaction), got {request.key_type}")
    return FindCoordinatorResponse(
        throttle_time_ms=0,
        error_code=Code.NONE,
        error_message=None,
        node_id=broker.node_id,
        host=broker.host,
        port=broker.port,
    )


def _refusal(code: Code, message: str) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        throttle_time_ms=0, error_code=code, error_message=message, node_id=-1, host="", port=-1
    )


API = Api(10, 1, FindCoordinatorRequest, answer)
