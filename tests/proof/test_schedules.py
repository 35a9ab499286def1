"""Small scenarios in many orders: the loops shuffle the ready callbacks, and a failure prints its seed.

A task parks an operation.  Two to four other tasks complete, cancel, fail, extend, expire or close it, and the parking
task may be cancelled as well.  Every scenario runs on asyncio and on uvloop (see :mod:`tests.proof.loops`).

Together the scenarios cover every await of the library:

======================================  ==============================================================================
``Purgatory.park``, ``await operation`` each scenario, and "complete and cancel", "awaiters leave"
``wait_until``                          "a predicate", "a predicate and closing"
``when_all``, ``await`` of its result   "all futures", "all futures and closing"
``aclose``: grace, slices, the second   "expire and close", "complete and close", "a crowd and closing", "a closer is
call, the timer and its reaper          cancelled", "the timer is closed"
``advance_clock``: the sleep, slices    "two rounds by hand", "rounds that end", "a crowd expires"
the reaper                              "the reaper is cancelled", and every scenario in which time passes
``timer.timeout``, ``fail_after``       "a block with a deadline", "a future that fails", "the timer is closed"
``ThresholdPurgatory.wait``, ``aclose`` "levels"
``VirtualClock``: sleep, advance, ...   "sleepers", and every scenario in which time passes
``check_soon``, ``check_threadsafe``    "complete and expire", "a crowd and closing", "from another thread"
======================================  ==============================================================================

Each scenario runs in ten orders, with ``--slow`` in thirty.  ``SCHEDULE_SEEDS=1000 pytest
tests/proof/test_schedules.py`` tries more.
"""

import asyncio
import functools
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from purgatory import OperationCancelled, Outcome, Purgatory, PurgatoryClosed, ThresholdPurgatory
from purgatory.testing import VirtualClock
from tests.helpers import Op
from tests.proof.loops import LOOPS

SEEDS = os.environ.get("SCHEDULE_SEEDS")

Scenario = Callable[[Purgatory[Any], VirtualClock, Op], list[Awaitable[object]]]
Answers = (type(None), int, str, list, OperationCancelled, PurgatoryClosed, TimeoutError, ValueError)


async def _await(op: Awaitable[Any]) -> Any:
    return await op


async def _after(turns: int, call: Callable[[], object]) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    call()


def _make_ready(purgatory: Purgatory[Any], op: Op, key: str, soon: bool = False) -> None:
    op.ready = True
    if soon:
        purgatory.check_soon(key)
    else:
        purgatory.check_and_complete(key)


