"""Mutation tests of the core: ``python -m tests.proof.mutation [MODULE ...]``.

The command introduces one fault after another into the core (see :mod:`tests.proof.mutants`).  For each mutant, it
runs the tests that execute the faulty statement until one fails.  A first run of all tests under coverage finds these
tests.  A mutant that no test detects is a survivor: either it is equivalent, and ``survivors.toml`` states the reason,
or a test is missing.  The command prints a table and every survivor that is not listed.  It fails if there is one, if
the tests detect a listed one, or if they detect fewer than ``fail_under`` percent of the mutants.

pytest collects the tests once.  Each mutant runs in a process that is forked from that state, with the code of one
function replaced, so it costs only the tests that it runs.  A test that takes much longer than usual is ended and
counts as failed.

``pyproject.toml`` selects the modules under ``[tool.mutation]``.
"""

import argparse
import contextlib
import functools
import gc
import glob
import importlib
import os
import pickle
import resource
import signal
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import coverage
import pytest

if TYPE_CHECKING:
    from tests.proof.mutants import Mutant

__all__ = ["main"]

ROOT = Path(__file__).parent.parent.parent
_SURVIVORS = ROOT / "tests" / "proof" / "survivors.toml"
_MEMORY = 4 << 30  # limits the memory of a mutant
_NOTICED, _UNNOTICED, _INVALID = 1, 0, 3


