"""The reader that needs no task, for a ``receive()`` that awaits only futures, as in uvicorn and Hypercorn."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.asgi import ClientDisconnected, Wait
from purgatory.asgi.types import Message, Receive
from purgatory.testing import VirtualClock
from tests.asgi.tools import http_scope, websocket_scope
from tests.helpers import Boom, Op, check

END: Message = {"type": "http.request", "body": b"", "more_body": False}


class Sent(asyncio.Queue[Message]):
    """The messages of a server, whose ``receive()`` is ``get()``."""

    def __init__(self, *messages: Message) -> None:
        super().__init__()
        for message in messages:
            self.put_nowait(message)


async def test_no_task_reads(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Only the waiting task exists, and a hang-up withdraws the operation."""
    sent = Sent(END)
    waiting = asyncio.create_task(Wait(purgatory, http_scope(), sent.get).until(lambda: False, key="a", timeout=30.0))
    await clock.settle()
    others = [task for task in asyncio.all_tasks() if task.get_name() != "purgatory-reaper"]
    assert set(others) == {asyncio.current_task(), waiting}
    sent.put_nowait({"type": "http.disconnect"})
    with pytest.raises(ClientDisconnected):
        await waiting
    check(purgatory, parked=0, cancelled=1)


async def test_a_client_that_has_gone_before_is_noticed_at_once(purgatory: Purgatory[Any]) -> None:
    """The reader starts in the same turn, so a disconnect that the server already has withdraws the operation."""
    wait = Wait(purgatory, http_scope(), Sent(END, {"type": "http.disconnect"}).get)
    with pytest.raises(ClientDisconnected):
        await wait.until(lambda: False, key="a", timeout=30.0)
    check(purgatory, parked=0, cancelled=1)


