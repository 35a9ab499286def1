"""The types that appear in signatures, for annotations and for your own classes.

``Clock``, ``Alarm``  subclass them to provide a source of time; ``MonotonicClock`` is the default
``Timeout``           what ``SystemTimer.timeout()`` and ``timeout_at()`` return
``Changes``           what ``Purgatory.changes()`` returns
``Dump``              what ``Purgatory.dump()`` returns
``RecordBuffer``      an observer that receives records instead of events
``TaskNames``         an observer that names tasks after what they wait for
``AnyFuture``         what ``when_all()`` accepts: an asyncio future or task
"""

from .aio.changes import Changes
from .aio.dump import Dump
from .aio.monotonic_clock import MonotonicClock
from .aio.task_names import TaskNames
from .aio.timeout import Timeout
from .aio.when_all import AnyFuture
from .core.stats.record_buffer import RecordBuffer
from .core.timer.clock import Alarm, Clock
from .texts import names_of

__all__ = ["Alarm", "AnyFuture", "Changes", "Clock", "Dump", "MonotonicClock", "RecordBuffer", "TaskNames", "Timeout"]


def __dir__() -> list[str]:
    return names_of(globals())
