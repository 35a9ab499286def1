"""The hooks that the core calls on its owner.  All of these calls are rare."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from .operation.operation import Operation

__all__ = ["Hooks"]


@mypyc_attr(allow_interpreted_subclasses=True)
class Hooks:
    """What the owner of a purgatory provides: error reports, and the calls that need an event loop.

    Without an event loop, use this class itself: it raises the errors that a subclass would report.
    """

    __slots__ = ()

    def report(self, error: BaseException, operation: Operation) -> None:
        """Report the error of an operation that failed while no task awaited it."""
        raise error

    def report_observer(self, error: BaseException, observer: object) -> None:
        """Report an observer that raised and was detached."""
        raise error

    def report_key(self, error: BaseException, key: Hashable) -> None:
        """Report a key that raised when its queued check began."""
        raise error

    def start_reaper(self) -> None:
        """Called before an operation is submitted for a task, if no task of a reaper is running."""

    def check_later(self, key: Hashable, value: Any, limit: int | None) -> None:
        """Run a queued check in the next turn of the loop, because an interrupt kept it from finishing in this one."""

    def emptied(self) -> None:
        """Called when the last operation leaves a purgatory that is closing."""
