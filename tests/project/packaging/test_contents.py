"""The published files: built here without compiling, and compared with the checkout."""

import email
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.project.packaging.contents import (
    BESIDE,
    BUILDING,
    PACKAGE,
    ROOT,
    TESTED,
    faults_of,
    sdist_faults,
    wheel_faults,
)

BUILD = importlib.util.find_spec("build")  # without an origin, it is a folder that setuptools has left

pytestmark = [
    pytest.mark.skipif(not (ROOT / PACKAGE).is_dir(), reason="needs the sources beside the tests"),
    pytest.mark.skipif(BUILD is None or BUILD.origin is None, reason="needs build"),
    pytest.mark.timeout(180),
]
_LEFT_OVERS = shutil.ignore_patterns("__pycache__", ".*", "*.so", "*.c", "*.egg-info")


URL = "https://code.example/people/purgatory"


def run(*command: str, cwd: Path, url: str = "") -> str:
    """Run a command that must succeed, and return its output.  ``url``: the address of the project."""
    environment = {**os.environ, "PURGATORY_COMPILE": "0", "PURGATORY_URL": url}
    result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def dists(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build a source distribution and the wheel from it.  Return them by suffix."""
    copy, out = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("dist")
    for folder in (PACKAGE, *TESTED):
        shutil.copytree(ROOT / folder, copy / folder, ignore=_LEFT_OVERS)
    for name in (*BESIDE, *BUILDING):
        shutil.copy(ROOT / name, copy / name)
    # Leftovers of earlier runs must not be included.
    (copy / "tests" / "__pycache__").mkdir()
    for left in (
        "tests/__pycache__/conftest.pyc",
        "purgatory/core/purgatory.c",
        "purgatory/core/purgatory.so",
        "examples/.coverage.1",
    ):
        (copy / left).write_bytes(b"")
    build = (sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", "--outdir", str(out))
    run(*build, "--sdist", cwd=copy, url=f"{URL}.git")  # as it is cloned
    (sdist,) = out.iterdir()
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as packed:
        packed.extractall(unpacked, filter="data")
    (sources,) = unpacked.iterdir()
    run(*build, "--wheel", cwd=sources)
    return {path.suffix: path for path in out.iterdir()}


@pytest.mark.slow
def test_the_source_distribution_has_what_it_takes_to_build_and_test(dists: dict[str, Path]) -> None:
    """It contains sources, tests, examples, benchmarks, pages and the license, and no leftovers of a run."""
    assert faults_of(dists[".gz"]) == []


@pytest.mark.slow
def test_a_wheel_without_the_compiler_needs_no_mypyc() -> None:
    """The build requires mypyc only where it compiles, so a pure wheel can be built where mypyc has no wheel."""
    code = "from setuptools import build_meta; print(build_meta.get_requires_for_build_wheel())"
    for setting, required in (("0", "[]"), ("1", "['mypy[mypyc]>=2.4']")):
        environment = {**os.environ, "PURGATORY_COMPILE": setting}
        command = [sys.executable, "-c", code]
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert result.stdout.splitlines()[-1] == required, result.stderr


def test_the_wheel_has_the_package_and_no_more(dists: dict[str, Path]) -> None:
    """The wheel contains every file of the package and the license, and nothing else."""
    assert dists[".whl"].name.endswith("-py3-none-any.whl")
    assert faults_of(dists[".whl"]) == []


def test_check_wheel_contents_agrees(dists: dict[str, Path]) -> None:
    """check-wheel-contents finds no problem."""
    pytest.importorskip("check_wheel_contents")
    run(sys.executable, "-m", "check_wheel_contents", str(dists[".whl"]), cwd=ROOT)


def test_the_wheel_works_on_its_own(dists: dict[str, Path], tmp_path: Path) -> None:
    """Unpacked outside the checkout, it parks and answers, pytest finds its fixtures, and the command works."""
    with zipfile.ZipFile(dists[".whl"]) as wheel:
        wheel.extractall(tmp_path)
    code = (
        "import sys; sys.path.insert(0, '.'); import asyncio, importlib.metadata, purgatory\n"
        "async def main():\n"
        "    async with purgatory.Purgatory('test') as room:\n"
        "        return await room.wait_until(lambda: True, keys=['a'], timeout=1.0)\n"
        "assert asyncio.run(main()), purgatory.__file__\n"
        "(found,) = importlib.metadata.distributions(path=['.'])\n"
        "(plugin,) = found.entry_points.select(group='pytest11')\n"
        "(command,) = found.entry_points.select(group='console_scripts')\n"
        "assert len(found.entry_points) == 2\n"
        "print(purgatory.__file__, found.version == purgatory.__version__, plugin.load().__file__, command.name)\n"
        "command.load()(['examples'])\n"
    )
    printed, *listed = run(sys.executable, "-P", "-c", code, cwd=tmp_path).splitlines()
    assert printed.split() == [
        str(tmp_path / "purgatory" / "__init__.py"),
        "True",
        str(tmp_path / "purgatory" / "pytest_plugin.py"),
        "purgatory",
    ]
    assert any("python -m examples.quickstart" in line for line in listed)


def metadata(wheel: Path) -> Any:
    """Return the metadata of the wheel as message headers."""
    with zipfile.ZipFile(wheel) as opened:
        (name,) = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(opened.read(name))


def test_each_extra_is_declared_and_has_requirements(dists: dict[str, Path]) -> None:
    """The metadata contains the extras of pyproject.toml, and an extra that refers to another one refers to an existing
    one.
    """
    fields = metadata(dists[".whl"])
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert set(fields.get_all("Provides-Extra")) == extras
    required = [line.partition(";") for line in fields.get_all("Requires-Dist")]
    for extra in extras:
        assert any(re.search(rf"extra == ['\"]{extra}['\"]", condition) for _, _, condition in required), extra
    for requirement, _, _ in required:
        if match := re.match(r"aiopurgatory\[(.*)\]", requirement):
            assert set(match[1].split(",")) <= extras


def test_the_metadata_tell_where_the_project_lives(dists: dict[str, Path]) -> None:
    """The metadata contains the address from the build of the sources; the wheel built from them has the same."""
    fields = dict(line.split(", ") for line in metadata(dists[".whl"]).get_all("Project-URL"))
    assert fields == {
        "Homepage": URL,
        "Documentation": f"{URL}/blob/HEAD/docs/index.md",
        "Changelog": f"{URL}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{URL}/issues",
        "Source": URL,
    }
    assert (ROOT / "docs" / "index.md").is_file()
    assert (ROOT / "CHANGELOG.md").is_file()


def test_the_links_of_the_description_are_absolute(dists: dict[str, Path]) -> None:
    """On the page of the package index, every link and picture leads to the repository, and code is unchanged."""
    description = metadata(dists[".whl"]).get_payload()
    prose = re.sub(r"^```.*?^```$", "", description, flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)]+)\)", prose) + re.findall(r"\bsrc(?:set)?=\"([^\"]+)\"", prose)
    assert len(links) > 20
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert all(
        (ROOT / found[1]).exists() for link in links if (found := re.match(rf"{URL}/(?:blob|raw)/HEAD/([^#]*)", link))
    )
    code = re.findall(r"^```.*?^```$", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert code
    assert all(block in description for block in code)


@pytest.mark.parametrize("url", ["purgatory", "http://code.example/people/purgatory", "https://code.example"])
def test_an_address_that_is_none_is_an_error(url: str) -> None:
    """An invalid address is an error."""
    environment = {**os.environ, "PURGATORY_URL": url}
    command = [sys.executable, "setup.py", "--name"]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.strip() == f"PURGATORY_URL must be the https:// address of the repository, got {url!r}"


def test_the_licence_is_declared_once_and_included(dists: dict[str, Path]) -> None:
    """The license is an SPDX expression in the metadata, and its text is in the wheel and the sources."""
    fields = metadata(dists[".whl"])
    assert (fields["License-Expression"], fields.get_all("License-File")) == ("Apache-2.0", ["LICENSE"])
    assert not [line for line in fields.get_all("Classifier") if line.startswith("License")]
    text = (ROOT / "LICENSE").read_bytes()
    with zipfile.ZipFile(dists[".whl"]) as wheel, tarfile.open(dists[".gz"]) as sdist:
        (packed,) = [name for name in wheel.namelist() if name.endswith("licenses/LICENSE")]
        assert wheel.read(packed) == text
        (member,) = [found for found in sdist.getmembers() if found.name.count("/") == 1 and "LICENSE" in found.name]
        held = sdist.extractfile(member)
        assert held is not None
        assert held.read() == text


def good_wheel() -> set[str]:
    """Return the names of the files in a correct wheel."""
    info = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt", "licenses/LICENSE")
    package = {
        path.relative_to(ROOT).as_posix() for kind in ("css", "html", "js", "properties", "py")
        for path in (ROOT / PACKAGE).rglob(f"*.{kind}")
    }  # fmt: skip
    return {f"aiopurgatory-1.dist-info/{name}" for name in info} | package | {"purgatory/py.typed"}


@pytest.mark.parametrize(
    "name",
    [
        "tests/conftest.py",
        "examples/__init__.py",
        "purgatory/core/purgatory.c",
        "purgatory/.gitignore",
        "room.py",
        "docs/index.md",
    ],
)
def test_what_has_no_place_in_a_wheel_is_found(name: str) -> None:
    """An extra file is reported."""
    assert list(wheel_faults(good_wheel(), pure=True)) == []
    assert list(wheel_faults(good_wheel() | {name}, pure=True)) == [f"{name} has no place in it"]


@pytest.mark.parametrize(
    "name",
    [
        "purgatory/py.typed",
        "purgatory/journal/schema.py",
        "purgatory/pytest_plugin.py",
        "purgatory/pipeline/output/page.html",
        "purgatory/asgi/inspector/page/page.js",
    ],
)
def test_what_is_missing_in_a_wheel_is_found(name: str) -> None:
    """A missing file is reported."""
    assert list(wheel_faults(good_wheel() - {name}, pure=True)) == [f"{name} is missing"]


def test_a_compiled_module_is_only_where_it_may_be() -> None:
    """It is allowed only in a wheel for one platform, next to its source, with the shared library."""
    library, module = (
        "ab__mypyc.cpython-311-x86_64-linux-gnu.so",
        "purgatory/core/purgatory.cpython-311-x86_64-linux-gnu.so",
    )
    stranger = "purgatory/strange.cpython-311-x86_64-linux-gnu.so"
    assert list(wheel_faults(good_wheel() | {library, module}, pure=False)) == []
    assert list(wheel_faults(good_wheel() | {library, stranger}, pure=False)) == [f"{stranger} has no source beside it"]
    assert list(wheel_faults(good_wheel() | {module}, pure=False)) == ["there is not one library of the compiled core"]
    assert len(list(wheel_faults(good_wheel() | {library, module}, pure=True))) == 2


def test_what_is_wrong_with_a_source_distribution_is_found() -> None:
    """Missing tests and leftover builds are reported."""
    faults = list(
        sdist_faults({"PKG-INFO", "setup.cfg", "aiopurgatory.egg-info/SOURCES.txt", "purgatory/core/purgatory.c"})
    )
    assert "tests/conftest.py is missing" in faults
    assert "examples/quickstart.py is missing" in faults
    assert "purgatory/core/purgatory.c has no place in it" in faults
    assert not [fault for fault in faults if fault.startswith(("PKG-INFO", "setup.cfg", "aiopurgatory"))]
