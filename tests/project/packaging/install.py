"""Install built distributions in new environments, use them, and uninstall them again.

    python -m tests.project.packaging.install DIST... [--python PYTHON]... [--compiler works|fails|missing]...
    python -m tests.project.packaging.install DIST... --others [--compiler works|fails|missing]...
    python -m tests.project.packaging.install DIST... --keep FOLDER

A wheel is installed as it is.  A source distribution is built with a C compiler, with a compiler that fails, and
without any compiler.  Each installation must run the command, be compiled or not as expected, and leave no file behind
when it is uninstalled.  With ``--others``, each other CPython in the metadata does this, if the machine has it; the
output names those that it does not have.  With ``--keep``, a wheel that is compiled from a source distribution is also
copied into the folder.  The script exits with 1 if something is wrong.  It needs the package index
for the build requirements.  Building a compiled core takes about a minute, and there is one installation at a time for
each CPU.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["COMPILERS", "Case", "cases", "changes", "files", "find", "supported"]

METADATA = Path(__file__).parents[3] / "pyproject.toml"

DEPENDENCY = "mypy-extensions>=1.0"  # pip does not uninstall what it installed as a dependency
WHICH = (
    "import ensurepip, sys, venv;"
    "print(sys.implementation.name, '%d.%d' % sys.version_info[:2] + getattr(sys, 'abiflags', ''))"  # t: free-threaded
)
CHECK = "import asyncio, purgatory, sys; sys.exit(purgatory.COMPILED is not {compiled})"


class Wrong(Exception):
    """An installation is not as it must be; the message says in which way."""


@dataclass(frozen=True)
class Case:
    """One installation: a distribution, the compiler it meets, and the expected result.

    ``says``: a part of what the build prints.
    """

    dist: Path
    compiler: str = "none needed"
    compiled: bool = False
    says: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    has_path: bool = True

    def __str__(self) -> str:
        kind = "wheel" if self.dist.suffix == ".whl" else "sdist"
        core = "compiled" if self.compiled else "interpreted"
        return f"{kind}, compiler: {self.compiler}; core {core}"


COMPILERS = ("works", "fails", "missing")


def cases(dist: Path, compilers: Sequence[str] = COMPILERS) -> Iterator[Case]:
    """Return the installations to try with a distribution.  ``compilers``: those that a source distribution meets."""
    if dist.suffix == ".whl":
        yield Case(dist, compiled=not dist.name.endswith("-none-any.whl"))
        return
    if "works" in compilers:
        yield Case(dist, "works", compiled=True)
    if "fails" in compilers:
        yield Case(dist, "fails (CC=false)", says="the C compiler failed", environment={"CC": "false"})
    if "missing" in compilers:
        yield Case(dist, "missing on the PATH", says="no C compiler found", has_path=False)


def supported() -> list[str]:
    """Return the Python versions in the metadata, such as ``3.11``."""
    project = tomllib.loads(METADATA.read_text(encoding="utf-8"))["project"]
    return [found[1] for line in project["classifiers"] if (found := re.search(r":: (3\.\d+)$", line))]


def find(version: str, environment: Mapping[str, str]) -> str | None:
    """Return a CPython of the version, on the PATH or from pyenv, that starts and can make environments."""
    pyenv = Path(environment.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    places = [Path(place) for place in environment.get("PATH", "").split(os.pathsep) if place]
    for place in [*places, *sorted(pyenv.glob(f"{version}.*/bin"))]:
        command = str(place / f"python{version}")
        try:  # it can be a shim of pyenv that starts nothing
            said = subprocess.run(
                [command, "-c", WHICH], capture_output=True, text=True, check=False, timeout=60
            ).stdout
        except (OSError, subprocess.TimeoutExpired):
            continue
        if said.strip() == f"cpython {version}":
            return command
    return None


def fits(dist: Path, python: str) -> bool:
    """Return whether the Python can install the file: a compiled wheel is for one version only."""
    if dist.suffix != ".whl" or dist.name.endswith("-none-any.whl"):
        return True
    version = run([python, "-c", "import sys; print('cp%d%d' % sys.version_info[:2])"], {}).strip()
    return f"-{version}-" in dist.name


def files(folder: Path) -> dict[str, str]:
    """Return every file of the folder, with a hash of its content."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return what differs: files that were added, removed or changed."""
    return [
        *(f"added {name}" for name in sorted(after.keys() - before.keys())),
        *(f"removed {name}" for name in sorted(before.keys() - after.keys())),
        *(f"changed {name}" for name in sorted(before.keys() & after.keys()) if before[name] != after[name]),
    ]


