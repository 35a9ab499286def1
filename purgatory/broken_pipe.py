"""End a command quietly when the reader of its output is gone, as in ``purgatory demo | head -1``."""

import io
import os
import select
import sys
from collections.abc import Callable
from typing import Final

__all__ = ["run_command"]

_STATUS: Final = 141  # what a shell reports for a program that SIGPIPE has ended


def run_command(main: Callable[[], int]) -> int:
    """Return the exit status of ``main()``, or 141 if its output is a pipe that nobody reads any more.

    Characters that the output cannot encode are escaped, as Python does on standard error.  SIGPIPE stays ignored,
    because it would also end a command whose socket breaks.
    """
    try:
        _escape()
        try:
            status = main()
        except SystemExit:  # argparse has printed a help text
            _flush()
            raise
        _flush()
        return status
    except BrokenPipeError:  # Windows raises another OSError
        if not _discard_unread():
            raise  # it was another pipe
        return _STATUS


def _escape() -> None:
    """Let no character end the command: a path can have some that the encoding of a terminal lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def _flush() -> None:
    """Flush the output here, where the error is handled, and not at the end of the interpreter."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _discard_unread() -> bool:
    """Send what is left to the null device, because Python flushes it again when it ends.

    Return whether the output was broken.
    """
    broken = [stream for stream in (sys.stdout, sys.stderr) if stream is not None and _has_no_reader(stream.fileno())]
    for stream in broken:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
    return bool(broken)


def _has_no_reader(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)
    return any([events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)])
