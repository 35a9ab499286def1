"""The layout: the direction of imports, the public names, and the modules that a bare import loads."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import purgatory
from tests.parts import missing

PACKAGE = Path(purgatory.__file__).parent
LAYERS = ("core/timer", "core/operation", "core/watch", "core/stats", "core", "aio")  # each may import those before it
PLAIN = ("errors", "events", "texts")  # plain data and texts, for every layer
NO_EVENT_LOOP = {"asyncio", "concurrent", "selectors", "socket", "subprocess", "threading", "time", "random"}
OPTIONAL = (
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
    "psycopg",
    "redis",
    "nats",
)
FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
LAYERED = [name for name in FILES if name.startswith(("core/", "aio/")) and not name.endswith("__init__.py")]


def _imports(name: str) -> set[str]:
    """Return the absolute names of the modules that a file imports at run time."""
    path = PACKAGE / name
    package = ["purgatory", *Path(name).parent.parts]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_checkers = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if node in for_checkers:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            found.add(".".join([*base, *filter(None, [node.module])]))
    return found


@pytest.mark.parametrize("name", LAYERED)
def test_imports_go_one_way(name: str) -> None:
    """A module imports only from its own folder, the folders before it, and the plain data modules."""
    layer = LAYERS.index(Path(name).parent.as_posix())
    for imported in _imports(name):
        if imported.partition(".")[0] == "purgatory":
            path = PACKAGE.parent.joinpath(*imported.split(".")).with_suffix(".py").relative_to(PACKAGE)
            if path.parent.as_posix() == ".":
                assert path.stem in PLAIN, f"{name} imports {imported}"
            else:
                assert LAYERS.index(path.parent.as_posix()) <= layer, f"{name} imports {imported}"


@pytest.mark.parametrize("name", [name for name in LAYERED if name.startswith("core/")])
def test_the_core_has_no_event_loop_and_reads_no_clock(name: str) -> None:
    """The core takes the time as an argument."""
    assert not {imported.partition(".")[0] for imported in _imports(name)} & NO_EVENT_LOOP


@pytest.mark.parametrize("name", PLAIN)
def test_plain_data_imports_nothing_of_the_package(name: str) -> None:
    """Errors and events can be imported from any module."""
    assert not any(imported.startswith("purgatory") for imported in _imports(f"{name}.py"))


def test_the_public_surface_is_what_is_promised() -> None:
    """The public names exist, and ``__all__`` is sorted."""
    promised = {
        "DelayedOperation", "Event", "Observer", "OperationCancelled", "Outcome", "Purgatory", "PurgatoryClosed",
        "PurgatoryError", "PurgatoryFull", "Quantiles", "Statistics", "SystemTimer", "ThresholdPurgatory", "TimerTask",
        "TimerTaskList", "TimingWheel", "when_all",
    }  # fmt: skip
    assert promised <= set(purgatory.__all__)
    for name in purgatory.__all__:
        assert hasattr(purgatory, name)
    assert list(purgatory.__all__) == sorted(purgatory.__all__)


@pytest.mark.parametrize("name", ["conditions", "testing", "types"])
def test_documented_modules_are_importable(name: str) -> None:
    """The documented modules export the names in their ``__all__``."""
    module = importlib.import_module(f"purgatory.{name}")
    assert all(hasattr(module, public) for public in module.__all__)


def test_importing_loads_no_optional_part() -> None:
    """A bare import loads only the standard library and mypy_extensions, whatever is installed."""
    code = (
        "import sys; import purgatory, purgatory.testing;"
        f"print([name for name in {OPTIONAL!r} if name in sys.modules]);"
        "print(sorted({name.split('.')[1] for name in sys.modules if name.startswith('purgatory.')}))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout == "[]\n['aio', 'compiled', 'core', 'errors', 'events', 'installation', 'testing', 'texts']\n"


def test_the_relay_loads_a_client_library_for_its_transport_only() -> None:
    """``purgatory.relay`` loads no client library; each transport loads its own when it is used."""
    for name in ("psycopg", "redis", "nats"):
        if importlib.util.find_spec(name) is None:
            missing(f"{name} is not installed")
    code = (
        "import sys; import purgatory.relay as relay;"
        "loaded = lambda: [name for name in ('psycopg', 'redis', 'nats') if name in sys.modules];"
        "print(loaded()); relay.PostgresTransport; print(loaded()); relay.RedisTransport; relay.NatsTransport;"
        "print(loaded())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout == "[]\n['psycopg']\n['psycopg', 'redis', 'nats']\n"


@pytest.mark.parametrize("name", LAYERED)
def test_each_module_lists_and_describes_its_names(name: str) -> None:
    """``__all__`` lists every public class and function; all of them and the module have docstrings."""
    module = importlib.import_module("purgatory." + name.removesuffix(".py").replace("/", "."))
    tree = ast.parse((PACKAGE / name).read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), f"{name} has no docstring"
    defined = [
        node
        for node in tree.body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_")
    ]
    assert {node.name for node in defined} <= set(module.__all__)
    assert all(hasattr(module, listed) for listed in module.__all__)
    assert all(ast.get_docstring(node) for node in defined)


def test_every_folder_of_sources_is_a_package() -> None:
    """A folder without an ``__init__.py`` would be missing from a wheel."""
    folders = {Path(name).parent for name in FILES}
    assert not [folder for folder in folders if f"{folder / '__init__.py'}" not in FILES]
