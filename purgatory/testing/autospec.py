"""A mock that checks the arguments of compiled methods, too."""

import contextlib
import functools
import inspect
from collections.abc import Callable
from types import FunctionType, MethodDescriptorType
from typing import Any

from purgatory.texts import safe_repr

__all__ = ["create_autospec"]


def create_autospec(spec: type, spec_set: bool = False, instance: bool = False, **kwargs: Any) -> Any:
    """Return a mock of the class that checks the arguments of every method, whether or not the core is compiled.

    ::

        room = create_autospec(Purgatory, instance=True)
        room.check.return_value = 1
        await serve(room)
        room.check.assert_called_once_with("orders")

    :func:`unittest.mock.create_autospec` accepts any arguments for compiled methods, because it does not read their
    signatures.  This function passes it a subclass in which each compiled method is a Python function with the same
    signature.  The parameters are the same.  The mock also passes ``isinstance(mock, spec)``.

    ``spec``: a class.  Anything else raises TypeError.
    """
    if not isinstance(spec, type):
        raise TypeError(f"spec must be a class, got {safe_repr(spec)}")
    from unittest import mock  # this import takes 10 ms, and only a program that calls this function needs it

    return mock.create_autospec(_with_functions(spec), spec_set, instance, **kwargs)


def _with_functions(spec: type) -> type:
    """Return a subclass with Python functions in place of compiled methods, or the class itself if it has none."""
    members = {name: inspect.getattr_static(spec, name) for name in dir(spec) if not name.startswith("_")}
    functions: dict[str, Any] = {
        name: functools.wraps(method)(_function())
        for name, method in members.items()
        if isinstance(method, MethodDescriptorType)
    }
    if not functions:
        return spec
    constructor: Any = inspect.getattr_static(spec, "__init__")
    if not isinstance(constructor, FunctionType) and constructor is not object.__init__:
        with contextlib.suppress(ValueError):  # a class such as dict has no signature
            functions["__init__"] = _constructor(inspect.signature(spec))
    names = {"__doc__": spec.__doc__, "__module__": spec.__module__, "__qualname__": spec.__qualname__}
    return type(spec.__name__, (_Quiet, spec), {**names, "__slots__": (), **functions})


class _Quiet:
    """Keeps ``__init_subclass__`` of the class, which may register its subclasses, from being called for a mock."""

    __slots__ = ()

    def __init_subclass__(cls, **_: object) -> None:
        pass


def _constructor(signature: inspect.Signature) -> Any:
    function: Any = _function()
    self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    function.__signature__ = signature.replace(parameters=[self, *signature.parameters.values()])
    return function


def _function() -> Callable[..., None]:
    """Return a new function, of which only the signature is read."""

    def function(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    return function
