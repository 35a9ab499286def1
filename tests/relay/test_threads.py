"""Event loops in the threads of one process, which relay through an engine in memory."""

import asyncio
import threading
from typing import Any, Self

import pytest

from purgatory import Purgatory
from purgatory.relay import MemoryTransport, Relay
from tests.relay.hammer import hammer

pytestmark = pytest.mark.timeout(120)


def test_eight_loops_lose_nothing() -> None:
    """Eight loops, a notifier and a thread check each other's keys: no wait is lost, and every state is consistent."""
    figures = hammer(threads=8, seconds=1.0)
    assert figures.errors == []
    assert (figures.lost, figures.twice, figures.losses) == (0, 0, 0)
    assert figures.answered > 100
    assert figures.received > 0


class Listener(threading.Thread):
    """A loop in a thread that listens, and the threads in which it received messages."""

    def __init__(self, transport: MemoryTransport) -> None:
        super().__init__()
        self.transport = transport
        self.heard: list[str | bytes] = []
        self.heard_in: set[int] = set()
        self.error: BaseException | None = None
        self.ready = threading.Event()
        self.blocked = threading.Event()
        self.go_on = threading.Event()
        self.last = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> None:
        asyncio.run(self._listen())

    async def _listen(self) -> None:
        self.loop = asyncio.get_running_loop()
        try:
            await self.transport.listen(self.ready.set, self._received)
        except (asyncio.CancelledError, ConnectionError) as error:
            self.error = error

    def _received(self, payload: str | bytes) -> None:
        self.heard.append(payload)
        self.heard_in.add(threading.get_ident())
        if payload == "block":
            self.blocked.set()
            assert self.go_on.wait(30.0)
        if payload == "last":
            self.last.set()

    def __enter__(self) -> Self:
        self.start()
        assert self.ready.wait(30.0)
        return self

    def __exit__(self, *_: object) -> None:
        self.transport.disconnect()
        self.join()


async def test_a_message_is_received_in_the_thread_of_its_loop() -> None:
    """Two publishers in different threads reach a listener in a third one, in the order of each publisher."""
    engine = MemoryTransport()
    with Listener(engine.peer()) as listener:
        await engine.publish("first")
        await asyncio.to_thread(asyncio.run, engine.peer().publish("last"))
        assert await asyncio.to_thread(listener.last.wait, 30.0)
    assert listener.heard == ["first", "last"]
    assert listener.heard_in == {listener.ident}
    assert isinstance(listener.error, ConnectionResetError)  # disconnect() was called in this thread


async def test_messages_to_a_busy_loop_collapse() -> None:
    """A loop that takes nothing gets "check every key" for the messages above the limit, so its memory is bounded."""
    engine = MemoryTransport()
    with Listener(engine.peer()) as listener:
        await engine.publish("block")
        assert await asyncio.to_thread(listener.blocked.wait, 30.0)
        for number in range(2_500):
            await engine.publish(f"{number}")
        listener.go_on.set()
        await engine.publish("last")
        assert await asyncio.to_thread(listener.last.wait, 30.0)
    assert len(listener.heard) < 1_010
    assert '[1,"","all"]' in listener.heard


async def test_a_loop_that_was_closed_while_it_listened() -> None:
    """A message to it is dropped without an error."""
    engine = MemoryTransport()

    def run() -> None:
        loop = asyncio.new_event_loop()
        task: Any = loop.create_task(engine.peer().listen(lambda: None, lambda _: None))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        task._log_destroy_pending = False
        kept.append(task)

    kept: list[Any] = []
    await asyncio.to_thread(run)
    await engine.publish("nobody hears it")
    kept.clear()


def test_a_check_answers_in_every_loop() -> None:
    """Each of four loops parks through a relay; a check in one of them answers all."""
    engine, paid = MemoryTransport(), threading.Event()
    answers: list[bool] = []
    parked = threading.Barrier(4)

    async def serve(number: int) -> None:
        room = Purgatory[Any](f"loop {number}")
        async with room, Relay(room, engine.peer(), heartbeat=30.0, resync_every=3600.0) as relay:
            waiting = asyncio.ensure_future(relay.wait_until(paid.is_set, keys=["o-1"], timeout=30.0))
            await asyncio.sleep(0)
            await asyncio.to_thread(parked.wait, 30.0)
            if not number:
                paid.set()
                relay.check("o-1")
            answers.append(await waiting)

    threads = [threading.Thread(target=asyncio.run, args=[serve(number)]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True] * 4
