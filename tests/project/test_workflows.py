"""The CI workflow runs the same checks as ``.ci/run``."""

import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.parts import missing
from tests.project.packaging.install import supported

ROOT = Path(__file__).parent.parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

STEPS = (
    re.findall(r"^step_(\w+)\(\)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    if WORKFLOWS
    else []
)

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


def test_an_audit_of_the_workflows_finds_nothing() -> None:
    """Not even what only an auditor would mention.  Without the network, actions are not compared with advisories."""
    zizmor = Path(sysconfig.get_path("scripts"), "zizmor")
    if not zizmor.exists():
        missing("zizmor is not installed")
    command = [str(zizmor), "--offline", "--quiet", "--persona", "auditor", str(ROOT / ".github")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_checks_are_those_of_the_repository() -> None:
    """There is a job for each Python version in the metadata; the newest one runs the quick tests only.

    The jobs run every step of ``.ci/run`` but one, which runs the tests on the other Pythons of a machine.
    """
    jobs = workflow("ci.yml")["jobs"]
    job = jobs["all"]
    pythons = [*job["strategy"]["matrix"]["python"], *jobs["quick"]["strategy"]["matrix"]["python"]]
    pythons += [extra["python"] for extra in jobs["quick"]["strategy"]["matrix"]["include"]]
    assert set(pythons) == set(supported())
    commands = [step["run"].split() for step in job["steps"] if "run" in step]
    assert all(command[:2] == ["bash", ".ci/run"] for command in commands)
    assert sorted(step for command in commands for step in command[2:]) == sorted({*STEPS} - {"pythons"})
    (python,) = [step for step in job["steps"] if str(step.get("uses")).startswith("actions/setup-python@")]
    assert python["with"]["python-version"] == "${{ matrix.python }}"


def test_a_step_that_does_not_exist_is_refused() -> None:
    """The message lists the steps, and nothing is cloned."""
    result = subprocess.run(["bash", ".ci/run", "lnit"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.strip() == f"STEP must be one of: {' '.join(STEPS)}, got lnit"


def test_the_other_systems_run_the_quick_tests() -> None:
    """macOS and Windows run the command of CONTRIBUTING.md."""
    job = workflow("ci.yml")["jobs"]["quick"]
    assert set(job["strategy"]["matrix"]["os"]) == {"macos-latest", "windows-latest"}
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands[-1] == "python -m pytest -n 2 --dist loadgroup"
    assert commands[-1].removeprefix("python ") in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


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
    """Each workflow declares read-only permissions, a time limit for each job, and the hash of every action.

    Only the job that publishes may do more: it proves the identity of the workflow to the package index.
    """
    read = workflow(path.name)
    assert read["permissions"] == {"contents": "read"}
    for name, job in read["jobs"].items():
        assert job.get("permissions", {}) == ({"id-token": "write"} if name == "publish" else {})
        assert job["timeout-minutes"] <= 60
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", step["uses"])
            if str(step.get("uses")).startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_only_a_tag_publishes() -> None:
    """The job that publishes waits for the tests of the wheels, and runs for a tag only."""
    job = workflow("release.yml")["jobs"]["publish"]
    assert job["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert set(job["needs"]) == {"wheels", "sources"}
