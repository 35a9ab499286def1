"""Operations and tasks that tests are made of."""

from collections.abc import Callable
from typing import Any

from purgatory import DelayedOperation, Purgatory, TimerTask

__all__ = ["Boom", "Op", "Recorder", "Task", "check"]


class Boom(Exception):
    """Raised on purpose."""


def nothing(_: Any) -> None:
    """Do nothing."""


class Op(DelayedOperation[Any]):
    """An operation whose condition is a flag, and whose callbacks can be given.

    ``calls`` tells which of its methods ran, in order.
    """

    def __init__(
        self,
        timeout: float | None = None,
        *,
        name: str = "",
        ready: bool = False,
        on_try: Callable[["Op"], Any] = nothing,
        on_complete: Callable[["Op"], Any] = nothing,
        on_expiration: Callable[["Op"], Any] = nothing,
    ) -> None:
        super().__init__(timeout)
        self.name = name
        self.ready = ready
        self.calls: list[str] = []
        self._on_try = on_try
        self._on_complete = on_complete
        self._on_expiration = on_expiration

    def try_complete(self) -> bool:
        self.calls.append("try")
        self._on_try(self)
        return self.ready

    def on_complete(self) -> Any:
        self.calls.append("complete")
        value = self._on_complete(self)
        return self.name if value is None else value

    def on_expiration(self) -> None:
        self.calls.append("expire")
        self._on_expiration(self)

    @property
    def completions(self) -> int:
        """How often ``on_complete`` ran."""
        return self.calls.count("complete")


class Task(TimerTask):
    """A timer task that writes its name into a log."""

    def __init__(self, delay_ms: int, log: list[Any], name: Any = None) -> None:
        super().__init__(delay_ms)
        self.log = log
        self.name = delay_ms if name is None else name

    def run(self) -> None:
        self.log.append(self.name)


class Recorder:
    """An observer that writes down every event as (method, operation's name)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.seen: list[Any] = []

    def _note(self, method: str, event: Any) -> None:
        self.events.append((method, event.operation.name))
        self.seen.append(event)

    def parked(self, event: Any) -> None:
        self._note("parked", event)

    def completed(self, event: Any) -> None:
        self._note("completed", event)

    def expired(self, event: Any) -> None:
        self._note("expired", event)

    def cancelled(self, event: Any) -> None:
        self._note("cancelled", event)

    def failed(self, event: Any) -> None:
        self._note("failed", event)


def check(purgatory: Purgatory[Any], **expected: int) -> None:
    """Assert the invariants, and the named fields of the statistics."""
    purgatory._check()
    statistics = purgatory.statistics()
    found = {name: getattr(statistics, name) for name in expected}
    assert found == expected
