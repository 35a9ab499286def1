"""The server of the page, in its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import threading
import time
from types import TracebackType
from typing import Self

import uvicorn

from .app import make_app
from .broadcast import Broadcast
from .collector import Collector

__all__ = ["Page"]

_INTERVAL = 0.2  # seconds between two frames
_SHARE = 0.05  # maximum share of the time for snapshots
_PATIENCE = 10.0


class Page:
    """A server for the page on 127.0.0.1, which runs inside a ``with`` block.

    ``port`` 0 selects a free port; see :attr:`url`.  Entering raises OSError if the port is not available.
    """

    def __init__(self, port: int = 0) -> None:
        self.broadcast = Broadcast()
        self._port = port
        self._run = secrets.token_hex(4)  # lets a browser detect a restart of the process
        self._number = 0
        self._next = 0.0
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        try:
            self._listener = socket.create_server(("127.0.0.1", self._port))
        except OSError as error:
            raise OSError(f"the live page cannot listen on 127.0.0.1:{self._port}: {error.strerror}") from error
        config = uvicorn.Config(
            make_app(self.broadcast, self._started),
            lifespan="on",
            log_level="warning",
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="live page", daemon=True)
        self._thread.start()
        if not self._ready.wait(_PATIENCE) or self._loop is None:
            self._listener.close()
            raise RuntimeError("the live page did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Threads get no signals: complete the viewers here, before the server waits for their connections.
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, because the server failed
                self._loop.call_soon_threadsafe(self._close_feed)
        self._server.should_exit = True
        self._thread.join(_PATIENCE)
        self._listener.close()

    def _serve(self) -> None:
        try:
            asyncio.run(self._server.serve(sockets=[self._listener]))
        finally:
            self._ready.set()  # do not wait for a failed server

    def _started(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready.set()

    def _close_feed(self) -> None:
        self._closing = asyncio.ensure_future(self.broadcast.purgatory.aclose())

    @property
    def url(self) -> str:
        """The URL of the page."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/"

    def update(self, collector: Collector) -> None:
        """Publish a new frame if there are viewers and the last frame is old enough.

        Call it in the observed event loop, as often as you want.  Expensive snapshots make frames less frequent.
        """
        began = time.perf_counter()
        if began < self._next or not self.broadcast.wanted:
            return
        self._publish(collector, ended=False)
        over = time.perf_counter()
        self._next = began + max(_INTERVAL, (over - began) / _SHARE)

    def update_at_end(self, collector: Collector) -> None:
        """Publish the final frame."""
        self._publish(collector, ended=True)

    def _publish(self, collector: Collector, *, ended: bool) -> None:
        self._number += 1
        frame = {"run": self._run, "number": self._number, "ended": ended, **collector.collect()}
        self.broadcast.publish(json.dumps(frame, separators=(",", ":")).encode())
