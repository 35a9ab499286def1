"""The dependency in FastAPI: path operations, WebSockets, bodies, and the middlewares in between."""

import asyncio
import inspect
import itertools
from functools import partial
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, Response, WebSocket
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from purgatory import Purgatory
from purgatory.asgi import Wait, install_errors, waiting
from purgatory.testing import VirtualClock
from tests.asgi.tools import Call, http_scope, websocket_scope
from tests.helpers import check, turns_until


class Log:
    """The state that the application of the tests waits for."""

    def __init__(self, room: Purgatory[Any]) -> None:
        self.room = room
        self.entries: list[str] = []

    def append(self, entry: str) -> None:
        """Append an entry and check the key of the readers."""
        self.entries.append(entry)
        self.room.check_and_complete("orders")

    def has(self, number: int) -> bool:
        """Return whether the log has at least this number of entries."""
        return len(self.entries) >= number


def make_app(log: Log) -> FastAPI:
    """Return an application as a user would write it."""
    app = FastAPI()

    @app.get("/orders")
    async def orders(wait: Annotated[Wait, Depends(waiting(log.room))], after: int = 0) -> Any:
        if not await wait.until(lambda: len(log.entries) > after, keys=["orders"], timeout=30):
            return Response(status_code=204)
        return log.entries[after:]

    @app.post("/late-body")
    async def late_body(request: Request, wait: Annotated[Wait, Depends(waiting(log.room))]) -> Any:
        await wait.until(lambda: bool(log.entries), keys=["orders"], timeout=30)
        return {"body": (await request.body()).decode()}

    @app.websocket("/orders")
    async def stream(websocket: WebSocket, wait: Annotated[Wait, Depends(waiting(log.room))]) -> None:
        await websocket.accept()
        for number in itertools.count(1):
            await wait.until(partial(log.has, number), keys=["orders"], timeout=None)
            await websocket.send_text(log.entries[number - 1])

    install_errors(app)
    return app


@pytest.fixture
def log(purgatory: Purgatory[Any]) -> Log:
    """Return an empty log."""
    return Log(purgatory)


async def test_a_request_is_answered_when_the_condition_holds(log: Log, clock: VirtualClock) -> None:
    """The response contains the entries that exist when the condition holds."""
    call = Call.get(make_app(log), "/orders?after=1")
    log.append("first")
    await clock.settle()
    assert not call.sent
    log.append("second")
    await call.task
    assert (call.status, call.json) == (200, ["second"])


async def test_a_request_is_answered_when_its_deadline_passes(log: Log, clock: VirtualClock) -> None:
    """At the deadline, the handler receives False and creates the response."""
    call = Call.get(make_app(log), "/orders")
    await clock.advance(29.999)
    assert not call.sent
    await clock.advance(0.001)
    await call.task
    assert call.status == 204


async def test_an_answer_of_a_closing_purgatory_closes_the_connection(clock: VirtualClock) -> None:
    """An HTTP/1 response contains ``Connection: close`` once; HTTP/2 and other responses are unchanged."""
    log = Log(Purgatory[Any]("test", clock=clock))
    app = make_app(log)

    @app.get("/closes")
    async def closes(wait: Annotated[Wait, Depends(waiting(log.room))]) -> Response:
        await wait.until(lambda: False, keys=["orders"], timeout=30)
        return Response(headers={"Connection": "Close"})

    second = http_scope("/orders")
    second["http_version"] = "2"
    calls = [Call.get(app, "/orders"), Call(app, second), Call.get(app, "/closes")]
    await clock.settle()
    log.entries.append("first")
    before = Call.get(app, "/orders")
    await before.task
    await log.room.aclose()
    await asyncio.gather(*(call.task for call in calls))
    assert [call.headers.get("connection") for call in (before, *calls)] == [None, "close", None, "Close"]


async def test_a_client_that_hangs_up_is_withdrawn(log: Log, clock: VirtualClock) -> None:
    """A disconnect withdraws the operation within two turns of the loop; the middleware ends the request with 499."""
    call = Call.get(make_app(log), "/orders")
    await clock.settle()
    assert len(log.room) == 1
    call.hang_up()
    assert await turns_until(lambda: len(log.room) == 0) <= 2
    await call.task
    assert call.status == 499
    check(log.room, cancelled=1)


async def test_the_handler_reads_a_body_that_arrived_while_it_waited(log: Log, clock: VirtualClock) -> None:
    """FastAPI's request object reads the body that the Wait has buffered."""
    call = Call(make_app(log), http_scope("/late-body", "POST"))
    call.arrive(b"one ", more=True)
    await clock.settle()
    call.arrive(b"two")
    log.append("go")
    await call.task
    assert call.json == {"body": "one two"}


async def test_a_websocket_gets_messages_until_it_hangs_up(log: Log, clock: VirtualClock) -> None:
    """If the client disconnects, the endpoint ends without an error, and nothing more is sent."""
    call = Call(make_app(log), websocket_scope("/orders"), {"type": "websocket.connect"})
    await clock.settle()
    log.append("first")
    log.append("second")
    await clock.settle()
    assert [message.get("text") for message in call.sent[1:]] == ["first", "second"]
    call.hang_up()
    assert await turns_until(lambda: len(log.room) == 0) <= 2
    await call.task
    assert [message["type"] for message in call.sent] == ["websocket.accept", "websocket.send", "websocket.send"]


