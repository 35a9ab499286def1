"""The instructions of one step, counted by callgrind: ``python -m benchmarks.instructions [LOAD ...] [--steps N]``.

Each load runs twice under valgrind, with N and with 3 N steps.  The difference between the two counts, divided by the
difference between the numbers of steps, is the cost of a step, without imports and preparations.  Load on the machine
does not affect this cost, so a change of one percent is visible, but the cost says nothing about memory accesses.  The
garbage collector is off.  With ``--functions``, the costliest functions follow each load.

With ``--caches``, callgrind also simulates the caches of a processor, with the sizes of this one: how often a step does
not find an instruction or data in the first level, or in any level.
"""

import argparse
import asyncio
import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from purgatory import COMPILED, Purgatory
from purgatory.core.operation.wait_until import MISSING, until_wait

from .fifo import Fifo
from .measure import loops, new_loop
from .operations import Request, noop
from .row import Unavailable, grouped

__all__ = ["LOADS", "by_function", "main", "with_caches"]

TIMEOUT = 30.0


def _user_class(number: int) -> None:
    Fifo(1_000, 1).steps(number)


def _unguarded(number: int) -> None:
    fifo = Fifo(1_000, 1)
    fifo.purgatory._core._guard._is_here = None
    fifo.steps(number)


def _text_keys(number: int) -> None:
    fifo = Fifo(1_000, 1)
    fifo.keys = [[f"orders-{keys[0]}"] for keys in fifo.keys]
    fifo.steps(number)


def _user_alone(number: int) -> None:
    oldest_first = [Request(TIMEOUT, 0) for _ in range(1_000)]
    for index in range(number):
        operation = Request(TIMEOUT, index)
        operation.try_complete()
        oldest = oldest_first[index % 1_000]
        oldest_first[index % 1_000] = operation
        oldest.ready = True
        if oldest.try_complete():
            oldest.on_complete()


def _wait_until(number: int) -> None:
    room: Purgatory[Any] = Purgatory("waits")
    state = [False]

    def holds() -> bool:
        return state[0]

    for key in range(number):
        state[0] = False
        room.try_complete_else_watch(until_wait(room.timer, holds, TIMEOUT, MISSING, None), (key,))
        state[0] = True
        room.check_and_complete(key)


def _call_later(number: int) -> None:
    timer = Purgatory[Any]("timers").timer
    for _ in range(number):
        timer.call_later(TIMEOUT, noop).cancel()


# One task for each step, all of them in the same turns of asyncio's loop.


async def _in_tasks(number: int, wait: Callable[[int], Awaitable[object]], answer: Callable[[int], object]) -> None:
    async def handler(index: int) -> object:
        return await wait(index)

    tasks = [asyncio.ensure_future(handler(index)) for index in range(number)]
    await asyncio.sleep(0)
    for index in range(number):
        answer(index)
    for _ in range(3):
        await asyncio.sleep(0)
    assert all(task.done() for task in tasks)


async def _floor(number: int) -> None:
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(number)]
    await _in_tasks(number, futures.__getitem__, lambda index: futures[index].set_result(True))


async def _frame(number: int) -> None:
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(number)]

    async def wait(index: int) -> object:
        try:
            return await futures[index]
        except BaseException:
            raise

    await _in_tasks(number, wait, lambda index: futures[index].set_result(True))


async def _park(number: int) -> None:
    async with Purgatory[Any]("tasks") as room:
        operations = [Request(TIMEOUT, key) for key in range(number)]

        def check(key: int) -> None:
            operations[key].ready = True
            room.check_and_complete(key)

        await _in_tasks(number, lambda key: room.park(operations[key], (key,)), check)


async def _until(number: int) -> None:
    async with Purgatory[Any]("tasks") as room:
        reached = [False] * number

        def check(key: int) -> None:
            reached[key] = True
            room.check_and_complete(key)

        await _in_tasks(number, lambda key: room.wait_until(lambda: reached[key], key=key, timeout=TIMEOUT), check)


async def _made(number: int) -> None:
    loop = asyncio.get_running_loop()
    timer = Purgatory[Any]("timers").timer
    futures = [loop.create_future() for _ in range(number)]

    def wait(index: int) -> Awaitable[object]:
        until_wait(timer, lambda: True, TIMEOUT, MISSING, None)
        return futures[index]

    await _in_tasks(number, wait, lambda index: futures[index].set_result(True))


async def _event(number: int) -> None:
    events = [asyncio.Event() for _ in range(number)]

    async def wait(index: int) -> object:
        async with asyncio.timeout(TIMEOUT):
            return await events[index].wait()

    await _in_tasks(number, wait, lambda index: events[index].set())


# A long poll, as in the section "server": ten requests wait on each key, and a publish completes all of them.


def _requests(form: str) -> Callable[[int], Awaitable[None]]:
    async def polls(number: int) -> None:
        from .connections import InMemoryServer  # needs the extra 'examples'

        async with InMemoryServer(form) as server:
            clients = [server.connect(f"orders-{index // 10}", 0) for index in range(number)]
            for _ in range(5):
                await asyncio.sleep(0)
            for key, topic in list(server.form.topics.items()):
                topic.end += 1
                await server.form.wake(key, topic)
            while server.state.tasks:
                await asyncio.sleep(0)
            assert all(client.answered for client in clients)

    return polls


