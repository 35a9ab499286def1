"""``async with timer.timeout()``: what happens to a block when its deadline passes.

The states of a timeout, and the handling of blocks that end in time, are in ``core.timer.base_timeout``.
"""

import asyncio
from collections.abc import Iterator
from contextvars import Context
from typing import Any, Final

from purgatory.core.timer.base_timeout import BaseTimeout

__all__ = ["Timeout"]

_CONTEXT: Final[Any] = BaseException.__dict__["__context__"]  # the descriptor; a frozen dataclass refuses assignments


class Timeout(BaseTimeout):
    """Cancels the task in its block when the deadline passes and raises TimeoutError from the block.

    **Usage.**  ``async with timer.timeout(5.0) as deadline: ...``; see :meth:`SystemTimer.timeout`.

    **Implementation.**  The timeout is itself the timer task.  If the deadline has already passed, the asyncio task is
    cancelled in the loop's next turn, as with :func:`asyncio.timeout`; the cancellation does not depend on the reaper.

    **Cancellation safety.**  A CancelledError becomes a TimeoutError only if this deadline alone caused it.  Any other
    cancellation leaves the block unchanged, even if the deadline passes in the same turn of the loop.

    If the timer closes while the block runs, the deadline remains valid: from then on, the event loop enforces it.
    """

    __slots__ = ()

    def _run_soon(self) -> None:
        self._alarm = asyncio.get_running_loop().call_soon(self.run, context=Context())

    def _time_out(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            raise _timed_out(error)
        # The block responded to the cancellation with a different error, which gets the TimeoutError as its context.
        _insert_timeout(error)
        if isinstance(error, ExceptionGroup):
            for inner in error.exceptions:
                _insert_timeout(inner)


def _insert_timeout(error: BaseException) -> None:
    """Insert a TimeoutError between the error and the CancelledError during whose handling the error was raised."""
    for link in _contexts(error):
        cancelled = link.__context__
        if isinstance(cancelled, asyncio.CancelledError):
            _CONTEXT.__set__(link, _timed_out(cancelled))
            return


def _timed_out(cancelled: asyncio.CancelledError) -> TimeoutError:
    timeout = TimeoutError()
    timeout.__context__ = timeout.__cause__ = cancelled
    return timeout


def _contexts(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__context__
