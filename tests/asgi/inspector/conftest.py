"""A browser, and a service with an inspector in a thread."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest
import uvicorn
from starlette.applications import Starlette

from purgatory import Purgatory
from purgatory.asgi import InspectorAction, inspector, purgatory_lifespan
from purgatory.relay import Relay
from tests.browser import browser, open_context, said

__all__ = ["Service", "browser", "open_context", "said", "service"]

T = TypeVar("T")


class LostTransport:
    """An engine that cannot be reached."""

    max_payload = 1000

    async def listen(self, subscribed: Callable[[], None], received: Callable[[str | bytes], None]) -> None:
        raise ConnectionRefusedError("the engine refuses <b>connections</b>")

    async def publish(self, payload: str) -> None:
        raise AssertionError

    async def aclose(self) -> None:
        return


class Service:
    """A server with two purgatories, a relay that cannot connect, and the page of the inspector, in a thread."""

    def __init__(self) -> None:
        self.allow = True
        self.asked: list[InspectorAction] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/purgatory/"
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Serve, and return when the server runs."""
        self._ready.clear()
        self._thread = threading.Thread(target=asyncio.run, args=[self._serve()])
        self._thread.start()
        assert self._ready.wait(20)

    def stop(self) -> None:
        """Stop the server as a signal does."""
        if self._thread is not None:
            self.call(self._stop)
            self._thread.join(20)
            assert not self._thread.is_alive()
            self._thread = None

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the function in the loop of the server, and return its result."""

        async def run() -> Any:
            return function(*arguments)

        return self.run(run())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in the loop of the server, and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    def _stop(self) -> None:
        self._closing = [asyncio.ensure_future(room.aclose()) for room in (self.orders, self.jobs)]
        self._server.should_exit = True

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.orders = Purgatory[Any]("orders", max_parked=1000)
        self.jobs = Purgatory[Any]("jobs <i>")
        relay = Relay(self.orders, LostTransport())
        app = Starlette(lifespan=purgatory_lifespan(self.orders, self.jobs))
        app.mount("/purgatory", inspector(self.orders, self.jobs, relay=relay, authorize=self._authorize))
        config = uvicorn.Config(app, lifespan="on", log_level="warning", access_log=False, ws="none")
        self._server = uvicorn.Server(config)
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        async with relay:
            self._ready.set()
            await self._server.serve(sockets=[self.listener.dup()])

    async def _authorize(self, action: InspectorAction) -> bool:
        self.asked.append(action)
        return self.allow


@pytest.fixture
def service() -> Iterator[Service]:
    """Yield a running service."""
    service = Service()
    service.start()
    yield service
    service.stop()
    service.listener.close()
