"""Waiting for a value to reach a threshold: high watermarks, commit indexes.  Floor 5.

The form that Kafka's raft module gave it (``ThresholdPurgatory``): no condition of one's own, only a key, a number to
be reached, and a deadline.  Beneath it is a purgatory with thresholds.
"""

from collections import deque
from collections.abc import Hashable, Sequence
from types import TracebackType
from typing import Any, Self

from .clock import Clock
from .delayed import DelayedOperation
from .dump import Dump
from .endings import refuse
from .events import Observer, Statistics
from .ledger import Ledger
from .purgatory import Purgatory
from .reaper import SystemTimer
from .thresholds import check_value

__all__ = ["ThresholdPurgatory"]


class _Wait(DelayedOperation[Any]):
    """One who waits.  Whether the threshold is reached is decided from outside."""

    __slots__ = ("value",)

    def __init__(self, timeout: float | None) -> None:
        super().__init__(timeout)
        self.value: Any = None

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> Any:
        return self.value


class ThresholdPurgatory:
    """Tasks wait until the value of a key reaches their threshold, or their deadline passes.

    **Usage.**  ::

        async with ThresholdPurgatory("high watermark") as purgatory:
            reached = await purgatory.wait("orders-0", 1500, timeout=5.0)  # wherever somebody waits
            purgatory.maybe_complete("orders-0", 1502)                     # wherever the value changes

    **Implementation.**  A heap by threshold for each key, so telling a value costs as much as it completes.  It keeps
    no values: who waits looks at the value first, with no await in between, and waits if it is too low.  A value that
    falls again, as after a truncation, takes back nothing.

    **Cancellation safety.**  Cancelling a task in :meth:`wait` withdraws it at once.

    The parameters are those of :class:`Purgatory`, which is at hand as :attr:`purgatory`.
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
        observers: Sequence[Observer | Ledger] = (),
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
        )
        self._told: deque[tuple[Hashable, float]] = deque()
        self._telling = False

    async def __aenter__(self) -> Self:
        await self._purgatory.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self, *, grace: float = 0.0) -> None:
        """Close it: nobody new may wait, and whoever waits after ``grace`` seconds gets TimeoutError.  Idempotent."""
        await self._purgatory.aclose(grace=grace)

    async def wait(self, key: Hashable, threshold: float, timeout: float | None) -> Any:
        """Wait until the value of the key is at least ``threshold``; return the value that was told.

        None is returned to those whom :meth:`complete_all` lets go.  Raises TimeoutError after ``timeout`` seconds,
        what :meth:`fail_all` was given, and what :meth:`Purgatory.park` raises.
        """
        waiting = _Wait(timeout)
        value = await self._purgatory.park(waiting, {key: threshold})
        if waiting.expired:
            raise TimeoutError(f"{key!r} did not reach {threshold} in time ({timeout} s)")
        return value

    def maybe_complete(self, key: Hashable, value: float) -> int:
        """The key has this value now: complete those whose threshold is reached, first come first, and say how many.

        From inside an observer it is queued, returns 0, and is counted by the outermost call.
        """
        check_value(value)
        hash(key)
        self._told.append((key, value))
        if self._telling:
            return 0
        self._telling = True
        done = 0
        try:
            while self._told:
                done += self._complete(*self._told.popleft())
        finally:
            self._telling = False
        return done

    def _complete(self, key: Hashable, value: float) -> int:
        done = 0
        for waiting in self._purgatory._desk.watchers.reached(key, value):
            assert isinstance(waiting, _Wait)
            waiting.value = value
            done += waiting.force_complete()
        return done

    def complete_all(self) -> int:
        """Let everyone go, whatever they wait for; :meth:`wait` returns None to them.  Say how many."""
        return sum([waiting.force_complete() for waiting in self._purgatory._desk.watchers.everyone()])

    def fail_all(self, error: Exception) -> int:
        """Have everyone's :meth:`wait` raise the exception.  Say how many."""
        if not isinstance(error, Exception):
            raise TypeError(f"error is an exception (an instance), not {error!r}")
        return sum([refuse(waiting, error) for waiting in self._purgatory._desk.watchers.everyone()])

    @property
    def num_waiting(self) -> int:
        """How many wait.  O(1)."""
        return len(self._purgatory)

    def __len__(self) -> int:
        return len(self._purgatory)

    @property
    def purgatory(self) -> Purgatory[Any]:
        """The purgatory beneath, for its gauges.  What waits in it is completed here, not there."""
        return self._purgatory

    def statistics(self) -> Statistics:
        """See :meth:`Purgatory.statistics`."""
        return self._purgatory.statistics()

    def dump(self, limit: int | None = 1000) -> Dump:
        """See :meth:`Purgatory.dump`."""
        return self._purgatory.dump(limit)

    def __repr__(self) -> str:
        state = "closed" if self._purgatory.closed else "open"
        keys = self._purgatory._desk.watchers.num_keys()
        return f"<ThresholdPurgatory {self._purgatory.name!r} {state} num_waiting={self.num_waiting} keys={keys}>"
