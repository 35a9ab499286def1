"""How long the client is willing to wait: ``?wait=30``, ``Prefer: wait=30``, the bound, and the refusals."""

import asyncio
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, Response, WebSocket
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute

from purgatory import Purgatory, PurgatoryFull
from purgatory.asgi import InvalidWait, PurgatoryErrorMiddleware, Wait, install_errors, waiting
from purgatory.asgi.types import Receive, Scope, Send
from purgatory.testing import VirtualClock
from tests.asgi.tools import Call, http_scope, websocket_scope
from tests.helpers import Op, check


def asking(target: str = "/", *prefer: str) -> Scope:
    """Return the scope of a GET request with these ``Prefer`` headers."""
    scope = http_scope(target)
    scope["headers"] = [*scope["headers"], *[(b"prefer", line.encode("latin-1")) for line in prefer]]
    return scope


async def no_message() -> Any:
    """Receive nothing."""
    await asyncio.Event().wait()


def timeout_of(scope: Scope, longest: float | None = 55, room: Purgatory[Any] | None = None) -> float | None:
    """Return ``wait.timeout`` of a request."""
    return Wait(room or Purgatory[Any]("test"), scope, no_message, longest=longest).timeout


@pytest.mark.parametrize(
    ("query", "seconds"),
    [
        ("", 0),
        ("other=3", 0),
        ("wait=30", 30),
        ("wait=0", 0),
        ("wait=2.5", 2.5),
        ("wait=55.1", 55),
        ("wait=1e9", 55),
        ("wait=inf", 55),
        ("wait=1&wait=2", 2),  # like FastAPI
        ("w%61it=7", 7),
        ("wait=-0.0", 0),
    ],
)
async def test_the_query_parameter_is_bounded(query: str, seconds: float) -> None:
    """``wait.timeout`` is what the client asked for, 0 without, and at most ``longest``."""
    assert timeout_of(asking(f"/?{query}")) == seconds