LOADS: dict[str, tuple[str, Callable[[int], Awaitable[None] | None]]] = {
    "class": ("park + check, 1,000 outstanding, one key, a user's class", _user_class),
    "text": ("the same with a str as the key", _text_keys),
    "unguarded": ("the same with an int, and no check of the thread", _unguarded),
    "alone": ("the user's class without a purgatory: made, tried twice, completed", _user_alone),
    "wait": ("park + check of a wait_until", _wait_until),
    "timer": ("call_later + cancel", _call_later),
    "floor": ("a task on asyncio's loop that awaits a bare future", _floor),
    "frame": ("the same through one more coroutine, with try", _frame),
    "park": ("the same with park() and a check", _park),
    "until": ("the same with wait_until() and a check", _until),
    "made": ("a bare future, and the operation of a wait_until that is only made", _made),
    "event": ("the same with asyncio.timeout and an Event", _event),
    "request": ("a request to uvicorn that purgatory.asgi parks, ten answers for each check", _requests("wait")),
    "request-undetected": (
        "the same, but without reading from the connection to detect a disconnect",
        _requests("undetected"),
    ),
    "request-event": ("the same with asyncio.timeout and an Event", _requests("event")),
    "request-reader": ("the same with a task that detects the disconnect", _requests("event-reader")),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, and print one line for each load."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description="Instructions of a step.")
    parser.add_argument("loads", nargs="*", metavar="LOAD", help=f"some of: {', '.join(LOADS)} (all)")
    parser.add_argument("--steps", type=int, default=2_000, help="the steps of the shorter run (2,000)")
    parser.add_argument("--functions", type=int, default=0, metavar="N", help="print also the N costliest functions")
    parser.add_argument("--caches", action="store_true", help="print also the misses of simulated caches")
    parser.add_argument("--loop", choices=loops(), default="asyncio", help="the event loop of the tasks (asyncio)")
    parser.add_argument("--run", action="store_true", help="do the steps of one load here, and count nothing")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.loads if name not in LOADS]
    if unknown:
        parser.error(f"there is no load {', '.join(unknown)}: choose from {', '.join(LOADS)}")
    if options.run:
        gc.disable()
        for name in options.loads:
            with asyncio.Runner(loop_factory=partial(new_loop, options.loop)) as runner:
                runner.run(_run(LOADS[name][1], options.steps))
        return 0
    try:
        print(f"instructions of a step, {'compiled' if COMPILED else 'interpreted'} core")
        for name in options.loads or LOADS:
            if options.caches:
                costs = with_caches(name, options.steps, options.loop)
                shown = ", ".join(f"{grouped(round(costs[kind]))} {kind}" for kind in list(costs)[1:])
                print(f"{grouped(round(costs['instructions'])):>8}  {LOADS[name][0]}: {shown}", flush=True)
                continue
            functions = by_function(name, options.steps, options.loop)
            print(f"{grouped(round(sum(functions.values()))):>8}  {LOADS[name][0]}", flush=True)
            for function, cost in list(functions.items())[: options.functions]:
                print(f"{grouped(round(cost)):>16}  {function}", flush=True)
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


async def _run(load: Callable[[int], Awaitable[None] | None], number: int) -> None:
    waits = load(number)
    if waits is not None:
        await waits


def by_function(name: str, steps: int, loop: str = "asyncio") -> dict[str, float]:
    """Return the instructions of one step by function, the costliest first.  Raises Unavailable without valgrind."""
    return _of_a_step(_functions, name, steps, loop, [])


def with_caches(name: str, steps: int, loop: str = "asyncio") -> dict[str, float]:
    """Return the instructions of one step and its misses by kind.  Raises Unavailable without valgrind."""
    cost = _of_a_step(_totals, name, steps, loop, ["--cache-sim=yes"])
    return {kind: sum(cost[event] for event in events) for kind, events in _EVENTS.items()}


_EVENTS = {
    "instructions": ["Ir"],
    "misses of the first level for instructions": ["I1mr"],
    "for data": ["D1mr", "D1mw"],
    "misses of all levels": ["ILmr", "DLmr", "DLmw"],
}


def _of_a_step(
    read: Callable[[str], "Counter[str]"], name: str, steps: int, loop: str, options: Sequence[str]
) -> dict[str, float]:
    longer, shorter = (read(_under_callgrind(name, number, loop, options)) for number in (3 * steps, steps))
    longer.subtract(shorter)
    return {what: cost / (2 * steps) for what, cost in longer.most_common()}


def _functions(text: str) -> "Counter[str]":
    functions: Counter[str] = Counter()
    # "1,234 ( 5.67%)  file.c:function'2 [library]": '2 marks a recursive call of the same function
    for match in re.finditer(r"^ *([\d,]+) \([^)]*\)  \S+?:([^\s':]+)", text, re.MULTILINE):
        functions[match[2]] += int(match[1].replace(",", ""))
    return functions


def _totals(text: str) -> "Counter[str]":
    """Return the sums by event, from the lines "Events shown:  Ir ..." and "1,234 (100.0%) ...  PROGRAM TOTALS"."""
    (events,) = re.findall(r"^Events shown: +(.+)$", text, re.MULTILINE)
    (totals,) = re.findall(r"^(.+)PROGRAM TOTALS$", text, re.MULTILINE)
    numbers = [int(number.replace(",", "")) for number in re.findall(r"(?<![(\d.])[\d,]+(?= \()", totals)]
    return Counter(dict(zip(events.split(), numbers, strict=True)))


def _under_callgrind(name: str, steps: int, loop: str, options: Sequence[str]) -> str:
    """Run the load, and return the report of callgrind_annotate."""
    valgrind, annotate = shutil.which("valgrind"), shutil.which("callgrind_annotate")
    if valgrind is None or annotate is None:
        raise Unavailable("valgrind is not installed")
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "found")
        here = [sys.executable, "-m", "benchmarks.instructions", name, "--run", "--steps", str(steps), "--loop", loop]
        command = [valgrind, "--tool=callgrind", *options, f"--callgrind-out-file={found}", *here]
        subprocess.run(command, capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": "0"})
        show = [annotate, "--threshold=100", "--auto=no", str(found)]
        return subprocess.run(show, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
