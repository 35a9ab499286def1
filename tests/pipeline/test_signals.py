"""Signals that end a command, as exceptions."""

import logging
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from purgatory.pipeline.signals import Signals, raise_received


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    """The handlers with which Python starts, and the log as it was."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    logging.disable(logging.NOTSET)


class Destroyed:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_whose_exception_is_lost_is_raised_again() -> None:
    """In the main thread, as long as the command runs; Python discards what a destructor raises."""
    signals = Signals()
    with signals.raising():
        raise_received()
        Destroyed()
        assert signals.received is not None
        elsewhere = threading.Thread(target=raise_received)  # its exception would be a warning, and thus an error
        elsewhere.start()
        elsewhere.join()
        with pytest.raises(KeyboardInterrupt) as raised:
            raise_received()
        assert raised.value is signals.received
    raise_received()
    assert signals.status == 143


def test_only_the_default_handlers_are_replaced() -> None:
    """A handler of the program stays in place."""
    seen: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    signals = Signals()
    with signals.raising():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert (seen, signals.status) == ([signal.SIGTERM], 130)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
