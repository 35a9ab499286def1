"""End a command without a traceback if its output cannot be written, or if the command is interrupted.

There are three cases: the reader of the output is gone, as in ``purgatory demo | head -1``; the disk is full; or the
user presses Ctrl-C.
"""

import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Callable
from typing import Final, TextIO

__all__ = ["run_command"]

_STATUS: Final = 141  # what a shell reports for a program that was killed by SIGPIPE
_INTERRUPTED: Final = 130  # what a shell reports for a program that was killed by SIGINT
_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO))


def run_command(main: Callable[[], int]) -> int:
    """Return the exit status of ``main()``, or 141 if its output is a pipe that no process reads any longer.

    Return 1 if the output cannot be written, for example because the disk is full, and 130 if the command was
    interrupted.

    Characters that the output cannot encode are escaped, as they are on standard error.  SIGPIPE stays ignored;
    otherwise, it would also end a command when a socket breaks.
    """
    try:
        _escape()
        try:
            status = main()
        except SystemExit:  # argparse has printed a help message
            _flush()
            raise
        _flush()
        return status
    except BrokenPipeError:  # Windows raises a different OSError
        if not _discard_unread():
            raise  # a different pipe was broken
        return _STATUS
    except OSError as error:
        if error.errno not in _FULL:
            raise
        _discard_unwritten()
        with contextlib.suppress(OSError):
            print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED


def _escape() -> None:
    """Prevent encoding errors from ending the command: a path can contain characters that a terminal cannot encode."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def _flush() -> None:
    """Flush the output here, where the error is handled, rather than at interpreter shutdown."""
    for stream in _streams():
        stream.flush()


def _discard_unread() -> bool:
    """Send the remaining output to the null device, because Python flushes it again at shutdown.

    Return whether the output went to a broken pipe.
    """
    broken = [stream for stream in _streams() if _has_no_reader(stream.fileno())]
    for stream in broken:
        _discard(stream)
    return bool(broken)


def _discard_unwritten() -> None:
    """Discard any remaining output that a stream cannot write: send it to the null device."""
    for stream in _streams():
        try:
            stream.flush()
        except OSError:
            _discard(stream)


def _streams() -> list[TextIO]:
    """Return standard output and standard error; a program without a console has none."""
    return [stream for stream in (sys.stdout, sys.stderr) if stream is not None]


def _discard(stream: TextIO) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def _has_no_reader(descriptor: int) -> bool:
    if not hasattr(select, "poll"):  # Windows
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return any([events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)])
