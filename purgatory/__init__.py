"""Hold a request until its data is ready: coroutines park operations on keys, and each operation is answered exactly
once.

An operation completes when its condition holds, or expires when its deadline passes.

``core``      synchronous; the time is an argument; mypyc compiles this folder
``aio``       the purgatory and the timer on an asyncio event loop
``testing``   virtual time, for tests

``asgi``, ``relay``, ``otel``, ``journal``, ``pipeline``, and ``conditions`` are optional parts.  Nothing in ``core`` or
``aio`` imports them.
"""

from .aio.default_purgatory import when_all
from .aio.purgatory import Purgatory
from .aio.system_timer import SystemTimer
from .aio.threshold_purgatory import ThresholdPurgatory
from .aio.when_all import DelayedFuture
from .compiled import is_compiled, refuse_stale
from .core.operation import operation as _operation
from .core.operation.delayed_operation import DelayedOperation
from .core.timer.clock import Clock
from .core.timer.task import TimerTask
from .core.timer.task_list import TimerTaskList
from .core.timer.wheel import TimingWheel
from .errors import OperationCancelled, PurgatoryClosed, PurgatoryError, PurgatoryFull
from .events import Event, Observer, Outcome, Quantiles, Statistics
from .installation import require_sole_package
from .texts import names_of as _names_of

__version__ = "0.1.0"

COMPILED = is_compiled(_operation.__file__)
"""Whether the core is compiled.  If it is not, the same source runs in the interpreter, more slowly.

If it is, Python does not refuse to instantiate a subclass of an operation or timer task that lacks a method marked with
``abc.abstractmethod``.
"""

refuse_stale(COMPILED)
require_sole_package()

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


def __dir__() -> list[str]:
    return _names_of(globals())
