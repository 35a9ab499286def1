"""Detecting coroutines where a plain value is expected.

The hooks of an operation and the predicate of ``wait_until`` are called, never awaited.  If one of them returned a
coroutine, that coroutine would count as true and would complete the operation at once without having run.
"""

import functools
import inspect
import types
from collections.abc import Coroutine
from typing import Any, Final

from purgatory.texts import safe_repr

__all__ = ["COROUTINE", "is_coroutine", "is_coroutine_function", "refusal", "refuse_coroutine_function"]

COROUTINE: Final = types.CoroutineType
"""The class of the object that an ``async def`` function returns, for a check at nearly no cost."""
_FUNCTION: Final = types.FunctionType
_METHOD: Final = types.MethodType
_BUILTIN: Final = types.BuiltinFunctionType
_PARTIAL: Final = functools.partial
_ASYNC: Final[int] = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def is_coroutine(value: Any) -> bool:
    """Return whether the value is a coroutine of any kind, including those that other compilers create."""
    return isinstance(value, Coroutine)


def is_coroutine_function(function: Any) -> bool:
    """Return whether calling the function, method, or partial returns a coroutine or an async generator."""
    kind = type(function)
    # Most callables are plain functions, defined with 'lambda' or 'def', or methods and partials of these or of
    # built-ins.  The general form below costs several times as much as one of these comparisons.
    if kind is _PARTIAL or kind is _METHOD:
        function = function.func if kind is _PARTIAL else function.__func__
        kind = type(function)
    if kind is _FUNCTION:
        flags: int = function.__code__.co_flags
        return flags & _ASYNC != 0
    if kind is _BUILTIN:
        return False
    while isinstance(function, _PARTIAL):
        function = function.func
    code = getattr(function, "__code__", None)
    return isinstance(code, types.CodeType) and code.co_flags & _ASYNC != 0


def refuse_coroutine_function(name: str, function: Any) -> None:
    """Raise TypeError if the function is a coroutine function; ``name`` is the name of the function in the error."""
    if is_coroutine_function(function):
        raise TypeError(
            f"{name} must be a plain function, got the coroutine function {safe_repr(function)}:"
            " it is called, not awaited, so write it with 'def', not 'async def'"
        )


def refusal(coroutine: Any, what: str) -> TypeError:
    """Close the coroutine if it has not started; return an error that states what was expected instead.

    A coroutine that has started is left alone, because it belongs to the code that runs it.
    """
    if type(coroutine) is not COROUTINE or inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        coroutine.close()
    return TypeError(f"{what}, got a coroutine: it is called, not awaited, so write it with 'def', not 'async def'")
