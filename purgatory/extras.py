"""Name the extra to install when an optional part needs a package that is missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec

__all__ = ["deferred", "is_installed", "need"]

_IS_DEFERRED = ContextVar("is_deferred", default=False)


@contextmanager
def deferred() -> Iterator[None]:
    """Disable :func:`need` in this context.

    A command can then import its modules to print its help, and check its dependencies afterward.
    """
    token = _IS_DEFERRED.set(True)
    try:
        yield
    finally:
        _IS_DEFERRED.reset(token)


def need(part: str, extra: str, *modules: str) -> None:
    """Raise ImportError with the ``pip install`` command to run, unless all modules are installed."""
    for module in modules:
        if not _IS_DEFERRED.get() and not is_installed(module):
            message = f"{part} needs {module!r}, which is not installed: pip install 'aiopurgatory[{extra}]'"
            raise ImportError(message, name=module)


def is_installed(module: str) -> bool:
    """Return whether the module can be imported, without importing it."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
