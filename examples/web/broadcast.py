"""The latest frame, passed from the observed thread to all viewers.

The viewers wait in a purgatory.  A slow browser skips frames, so it delays no other viewer and no frames accumulate.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from purgatory import Purgatory

__all__ = ["Broadcast"]

_KEY = "frame"
_QUIET = 10.0  # seconds without a frame after which a comment keeps the connection alive


class Broadcast:
    """The latest frame as bytes.  Use :meth:`publish` and :attr:`wanted` in any thread, the rest in the page's loop."""

    def __init__(self, max_watchers: int = 64) -> None:
        self.purgatory: Purgatory[Any] = Purgatory("watchers of the page")
        self.max_watchers = max_watchers
        self.watchers = 0
        self._newest = b""
        self._number = 0

    @property
    def wanted(self) -> bool:
        """Whether there are viewers.  Without viewers, no frame is necessary."""
        return self.watchers > 0

    def publish(self, frame: bytes) -> None:
        """Publish a frame as the latest one."""
        self._newest = frame
        self._number += 1
        with contextlib.suppress(RuntimeError):  # the page is not open
            self.purgatory.check_threadsafe(_KEY)

    async def frames(self) -> AsyncGenerator[bytes | None, None]:
        """Yield new frames, and None after a time without frames, until the page closes.  Skip frames if slow."""
        self.watchers += 1
        try:
            seen = self._number
            async with self.purgatory.changes([_KEY], heartbeat=_QUIET) as changes:
                async for key in changes:
                    seen = self._number
                    yield None if key is None else self._newest
            if self._number != seen:
                yield self._newest  # the final frame
        finally:
            self.watchers -= 1

    @property
    def closed(self) -> bool:
        """Whether the page is closing."""
        return self.purgatory.closed
