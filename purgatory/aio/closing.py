"""One call of ``aclose``, and the calls that wait for it."""

import asyncio
from collections.abc import Awaitable
from typing import Any

__all__ = ["Closing"]


class Closing:
    """The call that closes a purgatory or a timer.  Later calls in the same event loop wait for it.

    If its loop is closed before its end, the garbage collector closes its coroutine.  A coroutine that is closed must
    not wait, and the garbage collector must not run callbacks, so the next call continues where this one stopped.
    """

    __slots__ = ("_ended", "dropped")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ended = loop.create_future()
        self.dropped: bool = False

    def answers(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether a call in the loop waits for this one, rather than close itself."""
        return not self.dropped and (self._ended.done() or self._ended.get_loop() is loop)

    async def ended(self) -> bool:
        """Wait for the end; return False if the coroutine was closed before everything was answered."""
        await asyncio.shield(self._ended)
        return not self.dropped

    async def wait_for(self, awaitable: Awaitable[Any]) -> None:
        """Wait, and note whether the coroutine is closed meanwhile."""
        try:
            await awaitable
        except GeneratorExit:
            self.dropped = True
            raise

    def end(self) -> None:
        """Wake the calls that wait.  In a closed loop, none can."""
        if not self._ended.get_loop().is_closed():
            self._ended.set_result(None)
