"""What the five services have in common: a purgatory, its inspector, and traffic."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette

from purgatory import Clock, Purgatory
from purgatory.asgi import inspector, purgatory_lifespan
from purgatory.relay import Relay

__all__ = ["Service"]


class Service:
    """A service whose requests are simulated: :meth:`tick` simulates one second of traffic.

    ``clock``: the purgatory's clock; None: real time.  ``observers``: the purgatory's observers, such as a journal.
    """

    def __init__(self, clock: Clock | None, observers: Sequence[Any] = (), **limits: Any) -> None:
        self.room: Purgatory[Any] = Purgatory("orders", clock=clock, observers=observers, **limits)
        self.relay: Relay[Any, Any] | None = None
        self._requests: set[asyncio.Task[Any]] = set()

    def tick(self, second: int) -> None:
        """Let the requests of one second arrive."""
        raise NotImplementedError

    def request(self, handler: Coroutine[Any, Any, Any]) -> None:
        """Run the handler of a request, as a server does: an error ends the request, not the service."""

        async def run() -> None:
            with contextlib.suppress(Exception):
                await handler

        task = asyncio.get_running_loop().create_task(run())
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Enter the relay, if the service has one."""
        async with contextlib.AsyncExitStack() as stack:
            if self.relay is not None:
                await stack.enter_async_context(self.relay)
            yield

    def app(self) -> Starlette:
        """Return the application: traffic in real time, the inspector, and a dump on SIGUSR1."""

        async def traffic() -> None:
            second = 0
            while True:
                self.tick(second)
                second += 1
                await asyncio.sleep(1)

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            loop = asyncio.get_running_loop()
            with contextlib.suppress(NotImplementedError):  # on Windows
                loop.add_signal_handler(signal.SIGUSR1, lambda: print(self.room.dump(limit=20), flush=True))
            async with self.running():
                task = loop.create_task(traffic())
                yield
                task.cancel()

        app = Starlette(lifespan=purgatory_lifespan(self.room, lifespan=lifespan))
        app.mount("/purgatory", inspector(self.room, relay=self.relay))
        return app
