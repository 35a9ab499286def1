"""Waiting in a handler until the condition holds, the deadline passes or the client disconnects."""

import asyncio
import contextlib
import itertools
import sys
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from starlette.requests import Request
from starlette.websockets import WebSocket, WebSocketDisconnect

from purgatory import DelayedOperation, OperationCancelled, Purgatory, PurgatoryClosed, PurgatoryFull
from purgatory.asgi import ClientDisconnected, TooManyWaits, Wait, waiting
from purgatory.asgi.types import ASGIApp, Message, Receive, Scope, Send
from purgatory.errors import RelayLost
from purgatory.relay import MemoryTransport, Relay
from purgatory.testing import VirtualClock
from tests.asgi.tools import Call, http_scope, websocket_scope
from tests.helpers import Boom, Op, check, turns_until

Handler = Callable[[Wait], Awaitable[Any]]


class Handled:
    """An application that runs a handler with a Wait, and keeps the handler's result."""

    def __init__(self, room: Purgatory[Any], handler: Handler) -> None:
        self._room = room
        self._handler = handler
        self.results: list[Any] = []
        self.waits: list[Wait] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wait = Wait(self._room, scope, receive)
        self.waits.append(wait)
        try:
            self.results.append(await self._handler(wait))
        except Exception as error:
            self.results.append(error)


def until(ready: list[Any], timeout: float | None = 30.0) -> Handler:
    """Return a handler that waits until the list is not empty."""
    return lambda wait: wait.until(lambda: bool(ready), keys=["a"], timeout=timeout)


