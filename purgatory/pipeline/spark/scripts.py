"""Shell scripts in the user's cache that start a program with other arguments or with its output redirected."""

import hashlib
import os
import shlex
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

__all__ = ["cache_directory", "name_of_path", "worker_python", "write_script"]

_SHOWN = 40  # characters of a path in a file name

# Spark starts this module once per streaming query.  Its results go to a socket, and its standard output contains only
# messages about its progress.  Java passes these messages on to standard error.
_INSPECTION = "pyspark.sql.streaming.transform_with_state_driver_worker"


def cache_directory() -> Path:
    """Return the directory for generated files that are kept for the next run.

    Raises OSError if the user has no home directory, as in many containers, and XDG_CACHE_HOME is not set.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aiopurgatory"
    except RuntimeError as error:
        raise OSError("the user has no home directory") from error


def write_script(script: Path, text: str) -> None:
    """Write an executable file in one step, unless it already has this text."""
    if script.is_file() and script.read_text() == text:
        return
    script.parent.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(dir=script.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(unfinished).chmod(0o755)
    Path(unfinished).replace(script)


def worker_python(python: str) -> str:
    """Return a command that starts ``python`` for Spark's workers and drops the messages of a streaming query.

    Spark has its workers import PySpark from a ZIP file, which contains no bytecode, so each worker compiles PySpark
    again; this takes 1.5 s of CPU time.  If ``python`` is the interpreter of this process, the workers import the
    installed PySpark instead, as this process does.  If no script can be written or run here, ``python`` is returned.
    """
    if os.name == "nt":
        return python
    archives = _archives() if python == sys.executable else ""
    command = shlex.quote(python)
    try:
        script = cache_directory() / f"python-{name_of_path(python)}" / "bin" / "python"
        write_script(
            script,
            "#!/bin/sh\n"
            "# Imports the installed PySpark, which has bytecode, instead of the one in a ZIP file.\n"
            f"archives={shlex.quote(archives)}\n"
            'PYTHONPATH="${PYTHONPATH#"$archives"}"\n'
            "# Drops the messages of the worker that inspects the processor of a streaming query.\n"
            'case "$*" in\n'
            f'  *"{_INSPECTION}"*) exec {command} "$@" > /dev/null ;;\n'
            f'  *) exec {command} "$@" ;;\n'
            "esac\n",
        )
    except OSError:
        return python
    return str(script) if os.access(script, os.X_OK) else python


def _archives() -> str:
    """Return the beginning of the PYTHONPATH that Spark gives to its workers, or "" if that is not known."""
    installed = find_spec("pyspark")
    if installed is None or installed.origin is None:
        return ""
    archives = sorted((Path(installed.origin).parent / "python" / "lib").glob("*.zip"), reverse=True)
    return "".join(f"{archive}{os.pathsep}" for archive in archives)


def name_of_path(path: str) -> str:
    """Return a file name that is different for each path, and that a person can recognize."""
    shown = "-".join(part for part in "".join(c if c.isalnum() else " " for c in path).split())
    return f"{shown[-_SHOWN:]}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"
