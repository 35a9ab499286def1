"""Shell scripts, in the user's cache, that start a program with other arguments or another output."""

import os
import shlex
import tempfile
from pathlib import Path

__all__ = ["cache_directory", "quiet_python", "write_script"]

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


def quiet_python(python: str) -> str:
    """Return a command for Spark's Python workers that starts ``python`` without the messages of a streaming query.

    ``python`` itself is returned where shell scripts cannot run.
    """
    if os.name == "nt":
        return python
    script = cache_directory() / f"python-{_file_name(python)}" / "bin" / "python"
    command = shlex.quote(python)
    try:
        write_script(
            script,
            "#!/bin/sh\n"
            "# Drops the messages of the worker that inspects the processor of a streaming query.\n"
            'case "$*" in\n'
            f'  *"{_INSPECTION}"*) exec {command} "$@" > /dev/null ;;\n'
            f'  *) exec {command} "$@" ;;\n'
            "esac\n",
        )
    except OSError:
        return python
    return str(script) if os.access(script, os.X_OK) else python


def _file_name(path: str) -> str:
    return "-".join(part for part in "".join(c if c.isalnum() else " " for c in path).split())