def run(command: list[str], environment: dict[str, str], cwd: Path | None = None) -> str:
    """Run a command that must succeed, and return its output."""
    unset = {"CC", "PIP_QUIET", "PYTHONPATH", "PYTHONHOME", "PURGATORY_COMPILE", "PURGATORY_URL", "VIRTUAL_ENV"}
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    result = subprocess.run(
        command,
        cwd=cwd,
        env={**inherited, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode:
        raise Wrong(f"{' '.join(command[:4])} ... exits with {result.returncode}:\n{result.stdout}")
    return result.stdout


def try_out(case: Case, python: str, folder: Path, keep: Path | None = None) -> str:
    """Install, use and uninstall in a new environment.  Return the version line; raise Wrong.

    ``keep``: a folder for the wheel that is compiled.
    """
    place, elsewhere = folder / "environment", folder / "elsewhere"
    elsewhere.mkdir()
    run([python, "-m", "venv", str(place)], {})
    scripts = place / ("Scripts" if sys.platform == "win32" else "bin")
    new = str(scripts / "python")
    pip = [new, "-m", "pip"]
    run([*pip, "install", "--quiet", DEPENDENCY], {}, elsewhere)
    before = files(place)

    environment = {**case.environment, **({} if case.has_path else {"PATH": str(scripts)})}
    dist = case.dist
    if keep is not None and case.compiler == "works":  # in the two steps of pip's installation
        wheels = folder / "wheels"
        run([*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(dist)], environment, elsewhere)
        (dist,) = wheels.iterdir()
        shutil.copy(dist, keep)
    built = run([*pip, "install", "--verbose", str(dist)], environment, elsewhere)
    if case.says not in built:
        raise Wrong(f"the build must print {case.says!r}:\n{built}")
    run([new, "-c", CHECK.format(compiled=case.compiled)], {}, elsewhere)
    run([*pip, "check"], {}, elsewhere)
    command = str(scripts / "purgatory")
    version = run([command, "--version"], {}, elsewhere).strip()
    if "9,997 of 10,000" not in run([command, "demo"], {}, elsewhere):
        raise Wrong("the demonstration is not complete")

    run([*pip, "uninstall", "--yes", "aiopurgatory"], {}, elsewhere)
    left = changes(before, files(place)) + [f"added {name} outside" for name in files(elsewhere)]
    if left:
        raise Wrong("the installation was not undone:\n" + "\n".join(left))
    return version


def timed(case: Case, python: str, keep: Path | None = None) -> tuple[str, bool]:
    """Return the seconds and the version line or what is wrong, and whether something is wrong."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            result, is_wrong = try_out(case, python, Path(folder), keep), False
        except Wrong as error:
            result, is_wrong = f"WRONG: {error}", True
    return f"{time.monotonic() - began:.0f} s: {result}", is_wrong


def main(arguments: list[str] | None = None) -> int:
    """Try every distribution with every Python."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.project.packaging.install", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("dists", nargs="+", type=Path, metavar="DIST", help="a wheel or a source distribution")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--python", action="append", help="a Python to install with, repeatable (this one)")
    which.add_argument("--others", action="store_true", help="each other supported CPython that the machine has")
    parser.add_argument("--compiler", action="append", choices=COMPILERS, help="for a source distribution (all three)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="copy wheels that are compiled into this folder")
    options = parser.parse_args(arguments)
    for dist in options.dists:
        if not (zipfile.is_zipfile(dist) if dist.suffix == ".whl" else dist.name.endswith(".tar.gz")):
            parser.error(f"DIST must be a wheel or a source distribution, got {dist}")
    pythons: list[str] = options.python or [sys.executable]
    if options.others:
        this = "{}.{}".format(*sys.version_info)
        others = {version: find(version, os.environ) for version in supported() if version != this}
        pythons = [python for python in others.values() if python]
        for version in (version for version, python in others.items() if not python):
            print(f"not checked: CPython {version}, which was not found on this machine", flush=True)
    found = [
        (case, python)
        for python in pythons
        for dist in options.dists
        if fits(dist, python)
        for case in cases(dist.resolve(), options.compiler or COMPILERS)
    ]
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    wrong = 0
    with ThreadPoolExecutor(os.cpu_count()) as executor:
        results = executor.map(lambda one: timed(*one, options.keep), found)
        for (case, python), (result, is_wrong) in zip(found, results, strict=True):
            wrong |= is_wrong
            print(f"{python}: {case}, {result}" if options.others else f"{case}, {result}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
