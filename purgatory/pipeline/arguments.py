"""Checks of a command's arguments that need no Spark: a mistake costs no start of a JVM, and no work."""

import math
import re
import tempfile
from pathlib import Path
from typing import Final

from purgatory.errors import PurgatoryError

__all__ = ["BadOutput", "check_master", "check_out", "whole_ms"]

# What Spark takes; anything with "://" may be a cluster manager of its own.
_MASTER: Final = re.compile(
    r"local"
    r"|local\[(\*|0*[1-9]\d*)(\s*,\s*\d+)?\]"
    r"|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    r"|yarn"
    r"|[a-z][a-z0-9+.-]*://.+"
)


class BadOutput(PurgatoryError):
    """The results cannot be written there; the message names the path."""


def check_out(out: Path, name: str = "out") -> None:
    """Check that ``out`` is a directory that can be written, or can be made.  BadOutput if not; leaves nothing."""
    try:
        if out.exists() and not out.is_dir():
            raise BadOutput(f"{name} must be a directory, got {out}, which is a file")
        there = next(path for path in (out, *out.absolute().parents) if path.exists())
        with tempfile.NamedTemporaryFile(prefix=".probe-", dir=there):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadOutput(f"{name} must be a directory that can be written, got {out}: {reason}") from error


def check_master(master: str | None) -> None:
    """Check the form of a master of Spark's; None is the default.  ValueError if Spark would refuse it."""
    if master is not None and not _MASTER.fullmatch(master):
        raise ValueError(
            f"master must be local, local[N], local[*], yarn or a URL as spark://host:port, got {master!r}"
        )


def whole_ms(seconds: float, name: str) -> int:
    """Convert seconds to milliseconds.  ValueError unless they make at least one, and a finite number."""
    if not math.isfinite(seconds) or round(seconds * 1000) < 1:
        raise ValueError(f"{name} must be at least 0.001 seconds, got {seconds:g}")
    return round(seconds * 1000)
