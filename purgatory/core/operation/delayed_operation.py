"""The public class of operations, generic in the result type.  It stays interpreted; see :class:`Operation`."""

import contextlib
import inspect
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .operation import Operation

__all__ = ["DelayedOperation"]

# This is covariant, so that print(await park(operation, keys)) type-checks: the type checker looks for a result that is
# an object.  Only the library calls on_abandoned(), with a result of on_complete(), so its parameter may also have this
# type.
T_co = TypeVar("T_co", covariant=True)


class _Signature:
    """The signature of the classes of operations that do not have a constructor of their own.

    CPython 3.13 and later raise TypeError for a class whose ``__init__`` is a compiled method.
    """

    __slots__ = ()

    def __get__(self, operation: object, cls: type[object]) -> inspect.Signature | None:
        if operation is not None:
            raise AttributeError("__signature__")  # the operation may have a method __call__
        constructor: object = cls.__init__
        inherited = constructor is DelayedOperation.__init__ and cls.__new__ is DelayedOperation.__new__
        if not inherited or type(cls).__call__ is not type.__call__:
            return None  # inspect reads the constructor, or what a metaclass has in its place
        signature = inspect.signature(DelayedOperation.__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])


class DelayedOperation(Operation, Generic[T_co]):
    """A request that waits until its condition holds or its deadline passes.

    **Usage.**  Subclass it.  Override :meth:`try_complete` to return whether the condition holds, and
    :meth:`on_complete` to return the result.  Pass the operation to :meth:`Purgatory.park`, or pass it to
    :meth:`Purgatory.try_complete_else_watch` and, if needed, await it.  Code that changes the state behind a condition
    calls :meth:`Purgatory.check_and_complete` with the key.

    **Implementation.**  The operation is itself the timer task.  It has one :class:`Watch` for each key, but none if no
    other operation waits on its only key.

    Attributes that begin with an underscore, such as ``_core``, belong to this class; choose other names in a
    subclass.

    **Cancellation safety.**  Any number of tasks may await an operation; cancelling one of them does not affect it.  A
    task in :meth:`Purgatory.park` owns its operation: cancelling the task withdraws the operation.

    ``timeout``: seconds from the moment the operation is submitted, rounded up to a millisecond and to the timer's
    tick, or None for no deadline.  Raises TypeError unless the timeout is a number or None, and ValueError if it is
    negative, NaN, infinite, or above 1e15.  For an absolute deadline, pass None and call :meth:`extend_to` before the
    operation is submitted.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def __init__(self, timeout: float | None) -> None: ...

        def try_complete(self) -> bool: ...

        def on_complete(self) -> T_co: ...

        def on_expiration(self) -> None: ...

        def on_abandoned(self, result: T_co) -> None: ...  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]

        def cancel(self, reason: object = None) -> bool: ...

        def extend(self, timeout: float | None) -> bool: ...

        def extend_to(self, deadline: float | None) -> bool: ...

        def result(self) -> T_co: ...

        def __await__(self) -> Generator[Any, None, T_co]: ...

    else:
        # super().__init__() reaches a compiled method faster than a compiled __init__, which is called through the
        # type's slot; benchmarks.instructions shows the difference.
        __init__ = Operation.DelayedOperation
        del Operation.DelayedOperation
        with contextlib.suppress(AttributeError):  # a compiled method cannot be renamed
            __init__.__qualname__ = "DelayedOperation.__init__"
        __signature__ = _Signature()
