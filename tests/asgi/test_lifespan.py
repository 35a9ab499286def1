"""Purgatories open with an application, and close on the signal or at the end."""

import asyncio
import contextlib
import contextvars
import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
import types
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from fastapi import FastAPI

from purgatory import Purgatory, PurgatoryClosed
from purgatory.asgi import purgatory_lifespan, signals
from purgatory.asgi.signals import StopListener
from purgatory.asgi.types import ASGIApp, Message, Receive, Scope, Send
from purgatory.relay import MemoryTransport, Relay
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture
def server_handlers() -> Iterator[list[int]]:
    """Install handlers as a server does before its application starts; the list holds the signals they have
    received.
    """
    seen: list[int] = []

    def handle(number: int, _: Any) -> None:
        seen.append(number)

    before = [signal.signal(number, handle) for number in SIGNALS]
    yield seen
    assert [signal.getsignal(number) for number in SIGNALS] == [handle] * 2, "the server's handlers are back"
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def room(clock: VirtualClock) -> Purgatory[Any]:
    """Return a purgatory that is not open yet."""
    return Purgatory[Any]("test", clock=clock)


# As a lifespan


async def test_it_opens_and_closes_every_purgatory(room: Purgatory[Any], clock: VirtualClock) -> None:
    """The purgatories are open inside, and every operation has been answered afterwards."""
    other = Purgatory[Any]("other", clock=clock)
    async with purgatory_lifespan(room, other)(None) as state:
        assert state is None
        waiting = [asyncio.create_task(each.park(Op(), ["a"])) for each in (room, other)]
        await clock.settle()
        assert (len(room), len(other)) == (1, 1)
    assert (room.closed, other.closed) == (True, True)
    await asyncio.gather(*waiting)


async def test_it_composes_with_the_applications_own_lifespan(room: Purgatory[Any], clock: VirtualClock) -> None:
    """The application's lifespan starts in open purgatories, its state is passed on, and it ends after all
    operations.
    """
    steps: list[object] = []

    @asynccontextmanager
    async def own(app: object) -> AsyncIterator[dict[str, int]]:
        steps.append((app, room.closed))
        yield {"answer": 42}
        steps.append((len(room), room.closed))

    async with purgatory_lifespan(room, lifespan=own)("app") as state:
        assert state == {"answer": 42}
        waiting = asyncio.create_task(room.park(Op(), ["a"]))
        await clock.settle()
    assert steps == [("app", False), (0, True)]
    await waiting


async def test_a_lifespan_that_fails_to_start_closes_the_purgatories(room: Purgatory[Any]) -> None:
    """If the lifespan fails to start, its error propagates and the purgatories are closed."""

    @asynccontextmanager
    async def own(_: object) -> AsyncIterator[None]:
        raise Boom
        yield

    with pytest.raises(Boom):
        async with purgatory_lifespan(room, lifespan=own)(None):
            raise AssertionError
    assert room.closed


async def test_a_second_lifespan_of_a_purgatory_is_refused(room: Purgatory[Any]) -> None:
    """A purgatory is opened once; the error of a second ``with TestClient(app)`` says what to do."""
    lifespan = purgatory_lifespan(room)
    async with lifespan(None):
        pass
    with pytest.raises(PurgatoryClosed, match=r"purgatory 'test' is closed, .* make the application"):
        async with lifespan(None):
            raise AssertionError


async def test_an_error_inside_closes_the_purgatories(room: Purgatory[Any]) -> None:
    """An error inside the lifespan propagates and closes the purgatories."""
    with pytest.raises(Boom):
        async with purgatory_lifespan(room)(None):
            raise Boom
    assert room.closed


