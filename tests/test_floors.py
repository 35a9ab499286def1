"""The house: who imports whom, what is public, and what importing it loads."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import purgatory

HOUSE = Path(purgatory.__file__).parent

# Each floor may import what is below it; those on one floor in the order given here, the lowest first.
FLOORS: dict[str, int] = {
    "errors": 0,
    "events": 0,
    "units": 0,
    "headroom": 0,
    "histogram": 0,
    "timer": 1,
    "timer.task": 1,
    "timer.wheel": 2,
    "timer.system": 2,
    "watch": 3,
    "endings": 3,
    "operation": 3,
    "delayed": 3,
    "thresholds": 3,
    "keys": 3,
    "watchers": 3,
    "books": 3,
    "ledger": 3,
    "hearing": 3,
    "clock": 4,
    "timekeeper": 4,
    "keeper": 4,
    "checks": 4,
    "desk": 4,
    "room": 4,
    "rounds": 4,
    "dump": 4,
    "futures": 4,
    "timeouts": 4,
    "reaper": 4,
    "conditions": 4,
    "purgatory": 4,
    "levels": 5,
    "lobby": 5,
}
ORDER = list(FLOORS)
NO_WORLD = {
    "asyncio", "concurrent", "io", "logging", "multiprocessing", "os", "pathlib", "select", "selectors", "signal",
    "socket", "subprocess", "threading", "time", "datetime", "sched", "queue", "random", "secrets",
}  # fmt: skip
OPTIONAL = [
    "uvloop",
    "anyio",
    "aiohttp",
    "starlette",
    "uvicorn",
    "rich",
    "opentelemetry",
    "pyarrow",
    "pyspark",
    "pytest",
]
PLAIN = ["errors.py", "events.py"]


def _modules() -> dict[str, Path]:
    """Every module of the package by its name inside it; rooms of their own are left to their tests."""
    found = {}
    for path in HOUSE.rglob("*.py"):
        parts = list(path.relative_to(HOUSE).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = path
    return found


MODULES = _modules()


def _imports(path: Path, name: str) -> set[str]:
    """What a module imports when it is loaded, as absolute names; what is for type checkers only is left out."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in hidden:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = ["purgatory", *([] if not package else package.split("."))]
                base = ".".join(filter(None, [*parts[: len(parts) - node.level + 1], base]))
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names if f"{base}.{alias.name}"[10:] in MODULES)
    return found


def _of_the_house(imported: set[str]) -> set[str]:
    return {name[10:] for name in imported if name.startswith("purgatory.")} & set(MODULES)


def test_every_module_of_the_core_has_a_floor() -> None:
    """A module that another one of the core imports is named in the table of floors."""
    for name in FLOORS:
        assert name in MODULES, f"{name} is in the table and not in the house"
    for name in FLOORS:
        for imported in _of_the_house(_imports(MODULES[name], name)):
            assert imported in FLOORS, f"{name} of the core imports {imported}, which has no floor"


@pytest.mark.parametrize("name", FLOORS)
def test_a_floor_imports_only_what_is_below_it(name: str) -> None:
    """The floors of the table hold, read as code."""
    for imported in _of_the_house(_imports(MODULES[name], name)):
        assert FLOORS[imported] <= FLOORS[name], f"{name} (F{FLOORS[name]}) imports {imported} (F{FLOORS[imported]})"
        assert ORDER.index(imported) < ORDER.index(name), f"{name} imports {imported}, which stands above it"


@pytest.mark.parametrize("name", [name for name, floor in FLOORS.items() if floor <= 3])
def test_the_lower_floors_know_no_world(name: str) -> None:
    """Up to floor 3 there is no asyncio, no clock, no thread, no input and output."""
    for imported in _imports(MODULES[name], name):
        assert imported.partition(".")[0] not in NO_WORLD, f"{name} imports {imported}"


@pytest.mark.parametrize("name", sorted(set(MODULES) - set(FLOORS) - {""}))
def test_other_rooms_are_imported_by_nobody_inside(name: str) -> None:
    """What is not core may import the core, and the core never imports it."""
    for floor in ["", *FLOORS]:
        assert name not in _of_the_house(_imports(MODULES[floor], floor)) or floor == "", f"{floor} imports {name}"


@pytest.mark.parametrize("name", [name for name in FLOORS if name != "timer"])
def test_all_names_what_a_module_defines(name: str) -> None:
    """__all__ is there, sorted, and every name in it exists; what a module defines in public is in it."""
    module = importlib.import_module(f"purgatory.{name}")
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    public = {
        node.name
        for node in tree.body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_")
    }
    assert len(set(module.__all__)) == len(module.__all__)
    for listed in module.__all__:
        assert hasattr(module, listed), f"{name}.__all__ names {listed}, which is not there"
    assert public <= set(module.__all__), f"{name}: {public - set(module.__all__)} is public and not in __all__"


def test_the_public_surface_is_what_is_promised() -> None:
    """The names that users rely on are there, and nothing else is in __all__ by accident."""
    promised = {
        "DelayedOperation", "Event", "Observer", "OperationCancelled", "Outcome", "Purgatory", "PurgatoryClosed",
        "PurgatoryError", "PurgatoryFull", "Quantiles", "Statistics", "SystemTimer", "TimerTask", "TimerTaskList",
        "TimingWheel",
    }  # fmt: skip
    assert promised <= set(purgatory.__all__)
    for name in purgatory.__all__:
        assert hasattr(purgatory, name)
    assert list(purgatory.__all__) == sorted(purgatory.__all__)


def test_importing_loads_no_optional_dependency() -> None:
    """A bare import needs nothing but the standard library and mypy_extensions, whatever happens to be installed."""
    code = (
        "import sys; import purgatory, purgatory.testing;"
        f"print([name for name in {OPTIONAL!r} if name in sys.modules]);"
        "print(sorted(name for name in sys.modules if name.startswith('purgatory.')"
        " and name.split('.')[1] in ('journal', 'otel', 'pipeline', 'stream', 'pytest_plugin')))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=HOUSE.parent, capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout == "[]\n[]\n"


@pytest.mark.parametrize("name", PLAIN)
def test_the_ground_floor_imports_nothing_of_the_house(name: str) -> None:
    """Errors and events stand on nothing."""
    assert _of_the_house(_imports(HOUSE / name, name.removesuffix(".py"))) == set()


@pytest.mark.parametrize("name", FLOORS)
def test_a_module_can_be_read_in_one_sitting(name: str) -> None:
    """A module says what it is for; so does every public class and function in it."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), f"{name} has no docstring"
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{name}.{node.name} has no docstring"
