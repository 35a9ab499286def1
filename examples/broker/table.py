"""The APIs by number, and what becomes of a request."""

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
from .api import Api, Call
from .broker import Broker
from .codec import Malformed, decode, decode_header, encode
from .codes import Code

__all__ = ["ADVERTISED", "APIS", "answer_frame"]

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


async def answer_frame(broker: Broker, frame: bytes, client_host: str) -> bytes | None:
    """The response to a request, as a frame; None: none is sent.

    Raises :class:`~examples.broker.codec.Malformed` and :class:`~examples.broker.api.Hangup`: the connection is to be
    closed.
    """
    header = decode_header(frame)
    api = APIS.get(header.api_key)
    if api is None:
        raise Malformed(f"there is no API {header.api_key}")
    if not 0 <= header.version <= api.pin:
        if api is not api_18_api_versions.API or header.version < 0:
            raise Malformed(f"{api.request.name} is known in versions 0 to {api.pin}, not {header.version}")
        return encode(api_18_api_versions.response(Code.UNSUPPORTED_VERSION, ADVERTISED), 0, header.correlation_id)
    if api.glance is not None:
        api.glance(frame, header)
    request = decode(api.request, frame, header)
    call = Call(broker, ADVERTISED, header.version, header.client_id, client_host)
    response = await api.answer(call, request)
    return None if response is None else encode(response, header.version, header.correlation_id)
