"""The operations and timer tasks that the benchmarks use: plain interpreted Python with ``__slots__``."""

from collections.abc import Hashable

from purgatory import DelayedOperation, TimerTask

__all__ = ["NoopTask", "Request", "RequestWithDict", "noop"]


class Request(DelayedOperation[bool]):
    """A request that can complete as soon as ``ready`` is set."""

    __slots__ = ("key", "ready")

    def __init__(self, timeout: float | None, key: Hashable) -> None:
        super().__init__(timeout)
        self.key = key
        self.ready = False

    def try_complete(self) -> bool:
        return self.ready

    def on_complete(self) -> bool:
        return self.ready


class RequestWithDict(DelayedOperation[bool]):
    """The same class without ``__slots__``, so its attributes are in a dict."""

    def __init__(self, timeout: float | None, key: Hashable) -> None:
        super().__init__(timeout)
        self.key = key
        self.ready = False

    def try_complete(self) -> bool:
        return self.ready

    def on_complete(self) -> bool:
        return self.ready


class NoopTask(TimerTask):
    """A timer task that does nothing."""

    __slots__ = ()

    def run(self) -> None:
        pass


def noop() -> None:
    """A timer callback that does nothing."""
