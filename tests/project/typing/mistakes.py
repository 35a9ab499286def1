"""Mistakes that a type checker must report; read by mypy and by pyright, never run.

Each mistake is marked for both checkers.  A mark without a mistake is also an error, so both checkers report every
marked line.
"""

import asyncio

from purgatory import DelayedOperation, Event, Observer, Purgatory, SystemTimer, ThresholdPurgatory, when_all
from purgatory.testing import VirtualClock


class Fetch(DelayedOperation[bytes]):
    def try_complete(self) -> bool:
        return False


class Count(DelayedOperation[int]):
    def try_complete(self) -> bool:
        return False


class WrongResult(DelayedOperation[int]):
    def on_complete(self) -> str:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return "five"


class WrongTry(DelayedOperation[int]):
    async def try_complete(self) -> bool:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return True


class WrongListener(Observer):
    def expired(self, event: str) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        print(event)


class NoListener:
    def completed(self, event: Event) -> int:
        return 5


async def operations(fetch: Fetch) -> None:
    Fetch("1.5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Fetch()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    fetch.extend("1.5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    text: str = await fetch  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    number: int = fetch.result()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    fetch.expired = True  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    fetch.done = True  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    print(text, number)


async def rooms(room: Purgatory[Fetch], fetch: Fetch) -> None:
    room.try_complete_else_watch(Count(None), ["a"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    room.try_complete_else_watch(fetch, [[]])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    room.try_complete_else_watch(fetch, 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    room.try_complete_else_watch(fetch)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    room.check_and_complete([])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    room.check_soon({})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    room.check_soon("a", "5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    room.check_and_complete("a", 5, 1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    room.check_and_complete("a", limit=0.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    room.fail_for_key("a", "error")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    room.fail_for_key("a", lambda: "error")  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]
    room.fail_for_key("a", KeyboardInterrupt())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await room.park("fetch", ["a"])  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await room.wait_until(5, keys=["a"], timeout=1)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await room.wait_until(list[int], keys=["a"])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await room.wait_until(list[int], keys=["a"], key="a", timeout=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await room.wait_value(list[int], key="a")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await room.wait_value(list[int], key="a", timeout=1, deadline=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await room.park(fetch, ["a"], key="a")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await room.aclose(5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    counts: list[Count] = room.cancel_for_key("a")  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    room.statistics().parked = 5  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    print(counts)


def making(timer: SystemTimer, clock: VirtualClock) -> None:
    Purgatory[int]("count")  # type: ignore[type-var]  # pyright: ignore[reportInvalidTypeArguments]
    Purgatory[Fetch](5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Purgatory[Fetch]("fetch", timer=clock)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Purgatory[Fetch]("fetch", max_parked="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Purgatory[Fetch]("fetch", observers=[NoListener()])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    SystemTimer(5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ThresholdPurgatory("marks", clock=timer)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def others(timer: SystemTimer, first: "asyncio.Future[int]", marks: ThresholdPurgatory) -> None:
    timer.add("task")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    timer.call_later(1, 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    timer.timeout("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with timer.timeout(1):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    when_all([first], "1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    when_all([5], 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    when_all([first], 1, len, purgatory=timer)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await marks.wait("orders-0", "1500", timeout=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await marks.wait("orders-0", 1500)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    marks.maybe_complete([], 1500)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    VirtualClock("5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
