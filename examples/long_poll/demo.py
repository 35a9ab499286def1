"""A short demonstration: readers wait, one disconnects, a writer completes two, and SIGTERM completes the last one.

``python -m examples.long_poll.demo`` starts the real server from this folder (Starlette on uvicorn) in another process,
on a free port of this machine, and stops it at the end.
"""

import asyncio
import sys
import time
from typing import Any

import aiohttp

from purgatory.broken_pipe import run_command

from .server_process import ServerProcess

__all__ = ["main", "show"]

_TIMEOUT = 30.0  # seconds


class _Demo:
    """The client: it sends requests and prints lines with the seconds since the start."""

    def __init__(self, server: ServerProcess, session: aiohttp.ClientSession) -> None:
        self._server = server
        self._session = session
        self._began = time.perf_counter()
        self.readers: list[asyncio.Task[tuple[int, Any]]] = []

    def say(self, text: str) -> None:
        """Print a line."""
        print(f"{time.perf_counter() - self._began:6.2f} s  {text}", flush=True)

    async def read(self, offset: int) -> tuple[int, Any]:
        """Wait up to 30 s for messages from ``offset`` on.  Return the status and the messages."""
        url = f"{self._server.url}/topics/orders?offset={offset}&max_wait=30"
        async with self._session.get(url) as response:
            return response.status, (await response.json()).get("messages")

    async def write(self, message: str) -> None:
        """Append a message."""
        async with self._session.post(f"{self._server.url}/topics/orders", data=message.encode()) as response:
            response.raise_for_status()

    async def parked(self, number: int) -> None:
        """Wait until the server has ``number`` requests parked."""
        while True:
            async with self._session.get(f"{self._server.url}/stats") as response:
                if (await response.json())["parked"] == number:
                    return
            await asyncio.sleep(0.01)

    async def run(self) -> None:
        """Run all steps."""
        readers = self.readers
        readers += [asyncio.create_task(self.read(0)) for _ in range(3)]
        await self.parked(3)
        self.say("three readers wait, each for up to 30 s; nothing polls")
        readers[0].cancel()
        await self.parked(2)
        self.say("one client disconnects: its request leaves the purgatory immediately, and two remain parked")
        asked = time.perf_counter()
        await self.write("apples")
        answers = await asyncio.gather(*readers[1:])
        took_ms = (time.perf_counter() - asked) * 1000
        self.say(f"a writer posts 'apples': both readers have {answers[0]} after {took_ms:.1f} ms")
        last = asyncio.create_task(self.read(1))
        readers.append(last)
        await self.parked(1)
        self.say("a fourth reader waits, for up to 30 s; the server receives SIGTERM")
        exit_report = await self._server.stop()
        status, messages = await last
        self.say(
            f"the reader has {(status, messages)}, and the server has exited with code {exit_report.exit_code}"
            f" after {exit_report.seconds:.2f} s"
        )


async def show() -> None:
    """Start the server, run the demonstration, and stop the server.  Raise TimeoutError after 30 s."""
    async with (
        asyncio.timeout(_TIMEOUT),
        ServerProcess("--port", "0") as server,
        aiohttp.ClientSession() as session,
    ):
        demo = _Demo(server, session)
        try:
            await demo.run()
        finally:
            for reader in demo.readers:
                reader.cancel()


def main() -> int:
    """Run the demonstration.  Return the exit status."""
    try:
        asyncio.run(show())
    except BrokenPipeError:
        raise  # no one reads the output
    except (OSError, RuntimeError, TimeoutError, aiohttp.ClientError) as error:
        print(f"the demonstration failed: {error!r}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
