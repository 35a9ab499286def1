"""Errors that no caller can receive are reported to the event loop's exception handler or to the log."""

import asyncio
import logging
from typing import Any

from purgatory.texts import safe_repr

__all__ = ["report"]

_LOGGER = logging.getLogger("purgatory")


def report(message: str, error: BaseException, **context: Any) -> None:
    """Call the running loop's exception handler, or write to the log if no loop is running.

    The log and asyncio's default handler print the objects in ``context``.  If an object's ``repr`` raises, a string
    replaces the object; otherwise, the error would be hidden.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        texts = ", ".join(f"{name!r}: {safe_repr(thing)}" for name, thing in context.items())
        _LOGGER.error("%s: {%s}", message, texts, exc_info=error)
        return
    if loop.get_exception_handler() is None:
        context = {name: _printable(thing) for name, thing in context.items()}
    loop.call_exception_handler({"message": message, "exception": error, **context})


def _printable(thing: object) -> object:
    try:
        repr(thing)
    except Exception:
        return safe_repr(thing)
    return thing