async def test_a_relay_is_entered_with_its_purgatory(
    room: Purgatory[Any], clock: VirtualClock, server_handlers: list[int]
) -> None:
    """The signal closes the purgatory; the relay relays checks until the application's own lifespan has ended."""
    transport = MemoryTransport()
    relay = Relay(room, transport)
    steps: list[object] = []

    @asynccontextmanager
    async def own(_: object) -> AsyncIterator[None]:
        yield
        steps.append((room.closed, relay.connected, relay.check("a")))

    async with Purgatory[Any]("other", clock=clock) as other, Relay(other, transport) as neighbour:
        async with purgatory_lifespan(relay, room, relay, lifespan=own)(None):
            assert relay.connected
            waiting = asyncio.create_task(relay.park(Op(), ["a"]))
            operation = Op()
            elsewhere = asyncio.create_task(neighbour.park(operation, ["a"]))
            await clock.settle()
            os.kill(os.getpid(), signal.SIGTERM)
            await clock.settle()
            assert (waiting.done(), room.closed, relay.connected) == (True, True, True)
            tries = len(operation.calls)
            relay.check("a")  # a request that is still in progress
            await clock.settle()
            assert len(operation.calls) == tries + 1
        assert steps == [(True, True, 0)]
        assert not relay.connected
        with pytest.raises(PurgatoryClosed):
            relay.check("a")
        elsewhere.cancel()
        await asyncio.wait([elsewhere])
    assert server_handlers == [signal.SIGTERM]


async def test_fastapi_takes_it_as_its_lifespan(room: Purgatory[Any]) -> None:
    """The state of the application's lifespan reaches the requests."""

    @asynccontextmanager
    async def own(_: FastAPI) -> AsyncIterator[dict[str, int]]:
        yield {"answer": 42}

    server = Lifespan(FastAPI(lifespan=purgatory_lifespan(room, lifespan=own)))
    assert (await server.ask("startup"))["type"] == "lifespan.startup.complete"
    assert server.scope["state"] == {"answer": 42}
    assert not room.closed
    assert (await server.ask("shutdown"))["type"] == "lifespan.shutdown.complete"
    assert room.closed
    await server.task


def test_a_thread_gets_no_signal_handlers(server_handlers: list[int]) -> None:
    """In another thread, no signal handlers are installed, because Python allows them only in the main thread."""
    room = Purgatory[Any]("test")
    seen: list[object] = []

    async def serve() -> None:
        async with purgatory_lifespan(room)(None):
            seen.extend([signal.getsignal(signal.SIGTERM), room.closed])
        seen.append(room.closed)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    thread.join()
    assert seen == [before, False, True]


def test_bad_arguments_are_refused(room: Purgatory[Any]) -> None:
    """Bad arguments raise TypeError or ValueError."""
    with pytest.raises(TypeError, match="room must be a Purgatory or a Relay, got 3"):
        purgatory_lifespan(room, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="grace"):
        purgatory_lifespan(room, grace=-1)
    with pytest.raises(TypeError, match="lifespan must be callable with the application, got 3"):
        purgatory_lifespan(room, lifespan=3)  # type: ignore[arg-type]


# At the signal


@pytest.mark.parametrize("number", SIGNALS)
async def test_a_signal_answers_every_waiter_and_reaches_the_server(
    room: Purgatory[Any], clock: VirtualClock, server_handlers: list[int], number: int
) -> None:
    """The signal answers every waiter while the lifespan is still open; later operations are refused."""
    async with purgatory_lifespan(room)(None):
        waiting = asyncio.create_task(room.park(Op(3600.0), ["a"]))
        await clock.settle()
        signal.raise_signal(number)
        assert server_handlers == [number]
        await waiting
        assert room.statistics().expired_by_closing == 1
        with pytest.raises(PurgatoryClosed):
            await room.park(Op(), ["a"])


async def test_a_grace_lets_operations_complete(
    room: Purgatory[Any], clock: VirtualClock, server_handlers: list[int]
) -> None:
    """Operations that complete within the grace after the signal complete; the others expire after the grace."""
    async with purgatory_lifespan(room, grace=2.0)(None):
        quick, slow = Op(3600.0), Op(3600.0)
        waiting = [asyncio.create_task(room.park(each, ["a"])) for each in (quick, slow)]
        await clock.settle()
        signal.raise_signal(signal.SIGTERM)
        await clock.advance(1.999)
        assert len(room) == 2
        quick.ready = True
        room.check_and_complete("a")
        signal.raise_signal(signal.SIGTERM)  # a second one does not end the grace
        await clock.settle()
        assert len(room) == 1
        await clock.advance(0.001)
        await asyncio.gather(*waiting)
        assert (quick.expired, slow.expired) == (False, True)
    assert server_handlers == [signal.SIGTERM] * 2


