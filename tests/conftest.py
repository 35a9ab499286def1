"""Fixtures of all tests: what depends on the event loop runs on asyncio and uvloop; no test leaves anything behind."""

import asyncio
import contextlib
import gc
import importlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from purgatory import Purgatory, SystemTimer
from purgatory.testing import ManualClock, VirtualClock
from tests.bytecode import written
from tests.parts import PARTS, REQUIRE_PARTS, REQUIRED, Part, part_without_packages
from tests.sansio import QuietPurgatory, make_purgatory
from tests.strategies import STEPS

_ROOT = Path(__file__).parents[1]
_LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.SelectorEventLoop}
with contextlib.suppress(ImportError):  # on Windows and some free-threaded Pythons, it cannot be installed
    import uvloop

    _LOOPS["uvloop"] = uvloop.new_event_loop
if sys.platform == "win32":
    _LOOPS["proactor"] = asyncio.ProactorEventLoop  # the default there
# The async tests in these files and folders run once.  They run in virtual time, or their subject is what a server
# answers, so the event loop only calls what is ready; or their subject is another process, which has its own loop.  The
# tests of aio, of the transports, and of the connections of servers run on every loop.
_ONE_LOOP = (
    "asgi",
    "core",
    "examples/broker/test_admin_apis.py",
    "examples/broker/test_delete_records.py",
    "examples/broker/test_fetch.py",
    "examples/broker/test_fuzz.py",
    "examples/broker/test_produce.py",
    "examples/broker/test_record_batch.py",
    "examples/broker/test_versions.py",
    "examples/group",
    "examples/join_group",
    "examples/test_job_status_relayed.py",
    "examples/test_long_poll_threads.py",
    "frameworks/test_celery.py",
    "frameworks/test_django_notifier.py",
    "locks",
    "pipeline/stream",
    "proof",
    "relay/test_closing_relay.py",
    "relay/test_lost_connections.py",
    "relay/test_memory_transport.py",
    "relay/test_metrics.py",
    "relay/test_model.py",
    "relay/test_refresh.py",
    "relay/test_relay.py",
    "relay/test_state.py",
    "relay/test_with_asgi.py",
    "relay/test_wire_format.py",  # real servers; the subject is what they send
)

_QUIET = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much]}
settings.register_profile("default", max_examples=60, stateful_step_count=30, **_QUIET)  # type: ignore[arg-type]
settings.register_profile("nightly", max_examples=12_000, stateful_step_count=60, **_QUIET)  # type: ignore[arg-type]
settings.register_profile("deep", max_examples=1_500, stateful_step_count=40, **_QUIET)  # type: ignore[arg-type]
settings.register_profile(
    "mutation", max_examples=20, stateful_step_count=25, derandomize=True, database=None, **_QUIET
)  # type: ignore[arg-type]
settings.register_profile("quick", max_examples=15, stateful_step_count=30, **_QUIET)  # type: ignore[arg-type]
settings.load_profile("default")