@pytest.mark.parametrize("text", ["abc", "", "-1", "-inf", "nan", "30s", "0x10", "1,5", "%00", "%D9%A3", "1%EF%BC%90"])
async def test_a_parameter_that_is_no_number_of_seconds_is_refused(text: str) -> None:
    """Plain ASGI: InvalidWait, which the middleware answers with 422 and without Retry-After."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        Wait(Purgatory[Any]("test"), scope, receive, longest=55)

    with pytest.raises(InvalidWait, match="wait must be a number of seconds, at least 0, got "):
        timeout_of(asking(f"/?wait={text}"))
    call = Call.get(PurgatoryErrorMiddleware(app), f"/?wait={text}")
    await call.task
    assert call.status == 422
    assert "wait must be" in call.json["detail"]
    assert "retry-after" not in call.headers


LONG = ["%F0%9F%98%80" * 40, "%F3%A0%80%81" * 40, "%ED%A0%80" * 40, "%00" * 40, "x" * 5000]


@pytest.mark.parametrize("text", LONG)
async def test_the_reason_of_a_close_fits_into_its_frame(text: str, purgatory: Purgatory[Any]) -> None:
    """Whatever the client sent as ``wait``, the reason is at most 123 bytes, so the server can send code 1008."""
    wait_for = waiting(purgatory, longest=55)

    async def plain(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await wait_for(scope, receive)

    async def endpoint(websocket: WebSocket) -> None:
        await websocket.accept()
        await wait_for(websocket)

    for app in (PurgatoryErrorMiddleware(plain), Starlette(routes=[WebSocketRoute("/", endpoint)])):
        call = Call(app, websocket_scope(f"/?wait={text}"), {"type": "websocket.connect"})
        await call.task
        assert (call.sent[-1]["type"], call.sent[-1]["code"]) == ("websocket.close", 1008)
        assert call.sent[-1]["reason"].startswith("wait must be a number of seconds, at least 0, got '")
        assert len(call.sent[-1]["reason"].encode()) <= 123


async def test_a_refusal_quotes_the_beginning_of_a_long_parameter() -> None:
    """The first 16 characters are sufficient to recognize it, and the reason of a close has room for them."""
    with pytest.raises(InvalidWait, match=r"at least 0, got 'xxxxxxxxxxxxxxxx'$"):
        timeout_of(asking("/?wait=" + "x" * 17))


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        (["wait=30"], 30),
        (["respond-async, wait=10"], 10),
        (["WAIT = 10"], 10),
        (["return=minimal", "wait=10"], 10),
        (['wait="10"'], 10),
        (["wait=10; strict, wait=20"], 10),  # the first one counts
        (['note="a, wait=20; \\" b", wait=10'], 10),
        ([",, wait=10 ,"], 10),
        (["wait=0"], 0),
        (["wait=100"], 55),
        (["wait=" + "9" * 400], 55),
        (["wait"], 0),
        (["wait="], 0),
        (["wait=abc"], 0),
        (["wait=-1"], 0),
        (["wait=1.5"], 0),  # RFC 7240 has whole seconds
        (["wait=inf"], 0),
        (["wait=abc, wait=10"], 0),
        (['wait=10, "'], 0),
        (["wait=\u00b2"], 0),
        (['wait="10;20"'], 0),
        (['wait="10; strict" ; x=1'], 0),
        (['note="a;b"; x="c;d", wait="10";y'], 10),
        (["await=10"], 0),
    ],
)
async def test_the_preference_is_bounded_and_ignored_if_malformed(lines: list[str], seconds: float) -> None:
    """RFC 7240: whole seconds, the first of several counts, and a malformed preference is no error."""
    assert timeout_of(asking("/", *lines)) == seconds


async def test_the_parameter_comes_before_the_header() -> None:
    """With both, the header is not honoured."""
    assert timeout_of(asking("/?wait=2", "wait=30")) == 2


async def test_without_longest_nothing_is_read() -> None:
    """By default, ``wait.timeout`` is None, whatever the client sends, and leaving out ``timeout`` is a TypeError."""
    room = Purgatory[Any]("test")
    wait = Wait(room, asking("/?wait=abc", "wait=30"), no_message)
    assert wait.timeout is None
    for method in (wait.until, wait.value):
        with pytest.raises(TypeError, match=r"a timeout or a deadline, got neither.*waiting\(room, longest=55\)"):
            method(lambda: None, key="a")


@pytest.mark.parametrize("longest", [-1, float("nan"), float("inf"), "55", True])
def test_longest_is_a_number_of_seconds(longest: Any) -> None:
    """Anything else is refused when the dependency is created."""
    with pytest.raises((TypeError, ValueError), match="longest must be"):
        waiting(Purgatory[Any]("test"), longest=longest)


async def test_a_wait_of_zero_is_one_try(clock: VirtualClock) -> None:
    """A plain request is answered at once, also in a full and in a closed purgatory, and is not counted."""
    async with Purgatory[Any]("test", clock=clock, max_parked=1) as room:
        room.try_complete_else_watch(Op(), ["a"])  # it is full
        wait = Wait(room, asking(), no_message, longest=55)
        given: list[str] = []
        operation = Op(5.0, name="op")
        assert await wait.until(lambda: False, key="a") is False
        assert await wait.until(lambda: True, keys=["a", "b"]) is True
        assert await wait.value(lambda: None, key="a", on_abandoned=given.append) is None
        assert await wait.value(lambda: "now", key="a", on_abandoned=given.append) == "now"
        assert await wait.until(lambda: False, key="a", timeout=0) is False
        assert await wait.until(lambda: False, key="a", deadline=-1.0) is False
        assert await wait.park(operation, key="a") == "op"
        assert await wait.park(Op(name="own"), key="a", timeout=0) == "own"
        assert await wait.park(Op(name="late"), key="a", deadline=-1.0) == "late"
        assert (operation.expired, operation.calls) == (True, ["try", "complete", "expire"])
        with pytest.raises(PurgatoryFull):
            await wait.until(lambda: False, key="a", timeout=1)
        await room.aclose()
        assert await wait.until(lambda: False, key="a") is False
        assert await wait.value(lambda: 0, key="a") == 0
        assert await wait.park(Op(name="closed"), key="a") == "closed"
        assert not wait.expired_by_closing
        assert given == []
        check(room, submitted=1, completed=0, cancelled=0)


async def test_less_than_a_nanosecond_is_a_wait_of_zero(clock: VirtualClock) -> None:
    """Timeouts are exact to a nanosecond: less is one try, from wherever it comes, and a nanosecond is a wait."""
    async with Purgatory[Any]("test", clock=clock) as room:
        for longest, query in ((55, "/?wait=1e-10"), (1e-10, "/?wait=5")):
            wait = Wait(room, asking(query), no_message, longest=longest)
            assert await wait.until(lambda: False, key="a") is False
            assert await wait.park(Op(5.0, name="asked"), key="a") == "asked"
        wait = Wait(room, asking(), no_message)
        assert await wait.value(lambda: None, key="a", timeout=1e-10) is None
        assert await wait.park(Op(5.0, name="given"), key="a", timeout=1e-10) == "given"
        assert await wait.park(Op(1e-10, name="own"), key="a") == "own"
        assert await wait.park(absolute(room.timer.time()), key="a") == ""
        check(room, submitted=0)
        tasks = [asyncio.ensure_future(wait.until(lambda: False, key="a", timeout=1e-9))]
        tasks.append(asyncio.ensure_future(wait.park(Op(5.0, name="late"), key="a", timeout=1e-9)))
        await clock.settle()
        check(room, submitted=2)
        await clock.advance(0.001)
        assert [await task for task in tasks] == [False, "late"]


async def test_the_client_decides_how_long_a_wait_lasts(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The default of ``timeout`` is what the client asked for; an explicit timeout or deadline replaces it."""
    wait = Wait(purgatory, asking("/?wait=2"), no_message, longest=55)
    now = purgatory.timer.time()
    waits = {
        2.0: [wait.until(lambda: False, key="a"), wait.value(lambda: None, keys=["a"]), wait.park(Op(), key="a")],
        1.0: [
            wait.until(lambda: False, key="a", timeout=1),
            wait.value(lambda: None, key="a", deadline=now + 1),
            wait.park(Op(1.0), key="a"),  # its own, which is shorter
            wait.park(absolute(now + 1), key="a"),
            wait.park(Op(30.0), ["a"], timeout=1),
            wait.park(Op(30.0), {"a": 3}, deadline=now + 1),
        ],
    }
    waits[2.0] += [wait.park(Op(30.0), key="a"), wait.park(absolute(now + 30), key="a")]
    tasks = {seconds: [asyncio.ensure_future(each) for each in group] for seconds, group in waits.items()}
    await clock.advance(0.999)
    assert len(purgatory) == 11
    await clock.advance(0.001)
    assert all(task.done() for task in tasks[1.0])
    assert len(purgatory) == 5
    await clock.advance(0.999)
    assert len(purgatory) == 5
    await clock.advance(0.001)
    assert all(task.done() for task in tasks[2.0])


