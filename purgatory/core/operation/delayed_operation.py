"""The public class of operations, generic in the type of the result.  It stays interpreted: see :class:`Operation`."""

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .operation import Operation

__all__ = ["DelayedOperation"]

# Covariant, so that print(await park(operation, keys)) has a type: a type checker looks for a result that is an object.
# Only the library calls on_abandoned(), with a result of on_complete(), so its parameter may have this type, too.
T_co = TypeVar("T_co", covariant=True)


class DelayedOperation(Operation, Generic[T_co]):
    """A request that waits until its condition holds or its deadline passes.

    **Usage.**  Subclass it.  Override :meth:`try_complete` to return whether the condition holds, and
    :meth:`on_complete` to return the result.  Pass it to :meth:`Purgatory.park`, or to
    :meth:`Purgatory.try_complete_else_watch`; then you may await it.  Code that changes the state behind a condition
    calls :meth:`Purgatory.check_and_complete` with the key.

    **Implementation.**  The operation is its own timer task.  It holds one :class:`Watch` per key, and none if it is
    alone on its only key.

    Attributes that begin with an underscore, such as ``_state``, belong to this class: choose other names in a
    subclass.

    **Cancellation safety.**  Any number of tasks may await an operation; cancelling one of them does not affect it.  A
    task in :meth:`Purgatory.park` owns its operation: cancelling the task withdraws it.

    ``timeout``: seconds from the moment it is submitted, rounded up to a millisecond and to the timer's tick; None: no
    deadline.  Raises ValueError if negative, NaN, infinite, or above 1e15; TypeError unless it is a number or None.
    For an absolute deadline, pass None and call :meth:`extend_to` before the operation is submitted.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def __init__(self, timeout: float | None) -> None: ...

        def on_complete(self) -> T_co: ...

        def on_expiration(self) -> None: ...

        def on_abandoned(self, result: T_co) -> None: ...  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]

        def cancel(self, reason: object = None) -> bool: ...

        def extend(self, timeout: float | None) -> bool: ...

        def extend_to(self, deadline: float | None) -> bool: ...

        def result(self) -> T_co: ...

        def __await__(self) -> Generator[Any, None, T_co]: ...

    else:
        # super().__init__() reaches a compiled method faster than a compiled __init__, which is behind the type's slot:
        # 740 instructions of the 11,100 that park + check takes (callgrind).
        __init__ = Operation.DelayedOperation
        del Operation.DelayedOperation
        with contextlib.suppress(AttributeError):  # a compiled method has its name for good
            __init__.__qualname__ = "DelayedOperation.__init__"
