"""Quart: hang-ups cancel the handler, and an error handler answers the errors."""

import asyncio
from typing import Any

import quart

from purgatory import Purgatory, PurgatoryError
from purgatory.asgi import error_response, purgatory_lifespan
from purgatory.testing import VirtualClock
from tests.asgi.tools import Call
from tests.helpers import check


def make_app(room: Purgatory[Any], log: list[str]) -> Any:
    """Return an application as a user would write it."""
    app = quart.Quart("tests", root_path="/", instance_path="/")

    @app.get("/orders/<name>")
    async def read(name: str) -> list[str]:
        timeout = float(quart.request.args.get("wait", "0"))
        await room.wait_until(lambda: name in log, key=name, timeout=timeout, kind="GET /orders/<name>")
        return log

    @app.errorhandler(PurgatoryError)  # type: ignore[untyped-decorator]
    async def answer(error: PurgatoryError) -> Any:
        response = error_response(error)
        if response is None:
            raise error
        return response.body, response.status, response.headers

    return app


async def test_a_request_waits(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """A check answers the request."""
    log: list[str] = []
    call = Call.get(make_app(purgatory, log), "/orders/7?wait=30")
    await clock.settle()
    assert len(purgatory) == 1
    log.append("7")
    purgatory.check("7")
    await call.task
    assert (call.status, call.json) == (200, ["7"])


async def test_a_hang_up_withdraws_the_wait(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Quart reads the connection itself and cancels the handler, so a plain ``wait_until`` is withdrawn."""
    call = Call.get(make_app(purgatory, []), "/orders/7?wait=30")
    await clock.settle()
    call.hang_up()
    await asyncio.wait([call.task])
    check(purgatory, parked=0, cancelled=1)


async def test_the_error_handler_answers_the_errors(clock: VirtualClock) -> None:
    """Full: 429 or 503; closed: 503; each of them with the body of the middleware."""
    room = Purgatory[Any]("secret", clock=clock, max_parked=2, max_parked_per_key=1)
    app = make_app(room, [])
    calls = []
    for name in ("7", "7", "8", "9"):
        calls.append(Call.get(app, f"/orders/{name}?wait=30"))
        await clock.settle()
    await room.aclose()
    calls.append(Call.get(app, "/orders/7?wait=30"))
    await asyncio.gather(*(call.task for call in calls))
    waiting, calls = [calls[0], calls[2]], [calls[1], calls[3], calls[4]]
    assert [call.status for call in calls] == [429, 503, 503]
    assert all("retry-after" in call.headers and "secret" not in call.json["detail"] for call in calls)
    assert [call.status for call in waiting] == [200, 200]


async def test_the_lifespan_opens_and_closes(clock: VirtualClock) -> None:
    """The wrapped application opens the purgatory at its start, and closes it at its end."""
    room = Purgatory[Any]("test", clock=clock)
    app = purgatory_lifespan(room).wrap(make_app(room, []))
    server = Call(app, {"type": "lifespan", "asgi": {"version": "3.0"}}, {"type": "lifespan.startup"})
    await clock.settle()
    assert [message["type"] for message in server.sent] == ["lifespan.startup.complete"]
    server._messages.put_nowait({"type": "lifespan.shutdown"})
    await server.task
    assert server.sent[-1]["type"] == "lifespan.shutdown.complete"
    assert room.closed