async def test_the_end_of_the_body_is_read_afterwards(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The handler reads every part of the body that arrived during the wait, in order, and the empty end last."""
    sent = Sent({"type": "http.request", "body": b"one", "more_body": True}, END)
    wait = Wait(purgatory, http_scope(method="POST"), sent.get)
    waiting = asyncio.create_task(wait.until(lambda: False, key="a", timeout=1.0))
    await clock.advance(1.0)
    assert not await waiting
    assert await wait.receive() == {"type": "http.request", "body": b"one", "more_body": True}
    assert await wait.receive() == END
    sent.put_nowait({"type": "http.disconnect"})
    assert (await wait.receive())["type"] == "http.disconnect"


async def test_what_arrives_in_the_turn_of_the_answer_stays_in_the_server(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """The message has woken the reader, which is closed before it runs; the next ``receive()`` reads the message."""
    sent = Sent()
    ready: list[int] = []
    wait = Wait(purgatory, websocket_scope(), sent.get)
    waiting = asyncio.create_task(wait.until(lambda: bool(ready), key="a", timeout=30.0))
    await clock.settle()
    ready.append(1)
    purgatory.check("a")
    waiting.add_done_callback(lambda _: None)
    sent.put_nowait({"type": "websocket.receive", "text": "one"})
    assert await waiting
    assert await wait.receive() == {"type": "websocket.receive", "text": "one"}


async def test_a_cancelled_handler_closes_the_receive(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Nothing waits for the server any more, and the message that follows is left to it."""
    sent = Sent()
    waiting = asyncio.create_task(
        Wait(purgatory, websocket_scope(), sent.get).until(lambda: False, key="a", timeout=30.0)
    )
    await clock.settle()
    waiting.cancel()
    await asyncio.wait([waiting])
    sent.put_nowait({"type": "websocket.receive", "text": "one"})
    await clock.settle()
    assert sent.qsize() == 1


async def test_a_handler_that_reads_gets_what_the_reader_receives(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """While the reader awaits a message, the handler waits for the reader, and reads by itself when it is closed."""
    sent = Sent()
    wait = Wait(purgatory, websocket_scope(), sent.get)
    waiting = asyncio.create_task(wait.until(lambda: False, key="a", timeout=1.0))
    await clock.settle()
    first, second = asyncio.create_task(wait.receive()), asyncio.create_task(wait.receive())
    await clock.settle()
    sent.put_nowait({"type": "websocket.receive", "text": "one"})
    await clock.settle()
    assert (await first)["text"] == "one"
    await clock.advance(1.0)
    assert not await waiting
    sent.put_nowait({"type": "websocket.receive", "text": "two"})
    assert (await second)["text"] == "two"


def uvicorn_receive(receive: Callable[[], Awaitable[Message]]) -> Receive:
    """Return the function as a method of a class that is named as uvicorn's."""
    kind = type("RequestResponseCycle", (), {"receive": lambda _: receive()})
    kind.__module__ = "uvicorn.protocols.http.h11_impl"
    method: Receive = kind().receive
    return method


async def test_a_receive_that_raises_withdraws_and_raises(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The error of ``receive()`` reaches the handler, whether it comes at once or later."""
    for turns in range(3):

        async def receive(turns: int = turns) -> Message:
            for _ in range(turns):
                await asyncio.sleep(0)  # a bare yield
            raise Boom

        wait = Wait(purgatory, http_scope(), uvicorn_receive(receive))
        with pytest.raises(Boom):
            await wait.until(lambda: False, key="a", timeout=30.0)
    check(purgatory, parked=0, cancelled=3)


async def test_a_get_that_is_overridden_is_read_in_a_task(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """It may need the task that runs it, as ``asyncio.timeout()`` does: the timeout must not cancel the request."""

    class Patient(Sent):
        async def get(self) -> Message:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
            return await super().get()

    waiting = asyncio.create_task(Wait(purgatory, http_scope(), Patient().get).until(lambda: False, key="a", timeout=1))
    await clock.advance(1.0)
    assert not await waiting


async def test_waits_with_one_scope_share_the_reader(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """A plain application that waits twice at the same time reads the disconnect once, and both waits end."""
    sent, scope = Sent(END), http_scope()
    waits = [
        asyncio.create_task(Wait(purgatory, scope, sent.get).until(lambda: False, key=key, timeout=None))
        for key in "ab"
    ]
    await clock.settle()
    sent.put_nowait({"type": "http.disconnect"})
    outcomes = await asyncio.gather(*waits, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ClientDisconnected, ClientDisconnected]


@pytest.mark.parametrize("withdraws", [True, False])
@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt])
async def test_every_wait_ends_though_the_end_of_one_raises(
    purgatory: Purgatory[Any],
    clock: VirtualClock,
    reported: list[dict[str, Any]],
    error: type[BaseException],
    withdraws: bool,
) -> None:
    """An overridden ``cancel()`` that raises is reported, and all waits of the request end; so with Ctrl-C."""

    class Failing(Op):
        def cancel(self, reason: str | None = None) -> bool:
            if not withdraws or super().cancel(reason):
                raise error
            return False

    sent = Sent(END)
    wait = Wait(purgatory, http_scope(), sent.get)
    first = asyncio.create_task(wait.park(Failing(None), ["a"]))
    second = asyncio.create_task(wait.until(lambda: False, key="b", timeout=None))
    await clock.settle()
    if error is Boom:
        sent.put_nowait({"type": "http.disconnect"})
    else:
        with pytest.raises(KeyboardInterrupt):
            wait._connection._disconnected({"type": "http.disconnect"})
    outcomes = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ClientDisconnected, ClientDisconnected]
    check(purgatory, parked=0, cancelled=2)
    assert [type(context["exception"]) for context in reported] == ([Boom] if error is Boom else [])


async def test_a_park_that_is_overridden_sees_the_disconnect_first(clock: VirtualClock) -> None:
    """If the client has gone, the operation does not reach the ``park`` of a subclass."""

    class Parking(Purgatory[Any]):
        async def park(self, *arguments: Any, **options: Any) -> Any:
            raise AssertionError

    async with Parking("test", clock=clock) as room:
        wait = Wait(room, http_scope(), Sent({"type": "http.disconnect"}).get)
        with pytest.raises(ClientDisconnected):
            await wait.until(lambda: False, key="a", timeout=30.0)


async def test_a_hang_up_before_an_overridden_park_parks(clock: VirtualClock) -> None:
    """The handler gets ClientDisconnected, not an error about the state of its operation."""

    class Slow(Purgatory[Any]):
        async def park(self, *arguments: Any, **options: Any) -> Any:
            await clock.sleep(1.0)
            return await super().park(*arguments, **options)

    async with Slow("test", clock=clock) as room:
        sent = Sent(END)
        waiting = asyncio.create_task(Wait(room, http_scope(), sent.get).until(lambda: False, key="a", timeout=30.0))
        await clock.settle()
        sent.put_nowait({"type": "http.disconnect"})
        await clock.advance(1.0)
        with pytest.raises(ClientDisconnected):
            await waiting
