"""Litestar: waits, hang-ups, the lifespan, and error handlers."""

import asyncio
from typing import Any

import litestar

from purgatory import Purgatory, PurgatoryError
from purgatory.asgi import (
    ClientDisconnected,
    InvalidWait,
    PurgatoryErrorMiddleware,
    Wait,
    error_response,
    inspector,
    purgatory_lifespan,
)
from purgatory.testing import VirtualClock
from tests.asgi.tools import Call, http_scope
from tests.helpers import check


class NoResponse(litestar.Response[None]):
    """Sends nothing, because the client has disconnected."""

    def to_asgi_response(self, *_: Any, **__: Any) -> Any:
        async def nothing(*_: Any) -> None: ...

        return nothing


def make_app(room: Purgatory[Any], log: list[str]) -> Any:
    """Return an application as a user would write it."""

    @litestar.get("/orders/{name:str}")
    async def read(request: litestar.Request[Any, Any, Any]) -> list[str]:
        name = request.path_params["name"]
        wait = Wait(room, request.scope, request.receive, longest=55)
        await wait.until(lambda: name in log, key=name)
        wait.raise_if_closing()
        return log

    def answer(request: litestar.Request[Any, Any, Any], error: Exception) -> Any:
        if isinstance(error, ClientDisconnected) and request.scope["http_version"] == "2":
            return NoResponse(None)
        response = error_response(error)
        if response is None:
            raise error
        return litestar.Response(response.body, status_code=response.status, headers=response.headers)

    return litestar.Litestar(
        [read], exception_handlers={PurgatoryError: answer, InvalidWait: answer}, openapi_config=None
    )


async def test_a_request_waits_and_is_named_by_its_route(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """A check answers the request, whose kind is the pattern of the route."""
    log: list[str] = []
    call = Call.get(make_app(purgatory, log), "/orders/7?wait=30")
    await clock.settle()
    (row,) = purgatory.dump()["operations"]
    assert row["kind"] == "GET /orders/{name}"
    log.append("7")
    purgatory.check("7")
    await call.task
    assert (call.status, call.json) == (200, ["7"])


async def test_a_body_is_read_after_the_wait(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Litestar's request has a ``receive`` of its own, which the handler replaces."""

    @litestar.post("/orders", media_type="text/plain")
    async def write(request: litestar.Request[Any, Any, Any]) -> str:
        wait = Wait(purgatory, request.scope, request.receive, longest=55)
        request.receive = wait.receive
        await wait.until(lambda: False, key="a", timeout=5.0)
        return (await request.body()).decode()

    call = Call(litestar.Litestar([write], openapi_config=None), http_scope("/orders", method="POST"))
    call.arrive(b"one ", more=True)
    await clock.settle()
    call.arrive(b"two")
    await clock.advance(5.0)
    await call.task
    assert (call.status, call.body) == (201, b"one two")


async def test_a_hang_up_withdraws_the_wait(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Litestar does not read the connection while a handler runs, so the Wait notices the disconnect."""
    call = Call.get(make_app(purgatory, []), "/orders/7?wait=30")
    await clock.settle()
    call.hang_up()
    await call.task
    check(purgatory, parked=0, cancelled=1)


async def test_the_handler_answers_the_errors(clock: VirtualClock) -> None:
    """Full: 429 or 503; closing: 503; a bad parameter: 422; each of them with the body of the middleware."""
    room = Purgatory[Any]("secret", clock=clock, max_parked=2, max_parked_per_key=1)
    app = make_app(room, [])
    calls = []
    for target in ("7?wait=30", "7?wait=30", "8?wait=30", "9?wait=30", "7?wait=abc"):
        calls.append(Call.get(app, f"/orders/{target}"))
        await clock.settle()
    await room.aclose()
    await asyncio.gather(*(call.task for call in calls))
    calls = [calls[1], calls[3], calls[4], calls[0]]
    assert [call.status for call in calls] == [429, 503, 422, 503]
    assert ["retry-after" in call.headers for call in calls] == [True, True, False, True]
    assert all(
        "secret" not in call.json["detail"] and call.headers["content-type"] == "application/json" for call in calls
    )


async def test_a_middleware_does_not_see_the_errors(clock: VirtualClock) -> None:
    """Without an exception handler, Litestar answers with 500, whatever is around it."""

    @litestar.get("/")
    async def read(request: litestar.Request[Any, Any, Any]) -> None:
        await Wait(room, request.scope, request.receive).until(lambda: False, key="a", timeout=1)

    room = Purgatory[Any]("test", clock=clock)
    await room.aclose()
    call = Call.get(PurgatoryErrorMiddleware(litestar.Litestar([read], openapi_config=None)), "/")
    await call.task
    assert call.status == 500


async def test_the_lifespan_opens_and_closes(clock: VirtualClock) -> None:
    """The wrapped application opens the purgatory at its start, and closes it at its end."""
    room = Purgatory[Any]("test", clock=clock)
    app = purgatory_lifespan(room).wrap(make_app(room, []))
    server = Call(app, {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, {"type": "lifespan.startup"})
    await clock.settle()
    assert [message["type"] for message in server.sent] == ["lifespan.startup.complete"]
    assert not room.closed
    server._messages.put_nowait({"type": "lifespan.shutdown"})
    await server.task
    assert server.sent[-1]["type"] == "lifespan.shutdown.complete"
    assert room.closed


async def test_the_inspector_is_mounted(purgatory: Purgatory[Any]) -> None:
    """Litestar adds a slash to the path within a mounted application."""
    served = inspector(purgatory)

    @litestar.asgi("/purgatory", is_mount=True, copy_scope=True)
    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await served(scope, receive, send)

    app = litestar.Litestar([mounted], openapi_config=None)
    for path, kind in (("", "text/html"), ("page.js", "text/javascript"), ("state.json", "application/json")):
        call = Call.get(app, f"/purgatory/{path}")
        await call.task
        assert call.status == 200, path
        assert call.headers["content-type"].startswith(kind)
    call = Call.get(app, "/purgatory/other")
    await call.task
    assert call.status == 404