async def test_the_end_of_the_lifespan_waits_for_the_grace(
    room: Purgatory[Any], clock: VirtualClock, server_handlers: list[int]
) -> None:
    """A lifespan that ends during the grace returns when the last operation has been answered."""

    async def serve() -> None:
        async with purgatory_lifespan(room, grace=2.0)(None):
            await room.park(Op(1.0), ["a"])

    serving = asyncio.create_task(serve())
    waiting = asyncio.create_task(room.park(Op(3600.0), ["a"]))
    await clock.settle()
    signal.raise_signal(signal.SIGTERM)
    await clock.advance(1.5)
    assert not serving.done()
    await clock.advance(0.5)
    await asyncio.gather(serving, waiting)


async def test_handlers_of_the_event_loop_are_called_too(room: Purgatory[Any], clock: VirtualClock) -> None:
    """Handlers that were installed with ``loop.add_signal_handler()`` are also called."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, told.set)
    try:
        async with purgatory_lifespan(room)(None):
            waiting = asyncio.create_task(room.park(Op(3600.0), ["a"]))
            await clock.settle()
            os.kill(os.getpid(), signal.SIGTERM)
            await waiting
            await told.wait()
    finally:
        assert loop.remove_signal_handler(signal.SIGTERM)


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN])
async def test_a_signal_without_a_handler_is_left_alone(room: Purgatory[Any], handler: Any) -> None:
    """The default action still ends the process, and an ignored signal is still ignored."""
    before = signal.signal(signal.SIGTERM, handler)
    try:
        async with purgatory_lifespan(room)(None):
            assert signal.getsignal(signal.SIGTERM) is handler
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_a_handler_installed_later_stays(
    room: Purgatory[Any], clock: VirtualClock, server_handlers: list[int]
) -> None:
    """A later handler that calls the previous one keeps working, and the server's handler is reached through both."""
    later: list[int] = []
    chained = purgatory_lifespan(room)
    async with chained(None):
        found: Any = signal.getsignal(signal.SIGTERM)

        def handle(number: int, frame: Any) -> None:
            later.append(number)
            found(number, frame)

        signal.signal(signal.SIGTERM, handle)
    try:
        assert signal.getsignal(signal.SIGTERM) is handle
        signal.raise_signal(signal.SIGTERM)
        assert (later, server_handlers) == ([signal.SIGTERM], [signal.SIGTERM])
        # The handler below is reused if it is the topmost one again, and is then removed.
        signal.signal(signal.SIGTERM, found)
        async with purgatory_lifespan(Purgatory[Any]("other", clock=clock))(None):
            assert signal.getsignal(signal.SIGTERM) is found
    finally:
        _unchain(found)


def _unchain(handler: Any) -> None:
    """Restore the server's own handler, which the shared one holds."""
    if signal.getsignal(signal.SIGTERM) is handler:
        signal.signal(signal.SIGTERM, handler.previous)


async def test_two_lifespans_nest(room: Purgatory[Any], clock: VirtualClock, server_handlers: list[int]) -> None:
    """A signal closes the purgatories of both and reaches the server once."""
    other = Purgatory[Any]("other", clock=clock)
    async with purgatory_lifespan(room)(None), purgatory_lifespan(other)(None):
        signal.raise_signal(signal.SIGTERM)
        await clock.settle()
        assert (room.closed, other.closed) == (True, True)
    assert server_handlers == [signal.SIGTERM]


@pytest.mark.parametrize("newest_first", [True, False])
async def test_overlapping_lifespans_may_end_in_any_order(
    clock: VirtualClock, server_handlers: list[int], newest_first: bool
) -> None:
    """A lifespan that has ended leaves neither a handler nor its purgatory, and the others still get the signal."""
    rooms = [Purgatory[Any](str(number), clock=clock) for number in range(3)]
    stacks = [contextlib.AsyncExitStack() for _ in rooms]
    for room, stack in zip(rooms, stacks, strict=True):
        await stack.enter_async_context(purgatory_lifespan(room)(None))
    if newest_first:
        rooms.reverse()
        stacks.reverse()
    ended = weakref.ref(rooms.pop(0))
    await stacks.pop(0).aclose()
    del room, stack
    gc.collect()
    assert ended() is None
    signal.raise_signal(signal.SIGTERM)
    assert server_handlers == [signal.SIGTERM]
    await clock.settle()
    assert [room.closed for room in rooms] == [True, True]
    for stack in stacks:
        await stack.aclose()


