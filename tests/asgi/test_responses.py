"""Small responses, and the reasons of WebSocket closes, whose length is limited."""

import pytest

from purgatory.asgi.responses import close, close_reason, respond
from purgatory.asgi.types import Message
from tests.asgi.tools import websocket_scope


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", ""),
        ("a" * 123, "a" * 123),
        ("a" * 124, "a" * 123),
        ("é" * 61, "é" * 61),
        ("é" * 62, "é" * 61),
        ("a" + "é" * 61, "a" + "é" * 61),
        ("a" + "é" * 62, "a" + "é" * 61),
        ("\N{GRINNING FACE}" * 31, "\N{GRINNING FACE}" * 30),
        ("aaa" + "\N{GRINNING FACE}" * 31, "aaa" + "\N{GRINNING FACE}" * 30),
        ("no \ud800 character", "no ? character"),
    ],
    ids=["0", "123", "124", "61x2", "62x2", "1+61x2", "1+62x2", "31x4", "3+31x4", "surrogate"],
)
def test_a_reason_is_cut_at_123_bytes(text: str, reason: str) -> None:
    """A reason is at most 123 bytes of UTF-8 and ends with a whole character."""
    assert close_reason(text) == reason
    assert len(close_reason(text).encode()) <= 123


async def test_every_close_cuts_its_reason() -> None:
    """A close cuts its reason, and so does the refusal of a WebSocket that cannot be given a response."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await close(send, 1013, "é" * 70)
    await respond(websocket_scope(), send, 403, "é" * 70)
    assert sent == [{"type": "websocket.close", "code": code, "reason": "é" * 61} for code in (1013, 1008)]