async def _cancelled_after(turns: int, wait: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Wait in a separate task that another task cancels.  Return None if the cancellation came in time."""
    task = asyncio.create_task(wait())
    await _after(turns, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        return None


async def _within(purgatory: Purgatory[Any], seconds: float, wait: Callable[[], Awaitable[Any]]) -> Any:
    async with purgatory.timer.timeout(seconds):
        return await wait()


async def _all_of(purgatory: Purgatory[Any]) -> Any:
    futures = [asyncio.get_running_loop().create_future() for _ in range(3)]
    operation = purgatory.when_all(futures, 3)

    def settle(future: "asyncio.Future[int]") -> None:
        if not future.done():
            future.set_result(1)

    await asyncio.gather(*[_after(turns, functools.partial(settle, futures[turns])) for turns in (1, 2)])
    outcomes = await operation
    assert all(isinstance(outcome, (int, TimeoutError)) for outcome in outcomes)
    assert operation.is_completed
    return outcomes


async def _crowd(purgatory: Purgatory[Any], timeout: float | None) -> None:
    """Park three hundred more operations on the key, which are enough for several slices."""
    ops = [Op(timeout, name=str(number)) for number in range(300)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
    purgatory.check_soon("a")
    for op in ops:
        await op
        assert op.completions == 1


async def _levels(clock: VirtualClock) -> None:
    async with ThresholdPurgatory("levels", clock=clock) as levels:
        low, high, never = [asyncio.create_task(levels.wait("a", level, 3)) for level in (1, 5, 9)]
        signals = [_after(1 + value, functools.partial(levels.maybe_complete, "a", value)) for value in (1, 5)]
        await asyncio.gather(*signals)
        await levels.aclose()
        answers = await asyncio.gather(low, high, never, return_exceptions=True)
        assert all(answer in (1, 5) or isinstance(answer, (TimeoutError, PurgatoryClosed)) for answer in answers)
        assert len(levels) == 0
        levels.purgatory._check()


async def _from_a_thread(purgatory: Purgatory[Any], op: Op) -> None:
    await purgatory.__aenter__()

    def run() -> None:
        op.ready = True
        purgatory.check_threadsafe("a")
        purgatory.check_threadsafe("b")

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    await asyncio.sleep(0)


SCENARIOS: dict[str, Scenario] = {
    "complete and cancel": lambda p, c, op: [
        _after(2, lambda: _make_ready(p, op, "a")),
        _after(2, lambda: op.cancel()),
        _await(op),
    ],
    "complete and expire": lambda p, c, op: [
        _after(1, lambda: _make_ready(p, op, "b", soon=True)),
        c.advance(5),
        _await(op),
    ],
    "awaiters leave": lambda p, c, op: [
        *[_cancelled_after(turns, lambda: _await(op)) for turns in (1, 2, 3)],
        _after(2, lambda: _make_ready(p, op, "a")),
    ],
    "expire and close": lambda p, c, op: [c.advance(5), p.aclose(grace=5)],
    "complete and close": lambda p, c, op: [_after(3, lambda: _make_ready(p, op, "a")), p.aclose(), p.aclose(grace=0)],
    "a closer is cancelled": lambda p, c, op: [
        *[_cancelled_after(turns, lambda: p.aclose(grace=3)) for turns in (1, 3)],
        _after(3, lambda: _make_ready(p, op, "a")),
        c.advance(5),
    ],
    "a crowd and closing": lambda p, c, op: [
        _cancelled_after(60, lambda: _crowd(p, None)),
        _after(4, lambda: None),
        p.aclose(),
    ],
    "a crowd expires": lambda p, c, op: [
        _cancelled_after(60, lambda: _crowd(p, 2)),
        c.advance(3),
        p.timer.advance_clock(1),
    ],
    "the timer is closed": lambda p, c, op: [
        _await(p.timer.fail_after(3)),
        _within(p, 2, lambda: c.sleep(1)),
        _after(2, lambda: None),
        p.timer.aclose(),
        _cancelled_after(2, lambda: p.timer.aclose()),
        c.advance(5),
    ],
    "fail and extend": lambda p, c, op: [
        _after(2, lambda: p.fail_for_key("a", ValueError("x"))),
        _after(2, lambda: op.extend(1)),
        c.advance(3),
    ],
    "two rounds by hand": lambda p, c, op: [p.timer.advance_clock(6), p.timer.advance_clock(5), c.advance(10)],
    "rounds that end": lambda p, c, op: [
        _cancelled_after(3, lambda: p.timer.advance_clock()),
        p.timer.advance_clock(0),
        p.timer.advance_clock(1),
        c.advance(2),
    ],
    "the reaper is cancelled": lambda p, c, op: [
        _after(2, lambda: p.timer._reaper.task is not None and p.timer._reaper.task.cancel()),
        c.advance(5),
        _await(op),
    ],
    "a predicate": lambda p, c, op: [
        p.wait_until(lambda: op.ready, keys=["a"], timeout=3),
        p.wait_until(lambda: op.ready, keys=["unchecked"], timeout=3),
        _after(2, lambda: _make_ready(p, op, "a")),
        c.advance(4),
    ],
    "a predicate and closing": lambda p, c, op: [
        p.wait_until(lambda: op.ready, keys=["a"], timeout=None),
        _after(2, lambda: _make_ready(p, op, "a", soon=True)),
        p.aclose(grace=1),
        c.advance(2),
    ],
    "all futures": lambda p, c, op: [_all_of(p), c.advance(5), _cancelled_after(2, lambda: _all_of(p))],
    "all futures and closing": lambda p, c, op: [_all_of(p), _after(2, lambda: _make_ready(p, op, "a")), p.aclose()],
    "a block with a deadline": lambda p, c, op: [
        _within(p, 2, lambda: _await(op)),
        _cancelled_after(2, lambda: _within(p, 1, lambda: c.sleep(5))),
        c.advance(3),
        _after(3, lambda: _make_ready(p, op, "b")),
    ],
    "a future that fails": lambda p, c, op: [
        _await(p.timer.fail_after(2)),
        _cancelled_after(2, lambda: _await(p.timer.fail_after(0))),
        c.advance(3),
    ],
    "sleepers": lambda p, c, op: [c.sleep(2), c.sleep(0), _cancelled_after(3, lambda: c.sleep(2)), c.advance(5)],
    "levels": lambda p, c, op: [_levels(c), _after(2, lambda: _make_ready(p, op, "a"))],
    "from another thread": lambda p, c, op: [_from_a_thread(p, op), _after(2, lambda: op.cancel())],
}


@pytest.mark.parametrize("cancelled", [False, True], ids=["parker stays", "parker cancelled"])
@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("loop", LOOPS)
def test_one_outcome_under_every_order(loop: str, name: str, cancelled: bool, pytestconfig: pytest.Config) -> None:
    """In every order, the operation ends once, its parker is answered once, and the counters balance."""
    for seed in range(int(SEEDS or (30 if pytestconfig.getoption("--slow") else 10))):
        try:
            _run(LOOPS[loop](seed), name, cancelled)
        except BaseException as error:
            error.add_note(f"scenario {name!r} on {loop}, cancelled={cancelled}, seed={seed}")
            raise


@pytest.mark.parametrize("loop", LOOPS)
def test_a_seed_is_an_order(loop: str) -> None:
    """The same seed gives the same order, and some seeds give different orders."""

    def order(seed: int) -> list[int]:
        ran: list[int] = []

        async def step(number: int) -> None:
            ran.append(number)
            await asyncio.sleep(0)
            ran.append(number)

        async def main() -> None:
            await asyncio.gather(*[step(number) for number in range(6)])

        shuffling = LOOPS[loop](seed)
        shuffling.run_until_complete(main())
        shuffling.close()
        return ran

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(8)}) > 4


def _run(loop: asyncio.AbstractEventLoop, name: str, cancelled: bool) -> None:
    unhandled: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    try:
        loop.run_until_complete(asyncio.wait_for(_play(name, cancelled), 20))
    finally:
        loop.close()
    assert unhandled == []


async def _play(name: str, cancelled: bool) -> None:
    clock = VirtualClock()
    purgatory = Purgatory[Any]("test", clock=clock)
    op = Op(4, name="x")
    parker = asyncio.create_task(purgatory.park(op, ["a", "b"]))
    tasks = [asyncio.ensure_future(part) for part in SCENARIOS[name](purgatory, clock, op)]
    if cancelled:
        tasks.append(asyncio.create_task(_after(2, parker.cancel)))
    if name == "awaiters leave":
        await clock.advance(5)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        assert isinstance(result, Answers), repr(result)
    await purgatory.aclose()
    answer = (await asyncio.gather(parker, return_exceptions=True))[0]
    purgatory._check()
    statistics = purgatory.statistics()
    assert statistics.parked == 0
    ended = (
        statistics.completed
        + statistics.expired
        + statistics.expired_by_closing
        + statistics.cancelled
        + statistics.failed
    )
    assert statistics.submitted == ended
    assert op.completions <= 1
    if isinstance(answer, PurgatoryClosed) or op.outcome is Outcome.PENDING:
        assert not op.keys  # it came too late, or its task never began
    elif op.is_completed:
        assert op.completions == 1
        assert answer == "x" or (cancelled and isinstance(answer, asyncio.CancelledError))
    else:
        assert op.completions == 0
        assert isinstance(answer, (OperationCancelled, ValueError, asyncio.CancelledError))
    assert not purgatory.timer.running
    assert len(asyncio.all_tasks()) <= 2
