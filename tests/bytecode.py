"""Bytecode files of a test run: its processes, which are hundreds, do not compile the same modules again."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["FORBIDDEN", "written"]

FORBIDDEN = "PYTHONDONTWRITEBYTECODE"


@contextmanager
def written(root: Path) -> Iterator[None]:
    """Let this process, and the processes that it starts, write bytecode, although the environment forbids it.

    Many container images set the variable, and each process would compile the package, the examples, and the tests.  At
    the end, what is forbidden is forbidden again, and the caches below ``root`` that were not there before are removed.
    """
    variable = os.environ.pop(FORBIDDEN, None)
    forbidden, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    before = _caches(root)
    try:
        yield
    finally:
        for cache in _caches(root) - before:
            shutil.rmtree(cache, ignore_errors=True)
        sys.dont_write_bytecode = forbidden
        if variable is not None:
            os.environ[FORBIDDEN] = variable


def _caches(root: Path) -> set[Path]:
    """Return the caches in the folders of the root, except in hidden ones, which contain environments."""
    return {cache for folder in root.glob("[!.]*/") for cache in folder.rglob("__pycache__")}