def absolute(deadline: float) -> Op:
    """Return an operation with an absolute deadline."""
    operation = Op()
    operation.extend_to(deadline)
    return operation


async def test_park_takes_a_timeout_or_a_deadline(purgatory: Purgatory[Any]) -> None:
    """Both are a TypeError, and so is both of ``key`` and ``keys``; nothing is parked."""
    wait = Wait(purgatory, asking(), no_message)
    for arguments in ({"key": "a", "timeout": 1, "deadline": 2}, {"key": "a", "keys": ["a"]}, {}):
        with pytest.raises(TypeError, match=r"got (both|neither)"):
            wait.park(Op(), **arguments)
    with pytest.raises(TypeError, match="use keys="):
        wait.until(lambda: True, key=["a"], timeout=1)
    check(purgatory, submitted=0)


# The response


def make_app(room: Purgatory[Any]) -> FastAPI:
    """Return an application with a plain result, a response of its own, an explicit timeout, and a WebSocket."""
    app = FastAPI()
    Waiting = Annotated[Wait, Depends(waiting(room, longest=55))]  # noqa: N806 - a type

    @app.get("/plain/{id}")
    async def plain(id: str, wait: Waiting) -> dict[str, Any]:  # noqa: A002
        return {"news": await wait.until(lambda: False, key=id), "timeout": wait.timeout}

    @app.get("/response")
    async def response(wait: Waiting) -> Response:
        await wait.until(lambda: False, key="a")
        return Response(status_code=204)

    @app.get("/explicit")
    async def explicit(wait: Waiting) -> bool:
        return await wait.until(lambda: False, key="a", timeout=1)

    @app.websocket("/ws")
    async def stream(websocket: WebSocket, wait: Waiting) -> None:
        await websocket.accept()
        await websocket.send_json(wait.timeout)
        await websocket.close()

    return app


@pytest.mark.parametrize("errors", [True, False])
async def test_an_honoured_preference_is_confirmed(
    purgatory: Purgatory[Any], clock: VirtualClock, errors: bool
) -> None:
    """``Preference-Applied`` has the seconds that were applied; FastAPI adds it to a plain result also without the
    middleware, and the middleware to every response, once.
    """
    app = make_app(purgatory)
    if errors:
        install_errors(app)
    requests = {
        ("/plain/7", "wait=3"): "wait=3",
        ("/plain/7", "respond-async, wait=100"): "wait=55",
        ("/plain/7", "wait=0"): "wait=0",
        ("/plain/7", "wait=abc"): None,
        ("/plain/7?wait=3", "wait=4"): None,
        ("/plain/7?wait=3", ""): None,
        ("/response", "wait=3"): "wait=3" if errors else None,
        ("/explicit", "wait=3"): None,
    }
    calls = [Call(app, asking(target, prefer)) for target, prefer in requests]
    await clock.advance(55.0)
    await asyncio.gather(*(call.task for call in calls))
    assert [call.headers.get("preference-applied") for call in calls] == list(requests.values())
    names = [name for call in calls for name, _ in call.sent[0]["headers"] if name == b"preference-applied"]
    assert len(names) == sum(value is not None for value in requests.values())


