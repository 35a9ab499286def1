"""Server-sent events: the format, the end of the stream, and clients that disconnect."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import purgatory as package
from purgatory import Outcome, Purgatory, PurgatoryError
from purgatory.asgi import EventSourceResponse, Wait, install_errors, waiting
from purgatory.asgi.server_sent_events import server_sent_event
from purgatory.asgi.types import ASGIApp, Message, Receive, Scope, Send
from purgatory.relay import RelayLost
from purgatory.testing import VirtualClock
from tests.asgi.tools import Call, http_scope
from tests.helpers import Boom, check, turns_until


def fastapi_app(room: Purgatory[Any], **options: Any) -> ASGIApp:
    app = FastAPI()

    @app.api_route("/", methods=["GET", "HEAD"])
    async def events() -> EventSourceResponse:
        return EventSourceResponse(room.changes(["orders", ("b", 3)], heartbeat=15), **options)

    install_errors(app)
    return app


def starlette_app(room: Purgatory[Any], **options: Any) -> ASGIApp:
    async def events(_: Request) -> Any:
        return EventSourceResponse(room.changes(["orders", ("b", 3)], heartbeat=15), **options)

    app = Starlette(routes=[Route("/", events)])
    install_errors(app)
    return app


def plain_app(room: Purgatory[Any], **options: Any) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response = EventSourceResponse(room.changes(["orders", ("b", 3)], heartbeat=15), **options)
        await response(scope, receive, send)

    return app


APPS = pytest.mark.parametrize("make", [fastapi_app, starlette_app, plain_app])


@APPS
async def test_checks_are_sent_until_the_purgatory_closes(clock: VirtualClock, make: Any) -> None:
    """Each check is sent as an event, a heartbeat as a comment, and then the response is completed."""
    room = Purgatory[Any]("test", clock=clock)
    call = Call.get(make(room, retry=1.5, headers={"X-More": "yes"}))
    await clock.settle()
    assert call.status == 200
    assert call.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (call.headers["cache-control"], call.headers["x-more"]) == ("no-store", "yes")
    room.check_and_complete("orders")
    room.check_and_complete(("b", 3))
    await clock.advance(15.0)
    assert call.body == b'retry: 1500\n\ndata: orders\n\ndata: ["b",3]\n\n:\n\n'
    await room.aclose()
    await call.task
    assert call.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


@APPS
async def test_a_client_that_hangs_up_frees_its_places(
    purgatory: Purgatory[Any], clock: VirtualClock, make: Any
) -> None:
    """A disconnect frees the places within a few turns of the loop, without an error, and nothing more is sent."""
    call = Call.get(make(purgatory))
    await clock.settle()
    assert len(purgatory) == 2
    assert call.body == b":\n\n"  # the stream is open before the first event
    call.hang_up()
    assert await turns_until(lambda: len(purgatory) == 0) <= 3
    await call.task
    assert len(call.sent) == 2
    assert call.receiving == 0


async def test_a_client_that_hangs_up_before_its_body_has_ended_frees_its_places(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """An earlier wait has left a ``receive()`` pending, which gets the disconnect that the server announces once."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Wait(purgatory, scope, receive).until(lambda: False, keys=["a"], timeout=1.0)
        await EventSourceResponse(purgatory.changes(["a"]))(scope, receive, send)

    call = Call(app, http_scope(method="POST"))
    await clock.advance(1.0)
    assert (len(purgatory), call.receiving) == (1, 1)
    call.arrive(b"a part", more=True)
    await clock.settle()
    call.hang_up()
    await asyncio.wait_for(call.task, 10)
    assert (len(purgatory), call.receiving, call.most_receiving) == (0, 0, 1)


