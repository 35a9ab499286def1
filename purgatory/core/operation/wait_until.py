"""The operations behind the library's own waits, ``wait_until`` and ``wait_value``.

These operations are compiled with the core: the only interpreted function that runs for them is the user's predicate.

The value that a wait takes
===========================

The ``get`` function of ``wait_value`` may remove the value from a container, as ``queue.popleft()`` does, so the value
must not be lost.  Three rules follow.

1.  ``get`` is not called for a cancelled task: the wait is withdrawn first.
2.  The wait completes itself inside :meth:`WaitValue.try_complete`, directly after ``get`` has returned a value, so
    ``get`` is not called again.
3.  If the wait cannot complete with the value (``get`` has ended the wait or cancelled its task, or the stack is
    exhausted), the value is passed to ``on_abandoned``.  If the waiting task is cancelled before it runs again,
    ``park()`` passes the value to ``on_abandoned``, as it does for every operation.
"""

from typing import Any, Final, final

from mypy_extensions import i64

from purgatory.core.timer.base_timer import BaseTimer, has_passed
from purgatory.core.timer.coroutines import COROUTINE, is_coroutine, refusal, refuse_coroutine_function
from purgatory.core.timer.task import NOT_QUEUED
from purgatory.core.timer.units import deadline_ms, duration_ms
from purgatory.errors import PurgatoryError
from purgatory.texts import safe_repr

from .lifecycle import CANCELLED, COMPLETED, FAILED, PENDING, Failure, end, task_was_cancelled
from .operation import FOREVER_MS, MISSING, Operation, set_deadline

__all__ = [
    "MISSING",
    "LibraryWait",
    "WaitUntil",
    "WaitValue",
    "given_kind",
    "keys_of_call",
    "times_of",
    "until_wait",
    "value_wait",
]


# If a wait kept its predicate's exception, there would be a reference cycle, because the traceback leads through frames
# to the wait.
_DELIVERED: Final = Failure(PurgatoryError("the wait has failed, and its task has received the exception"))


class LibraryWait(Operation):
    """An operation of the library itself.  Journals, metrics, and dumps show its kind instead of its class.

    ``_given_kind``: the ``kind`` argument of the call; None stands for the name of the class.
    """

    __slots__ = ("_given_kind",)

    def __init__(self, kind: Any) -> None:
        if kind is not None and (not isinstance(kind, str) or not kind):
            raise TypeError(f"kind must be a nonempty str or None, got {safe_repr(kind)}")
        super().__init__(None)
        self._given_kind: str | None = kind

    def _delivered(self) -> None:
        if self._op_state == FAILED:
            self._value = _DELIVERED

    def __repr__(self) -> str:
        text = super().__repr__()
        return text if self._given_kind is None else f"<{self._given_kind}{text[text.index(' ') :]}"


def given_kind(operation: Operation) -> str | None:
    """Return the ``kind`` argument of a wait, or None for other operations, whose kind is their class."""
    return operation._given_kind if isinstance(operation, LibraryWait) else None


@final
class WaitUntil(LibraryWait):
    """The operation of ``wait_until``.  Its result states whether the predicate became true in time."""

    __slots__ = ("_predicate",)

    def __init__(self, predicate: Any, kind: Any) -> None:
        super().__init__(kind)
        self._predicate: Any = predicate

    def try_complete(self) -> bool:
        held: Any = self._predicate()
        if held is True or held is False:
            return held is True
        if is_coroutine(held):
            raise refusal(held, "predicate must return whether the condition holds")
        return bool(held)

    def on_complete(self) -> Any:
        return self._op_state == COMPLETED


@final
class WaitValue(LibraryWait):
    """The operation of ``wait_value``.  Its result is the first value of ``get()`` that is not None."""

    __slots__ = ("_get", "_hook", "_taken")

    def __init__(self, get: Any, on_abandoned: Any, kind: Any) -> None:
        super().__init__(kind)
        self._get: Any = get
        self._hook: Any = on_abandoned
        self._taken: Any = None

    def try_complete(self) -> bool:
        if task_was_cancelled(self):
            end(self, CANCELLED, None)
            return False
        core = self._core
        value: Any = self._get()
        if value is None:
            return False
        if type(value) is COROUTINE:
            raise refusal(value, "get must return a value or None")
        self._taken = value
        try:
            if self._op_state == PENDING:  # get() may have ended the wait
                end(self, COMPLETED, None)
        finally:
            if self._taken is not None:
                self._taken = None  # on_complete() has not run
                if core is None:
                    self.on_abandoned(value)
                else:
                    core.give_back(self, value)
        return self._op_state == COMPLETED

    def on_complete(self) -> Any:
        value = self._taken
        self._taken = None
        return value

    def on_abandoned(self, result: Any) -> Any:
        return None if result is None or self._hook is None else self._hook(result)


