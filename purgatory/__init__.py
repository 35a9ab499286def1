"""The waiting room for async Python servers.

A coroutine parks a request on keys; it is answered when its condition holds, or when its deadline passes, exactly once.

The rooms, from the ground up; each floor imports only what is below it:

==========================================  =====================================================================
``compiled errors events units``            plain data and arithmetic
``histogram headroom``                      the same, and whether the stack has room for more
``timer/task timer/wheel timer/system``     tasks, buckets, wheels: a timer that is told the time
``endings operation delayed``               operations, and how they end
``watch thresholds keys watchers``          the lists in which they wait, and what may be a key
``books ledger hearing``                    counting, and telling who listens
``clock timekeeper``                        the timer with a clock at hand
``keeper checks desk room``                 the same for operations: all that happens without waiting
``rounds dump``                             checking later, and looking in
``timeouts reaper futures purgatory``       the event loop: what waits
``conditions``                              conditions that can be written down, for streams as well as here
``levels lobby``                            what is built of it: thresholds alone, futures without a purgatory
``testing pytest_plugin``                   virtual time, and fixtures for it
==========================================  =====================================================================

``journal``, ``otel`` and ``pipeline`` are rooms of their own: optional, and imported by nobody in here.
"""

from . import operation
from .clock import Clock
from .compiled import is_compiled, refuse_stale
from .delayed import DelayedOperation
from .errors import OperationCancelled, PurgatoryClosed, PurgatoryError, PurgatoryFull
from .events import Event, Observer, Outcome, Quantiles, Statistics
from .futures import DelayedFuture
from .levels import ThresholdPurgatory
from .lobby import when_all
from .purgatory import Purgatory
from .reaper import SystemTimer
from .timer.task import TimerTask, TimerTaskList
from .timer.wheel import TimingWheel

__version__ = "0.1.0"

COMPILED = is_compiled(operation.__file__)
"""Whether the core runs compiled.  The same source, interpreted, does the same more slowly."""

refuse_stale(COMPILED)

__all__ = [
    "COMPILED",
    "Clock",
    "DelayedFuture",
    "DelayedOperation",
    "Event",
    "Observer",
    "OperationCancelled",
    "Outcome",
    "Purgatory",
    "PurgatoryClosed",
    "PurgatoryError",
    "PurgatoryFull",
    "Quantiles",
    "Statistics",
    "SystemTimer",
    "ThresholdPurgatory",
    "TimerTask",
    "TimerTaskList",
    "TimingWheel",
    "when_all",
]