@pytest.mark.parametrize("text", ["abc", "-1", "nan", "", "%D9%A3", "1%EF%BC%90"])
async def test_fastapi_refuses_a_parameter_that_is_no_number(purgatory: Purgatory[Any], text: str) -> None:
    """FastAPI answers with 422 in its own format, and closes a WebSocket before it is accepted."""
    app = make_app(purgatory)
    call = Call.get(app, f"/plain/7?wait={text}")
    await call.task
    assert call.status == 422
    assert call.json["detail"][0]["loc"] == ["query", "wait"]
    socket = Call(app, websocket_scope(f"/ws?wait={text}"), {"type": "websocket.connect"})
    await socket.task
    assert [(message["type"], message["code"]) for message in socket.sent] == [("websocket.close", 1008)]


async def test_a_websocket_asks_too(purgatory: Purgatory[Any]) -> None:
    """The parameter and the header also count for a WebSocket."""
    scopes = [websocket_scope("/ws?wait=100"), {**asking("/ws", "wait=4"), "type": "websocket", "extensions": {}}]
    calls = [Call(make_app(purgatory), scope, {"type": "websocket.connect"}) for scope in scopes]
    await asyncio.gather(*(call.task for call in calls))
    assert [call.sent[1]["text"] for call in calls] == ["55.0", "4.0"]


async def test_the_parameters_are_in_the_schema(purgatory: Purgatory[Any]) -> None:
    """OpenAPI describes ``wait`` and ``Prefer`` with ``longest``, and neither of them without."""
    app = make_app(purgatory)

    @app.get("/without")
    async def without(wait: Annotated[Wait, Depends(waiting(purgatory))]) -> None: ...

    paths = app.openapi()["paths"]
    parameters = {each["name"]: each for each in paths["/plain/{id}"]["get"]["parameters"]}
    assert {name: each["in"] for name, each in parameters.items()} == {
        "id": "path",
        "wait": "query",
        "Prefer": "header",
    }
    assert parameters["wait"]["required"] is parameters["Prefer"]["required"] is False
    assert (parameters["wait"]["schema"]["type"], parameters["wait"]["schema"]["minimum"]) == ("number", 0)
    assert "at most 55" in parameters["wait"]["description"]
    assert "parameters" not in paths["/without"]["get"]


async def test_starlette_refuses_a_parameter_that_is_no_number(purgatory: Purgatory[Any]) -> None:
    """Starlette answers with 422 and closes a WebSocket, without the middleware; a valid one is bounded."""
    wait_for = waiting(purgatory, longest=55)

    async def endpoint(request: Request) -> JSONResponse:
        return JSONResponse((await wait_for(request)).timeout)

    async def socket(websocket: WebSocket) -> None:
        await wait_for(websocket)

    app = Starlette(routes=[Route("/", endpoint), WebSocketRoute("/ws", socket)])
    good, bad = Call.get(app, "/?wait=100"), Call.get(app, "/?wait=abc")
    closed = Call(app, websocket_scope("/ws?wait=abc"), {"type": "websocket.connect"})
    await asyncio.gather(good.task, bad.task, closed.task)
    assert (good.json, bad.status) == (55.0, 422)
    assert [(message["type"], message["code"]) for message in closed.sent] == [("websocket.close", 1008)]


async def test_starlette_confirms_a_preference_with_the_middleware(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """``install_errors`` adds the header to the response of a Starlette endpoint."""

    async def endpoint(request: Request) -> JSONResponse:
        wait = Wait(purgatory, request, longest=55)
        return JSONResponse(await wait.until(lambda: False, key="a"))

    app = Starlette(routes=[Route("/", endpoint)])
    install_errors(app)
    call = Call(app, asking("/", "wait=3"), {"type": "http.request", "body": b"", "more_body": False})
    await clock.advance(3.0)
    await call.task
    assert (call.json, call.headers["preference-applied"]) == (False, "wait=3")
