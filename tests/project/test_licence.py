"""The license is stated only in the metadata, with its text in a file; no file has a license header."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
MARKS = ("SPDX-" + "License-Identifier", "SPDX-" + "FileCopyrightText", "Licensed under the " + "Apache License")
SUFFIXES = {"", ".css", ".html", ".js", ".json", ".md", ".py", ".sh", ".svg", ".toml", ".typed", ".yml"}


@pytest.mark.parametrize(
    "folder", ["purgatory", "tests", "examples", "benchmarks", "docs", ".ci", ".github", "setup.py", "pyproject.toml"]
)
def test_no_file_has_a_licence_header(folder: str) -> None:
    """No file has a header, because a header in some files would raise questions about the others."""
    start = ROOT / folder
    if not start.exists():
        pytest.skip(f"{folder} is not part of this copy")
    files = [start] if start.is_file() else [path for path in start.rglob("*") if path.is_file()]
    texts = [path for path in files if path.suffix in SUFFIXES and "__pycache__" not in path.parts]
    assert texts
    found = [str(path) for path in texts for mark in MARKS if mark in path.read_text(encoding="utf-8")]
    assert found == []


def test_the_metadata_names_the_licence() -> None:
    """The metadata contains an SPDX expression, and the file with the text."""
    if not (ROOT / "LICENSE").exists():
        pytest.skip("the text of the licence is not part of this copy")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")[:200]
