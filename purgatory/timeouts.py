"""A deadline on a block of code: ``asyncio.timeout`` on the wheel.  Floor 4.

It behaves as :func:`asyncio.timeout` does, state by state; what differs is where the deadline stands.  The event loop
keeps a heap of handles: each block pushes one and leaves a cancelled one behind, to be swept later.  Here the block
is its own timer task: entering it links it into a bucket, leaving it unlinks it, and nothing is left behind.  Most
blocks of a server end long before their deadline, so this is nearly all of the cost.

========  ================  =========================================================================
state     how it gets here  what may happen
========  ================  =========================================================================
created   ``timeout()``     it is entered, once
active    ``async with``    it is rescheduled; its deadline passes; the block ends
expiring  the deadline      the task has been cancelled, and the CancelledError is on its way
          has passed        through the block
expired   the block ended   nothing; the CancelledError left the block as TimeoutError, unless somebody
          after that        else cancelled the task as well
finished  the block ended   nothing
          in time
========  ================  =========================================================================
"""

import asyncio
import math
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from .errors import PurgatoryClosed
from .timer.task import TimerTask
from .units import ceil_ms

if TYPE_CHECKING:
    from .reaper import SystemTimer

__all__ = ["Timeout", "checked"]

_CREATED: Final = 0
_ACTIVE: Final = 1
_EXPIRING: Final = 2
_EXPIRED: Final = 3
_FINISHED: Final = 4
_NAMES: Final = ("created", "active", "expiring", "expired", "finished")

_LONGEST: Final = 1e15  # seconds, as everywhere in this house


