"""InitProducerId (22), version 0.

Every producer gets a new id and epoch 0.

Not supported: transactions.  A request with a transactional id gets TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which
clients treat as final.
"""

from typing import Any

from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from examples.broker.protocol.error_codes import Code

from .api import Api, Call


async def answer(call: Call, request: Any) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        return InitProducerIdResponse(
            throttle_time_ms=0,
            error_code=Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            producer_id=-1,
            producer_epoch=-1,
        )
    return InitProducerIdResponse(
        throttle_time_ms=0, error_code=Code.NONE, producer_id=next(call.broker.producer_ids), producer_epoch=0
    )


API = Api(22, 0, InitProducerIdRequest, answer)
