"""The findings of the type checkers: one run of each reads all files that the tests give it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.project.test_docs import BLOCKS, ROOT
from tests.project.test_typing import FILES, pyright

# The files of the page about testing, by name: they import each other, so the page cannot run them one by one.
_PAGE = (ROOT / "docs" / "how-to" / "testing-web-applications.md").read_text(encoding="utf-8")
WHOLE_FILES: dict[str, str] = dict(re.findall(r"^```py\n# (\w+\.py)\n(.*?)^```$", _PAGE, re.MULTILINE | re.DOTALL))

_MYPY = f"""
[mypy]
python_version = 3.11
strict = true
warn_unreachable = true
enable_error_code = ignore-without-code, redundant-expr, truthy-bool
explicit_package_bases = true
mypy_path = {ROOT}
"""


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with each program of the pages in a file of its own, named after its page and line, and the files
    of the page about testing under their own names.
    """
    folder = tmp_path_factory.mktemp("programs")
    for block in BLOCKS:
        page = block.path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "__").replace("-", "_")
        (folder / f"{page.replace('.', '_')}_{block.line}.py").write_text(block.text, encoding="utf-8")
    for name, text in WHOLE_FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def mypy_findings(programs: Path) -> list[str]:
    """Return what ``mypy --strict`` prints about the programs and about the files that use the public surface."""
    (programs / "mypy.ini").write_text(_MYPY, encoding="utf-8")
    files = [*map(str, FILES), *sorted(map(str, programs.glob("*.py")))]
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--show-absolute-path", *files]
    result = subprocess.run(command, cwd=programs, capture_output=True, text=True, check=False)
    *findings, summary = result.stdout.splitlines() or [""]
    assert f"{len(files)} source files" in summary, result.stdout + result.stderr
    return [finding for finding in findings if ": error: " in finding]


@pytest.fixture(scope="session")
def pyright_findings(programs: Path) -> list[dict[str, Any]]:
    """Return what pyright, in strict mode, finds in the programs and in the files that use the public surface."""
    settings = {
        "typeCheckingMode": "strict",
        "enableTypeIgnoreComments": False,  # these comments are for mypy
        "reportUnnecessaryTypeIgnoreComment": "error",
        "include": [".", os.path.relpath(FILES[0].parent, programs)],
        "extraPaths": [str(ROOT)],
    }
    project = programs / "pyrightconfig.json"
    project.write_text(json.dumps(settings), encoding="utf-8")
    report = pyright("--project", str(project))
    assert report["summary"]["filesAnalyzed"] >= len(BLOCKS) + len(WHOLE_FILES) + len(FILES)
    findings: list[dict[str, Any]] = report["generalDiagnostics"]
    return findings
