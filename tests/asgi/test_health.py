"""The readiness probe."""

from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette

from purgatory import Purgatory
from purgatory.asgi import health
from purgatory.asgi.types import ASGIApp
from purgatory.relay import MemoryTransport, Relay
from purgatory.testing import VirtualClock
from tests.asgi.tools import Call, http_scope, websocket_scope


async def status(app: ASGIApp, target: str = "/", method: str = "GET") -> int | None:
    call = Call(app, http_scope(target, method))
    await call.task
    return call.status


async def test_it_answers_503_once_a_purgatory_is_closing(purgatory: Purgatory[Any]) -> None:
    """The probe returns 503 as soon as the closing begins, even during the grace period of the operations."""
    other = Purgatory[Any]("other")
    app = health(purgatory, other)
    call = Call.get(app)
    await call.task
    assert (call.status, call.json, call.headers["cache-control"]) == (200, {"status": "open"}, "no-store")
    await other.aclose()
    call = Call.get(app)
    await call.task
    assert (call.status, call.json) == (503, {"status": "closing"})


async def test_head_has_no_body_and_other_methods_are_not_allowed(purgatory: Purgatory[Any]) -> None:
    """HEAD returns the status and the length; other methods are not allowed."""
    call = Call(health(purgatory), http_scope("/", "HEAD"))
    await call.task
    assert (call.status, call.body, call.headers["content-length"]) == (200, b"", "17")
    call = Call(health(purgatory), http_scope("/", "POST"))
    await call.task
    assert (call.status, call.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("make", [FastAPI, Starlette])
async def test_it_is_mounted_or_added_as_a_route(purgatory: Purgatory[Any], make: Any) -> None:
    """A mount answers with a trailing slash and redirects without one; a route answers without one."""
    app = make()
    app.mount("/mounted", health(purgatory))
    app.add_route("/routed", health(purgatory))
    assert [await status(app, path) for path in ("/mounted/", "/mounted", "/routed")] == [200, 307, 200]


async def test_it_answers_http_only(purgatory: Purgatory[Any]) -> None:
    """A WebSocket raises RuntimeError."""
    with pytest.raises(RuntimeError, match="got a scope of type 'websocket'"):
        await Call(health(purgatory), websocket_scope()).task


@pytest.mark.parametrize("required", [False, True])
async def test_a_lost_engine_is_degraded(clock: VirtualClock, required: bool) -> None:
    """The status of a relay without its engine is "degraded": 200, or 503 with ``require_connected=True``."""
    transport = MemoryTransport()
    room = Purgatory[Any]("test", clock=clock)
    relay = Relay(room, transport)
    app = health(relay, room, require_connected=required)
    async with room, relay:
        states: list[tuple[int | None, Any]] = []
        for step in (transport.stop, transport.start, room.aclose):
            await clock.settle()
            call = Call.get(app)
            await call.task
            states.append((call.status, call.json["status"]))
            if (returned := step()) is not None:
                await returned
            await clock.advance(60.0)
        call = Call.get(app)
        await call.task
        assert (call.status, call.json) == (503, {"status": "closing"})
    assert states == [(200, "open"), (503 if required else 200, "degraded"), (200, "open")]


def test_a_room_must_be_a_purgatory() -> None:
    """Any other object raises TypeError."""
    with pytest.raises(TypeError, match="room must be a Purgatory or a Relay, got 3"):
        health(3)  # type: ignore[arg-type]