@dataclass
class Reach:
    """The result of the first run: the duration of each test, and the lines of each module that it executes."""

    seconds: dict[int, float] = field(default_factory=dict)
    work: dict[int, float] = field(default_factory=dict)  # CPU seconds
    tests: dict[tuple[str, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    lines: Counter[tuple[int, str]] = field(default_factory=Counter)  # of a test, in a module


@dataclass
class Tally:
    """The results of the mutants of one module."""

    noticed: int = 0
    hung: int = 0
    survived: "list[Mutant]" = field(default_factory=list)
    seconds: float = 0.0

    @property
    def number(self) -> int:
        return self.noticed + self.hung + len(self.survived)


class Mutation:
    """A pytest plugin that replaces the loop that runs the tests."""

    def __init__(self, settings: dict[str, Any], modules: list[str], jobs: int) -> None:
        self.settings = settings
        self.jobs = min(jobs, len(modules))
        self.modules = modules
        self.functions: list[str] = []  # if not empty, only these
        self.tallies: dict[str, Tally] = {}
        self.listed = _listed()
        self.failed = False
        self._killers: Counter[int] = Counter()
        self._costs: dict[int, float] = {}  # CPU seconds of a test in the module

    # pytest's hooks

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = session.items
        if session.testsfailed:
            raise session.Failed("the tests cannot be collected")
        for module in self.modules:
            importlib.import_module(_dotted(module))
        gc.collect()
        gc.freeze()  # keeps the memory shared with the children
        self.reach: Reach = _result(_started(self._first_run))
        self._say(f"{len(self.items)} tests, {sum(self.reach.seconds.values()):.0f} s; the mutants:")
        shares = [self.modules[number :: self.jobs] for number in range(self.jobs)]
        for job in [_started(functools.partial(self._try_modules, share)) for share in shares]:
            self.tallies.update(_result(job))
        self.tallies = {module: self.tallies[module] for module in self.modules}
        return True

    def _try_modules(self, modules: list[str]) -> dict[str, Tally]:
        for module in modules:
            self._try_module(module)
        return self.tallies

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = True
            self.report = report

    # The tests, without a fault

    def _first_run(self) -> Reach:
        _be_quiet()
        files = {str(_path(module)): module for module in self.modules}
        watching = coverage.Coverage(data_file=None, include=list(files), config_file=False)
        watching.start()
        reach = Reach()
        for number, item in enumerate(self.items):
            watching.switch_context(str(number))
            begun, worked = time.perf_counter(), time.process_time()
            self._run(number)
            reach.seconds[number] = time.perf_counter() - begun
            reach.work[number] = time.process_time() - worked
            if self.failed:
                raise SystemExit(f"{item.nodeid} fails without any fault:\n{self.report.longreprtext}")
        watching.stop()
        data = watching.get_data()
        for file in data.measured_files():
            for line, contexts in data.contexts_by_lineno(file).items():
                numbers = {int(context) for context in contexts if context}
                reach.tests[files[file], line] = numbers
                reach.lines.update((number, files[file]) for number in numbers)
        return reach

    def _run(self, number: int) -> None:
        item = self.items[number]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)

    # The tests, with one

    def _try_module(self, module: str) -> None:
        from tests.proof.mutants import mutants_of

        tally = self.tallies[module] = Tally()
        begun = time.monotonic()
        self._killers.clear()
        everywhere: Counter[int] = Counter()
        for (number, _), lines in self.reach.lines.items():
            everywhere[number] += lines
        self._costs = {
            number: work * everywhere[number] / max(self.reach.lines[number, module], 1)
            for number, work in self.reach.work.items()
        }
        functions = _functions_of(module)
        for mutant in mutants_of(module, frozenset(self.settings["skip"])):
            if self.functions and mutant.function not in self.functions:
                continue
            code = _code_of(mutant)
            targets = functions.get((mutant.function, code.co_firstlineno)) if code else None
            if not targets or code is None:
                continue  # it is never made: a stub for type checkers
            verdict = self._try(mutant, targets, code)
            if verdict == _UNNOTICED:
                tally.survived.append(mutant)
            elif verdict == _NOTICED:
                tally.noticed += 1
            elif verdict < 0:
                tally.hung += 1
            elif verdict != _INVALID:
                raise RuntimeError(f"the process of {mutant.name} ended with {verdict}")
        tally.seconds = time.monotonic() - begun
        self._say(_row(module, tally))
        for mutant in tally.survived:
            if mutant.name not in self.listed:
                self._say(
                    f"    {mutant.function}, line {mutant.lines.start}\n    - {mutant.before}\n    + {mutant.after}"
                )

    def _try(self, mutant: "Mutant", targets: list[FunctionType], code: CodeType) -> int:
        """Return whether the tests detect the mutant: the status of the child, negative if a signal ended it."""
        order = self._order(mutant)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            status = 2
            try:
                status = self._child(order, targets, code, writing)
            finally:
                os._exit(status)
        os.close(writing)
        with open(reading, "rb") as pipe:
            killer = pipe.read()
        _, status = os.waitpid(child, 0)
        if killer:
            self._killers[int(killer.split()[-1])] += 1
        return os.waitstatus_to_exitcode(status)

    def _child(self, order: list[int], targets: list[FunctionType], code: CodeType, telling: int) -> int:
        _be_quiet()
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        try:
            for target in targets:
                target.__code__ = code
        except ValueError:
            return _INVALID  # the mutant has other closure variables
        for number in order:
            os.write(telling, b"%d " % number)
            signal.setitimer(signal.ITIMER_REAL, 3 + 15 * self.reach.seconds[number])
            try:
                self._run(number)
            except BaseException:
                return _NOTICED  # an interrupt that a test did not expect: pytest lets it through
            if self.failed:
                return _NOTICED
        os.write(telling, b"-1 ")
        return _UNNOTICED

    def _order(self, mutant: "Mutant") -> list[int]:
        """Return the tests that execute the statement: those that detected the most first, then the cheapest.

        For a listed survivor, only those that fit into the budget.
        """
        found: set[int] = set().union(*[self.reach.tests.get((mutant.module, line), ()) for line in mutant.lines])
        work, killers = self.reach.work, self._killers
        ordered = sorted(found, key=lambda number: (-min(killers[number], 3), self._costs[number]))
        if mutant.name not in self.listed:
            return ordered
        budget = self.settings["budget_s"]
        kept: list[int] = []
        for number in ordered:
            if work[number] <= budget:  # a long test does not keep the short ones behind it from running
                budget -= work[number]
                kept.append(number)
        return kept

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def _started(work: Callable[[], Any]) -> tuple[int, int]:
    """Run the function in a forked child process.  Return its id and the pipe with its result."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with open(writing, "wb") as pipe:
            try:
                pickle.dump(work(), pipe)
            except BaseException as error:
                pickle.dump(SystemExit(str(error)), pipe)
        os._exit(0)
    os.close(writing)
    return child, reading


def _result(job: tuple[int, int]) -> Any:
    child, reading = job
    with open(reading, "rb") as pipe:
        result = pickle.load(pipe)
    os.waitpid(child, 0)
    if isinstance(result, SystemExit):
        raise result
    return result


def _be_quiet() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def _modules(patterns: list[str]) -> list[str]:
    """Return the modules that the globs match, such as core/timer/task."""
    package = ROOT / "purgatory"
    found = {path for pattern in patterns for path in package.glob(pattern) if path.name != "__init__.py"}
    return sorted(path.relative_to(package).with_suffix("").as_posix() for path in found)


def _path(module: str) -> Path:
    return ROOT / "purgatory" / f"{module}.py"


def _dotted(module: str) -> str:
    return f"purgatory.{module.replace('/', '.')}"


def _functions_of(module: str) -> dict[tuple[str, int], list[FunctionType]]:
    """Return the live functions of a module, by name and line, each once."""
    file = str(_path(module))
    found: dict[tuple[str, int], list[FunctionType]] = defaultdict(list)
    gc.unfreeze()
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename == file:
            found[thing.__code__.co_qualname, thing.__code__.co_firstlineno].append(thing)
    gc.freeze()
    return found


def _code_of(mutant: "Mutant") -> CodeType | None:
    """Return the code of the function with the fault."""
    try:
        whole = compile(mutant.text, str(_path(mutant.module)), "exec")
    except SyntaxError:
        return None
    for code in _codes(whole):
        if code.co_qualname == mutant.function and code.co_firstlineno <= mutant.lines.start <= _last_line(code):
            return code
    return None


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _last_line(code: CodeType) -> int:
    lines = [line for _, _, line in code.co_lines() if line is not None]
    return max([code.co_firstlineno, *lines, *[_last_line(inner) for inner in _codes(code)]])


def _listed() -> dict[tuple[str, str, str, str], str]:
    entries = tomllib.loads(_SURVIVORS.read_text())["equivalent"] if _SURVIVORS.is_file() else []
    listed: dict[tuple[str, str, str, str], str] = {}
    for entry in entries:
        for module, function, before, after in entry["mutants"]:
            listed[module, function, before, after] = entry["why"]
    return listed


_HEAD = f"{'module':<16} {'mutants':>7} {'noticed':>7} {'ended':>6} {'survive':>7} {'sharp':>7} {'seconds':>7}"


def _row(name: str, tally: Tally) -> str:
    sharp = 100 * (tally.noticed + tally.hung) / max(tally.number, 1)
    return (
        f"{name:<16} {tally.number:>7} {tally.noticed:>7} {tally.hung:>6} {len(tally.survived):>7}"
        f" {sharp:>6.1f}% {tally.seconds:>7.0f}"
    )


def _verdict(mutation: Mutation) -> bool:
    """Print the table and the failures.  Return whether there are none."""
    tallies = mutation.tallies
    whole = Tally(
        sum(tally.noticed for tally in tallies.values()),
        sum(tally.hung for tally in tallies.values()),
        [mutant for tally in tallies.values() for mutant in tally.survived],
        sum(tally.seconds for tally in tallies.values()),
    )
    print(_HEAD)
    for module, tally in tallies.items():
        print(_row(module, tally))
    print(_row("all", whole))
    survived = {mutant.name for mutant in whole.survived}
    unlisted = len(survived - set(mutation.listed))
    tried = [name for name in mutation.listed if name[0] in tallies]
    stale = [name for name in tried if name not in survived and name[1] in (mutation.functions or [name[1]])]
    for module, function, before, after in stale:
        print(f"survivors.toml lists what does not survive: {module} {function}\n    - {before}\n    + {after}")
    if unlisted:
        print(f"{unlisted} survivors are not listed in {_SURVIVORS.relative_to(ROOT)}")
    sharp = 100 * (whole.noticed + whole.hung) / max(whole.number, 1)
    enough = sharp >= mutation.settings["fail_under"]
    if not enough:
        print(f"{sharp:.1f} % were noticed, which is below {mutation.settings['fail_under']} %")
    return enough and not unlisted and not stale


def main() -> int:
    """Run the mutation tests and print the table; 0 if every mutant is detected or listed."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutation"]
    parser = argparse.ArgumentParser(prog="python -m tests.proof.mutation")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="such as core/timer/task; all unless given")
    parser.add_argument("--tests", nargs="+", metavar="PATH", default=settings["tests"], help="the tests to run")
    parser.add_argument("--functions", nargs="+", metavar="NAME", default=[], help="such as BasePurgatory.keys")
    parser.add_argument("--jobs", type=int, default=1, help="how many modules at once")
    arguments = parser.parse_args()
    unknown = [module for module in arguments.modules if not _path(module).is_file()]
    if unknown:
        parser.error(f"there is no module {', '.join(unknown)}: name it as in timer/task")
    if find_spec("mutmut") is None:
        parser.error("it takes its faults from mutmut: pip install 'aiopurgatory[mutation]'")
    mutation = Mutation(settings, arguments.modules or _modules(settings["modules"]), arguments.jobs)
    mutation.functions = arguments.functions
    options = ["-o", "addopts=--import-mode=importlib", "-p", "no:terminal", "-p", "no:cacheprovider", "-s"]
    options += ["--slow", "--timeout=0", "--hypothesis-profile=mutation"]
    ignored = {os.path.normpath(path) for path in settings["ignore"]}
    options += [f"--ignore={path}" for path in ignored]
    with contextlib.chdir(ROOT):
        tests = {path for pattern in arguments.tests for path in glob.glob(pattern)} - ignored
        status = pytest.main([*options, "-k", settings["select"], *sorted(tests)], plugins=[mutation])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) or not mutation.tallies:
        print(f"pytest ended with {status!r}")
        return 1
    return 0 if _verdict(mutation) else 1


if __name__ == "__main__":
    raise SystemExit(main())
