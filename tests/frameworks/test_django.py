"""Django: hang-ups cancel the view, and a middleware of Django answers the errors."""

import asyncio
import threading
from typing import Any

import django
import pytest
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.utils.decorators import async_only_middleware
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from purgatory import Purgatory
from purgatory.asgi import Wait, error_response, install_errors, purgatory_lifespan
from purgatory.testing import VirtualClock
from tests.asgi.tools import Call
from tests.helpers import check

if not settings.configured:
    settings.configure(
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["*"],
        MIDDLEWARE=[f"{__name__}.answers"],
        USE_TZ=True,
        LOGGING_CONFIG=None,
    )
    django.setup()

room: Purgatory[Any]
log: list[str] = []


@async_only_middleware
def answers(get_response: Any) -> Any:
    """Answer the errors of the purgatory, as a user would write it."""

    class Answers:
        async_capable, sync_capable = True, False

        async def __call__(self, request: HttpRequest) -> HttpResponse:
            return await get_response(request)  # type: ignore[no-any-return]

        def process_exception(self, _: HttpRequest, error: Exception) -> HttpResponse | None:
            response = error_response(error)
            if response is None:
                return None
            return HttpResponse(response.body, status=response.status, headers=response.headers)

    return Answers()


async def read(request: HttpRequest, name: str) -> HttpResponse:
    """Wait for an order."""
    await room.wait_until(lambda: name in log, key=name, timeout=float(request.GET.get("wait", 0)))
    return JsonResponse(log, safe=False)


urlpatterns = [path("orders/<str:name>", read)]


@pytest.fixture(autouse=True)
def empty(clock: VirtualClock) -> None:
    """Begin with a new purgatory and an empty log."""
    global room
    room = Purgatory[Any]("secret", clock=clock, max_parked=2, max_parked_per_key=1)
    log.clear()


async def test_a_request_waits(clock: VirtualClock) -> None:
    """A check answers the request."""
    async with room:
        call = Call.get(ASGIHandler(), "/orders/7?wait=30")
        await parked(1)
        log.append("7")
        room.check("7")
        await call.task
        assert (call.status, call.json) == (200, ["7"])


async def test_a_hang_up_withdraws_the_wait(clock: VirtualClock) -> None:
    """Django reads the connection itself and cancels the view, so a plain ``wait_until`` is withdrawn."""
    async with room:
        call = Call.get(ASGIHandler(), "/orders/7?wait=30")
        await parked(1)
        call.hang_up()
        await asyncio.wait([call.task])
        check(room, parked=0, cancelled=1)


async def test_the_middleware_answers_the_errors(clock: VirtualClock) -> None:
    """Full: 429 or 503; closed: 503; each of them with the body of the other frameworks."""
    app = ASGIHandler()
    async with room:
        waiting = []
        refused = []
        for number, name in enumerate("78", 1):
            waiting.append(Call.get(app, f"/orders/{name}?wait=30"))
            await parked(number)
            refused.append(Call.get(app, f"/orders/{'79'[number - 1]}?wait=30"))
            await refused[-1].task
        await room.aclose()
        refused.append(Call.get(app, "/orders/7?wait=30"))
        await asyncio.gather(*(call.task for call in [*refused, *waiting]))
    assert [call.status for call in refused] == [429, 503, 503]
    assert all("retry-after" in call.headers and "secret" not in call.json["detail"] for call in refused)
    assert [call.status for call in waiting] == [200, 200]


async def test_the_lifespan_opens_and_closes(clock: VirtualClock) -> None:
    """Django does not handle the lifespan protocol; the wrapped application opens and closes the purgatory."""
    app = purgatory_lifespan(room).wrap(ASGIHandler())
    server = Call(app, {"type": "lifespan", "asgi": {"version": "3.0"}}, {"type": "lifespan.startup"})
    await clock.settle()
    assert [message["type"] for message in server.sent] == ["lifespan.startup.complete"]
    server._messages.put_nowait({"type": "lifespan.shutdown"})
    await server.task
    assert server.sent[-1]["type"] == "lifespan.shutdown.complete"
    assert room.closed


async def test_each_waiting_request_holds_a_thread(clock: VirtualClock) -> None:
    """Django keeps the thread of the request's first synchronous part until the response has ended."""
    async with room:
        before = set(threading.enumerate())
        calls = []
        for number, name in enumerate("78", 1):
            calls.append(Call.get(ASGIHandler(), f"/orders/{name}?wait=30"))
            await parked(number)
        held = set(threading.enumerate()) - before
        assert len(held) == 2
        for name in "78":
            log.append(name)
            room.check(name)
        await asyncio.gather(*(call.task for call in calls))
        assert not held & set(threading.enumerate())


async def test_starlette_serves_the_requests_that_wait(clock: VirtualClock) -> None:
    """Starlette answers its own paths, and Django all others, without a thread for each wait."""

    async def endpoint(request: Request) -> JSONResponse:
        await Wait(room, request).until(lambda: "9" in log, key="9", timeout=30)
        return JSONResponse(log)

    app = Starlette(routes=[Route("/waits/9", endpoint), Mount("/", ASGIHandler())])
    install_errors(app)
    async with room:
        before = set(threading.enumerate())
        call = Call.get(app, "/waits/9")
        await parked(1)
        assert set(threading.enumerate()) == before
        log.append("9")
        other = Call.get(app, "/orders/9")
        await other.task
        assert (other.status, other.json) == (200, ["9"])
        room.check("9")
        await call.task
        assert (call.status, call.json) == (200, ["9"])


async def parked(number: int) -> None:
    """Return when this number of requests waits: Django runs a part of each request in a thread."""
    while len(room) != number:  # noqa: ASYNC110 - a thread decides
        await asyncio.sleep(0.001)
