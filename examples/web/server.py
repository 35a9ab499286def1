"""The server of the page, in its own thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import uvicorn

from purgatory import Purgatory
from purgatory.asgi import inspector

from .app import make_app
from .groups import Groups

__all__ = ["Page"]

_PATIENCE = 10.0


class Page:
    """A server for the page, on 127.0.0.1.  Use it in a ``with`` block in the event loop of the purgatories.

    The page is served in another thread; the purgatories and the groups are read in their own event loop.
    ``port`` 0 selects a free port; see :attr:`url`.  Entering the block raises OSError if the port is not available.
    """

    def __init__(
        self, title: str, purgatories: Sequence[Purgatory[Any]], *, groups: Groups | None = None, port: int = 0
    ) -> None:
        self._title = title
        self._purgatories = purgatories
        self._groups = groups
        self._port = port
        self._ready = threading.Event()
        self._has_started = False

    def __enter__(self) -> Self:
        try:
            self._listener = socket.create_server(("127.0.0.1", self._port))
        except OSError as error:
            raise OSError(f"the live page cannot listen on 127.0.0.1:{self._port}: {error.strerror}") from error
        app = make_app(
            self._title,
            inspector(*self._purgatories, title=self._title),
            self._groups,
            asyncio.get_running_loop(),
            self._started,
        )
        config = uvicorn.Config(
            app, lifespan="on", log_level="warning", access_log=False, ws="none", timeout_graceful_shutdown=2
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="live page", daemon=True)
        self._thread.start()
        if not self._ready.wait(_PATIENCE) or not self._has_started:
            self._listener.close()
            raise RuntimeError("the live page did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.should_exit = True  # which also ends the streams of the inspector
        self._thread.join(_PATIENCE)
        self._listener.close()

    def _serve(self) -> None:
        try:
            asyncio.run(self._server.serve(sockets=[self._listener]))
        finally:
            self._ready.set()  # do not wait for a failed server

    def _started(self) -> None:
        self._has_started = True
        self._ready.set()

    @property
    def url(self) -> str:
        """The URL of the page."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
