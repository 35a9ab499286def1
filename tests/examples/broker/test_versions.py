"""Frames and versions: every advertised version is answered, and an invalid request is malformed."""

import pytest

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")

from kafka.protocol.metadata import ApiVersionsRequest

from examples.broker.apis.dispatch import APIS, answer_frame
from examples.broker.protocol.codec import Malformed
from tests.examples.broker.request_harness import RequestHarness, frame


async def test_api_versions_answers_newer_clients_in_the_oldest_format(harness: RequestHarness) -> None:
    """Versions 3 and 4 get error 35 and the list, in the format of version 0."""
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    response = await answer_frame(harness.broker, frame(request, 3)[4:], "")
    assert response is not None
    decoded = APIS[18].request  # the response class reads version 0 whatever it is told, where there is an error
    assert decoded is ApiVersionsRequest
    assert response[8:10] == b"\x00\x23"
    listed = (await harness.ask(ApiVersionsRequest(), 0)).api_keys
    assert {entry.api_key: entry.max_version for entry in listed} == {key: api.pin for key, api in APIS.items()}
    assert {entry.min_version for entry in listed} == {0}
    assert not {68, 71, 72} & {entry.api_key for entry in listed}


@pytest.mark.parametrize(("key", "version"), [(key, v) for key, api in APIS.items() for v in range(api.pin + 1)])
async def test_every_advertised_version_is_decoded_and_answered(
    harness: RequestHarness, key: int, version: int
) -> None:
    """An empty request of each version gets a response that this version can encode."""
    request = APIS[key].request(version=version)
    if key == 1:
        request.max_wait_ms = request.min_bytes = request.replica_id = 0
    if key == 0:
        request.acks, request.timeout_ms = 1, 0
    for field in request._struct.untagged_fields(version):
        if getattr(request, field.name) == "" and not field.is_array():
            setattr(request, field.name, 0 if field.is_batchable() else "")
    assert await harness.ask(request, version) is not None


# No transactional id, acks, timeout; then one topic with 10 000 null partitions, or 10 001 topics with none
ACKS = b"\xff\xff\x00\x01\x00\x00\x00\x00"
MANY_PARTITIONS = ACKS + b"\x00\x00\x00\x01\x00\x01t\x00\x00\x27\x10" + b"\x00\x00\x00\x00\xff\xff\xff\xff" * 10_000
MANY_TOPICS = ACKS + b"\x00\x00\x27\x11" + b"\x00\x01t\x00\x00\x00\x00" * 10_001


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "shorter than its header"),
        (b"\x00\x03\x00\x05\x00\x00\x00\x01\x00\xff", "ends beyond the frame"),
        (b"\x00\x03\x00\x05\x00\x00\x00\x01\x00\x01\xff", "UTF-8"),
        (b"\x00\x63\x00\x00\x00\x00\x00\x01\xff\xff", "API key 99 is not supported"),
        (b"\x00\x03\x00\x06\x00\x00\x00\x01\xff\xff", "must be 0 to 5, got 6"),
        (b"\x00\x03\xff\xff\x00\x00\x00\x01\xff\xff", "must be 0 to 5, got -1"),
        (b"\x00\x12\xff\xff\x00\x00\x00\x01\xff\xff", "must be 0 to 0, got -1"),
        (b"\x00\x03\x00\x05\x00\x00\x00\x01\xff\xff\x7f\xff\xff\xff\x00", "more than 10000 array elements"),
        (b"\x00\x03\x00\x05\x00\x00\x00\x01\xff\xff\x00\x00\x00\x7f\x00", "cannot be decoded"),
        (b"\x00\x03\x00\x05\x00\x00\x00\x01\xff\xff\x00\x00\x00\x01\x00\x09abc\x01", "cannot be decoded"),
        (b"\x00\x0a\x00\x00\x00\x00\x00\x01\xff\xff\x00\x09abc", "the frame has"),
        (b"\x00\x00\x00\x07\x00\x00\x00\x01\xff\xff" + MANY_PARTITIONS, "more than 10000 array elements"),
        (b"\x00\x00\x00\x07\x00\x00\x00\x01\xff\xff" + MANY_TOPICS, "more than 10000 array elements"),
        (b"\x00\x0a\x00\x00\x00\x00\x00\x01\xff\xff\x00\x01abc", "the frame has"),
        (b"\x00\x0a\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff", "key must not be null"),
        (b"\x00\x0f\x00\x00\x00\x00\x00\x01\xff\xff\x00\x00\x00\x01\xff\xff", "an element in groups must not be null"),
        (b"\x00\x14\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00", "topic_names must not be null"),
    ],
)
async def test_what_is_no_request_is_malformed_and_says_why(harness: RequestHarness, body: bytes, why: str) -> None:
    """Invalid lengths, truncation, unknown APIs and versions, and forbidden nulls are malformed, with a reason."""
    with pytest.raises(Malformed, match=why):
        await answer_frame(harness.broker, body, "")
