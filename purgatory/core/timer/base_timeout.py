"""The states of a timeout, without an event loop.

:class:`purgatory.timeouts.Timeout` behaves like :func:`asyncio.timeout` in each state.  The difference is where the
deadline is kept.  The event loop keeps a heap of handles: each block pushes a handle, and leaves a cancelled one behind
that the loop removes later.  Here the timeout is its own timer task: entering the block links it into a bucket, and
leaving the block unlinks it.  Most blocks of a server end long before their deadline, so linking and unlinking is
nearly the whole cost.

========  ================  ==========================================================================
state     entered by        what may happen
========  ================  ==========================================================================
created   ``timeout()``     the block is entered, once
active    ``async with``    the deadline is rescheduled; the deadline passes; the block ends
expiring  the deadline      the task has been cancelled, and the CancelledError is on its way through
          passes            the block
expired   the block ends    nothing; the CancelledError leaves the block as TimeoutError, unless the
          after that        task was also cancelled for another reason
finished  the block ends    nothing
          in time
========  ================  ==========================================================================
"""

import contextlib
import math
from typing import Any, Final

from mypy_extensions import i64, mypyc_attr

from purgatory.errors import PurgatoryClosed
from purgatory.texts import safe_repr

from .base_timer import BaseTimer, ceil_now, now
from .task import TimerTask, unlink
from .units import ceil_ms

__all__ = ["BaseTimeout", "deadline_in", "validated_seconds"]

_CREATED: Final = 0
_ACTIVE: Final = 1
_EXPIRING: Final = 2
_EXPIRED: Final = 3
_FINISHED: Final = 4
_NAMES: Final = ("created", "active", "expiring", "expired", "finished")

_LONGEST: Final = 1e15  # seconds, as for every duration


@mypyc_attr(allow_interpreted_subclasses=True)
class BaseTimeout(TimerTask):
    """The synchronous part of :class:`purgatory.timeouts.Timeout`.

    The subclass passes the task in.  A method that returns True leaves one thing to the subclass, which its docstring
    names.
    """

    __slots__ = ("_alarm", "_cancelling", "_state", "_task", "_timer", "_when")

    def __init__(self, timer: BaseTimer, when: float | None) -> None:
        TimerTask.__init__(self, 0)
        self._timer: BaseTimer = timer
        self._when: float | None = when
        self._state: i64 = _CREATED
        self._task: Any = None  # the asyncio.Task in the block
        self._cancelling: int = 0
        self._alarm: Any = None  # a handle of the loop or the clock, where the deadline is not on the wheel

    def when(self) -> float | None:
        """Return the deadline in seconds of the timer's clock (see :meth:`SystemTimer.time`); None: no deadline."""
        return self._when

    def expired(self) -> bool:
        """Return whether the deadline passed while the block ran."""
        return self._state == _EXPIRING or self._state == _EXPIRED

    # The block

    def _validate_entry(self, task: Any) -> None:
        if self._state != _CREATED:
            raise RuntimeError("the timeout has already been entered: make a new one for each block")
        if task is None:
            raise RuntimeError("a timeout must be used inside a task: here there is no task to cancel")
        if self._timer.closed:
            raise PurgatoryClosed("the timer is closed")

    def _enter(self, task: Any) -> bool:
        """Begin the block of ``task``.  True: the deadline has come, and the loop has to call :meth:`run` soon."""
        self._validate_entry(task)
        self._task = task
        self._cancelling = task.cancelling()
        when = self._when
        due = when is not None and self._schedule(when)
        self._state = _ACTIVE
        return due

    def _leave(self) -> bool:
        """End the block.  True: the deadline has passed, and nothing else has cancelled the task."""
        if not unlink(self) and self._alarm is not None:
            self._cancel_alarm()
        task = self._task
        self._task = None
        if self._state == _ACTIVE:
            self._state = _FINISHED
            return False
        self._state = _EXPIRED
        cancelling: int = task.uncancel()
        return cancelling <= self._cancelling

    # The deadline

    def run(self) -> None:
        """Cancel the task: the deadline has passed."""
        self._alarm = None
        task = self._task
        if task is not None and self._state == _ACTIVE:
            self._state = _EXPIRING
            with contextlib.suppress(RuntimeError):  # its event loop is closed: the block never continues
                task.cancel()

    def _move(self, when: float | None) -> bool:
        """Move the deadline.  True: the new deadline has come, and the loop has to call :meth:`run` soon."""
        if self._state != _ACTIVE:
            if self._state == _CREATED:
                raise RuntimeError("the timeout has not been entered: use it with 'async with' first")
            raise RuntimeError(f"the timeout is {_NAMES[self._state]}: its deadline can no longer be moved")
        if when is not None:
            when = validated_seconds(when, "when")
        if self._alarm is not None:
            self._cancel_alarm()
        if when is None:
            unlink(self)
            due = False
        else:
            due = self._schedule(when)
        self._when = when
        return due

    def _schedule(self, when: float) -> bool:
        """Put the deadline on the timer.  True: it has come, and nothing was scheduled."""
        timer = self._timer
        now_ms: i64 = ceil_now(timer)
        # A time before the start of the clock counts as the start, and infinity as the latest time.
        when_ms: i64
        if 0.0 < when < _LONGEST:
            when_ms = ceil_ms(when)
        elif when > 0.0:
            when_ms = ceil_ms(_LONGEST)
        else:
            when_ms = 0
        if when_ms <= now_ms and (when_ms < now_ms or when_ms <= now(timer)):
            unlink(self)
            return True
        if timer.closed:
            unlink(self)  # a timer that is closing removes its tasks in slices
            self._expiration_ms = when_ms
            self._set_alarm()
        else:
            due_ms = timer.core.reschedule(self, when_ms, now_ms)
            if due_ms < timer.next_wake_ms:
                timer.wake_earlier(due_ms)
        return False

    def _abandon(self, error: BaseException) -> None:
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Request a wake-up at the deadline from the clock, because the timer is closed."""
        self._alarm = self._timer.clock.call_at(self._expiration_ms, self._wake_up)

    def _wake_up(self) -> None:
        if self._timer.clock.now_ms() < self._expiration_ms:
            self._set_alarm()  # a clock may call early
        else:
            self.run()

    def _cancel_alarm(self) -> None:
        self._alarm.cancel()
        self._alarm = None

    def __repr__(self) -> str:
        when = ""
        if self._state == _ACTIVE:
            when = f" when={None if self._when is None else round(self._when, 3)}"
        return f"<Timeout [{_NAMES[self._state]}]{when}>"


def deadline_in(timer: BaseTimer, delay: Any) -> float | None:
    """Return the deadline ``delay`` seconds from now in seconds of the timer's clock; None for None."""
    if delay is None:
        return None
    seconds = validated_seconds(delay, "delay")
    read = timer._read
    return seconds + (timer.clock.time() if read is None else read())


def validated_seconds(value: Any, name: str) -> float:
    """Return the number of seconds that the caller passed as ``name``; infinite and past times are valid."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds or None, got {safe_repr(value)}")
    if value != math.inf and not -_LONGEST <= value <= _LONGEST:
        raise ValueError(f"{name} must be a number of seconds, got {safe_repr(value)}")
    return float(value)
