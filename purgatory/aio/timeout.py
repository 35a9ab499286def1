"""``async with timer.timeout()``: the deadline of a block of code.  Its states are in ``core.timer.base_timeout``."""

import asyncio
from collections.abc import Iterator
from contextvars import Context
from types import TracebackType
from typing import TYPE_CHECKING, Self

from purgatory.core.timer.base_timeout import BaseTimeout

if TYPE_CHECKING:
    from .system_timer import SystemTimer

__all__ = ["Timeout"]


class Timeout(BaseTimeout):
    """Cancels the task in its block when the deadline has passed, and raises TimeoutError from the block.

    **Usage.**  ``async with timer.timeout(5.0) as deadline: ...``; see :meth:`SystemTimer.timeout`.

    **Implementation.**  The timeout is its own timer task.  If the deadline has already come, the loop cancels the task
    in its next turn, as with :func:`asyncio.timeout`; that does not depend on the reaper.

    **Cancellation safety.**  Only a CancelledError that this deadline alone caused becomes a TimeoutError.  Any other
    cancellation leaves the block unchanged, even if the deadline passes in the same turn of the loop.

    If the timer closes while the block runs, the deadline remains valid: the event loop keeps it from then on.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        _timer: SystemTimer

    def reschedule(self, when: float | None) -> None:
        """Move the deadline to ``when`` seconds of the timer's clock; None removes it.

        If ``when`` has already come, the loop cancels the task in its next turn.  Moving to a later deadline only
        changes a number.  RuntimeError unless the block runs and its deadline has not passed; TypeError or ValueError
        unless ``when`` is a time.
        """
        if self._move(when):
            self._run_soon()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        timer = self._timer
        if (loop is not timer.loop or timer._reaper.task is None) and self._when is not None:
            self._validate_entry(task)
            timer.start()
        if self._enter(task):
            self._run_soon()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._leave() or error is None:
            return
        if isinstance(error, asyncio.CancelledError):
            raise _timed_out(error)
        # The block answered the cancellation with an error of its own, which gets the TimeoutError as its context.
        _insert_timeout(error)
        if isinstance(error, ExceptionGroup):
            for inner in error.exceptions:
                _insert_timeout(inner)

    def _run_soon(self) -> None:
        self._alarm = asyncio.get_running_loop().call_soon(self.run, context=Context())


def _insert_timeout(error: BaseException) -> None:
    """Put a TimeoutError between the error and the CancelledError in whose handling it was raised."""
    for link in _contexts(error):
        cancelled = link.__context__
        if isinstance(cancelled, asyncio.CancelledError):
            link.__context__ = _timed_out(cancelled)
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
