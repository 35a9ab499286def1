"""The states of a timeout, and the beginning and end of its block, without an event loop.

:class:`purgatory.types.Timeout` behaves like :func:`asyncio.timeout` in each state.  The difference is where the
deadline is kept.  The event loop keeps a heap of handles: each block pushes a handle, and when the block ends, its
cancelled handle stays in the heap until the loop removes it.  Here, the timeout is itself the timer task: entering the
block links the task into a bucket, and leaving the block unlinks it.  Most blocks on a server end long before their
deadlines, so linking and unlinking make up nearly the whole cost.  The coroutines that link and unlink timeouts are in
this module because they never wait and the core is compiled.

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
from types import TracebackType
from typing import Any, Final, Self

from mypy_extensions import i64, mypyc_attr

from purgatory.errors import PurgatoryClosed

from .base_timer import BaseTimer, has_passed, now
from .event_loop import event_loop
from .task import TimerTask, set_up, unlink
from .units import time_ms, validated_time

__all__ = ["BaseTimeout", "deadline_in"]

_CREATED: Final = 0
_ACTIVE: Final = 1
_EXPIRING: Final = 2
_EXPIRED: Final = 3
_FINISHED: Final = 4
_NAMES: Final = ("created", "active", "expiring", "expired", "finished")


@mypyc_attr(allow_interpreted_subclasses=True)
class BaseTimeout(TimerTask):
    """The part of :class:`purgatory.types.Timeout` that needs no event loop.

    A subclass overrides :meth:`_run_soon` and :meth:`_time_out`, which are called when the deadline has passed.
    """

    __slots__ = ("_alarm", "_cancelling", "_state", "_task", "_timer", "_when")

    def __init__(self, timer: BaseTimer, when: float | None) -> None:
        set_up(self, 0)
        self._timer: BaseTimer = timer
        self._when: float | None = when
        self._state = _CREATED
        self._task: Any = None  # the asyncio.Task in the block
        self._cancelling: int = 0
        self._alarm: Any = None  # a handle of the loop or the clock, if the deadline is not on the wheel

    def when(self) -> float | None:
        """Return the deadline in seconds on the timer's clock (:meth:`SystemTimer.time`), or None if there is no
        deadline.
        """
        return self._when

    def expired(self) -> bool:
        """Return whether the deadline passed while the block was running."""
        return self._state == _EXPIRING or self._state == _EXPIRED

    def reschedule(self, when: float | None) -> None:
        """Move the deadline to the time ``when``, in seconds on the timer's clock; None removes it.

        If ``when`` has already passed, the task is cancelled in the loop's next turn.  Moving to a later deadline
        only changes a number.  Raises RuntimeError unless the block is running and its deadline has not passed; raises
        TypeError or ValueError unless ``when`` is a valid time.
        """
        self._timer._guard.validate()
        if self._state != _ACTIVE:
            if self._state == _CREATED:
                raise RuntimeError("the timeout has not been entered: use it with 'async with' first")
            raise RuntimeError(f"the timeout is {_NAMES[self._state]}: its deadline can no longer be moved")
        if when is not None:
            when = validated_time(when, "when")
        if self._alarm is not None:
            _cancel_alarm(self)
        if when is None:
            unlink(self)
            due = False
        else:
            due = _schedule(self, when)
        self._when = when
        if due:
            self._run_soon()

    # The block

    async def __aenter__(self) -> Self:
        loop = event_loop.running_loop()
        task = event_loop.current_task(loop)
        timer = self._timer
        if self._state != _CREATED:
            raise RuntimeError("the timeout has already been entered: make a new one for each block")
        if task is None:
            raise RuntimeError("a timeout must be used inside a task: here there is no task to cancel")
        if timer.closed:
            raise PurgatoryClosed("the timer is closed")
        when = self._when
        if timer._started_in is not loop:  # even without a deadline, because it may receive one later
            timer.start()
        self._task = task
        self._cancelling = task.cancelling()
        if when is not None and _schedule(self, when):
            self._run_soon()
        self._state = _ACTIVE
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not unlink(self) and self._alarm is not None:
            _cancel_alarm(self)
        task = self._task
        self._task = None
        if self._state == _ACTIVE:
            self._state = _FINISHED
            return
        self._state = _EXPIRED
        cancelling: int = task.uncancel()
        if cancelling <= self._cancelling and error is not None:
            self._time_out(error)

    # The deadline

    def run(self) -> None:
        """Cancel the task, because the deadline has passed."""
        self._timer._guard.validate()
        self._alarm = None
        task = self._task
        if task is not None and self._state == _ACTIVE:
            self._state = _EXPIRING
            with contextlib.suppress(RuntimeError):  # its event loop is closed, so the block never continues
                task.cancel()

    def _run_soon(self) -> None:
        """The deadline has passed: have the loop call :meth:`run` in its next turn; ``_alarm`` is the handle."""
        raise NotImplementedError

    def _time_out(self, error: BaseException) -> None:
        """Handle ``error``, which leaves the block after the deadline alone has cancelled the task."""
        raise NotImplementedError

    def _timer_closed(self) -> None:
        _set_alarm(self)

    def _wake_up(self) -> None:
        if self._timer.clock.now_ms() < self._expiration_ms:
            _set_alarm(self)  # a clock may call back early
        else:
            self.run()

    def __repr__(self) -> str:
        when = ""
        if self._state == _ACTIVE:
            when = f" when={None if self._when is None else round(self._when, 3)}"
        return f"<Timeout [{_NAMES[self._state]}]{when}>"


# These are functions because the compiler calls functions directly but looks up the methods of a class that has
# subclasses.


def _schedule(timeout: BaseTimeout, when: float) -> bool:
    """Put the deadline on the timer.  Return True if it has already passed; nothing is then scheduled."""
    timer = timeout._timer
    passed_ms: i64 = now(timer)
    when_ms: i64 = time_ms(when)
    if when_ms <= passed_ms or (when_ms == passed_ms + 1 and has_passed(timer, when)):
        unlink(timeout)
        return True
    if timer.closed:
        unlink(timeout)  # a closing timer removes its tasks in slices
        timeout._expiration_ms = when_ms
        _set_alarm(timeout)
    else:
        due_ms = timer._core.reschedule(timeout, when_ms, passed_ms)
        if due_ms < timer._next_wake_ms:
            timer._wake_earlier(due_ms)
    return False


def _set_alarm(timeout: BaseTimeout) -> None:
    """Have the clock call back at the deadline, because the timer has closed."""
    timeout._alarm = timeout._timer.clock.call_at(timeout._expiration_ms, timeout._wake_up)


def _cancel_alarm(timeout: BaseTimeout) -> None:
    timeout._alarm.cancel()
    timeout._alarm = None


def deadline_in(timer: BaseTimer, delay: Any) -> float | None:
    """Return the deadline ``delay`` seconds from now, in seconds on the timer's clock, or None if ``delay`` is None."""
    if delay is None:
        return None
    seconds = validated_time(delay, "delay")
    read = timer._read
    return seconds + (timer.clock.time() if read is None else read())
