"""Shell scripts, in the user's cache, that start a program with other arguments or another output."""

import os
import shlex
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

__all__ = ["cache_directory", "worker_python", "write_script"]

# Spark starts this module once per streaming query.  Its results go to a socket, and its standard output has nothing
# but messages about its progress, which Java passes on to standard error.
_INSPECTION = "pyspark.sql.streaming.transform_with_state_driver_worker"


def cache_directory() -> Path:
    """Return the directory for generated files that are kept for the next run."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aiopurgatory"


def write_script(script: Path, text: str) -> None:
    """Write an executable file in one step, unless it has this text already."""
    if script.is_file() and script.read_text() == text:
        return
    script.parent.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(dir=script.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(unfinished).chmod(0o755)
    Path(unfinished).replace(script)


def worker_python(python: str) -> str:
    """Return a command that starts ``python`` for Spark's workers, without the messages of a streaming query.

    Spark lets its workers import PySpark from a ZIP file, which contains no bytecode, so each of them compiles PySpark
    anew: 1.5 s of CPU.  If ``python`` is the interpreter of this process, the workers import the installed PySpark
    instead, as this process does.  ``python`` itself is returned where shell scripts cannot run.
    """
    if os.name == "nt":
        return python
    archives = _archives() if python == sys.executable else ""
    script = cache_directory() / f"python-{_file_name(python)}" / "bin" / "python"
    command = shlex.quote(python)
    try:
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
    """Return the beginning of the PYTHONPATH that Spark gives to its workers, or nothing if that is not known."""
    installed = find_spec("pyspark")
    if installed is None or installed.origin is None:
        return ""
    archives = sorted((Path(installed.origin).parent / "python" / "lib").glob("*.zip"), reverse=True)
    return "".join(f"{archive}{os.pathsep}" for archive in archives)


def _file_name(path: str) -> str:
    return "-".join(part for part in "".join(c if c.isalnum() else " " for c in path).split())