class Timeout(TimerTask):
    """Cancels the task in its block when the deadline has passed, and turns that into TimeoutError.

    **Usage.**  ``async with timer.timeout(5.0) as deadline: ...``; see :meth:`SystemTimer.timeout`.

    **Implementation.**  It is its own timer task.  A deadline that has come already cancels the task in the next turn
    of the loop, as asyncio's does, and does not wait for the reaper.

    **Cancellation safety.**  A cancellation from outside leaves the block as it is, also when the deadline passes in
    the same turn of the loop: only a CancelledError that this deadline alone has caused becomes a TimeoutError.

    If the timer closes while the block runs, the deadline stands: the event loop keeps it from then on.
    """

    __slots__ = ("_alarm", "_cancelling", "_state", "_task", "_timer", "_when")

    def __init__(self, timer: "SystemTimer", when: float | None) -> None:
        TimerTask.__init__(self, 0)  # not super(), which takes a tenth of all that a block costs
        self._timer = timer
        self._when = when
        self._state = _CREATED
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._alarm: Any = None  # a handle of the loop or the clock, where the deadline is not on the wheel

    def when(self) -> float | None:
        """The deadline in seconds of the timer's clock (see :meth:`SystemTimer.time`), or None: there is none."""
        return self._when

    def expired(self) -> bool:
        """Whether the deadline has passed while the block ran."""
        return self._state == _EXPIRING or self._state == _EXPIRED

    def reschedule(self, when: float | None) -> None:
        """Move the deadline to ``when`` seconds of the timer's clock; None takes it away.

        One that has come already cancels the task in the next turn of the loop.  A later one only changes a number.
        RuntimeError unless the block runs and its deadline has not passed; TypeError or ValueError for what is no time.
        """
        if self._state != _ACTIVE:
            if self._state == _CREATED:
                raise RuntimeError("the timeout has not been entered: use it with 'async with' first")
            raise RuntimeError(f"the timeout is {_NAMES[self._state]}: its deadline cannot be moved any more")
        if when is not None:
            checked(when, "when")
        if self._alarm is not None:
            self._silence()
        if when is None:
            self.cancel()
        else:
            self._schedule(when)
        self._when = when

    # The block

    async def __aenter__(self) -> Self:
        if self._state != _CREATED:
            raise RuntimeError("the timeout has already been entered: it serves one block, make a new one")
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a timeout is used inside a task: there is nothing here that it could cancel")
        timer = self._timer
        if timer.closed:
            raise PurgatoryClosed("the timer is closed")
        self._task = task
        self._cancelling = task.cancelling()
        when = self._when
        if when is not None:
            if timer._reaper is None:
                timer.start()
            self._schedule(when)
        self._state = _ACTIVE
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        bucket = self._list
        if bucket is not None:
            bucket.remove(self)
        elif self._alarm is not None:
            self._silence()
        task = self._task
        self._task = None
        if self._state == _ACTIVE:
            self._state = _FINISHED
            return
        self._state = _EXPIRED
        assert task is not None
        if task.uncancel() > self._cancelling or error is None:
            return  # somebody else wants the task to end, too
        if isinstance(error, asyncio.CancelledError):
            raise _timed_out(error)
        # The block answered the cancellation with an error of its own: that one tells what it was raised in view of.
        _name_the_cause(error)
        if isinstance(error, ExceptionGroup):
            for inner in error.exceptions:
                _name_the_cause(inner)

    # The deadline

    def run(self) -> None:
        """The deadline has passed: the timer calls this."""
        self._alarm = None
        task = self._task
        if task is not None and self._state == _ACTIVE:
            self._state = _EXPIRING
            task.cancel()

    def _abandon(self, error: BaseException) -> None:
        self._ask_clock()

    def _schedule(self, when: float) -> None:
        timer = self._timer
        now_ms = timer.clock.ceil_ms()
        # Before the clock's beginning is as good as at it, and infinity as good as the longest time there is.
        when_ms = ceil_ms(when) if 0.0 < when < _LONGEST else ceil_ms(_LONGEST) if when > 0.0 else 0
        if when_ms <= now_ms and (when_ms < now_ms or when_ms <= timer.clock.now_ms()):
            self.cancel()
            self._alarm = asyncio.get_running_loop().call_soon(self.run)
        elif timer.closed:
            self._expiration_ms = when_ms
            self._ask_clock()
        elif self._list is None or timer.heart.rounded_ms(when_ms, now_ms) < self._expiration_ms:
            due_ms = timer.heart.schedule(self, when_ms, now_ms)
            if due_ms < timer.alarm_ms:
                timer.earlier(due_ms)
        else:
            self._expiration_ms = timer.heart.rounded_ms(when_ms, now_ms)  # the bucket finds out when it comes up

    def _ask_clock(self) -> None:
        """The timer is closed: have the clock ring at the deadline."""
        self._alarm = self._timer.clock.call_at(self._expiration_ms, self._rung)

    def _rung(self) -> None:
        if self._timer.clock.now_ms() < self._expiration_ms:
            self._ask_clock()  # a clock may ring early
        else:
            self.run()

    def _silence(self) -> None:
        self._alarm.cancel()
        self._alarm = None

    def __repr__(self) -> str:
        when = ""
        if self._state == _ACTIVE:
            when = f" when={None if self._when is None else round(self._when, 3)}"
        return f"<Timeout [{_NAMES[self._state]}]{when}>"


def checked(value: Any, name: str) -> float:
    """The number of seconds that a caller gave as ``name``; infinity is one, and so is a time in the past."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number of seconds or None, not {value!r}")
    if value != math.inf and not -_LONGEST <= value <= _LONGEST:
        raise ValueError(f"{name} is a number of seconds, not {value!r}")
    seconds: float = value
    return seconds


def _name_the_cause(error: BaseException) -> None:
    """Put a TimeoutError between the error and the CancelledError in view of which it was raised."""
    for link in _contexts(error):
        cancelled = link.__context__
        if isinstance(cancelled, asyncio.CancelledError):
            link.__context__ = _timed_out(cancelled)
            return


def _timed_out(cancelled: asyncio.CancelledError) -> TimeoutError:
    # Not "raise ... from": compiled code raises, and forgets from what.
    timeout = TimeoutError()
    timeout.__context__ = timeout.__cause__ = cancelled
    return timeout


def _contexts(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__context__
