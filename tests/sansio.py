"""A purgatory without an event loop, for tests that run through thousands of moments."""

from collections.abc import Callable
from typing import Any

from purgatory import DelayedOperation, TimerTask
from purgatory.clock import Alarm, Clock
from purgatory.room import Room
from purgatory.timekeeper import Timekeeper

__all__ = ["HandClock", "QuietRoom", "make_room", "pass_time"]


class HandClock(Clock):
    """A clock whose time is set by hand."""

    def __init__(self, start_ms: int = 1_000_000) -> None:
        self.ms = start_ms

    def now_ms(self) -> int:
        return self.ms

    def ceil_ms(self) -> int:
        return self.ms

    def call_at(self, when_ms: int, callback: Callable[[], object]) -> Alarm:
        raise NotImplementedError("there is no event loop")


class QuietRoom(Room):
    """Writes down what would be reported."""

    def __init__(self, *args: Any, **arguments: Any) -> None:
        super().__init__(*args, **arguments)
        self.reported: list[BaseException] = []
        self.detached: list[object] = []

    def report(self, error: BaseException, operation: DelayedOperation[Any]) -> None:
        self.reported.append(error)

    def report_observer(self, error: BaseException, observer: object) -> None:
        self.detached.append(observer)


class _Timer(Timekeeper):
    def _report(self, error: BaseException, task: TimerTask) -> None:
        raise AssertionError(f"{task!r} raised") from error


def make_room(clock: HandClock, *, tick_ms: int = 1, wheel_size: int = 20, **arguments: Any) -> QuietRoom:
    """A room on a timer of its own."""
    return QuietRoom("test", _Timer(tick_ms, wheel_size, clock), **arguments)


def pass_time(clock: HandClock, room: Room, milliseconds: int) -> None:
    """Let the time pass and run what falls due, each at its moment."""
    timer = room._desk.timer
    until_ms = clock.ms + milliseconds
    while (due_ms := timer.next_expiration_ms) is not None and due_ms <= until_ms:
        clock.ms = max(clock.ms, due_ms)
        timer.expire_due(clock.ms)
    clock.ms = until_ms