async def test_until_returns_true_when_a_check_finds_the_condition(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """The handler continues when the condition holds, and nothing is left behind."""
    ready: list[int] = []
    app = Handled(purgatory, until(ready))
    call = Call.get(app)
    await clock.settle()
    assert len(purgatory) == 1
    ready.append(1)
    assert purgatory.check_and_complete("a") == 1
    await call.task
    await clock.settle()
    assert app.results == [True]
    assert call.receiving == 0
    check(purgatory, parked=0, completed=1)


async def test_until_returns_false_when_the_deadline_passes(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """``until()`` returns False exactly at the deadline."""
    app = Handled(purgatory, until([], 2.5))
    call = Call.get(app)
    await clock.advance(2.499)
    assert app.results == []
    await clock.advance(0.001)
    await call.task
    assert app.results == [False]


async def test_several_waits_of_a_request_share_a_deadline(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The second wait ends when the time that the client chose has passed since before the first one."""
    began, times = clock.time(), list[float]()

    def has_come(due: float) -> bool:
        return clock.time() - began >= due

    async def twice(plain: Wait) -> None:
        wait = Wait(purgatory, http_scope("/?wait=2"), plain.receive, longest=55)
        assert wait.timeout is not None
        ends = purgatory.timer.time() + wait.timeout
        for key, due in (("a", 1.5), ("b", 99.0)):
            await wait.until(partial(has_come, due), key=key, deadline=ends)
            times.append(clock.time() - began)

    call = Call.get(Handled(purgatory, twice))
    await clock.advance(1.5)
    purgatory.check("a")
    await clock.advance(10.0)
    await call.task
    assert times == [1.5, 2.0]


async def test_a_condition_that_holds_already_reads_nothing(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """If the first try completes the operation, no ``receive()`` is awaited."""
    app = Handled(purgatory, until([1]))
    call = Call.get(app)
    await call.task
    await clock.settle()
    assert app.results == [True]
    assert call.most_receiving == 0


@pytest.mark.parametrize("scope", [http_scope(), websocket_scope()], ids=["http", "websocket"])
async def test_a_hang_up_withdraws_the_operation(purgatory: Purgatory[Any], clock: VirtualClock, scope: Scope) -> None:
    """Within two turns of the loop the place is free, and the handler raises ClientDisconnected."""
    app = Handled(purgatory, until([]))
    call = Call(app, dict(scope))
    await clock.settle()
    assert len(purgatory) == 1
    call.hang_up()
    assert await turns_until(lambda: len(purgatory) == 0) <= 2
    await call.task
    assert [type(result) for result in app.results] == [ClientDisconnected]
    assert isinstance(app.results[0], OperationCancelled)
    assert app.waits[0].disconnected
    check(purgatory, parked=0, cancelled=1)


async def test_a_wait_after_the_hang_up_parks_nothing(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The second wait of a handler whose client has disconnected raises at once."""

    async def twice(wait: Wait) -> None:
        with pytest.raises(ClientDisconnected):
            await wait.until(lambda: False, keys=["a"], timeout=None)
        await wait.until(lambda: False, keys=["a"], timeout=None)

    app = Handled(purgatory, twice)
    call = Call.get(app)
    await clock.settle()
    call.hang_up()
    await call.task
    assert [type(result) for result in app.results] == [ClientDisconnected]
    check(purgatory, submitted=1, cancelled=1)


async def test_a_result_is_given_back_if_the_client_hangs_up_in_the_same_turn(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """The outcome stands, ``on_abandoned()`` receives the result, and the handler raises ClientDisconnected."""
    given_back: list[str] = []

    class Job(Op):
        def on_abandoned(self, result: Any) -> None:
            given_back.append(result)

    job = Job(30.0, on_complete=lambda _: "job")
    app = Handled(purgatory, lambda wait: wait.park(job, ["a"]))
    call = Call.get(app)
    await clock.settle()
    call.hang_up()
    job.ready = True
    assert purgatory.check_and_complete("a") == 1
    await call.task
    assert [type(result) for result in app.results] == [ClientDisconnected]
    assert given_back == ["job"]
    check(purgatory, completed=1, cancelled=0)


async def test_an_operation_that_others_cancel_is_no_hang_up(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """If other code cancels the operation, the handler raises OperationCancelled itself."""
    app = Handled(purgatory, until([]))
    call = Call.get(app)
    await clock.settle()
    purgatory.cancel_for_key("a")
    await call.task
    assert [type(result) for result in app.results] == [OperationCancelled]
    assert not app.waits[0].disconnected


async def test_a_cancelled_handler_withdraws_and_stops_reading(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Cancelling the handler ends the task that reads."""
    app = Handled(purgatory, until([]))
    call = Call.get(app)
    await clock.settle()
    call.task.cancel()
    await asyncio.wait([call.task])
    await clock.settle()
    assert call.task.cancelled()
    assert call.receiving == 0
    check(purgatory, parked=0, cancelled=1)


async def test_park_returns_the_result_of_the_operation(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """``park()`` parks the user's operation and returns the result of its ``on_complete()``."""
    operation = Op(30.0, on_complete=lambda _: "answer")
    app = Handled(purgatory, lambda wait: wait.park(operation, {"a": 3}))
    call = Call.get(app)
    await clock.settle()
    operation.ready = True
    assert purgatory.check_and_complete("a", 2) == 0
    assert purgatory.check_and_complete("a", 3) == 1
    await call.task
    assert app.results == ["answer"]


async def test_what_park_raises_reaches_the_handler(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """A refused operation is not watched, and the connection is not read for it."""
    async with Purgatory[Any]("small", clock=clock, max_parked=1) as small:
        small.try_complete_else_watch(Op(), ["a"])
        full = Handled(small, until([]))
        call = Call.get(full)
        await call.task
        assert [type(result) for result in full.results] == [PurgatoryFull]
    closed = Handled(small, until([]))
    second = Call.get(closed)
    await second.task
    await clock.settle()
    assert [type(result) for result in closed.results] == [PurgatoryClosed]
    assert call.most_receiving == second.most_receiving == 0


async def test_an_operation_that_fails_gives_its_error(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """An error of ``try_complete()`` reaches the handler."""
    app = Handled(purgatory, until([]))
    call = Call.get(app)
    await clock.settle()
    error = Boom()
    purgatory.fail_for_key("a", error)
    await call.task
    assert app.results == [error]


async def test_waits_of_one_request_share_its_connection(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Ten waits in two purgatories share one ``receive()``; a disconnect withdraws all of them."""
    async with Purgatory[Any]("second", clock=clock) as second:

        async def app(scope: Scope, receive: Receive, _: Send) -> None:
            wait = Wait(purgatory, scope, receive)
            other = Wait(second, scope, wait.receive)
            waits = [wait.until(lambda: False, keys=["a"], timeout=None) for _ in range(5)]
            others = [other.until(lambda: False, keys=["a"], timeout=None) for _ in range(5)]
            results.extend(await asyncio.gather(*waits, *others, return_exceptions=True))

        results: list[Any] = []
        call = Call.get(app)
        await clock.settle()
        assert (len(purgatory), len(second)) == (5, 5)
        call.hang_up()
        await call.task
        assert [type(result) for result in results] == [ClientDisconnected] * 10
        assert call.most_receiving == 1


async def test_the_same_operation_cannot_wait_twice(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The second park() is refused, and a hang-up still withdraws the first."""
    operation = Op()

    async def twice(wait: Wait) -> None:
        first = asyncio.ensure_future(wait.park(operation, ["a"]))
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match="which is parked already"):
            await wait.park(operation, ["a"])
        await first

    app = Handled(purgatory, twice)
    call = Call.get(app)
    await clock.settle()
    assert (len(purgatory), call.receiving) == (1, 1)
    call.hang_up()
    await call.task
    assert [type(result) for result in app.results] == [ClientDisconnected]
    check(purgatory, parked=0, cancelled=1)


class Guarded(Purgatory[Any]):
    """A purgatory whose park() is its own."""

    async def park(self, operation: DelayedOperation[Any], keys: Any) -> Any:
        return ["guarded", await super().park(operation, keys)]


async def test_a_park_that_is_overridden_is_used(clock: VirtualClock) -> None:
    """For until() as well; what it raises reaches the handler, and a hang-up withdraws the operation."""
    async with Guarded("test", clock=clock) as room:
        operation = Op()

        async def handler(wait: Wait) -> Any:
            result = await wait.until(lambda: True, keys=["a"], timeout=None)
            waiting = asyncio.ensure_future(wait.park(operation, ["a"]))
            await asyncio.sleep(0)
            with pytest.raises(ValueError, match="which is parked already"):
                await wait.park(operation, ["a"])
            seen.append(result)
            return await waiting

        seen: list[Any] = []
        app = Handled(room, handler)
        call = Call.get(app)
        await clock.settle()
        call.hang_up()
        await call.task
        assert seen == [["guarded", True]]
        assert [type(result) for result in app.results] == [ClientDisconnected]
        assert len(room) == 0


def test_a_purgatory_that_comes_from_another_loop_answers_in_this_one() -> None:
    """Its timer was in a loop that has stopped, so the request waits for a future of its own loop."""

    async def served() -> None:
        app = Handled(room, until([], 0.05))
        call = Call.get(app)
        await asyncio.wait_for(call.task, 10)
        results.extend(app.results)

    async def begin() -> None:
        room.try_complete_else_watch(Op(), ["b"])

    results: list[Any] = []
    room = Purgatory[Any]("test")
    for loop in (asyncio.new_event_loop(), asyncio.new_event_loop()):
        try:
            loop.run_until_complete(begin())
            loop.run_until_complete(served())
        finally:
            loop.close()
    assert results == [False, False]


# Messages that arrive during the wait


async def test_a_body_that_arrives_while_waiting_is_read_afterwards(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """The handler reads every part of the body in order, including parts that arrive after the wait."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        assert await (await waiting(purgatory)(request)).until(lambda: bool(ready), keys=["a"], timeout=30.0)
        bodies.append(await request.body())

    ready: list[int] = []
    bodies: list[bytes] = []
    call = Call(app, http_scope(method="POST"))
    call.arrive(b"one ", more=True)
    await clock.settle()
    call.arrive(b"two ", more=True)
    await clock.settle()
    ready.append(1)
    purgatory.check_and_complete("a")
    await clock.settle()
    assert bodies == []
    call.arrive(b"three")
    await call.task
    assert bodies == [b"one two three"]
    assert call.most_receiving == 1


async def test_a_plain_application_reads_through_the_wait(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """``wait.receive`` replaces ``receive()``; a disconnect is returned repeatedly."""
    seen: list[Message] = []

    async def handler(wait: Wait) -> None:
        with pytest.raises(ClientDisconnected):
            await wait.until(lambda: False, keys=["a"], timeout=None)
        seen.extend([await wait.receive() for _ in range(3)])

    call = Call.get(Handled(purgatory, handler))
    await clock.settle()
    call.hang_up()
    await call.task
    assert [message["type"] for message in seen] == ["http.request", "http.disconnect", "http.disconnect"]


async def test_reading_and_waiting_at_once_share_the_connection(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """If one task of a WebSocket endpoint reads and another waits, each message reaches the reader once."""
    heard: list[str] = []
    results: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        websocket = WebSocket(scope, receive, send)
        wait = Wait(purgatory, websocket)
        await websocket.accept()

        async def listen() -> None:
            with contextlib.suppress(WebSocketDisconnect):
                while True:
                    heard.append(await websocket.receive_text())

        listening = asyncio.create_task(listen())
        for _ in range(2):
            results.append(await wait.until(lambda: bool(ready), keys=["a"], timeout=30.0))
            ready.clear()
        try:
            await wait.until(lambda: False, keys=["a"], timeout=None)
        except ClientDisconnected as error:
            results.append(type(error))
        await listening

    ready: list[int] = []
    call = Call(app, websocket_scope(), {"type": "websocket.connect"})
    await clock.settle()
    for number in range(2):
        call.say(f"before {number}")
        await clock.settle()
        ready.append(1)
        purgatory.check_and_complete("a")
        await clock.settle()
        call.say(f"after {number}")
        await clock.settle()
    assert heard == ["before 0", "after 0", "before 1", "after 1"]
    call.hang_up()
    await call.task
    assert results == [True, True, ClientDisconnected]
    assert call.most_receiving == 1


async def test_a_reader_that_comes_while_an_operation_waits_gets_what_is_buffered(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """The reader gets the buffered messages and then the new ones; if the reader is cancelled, nothing is lost."""

    async def app(scope: Scope, receive: Receive, _: Send) -> None:
        wait = Wait(purgatory, scope, receive)
        waited = asyncio.create_task(wait.until(lambda: False, keys=["a"], timeout=None))
        await clock.sleep(1.0)
        seen.append((await wait.receive())["text"])
        giving_up = asyncio.create_task(wait.receive())
        await clock.sleep(1.0)
        giving_up.cancel()
        await clock.sleep(1.0)
        seen.append((await wait.receive())["text"])
        waited.cancel()
        await asyncio.wait([waited])

    seen: list[str] = []
    call = Call(app, websocket_scope())
    call.say("one")
    await clock.advance(2.5)
    call.say("two")
    await clock.advance(1.0)
    await call.task
    assert seen == ["one", "two"]


async def test_a_large_body_pauses_the_reading(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Buffering stops at 1 MiB; when the handler has read, reading continues and detects the disconnect."""
    chunk = b"x" * (1 << 18)

    async def handler(wait: Wait) -> int:
        waited = asyncio.create_task(wait.until(lambda: False, keys=["a"], timeout=None))
        await clock.sleep(1.0)
        size = 0
        while size < 8 * len(chunk):
            size += len((await wait.receive())["body"])
        with pytest.raises(ClientDisconnected):
            await waited
        return size

    app = Handled(purgatory, handler)
    call = Call(app, http_scope(method="POST"))
    for _ in range(8):
        call.arrive(chunk, more=True)
    call.hang_up()
    await clock.settle()
    assert call._messages.qsize() == 5  # four chunks are buffered
    assert len(purgatory) == 1
    await clock.advance(1.0)
    await call.task
    assert app.results == [8 * len(chunk)]


@pytest.mark.parametrize("body", [b"", b"abc"])
@pytest.mark.parametrize("read_first", [False, True])
async def test_a_middleware_that_returns_the_body_again_and_again_does_not_stall_the_loop(
    purgatory: Purgatory[Any], clock: VirtualClock, body: bytes, read_first: bool
) -> None:
    """Its ``receive()`` never suspends and never returns a disconnect: the reader stops, and the handler can read."""
    calls = 0

    async def replay() -> Message:
        nonlocal calls
        calls += 1
        assert calls <= 10, "receive() is called again and again"
        return {"type": "http.request", "body": body, "more_body": False}

    request = Request(http_scope(method="POST"), replay)
    if read_first:
        assert await request.body() == body
    wait = Wait(purgatory, request)
    for _ in range(2):
        waiting = asyncio.create_task(wait.until(lambda: False, key="a", timeout=1.0))
        await clock.advance(0.9)
        assert not waiting.done()
        await clock.advance(0.1)
        assert await waiting is False
    assert await request.body() == body
    check(purgatory, parked=0, expired=2)


async def test_a_body_that_comes_again_in_parts_is_read_once(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The empty end of the first body stays between it and the second one."""
    parts = [(b"abc", True), (b"de", True), (b"", False)]
    replayed = itertools.cycle([{"type": "http.request", "body": body, "more_body": more} for body, more in parts])

    async def replay() -> Message:
        return next(replayed)

    request = Request(http_scope(method="POST"), replay)
    waiting = asyncio.create_task(Wait(purgatory, request).until(lambda: False, key="a", timeout=1.0))
    await clock.advance(1.0)
    assert await waiting is False
    assert await request.body() == b"abcde"


async def test_a_receive_that_raises_withdraws_and_raises(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """An error of the server's ``receive()`` reaches the handler, and no task is left."""
    error = Boom()

    async def receive() -> Message:
        await asyncio.sleep(0)
        raise error

    app = Handled(purgatory, until([]))
    await app(http_scope(), receive, _no_send)
    assert app.results == [error]
    check(purgatory, parked=0, cancelled=1)
    second = await asyncio.gather(app.waits[0].until(lambda: False, keys=["a"], timeout=None), return_exceptions=True)
    assert second == [error]


async def test_a_wait_right_after_another_reads_on(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """A second wait continues to read, even if the task that read for the first one is still being cancelled."""

    async def handler(wait: Wait) -> list[bool]:
        return [await wait.until(partial(ready.__contains__, number), keys=["a"], timeout=None) for number in range(3)]

    ready: set[int] = set()
    app = Handled(purgatory, handler)
    call = Call.get(app)
    await clock.settle()
    for number in range(2):
        ready.add(number)
        purgatory.check_and_complete("a")
        await clock.settle()
        assert (len(purgatory), call.receiving) == (1, 1)
    call.hang_up()
    await call.task
    assert [type(result) for result in app.results] == [ClientDisconnected]
    assert call.most_receiving == 1


async def test_a_reader_is_not_left_behind_by_a_task_that_never_ran(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """If the wait ends before its reading task has run, the handler can still read."""

    async def app(scope: Scope, receive: Receive, _: Send) -> None:
        wait = Wait(purgatory, scope, receive)

        async def read() -> None:
            seen.append((await wait.receive())["text"])

        first = asyncio.ensure_future(read())
        waiting = asyncio.ensure_future(wait.park(operation, ["a"]))
        await clock.sleep(1.0)
        call.say("one")
        second = asyncio.ensure_future(read())
        operation.ready = True
        purgatory.check_and_complete("a")
        await asyncio.gather(first, waiting)
        call.say("two")
        await second

    operation = Op()
    seen: list[str] = []
    call = Call(app, websocket_scope())
    await clock.advance(1.0)
    await asyncio.wait_for(call.task, 10)
    assert seen == ["one", "two"]


async def test_a_loop_that_cancels_its_tasks_gets_no_new_ones(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """If other code cancels the reading task, it is not restarted; the next wait starts a new one."""
    app = Handled(purgatory, until([], 1.0))
    call = Call.get(app)
    await clock.settle()
    reader = app.waits[0]._connection._reader
    assert reader is not None
    reader.cancel()
    await clock.settle()
    assert (len(purgatory), call.receiving) == (1, 0)
    await clock.advance(1.0)
    await call.task
    assert app.results == [False]
    second = asyncio.ensure_future(app.waits[0].until(lambda: False, keys=["a"], timeout=None))
    await clock.settle()
    call.hang_up()
    with pytest.raises(ClientDisconnected):
        await second


@pytest.mark.parametrize("how", ["one after the other", "at once"])
async def test_a_pending_receive_serves_the_next_wait_and_ends_with_the_request(
    purgatory: Purgatory[Any], clock: VirtualClock, how: str
) -> None:
    """As long as the body may go on, ``receive()`` is not cancelled, also if tasks of the handler wait."""

    async def handler(wait: Wait) -> list[bool]:
        waits = [wait.until(lambda: False, keys=["a"], timeout=seconds) for seconds in (1.0, 2.0)]
        results = [await each for each in waits] if how == "one after the other" else await asyncio.gather(*waits)
        pending.append(call.receiving)
        await clock.sleep(1.0)
        pending.append(call.receiving)
        return results

    pending: list[int] = []
    app = Handled(purgatory, handler)
    call = Call(app, http_scope(method="POST"))
    call.arrive(b"one", more=True)
    await clock.advance(5.0)
    await call.task
    await clock.settle()
    assert app.results == [[False, False]]
    assert (pending, call.most_receiving, call.receiving) == ([1, 1], 1, 0)
    assert asyncio.all_tasks() == {asyncio.current_task(), purgatory.timer._reaper.task}


async def test_a_pending_receive_reads_one_message_at_most(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """After the wait, the server keeps the messages that the handler does not read."""

    async def handler(wait: Wait) -> None:
        await wait.until(lambda: False, keys=["a"], timeout=1.0)
        for text in ("one", "two", "three"):
            call.say(text)
        await clock.sleep(1.0)
        unread.append(call.unread)
        seen.extend([(await wait.receive())["text"] for _ in range(3)])

    unread: list[int] = []
    seen: list[str] = []
    call = Call(Handled(purgatory, handler), websocket_scope())
    await clock.advance(2.0)
    await call.task
    assert (unread, seen) == ([2], ["one", "two", "three"])


@pytest.mark.parametrize("reader", ["the handler, before", "the handler, through the wait", "the wait"])
async def test_after_the_body_nothing_is_left_pending(
    purgatory: Purgatory[Any], clock: VirtualClock, reader: str
) -> None:
    """Only a disconnect can follow, which a streaming response must get."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        if reader == "the handler, before":
            await request.body()
        wait = Wait(purgatory, request)
        if reader == "the handler, through the wait":
            await request.body()
        await wait.until(lambda: False, keys=["a"], timeout=1.0)
        await clock.sleep(1.0)
        messages.append(await receive())

    messages: list[Message] = []
    call = Call(app, http_scope(method="POST"))
    call.arrive(b"all of it")
    await clock.advance(2.0)
    assert call.receiving == 1
    call.hang_up()
    await call.task
    assert messages == [{"type": "http.disconnect"}]
    assert call.most_receiving == 1


async def test_a_receive_that_must_not_be_cancelled_stays_pending(
    purgatory: Purgatory[Any], clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In gunicorn's own worker, a cancelled ``receive()`` closes the connection for those that follow."""
    monkeypatch.setitem(sys.modules, "gunicorn.asgi.protocol", ModuleType("gunicorn.asgi.protocol"))
    cancelled: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def of_gunicorn() -> Message:
            if cancelled:
                return {"type": "http.disconnect"}
            try:
                return await receive()
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

        wait = Wait(purgatory, scope, of_gunicorn)
        results.extend([await wait.until(lambda: False, keys=["a"], timeout=1.0) for _ in range(3)])

    results: list[bool] = []
    call = Call.get(app)
    await clock.advance(3.0)
    await call.task
    await clock.settle()
    assert results == [False, False, False]
    assert (call.receiving, call.most_receiving) == (0, 1)


async def test_a_queue_of_the_server_is_cancelled_at_any_time(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """It loses nothing, and the disconnect, which is put into it once, must reach a streaming response."""
    queue: asyncio.Queue[Message] = asyncio.Queue()
    queue.put_nowait({"type": "http.request", "body": b"one", "more_body": True})
    waiting = asyncio.ensure_future(
        Wait(purgatory, http_scope(method="POST"), queue.get).until(lambda: False, keys=["a"], timeout=1.0)
    )
    await clock.advance(1.0)
    assert not await waiting
    await clock.settle()
    queue.put_nowait({"type": "http.disconnect"})
    await clock.settle()
    assert queue.get_nowait() == {"type": "http.disconnect"}


async def test_another_wait_on_the_same_receive_shares_what_is_pending(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """A plain application that makes a Wait for each of its waits still notices the disconnect."""

    async def app(scope: Scope, receive: Receive, _: Send) -> None:
        for seconds in (1.0, 1.0, None):
            await Wait(purgatory, scope, receive).until(lambda: False, keys=["a"], timeout=seconds)

    call = Call(app, websocket_scope())
    await clock.advance(2.0)
    assert (call.receiving, call.most_receiving) == (1, 1)
    call.hang_up()
    with pytest.raises(ClientDisconnected):
        await call.task


async def test_a_task_that_runs_many_requests_keeps_none_of_them(
    purgatory: Purgatory[Any], clock: VirtualClock, no_gc: None
) -> None:
    """A test client and a dispatcher run an application in their own task."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        seen.append(weakref.ref(request))
        wait = Wait(purgatory, request)
        seen.append(weakref.ref(wait._connection))
        await wait.until(lambda: False, keys=["a"], timeout=1.0)
        assert await request.body() == b"onetwo"

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        for number in range(3):
            await app(http_scope(method="POST"), receive, send)
            assert [each() for each in seen] == [None] * (2 * number + 2)

    seen: list[weakref.ref[Any]] = []
    call = Call(run, http_scope())
    for _ in range(3):
        call.arrive(b"one", more=True)
        await clock.advance(1.0)
        call.arrive(b"two")
        await clock.settle()
    await call.task


async def test_an_error_that_nobody_waits_for_is_not_kept(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """``receive()`` raises after the wait has ended; a later wait reads again."""
    gates: list[asyncio.Future[Message]] = []

    async def receive() -> Message:
        gates.append(asyncio.get_running_loop().create_future())
        return await gates[-1]

    wait = Wait(purgatory, websocket_scope(), receive)
    first = asyncio.ensure_future(wait.until(lambda: False, keys=["a"], timeout=1.0))
    await clock.advance(1.0)
    assert not await first
    gates[0].set_exception(Boom())
    await clock.settle()
    second = asyncio.ensure_future(wait.until(lambda: False, keys=["a"], timeout=None))
    await clock.settle()
    gates[1].set_result({"type": "websocket.disconnect", "code": 1006})
    with pytest.raises(ClientDisconnected):
        await second


@pytest.mark.parametrize("reads", ["before", "after"])
async def test_an_error_after_the_wait_reaches_the_handler(
    purgatory: Purgatory[Any], clock: VirtualClock, reads: str
) -> None:
    """A limit on the size of the body raises only once, maybe in a ``receive()`` that the wait has left pending."""
    gates: list[asyncio.Future[Message]] = []

    async def receive() -> Message:
        gates.append(asyncio.get_running_loop().create_future())
        return await gates[-1]

    async def handler(wait: Wait) -> None:
        assert not await wait.until(lambda: False, keys=["a"], timeout=1.0)
        if reads == "after":
            await clock.sleep(1.0)
        with pytest.raises(Boom):
            await wait.receive()
        assert (await wait.receive())["body"] == b"next"

    request = asyncio.create_task(Handled(purgatory, handler)(http_scope(method="POST"), receive, _no_send))
    await clock.advance(1.0)
    gates[0].set_exception(Boom())
    await clock.advance(1.0)
    gates[1].set_result({"type": "http.request", "body": b"next", "more_body": False})
    await clock.settle()
    await request


async def test_a_wait_that_outlives_its_request_stops_reading_when_it_ends(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """The task of the request ends before the wait, so the end of the wait cancels ``receive()``."""

    async def handler(wait: Wait) -> None:
        waiting.append(asyncio.ensure_future(wait.until(lambda: False, keys=["a"], timeout=2.0)))
        await wait.until(lambda: False, keys=["a"], timeout=1.0)

    waiting: list[asyncio.Future[bool]] = []
    call = Call(Handled(purgatory, handler), websocket_scope())
    await clock.advance(1.0)
    await call.task
    await clock.settle()
    assert call.receiving == 1
    await clock.advance(1.0)
    assert [await each for each in waiting] == [False]
    await clock.settle()
    assert (call.receiving, call.most_receiving) == (0, 1)


def test_a_wait_that_is_made_outside_a_loop(clock: VirtualClock) -> None:
    """No task is the task of its request, so the end of the wait cancels ``receive()``."""

    async def run() -> None:
        async with room:
            waiting = asyncio.ensure_future(wait.until(lambda: False, keys=["a"], timeout=1.0))
            await clock.settle()
            assert len(receiving) == 1
            await clock.advance(1.0)
            assert not await waiting
            await clock.settle()
            assert receiving == []

    async def receive() -> Message:
        receiving.append(1)
        try:
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]
        finally:
            receiving.pop()

    receiving: list[int] = []
    room = Purgatory[Any]("test", clock=clock)
    wait = Wait(room, websocket_scope(), receive)
    asyncio.run(run())


async def _no_send(_: Message) -> None:
    raise AssertionError


async def test_a_wait_leaves_nothing_to_the_garbage_collector(
    purgatory: Purgatory[Any], clock: VirtualClock, no_gc: None
) -> None:
    """When a request ends, its operation and its Wait are freed at once."""

    class Watched(DelayedOperation[None]):
        __slots__ = ()

        def try_complete(self) -> bool:
            return False

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        operation = Watched(1.0)
        seen.extend([weakref.ref(operation), weakref.ref(request)])
        await Wait(purgatory, request).park(operation, ["a"])

    seen: list[weakref.ref[Any]] = []
    call = Call.get(app)
    await clock.advance(1.0)
    await call.task
    await clock.settle()
    del call
    assert [ref() for ref in seen] == [None, None]


# Bad input


async def test_bad_arguments_are_refused() -> None:
    """A bad argument raises TypeError or ValueError with the expected value, and nothing is parked."""
    room = Purgatory[Any]("test")

    async def receive() -> Message:
        raise AssertionError

    bad: Any
    for bad in (3, {}, object()):
        with pytest.raises(TypeError, match="connection must be a Starlette Request or WebSocket"):
            Wait(room, bad)
    with pytest.raises(TypeError, match="connection must be an ASGI scope when receive is given, got 3"):
        Wait(room, 3, receive)
    with pytest.raises(ValueError, match="scope must be of type 'http' or 'websocket', got 'lifespan'"):
        Wait(room, {"type": "lifespan"}, receive)
    with pytest.raises(TypeError, match="receive must be callable, got 3"):
        Wait(room, http_scope(), 3)  # type: ignore[arg-type]
    for make in (Wait, waiting):
        with pytest.raises(TypeError, match="room must be a Purgatory or a Relay, got 3"):
            make(3, http_scope(), receive) if make is Wait else make(3)  # type: ignore[arg-type, call-arg]
    with pytest.raises(TypeError, match="predicate must be callable, got True"):
        await Wait(room, http_scope(), receive).until(True, keys=["a"], timeout=None)  # type: ignore[arg-type]

    async def coroutine_function() -> bool:
        raise AssertionError

    with pytest.raises(TypeError, match="predicate must be a plain function"):
        await Wait(room, http_scope(), receive).until(coroutine_function, keys=["a"], timeout=None)
    assert len(room) == 0
    await room.aclose()


def test_a_wait_shows_where_it_waits() -> None:
    """The ``repr`` of a Wait contains the name of the purgatory."""

    async def receive() -> Message:
        raise AssertionError

    room = Purgatory[Any]("orders")
    assert repr(Wait(room, http_scope(), receive)) == "<Wait in 'orders'>"
    assert repr(waiting(room)).startswith("waiting(<Purgatory 'orders'")


_: ASGIApp = Handled(Purgatory[Any]("typed"), until([]))  # an application by type


async def test_a_purgatory_that_no_lifespan_opened_is_reported_once(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The first wait writes one line of log; a wait of zero and a purgatory that was entered write none."""
    closed, opened = Purgatory[Any]("not-open", clock=clock), Purgatory[Any]("open", clock=clock)
    async with opened:
        await Call.get(Handled(closed, lambda wait: wait.until(lambda: False, keys=["a"], timeout=0))).task
        await Call.get(Handled(opened, lambda wait: wait.until(lambda: True, keys=["a"], timeout=1))).task
        assert caplog.records == []
        calls = [Call.get(Handled(closed, until([], 1.0))) for _ in range(3)]
        await clock.advance(1.0)
        await asyncio.gather(*(call.task for call in calls))
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("purgatory.asgi", "WARNING")
    assert record.getMessage().startswith("purgatory 'not-open' was not opened, because no lifespan has run")
    await closed.aclose()


@pytest.mark.parametrize("longest", [None, 1.0])
async def test_an_operation_that_is_parked_keeps_its_deadline(purgatory: Purgatory[Any], longest: float | None) -> None:
    """ValueError for an operation that is parked or has ended, and neither the call's time nor the client's counts."""
    op = Op(50.0)
    purgatory.try_complete_else_watch(op, ["a"])
    expiration_ms = op.expiration_ms
    scope = http_scope("/?wait=1")
    wait = Wait(purgatory, scope, asyncio.Queue[Message]().get, longest=longest)
    times: list[dict[str, Any]] = [{"timeout": 1.0}, {"deadline": 1.0}, {"timeout": None}, *([{}] if longest else [])]
    for time in times:
        with pytest.raises(ValueError, match=r"operation must be new, got .* which is parked already"):
            await wait.park(op, key="b", **time)
        assert (op.timeout, op.expiration_ms) == (50.0, expiration_ms)
    op.cancel()
    with pytest.raises(ValueError, match=r"operation must be new, got .* which has ended"):
        await wait.park(op, key="b", timeout=1.0)


def waiting_in(room: Any, messages: "asyncio.Queue[Message] | None" = None, **options: Any) -> Wait:
    """Return a Wait of a client that asks for three seconds."""
    return Wait(room, http_scope("/?wait=3"), (messages or asyncio.Queue()).get, longest=55, **options)


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("which", ["of the client", "timeout", "no timeout", "deadline", "no deadline"])
async def test_an_operation_that_is_refused_keeps_its_deadline(clock: VirtualClock, which: str, absolute: bool) -> None:
    """Whatever refuses the operation, it is unchanged, and another call parks it until its own deadline."""
    now = clock.time()
    times: dict[str, dict[str, Any]] = {
        "timeout": {"timeout": 1.0},
        "no timeout": {"timeout": None},
        "deadline": {"deadline": now + 2.0},
        "no deadline": {"deadline": None},
    }
    time = times.get(which, {})
    op = Op(None if absolute else 30.0)
    if absolute:
        op.extend_to(now + 30.0)
    own = (op.timeout, op.expiration_ms)
    transport = MemoryTransport(clock=clock)
    full = Purgatory[Any]("full", clock=clock, max_parked=1)
    closed = Purgatory[Any]("closed", clock=clock)
    lost, room = Purgatory[Any]("lost", clock=clock), Purgatory[Any]("room", clock=clock)
    async with full, room, lost, Relay(lost, transport, on_lost="fail") as relay:
        full.try_complete_else_watch(Op(), ["a"])
        transport.stop()
        await clock.settle()
        async with closed:
            pass
        left: asyncio.Queue[Message] = asyncio.Queue()
        left.put_nowait({"type": "http.disconnect"})
        gone = waiting_in(room, left)
        assert (await gone.receive())["type"] == "http.disconnect"
        client = waiting_in(room, per_client=1)
        first = asyncio.ensure_future(client.park(Op(), key="a", timeout=None))
        await clock.settle()
        refusals: list[tuple[type[Exception], Wait, dict[str, Any]]] = [
            (PurgatoryFull, waiting_in(full), {"key": "a"}),
            (PurgatoryClosed, waiting_in(closed), {"key": "a"}),
            (RelayLost, waiting_in(relay), {"key": "a"}),
            (TypeError, waiting_in(room), {"keys": "a"}),
            (TooManyWaits, client, {"key": "a"}),
            (ClientDisconnected, gone, {"key": "a"}),
        ]
        for error, wait, keys in refusals:
            with pytest.raises(error):
                await wait.park(op, **keys, **time)
            assert (op.timeout, op.expiration_ms) == own, error
        for at_once in ({"timeout": 0}, {"deadline": now}):
            with pytest.raises(TypeError):
                await waiting_in(room).park(op, keys="a", **at_once)
            assert (op.timeout, op.expiration_ms) == own
        task = asyncio.ensure_future(waiting_in(room).park(op, key="a", **time))
        task.cancel()
        await clock.settle()
        assert task.cancelled()
        assert (op.timeout, op.expiration_ms) == own
        first.cancel()
        parked = asyncio.ensure_future(room.park(op, ["a"]))
        await clock.advance(29.999)
        assert not parked.done()
        await clock.advance(0.001)
        assert await parked == ""
        assert op.expired


async def test_an_operation_that_was_parked_before_the_await_keeps_its_deadline(purgatory: Purgatory[Any]) -> None:
    """If another call parks the operation between the call of ``park`` and its first step, ValueError is raised."""
    op = Op(50.0)
    late = waiting_in(purgatory).park(op, key="a", timeout=1.0)
    purgatory.try_complete_else_watch(op, ["a"])
    expiration_ms = op.expiration_ms
    with pytest.raises(ValueError, match=r"operation must be new, got .* which is parked already"):
        await late
    assert (op.timeout, op.expiration_ms) == (50.0, expiration_ms)
    assert len(purgatory) == 1


async def test_a_deadline_is_not_restored_on_a_timer(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """If the single try of a refused operation adds it to a timer, it keeps the deadline that the timer knows."""
    client = waiting_in(purgatory, per_client=1)
    first = asyncio.ensure_future(client.park(Op(), key="a", timeout=None))
    await clock.settle()
    op = Op(30.0, on_try=purgatory.timer.add)
    with pytest.raises(TooManyWaits):
        await client.park(op, key="a", timeout=2.0)
    await clock.advance(1.999)
    assert not op.expired
    await clock.advance(0.001)
    assert op.expired
    first.cancel()


async def test_what_is_no_operation_is_named_with_a_time_as_well(purgatory: Purgatory[Any]) -> None:
    """TypeError that leads to the waits for functions, whatever decides the time."""
    scope = http_scope("/?wait=1")
    wait = Wait(purgatory, scope, asyncio.Queue[Message]().get, longest=5.0)
    function: Any = lambda: True  # noqa: E731
    for time in ({}, {"timeout": 1.0}, {"deadline": 1.0}, {"timeout": 0}):
        with pytest.raises(TypeError, match=r"operation must be a DelayedOperation, got .*wait_until\(\)"):
            await wait.park(function, key="b", **time)


async def test_an_attribute_named_result_does_not_lose_the_answer(purgatory: Purgatory[Any]) -> None:
    """The handler receives what ``on_complete`` returned from an operation that completes at once."""

    class Keeps(Op):
        def __init__(self) -> None:
            super().__init__(5, name="answer", ready=True)
            self.result: Any = None

    app = Handled(purgatory, lambda wait: wait.park(Keeps(), ["a"]))
    await Call.get(app).task
    assert app.results == ["answer"]
