"""Options that several commands share, and checks that need no Spark, so a mistake is reported before a JVM starts."""

import argparse
import math
import os
import re
from collections.abc import Callable
from typing import Final

from purgatory.pipeline.stream.input_rows import LAST_MS

__all__ = [
    "FIRST_COMPILER",
    "add_spark_options",
    "check_master",
    "check_paths",
    "check_top",
    "name_and_value",
    "positive",
    "remote_url",
    "seconds",
    "spark_settings",
    "whole_ms",
]

_PATHS: Final = ("journal", "baseline", "compare", "source", "checkpoint", "out")  # the paths among the arguments

# The forms that Spark accepts.  Any other URL may belong to a cluster manager that is a plug-in.
_MASTER: Final = re.compile(
    r"local"
    r"|local\[(\*|0*[1-9]\d*)(\s*,\s*\d+)?\]"
    r"|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    r"|yarn"
    r"|[a-z][a-z0-9+.-]*://.+"
)

_YEAR_S: Final = 31_536_000
_MOST_KEYS: Final = 1_000_000  # of a table that the driver holds
_MOST_S: Final = LAST_MS // 1_000
_MOST: Final = 2**31 - 1

# Java's second compiler pays only if Java itself has much to do.
FIRST_COMPILER: Final = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1"}


def add_spark_options(parser: argparse.ArgumentParser, *, connect: bool = True) -> None:
    """Add ``--master``, ``--remote``, and ``--conf``.

    ``connect``: whether the command runs on Spark Connect; otherwise the help omits ``--remote``.
    """
    parser.add_argument("--master", metavar="URL", help="Spark's master (default: all cores of this machine)")
    parser.add_argument(
        "--remote",
        metavar="sc://HOST:PORT",
        help="a Spark Connect server, instead of a master" if connect else argparse.SUPPRESS,
    )
    parser.add_argument(
        "--conf", action="append", default=[], type=name_and_value, metavar="NAME=VALUE", help="a setting of Spark"
    )


def spark_settings(options: argparse.Namespace) -> tuple[str | None, dict[str, str]]:
    """Return the master and the settings of ``--conf``.  ValueError if Spark would not accept the master."""
    settings = dict(options.conf)
    check_master(options.master or settings.get("spark.master"))
    remote_url(options)
    return options.master, settings


def remote_url(options: argparse.Namespace) -> str | None:
    """Return the URL of the Spark Connect server: that of ``--remote``, or SPARK_REMOTE if there is no master.

    ValueError if it is not such a URL, or if there is a master too.
    """
    master = options.master or dict(options.conf).get("spark.master")
    remote: str | None = options.remote
    if remote is None:
        return None if master is not None else os.environ.get("SPARK_REMOTE") or None
    if master is not None:
        raise ValueError(f"either master or remote must be set, got {master!r} and {remote!r}")
    if not re.fullmatch(r"sc://[^/].*", remote):
        raise ValueError(f"remote must be a URL as sc://host:15002, got {remote!r}")
    return remote


def check_master(master: str | None) -> None:
    """Raise ValueError unless the form of ``master`` is one that Spark accepts.  None is the default."""
    if master is not None and master.startswith("sc://"):
        raise ValueError(f"master must not be a Spark Connect server, which is a remote, got {master!r}")
    if master is not None and not _MASTER.fullmatch(master):
        raise ValueError(
            f"master must be local, local[N], local[*], yarn or a URL as spark://host:port, got {master!r}"
        )


def check_paths(options: argparse.Namespace) -> None:
    """Raise ValueError if a path of a command is empty or is not UTF-8.

    An empty path would be the current directory, but it comes from a variable of a shell that is not set.
    """
    for name in _PATHS:
        path: str | None = getattr(options, name, None)
        if path is None:
            continue
        if not path:
            raise ValueError(f"{name} must be a path or a URI, got ''")
        try:
            path.encode()
        except UnicodeEncodeError:
            given = os.fsencode(path)
            raise ValueError(f"{name} must be a path in UTF-8, which Arrow and Spark need, got {given!r}") from None


def check_top(top: int) -> None:
    """Raise ValueError unless ``top`` is a number of hot keys that a report can have."""
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    if top > _MOST_KEYS:
        raise ValueError(f"top must be at most {_MOST_KEYS:,}, got {top}")


def whole_ms(value: float, name: str) -> int:
    """Convert seconds to milliseconds.  ValueError unless the result is at least 1, and at most that of a year."""
    if not math.isfinite(value) or round(value * 1000) < 1:
        raise ValueError(f"{name} must be at least 0.001 seconds, got {value:g}")
    if value > _YEAR_S:
        raise ValueError(f"{name} must be at most {_YEAR_S:,} seconds, got {value:g}")
    return round(value * 1000)


def name_and_value(text: str) -> tuple[str, str]:
    """Parse ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, got {text!r}")
    return name, value


def seconds(text: str) -> float:
    """Parse a number of seconds, at least 0, and at most those from 1970 to the year 10000."""
    return _number(text, float, lambda value: 0 <= value < math.inf, "a number of seconds, at least 0", _MOST_S)


def positive(text: str) -> int:
    """Parse a whole number, at least 1, that an int of Spark can have."""
    return int(_number(text, int, lambda value: value >= 1, "a whole number, at least 1", _MOST))


def _number(
    text: str, parse: Callable[[str], float], accepts: Callable[[float], bool], expected: str, most: int
) -> float:
    try:
        value = parse(text)
    except ValueError:
        value = math.nan
    if not accepts(value):
        raise argparse.ArgumentTypeError(f"must be {expected}, got {text!r}")
    if value > most:
        raise argparse.ArgumentTypeError(f"must be at most {most:,}, got {text!r}")
    return value
