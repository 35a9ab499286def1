"""``purgatory demo``: a long poll over sockets in real time, and a Kafka consumer group in virtual time.

The demo needs only this package.  The repository has the same demo with a real HTTP server: ``python -m examples``.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from purgatory import DelayedOperation, Purgatory
from purgatory.testing import VirtualClock

__all__ = ["main"]

Say = Callable[[str], None]


class _LongPollServer:
    """A log on a socket.  ``READ 0 30``: wait up to 30 s for message 0.  ``WRITE text``: append a message."""

    def __init__(self, purgatory: Purgatory[Any]) -> None:
        self.purgatory = purgatory
        self.log: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the single request of a connection."""
        try:
            verb, _, argument = (await reader.readline()).decode().strip().partition(" ")
            if verb == "WRITE":
                self.log.append(argument)
                answered = self.purgatory.check_and_complete("orders")
                writer.write(b"%d\n" % answered)
            elif verb == "READ":  # a client that disconnects early sends neither
                offset, timeout = argument.split()
                writer.write(await self._read(reader, int(offset), float(timeout)))
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, offset: int, timeout: float) -> bytes:
        waiting = asyncio.ensure_future(
            self.purgatory.wait_until(lambda: len(self.log) > offset, keys=["orders"], timeout=timeout)
        )
        disconnected = asyncio.ensure_future(reader.read(1))
        await asyncio.wait([waiting, disconnected], return_when=asyncio.FIRST_COMPLETED)
        disconnected.cancel()
        if not waiting.done():
            waiting.cancel()  # the operation leaves the purgatory at once
            return b""
        return f"{self.log[offset]}\n".encode() if waiting.result() else b"nothing\n"


async def _long_poll(say: Say) -> None:
    async with Purgatory[Any]("long poll") as purgatory:
        server = await asyncio.start_server(_LongPollServer(purgatory).serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]

        async def request(text: str) -> str:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"{text}\n".encode())
                return (await reader.readline()).decode().strip()
            finally:
                writer.close()

        async def parked(number: int) -> None:
            while True:
                if len(purgatory) == number:
                    return
                await asyncio.sleep(0.001)

        readers = [asyncio.ensure_future(request("READ 0 30")) for _ in range(3)]
        await parked(3)
        say("three readers wait, each for up to 30 s; nothing polls")
        readers[0].cancel()
        await parked(2)
        say("one client disconnects: its request has left the purgatory, and two remain parked")
        answered = await request("WRITE apples")
        messages = await asyncio.gather(*readers[1:])
        say(f"a writer appends {messages[0]!r}: {answered} readers are answered")
        began = time.perf_counter()
        next_read = asyncio.ensure_future(request("READ 1 0.5"))
        await parked(1)
        say("a reader waits for up to 0.5 s")
        answer = await next_read
        say(f"nobody appends a message: the reader has its answer, {answer}, after {time.perf_counter() - began:.3f} s")
        last = asyncio.ensure_future(request("READ 1 30"))
        await parked(1)
        server.close()
        began = time.perf_counter()
        await purgatory.aclose()
        answer = await last
        say(f"the server stops: the last reader has its answer, {answer}, after {time.perf_counter() - began:.3f} s")


class _Rebalance(DelayedOperation[int]):
    """Wait until all members have rejoined.  After the timeout, continue without those that have not rejoined."""

    def __init__(self, members: int, timeout: float) -> None:
        super().__init__(timeout)
        self.members = members
        self.joined = 0

    def try_complete(self) -> bool:
        return self.joined == self.members

    def on_complete(self) -> int:
        return self.joined


async def _consumer_group(say: Say) -> None:
    clock = VirtualClock()
    began = time.perf_counter()
    async with Purgatory[_Rebalance]("join group", clock=clock) as purgatory:
        for members, crashed in ((10_000, 0), (10_000, 3)):
            rebalance = _Rebalance(members, timeout=60.0)
            barrier = asyncio.ensure_future(purgatory.park(rebalance, ["group"]))
            for joined in range(members - crashed):
                rebalance.joined = joined + 1
                purgatory.check_and_complete("group")
                if joined % 1000 == 999:
                    await clock.advance(0.5)
            await clock.settle()
            if crashed:
                say(f"{crashed} members have crashed, {rebalance.joined:,} wait for them, {clock.time():g} s passed")
                await clock.advance(60.0)
            say(f"the rebalance ends with {await barrier:,} of {members:,} members, {clock.time():g} s passed")
    say(f"{clock.time():g} s of virtual time took {time.perf_counter() - began:.2f} s")


def _run(title: str, part: Callable[[Say], Awaitable[None]]) -> None:
    began = time.perf_counter()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - began:6.2f} s  {text}", flush=True)

    print(title, flush=True)

    async def main() -> None:
        await part(say)

    asyncio.run(main())


def main() -> int:
    """Run both parts and return the exit status."""
    _run("A long poll, over sockets on 127.0.0.1:", _long_poll)
    _run("\nA Kafka consumer group rebalances, in virtual time:", _consumer_group)
    print("\nThe same with a real HTTP server, a live page, and a Kafka broker: purgatory examples")
    return 0
