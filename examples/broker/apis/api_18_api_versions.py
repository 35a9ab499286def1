"""ApiVersions (18), version 0.

Clients start with version 3 or 4.  The broker answers in the format of version 0, with UNSUPPORTED_VERSION and the list
of APIs, and the client retries with version 0.  The minimum version of every API is 0: if Produce 0 is missing, older
versions of librdkafka assume that compression is not supported.

Not supported: features.
"""

from typing import Any

from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from examples.broker.protocol.error_codes import Code

from .api import Api, Call


def response(code: Code, apis: list[tuple[int, int]]) -> ApiVersionsResponse:
    """Return the response for a list of (key, highest version) pairs."""
    keys = [ApiVersionsResponse.ApiVersion(api_key=key, min_version=0, max_version=pin) for key, pin in apis]
    return ApiVersionsResponse(error_code=code, api_keys=keys)


async def answer(call: Call, request: Any) -> ApiVersionsResponse:  # noqa: ARG001 (the request has no fields)
    return response(Code.NONE, call.advertised)


API = Api(18, 0, ApiVersionsRequest, answer)
