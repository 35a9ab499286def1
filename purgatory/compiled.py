"""Reports whether the core is compiled, falls back to its sources in subinterpreters, and detects stale extensions."""

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["is_compiled", "prefer_sources_in_subinterpreter", "refuse_stale"]

_HERE = os.path.dirname(os.path.realpath(__file__))


class _Sources:
    """Finds the core's source files, for an interpreter that cannot load the compiled extensions."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:  # noqa: ARG004
        """Return the spec of a core module's source file; return None for any other module."""
        if path is None or not name.startswith("purgatory.core."):
            return None
        finders = (FileFinder(folder, (SourceFileLoader, [".py"])) for folder in path)
        return next((spec for finder in finders if (spec := finder.find_spec(name)) is not None), None)


def prefer_sources_in_subinterpreter() -> None:
    """If this interpreter refuses the core's extensions, make later imports load the core's source files.

    CPython loads extensions compiled by mypyc only in the main interpreter.
    """
    try:
        importlib.import_module("purgatory.core.timer.units")
    except ImportError as error:
        if "subinterpreters" not in str(error):
            raise
        sys.meta_path.insert(0, _Sources)


def is_compiled(module_file: str | None) -> bool:
    """Return whether a core module, given by its ``__file__``, is a compiled extension."""
    return module_file is not None and not module_file.endswith((".py", ".pyc"))


def refuse_stale(compiled: bool, package: "str | Path" = _HERE) -> None:
    """In a source checkout, raise ImportError if a source file is newer than the extension of the same name.

    Python prefers an extension to a source file of the same name, so an edit would silently have no effect.  An
    installed package is not checked, because its files carry the time at which they were unpacked.
    """
    if not compiled or not os.path.isfile(os.path.join(package, os.pardir, "pyproject.toml")):
        return
    from pathlib import (
        Path,  # this import takes a quarter of the package's import time, and only a checkout needs it
    )

    here = Path(package)
    for extension in [*here.rglob("*.so"), *here.rglob("*.pyd")]:
        source = extension.parent / f"{extension.name.partition('.')[0]}.py"
        if source.is_file() and source.stat().st_mtime > extension.stat().st_mtime:
            raise ImportError(
                f"{source.name} is newer than {extension.name}, which would hide it:"
                " delete the extensions, or compile again with 'PURGATORY_COMPILE=1 pip install -e .'"
            )
