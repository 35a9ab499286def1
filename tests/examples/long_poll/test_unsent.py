"""The limit on the bytes of the responses that clients have not read."""

import asyncio

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message

from examples.long_poll.unsent import PIECE_BYTES, UnsentLimit
from tests.asgi.tools import http_scope


def answering(size: int) -> ASGIApp:
    """Return an application whose responses have this size."""
    return Response(bytes(range(256)) * (size // 256) + b"x" * (size % 256), 201, {"x-name": "a"})


class Client:
    """A client that reads up to ``reads`` messages of the server and then none."""

    def __init__(self, limit: UnsentLimit, reads: int = 1 << 40) -> None:
        self.sent: list[Message] = []
        self._reads = reads
        self.task = asyncio.ensure_future(limit(http_scope(), Request(http_scope()).receive, self._send))

    async def _send(self, message: Message) -> None:
        if len(self.sent) == self._reads:
            await asyncio.Event().wait()
        self.sent.append(message)

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
async def test_a_response_arrives_in_pieces(size: int) -> None:
    """The pieces make up the body, none is too long, and only the last one ends the response."""
    limit = UnsentLimit(answering(size), max_bytes=3 * PIECE_BYTES)
    client = Client(limit)
    await client.task
    start, *pieces = client.sent
    assert (start["status"], dict(start["headers"])[b"content-length"]) == (201, b"%d" % size)
    assert len(b"".join(piece["body"] for piece in pieces)) == size
    assert all(len(piece["body"]) <= PIECE_BYTES for piece in pieces)
    assert [piece.get("more_body", False) for piece in pieces] == [True] * (len(pieces) - 1) + [False]
    assert limit.unsent_bytes == 0


async def test_what_is_not_sent_counts_until_it_is_sent() -> None:
    """A response that does not fit beside those that are not completely sent is replaced with 503 and Retry-After."""
    limit = UnsentLimit(answering(2 * PIECE_BYTES), max_bytes=4 * PIECE_BYTES, retry_after=7)
    stalled = [Client(limit, reads) for reads in (0, 2)]
    await asyncio.sleep(0)
    assert limit.unsent_bytes == 4 * PIECE_BYTES
    refused = Client(limit)
    await refused.task
    assert (refused.status, dict(refused.sent[0]["headers"])[b"retry-after"]) == (503, b"7")
    assert refused.sent[1]["body"] == b'{"error":"responses that clients have not read must take at most 262144 bytes"}'
    stalled[0].task.cancel()
    await asyncio.wait([stalled[0].task])
    assert limit.unsent_bytes == 2 * PIECE_BYTES
    served = Client(limit)
    await served.task
    assert served.status == 201
    stalled[1].task.cancel()
    await asyncio.wait([stalled[1].task])
    assert limit.unsent_bytes == 0


async def test_a_response_of_one_piece_is_always_sent() -> None:
    """It is sent even if nothing else fits, and it does not count."""
    limit = UnsentLimit(answering(PIECE_BYTES), max_bytes=1)
    stalled, client = Client(limit, reads=1), Client(limit)
    await client.task
    assert client.status == 201
    assert limit.unsent_bytes == 0
    stalled.task.cancel()
    await asyncio.wait([stalled.task])
