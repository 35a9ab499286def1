"""The types of the programs in README and docs: each passes mypy and pyright in strict mode, as a reader copies it.

A fence ``py`` marks an excerpt, which is left out, except for the whole files of the page about testing.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.project.test_typing import described, pyright_is_there

UNTYPED = {"grpc"}  # packages without types: what these programs do with them has no type either
PARTLY_TYPED = {*UNTYPED, "redis", "fastapi.testclient"}  # for pyright


def imports(path: str, packages: set[str]) -> bool:
    """Return whether the program imports one of the packages."""
    text = Path(path).read_text(encoding="utf-8")
    return any(f"{word} {package}" in text for package in packages for word in ("import", "from"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_mypy_understands_every_program(programs: Path, mypy_findings: list[str]) -> None:
    """``mypy --strict`` finds nothing in any program, except that a package has no types."""
    found = [
        finding
        for finding in mypy_findings
        if finding.startswith(str(programs))
        and not (finding.endswith("[import-untyped]") and imports(finding.partition(":")[0], UNTYPED))
    ]
    assert not found, "\n".join(found)


@pytest.mark.slow
@pyright_is_there
@pytest.mark.timeout(300)
def test_pyright_understands_every_program(programs: Path, pyright_findings: list[dict[str, Any]]) -> None:
    """pyright in strict mode finds nothing, except that parts of other packages have no types."""
    found = [
        finding
        for finding in pyright_findings
        if Path(finding["file"]).parent == programs
        and not (finding.get("rule", "").startswith("reportUnknown") and imports(finding["file"], PARTLY_TYPED))
    ]
    assert not found, described(found)