def eager(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """Start a task at once, as :func:`asyncio.eager_task_factory` does, but with every option that uvloop passes."""
    return asyncio.Task(coroutine, loop=loop, **{**options, "eager_start": True})


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Callable[[], Any]]:
    """Return the event loops that an async test runs on; with ``--eager-tasks``, their tasks start at once."""
    loops = {"asyncio": _LOOPS["asyncio"]} if _is_of_one_loop(item.path) else _LOOPS
    if not config.getoption("--eager-tasks"):
        return loops

    def eagerly(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> Callable[[], asyncio.AbstractEventLoop]:
        def new_eager_loop() -> asyncio.AbstractEventLoop:
            loop = new_loop()
            loop.set_task_factory(eager)
            return loop

        return new_eager_loop

    return {f"eager-{name}": eagerly(new_loop) for name, new_loop in loops.items()}


@cache
def _is_of_one_loop(path: Path) -> bool:
    path = path.relative_to(Path(__file__).parent)
    return any(path.is_relative_to(name) for name in _ONE_LOOP)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--eager-tasks") and sys.version_info < (3, 12):
        raise pytest.UsageError("--eager-tasks needs Python 3.12 or later")
    if config.getoption("numprocesses", None) and sys.dont_write_bytecode and not hasattr(config, "workerinput"):
        bytecode = contextlib.ExitStack()
        bytecode.enter_context(written(_ROOT))
        config.add_cleanup(bytecode.close)
    config.addinivalue_line("markers", "slow: takes much longer than most tests; run with --slow")
    if not config.getoption("--slow") and config.getoption("--hypothesis-profile") is None:
        settings.load_profile("quick")
    if REQUIRE_PARTS:
        lacking = [f"{part.name}: {', '.join(part.lacks())}" for part in PARTS if part.lacks()]
        if lacking:
            raise pytest.UsageError(f"{REQUIRED}=1, and packages are not installed for {'; '.join(lacking)}")


_NOT_COLLECTED: dict[Part, None] = {}
_NUM_SLOW = pytest.StashKey[int]()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the tests of a part whose packages are not installed; the summary names the part."""
    part = part_without_packages(collection_path)
    if part is None:
        return None
    _NOT_COLLECTED[part] = None
    return True


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of pytest-xdist passes on what it did not run to the process that writes the summary."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["not_collected"] = [part.name for part in _NOT_COLLECTED]
        output["num_slow"] = session.config.stash.get(_NUM_SLOW, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Receive it.  A process that has crashed has nothing."""
    output = getattr(node, "workeroutput", {})
    _NOT_COLLECTED.update({part: None for part in PARTS if part.name in output.get("not_collected", [])})
    node.config.stash[_NUM_SLOW] = max(node.config.stash.get(_NUM_SLOW, 0), output.get("num_slow", 0))


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "run the slow tests, too, and the property tests with all of their examples"
    parser.addoption("--slow", action="store_true", help=help_text)
    help_text = "start every task of the async tests eagerly: Python 3.12 or later"
    parser.addoption("--eager-tasks", action="store_true", help=help_text)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadgroup``, one process runs the tests that share servers and sessions."""
    if config.getoption("dist") != "loadgroup":
        return None
    from tests.groups import FileGroups

    return FileGroups(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # a process of pytest-xdist
        from tests.groups import turn

        items.sort(key=lambda item: turn(item.nodeid.partition("::")[0]))
    slow = [] if config.getoption("--slow") else [item for item in items if "slow" in item.keywords]
    if slow:
        items[:] = [item for item in items if "slow" not in item.keywords]
        config.hook.pytest_deselected(items=slow)
        config.stash[_NUM_SLOW] = len(slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[Any]:
    """Do not search for garbage while tests are collected: the modules and the tests stay until the end."""
    gc.disable()
    try:
        if hasattr(session.config, "workerinput"):
            _import_own_share(session.config)
        return (yield)
    finally:
        gc.enable()


def _import_own_share(config: Any) -> None:
    """Import every n-th file before the collection: it leaves the rewritten code in a cache for the other processes.

    Without it, in a fresh clone, each process would rewrite the assertions of all files, because all processes reach a
    file at the same time.
    """
    worker = config.workerinput
    files = sorted(file for argument in config.args for file in Path(argument).glob("**/test_*.py"))
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        # An import that fails here fails again during the collection, which reports or expects it.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.resolve().relative_to(_ROOT).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Spare each collection of garbage in a test the hundreds of thousands of objects that outlive it."""
    _freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Freeze also what a module of tests has imported."""
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        _freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for part in _NOT_COLLECTED:
        terminalreporter.write_line(f"not tested: {part.name}; not installed: {', '.join(part.lacks())}")
    number = config.stash.get(_NUM_SLOW, 0)
    if number:
        terminalreporter.write_line(f"not tested: {number} slow tests, and most examples of the property tests: --slow")
    if STEPS:
        counts = ", ".join(f"{model} {steps}" for model, steps in sorted(STEPS.items()))
        terminalreporter.write_line(f"steps of the models: {counts}; together {STEPS.total()}")


def pytest_unconfigure() -> None:
    """Search once for what has become garbage after it was frozen; pytest and Python would search several times."""
    if hasattr(gc, "unfreeze"):
        gc.unfreeze()
    gc.collect()
    if "duckdb" not in sys.modules:  # DuckDB would report what is still frozen at the end as a leak
        _freeze()


def _freeze() -> None:
    if hasattr(gc, "freeze"):  # PyPy has no such function
        gc.freeze()


@pytest.fixture
def clock() -> VirtualClock:
    """Return a virtual clock that starts at second 1000, so that no test relies on a start at zero."""
    return VirtualClock(1000.0)


@pytest.fixture
async def purgatory(clock: VirtualClock) -> AsyncIterator[Purgatory[Any]]:
    """Yield an open purgatory in virtual time; at the end, check its state and that no check is pending."""
    async with Purgatory[Any]("test", clock=clock) as purgatory:
        yield purgatory
        purgatory._check()
        assert not purgatory._soon


@pytest.fixture
async def timer(clock: VirtualClock) -> AsyncIterator[SystemTimer]:
    """Yield a running timer in virtual time, which must be empty at the end."""
    async with SystemTimer(clock=clock) as timer:
        yield timer
        timer._check()
        assert timer.size == 0


@pytest.fixture
def room() -> Iterator[QuietPurgatory]:
    """Yield a purgatory without an event loop; at the end, check its state."""
    room = make_purgatory(ManualClock())
    yield room
    room._check()


@pytest.fixture
async def reported() -> list[dict[str, Any]]:
    """Collect the contexts that reached the loop's exception handler during the test; they are not printed."""
    contexts: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: contexts.append(context))
    return contexts


@pytest.fixture
def no_gc() -> Iterator[None]:
    """Disable the cyclic garbage collector, so that only reference counting frees objects.

    A test may enable it, and change its thresholds, for some statements.
    """
    thresholds = gc.get_threshold() if hasattr(gc, "get_threshold") else None  # PyPy has none
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if thresholds is not None:
            gc.set_threshold(*thresholds)
        gc.enable()
