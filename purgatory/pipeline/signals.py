"""SIGINT and SIGTERM, as exceptions, while a command runs."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

__all__ = ["Signals", "raise_received"]


class _Terminated(KeyboardInterrupt):
    """Raised on SIGTERM.  Py4J closes its connection to Java only for a KeyboardInterrupt, so this exception is one."""


class Signals:
    """``received``: the signal that has arrived."""

    def __init__(self) -> None:
        self.received: KeyboardInterrupt | None = None

    @property
    def status(self) -> int:
        """The exit status that a shell reports for a program that the signal has ended."""
        return 128 + (signal.SIGTERM if isinstance(self.received, _Terminated) else signal.SIGINT)

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Raise on a signal within the block, so that temporary directories are removed and Spark ends.

        A handler that the program has set is left in place.
        """
        default = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        in_main_thread = threading.current_thread() is threading.main_thread()
        own = {n: h for n, h in default.items() if in_main_thread and signal.getsignal(n) is h}
        for number in own:
            signal.signal(number, self._receive)
        _active.append(self)
        try:
            yield
        finally:
            _active.remove(self)
            for number, handler in own.items():
                signal.signal(number, handler)

    def _receive(self, number: int, _: object) -> NoReturn:
        logging.disable(logging.CRITICAL)  # Py4J logs an interrupted call with a traceback
        self.received = _Terminated() if number == signal.SIGTERM else KeyboardInterrupt()
        raise self.received


_active: Final[list[Signals]] = []


def raise_received() -> None:
    """Raise the signal that the command has received once more; in the main thread only.

    Python discards an exception that a signal raises within a destructor or a callback of C code.
    """
    if threading.current_thread() is threading.main_thread():
        for signals in _active:
            if signals.received is not None:
                raise signals.received
