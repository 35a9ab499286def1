"""The exact content of a built distribution.

    python -m tests.project.packaging.contents DIST...

prints what is wrong with each wheel and source distribution, and exits with 1 if something is wrong.
"""

import argparse
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

__all__ = ["faults_of", "sdist_faults", "wheel_faults"]

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = "purgatory"
METADATA = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt", "licenses/LICENSE"}
TESTED = ("tests", "examples", "benchmarks", "docs")
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "README.zh-CN.md", "SECURITY.md")
BUILDING = ("MANIFEST.in", "mkdocs.yml", "pyproject.toml", "setup.py")
MADE = re.compile(r"PKG-INFO|setup\.cfg|[^/]+\.egg-info(/.*)?")  # files that the build adds to an sdist
LEFT_OVER = re.compile(r"(.*/)?(__pycache__|\.[^/]*_cache|build|dist|\.hypothesis)(/.*)?|.*\.(py[cod]|so|c|o)")
EXTENSION = re.compile(r"(?P<module>.+?)\.(cpython-\d+[^/]*\.so|cp\d+[^/]*\.pyd)")


def sources(*folders: str) -> set[str]:
    """Return the files of the directories in this checkout that are not leftovers of a run."""
    found: set[str] = set()
    for folder in folders:
        for path in (ROOT / folder).rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            if path.is_file() and not LEFT_OVER.fullmatch(name):
                found.add(name)
    return found


def wheel_faults(names: Iterable[str], *, pure: bool) -> Iterator[str]:
    """Return what is wrong with a wheel of these files.  ``pure``: whether its name says that nothing is compiled."""
    names = {name for name in names if not name.endswith("/")}
    expected = sources(PACKAGE)
    info = {name for name in names if ".dist-info/" in name}
    present = {name.partition(".dist-info/")[2] for name in info}
    yield from (f"{name} is missing from the metadata" for name in sorted(METADATA - present))
    yield from (f"{name} has no place in the metadata" for name in sorted(present - METADATA))
    yield from (f"{name} is missing" for name in sorted(expected - names))
    compiled = {match["module"]: name for name in names if (match := EXTENSION.fullmatch(name))}
    for module, name in sorted(compiled.items()):
        if pure:
            yield f"{name} is compiled, and the wheel says that it is for every machine"
        elif not module.endswith("__mypyc") and f"{module}.py" not in expected:
            yield f"{name} has no source beside it"
    if not pure and sum(module.endswith("__mypyc") for module in compiled) != 1:
        yield "there is not one library of the compiled core"
    yield from (f"{name} has no place in it" for name in sorted(names - expected - info - set(compiled.values())))


def sdist_faults(names: Iterable[str]) -> Iterator[str]:
    """Return what is wrong with a source distribution of these files, without their common directory."""
    names = set(names)
    expected = sources(PACKAGE, *TESTED) | {*BESIDE, *BUILDING}
    yield from (f"{name} is missing" for name in sorted(expected - names))
    yield from (f"{name} has no place in it" for name in sorted(names - expected) if not MADE.fullmatch(name))


def faults_of(dist: Path) -> list[str]:
    """Return what is wrong with the file."""
    if dist.suffix == ".whl":
        with zipfile.ZipFile(dist) as wheel:
            return list(wheel_faults(wheel.namelist(), pure=dist.name.endswith("-none-any.whl")))
    with tarfile.open(dist) as sdist:
        members = [PurePosixPath(member.name) for member in sdist.getmembers() if member.isfile()]
    return list(sdist_faults("/".join(member.parts[1:]) for member in members))


def main(arguments: list[str] | None = None) -> int:
    """Check each given file."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.project.packaging.contents", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("dists", nargs="+", type=Path, metavar="DIST", help="a wheel or a source distribution")
    bad = 0
    for dist in parser.parse_args(arguments).dists:
        for fault in faults_of(dist):
            print(f"{dist.name}: {fault}", file=sys.stderr)
            bad = 1
    return bad


if __name__ == "__main__":
    sys.exit(main())
