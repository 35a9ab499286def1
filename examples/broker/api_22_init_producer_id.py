"""InitProducerId (22), version 0.

Every producer gets a new id, in epoch 0.

Left out: transactions: with a transactional id TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which clients take for final.
"""

from typing import Any

from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from .api import Api, Call
from .codes import Code


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
