"""Coroutines where a plain value belongs.

The hooks of an operation and the predicate of ``wait_until`` are called, never awaited.  A coroutine that one of them
returns is true, and would complete the operation at once without having run.
"""

import functools
import inspect
import types
from collections.abc import Coroutine
from typing import Any, Final

__all__ = ["COROUTINE", "is_coroutine", "is_coroutine_function", "refusal"]

COROUTINE: Final = types.CoroutineType
"""The class of what an ``async def`` returns: the check that costs nothing."""
_FUNCTION: Final = types.FunctionType
_ASYNC: Final[int] = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def is_coroutine(value: Any) -> bool:
    """Return whether the value is a coroutine of any kind, including those of other compilers."""
    return isinstance(value, Coroutine)


def is_coroutine_function(function: Any) -> bool:
    """Return whether a call of the function, method or partial gives a coroutine or an async generator."""
    if type(function) is not _FUNCTION:  # most are: a lambda, or what a 'def' makes
        while isinstance(function, functools.partial):
            function = function.func
        code = getattr(function, "__code__", None)
        return isinstance(code, types.CodeType) and code.co_flags & _ASYNC != 0
    flags: int = function.__code__.co_flags
    return flags & _ASYNC != 0


def refusal(coroutine: Any, what: str) -> TypeError:
    """Close the coroutine if it has not started, and return the error that states what was expected instead.

    One that has started belongs to the code that runs it, and is left alone.
    """
    if type(coroutine) is not COROUTINE or inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        coroutine.close()
    return TypeError(f"{what}, got a coroutine: it is called, not awaited, so write it with 'def', not 'async def'")
