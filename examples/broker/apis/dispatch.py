"""The table of APIs by key, and the dispatch of a request to its API."""

from examples.broker.broker import Broker
from examples.broker.protocol.array_limits import TooManyElements, check_elements
from examples.broker.protocol.codec import Malformed, api_key, decode, decode_header, encode
from examples.broker.protocol.error_codes import Code

from . import (
    api_00_produce,
    api_01_fetch,
    api_02_list_offsets,
    api_03_metadata,
    api_08_offset_commit,
    api_09_offset_fetch,
    api_10_find_coordinator,
    api_11_join_group,
    api_12_heartbeat,
    api_13_leave_group,
    api_14_sync_group,
    api_15_describe_groups,
    api_16_list_groups,
    api_18_api_versions,
    api_19_create_topics,
    api_20_delete_topics,
    api_21_delete_records,
    api_22_init_producer_id,
)
from .api import Api, Call, Hold

__all__ = ["ADVERTISED", "APIS", "answer_frame", "is_lasting"]

APIS: dict[int, Api] = {
    module.API.key: module.API
    for module in (
        api_00_produce,
        api_01_fetch,
        api_02_list_offsets,
        api_03_metadata,
        api_08_offset_commit,
        api_09_offset_fetch,
        api_10_find_coordinator,
        api_11_join_group,
        api_12_heartbeat,
        api_13_leave_group,
        api_14_sync_group,
        api_15_describe_groups,
        api_16_list_groups,
        api_18_api_versions,
        api_19_create_topics,
        api_20_delete_topics,
        api_21_delete_records,
        api_22_init_producer_id,
    )
}


ADVERTISED = [(api.key, api.pin) for api in APIS.values()]


def is_lasting(frame: bytes) -> bool:
    """Return whether a request has a lasting effect, or has an unknown API key and is therefore refused."""
    api = APIS.get(api_key(frame, 0))
    return api is None or api.lasting


async def answer_frame(broker: Broker, frame: bytes, client_host: str, hold: Hold = lambda _: None) -> bytes | None:
    """Answer a request.  Return the response as a frame, or None if the request gets no response.

    ``hold``: called with the number of bytes that a parked request takes in addition to its frame.

    Raise :class:`~examples.broker.protocol.codec.Malformed` or
    :class:`~examples.broker.apis.api.CloseConnection` if the caller must close the connection.
    """
    header = decode_header(frame)
    api = APIS.get(header.api_key)
    if api is None:
        raise Malformed(f"API key {header.api_key} is not supported")
    if not 0 <= header.version <= api.pin:
        if api is not api_18_api_versions.API or header.version < 0:
            raise Malformed(f"version of {api.request.name} must be 0 to {api.pin}, got {header.version}")
        return encode(api_18_api_versions.response(Code.UNSUPPORTED_VERSION, ADVERTISED), 0, header.correlation_id)
    limit = broker.settings.max_request_elements
    try:
        check_elements(api.request, header.version, frame, header.end, limit)
    except TooManyElements:
        reason = f"{api.request.name} v{header.version} has more than {limit} array elements"
        raise Malformed(reason) from None
    call = Call(broker, ADVERTISED, header.version, header.client_id, client_host, hold)
    # Keep no reference to the decoded request here, so that the API can release it while the request is parked.
    response = await api.answer(call, decode(api.request, frame, header))
    return None if response is None else encode(response, header.version, header.correlation_id)