@APPS
async def test_a_request_that_is_cancelled_frees_its_places(
    purgatory: Purgatory[Any], clock: VirtualClock, make: Any
) -> None:
    """Cancelling the request, as servers do after their grace, frees its places."""
    call = Call.get(make(purgatory))
    await clock.settle()
    call.task.cancel()
    await asyncio.wait([call.task])
    await clock.settle()
    check(purgatory, parked=0)
    assert call.receiving == 0


@APPS
async def test_a_head_request_gets_the_headers_only(purgatory: Purgatory[Any], clock: VirtualClock, make: Any) -> None:
    """HEAD, which Starlette adds to each GET route, is answered with the start of the response and an empty body, and
    frees its places at once.
    """
    call = Call(make(purgatory, retry=1.5), http_scope(method="HEAD"), {"type": "http.request", "body": b""})
    await clock.settle()
    assert call.task.done()
    await call.task
    assert (call.status, call.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert call.sent[1:] == [{"type": "http.response.body", "body": b"", "more_body": False}]
    assert call.receiving == 0
    check(purgatory, parked=0)


@APPS
async def test_a_middleware_that_returns_the_body_again_and_again_does_not_stall_the_loop(
    clock: VirtualClock, make: Any
) -> None:
    """Its ``receive()`` never suspends and never returns a disconnect; events are sent until the purgatory closes."""
    room = Purgatory[Any]("test", clock=clock)
    app, calls = make(room), 0

    async def replay() -> Message:
        nonlocal calls
        calls += 1
        assert calls <= 10, "receive() is called again and again"
        return {"type": "http.request", "body": b"", "more_body": False}

    async def middleware(scope: Scope, _: Receive, send: Send) -> None:
        await app(scope, replay, send)

    call = Call.get(middleware)
    await clock.settle()
    room.check_and_complete("orders")
    await clock.settle()
    assert call.body == b":\n\ndata: orders\n\n"
    await room.aclose()
    await call.task


@pytest.mark.parametrize("make", [fastapi_app, starlette_app])
async def test_a_full_purgatory_refuses_before_the_response_starts(clock: VirtualClock, make: Any) -> None:
    """The subscription starts in the handler, so the client gets 503 and not a partial stream."""
    async with Purgatory[Any]("test", clock=clock, max_parked=1) as room:
        call = Call.get(make(room))
        await call.task
        assert call.status == 503


@pytest.mark.parametrize("error", [Boom, ConnectionRefusedError, TimeoutError, OSError, PurgatoryError])
async def test_an_error_of_the_iterator_is_raised(error: type[Exception]) -> None:
    """An error of the iterator, also one of its network, is raised, so that the server logs it and closes the
    connection; the iterator is closed.
    """
    closed: list[bool] = []

    async def items() -> AsyncIterator[str]:
        try:
            yield "first"
            raise error
        finally:
            closed.append(True)

    call = Call.get(EventSourceResponse(items()))
    with pytest.raises(error):
        await call.task
    assert call.body == b":\n\ndata: first\n\n"
    assert closed == [True]


async def test_a_generator_that_waits_ends_with_the_purgatory(clock: VirtualClock) -> None:
    """Its wait raises PurgatoryClosed, and the stream ends as one of ``changes()`` does, so that browsers reconnect."""
    async with Purgatory[Any]("test", clock=clock) as purgatory:

        async def generator() -> AsyncIterator[str]:
            while not await purgatory.wait_until(lambda: False, keys=["a"], timeout=1.0):
                yield "nothing yet"

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await EventSourceResponse(generator())(scope, receive, send)

        call = Call(app, http_scope())
        await clock.advance(1.0)
        await purgatory.aclose()
        await clock.advance(1.0)
        await call.task
        assert call.body.decode().endswith("data: nothing yet\n\n")
        assert call.sent[-1]["more_body"] is False


@APPS
@pytest.mark.parametrize("how", ["lost", "cancelled"])
async def test_a_stream_ends_with_its_operations(clock: VirtualClock, make: Any, how: str) -> None:
    """It is too late for another status, so the body ends, nothing is logged, and browsers reconnect."""
    async with Purgatory[Any]("test", clock=clock) as purgatory:
        call = Call.get(make(purgatory))
        await turns_until(lambda: call.body)
        if how == "lost":
            purgatory.fail_for_key("orders", lambda: RelayLost("the relay has lost its connection"))
        else:
            purgatory.cancel_for_key("orders")
        await call.task
        assert call.body == b":\n\n"
        assert call.sent[-1]["more_body"] is False
        check(purgatory, parked=0)


async def test_a_generator_that_is_refused_ends_its_stream(clock: VirtualClock) -> None:
    """It waits only when the response has begun."""
    async with Purgatory[Any]("test", clock=clock, max_parked=1) as purgatory:

        async def generator() -> AsyncIterator[str]:
            async with purgatory.changes(["a"]):
                yield "subscribed"
                await purgatory.wait_until(lambda: False, keys=["a"], timeout=1.0)

        call = Call.get(EventSourceResponse(generator()))
        await call.task
        assert call.body == b":\n\ndata: subscribed\n\n"
        assert call.sent[-1]["more_body"] is False


async def test_a_generator_is_closed_when_the_client_hangs_up(clock: VirtualClock) -> None:
    """A generator, for example one that reads the state for every change, is closed when the client disconnects."""
    closed: list[bool] = []

    async def items() -> AsyncIterator[str]:
        try:
            yield "first"
            await asyncio.get_running_loop().create_future()
        finally:
            closed.append(True)

    call = Call.get(EventSourceResponse(items()))
    await clock.settle()
    call.hang_up()
    await call.task
    assert closed == [True]


@pytest.mark.parametrize("framework", [FastAPI, Starlette])
async def test_a_generator_that_waits_receives_together_with_the_response(clock: VirtualClock, framework: Any) -> None:
    """granian reports a disconnect to a ``receive()`` that is called while another one is pending."""
    room = Purgatory[Any]("orders", clock=clock)
    log: list[str] = []
    ended: list[str] = []

    async def entries(wait: Wait) -> AsyncIterator[str]:
        try:
            while await wait.until(lambda: log, key="orders", timeout=30):
                yield log.pop(0)
        finally:
            ended.append("closed")

    async def events(request: Request) -> Any:
        return EventSourceResponse(entries(await waiting(room)(request)))

    app = framework()
    app.add_route("/", events)
    install_errors(app)
    async with room:
        call = Call(app, http_scope("/"))
        await turns_until(lambda: len(room) == 1)
        call.arrive(b"")  # the end of the empty body
        await clock.settle()
        for order in ("apples", "bread"):
            log.append(order)
            room.check("orders")
            await turns_until(lambda: len(room) == 1 and not log)
        assert call.body == b":\n\ndata: apples\n\ndata: bread\n\n"
        call.hang_up()
        await call.task
        assert len(room) == 0
        assert room.statistics().cancelled == 1
    assert ended == ["closed"]
    assert call.most_receiving == 1


@pytest.mark.parametrize("end", ["the client hangs up", "the request is cancelled"])
async def test_a_generator_cleans_up_without_being_cancelled_again(clock: VirtualClock, end: str) -> None:
    """The stream is cancelled once, so what the generator awaits in its cleanup ends before the response does."""
    steps: list[str] = []
    released = asyncio.Event()

    async def items() -> AsyncIterator[str]:
        try:
            yield "first"
            await asyncio.get_running_loop().create_future()
        finally:
            steps.append("closing")
            await released.wait()
            steps.append("closed")

    call = Call.get(EventSourceResponse(items()))
    await clock.settle()
    if end == "the client hangs up":
        call.hang_up()
    else:
        call.task.cancel()
    await clock.settle()
    assert (steps, call.task.done()) == (["closing"], False)
    released.set()
    await asyncio.wait([call.task])
    assert steps == ["closing", "closed"]
    assert call.task.cancelled() is (end == "the request is cancelled")


@pytest.mark.parametrize("then", ["the client hangs up", "the request is cancelled"])
@pytest.mark.parametrize("end", ["of the items", "of the connection", "of the headers"])
async def test_an_iterator_that_is_being_closed_is_not_cancelled(clock: VirtualClock, end: str, then: str) -> None:
    """``send()`` has raised, or the response is complete, for which servers report a disconnect, too."""
    steps: list[str] = []
    released = asyncio.Event()

    class Items:
        def __aiter__(self) -> "Items":
            return self

        async def __anext__(self) -> str:
            if end == "of the items":
                raise StopAsyncIteration
            return "item"

        async def aclose(self) -> None:
            steps.append("closing")
            await released.wait()
            steps.append("closed")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def failing(message: Message) -> None:
            if message.get("body", b"").startswith(b"data"):
                raise BrokenPipeError
            await send(message)

        await EventSourceResponse(Items())(scope, receive, failing)

    method = "HEAD" if end == "of the headers" else "GET"
    call = Call(app, http_scope(method=method), {"type": "http.request", "body": b"", "more_body": False})
    await clock.settle()
    if then == "the client hangs up":
        call.hang_up()
    else:
        call.task.cancel()
    await clock.settle()
    assert (steps, call.task.done()) == (["closing"], False)
    released.set()
    await asyncio.wait([call.task])
    assert steps == ["closing", "closed"]
    assert call.task.cancelled() is (then == "the request is cancelled")


@pytest.mark.parametrize("end", ["the client hangs up", "the request is cancelled"])
@pytest.mark.parametrize("uncancels", [False, True])
async def test_an_iterator_that_goes_on_after_its_cancellation_is_stopped(
    clock: VirtualClock, end: str, uncancels: bool
) -> None:
    """If the iterator catches the cancellation, it is closed at its next item, nothing more is sent, and its cleanup is
    not cancelled.
    """
    steps: list[str] = []
    released = asyncio.Event()

    async def items() -> AsyncIterator[str]:
        try:
            yield "first"
            for _ in range(2):
                try:
                    await asyncio.get_running_loop().create_future()
                except asyncio.CancelledError:
                    steps.append("cancelled")
                    task = asyncio.current_task()
                    if uncancels and task is not None:
                        task.uncancel()
                yield "next"
        finally:
            steps.append("closing")
            await released.wait()
            steps.append("closed")

    call = Call.get(EventSourceResponse(items()))
    await clock.settle()
    sent = len(call.sent)
    if end == "the client hangs up":
        call.hang_up()
    else:
        call.task.cancel()
    await clock.settle()
    found = (list(steps), call.task.done())
    released.set()
    assert found == (["cancelled", "closing"], False)
    await asyncio.wait([call.task])
    assert call.task.cancelled() is (end == "the request is cancelled")
    assert (steps, len(call.sent)) == (["cancelled", "closing", "closed"], sent)


async def test_a_cleanup_that_uncancels_its_task_is_not_cancelled_again(clock: VirtualClock) -> None:
    """The stream is cancelled once, whatever the iterator does with the count of cancellations."""
    steps: list[str] = []
    released = asyncio.Event()

    async def items() -> AsyncIterator[str]:
        try:
            yield "first"
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            await released.wait()
            steps.append("closed")

    call = Call.get(EventSourceResponse(items()))
    await clock.settle()
    call.hang_up()
    await clock.settle()
    assert not call.task.done()
    released.set()
    await asyncio.wait([call.task])
    assert (steps, call.task.result()) == (["closed"], None)  # type: ignore[func-returns-value]


@pytest.mark.parametrize("gone", [BrokenPipeError(), RuntimeError("<TCPTransport closed=True>; the handler is closed")])
@pytest.mark.parametrize(("method", "sent"), [("GET", 0), ("GET", 1), ("GET", 2), ("HEAD", 0), ("HEAD", 1)])
async def test_a_server_that_raises_for_a_client_that_is_gone_ends_it_quietly(
    method: str, sent: int, gone: Exception
) -> None:
    """If the server raises for a disconnected client, as ASGI allows and as uvloop does, the stream ends quietly."""
    messages: list[Message] = []

    async def send(message: Message) -> None:
        if len(messages) == sent:
            raise gone
        messages.append(message)

    async def receive() -> Message:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async with Purgatory[Any]("test") as room:
        changes = room.changes(["a"])
        room.check_and_complete("a")
        await EventSourceResponse(changes)(http_scope(method=method), receive, send)
        assert (len(messages), len(room)) == (sent, 0)


async def test_another_runtime_error_of_the_server_is_raised(purgatory: Purgatory[Any]) -> None:
    """A server raises RuntimeError for messages in a wrong order, too; the subscription ends."""

    async def send(message: Message) -> None:
        raise RuntimeError("Unexpected ASGI message")

    async def receive() -> Message:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    with pytest.raises(RuntimeError, match="Unexpected"):
        await EventSourceResponse(purgatory.changes(["a"]))(http_scope(), receive, send)
    check(purgatory, parked=0)


async def test_it_is_a_response_of_starlette(purgatory: Purgatory[Any]) -> None:
    """The response supports cookies, headers and a background task."""
    done: list[bool] = []

    async def nothing() -> AsyncIterator[str]:
        return
        yield

    response: Any = EventSourceResponse(nothing(), status_code=201)
    assert isinstance(response, Response)
    assert isinstance(response, EventSourceResponse)
    response.set_cookie("a", "b")
    response.headers["x-more"] = "yes"
    response.background = BackgroundTask(done.append, True)
    call = Call.get(response)
    await call.task
    assert (call.status, call.headers["x-more"], done) == (201, "yes", [True])
    assert call.headers["set-cookie"].startswith("a=b")


async def test_a_subclass_is_a_response_of_starlette(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """A path operation of FastAPI can return an instance of a subclass, and name the subclass as its annotation."""

    class Own(EventSourceResponse):
        pass

    app = FastAPI()

    @app.get("/")
    async def events() -> Own:
        return Own(purgatory.changes(["orders"]))

    call = Call.get(app)
    await clock.settle()
    assert issubclass(Own, Response)
    assert call.headers["content-type"] == "text/event-stream; charset=utf-8"
    call.hang_up()
    await call.task
    check(purgatory, parked=0)


def test_the_annotation_of_a_path_operation_needs_no_response_model() -> None:
    """FastAPI takes the class for a response: as the return annotation, also in a string, and as the response class."""
    app = FastAPI()

    @app.get("/class")
    async def of_class() -> EventSourceResponse:
        raise NotImplementedError

    @app.get("/string")
    async def of_string() -> "EventSourceResponse":
        raise NotImplementedError

    @app.get("/response", response_class=EventSourceResponse)
    async def of_response() -> Any:
        raise NotImplementedError

    content = app.openapi()["paths"]["/response"]["get"]["responses"]["200"]["content"]
    assert list(content) == ["text/event-stream"]


def test_the_order_of_imports_does_not_matter() -> None:
    """If Starlette is installed, the class is a response of it, also where it is imported before Starlette."""
    code = (
        "from purgatory.asgi import EventSourceResponse\n"
        "from starlette.responses import Response\n"
        "print(issubclass(EventSourceResponse, Response))"
    )
    assert _printed(code) == "True\n"


def test_it_needs_no_starlette() -> None:
    """Without Starlette, the class is a plain ASGI application."""
    code = (
        "import asyncio, sys\n"
        "sys.modules['starlette'] = None  # as if it were not installed\n"
        "from purgatory.asgi import EventSourceResponse\n"
        "async def items():\n    yield 1\n"
        "async def receive():\n    await asyncio.Event().wait()\n"
        "async def send(message):\n    print(message['type'], message.get('status'), message.get('body'))\n"
        "response = EventSourceResponse(items())\n"
        "print(type(response) is EventSourceResponse, type(response).__mro__[1:])\n"
        "asyncio.run(response({'type': 'http', 'method': 'GET'}, receive, send))\n"
    )
    assert _printed(code) == (
        "True (<class 'object'>,)\n"
        "http.response.start 200 None\n"
        "http.response.body None b':\\n\\n'\n"
        "http.response.body None b'data: 1\\n\\n'\n"
        "http.response.body None b''\n"
    )


def _printed(code: str) -> str:
    """Return what a new interpreter prints."""
    top = Path(package.__file__).parents[1]
    return subprocess.run([sys.executable, "-c", code], cwd=top, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("item", "event"),
    [
        ("text", b"data: text\n\n"),
        ("one\ntwo\r\nthree\rfour", b"data: one\ndata: two\ndata: three\ndata: four\n\n"),
        ("", b"data: \n\n"),
        (b"raw", b"data: raw\n\n"),
        ({"a": ["ä", 1]}, b'data: {"a":["\\u00e4",1]}\n\n'),
        (None, b":\n\n"),
        (UUID(int=7), b'data: "00000000-0000-0000-0000-000000000007"\n\n'),
        (("a", date(2026, 11, 27)), b'data: ["a","2026-11-27"]\n\n'),
        (datetime(2026, 11, 27, 5, tzinfo=UTC), b'data: "2026-11-27T05:00:00+00:00"\n\n'),
        ({"state": Outcome.EXPIRED}, b'data: {"state":"expired"}\n\n'),
    ],
)
def test_an_item_is_encoded(item: Any, event: bytes) -> None:
    """Text is sent as data lines, None as a comment, and any other object as JSON."""
    assert server_sent_event(item) == event


async def test_bad_arguments_are_refused(purgatory: Purgatory[Any]) -> None:
    """Bad arguments raise an error before anything is sent."""
    with pytest.raises(TypeError, match="items must be an async iterable, got 3"):
        EventSourceResponse(3)  # type: ignore[arg-type]
    async with purgatory.changes(["a"]) as changes:
        for retry in (-1, float("inf"), float("nan"), 1e306, 10**5000, 1.1e9):
            with pytest.raises(ValueError, match="retry must be a number of seconds, at least 0 and at most 1e"):
                EventSourceResponse(changes, retry=retry)
    with pytest.raises(ValueError, match="JSON"):
        server_sent_event(float("nan"))
    with pytest.raises(TypeError, match="an item must be JSON-serializable, got <object object"):
        server_sent_event(("a", object()))


async def test_a_server_that_fails_to_receive_is_told(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The error of ``receive()`` ends the stream, frees its places, and reaches the server."""

    async def receive() -> Message:
        await clock.sleep(1)
        raise Boom

    async def send(message: Message) -> None:
        pass

    response = EventSourceResponse(purgatory.changes(["orders"]))
    answering = asyncio.create_task(response(http_scope(), receive, send))
    await clock.advance(1)
    with pytest.raises(Boom):
        await answering
    check(purgatory, parked=0)


async def test_sse_starlette_takes_the_iterator_as_well(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The EventSourceResponse of sse-starlette sends each key, and frees the places when the client disconnects."""
    sse_starlette = pytest.importorskip("sse_starlette")

    async def events(_: Request) -> Any:
        return sse_starlette.EventSourceResponse(purgatory.changes(["orders"]))

    call = Call.get(Starlette(routes=[Route("/", events)]))
    await turns_until(lambda: call.receiving > 0)
    purgatory.check_and_complete("orders")
    await turns_until(lambda: len(call.sent) > 1)
    assert call.body == b"data: orders\r\n\r\n"
    call.hang_up()
    await call.task
    await clock.settle()
    check(purgatory, parked=0)
