"""A purgatory without an event loop, for the tests of the core."""

from typing import Any

from purgatory import DelayedOperation, TimerTask
from purgatory.core.hooks import Hooks
from purgatory.core.purgatory import BasePurgatory
from purgatory.core.timer.base_timer import BaseTimer
from purgatory.testing import ManualClock

__all__ = ["QuietPurgatory", "RecordingHooks", "make_purgatory", "pass_time"]


class RecordingHooks(Hooks):
    """Keeps the errors that would be reported."""

    def __init__(self) -> None:
        self.reported: list[BaseException] = []
        self.detached: list[object] = []

    def report(self, error: BaseException, operation: DelayedOperation[Any]) -> None:
        self.reported.append(error)

    def report_key(self, error: BaseException, key: object) -> None:
        self.reported.append(error)

    def report_observer(self, error: BaseException, observer: object) -> None:
        self.detached.append(observer)


class QuietPurgatory(BasePurgatory):
    """A purgatory without an event loop; its hooks record."""

    def __init__(self, *args: Any, hooks: RecordingHooks | None = None, **arguments: Any) -> None:
        self.hooks = RecordingHooks() if hooks is None else hooks
        super().__init__(*args, hooks=self.hooks, **arguments)

    @property
    def reported(self) -> list[BaseException]:
        """The errors of operations and keys that were reported."""
        return self.hooks.reported

    @property
    def detached(self) -> list[object]:
        """The observers that were detached."""
        return self.hooks.detached


class _Timer(BaseTimer):
    def _report(self, error: BaseException, task: TimerTask) -> None:
        raise AssertionError(f"{task!r} raised") from error


def make_purgatory(
    clock: ManualClock,
    *,
    name: str = "test",
    tick_ms: int = 1,
    wheel_size: int = 20,
    **arguments: Any,
) -> QuietPurgatory:
    """Return a purgatory with its own timer."""
    return QuietPurgatory(name, _Timer(tick_ms, wheel_size, clock), **arguments)


def pass_time(clock: ManualClock, room: BasePurgatory, milliseconds: int) -> None:
    """Let the time pass and run what falls due, each at its moment."""
    timer = room._core.timer
    until_ms = clock.time_ms + milliseconds
    while (due_ms := timer.next_expiration_ms) is not None and due_ms <= until_ms:
        clock.time_ms = max(clock.time_ms, due_ms)
        timer.expire_due(clock.time_ms)
    clock.time_ms = until_ms