async def test_a_hang_up_passes_base_http_middleware(log: Log, clock: VirtualClock) -> None:
    """Starlette's BaseHTTPMiddleware passes the disconnect on, also below a second one."""
    app = make_app(log)

    @app.middleware("http")
    async def first(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    @app.middleware("http")
    async def second(request: Request, call_next: Any) -> Any:
        await request.body()
        return await call_next(request)

    call = Call.get(app, "/orders")
    await clock.settle()
    assert len(log.room) == 1
    call.hang_up()
    await call.task
    check(log.room, parked=0, cancelled=1)


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("parts", [[b"a body"], [b"a ", b"body"]])
async def test_no_part_of_a_body_is_lost_below_base_http_middleware(log: Log, turns: int, parts: list[bytes]) -> None:
    """The middleware takes some turns to pass a message on; the wait may end in each of them."""
    app = make_app(log)

    @app.middleware("http")
    async def passing(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    call = Call(app, http_scope("/late-body", "POST"))
    await turns_until(lambda: call.receiving == 1)
    call.arrive(parts[0], more=len(parts) > 1)
    for _ in range(turns):
        await asyncio.sleep(0)
    log.append("apple")
    await turns_until(lambda: not len(log.room))
    for part in parts[1:]:
        call.arrive(part)
    await asyncio.wait_for(call.task, 10)
    assert call.json == {"body": "a body"}
    assert (call.receiving, call.most_receiving) == (0, 1)


async def test_two_dependencies_share_the_connection(log: Log, clock: VirtualClock) -> None:
    """One ``receive()`` is pending, whichever purgatory the handler waits in."""
    async with Purgatory[Any]("second", clock=clock) as second:
        app = FastAPI()

        @app.get("/")
        async def both(
            one: Annotated[Wait, Depends(waiting(log.room))], two: Annotated[Wait, Depends(waiting(second))]
        ) -> bool:
            return await one.until(lambda: True, keys=["a"], timeout=1) and await two.until(
                lambda: False, keys=["a"], timeout=1
            )

        call = Call.get(app)
        await clock.advance(1.0)
        await call.task
        assert call.json is False
        assert call.most_receiving == 1


async def test_the_dependency_is_awaited_not_run_in_a_thread(log: Log, clock: VirtualClock) -> None:
    """FastAPI sees a coroutine function with one parameter, the connection."""
    dependency = waiting(log.room)
    assert inspect.iscoroutinefunction(dependency.__call__)
    (parameter,) = inspect.signature(dependency).parameters.values()
    assert parameter.annotation is HTTPConnection


async def test_a_function_returns_the_room(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The function is a dependency: it is given the request, and tests override it; the schema does not show it."""

    async def get_room(connection: HTTPConnection) -> Purgatory[Any]:
        return connection.app.state.room  # type: ignore[no-any-return]

    router = APIRouter()

    @router.get("/")
    async def read(wait: Annotated[Wait, Depends(waiting(get_room, longest=55))]) -> str:
        await wait.until(lambda: False, key="a", timeout=1)
        return repr(wait)

    @router.websocket("/ws")
    async def stream(websocket: WebSocket, wait: Annotated[Wait, Depends(waiting(get_room))]) -> None:
        await websocket.accept()
        await websocket.send_text(repr(wait))

    app = FastAPI()
    app.state.room = purgatory
    app.include_router(router)
    calls = [Call.get(app), Call(app, websocket_scope("/ws"), {"type": "websocket.connect"})]
    await clock.advance(1.0)
    await asyncio.gather(*(call.task for call in calls))
    assert (calls[0].json, calls[1].sent[1]["text"]) == ("<Wait in 'test'>", "<Wait in 'test'>")
    assert [each["name"] for each in app.openapi()["paths"]["/"]["get"]["parameters"]] == ["wait", "Prefer"]
    async with Purgatory[Any]("other", clock=clock) as other:

        async def get_other() -> Purgatory[Any]:
            return other

        app.dependency_overrides[get_room] = get_other
        call = Call.get(app)
        await clock.advance(1.0)
        await call.task
        assert call.json == "<Wait in 'other'>"

    app.dependency_overrides[get_room] = lambda: 3
    with pytest.raises(TypeError, match="room must be a Purgatory or a Relay, got 3"):
        await Call.get(app).task


@pytest.mark.parametrize("room", [None, 3, "orders"])
async def test_a_room_that_is_none_is_refused_at_once(room: Any) -> None:
    """A global that is set only later is refused where it is passed, not in every request."""
    with pytest.raises(TypeError, match=f"^room must be a Purgatory or a Relay, got {room!r}$"):
        waiting(room)


async def test_outside_fastapi_the_function_is_called_with_the_connection(purgatory: Purgatory[Any]) -> None:
    """In Starlette it is called with the request, and awaited if it is a coroutine function."""

    async def get_room(request: Request) -> Purgatory[Any]:
        return request.app.state.room  # type: ignore[no-any-return]

    async def endpoint(request: Request) -> PlainTextResponse:
        waits = [await waiting(lambda request: request.app.state.room)(request), await waiting(get_room)(request)]
        return PlainTextResponse(repr(waits))

    app = Starlette(routes=[Route("/", endpoint)])
    app.state.room = purgatory
    call = Call.get(app)
    await call.task
    assert call.body == b"[<Wait in 'test'>, <Wait in 'test'>]"


async def test_it_serves_starlette(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The same callable works with Starlette's request."""
    wait_for = waiting(purgatory)

    async def endpoint(request: Request) -> PlainTextResponse:
        wait = await wait_for(request)
        found = await wait.until(lambda: False, keys=["a"], timeout=1.0)
        return PlainTextResponse(f"{found} {await request.body()!r}")

    call = Call.get(Starlette(routes=[Route("/", endpoint)]))
    await clock.advance(1.0)
    await call.task
    assert call.body == b"False b''"
