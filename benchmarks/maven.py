"""Published Java libraries, fetched by their Maven coordinates.

``mvn`` resolves the coordinates and keeps the jars in its own local repository.  The resolved class path is kept in
``$XDG_CACHE_HOME/purgatory`` (``~/.cache/purgatory``), so the next run does not start Maven.  Nothing is written into
the checkout.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from .row import Unavailable

__all__ = ["cache", "classpath", "compile_java", "program"]

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>local</groupId><artifactId>classpath</artifactId><version>0</version>
<dependencies>{}</dependencies>
</project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>%s</dependency>"
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
_TIMEOUT_S = 900


def cache() -> Path:
    """Return the folder for fetched and compiled files; create it if it does not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "purgatory"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def program(name: str) -> str:
    """Return the path of a program on the PATH; raise Unavailable if there is none."""
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"there is no {name} on the PATH: Maven and a JDK of at least version 17 are needed")
    return found


def classpath(*coordinates: str, transitive: bool = True) -> str:
    """Return the class path of the artifacts (``group:artifact:version``) and of everything they need at run time.

    ``transitive``: False for the artifacts alone, if another class path has the rest.  Raises Unavailable if Maven is
    not installed or does not find the artifacts.
    """
    kept = cache() / f"{_digest(*coordinates, *(() if transitive else ('alone',)))}.classpath"
    if kept.is_file():
        path = kept.read_text()
        if all(Path(jar).is_file() for jar in path.split(os.pathsep)):
            return path
    dependency = _DEPENDENCY % ("" if transitive else _ALONE)
    dependencies = "".join(dependency.format(*each.split(":")) for each in coordinates)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pom.xml").write_text(_POM.format(dependencies))
        output = Path(folder) / "classpath"
        goal = ["dependency:build-classpath", "-Dmdep.includeScope=runtime", f"-Dmdep.outputFile={output}"]
        _run(
            [program("mvn"), "--quiet", "--batch-mode", *goal],
            folder,
            "Maven does not resolve " + ", ".join(coordinates),
        )
        path = output.read_text().strip()
    _write(kept, path)
    return path


def compile_java(source: Path, path: str) -> Path:
    """Compile one source file against the class path; return the folder with the classes.

    Raises Unavailable if there is no compiler.
    """
    folder = cache() / f"{source.stem}-{_digest(source.read_text(), path)}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=cache()) as made:
            _run(
                [program("javac"), "-cp", path, "-d", made, str(source)], made, f"javac does not compile {source.name}"
            )
            try:
                Path(made).rename(folder)
            except OSError:  # another process was faster
                if not folder.is_dir():
                    raise
            Path(made).mkdir(exist_ok=True)  # the context manager will remove it
    return folder


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def _write(file: Path, text: str) -> None:
    """Write the file in one step, so that another process reads either all of it or nothing."""
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as written:
        written.write(text)
    Path(written.name).replace(file)


def _run(command: list[str], folder: str, failure: str) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{failure} within {_TIMEOUT_S} s") from None
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line or "error" in line]
        raise Unavailable(f"{failure}: {lines[0] if lines else f'status {done.returncode}'}")