async def test_any_number_of_rolling_replacements_leaves_one_handler(
    clock: VirtualClock, server_handlers: list[int]
) -> None:
    """Each purgatory opens before the previous one closes, more often than functions can nest."""
    called: list[int] = []
    replaced: StopListener | None = None
    for number in range(sys.getrecursionlimit() + 100):
        listener = StopListener(lambda number=number: called.append(number))  # type: ignore[misc]
        listener.start()
        if replaced is not None:
            replaced.stop()
        replaced = listener
    assert replaced is not None
    signal.raise_signal(signal.SIGTERM)
    await clock.settle()
    replaced.stop()
    assert (called, server_handlers) == ([number], [signal.SIGTERM])


async def test_any_number_of_rolling_replacements_leaves_one_hook(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds for the method of the server that the listeners replace, which is restored after the last one."""

    class Server:
        def shutdown(self) -> None:
            called.append(-1)

    called: list[int] = []
    server = Server()
    monkeypatch.setattr(signals, "serving_frame", sys._getframe)
    monkeypatch.setattr(signals, "stopping_method", lambda _: (server, "shutdown"))
    monkeypatch.setattr(signals, "_SIGNALS", ())
    replaced: StopListener | None = None
    for number in range(sys.getrecursionlimit() + 100):
        listener = StopListener(lambda number=number: called.append(number))  # type: ignore[misc]
        listener.start()
        if replaced is not None:
            replaced.stop()
        replaced = listener
    assert replaced is not None
    server.shutdown()
    await clock.settle()
    assert called == [-1, number]
    replaced.stop()
    assert "shutdown" not in vars(server)


async def test_a_handler_between_two_lifespans_stays(clock: VirtualClock, server_handlers: list[int]) -> None:
    """If other code installs a handler between two lifespans, it and the server's own get each signal once, whichever
    lifespan ends first, and no purgatory stays alive.
    """
    between: list[int] = []
    rooms = [Purgatory[Any](str(number), clock=clock) for number in range(2)]
    alive = [weakref.ref(room) for room in rooms]
    older, newer = contextlib.AsyncExitStack(), contextlib.AsyncExitStack()
    await older.enter_async_context(purgatory_lifespan(rooms[0])(None))
    found: Any = signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: Any) -> None:
        between.append(number)
        found(number, frame)

    signal.signal(signal.SIGTERM, handle)
    try:
        await newer.enter_async_context(purgatory_lifespan(rooms[1])(None))
        await older.aclose()
        signal.raise_signal(signal.SIGTERM)
        await clock.settle()
        assert [room.closed for room in rooms] == [True, True]
        await newer.aclose()
        assert signal.getsignal(signal.SIGTERM) is handle
        signal.raise_signal(signal.SIGTERM)
        assert (between, server_handlers) == ([signal.SIGTERM] * 2, [signal.SIGTERM] * 2)
        rooms.clear()
        gc.collect()
        assert [reference() for reference in alive] == [None, None]
    finally:
        signal.signal(signal.SIGTERM, found)
        _unchain(found)


def test_a_signal_after_the_loop_is_closed_reaches_the_server(server_handlers: list[int]) -> None:
    """The handler of an application that was never shut down still calls the server's handler."""

    async def start() -> None:
        watch.start()

    called: list[int] = []
    watch = StopListener(lambda: called.append(1))
    loop = asyncio.new_event_loop()
    loop.run_until_complete(start())
    loop.close()
    signal.raise_signal(signal.SIGTERM)
    assert (called, server_handlers) == ([], [signal.SIGTERM])
    watch.stop()


async def test_the_callbacks_of_a_closing_see_no_request(
    room: Purgatory[Any], clock: VirtualClock, server_handlers: list[int]
) -> None:
    """The purgatories close in an empty context, whatever code the signal interrupts."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="empty")
    seen: list[str] = []
    async with purgatory_lifespan(room)(None):
        variable.set("of the lifespan")
        waiting = asyncio.create_task(room.park(Op(on_complete=lambda _: seen.append(variable.get())), ["a"]))
        await clock.settle()
        signal.raise_signal(signal.SIGTERM)
        await waiting
    assert seen == ["empty"]


# Around other applications


class Lifespan:
    """Run the lifespan of an application as a server does."""

    def __init__(self, app: ASGIApp) -> None:
        self.scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        self.sent: list[Message] = []
        self._news = asyncio.Condition()
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self.task: asyncio.Task[None] = asyncio.ensure_future(app(self.scope, self._messages.get, self._send))

    async def _send(self, message: Message) -> None:
        self.sent.append(message)
        async with self._news:
            self._news.notify_all()

    async def ask(self, kind: str) -> Message:
        """Send "lifespan.startup" or "lifespan.shutdown", and return the reply."""
        self._messages.put_nowait({"type": f"lifespan.{kind}"})
        number = len(self.sent)
        async with self._news:
            await self._news.wait_for(lambda: len(self.sent) > number)
        return self.sent[-1]


def without_lifespan() -> ASGIApp:
    """An application that supports only HTTP."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError
        await send({"type": "called"})

    return app


async def test_it_wraps_an_application_without_a_lifespan(room: Purgatory[Any]) -> None:
    """The purgatories open and close, and requests are passed on."""
    app = purgatory_lifespan(room).wrap(without_lifespan())
    server = Lifespan(app)
    assert (await server.ask("startup"))["type"] == "lifespan.startup.complete"
    assert not room.closed
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError

    await app({"type": "http"}, receive, send)
    assert sent == [{"type": "called"}]
    assert (await server.ask("shutdown"))["type"] == "lifespan.shutdown.complete"
    assert room.closed
    await server.task


async def test_a_server_without_the_lifespan_protocol_is_reported_once(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The first request writes one line of log for each purgatory that is not open, even if nothing waits."""
    closed, opened = Purgatory[Any]("not-open", clock=clock), Purgatory[Any]("open", clock=clock)
    app = purgatory_lifespan(closed, opened).wrap(without_lifespan())

    async def send(_: Message) -> None: ...

    async def receive() -> Message:
        raise AssertionError

    async with opened:
        for _ in range(3):
            await app({"type": "http"}, receive, send)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("purgatory.asgi", "WARNING")
    assert record.getMessage().startswith("purgatory 'not-open' was not opened, because no lifespan has run")


async def test_it_wraps_an_application_with_a_lifespan(room: Purgatory[Any]) -> None:
    """The application starts in open purgatories and shuts down in closed ones; both lifespans run."""
    steps: list[object] = []

    @asynccontextmanager
    async def own(_: object) -> AsyncIterator[dict[str, int]]:
        steps.append("own")
        yield {"answer": 42}
        steps.append("own")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for kind in ("startup", "shutdown"):
            steps.append(((await receive())["type"], room.closed))
            await send({"type": f"lifespan.{kind}.complete"})

    server = Lifespan(purgatory_lifespan(room, lifespan=own).wrap(app))
    await server.ask("startup")
    assert server.scope["state"] == {"answer": 42}
    await server.ask("shutdown")
    await server.task
    assert steps == ["own", ("lifespan.startup", False), ("lifespan.shutdown", True), "own"]
    assert [message["type"] for message in server.sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


@pytest.mark.parametrize("kind", ["startup", "shutdown"])
async def test_a_failure_of_the_wrapped_application_is_reported(room: Purgatory[Any], kind: str) -> None:
    """The failure reaches the server, and the purgatories are closed."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for phase in ("startup", "shutdown"):
            await receive()
            if phase == kind:
                await send({"type": f"lifespan.{phase}.failed", "message": "no database"})
                raise Boom
            await send({"type": f"lifespan.{phase}.complete"})

    server = Lifespan(purgatory_lifespan(room).wrap(app))
    reply = await server.ask("startup")
    if kind == "shutdown":
        reply = await server.ask("shutdown")
    assert reply == {"type": f"lifespan.{kind}.failed", "message": "no database"}
    with pytest.raises(RuntimeError, match="no database"):
        await server.task
    assert room.closed


def failing(where: str) -> ASGIApp:
    """An application whose lifespan raises at this point without a message of failure."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if where == "call":
            raise Boom(where)
        for phase in ("startup", "shutdown"):
            await receive()
            if where == phase:
                raise Boom(where)
            await send({"type": f"lifespan.{phase}.complete"})
            if where == f"after {phase}":
                raise Boom(where)

    return app


@pytest.mark.parametrize(
    ("where", "phase"),
    [("startup", "startup"), ("after startup", "startup"), ("shutdown", "shutdown"), ("after shutdown", "shutdown")],
)
async def test_an_error_of_the_wrapped_application_reaches_the_server(
    room: Purgatory[Any], clock: VirtualClock, where: str, phase: str
) -> None:
    """The phase fails with the traceback, the error is raised, and every operation is answered."""
    server = Lifespan(purgatory_lifespan(room).wrap(failing(where)))
    reply = await server.ask("startup")
    waiting = None
    if phase == "shutdown":
        waiting = asyncio.create_task(room.park(Op(), ["a"]))
        await clock.settle()
        reply = await server.ask("shutdown")
    assert reply["type"] == f"lifespan.{phase}.failed"
    assert f"raise Boom(where)\ntests.helpers.Boom: {where}" in reply["message"]
    with pytest.raises(Boom, match=where):
        await server.task
    assert room.closed
    if waiting is not None:
        await waiting


async def test_an_error_while_the_wrapped_application_serves_is_reported_at_once(
    room: Purgatory[Any], clock: VirtualClock
) -> None:
    """The loop's exception handler gets the error, operations still park, and the shutdown fails with the error."""
    fail = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await fail.wait()
        raise Boom

    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    server = Lifespan(purgatory_lifespan(room).wrap(app))
    assert (await server.ask("startup"))["type"] == "lifespan.startup.complete"
    fail.set()
    await clock.settle()
    assert [type(report["exception"]) for report in reports] == [Boom]
    waiting = asyncio.create_task(room.park(Op(), ["a"]))
    await clock.settle()
    assert len(room) == 1
    assert (await server.ask("shutdown"))["type"] == "lifespan.shutdown.failed"
    with pytest.raises(Boom):
        await server.task
    await waiting
    assert len(reports) == 1


async def test_an_error_while_the_wrapped_lifespan_is_cancelled_is_reported(room: Purgatory[Any]) -> None:
    """If the application raises because its lifespan is cancelled, the loop's exception handler gets the error."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        try:
            await receive()
        finally:
            raise Boom

    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    server = Lifespan(purgatory_lifespan(room).wrap(app))
    await server.ask("startup")
    server.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await server.task
    assert room.closed
    assert [type(report["exception"]) for report in reports] == [Boom]


async def test_a_wrapped_application_that_raises_when_called_is_served(
    room: Purgatory[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The application does not support the protocol: the error is logged as information, and the purgatories open."""
    caplog.set_level(logging.INFO, "purgatory.asgi")
    server = Lifespan(purgatory_lifespan(room).wrap(failing("call")))
    assert (await server.ask("startup"))["type"] == "lifespan.startup.complete"
    assert not room.closed
    (record,) = caplog.records
    assert (record.levelname, record.message) == ("INFO", "the application does not support the lifespan protocol")
    assert record.exc_info is not None
    assert record.exc_info[0] is Boom
    assert (await server.ask("shutdown"))["type"] == "lifespan.shutdown.complete"
    await server.task


async def test_a_wrapped_application_that_answers_every_scope_as_http_is_served(room: Purgatory[Any]) -> None:
    """An application that reads a body first, whatever it is called for, does not support the protocol."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise Boom

    server = Lifespan(purgatory_lifespan(room).wrap(app))
    assert (await server.ask("startup"))["type"] == "lifespan.startup.complete"
    assert not room.closed
    assert (await server.ask("shutdown"))["type"] == "lifespan.shutdown.complete"
    await server.task


async def test_a_wrapped_lifespan_that_is_cancelled_closes_the_purgatories(
    room: Purgatory[Any], clock: VirtualClock
) -> None:
    """Cancelling the lifespan, as some servers do, closes the purgatories."""
    server = Lifespan(purgatory_lifespan(room).wrap(without_lifespan()))
    await server.ask("startup")
    waiting = asyncio.create_task(room.park(Op(), ["a"]))
    await clock.settle()
    server.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await server.task
    await waiting
    assert room.closed


# Hypercorn's workers


class Event:
    """The event that hypercorn's parent process sets."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.set: Callable[[], None] = self._event.set
        self.is_set: Callable[[], bool] = self._event.is_set


async def test_hypercorns_shutdown_event_counts_as_a_signal(
    room: Purgatory[Any], clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hypercorn's worker processes receive no signal; the library uses the event that is passed to them."""
    event = Event()
    monkeypatch.setitem(sys.modules, "hypercorn", sys)
    monkeypatch.setattr(multiprocessing.current_process(), "_kwargs", {"shutdown_event": event}, raising=False)
    async with purgatory_lifespan(room)(None):
        waiting = asyncio.create_task(room.park(Op(), ["a"]))
        await clock.settle()
        assert not room.closed
        event.set()
        await waiting
        assert room.closed


class HypercornWorker:
    """This process, as one that hypercorn has started, without limits, and with pauses of no length.

    ``event``: the one that the parent process sets.  ``raised``: the signals that the process has sent itself.
    ``killed``: set instead of killing the process.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.event = Event()
        self.raised: list[int] = []
        self.killed = threading.Event()
        self.ended: threading.Event | None = None  # set when the thread that may kill the process has ended
        self.replied = asyncio.Event()  # the loop has replied to the thread
        self._kill, self._end = os.kill, signals._HypercornWorker._end
        self._reply = signals._HypercornWorker._end_unless_stopping
        self.config = types.SimpleNamespace(graceful_timeout=None, shutdown_timeout=1e9)
        arguments = {"shutdown_event": self.event, "config": self.config}
        monkeypatch.setitem(sys.modules, "hypercorn", sys)
        monkeypatch.setattr(multiprocessing.current_process(), "_kwargs", arguments, raising=False)
        monkeypatch.setattr(signals, "time", types.SimpleNamespace(sleep=lambda _: None))
        monkeypatch.setattr(signals, "_STUCK", 60.0)
        monkeypatch.setattr(signals._HypercornWorker, "_end", lambda worker: self.end(worker))
        monkeypatch.setattr(signals._HypercornWorker, "_end_unless_stopping", lambda *both: self.reply(*both))
        monkeypatch.setattr(signal, "raise_signal", self.raised.append)
        monkeypatch.setattr(os, "kill", self.kill)

    def terminate(self) -> None:
        """Send SIGTERM to this process."""
        if self.ended is None:
            self.ended = threading.Event()
        self._kill(os.getpid(), signal.SIGTERM)

    def kill(self, pid: int, number: int) -> None:
        """Stand in for os.kill()."""
        assert (pid, number) == (os.getpid(), signal.SIGKILL)
        self.killed.set()

    def end(self, worker: Any) -> None:
        """Stand in for the function of the thread."""
        assert self.ended is not None
        self._end(worker)
        self.ended.set()

    def reply(self, worker: Any, replied: threading.Event) -> None:
        """Stand in for the function that the thread has the loop call."""
        self._reply(worker, replied)
        self.replied.set()


@pytest_asyncio.fixture
async def hypercorn(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HypercornWorker]:
    """Make this process appear as one that hypercorn has started."""
    worker = HypercornWorker(monkeypatch)
    yield worker
    monkeypatch.setattr(signals, "_ASKED", 1e9)  # the time is over
    assert worker.ended is None or await asyncio.to_thread(worker.ended.wait, 60.0)


@pytest.mark.parametrize("stops", [True, False], ids=["the server stops", "only this worker got the signal"])
async def test_sigterm_in_a_worker_of_hypercorn_answers_before_its_default_action(
    room: Purgatory[Any], clock: VirtualClock, hypercorn: HypercornWorker, stops: bool
) -> None:
    """The default action follows when requests have had time to end, unless the parent process has set the event."""
    async with purgatory_lifespan(room)(None):
        waiting = asyncio.create_task(room.park(Op(), ["a"]))
        await clock.settle()
        if stops:
            hypercorn.event.set()
        hypercorn.terminate()
        hypercorn.terminate()
        await waiting
        assert room.closed
        await hypercorn.replied.wait()
        assert set(hypercorn.raised) == (set() if stops else {signal.SIGTERM})
        assert not hypercorn.killed.is_set()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_a_worker_of_hypercorn_whose_loop_is_stuck_is_killed(
    room: Purgatory[Any], monkeypatch: pytest.MonkeyPatch, hypercorn: HypercornWorker
) -> None:
    """After SIGTERM, such a worker cannot answer, and hypercorn would wait for it for ever.

    The handler also runs while the main thread is in a system call, such as ``recv()``.
    """
    interrupts: list[tuple[int, bool]] = []
    monkeypatch.setattr(signal, "siginterrupt", lambda *arguments: interrupts.append(arguments))
    monkeypatch.setattr(signals, "_STUCK", 0.0)
    async with purgatory_lifespan(room)(None):
        assert (signal.SIGTERM, True) in interrupts
        hypercorn.event.set()
        hypercorn.terminate()
        assert hypercorn.killed.wait(60.0)  # the loop does not run


async def test_a_worker_of_hypercorn_that_does_not_shut_down_in_time_is_killed(
    room: Purgatory[Any], hypercorn: HypercornWorker
) -> None:
    """Its loop runs, but hypercorn may wait for a client that does not read, or Python for a thread."""
    hypercorn.config.shutdown_timeout = 3
    async with purgatory_lifespan(room)(None):
        hypercorn.event.set()
        hypercorn.terminate()
        assert await asyncio.to_thread(hypercorn.killed.wait, 60.0)
    assert hypercorn.raised == []


def test_a_worker_of_hypercorn_whose_loop_is_closed_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop cannot reply, and something else keeps the process from ending."""
    loop = asyncio.new_event_loop()
    loop.close()
    worker = HypercornWorker(monkeypatch)
    worker.ended = threading.Event()
    signals._HypercornWorker(loop, [], worker.event.is_set, None)._end()
    assert worker.killed.is_set()


async def test_the_first_application_of_a_worker_of_hypercorn_shuts_down_first(hypercorn: HypercornWorker) -> None:
    """The worker is still stopping then, so the default action of SIGTERM does not follow."""
    first, second = (StopListener(lambda: None, of_lifespan=False) for _ in range(2))
    first.start()
    second.start()
    hypercorn.event.set()
    hypercorn.terminate()
    first.stop()
    for _ in range(2):
        hypercorn.replied.clear()
        await hypercorn.replied.wait()
    second.stop()
    assert hypercorn.raised == []


async def test_a_worker_of_hypercorn_that_has_reached_its_limit_of_requests_is_stopping(
    monkeypatch: pytest.MonkeyPatch, hypercorn: HypercornWorker
) -> None:
    """The default action of SIGTERM does not follow, although the parent process has not set the event."""
    listener = StopListener(lambda: None, of_lifespan=False)
    listener.start()
    monkeypatch.setattr(signals, "stopping_method", lambda _: None)
    monkeypatch.setattr(signals, "limit_reached", lambda _: lambda: True)
    listener.watch(sys._getframe())
    hypercorn.terminate()
    await hypercorn.replied.wait()
    listener.stop()
    assert hypercorn.raised == []


@pytest.mark.skipif(not hasattr(signal, "siginterrupt"), reason="Windows has no siginterrupt()")
@pytest.mark.parametrize("of_loop", [False, True])
async def test_whether_a_signal_interrupts_system_calls_stays_the_same(
    monkeypatch: pytest.MonkeyPatch, of_loop: bool
) -> None:
    """With a handler of an event loop, they are restarted; with any other one, such as that of Ctrl-C, they are not."""
    loop = asyncio.get_running_loop()
    original = signal.getsignal(signal.SIGINT)  # it is ignored in a process in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if of_loop:
        loop.add_signal_handler(signal.SIGINT, lambda: None)
    calls: list[tuple[int, bool]] = []
    siginterrupt = signal.siginterrupt

    def record(number: int, interrupts: bool) -> None:
        calls.append((number, interrupts))
        siginterrupt(number, interrupts)

    monkeypatch.setattr(signal, "siginterrupt", record)
    try:
        listener = StopListener(lambda: None, of_lifespan=False)
        listener.start()
        assert (signal.SIGINT, not of_loop) in calls
        calls.clear()
        listener.stop()
        assert (signal.SIGINT, not of_loop) in calls
    finally:
        if of_loop:
            loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, original)
