"""Waiting until a value reaches a threshold, such as a high watermark or a commit index.

This is the ``ThresholdPurgatory`` from Kafka's raft module: there is no condition, only a key, a threshold, and a
deadline.  The class is built on a purgatory with thresholds.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextvars import Context
from types import TracebackType
from typing import Any, Self

from purgatory.core.operation.delayed_operation import DelayedOperation
from purgatory.core.operation.lifecycle import fail_externally, validated_error
from purgatory.core.operation.operation import Operation
from purgatory.core.stats.record_buffer import RecordBuffer
from purgatory.core.timer.clock import Clock
from purgatory.core.watch.thresholds import validated_value
from purgatory.events import Observer, Statistics
from purgatory.texts import safe_repr, uncopyable

from .dump import Dump
from .purgatory import Purgatory
from .system_timer import SystemTimer

__all__ = ["ThresholdPurgatory"]


class _Wait(DelayedOperation[Any]):
    """The operation of a waiting task.  :meth:`ThresholdPurgatory.maybe_complete` completes it."""

    __slots__ = ("value",)

    def __init__(self, timeout: float | None) -> None:
        super().__init__(timeout)
        self.value: Any = None

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> Any:
        return self.value


_Wait.__name__ = _Wait.__qualname__ = "wait"  # the kind in events, dumps, and journals


class ThresholdPurgatory:
    """Lets tasks wait until the value of a key reaches a threshold or a deadline passes.

    **Usage.**  ::

        async with ThresholdPurgatory("high watermark") as purgatory:
            reached = await purgatory.wait("orders-0", 1500, timeout=5.0)  # where a task waits
            purgatory.maybe_complete("orders-0", 1502)                     # where the value changes

    **Implementation.**  Each key has a heap of thresholds, so the cost of a new value is proportional to the number of
    waits that it completes.  No values are stored: a task first reads the value and, if the value is too low, waits,
    with no await in between.  If the value falls again later, for example after a truncation, nothing is undone.

    **Cancellation safety.**  Cancelling a task in :meth:`wait` withdraws its operation at once.

    The parameters are the same as those of :class:`Purgatory`.  The attribute :attr:`purgatory` is the underlying
    purgatory.
    """

    def __init__(
        self,
        name: str,
        *,
        timer: SystemTimer | None = None,
        clock: Clock | None = None,
        tick_ms: int = 1,
        wheel_size: int = 20,
        max_parked: int | None = None,
        max_parked_per_key: int | None = None,
        observers: Sequence[Observer | RecordBuffer] = (),
        expiry_jitter: float = 0.0,
    ) -> None:
        self._purgatory = Purgatory[_Wait](
            name,
            timer=timer,
            clock=clock,
            tick_ms=tick_ms,
            wheel_size=wheel_size,
            max_parked=max_parked,
            max_parked_per_key=max_parked_per_key,
            observers=observers,
            expiry_jitter=expiry_jitter,
        )
        self._queued: deque[tuple[Hashable, float]] = deque()
        # The waits that are still to end after an interrupt, and the function that ends each of them.
        self._interrupted: deque[tuple[list[Operation], Callable[[Any], bool]]] = deque()
        self._completing = False

    async def __aenter__(self) -> Self:
        await self._purgatory.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self, *, grace: float = 0.0) -> None:
        """Refuse new waits; after ``grace`` seconds, the remaining waits raise TimeoutError.  Idempotent."""
        await self._purgatory.aclose(grace=grace)

    async def wait(self, key: Hashable, threshold: float, timeout: float | None) -> Any:
        """Wait until the value of the key is at least ``threshold``; return that value.

        ``key``: any hashable object.  ``threshold``: the value to wait for, an int or a float.  ``timeout``: seconds,
        or None for no deadline.

        Return None if :meth:`complete_all` ended the wait.  Raises TimeoutError after ``timeout`` seconds, the
        exception that was passed to :meth:`fail_all`, and the exceptions of :meth:`Purgatory.park`.
        """
        waiting = _Wait(timeout)
        value = await self._purgatory.park(waiting, {key: threshold})
        if waiting.expired_by_closing:
            closed = "purgatory" if self._purgatory.closed else "timer"
            raise TimeoutError(f"{safe_repr(key)} did not reach {threshold} before the {closed} closed")
        if waiting.expired:
            limit = "" if timeout is None else f" (timeout {timeout:g} s)"  # an observer may have set a deadline
            raise TimeoutError(f"{safe_repr(key)} did not reach {threshold} in time{limit}")
        return value

    def maybe_complete(self, key: Hashable, value: float) -> int:
        """Complete, in the order of arrival, the waits whose threshold the value reaches; return the number of waits.

        ``key``: the key that has a new value.  ``value``: the value that the key has reached.

        If an observer calls this method, the value is queued and the call returns 0; the outermost call counts the
        waits that the queued value completes.

        Raises RuntimeError if called from any thread other than the event loop's, as :meth:`complete_all` and
        :meth:`fail_all` do.
        """
        self._purgatory._core.validate_thread()
        value = validated_value(value)
        hash(key)
        if self._completing:
            self._queued.append((key, value))
            return 0
        self._completing = True
        try:
            return self._complete(key, value) + self._complete_queued()
        finally:
            self._turn_over()

    def _turn_over(self) -> None:
        self._completing = False
        if self._queued:
            self._postpone()

    def _complete_queued(self) -> int:
        """Continue the interrupted calls, and run the queued ones; return how many waits they completed.

        An error raised by one call is reported, because the code that queued the call has returned; the other calls
        still run.
        """
        done = 0
        while self._interrupted:
            done += self._end_each(*self._interrupted.popleft())
        while self._queued:
            key, value = self._queued.popleft()
            try:
                done += self._complete(key, value)
            except Exception as error:
                self._purgatory._core._hooks.report_key(error, key)
        return done

    def _postpone(self) -> None:
        """Move the remaining work to the next turn of the loop, because an error or an interrupt is propagating."""
        with contextlib.suppress(RuntimeError):  # no loop is running, so the work is done in the next call
            asyncio.get_running_loop().call_soon(self._complete_postponed, context=Context())

    def _complete_postponed(self) -> None:
        self._completing = True
        try:
            self._complete_queued()
        finally:
            self._turn_over()

    def _complete(self, key: Hashable, value: float) -> int:
        def complete(waiting: _Wait) -> bool:
            waiting.value = value
            return waiting.force_complete()

        return self._end_each(self._purgatory._core.watcher_lists.reached(key, value), complete)

    def _end_each(self, waits: list[Operation], end: Callable[[Any], bool]) -> int:
        """End each of the waits; return how many this call has ended.

        If an error propagates, for example an interrupt in an observer, the other waits end in the next turn of the
        loop: no values are stored, so nothing else would complete them.  The waits themselves are kept, not the value:
        a wait that begins in the meantime may have read a newer value, which can be lower.
        """
        done = 0
        rest = iter(waits)
        for waiting in rest:
            try:
                done += end(waiting)
            except BaseException as error:
                left = list(rest)
                if not self._purgatory._core.contains(error):
                    left.insert(0, waiting)  # the interrupt may have come before the ending
                if left:
                    self._interrupted.append((left, end))
                    self._postpone()
                raise
        return done

    def complete_all(self) -> int:
        """Complete every wait, whatever its threshold; :meth:`wait` then returns None.  Return the number of waits."""
        self._purgatory._core.validate_thread()
        return self._end_each(self._purgatory._core.watcher_lists.all_operations(), _Wait.force_complete)

    def fail_all(self, error: Exception | Callable[[], Exception]) -> int:
        """Make every wait fail with the exception; return the number of waits.

        ``error``: as in :meth:`Purgatory.fail_for_key`; pass a function if each wait must have its own exception.
        """
        error = validated_error(error)
        self._purgatory._core.validate_thread()
        waits = self._purgatory._core.watcher_lists.all_operations()
        return self._end_each(waits, lambda waiting: fail_externally(waiting, error))

    @property
    def num_waiting(self) -> int:
        """The number of waiting tasks.  Cost: O(1)."""
        return len(self._purgatory)

    def __len__(self) -> int:
        return len(self._purgatory)

    def __bool__(self) -> bool:
        return True

    @property
    def purgatory(self) -> Purgatory[Any]:
        """The underlying purgatory, for its gauges.  Complete waits only through this class."""
        return self._purgatory

    def statistics(self) -> Statistics:
        """See :meth:`Purgatory.statistics`."""
        return self._purgatory.statistics()

    def dump(self, limit: int | None = 1000) -> Dump:
        """See :meth:`Purgatory.dump`."""
        return self._purgatory.dump(limit)

    def __reduce__(self) -> Any:
        raise uncopyable(self, "its tasks wait in one purgatory")

    def __repr__(self) -> str:
        state = "closed" if self._purgatory.closed else "open"
        keys = self._purgatory._core.watcher_lists.num_keys()
        return f"<ThresholdPurgatory {self._purgatory.name!r} {state} num_waiting={self.num_waiting} keys={keys}>"
