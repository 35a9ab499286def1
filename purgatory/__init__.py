"""The waiting room for async Python servers.

A coroutine parks a request on keys; it is answered when its condition holds, or when its deadline passes, exactly once.

The rooms, from the ground up; each floor imports only what is below it:

==========================================  =====================================================================
``compiled errors events units histogram``  plain data and arithmetic
``timer/task timer/wheel timer/system``     tasks, buckets, wheels: a timer that is told the time
``operation delayed``                       operations
``watch thresholds watchers``               the lists in which they wait
``books ledger hearing``                    counting, and telling who listens
``clock timekeeper desk room``              the same with a clock at hand: all that happens without waiting
``rounds dump``                             checking later, and looking in
``timeouts reaper futures purgatory``       the event loop: what waits
``levels lobby``                            what is built of it: thresholds alone, futures without a purgatory
``testing``                                 virtual time
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
