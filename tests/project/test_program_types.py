"""The types of the programs in README and docs: each passes mypy and pyright in strict mode, as a reader copies it.

A fence ``py`` marks an excerpt, which is left out.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.test_docs import BLOCKS, ROOT
from tests.project.test_typing import described, pyright, pyright_is_there

UNTYPED = {"grpc"}  # packages without types: what these programs do with them has no type either
PARTLY_TYPED = {*UNTYPED, "redis"}  # for pyright


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with each program in a file of its own, named after its page and line."""
    folder = tmp_path_factory.mktemp("programs")
    for block in BLOCKS:
        page = block.path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "__").replace("-", "_")
        (folder / f"{page.replace('.', '_')}_{block.line}.py").write_text(block.text, encoding="utf-8")
    return folder


def imports(path: str, packages: set[str]) -> bool:
    """Return whether the program imports one of the packages."""
    text = Path(path).read_text(encoding="utf-8")
    return any(f"{word} {package}" in text for package in packages for word in ("import", "from"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_mypy_understands_every_program(programs: Path) -> None:
    """``mypy --strict`` finds nothing in any program."""
    (programs / "mypy.ini").write_text("[mypy]\nstrict = true\n", encoding="utf-8")
    files = sorted(programs.glob("*.py"))
    untyped = [f"--disable-error-code={code}" for code in ("import-untyped",)]
    groups = {True: untyped, False: []}
    for is_untyped, options in groups.items():
        some = [str(path) for path in files if imports(str(path), UNTYPED) is is_untyped]
        command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", *options, *some]
        environment = {**os.environ, "MYPYPATH": str(ROOT)}
        result = subprocess.run(command, cwd=programs, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
@pyright_is_there
@pytest.mark.timeout(300)
def test_pyright_understands_every_program(programs: Path) -> None:
    """pyright in strict mode finds nothing, except that parts of other packages have no types."""
    settings = {"typeCheckingMode": "strict", "include": ["."], "extraPaths": [str(ROOT)]}
    project = programs / "pyrightconfig.json"
    project.write_text(json.dumps(settings), encoding="utf-8")
    report = pyright("--project", str(project))
    found = [
        diagnostic
        for diagnostic in report["generalDiagnostics"]
        if not (diagnostic.get("rule", "").startswith("reportUnknown") and imports(diagnostic["file"], PARTLY_TYPED))
    ]
    assert not found, described(found)
    assert report["summary"]["filesAnalyzed"] >= len(BLOCKS)
