"""The newest frame, from the thread that is looked at to everyone who watches.

Those who watch wait in a purgatory, what else; a frame that nobody had time to read is skipped, so a slow browser
delays nobody and nothing piles up.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from purgatory import Purgatory

__all__ = ["Feed"]

_KEY = "frame"
_QUIET = 10.0  # seconds without a frame, after which a comment shows that the connection lives


class Feed:
    """Frames as bytes.  :meth:`publish` and :attr:`wanted` from any thread, the rest on the loop of the page."""

    def __init__(self, max_watchers: int = 64) -> None:
        self.purgatory: Purgatory[Any] = Purgatory("watchers of the page")
        self.max_watchers = max_watchers
        self.watchers = 0
        self.closed = False
        self._newest = b""
        self._number = 0

    @property
    def wanted(self) -> bool:
        """Whether anybody watches: where nobody does there is no use in looking."""
        return self.watchers > 0

    def publish(self, frame: bytes) -> None:
        """This is how it looks now."""
        self._newest = frame
        self._number += 1
        with contextlib.suppress(RuntimeError):  # the page is not open yet, or no longer
            self.purgatory.check_threadsafe(_KEY)

    async def frames(self) -> AsyncGenerator[bytes | None, None]:
        """Every frame from now on that there is time for; None after some quiet.  Ends when the page is closed."""
        self.watchers += 1
        try:
            seen = self._number
            while not self.closed:
                if await self.purgatory.wait_until(partial(self._is_news, seen), keys=[_KEY], timeout=_QUIET):
                    seen = self._number
                    yield self._newest
                elif not self.closed:
                    yield None
            if self._number != seen:
                yield self._newest  # the last one
        finally:
            self.watchers -= 1

    def _is_news(self, seen: int) -> bool:
        return self._number != seen

    async def aclose(self) -> None:
        """Let everyone go."""
        self.closed = True
        await self.purgatory.aclose()
