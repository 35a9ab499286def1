"""A handler and waiting operations read one connection, in every order: no message is lost or read twice."""

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from purgatory import OperationCancelled, Purgatory
from purgatory.asgi.connection import ClientDisconnected
from purgatory.asgi.types import Message
from purgatory.asgi.wait import Wait
from purgatory.testing import VirtualClock
from tests.asgi.tools import websocket_scope
from tests.helpers import Op

STEPS = st.lists(
    st.sampled_from(["arrive", "wait", "complete", "withdraw", "leave", "read", "stop reading", "turn", "settle"]),
    max_size=40,
)


class Server:
    """The server's side: a queue of messages, and the number of pending ``receive()`` calls.

    ``turns``: a middleware passes a message on after so many turns of the loop, and loses it if it is cancelled before.
    """

    def __init__(self, turns: int = 0) -> None:
        self.turns = turns
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.pending = 0
        self.most_pending = 0

    async def receive(self) -> Message:
        self.pending += 1
        self.most_pending = max(self.most_pending, self.pending)
        try:
            message = await self.messages.get()
            for _ in range(self.turns):
                await asyncio.sleep(0)
            return message
        finally:
            self.pending -= 1


class QueueServer(asyncio.Queue[Message]):
    """The same for a server whose ``receive()`` is the ``get()`` of a queue: the connection reads it without a task."""

    def __init__(self) -> None:
        super().__init__()
        self.messages = self
        self.receive = self.get

    @property
    def pending(self) -> int:
        return sum(not getter.done() for getter in self._getters)  # type: ignore[attr-defined]

    most_pending = 1  # asserted in each step instead


class Run:
    """One run of the steps."""

    def __init__(self, room: Purgatory[Any], clock: VirtualClock, server: Server | QueueServer) -> None:
        self.clock = clock
        self.room = room
        self.server = server
        self.wait = Wait(room, websocket_scope(), self.server.receive)
        self.sent = 0
        self.read: list[int] = []
        self.readings: list[asyncio.Task[None]] = []
        self.waits: list[tuple[Op, asyncio.Task[Any]]] = []

    async def step(self, step: str) -> None:
        if step == "arrive":
            self.server.messages.put_nowait({"type": "websocket.receive", "text": str(self.sent)})
            self.sent += 1
        elif step == "wait":
            operation = Op()
            self.waits.append((operation, asyncio.ensure_future(self.wait.park(operation, ["a"]))))
        elif step == "complete" and self.waits:
            self.waits[0][0].ready = True
            self.room.check_and_complete("a")
        elif step == "withdraw" and self.waits and self.waits[-1][0].keys:
            self.waits[-1][0].cancel()
        elif step == "leave" and self.waits:
            self.waits[-1][1].cancel()
        elif step == "read":
            self.readings.append(asyncio.ensure_future(self._read()))
        elif step == "stop reading" and self.readings:
            self.readings.pop().cancel()
        elif step == "turn":
            await asyncio.sleep(0)
        elif step == "settle":
            await self.clock.settle()

    async def _read(self) -> None:
        message = await self.wait.receive()
        if message["type"] == "websocket.receive":
            self.read.append(int(message["text"]))

    async def end(self) -> None:
        """The client disconnects; everything ends, and the unread messages are still available, in order."""
        await self.clock.settle()
        read = self.wait._connection.watching or any(not reading.done() for reading in self.readings)
        assert self.server.pending >= read
        self.server.messages.put_nowait({"type": "websocket.disconnect", "code": 1006})
        waiting = asyncio.ensure_future(self.wait.park(Op(), ["a"]))
        outcomes = await asyncio.gather(waiting, *(task for _, task in self.waits), return_exceptions=True)
        assert isinstance(outcomes[0], ClientDisconnected)
        for outcome in outcomes:
            assert not isinstance(outcome, Exception) or isinstance(outcome, OperationCancelled)
        while (message := await self.wait.receive())["type"] == "websocket.receive":
            self.read.append(int(message["text"]))
        await asyncio.gather(*self.readings, return_exceptions=True)
        await self.clock.settle()
        assert self.read == list(range(self.sent))
        assert self.server.pending == 0
        assert self.server.most_pending == 1
        assert len(self.room) == 0


@given(STEPS)
def test_every_message_is_read_once_in_order_and_a_hang_up_ends_every_wait(steps: list[str]) -> None:
    """At most one ``receive()`` is pending, in any order of starts, ends and cancellations."""

    async def run() -> None:
        clock = VirtualClock()
        async with Purgatory[Any]("test", clock=clock) as room:
            test = Run(room, clock, Server())
            for step in steps:
                await test.step(step)
            await test.end()

    asyncio.run(run())


@given(STEPS)
def test_the_same_holds_without_a_task_that_reads(steps: list[str]) -> None:
    """A ``receive()`` that awaits only futures is resumed by the connection itself, and closed when the wait ends."""

    async def run() -> None:
        clock = VirtualClock()
        async with Purgatory[Any]("test", clock=clock) as room:
            test = Run(room, clock, QueueServer())
            for step in steps:
                await test.step(step)
                assert test.server.pending <= 1
            await test.end()

    asyncio.run(run())


@given(STEPS, st.integers(0, 3))
def test_no_message_is_lost_by_a_middleware_that_must_not_be_cancelled(steps: list[str], turns: int) -> None:
    """The end of a wait cancels no ``receive()`` that may have taken a message; a handler that stops reading does."""

    async def run() -> None:
        clock = VirtualClock()
        async with Purgatory[Any]("test", clock=clock) as room:
            test = Run(room, clock, Server(turns))
            for step in steps:
                if step != "stop reading":
                    await test.step(step)
            await test.end()

    asyncio.run(run())
