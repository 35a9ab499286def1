"""The operations and tasks that benchmarks park and time: plain interpreted Python with ``__slots__``."""

from collections.abc import Hashable

from purgatory import DelayedOperation, TimerTask

__all__ = ["Nothing", "Request", "RequestWithDict", "nothing"]


class Request(DelayedOperation[bool]):
    """A request that completes once ``ready`` is set."""

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
    """The same without ``__slots__``: its attributes are in a dict."""

    def __init__(self, timeout: float | None, key: Hashable) -> None:
        super().__init__(timeout)
        self.key = key
        self.ready = False

    def try_complete(self) -> bool:
        return self.ready

    def on_complete(self) -> bool:
        return self.ready


class Nothing(TimerTask):
    """A timer task that does nothing."""

    __slots__ = ()

    def run(self) -> None:
        pass


def nothing() -> None:
    """A timer callback that does nothing."""
