"""Park and await: a coroutine parks, another task completes its operation, and the coroutine resumes.

The floor is a bare future, without a deadline or a condition: the cost of the loop and of the tasks themselves.  Every
other contender adds a deadline of 30 s.  The same tasks make the same turns for each contender: all park, all are
completed, and all resume and park again.  The result is the cost per wait minus the floor of the same round.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import anyio

from purgatory import DelayedOperation, Purgatory

from .measure import OURS, compare, cpu, frozen, loops, new_loop, rounds
from .operations import Request
from .row import Budget, Row, Scale

__all__ = ["Park", "WaitUntil", "rows"]

SECTION = "waiting"
TIMEOUT = 30.0
FLOOR = "bare future (the floor)"
SIGNAL = "purgatory, force_complete()"
WAIT_UNTIL = "purgatory wait_until"
WAIT_VALUE = "purgatory wait_value"

_BUDGETS = {
    "asyncio.timeout + Event": Budget.ratio_at_least(4),
    "anyio move_on_after + Event": Budget.ratio_at_least(8),
    "timeout + Condition.wait_for": Budget.ratio_at_least(6),
}


class _Contender:
    """Tasks that each wait ``turns`` times; ``waiting`` counts the waits that have begun."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.waiting = 0
        self.slots: list[Any] = [None] * number

    async def worker(self, index: int, turns: int) -> None:
        raise NotImplementedError

    async def complete_all(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        pass

    async def run(self, turns: int) -> float:
        """Return the seconds of CPU time per wait."""
        self.waiting = 0
        tasks = [asyncio.create_task(self.worker(index, turns + 1)) for index in range(self.number)]
        await self._all_waiting(self.number)
        start = cpu()
        for turn in range(turns):
            await self.complete_all()
            await self._all_waiting(self.number * (turn + 2))
        cost = cpu() - start
        await self.complete_all()
        await asyncio.gather(*tasks)
        return cost / (turns * self.number)

    async def _all_waiting(self, wanted: int) -> None:
        while self.waiting < wanted:
            await asyncio.sleep(0)


class _Future(_Contender):
    """The floor."""

    async def worker(self, index: int, turns: int) -> None:
        create_future = asyncio.get_running_loop().create_future
        for _ in range(turns):
            future = self.slots[index] = create_future()
            self.waiting += 1
            await future

    async def complete_all(self) -> None:
        for future in self.slots:
            future.set_result(None)


class _WaitFor(_Future):
    async def worker(self, index: int, turns: int) -> None:
        create_future = asyncio.get_running_loop().create_future
        for _ in range(turns):
            future = self.slots[index] = create_future()
            self.waiting += 1
            await asyncio.wait_for(future, TIMEOUT)


class _Event(_Contender):
    async def worker(self, index: int, turns: int) -> None:
        for _ in range(turns):
            event = self.slots[index] = asyncio.Event()
            self.waiting += 1
            async with asyncio.timeout(TIMEOUT):
                await event.wait()

    async def complete_all(self) -> None:
        for event in self.slots:
            event.set()


class _Anyio(_Event):
    async def worker(self, index: int, turns: int) -> None:
        for _ in range(turns):
            event = self.slots[index] = anyio.Event()
            self.waiting += 1
            with anyio.move_on_after(TIMEOUT):
                await event.wait()


class _Condition(_Contender):
    """A condition for each waiter; a shared one would wake all waiters each time."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.ready = [False] * number

    async def worker(self, index: int, turns: int) -> None:
        ready = self.ready
        for _ in range(turns):
            condition = self.slots[index] = asyncio.Condition()
            ready[index] = False
            self.waiting += 1
            async with asyncio.timeout(TIMEOUT), condition:
                await condition.wait_for(lambda: ready[index])

    async def complete_all(self) -> None:
        for index, condition in enumerate(self.slots):
            self.ready[index] = True
            async with condition:
                condition.notify_all()


class Park(_Contender):
    """Ours: each wait has its own operation, on its own key."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.purgatory: Purgatory[Any] = Purgatory("waiting")

    async def worker(self, index: int, turns: int) -> None:
        park = self.purgatory.park
        for _ in range(turns):
            request = self.slots[index] = Request(TIMEOUT, index)
            self.waiting += 1
            await park(request, (index,))

    async def complete_all(self) -> None:
        check = self.purgatory.check_and_complete
        for request in self.slots:
            request.ready = True
            check(request.key)

    async def close(self) -> None:
        await self.purgatory.aclose()


class _Signal(DelayedOperation[None]):
    """An operation without a condition: it completes when forced, as an event does when it is set."""

    __slots__ = ()

    def try_complete(self) -> bool:
        return False


class _ParkSignal(Park):
    """Ours, used like an event: ``force_complete()`` on the operation itself; no key is checked."""

    async def worker(self, index: int, turns: int) -> None:
        park = self.purgatory.park
        for _ in range(turns):
            signal = self.slots[index] = _Signal(TIMEOUT)
            self.waiting += 1
            await park(signal, (index,))

    async def complete_all(self) -> None:
        for signal in self.slots:
            signal.force_complete()


class WaitUntil(Park):
    """Ours, without a class: a predicate."""

    async def worker(self, index: int, turns: int) -> None:
        slots, wait_until = self.slots, self.purgatory.wait_until
        for _ in range(turns):
            slots[index] = False
            self.waiting += 1
            await wait_until(lambda: slots[index], keys=(index,), timeout=TIMEOUT)

    async def complete_all(self) -> None:
        slots, check = self.slots, self.purgatory.check_and_complete
        for index in range(self.number):
            slots[index] = True
            check(index)


class _WaitValue(WaitUntil):
    """Ours, without a class: a function that returns the value."""

    async def worker(self, index: int, turns: int) -> None:
        slots, wait_value = self.slots, self.purgatory.wait_value
        for _ in range(turns):
            slots[index] = None
            self.waiting += 1
            await wait_value(lambda: slots[index], key=index, timeout=TIMEOUT)


def rows(scale: Scale) -> Iterator[Row]:
    """The rows of this section."""
    for kind in loops():
        loop = new_loop(kind)
        try:
            yield from _rows_on(scale, kind, loop)
        finally:
            loop.close()


def _rows_on(scale: Scale, kind: str, loop: asyncio.AbstractEventLoop) -> Iterator[Row]:
    number, turns = scale.pick(500, 200), scale.pick(20, 10)
    contenders: dict[str, _Contender] = {
        FLOOR: _Future(number),
        OURS: Park(number),
        SIGNAL: _ParkSignal(number),
        WAIT_UNTIL: WaitUntil(number),
        WAIT_VALUE: _WaitValue(number),
        "asyncio.wait_for": _WaitFor(number),
        "asyncio.timeout + Event": _Event(number),
        "timeout + Condition.wait_for": _Condition(number),
        "anyio move_on_after + Event": _Anyio(number),
    }

    def sampler(contender: _Contender) -> Callable[[], float]:
        return lambda: loop.run_until_complete(contender.run(turns)) * 1e9

    with frozen():
        samples = rounds({name: sampler(each) for name, each in contenders.items()}, scale.pick(15, 5))
    for contender in contenders.values():
        loop.run_until_complete(contender.close())
    floor = samples.pop(FLOOR)
    whole = compare(SECTION, f"park + await, {kind}", "ns", {OURS: samples[OURS], FLOOR: floor})
    for row in whole:
        row.note = "above the floor: the cost less that of a bare future in the same round"
    yield from whole
    above = {
        name: [max(cost - least, 1.0) for cost, least in zip(costs, floor, strict=True)]
        for name, costs in samples.items()
    }
    signal = above.pop(SIGNAL)
    yield from compare(SECTION, f"park + await above the floor, {kind}", "ns", above, budgets=_BUDGETS)
    for name in (WAIT_UNTIL, WAIT_VALUE):
        same_wait = {OURS: above[name], **{peer: above[peer] for peer in _BUDGETS}}
        what = f"{name.removeprefix('purgatory ')} above the floor, {kind}"
        yield from compare(SECTION, what, "ns", same_wait, budgets=_BUDGETS)
    events = {name: budget for name, budget in _BUDGETS.items() if name.endswith("Event")}
    forced = {OURS: signal, **{name: above[name] for name in events}}
    for row in compare(SECTION, f"park + force_complete above the floor, {kind}", "ns", forced, budgets=events):
        row.note = "completed like an event: no condition is tried"
        yield row
