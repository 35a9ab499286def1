"""ApiVersions (18), version 0.

Clients begin with version 3 or 4: they are answered in the format of version 0 with UNSUPPORTED_VERSION and the list,
and come again with version 0.  The minimum of every API is 0, because older clients of librdkafka take compression for
unsupported where Produce 0 is missing.

Left out: features.
"""

from typing import Any

from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from .api import Api, Call
from .codes import Code


def response(code: Code, apis: list[tuple[int, int]]) -> ApiVersionsResponse:
    """The list of (key, highest version)."""
    keys = [ApiVersionsResponse.ApiVersion(api_key=key, min_version=0, max_version=pin) for key, pin in apis]
    return ApiVersionsResponse(error_code=code, api_keys=keys)


async def answer(call: Call, request: Any) -> ApiVersionsResponse:  # noqa: ARG001 (it asks nothing)
    return response(Code.NONE, call.advertised)


API = Api(18, 0, ApiVersionsRequest, answer)
