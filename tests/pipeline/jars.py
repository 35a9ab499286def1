"""Jars that PySpark does not contain: a test is skipped where they cannot be had, and a command prints their paths."""

import sys
from collections.abc import Callable

from benchmarks.row import Unavailable
from tests.parts import missing

__all__ = ["or_skip", "print_paths"]


def or_skip(class_path: Callable[[], str]) -> str:
    """Return the paths of the jars, or skip the test where they cannot be had."""
    try:
        return class_path()
    except Unavailable as error:
        missing(str(error))


def print_paths(class_path: Callable[[], str]) -> int:
    """Run the command that prints the paths; the status is 1 where a jar is missing."""
    try:
        print(class_path())
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0