# Errors, dumps, and the default of ``kind`` use the class name of an operation, so that name is set here to the name of
# the method.
for _wait, _name in ((WaitUntil, "wait_until"), (WaitValue, "wait_value")):
    setattr(_wait, "__name__", _name)  # noqa: B010 - the compiler rejects an assignment to a class
    setattr(_wait, "__qualname__", _name)  # noqa: B010


def until_wait(timer: BaseTimer, predicate: Any, timeout: Any, deadline: Any, kind: Any) -> Any:
    """Return the operation of ``wait_until``.  Its delay is 0 if there is no time to wait; see :func:`times_of`.

    Raises TypeError if the predicate is not a plain callable, if the kind is not a str, or if both or neither of
    ``timeout`` and ``deadline`` are given.  The return type is Any because ``park()`` takes the generic class, which is
    interpreted.
    """
    _validate_function("predicate", predicate)
    wait = WaitUntil(predicate, kind)
    delay_ms, at_ms = times_of("wait_until", timer, timeout, deadline)
    set_deadline(wait, delay_ms, at_ms)
    return wait


def value_wait(timer: BaseTimer, get: Any, timeout: Any, deadline: Any, kind: Any, on_abandoned: Any) -> Any:
    """Return the operation of ``wait_value``; the parameters and errors are the same as for :func:`until_wait`."""
    _validate_function("get", get)
    if on_abandoned is not None:
        _validate_function("on_abandoned", on_abandoned)
    wait = WaitValue(get, on_abandoned, kind)
    delay_ms, at_ms = times_of("wait_value", timer, timeout, deadline)
    set_deadline(wait, delay_ms, at_ms)
    return wait


def keys_of_call(method: str, key: Any, keys: Any) -> Any:
    """Return the keys of a call that takes either ``key`` or ``keys``; the other argument is MISSING."""
    if key is MISSING:
        if keys is MISSING:
            raise TypeError(f"{method}() takes key= or keys=, got neither")
        return keys
    if keys is not MISSING:
        both = f"key={safe_repr(key)} and keys={safe_repr(keys)}"
        raise TypeError(f"{method}() takes key= or keys=, got both: {both}")
    kind = type(key)
    if kind is list or kind is dict or kind is set:
        text = safe_repr(key)
        raise TypeError(f"key must be one hashable key, got {text}: for several keys use keys={text}")
    return (key,)


def _validate_function(name: str, function: Any) -> None:
    if not callable(function):
        raise TypeError(f"{name} must be callable, got {safe_repr(function)}: pass a function, such as 'lambda: ...'")
    refuse_coroutine_function(name, function)


def times_of(method: str, timer: BaseTimer, timeout: Any, deadline: Any) -> tuple[i64, i64]:
    """Return the delay and the absolute deadline of a wait, for :func:`set_deadline`.

    The delay is 0 if there is no time to wait: the timeout is zero, or the deadline has passed.
    """
    if deadline is MISSING:
        if timeout is MISSING:
            raise TypeError(f"{method}() takes a timeout or a deadline, got neither: timeout=None waits forever")
        return FOREVER_MS if timeout is None else duration_ms(timeout, "timeout"), NOT_QUEUED
    if timeout is not MISSING:
        given = f"timeout={safe_repr(timeout)} and deadline={safe_repr(deadline)}"
        raise TypeError(f"{method}() takes a timeout or a deadline, got both: {given}")
    if deadline is None:
        return FOREVER_MS, NOT_QUEUED
    at_ms: i64 = deadline_ms(deadline, "deadline")
    return (0, NOT_QUEUED) if has_passed(timer, deadline) else (FOREVER_MS, at_ms)
