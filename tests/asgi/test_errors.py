"""Responses to the errors of a purgatory: 429, 503, 499, WebSocket close codes, and no partial responses."""

import asyncio
import contextlib
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, Request, WebSocket
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from purgatory import OperationCancelled, Purgatory, PurgatoryClosed, PurgatoryError, PurgatoryFull
from purgatory.asgi import (
    ClientDisconnected,
    PurgatoryErrorMiddleware,
    Wait,
    error_response,
    install_errors,
    waiting,
)
from purgatory.asgi.types import Message, Receive, Scope, Send
from purgatory.relay import MemoryTransport, Relay, RelayLost
from purgatory.testing import VirtualClock
from tests.asgi.tools import Call, http_scope, websocket_scope
from tests.helpers import Boom

FULL = PurgatoryFull("purgatory 'x' is full", limit=3)
KEY_FULL = PurgatoryFull("key 'secret' is full", limit=3, key="secret")
CLOSED = PurgatoryClosed("purgatory 'x' is closed")
LOST = RelayLost("the relay is not connected: host 'secret' refused")
WITHDRAWN = OperationCancelled("the operation was withdrawn", keys=("secret",), reason="secret")
LEFT = ClientDisconnected("the client has disconnected")


def raising(error: BaseException, *messages: Message, **options: Any) -> PurgatoryErrorMiddleware:
    """Return an application that sends the messages and raises, wrapped in the middleware."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)
        raise error

    return PurgatoryErrorMiddleware(app, **options)


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (FULL, 503, "2"),
        (KEY_FULL, 429, "2"),
        (CLOSED, 503, "2"),
        (LOST, 503, "2"),
        (WITHDRAWN, 503, "2"),
        (LEFT, 499, None),
    ],
    ids=["full", "key full", "closed", "lost", "withdrawn", "left"],
)
async def test_an_error_becomes_a_response(error: Exception, status: int, retry_after: str | None) -> None:
    """An error becomes one complete response that contains neither the key nor the engine of the relay; Retry-After is
    rounded up.
    """
    call = Call.get(raising(error, retry_after=1.2))
    await call.task
    assert [message["type"] for message in call.sent] == ["http.response.start", "http.response.body"]
    assert call.status == status
    assert call.headers.get("retry-after") == retry_after
    assert call.headers["content-length"] == str(len(call.body))
    assert "secret" not in call.json["detail"]
    assert call.headers.get("connection") == ("close" if error is CLOSED else None)


async def test_http_2_gets_no_connection_header() -> None:
    """The response has no Connection header, because HTTP/2 forbids it."""
    scope = http_scope()
    scope["http_version"] = "2"
    call = Call(raising(CLOSED), scope)
    await call.task
    assert "connection" not in call.headers


@pytest.mark.parametrize(("options", "expected"), [({}, range(1, 6)), ({"retry_after": (3, 4.5)}, range(3, 6))])
async def test_retry_after_spreads(options: dict[str, Any], expected: range) -> None:
    """Clients that are refused at the same time receive different times, so they do not return at the same time."""
    calls = [Call.get(raising(CLOSED, **options)) for _ in range(200)]
    await asyncio.gather(*(call.task for call in calls))
    assert {int(call.headers["retry-after"]) for call in calls} == set(expected)


@pytest.mark.parametrize("error", [FULL, CLOSED])
async def test_a_response_that_has_started_is_not_followed_by_another(error: Exception) -> None:
    """If the response has started, the error is raised, and the server closes the connection."""
    start = {"type": "http.response.start", "status": 200, "headers": []}
    call = Call.get(raising(error, start))
    with pytest.raises(type(error)):
        await call.task
    assert call.sent == [start]


EXTENSIONS = [
    {"type": "http.response.debug", "info": {"template": None}},
    {"type": "http.response.early_hint", "links": [b"</style.css>"]},
    {"type": "http.response.push", "path": "/style.css", "headers": []},
]


@pytest.mark.parametrize("message", EXTENSIONS, ids=lambda message: message["type"])
async def test_a_message_of_an_extension_does_not_start_the_response(message: Message) -> None:
    """After such a message, which may come before the start, an error is still answered."""
    call = Call.get(raising(FULL, message))
    await call.task
    assert [each["type"] for each in call.sent] == [message["type"], "http.response.start", "http.response.body"]
    assert call.sent[1]["status"] == 503


@pytest.mark.parametrize("message", EXTENSIONS, ids=lambda message: message["type"])
async def test_headers_are_added_after_a_message_of_an_extension(purgatory: Purgatory[Any], message: Message) -> None:
    """The tag of ``wait.changed`` is in the start of the response, also if another message comes first."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Wait(purgatory, scope, receive).changed(lambda: 41, key="a", timeout=1)
        await send(message)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    call = Call.get(PurgatoryErrorMiddleware(app))
    await call.task
    assert call.sent[0] == message
    assert call.sent[1]["headers"] == [(b"etag", b'"41"')]


