"""Compare two versions of the library: ``python -m benchmarks.pairs BASE [NOW] [--only TEXT ...] [--pairs N]``.

``BASE`` and ``NOW`` are folders with a checkout; ``NOW`` is this one by default.  Both are compiled, or neither is
(``PURGATORY_COMPILE=1 python setup.py build_ext --inplace``).  Each load runs in ``N`` pairs of fresh processes on one
core, because the place of objects in memory differs from process to process and changes the cost by some percent.  The
two processes of a pair take their samples in turn.  The ratio of a pair is the median of the ratios of its rounds; a
row shows the median of the pairs and, in brackets, the second lowest and the second highest of them.  With eight pairs,
the true median is between these two with a probability of 93%.  Below 1, ``NOW`` is cheaper.

``--without FEATURE`` compares this checkout, compiled, with a copy of it that lacks the feature: above 1 is what the
feature costs.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

from benchmarks.row import Unit, number_of
from benchmarks.server.load import Load as Clients
from benchmarks.server.load import Shape
from benchmarks.server.process import ServerProcess

from .loads import LOADS
from .variants import VARIANTS

__all__ = ["main"]

_ROOT = Path(__file__).parent.parent.parent
_SERVER = "a long poll on uvicorn, 2,000 waiting on 200 keys"
_CPU, _MEMORY = f"{_SERVER}: CPU of a request", f"{_SERVER}: memory of a connection"
_PASSES = 6


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print one row for each load."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs", description="Compare two checkouts.")
    parser.add_argument("base", type=Path, metavar="BASE", help="the older checkout", nargs="?")
    parser.add_argument("now", type=Path, metavar="NOW", help="the newer checkout (this one)", nargs="?", default=_ROOT)
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="only the loads whose name contains one of the texts")
    parser.add_argument("--pairs", type=int, default=8, metavar="N", help="pairs of processes (8)")
    parser.add_argument("--list", action="store_true", help="list the loads")
    parser.add_argument("--without", choices=VARIANTS, metavar="FEATURE", help=f"one of: {', '.join(VARIANTS)}")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join([*LOADS, _CPU, _MEMORY]))
        return 0
    if (options.base is None) != (options.without is not None):
        parser.error("either BASE or --without must be given")
    if options.pairs < 3:
        parser.error(f"--pairs must be at least 3, got {options.pairs}")
    now = options.now.resolve()
    with tempfile.TemporaryDirectory() as folder:
        if options.without is not None:
            trees = [VARIANTS[options.without].build(now, Path(folder, f"without-{options.without}")), now]
        else:
            trees = [options.base.resolve(), now]
        kinds = [_kind(tree) for tree in trees]
        if kinds[0] != kinds[1]:
            parser.error(f"both must be compiled, or neither: {trees[0]} is {kinds[0]}, {trees[1]} is {kinds[1]}")
        print(f"{kinds[0]} core; {trees[0].name}, {trees[1].name}; {options.pairs} pairs of processes", flush=True)
        _compare(trees, options.only, options.pairs)
    return 0


def _compare(trees: Sequence[Path], only: Sequence[str] | None, pairs: int) -> None:
    def wanted(name: str) -> bool:
        return only is None or any(text in name for text in only)

    cores = sorted(os.sched_getaffinity(0))
    for name, load in LOADS.items():
        if wanted(name):
            _print(name, load.unit, [_pair(trees, name, load.samples, cores[-1]) for _ in range(pairs)])
    if wanted(_CPU) or wanted(_MEMORY):
        found = [_servers(trees, cores) for _ in range(pairs)]
        _print(_CPU, "us", [cpu for cpu, _ in found])
        _print(_MEMORY, "bytes", [memory for _, memory in found])


def _kind(tree: Path) -> str:
    show = f"import sys; sys.path.insert(0, {str(tree)!r}); import purgatory; print(purgatory.COMPILED)"
    found = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True).stdout
    return "compiled" if found.strip() == "True" else "interpreted"


Rounds = list[list[float]]  # of each tree, the samples


class _Child:
    """A process that takes samples of one load with one version of the library."""

    def __init__(self, tree: Path, name: str, core: int) -> None:
        command = [sys.executable, "-m", "benchmarks.pairs.child", str(tree), "load", name]
        pinned = ["taskset", "-c", str(core), *command]
        self._process = subprocess.Popen(pinned, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def sample(self) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def _pair(trees: Sequence[Path], name: str, samples: int, core: int) -> Rounds:
    with ExitStack() as stack:
        children = [stack.enter_context(_Child(tree, name, core)) for tree in trees]
        if samples > 1:
            for child in children:
                child.sample()  # a warm-up
        return _in_turn(samples, [child.sample for child in children])


def _in_turn(rounds: int, samples: Sequence[Callable[[], float]]) -> Rounds:
    """Take the samples of both trees in turn, the other one first in every second round."""
    found: Rounds = [[] for _ in samples]
    for number in range(rounds):
        order = range(len(samples)) if number % 2 == 0 else reversed(range(len(samples)))
        for index in order:
            found[index].append(samples[index]())
    return found


def _servers(trees: Sequence[Path], cores: Sequence[int]) -> tuple[Rounds, Rounds]:
    """Return the CPU time of a request in us and the memory of a connection in bytes, of a server with each tree."""
    shape = Shape(_SERVER, 2_000, keys=200, publishes=200, apart=False)
    with ExitStack() as stack:
        passes: list[Callable[[], float]] = []
        memory: Rounds = []
        for tree in trees:
            module = ("benchmarks.pairs.child", str(tree), "server")
            server = stack.enter_context(ServerProcess("wait", cores[-1], module))
            clients = stack.enter_context(Clients(server.port, shape))
            clients.warm_up(50)
            before = server.resident()
            clients.connect()
            stack.callback(server.kill)
            memory.append([(server.resident() - before) / shape.clients])
            passes.append(partial(_one_pass, server, clients))
        for one_pass in passes:
            one_pass()  # a warm-up
        return _in_turn(_PASSES, passes), memory


def _one_pass(server: ServerProcess, clients: Clients) -> float:
    before = server.cpu()
    clients.one_pass()
    return (server.cpu() - before) / clients.shape.clients * 1e6


def _print(name: str, unit: Unit, pairs: Sequence[Rounds]) -> None:
    ratios = sorted(statistics.median(now / base for base, now in zip(*rounds, strict=True)) for rounds in pairs)
    base, now = (statistics.median(value for rounds in pairs for value in rounds[index]) for index in (0, 1))
    values = f"{number_of(base, unit):>10} {number_of(now, unit):>10}"
    print(f"{values}  {statistics.median(ratios):.3f} ({ratios[1]:.3f} .. {ratios[-2]:.3f})  {name}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
