"""The page on a thread of its own."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import threading
import time
from types import TracebackType
from typing import Self

import uvicorn

from .app import make_app
from .feed import Feed
from .scene import Scene

__all__ = ["Page"]

_INTERVAL = 0.2  # seconds between two frames
_SHARE = 0.05  # of the time, at most, that is spent on looking
_PATIENCE = 10.0


class _Server(uvicorn.Server):
    """uvicorn, with the watchers let go before their connections are waited for."""

    def __init__(self, config: uvicorn.Config, feed: Feed, ready: threading.Event) -> None:
        super().__init__(config)
        self._feed = feed
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        closing = asyncio.create_task(self._feed.aclose())
        try:
            await super().shutdown(sockets)
        finally:
            await closing


class Page:
    """Serves the page on 127.0.0.1, from ``with`` to its end.

    ``port`` 0 takes a free one, see :attr:`url`.  OSError if it cannot be listened on.
    """

    def __init__(self, port: int = 0) -> None:
        self.feed = Feed()
        self._port = port
        self._run = secrets.token_hex(4)  # by this a browser knows that it is another process now
        self._number = 0
        self._next = 0.0
        self._ready = threading.Event()

    def __enter__(self) -> Self:
        try:
            self._listener = socket.create_server(("127.0.0.1", self._port))
        except OSError as error:
            raise OSError(f"the live page cannot listen on 127.0.0.1:{self._port}: {error.strerror}") from error
        config = uvicorn.Config(
            make_app(self.feed),
            lifespan="on",
            log_level="warning",
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=2,
        )
        self._server = _Server(config, self.feed, self._ready)
        self._thread = threading.Thread(target=self._serve, name="live page", daemon=True)
        self._thread.start()
        if not self._ready.wait(_PATIENCE) or not self._server.started:
            self._listener.close()
            raise RuntimeError("the live page did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(_PATIENCE)
        self._listener.close()

    def _serve(self) -> None:
        try:
            asyncio.run(self._server.serve(sockets=[self._listener]))
        finally:
            self._ready.set()  # so that nobody waits for one that failed

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/"

    def look(self, scene: Scene) -> None:
        """Show the scene as it is now, if anybody watches and it is time for a frame; call it as often as you like.

        To be called on the loop that is looked at.  The more a look costs the rarer the frames.
        """
        began = time.perf_counter()
        if began < self._next or not self.feed.wanted:
            return
        self._publish(scene, ended=False)
        over = time.perf_counter()
        self._next = began + max(_INTERVAL, (over - began) / _SHARE)

    def last_look(self, scene: Scene) -> None:
        """Show how it ended."""
        self._publish(scene, ended=True)

    def _publish(self, scene: Scene, *, ended: bool) -> None:
        self._number += 1
        frame = {"run": self._run, "number": self._number, "ended": ended, **scene.frame()}
        self.feed.publish(json.dumps(frame, separators=(",", ":")).encode())