async def test_a_hang_up_after_the_start_ends_quietly() -> None:
    """A disconnect after the start ends the request without an error or a log entry."""
    start = {"type": "http.response.start", "status": 200, "headers": []}
    call = Call.get(raising(LEFT, start))
    await call.task
    assert call.sent == [start]


@pytest.mark.parametrize("error", [Boom(), PurgatoryError("stuck"), ExceptionGroup("", [FULL, Boom()])])
async def test_other_errors_pass(error: Exception) -> None:
    """Other errors propagate to the server, including the error of an operation that an operator makes fail."""
    call = Call.get(raising(error))
    with pytest.raises(type(error)) as raised:
        await call.task
    assert raised.value is error
    assert call.sent == []


async def test_cancellation_passes() -> None:
    """The cancellation of a handler propagates."""
    call = Call.get(raising(asyncio.CancelledError()))
    await asyncio.wait([call.task])
    assert call.task.cancelled()
    assert call.sent == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ExceptionGroup("", [KEY_FULL]), 429),
        (ExceptionGroup("", [FULL, ExceptionGroup("", [CLOSED, FULL])]), 503),
        (ExceptionGroup("", [FULL, LEFT]), 499),
        (ExceptionGroup("", [KEY_FULL, LOST]), 503),
        (ExceptionGroup("", [LOST, LEFT]), 499),
        (ExceptionGroup("", [WITHDRAWN, LEFT]), 499),
        (ExceptionGroup("", [WITHDRAWN, KEY_FULL]), 429),
    ],
)
async def test_a_group_of_these_errors_counts_as_one_of_them(error: Exception, status: int) -> None:
    """An exception group of these errors counts as one of them, because a handler may wait in a task group."""
    call = Call.get(raising(error))
    await call.task
    assert call.status == status


def test_error_response_does_not_close_the_connection() -> None:
    """The header depends on the HTTP version, which the function does not know."""
    response = error_response(CLOSED)
    assert response is not None
    assert (response.status, sorted(response.headers)) == (503, ["content-type", "retry-after"])


class ClientDisconnect(Exception):
    """As Starlette's: what reading the body raises after a disconnect."""


class WebSocketDisconnect(Exception):
    """As Starlette's: what reading a WebSocket raises after a disconnect."""


@pytest.mark.parametrize(
    ("errors", "handled"),
    [
        ([LEFT, ClientDisconnect()], True),
        ([WebSocketDisconnect(), LEFT], True),
        ([LEFT, WebSocketDisconnect(), Boom()], False),
        ([FULL, WebSocketDisconnect()], False),
        ([WebSocketDisconnect()], False),
        ([ClientDisconnect(), FULL, LEFT], True),
        ([LEFT, ClientDisconnect(), Boom()], False),
        ([FULL, ClientDisconnect()], False),
        ([ClientDisconnect()], False),
    ],
)
async def test_the_error_of_a_framework_for_the_same_disconnect_may_be_in_the_group(
    errors: list[Exception], handled: bool
) -> None:
    """It counts only beside ClientDisconnected; by itself, it is the framework's own matter."""
    call = Call.get(raising(ExceptionGroup("", errors)))
    await asyncio.wait([call.task])
    assert (call.status, call.task.exception() is None) == ((499, True) if handled else (None, False))


