"""The CI workflow runs the same checks as ``.ci/run``."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.project.packaging.install import supported

ROOT = Path(__file__).parent.parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="the workflows are not part of this copy")


def workflow(name: str) -> Any:
    """Return the parsed workflow."""
    yaml = pytest.importorskip("ruamel.yaml")
    return yaml.YAML(typ="safe").load(ROOT / ".github" / "workflows" / name)


def test_the_workflows_are_workflows() -> None:
    """The workflows are valid by the schema of the CI system."""
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    result = subprocess.run([*command, *map(str, WORKFLOWS)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_checks_are_those_of_the_repository() -> None:
    """There is one job for each Python version in the metadata, and its only command is ``.ci/run``."""
    (job,) = workflow("ci.yml")["jobs"].values()
    assert set(job["strategy"]["matrix"]["python"]) == set(supported())
    assert [step["run"] for step in job["steps"] if "run" in step] == ["bash .ci/run"]
    (python,) = [step for step in job["steps"] if str(step.get("uses")).startswith("actions/setup-python@")]
    assert python["with"]["python-version"] == "${{ matrix.python }}"


def test_wheels_are_built_for_each_python() -> None:
    """Wheels are built for the Python versions in the metadata."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cibuildwheel"]
    built = {f"{found[1]}.{found[2]}" for found in re.finditer(r"cp(\d)(\d+)-\*", settings["build"])}
    assert built == set(supported())


def test_the_wheel_is_what_is_tested() -> None:
    """Neither the working directory nor the path of pytest contains the sources before the wheel."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cibuildwheel"]
    checked, tested = settings["test-command"].split(" && ")
    assert checked.startswith("python -P -c ")
    assert tested.startswith("python -P -m pytest ")
    assert " -o pythonpath= " in tested
    for path in re.findall(r"\{project\}/(\S+)", tested):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: str(path.name))
def test_a_workflow_may_only_read(path: Path) -> None:
    """Each workflow declares read-only permissions, and pins the version of every action."""
    read = workflow(path.name)
    assert read["permissions"] == {"contents": "read"}
    used = [step["uses"] for job in read["jobs"].values() for step in job["steps"] if "uses" in step]
    assert used
    assert all(re.search(r"@v?\d", action) for action in used)
