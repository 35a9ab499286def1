"""Waiting until a value reaches a threshold, such as a high watermark or a commit index.

This is the ``ThresholdPurgatory`` of Kafka's raft module: no condition, only a key, a threshold, and a deadline.  It is
built on a purgatory with thresholds.
"""

from collections import deque
from collections.abc import Hashable, Sequence
from types import TracebackType
from typing import Any, Self

from purgatory.core.operation.delayed_operation import DelayedOperation
from purgatory.core.operation.lifecycle import fail_externally
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
    """A waiting task.  :meth:`ThresholdPurgatory.maybe_complete` completes it."""

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
    """Tasks wait until the value of a key reaches their threshold, or their deadline passes.

    **Usage.**  ::

        async with ThresholdPurgatory("high watermark") as purgatory:
            reached = await purgatory.wait("orders-0", 1500, timeout=5.0)  # where a task waits
            purgatory.maybe_complete("orders-0", 1502)                     # where the value changes

    **Implementation.**  Each key has a heap of thresholds, so the cost of a new value is proportional to the number of
    waits that it completes.  No values are stored: a task reads the value first, with no await in between, and waits if
    it is too low.  A value that falls again, as after a truncation, undoes nothing.

    **Cancellation safety.**  Cancelling a task in :meth:`wait` withdraws it at once.

    The parameters are the same as for :class:`Purgatory`, without ``jitter_source``; the attribute :attr:`purgatory` is
    the underlying purgatory.
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
        self._completing = False

    async def __aenter__(self) -> Self:
        await self._purgatory.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self, *, grace: float = 0.0) -> None:
        """Refuse new waits; after ``grace`` seconds the remaining tasks get TimeoutError.  Idempotent."""
        await self._purgatory.aclose(grace=grace)

    async def wait(self, key: Hashable, threshold: float, timeout: float | None) -> Any:
        """Wait until the value of the key is at least ``threshold``; return that value.

        ``key``: any hashable object.  ``threshold``: the value to wait for, an int or a float.  ``timeout``: seconds,
        or None for no deadline.

        Return None if :meth:`complete_all` ended the wait.  Raises TimeoutError after ``timeout`` seconds, the
        exception given to :meth:`fail_all`, and the exceptions of :meth:`Purgatory.park`.
        """
        waiting = _Wait(timeout)
        value = await self._purgatory.park(waiting, {key: threshold})
        if waiting.expired_by_closing:
            raise TimeoutError(f"{safe_repr(key)} did not reach {threshold} before the purgatory closed")
        if waiting.expired:
            raise TimeoutError(f"{safe_repr(key)} did not reach {threshold} in time ({timeout} s)")
        return value

    def maybe_complete(self, key: Hashable, value: float) -> int:
        """Complete the waits whose threshold the value reaches, in the order of arrival; return how many.

        ``key``: the key that has a new value.  ``value``: the value that it has reached.

        If an observer makes the call, it is queued and returns 0; the outermost call counts what it completes.

        Raises RuntimeError in a thread other than the event loop's, as :meth:`complete_all` and :meth:`fail_all` do.
        """
        self._purgatory._core.validate_thread()
        value = validated_value(value)
        hash(key)
        self._queued.append((key, value))
        if self._completing:
            return 0
        self._completing = True
        done = 0
        try:
            while self._queued:
                done += self._complete(*self._queued.popleft())
        finally:
            self._completing = False
        return done

    def _complete(self, key: Hashable, value: float) -> int:
        done = 0
        for waiting in self._purgatory._core.watcher_lists.reached(key, value):
            assert isinstance(waiting, _Wait)
            waiting.value = value
            done += waiting.force_complete()
        return done

    def complete_all(self) -> int:
        """Complete every wait, whatever its threshold; :meth:`wait` returns None.  Return how many."""
        self._purgatory._core.validate_thread()
        return sum([waiting.force_complete() for waiting in self._purgatory._core.watcher_lists.all_operations()])

    def fail_all(self, error: Exception) -> int:
        """Fail every wait with the exception.  Return how many."""
        if not isinstance(error, Exception):
            raise TypeError(f"error must be an instance of Exception, got {safe_repr(error)}")
        self._purgatory._core.validate_thread()
        return sum(
            [fail_externally(waiting, error) for waiting in self._purgatory._core.watcher_lists.all_operations()]
        )

    @property
    def num_waiting(self) -> int:
        """The number of waiting tasks.  O(1)."""
        return len(self._purgatory)

    def __len__(self) -> int:
        return len(self._purgatory)

    @property
    def purgatory(self) -> Purgatory[Any]:
        """The underlying purgatory, for its gauges.  Use only this class to complete waits."""
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