async def test_a_hang_up_ends_a_wait_and_the_reading_of_a_body_in_one_task_group(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """Both tasks raise an error for the disconnect, of this library and of Starlette, and the request ends silently."""
    app = FastAPI()
    install_errors(app)

    @app.post("/")
    async def read(request: Request) -> None:
        wait = Wait(purgatory, request)
        async with asyncio.TaskGroup() as group:
            group.create_task(wait.until(lambda: False, key="a", timeout=30))
            group.create_task(request.body())

    call = Call(app, http_scope(method="POST"), {"type": "http.request", "body": b"half", "more_body": True})
    await clock.settle()
    assert len(purgatory) == 1
    call.hang_up()
    await call.task
    assert call.status == 499
    assert len(purgatory) == 0


async def test_a_hang_up_ends_a_wait_and_the_reading_of_a_websocket_in_one_task_group(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """Both tasks raise an error for the disconnect; neither reaches the server, which would log a traceback, and
    nothing is sent.
    """
    app = FastAPI()
    install_errors(app)

    async def read(websocket: WebSocket) -> None:
        while True:
            await websocket.receive_text()

    @app.websocket("/")
    async def follow(websocket: WebSocket, wait: Annotated[Wait, Depends(waiting(purgatory))]) -> None:
        await websocket.accept()
        async with asyncio.TaskGroup() as group:
            group.create_task(read(websocket))
            group.create_task(wait.until(lambda: False, key="a", timeout=30))

    call = Call(app, websocket_scope(), {"type": "websocket.connect"})
    await clock.settle()
    assert len(purgatory) == 1
    call.hang_up()
    await call.task
    assert [message["type"] for message in call.sent] == ["websocket.accept"]
    assert len(purgatory) == 0


@pytest.mark.parametrize("number", [0, 1])
async def test_a_client_that_is_gone_by_now_is_no_error(number: int) -> None:
    """An OSError from ``send()``, which ASGI allows for a disconnected client, is not an error; neither is uvloop's."""

    async def send(_: Message) -> None:
        raise GONE[number]

    async def receive() -> Message:
        raise AssertionError

    await raising(LEFT)(http_scope(), receive, send)


GONE = [
    BrokenPipeError(),
    RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed"),  # of uvloop
]


@pytest.mark.parametrize("gone", GONE)
@pytest.mark.parametrize("streams", [False, True])
async def test_a_response_to_a_client_that_is_gone_ends_quietly(gone: Exception, streams: bool) -> None:
    """If the server did not notice the disconnect, ``send()`` raises; the request ends without a traceback."""

    async def chunks() -> Any:
        yield b"first"
        await asyncio.sleep(0)
        yield b"second"

    async def endpoint(request: Request) -> Any:
        return StreamingResponse(chunks()) if streams else Response(b"all")

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            raise gone

    async def receive() -> Message:
        return await asyncio.Event().wait()  # type: ignore[return-value]

    app = Starlette(routes=[Route("/", endpoint)])
    install_errors(app)
    await app(http_scope(), receive, send)


async def test_an_error_beside_a_client_that_is_gone_is_raised() -> None:
    """An error of the application that does not come from ``send()`` reaches the server."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(OSError):
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise Boom

    async def send(_: Message) -> None:
        raise GONE[1]

    with pytest.raises(Boom):
        await PurgatoryErrorMiddleware(app)(http_scope(), _never, send)  # type: ignore[arg-type]


class ClientDisconnect(Exception):
    """Named as Starlette's."""


@pytest.mark.parametrize("gone", GONE)
@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (Boom(), True),
        (RuntimeError("a bug"), True),
        (FileNotFoundError("the configuration"), True),
        (TimeoutError("of the database"), True),
        (ConnectionRefusedError("by the database"), True),
        (OSError(), True),
        (ClientDisconnect(), False),
        (FULL, False),
        (ConnectionAbortedError(), False),
        (ConnectionResetError(), False),
        (BrokenPipeError(), False),
    ],
)
async def test_an_error_while_a_client_that_is_gone_is_handled(gone: Exception, error: Exception, raised: bool) -> None:
    """A framework may raise its own error for a disconnect.  Any other error is a bug in the application's cleanup, and
    is raised, also one of another connection or of a file.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        except OSError:
            raise error  # noqa: B904 - the error has the OSError as its context

    async def send(_: Message) -> None:
        raise gone

    with pytest.raises(type(error)) if raised else contextlib.nullcontext():
        await PurgatoryErrorMiddleware(app)(http_scope(), _never, send)  # type: ignore[arg-type]


@pytest.mark.parametrize("gone", [OSError("the client has disconnected"), TimeoutError(), *GONE])
async def test_the_error_of_a_second_send_ends_quietly(gone: Exception) -> None:
    """Whatever OSError the server raises for a client that is gone, the error of each send stands for the hang-up."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        finally:
            await send({"type": "http.response.body", "body": b""})

    async def send(_: Message) -> None:
        raise type(gone)(*gone.args)

    await PurgatoryErrorMiddleware(app)(http_scope(), _never, send)  # type: ignore[arg-type]


