"""Small scenarios under many orders of what is ready: a loop that shuffles, by a seed that a failure names."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from purgatory import OperationCancelled, Outcome, Purgatory, PurgatoryClosed
from purgatory.testing import VirtualClock
from tests.helpers import Op

SEEDS = 60


class ShufflingLoop(asyncio.SelectorEventLoop):
    """Runs what is ready in an order drawn from a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._source = random.Random(seed)

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        if len(ready) > 1:
            shuffled = list(ready)
            self._source.shuffle(shuffled)
            ready.clear()
            ready.extend(shuffled)
        super()._run_once()  # type: ignore[misc]


Scenario = Callable[[Purgatory[Op], VirtualClock, Op], list[Awaitable[object]]]


async def _park(purgatory: Purgatory[Op], op: Op) -> Any:
    return await purgatory.park(op, ["a", "b"])


async def _await(op: Op) -> Any:
    return await op


async def _after(turns: int, call: Callable[[], object]) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    call()


def _make_ready(purgatory: Purgatory[Op], op: Op, key: str, soon: bool = False) -> None:
    op.ready = True
    if soon:
        purgatory.check_soon(key)
    else:
        purgatory.check_and_complete(key)


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
    "expire and close": lambda p, c, op: [c.advance(5), p.aclose(grace=5)],
    "complete and close": lambda p, c, op: [_after(3, lambda: _make_ready(p, op, "a")), p.aclose(), p.aclose(grace=0)],
    "fail and extend": lambda p, c, op: [
        _after(2, lambda: p.fail_for_key("a", ValueError("x"))),
        _after(2, lambda: op.extend(1)),
        c.advance(3),
    ],
    "two rounds by hand": lambda p, c, op: [p.timer.advance_clock(6), p.timer.advance_clock(5), c.advance(10)],
    "the reaper is cancelled": lambda p, c, op: [
        _after(2, lambda: p.timer._reaper is not None and p.timer._reaper.cancel()),
        c.advance(5),
        _await(op),
    ],
}


@pytest.mark.parametrize("cancelled", [False, True], ids=["parker stays", "parker cancelled"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_one_outcome_under_every_order(name: str, cancelled: bool) -> None:
    """Whatever runs first: the operation ends once, its parker is answered once, and the books balance."""
    for seed in range(SEEDS):
        try:
            _run(name, cancelled, seed)
        except BaseException as error:
            error.add_note(f"scenario {name!r}, cancelled={cancelled}, seed={seed}")
            raise


def _run(name: str, cancelled: bool, seed: int) -> None:
    loop = ShufflingLoop(seed)
    unhandled: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    try:
        loop.run_until_complete(asyncio.wait_for(_play(name, cancelled), 20))
    finally:
        loop.close()
    assert unhandled == []


async def _play(name: str, cancelled: bool) -> None:
    clock = VirtualClock()
    purgatory = Purgatory[Op]("test", clock=clock)
    op = Op(4, name="x")
    parker = asyncio.create_task(_park(purgatory, op))
    tasks = [asyncio.ensure_future(part) for part in SCENARIOS[name](purgatory, clock, op)]
    if cancelled:
        tasks.append(asyncio.create_task(_after(2, parker.cancel)))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        assert result is None or isinstance(result, (int, str, OperationCancelled, ValueError)), repr(result)
    await purgatory.aclose()
    answer = (await asyncio.gather(parker, return_exceptions=True))[0]
    purgatory._check()
    statistics = purgatory.statistics()
    assert statistics.parked == 0
    assert op.completions <= 1
    if isinstance(answer, PurgatoryClosed) or op.outcome is Outcome.PENDING:
        assert statistics.submitted == 0  # it came too late, or its task never began
    elif op.is_completed:
        assert op.completions == 1
        assert answer == "x" or (cancelled and isinstance(answer, asyncio.CancelledError))
        assert statistics.completed + statistics.expired == 1
    else:
        assert op.completions == 0
        assert isinstance(answer, (OperationCancelled, ValueError, asyncio.CancelledError))
        assert statistics.cancelled + statistics.failed == 1
    assert not purgatory.timer.running
    assert len(asyncio.all_tasks()) <= 2
