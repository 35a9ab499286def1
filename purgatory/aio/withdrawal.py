"""Withdrawing an operation that no task waits for any longer, even if its class overrides ``cancel()``."""

from typing import Any

from purgatory.core.operation.lifecycle import PENDING
from purgatory.core.operation.operation import Operation
from purgatory.core.timer.coroutines import is_coroutine, refusal
from purgatory.texts import type_name

__all__ = ["withdraw"]


def withdraw(operation: Operation) -> None:
    """Call ``cancel()`` on a pending operation; if the operation is still pending afterward, end it as CANCELLED.

    An override may raise, take other parameters, or not call ``super().cancel()``.  The operation ends in any case, and
    then the override's exception propagates.
    """
    hooked: Any = operation  # an override may return anything
    try:
        returned: Any = hooked.cancel()
        if is_coroutine(returned):
            raise refusal(returned, f"{type_name(operation)}.cancel() must return whether it ended the operation")
    finally:
        if operation._state == PENDING:
            Operation.cancel(operation)