async def test_an_error_that_states_a_disconnect_as_its_cause_ends_quietly() -> None:
    """``raise ... from`` translates the disconnect into an error of the application."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        except OSError as error:
            raise Boom from error

    async def send(_: Message) -> None:
        raise GONE[0]

    await PurgatoryErrorMiddleware(app)(http_scope(), _never, send)  # type: ignore[arg-type]


@pytest.mark.parametrize("gone", GONE)
@pytest.mark.parametrize("error", [None, WebSocketDisconnect(), Boom()])
async def test_a_websocket_that_sends_to_a_client_that_is_gone(gone: Exception, error: Exception | None) -> None:
    """The error of ``send()``, or the framework's in its place, ends the endpoint quietly; a bug does not."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        try:
            await send({"type": "websocket.send", "text": "a"})
        except OSError:
            if error is None:
                raise
            raise error  # noqa: B904 - as Starlette does, without a cause

    async def send(message: Message) -> None:
        if message["type"] == "websocket.send":
            raise gone

    with pytest.raises(Boom) if isinstance(error, Boom) else contextlib.nullcontext():
        await PurgatoryErrorMiddleware(app)(websocket_scope(), _never, send)  # type: ignore[arg-type]


async def test_another_runtime_error_of_send_is_raised() -> None:
    """A server raises RuntimeError for messages in a wrong order, too."""

    async def send(_: Message) -> None:
        raise RuntimeError("Expected ASGI message 'http.response.body'")

    with pytest.raises(RuntimeError, match="Expected"):
        await PurgatoryErrorMiddleware(Response())(http_scope(), _never, send)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="Expected"):
        await raising(FULL)(http_scope(), _never, send)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "status"), [(FULL, 503), (KEY_FULL, 429), (CLOSED, 503), (LOST, 503), (WITHDRAWN, 503)]
)
async def test_a_websocket_is_refused_with_a_response(error: Exception, status: int) -> None:
    """If the server supports it, a WebSocket is refused with a response before it is accepted."""
    call = Call(raising(error), websocket_scope(denial=True))
    await call.task
    assert [message["type"] for message in call.sent] == [
        "websocket.http.response.start",
        "websocket.http.response.body",
    ]
    assert call.status == status


@pytest.mark.parametrize("accepted", [False, True])
@pytest.mark.parametrize(
    ("error", "code"), [(FULL, 1013), (KEY_FULL, 1013), (CLOSED, 1012), (LOST, 1013), (WITHDRAWN, 1013)]
)
async def test_a_websocket_is_closed_with_a_code(error: Exception, code: int, accepted: bool) -> None:
    """The close code is 1013 (try again later) or 1012 (service restart)."""
    messages: list[Message] = (
        [{"type": "websocket.accept"}, {"type": "websocket.send", "text": "a"}] if accepted else []
    )
    call = Call(raising(error, *messages), websocket_scope(denial=accepted))
    await call.task
    assert call.sent[:-1] == messages
    assert (call.sent[-1]["type"], call.sent[-1]["code"]) == ("websocket.close", code)


