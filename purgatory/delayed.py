"""The delayed operation as people write it.  Floor 3."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .operation import Operation

__all__ = ["DelayedOperation"]

T = TypeVar("T")


class DelayedOperation(Operation, Generic[T]):
    """A request that waits until its condition holds or its deadline passes.

    **Usage.**  Subclass it; override :meth:`try_complete` to say whether the condition holds, and :meth:`on_complete`
    to make the result.  Hand it to :meth:`Purgatory.park`, or to :meth:`Purgatory.try_complete_else_watch` and await it
    or not.  Whoever changes the state that a condition looks at calls :meth:`Purgatory.check_and_complete` with the
    key.

    **Implementation.**  The operation is its own timer entry.  It holds one :class:`Watch` per key.

    **Cancellation safety.**  Any number of tasks may await an operation, and cancelling one of them does not touch it.
    A task in :meth:`Purgatory.park` owns its operation: cancelling the task withdraws it.

    ``timeout``: seconds from the moment it is handed over, rounded up to a millisecond and to the timer's tick; None:
    no deadline.  ValueError if negative, NaN or infinite; TypeError if it is no number.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def __init__(self, timeout: float | None) -> None: ...

        def on_complete(self) -> T: ...

        def extend(self, timeout: float | None) -> bool: ...

        def result(self) -> T: ...

        def __await__(self) -> Generator[Any, None, T]: ...