async def test_a_websocket_that_is_gone_is_sent_nothing() -> None:
    """After a disconnect or a close, nothing is sent; an error after a close propagates."""
    call = Call(raising(LEFT, {"type": "websocket.accept"}), websocket_scope())
    await call.task
    assert len(call.sent) == 1
    closed = Call(raising(FULL, {"type": "websocket.close"}), websocket_scope())
    with pytest.raises(PurgatoryFull):
        await closed.task
    assert len(closed.sent) == 1


@pytest.mark.parametrize("make", [FastAPI, Starlette])
async def test_install_errors_adds_it_to_an_application(make: Any) -> None:
    """In FastAPI and in Starlette, the middleware is inside the one that catches every exception."""

    async def endpoint(request: Request) -> Any:
        raise KEY_FULL

    app = make(routes=[Route("/", endpoint)])
    install_errors(app, retry_after=7)
    call = Call.get(app)
    await call.task
    assert (call.status, call.headers["retry-after"]) == (429, "7")


async def test_a_lost_relay_is_answered(clock: VirtualClock) -> None:
    """With ``on_lost="fail"``, a request that waits when the engine goes and a later one get 503 with Retry-After, and
    a WebSocket is closed with 1013 (try again later).
    """
    room, transport = Purgatory[Any]("test", clock=clock), MemoryTransport()
    relay = Relay(room, transport, on_lost="fail")
    app = FastAPI()
    install_errors(app, retry_after=7)

    @app.get("/")
    async def poll(wait: Annotated[Wait, Depends(waiting(relay))]) -> bool:
        return await wait.until(lambda: False, keys=["a"], timeout=5)

    @app.websocket("/")
    async def follow(websocket: WebSocket, wait: Annotated[Wait, Depends(waiting(relay))]) -> None:
        await websocket.accept()
        await wait.until(lambda: False, keys=["a"], timeout=5)

    async with room, relay:
        calls = [Call.get(app), Call(app, websocket_scope(), {"type": "websocket.connect"})]
        await clock.settle()
        assert len(room) == 2
        transport.stop()
        await clock.settle()
        calls += [Call.get(app), Call(app, websocket_scope(), {"type": "websocket.connect"})]
        for call in calls:
            await call.task
        for call in calls[0], calls[2]:
            assert (call.status, call.headers["retry-after"]) == (503, "7")
        for call in calls[1], calls[3]:
            assert (call.sent[-1]["type"], call.sent[-1]["code"]) == ("websocket.close", 1013)
        assert len(room) == 0


async def test_a_stream_that_is_left_ends_quietly() -> None:
    """A disconnect inside a streaming response is not raised to the server."""

    async def chunks() -> Any:
        yield b"first"
        raise LEFT

    async def endpoint(request: Request) -> Any:
        return StreamingResponse(chunks())

    app = Starlette(routes=[Route("/", endpoint)])
    install_errors(app)
    call = Call.get(app)
    await call.task
    assert call.body == b"first"


async def test_the_lifespan_passes_untouched() -> None:
    """The middleware handles only HTTP requests and WebSockets; the lifespan is unchanged."""
    with pytest.raises(PurgatoryClosed):
        await raising(CLOSED)({"type": "lifespan"}, _never, _never)  # type: ignore[arg-type]


async def _never() -> None:
    raise AssertionError


def test_bad_arguments_are_refused() -> None:
    """Bad arguments raise an error before any middleware is added."""
    with pytest.raises(TypeError, match=r"app must have add_middleware\(\)"):
        install_errors(object())
    app = Starlette()
    for bad in (-1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="retry_after must be a finite number of seconds"):
            install_errors(app, retry_after=bad)
    for pair in ((2, 1), (1, 2, 3), ()):
        with pytest.raises(ValueError, match="retry_after must"):
            install_errors(app, retry_after=pair)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="retry_after must be a number of seconds, got '1'"):
        install_errors(app, retry_after="1")  # type: ignore[arg-type]
    assert app.user_middleware == []
