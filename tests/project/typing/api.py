"""Uses of the public names that a type checker must accept; read by mypy and pyright, never run."""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from typing import Any, NoReturn, assert_type

from purgatory import (
    COMPILED,
    Clock,
    DelayedFuture,
    DelayedOperation,
    Event,
    Observer,
    OperationCancelled,
    Outcome,
    Purgatory,
    PurgatoryClosed,
    PurgatoryError,
    PurgatoryFull,
    Quantiles,
    Statistics,
    SystemTimer,
    ThresholdPurgatory,
    TimerTask,
    TimerTaskList,
    TimingWheel,
    when_all,
)
from purgatory.pytest_plugin import purgatory_leak_check as purgatory_leak_check
from purgatory.pytest_plugin import virtual_clock as virtual_clock
from purgatory.testing import VirtualClock
from purgatory.types import Alarm, Dump, Timeout


class Fetch(DelayedOperation[bytes]):
    """An operation with a result and its own constructor."""

    def __init__(self, data: bytes) -> None:
        super().__init__(1.5)
        self.data = data

    def try_complete(self) -> bool:
        return bool(self.data)

    def on_complete(self) -> bytes:
        return self.data

    def on_abandoned(self, result: bytes) -> None:
        self.data = result

    def on_expiration(self) -> None:
        assert_type(self.expired, bool)


class Count(DelayedOperation[int]):
    """An operation that completes itself, as in Kafka, and inherits the constructor."""

    def try_complete(self) -> bool:
        return self.force_complete()

    def on_complete(self) -> int:
        return 5


class Listener(Observer):
    """An observer that overrides the methods that it needs."""

    def completed(self, event: Event) -> None:
        assert_type(event.operation, Any)
        assert_type(event.purgatory, str)
        assert_type(event.kind, str)
        assert_type(event.expired_by_closing, bool)
        assert_type(event.op_id, int)
        assert_type(event.keys, tuple[Hashable, ...])
        assert_type(event.parked_ms, int)
        assert_type(event.deadline_ms, int | None)
        assert_type(event.finished_ms, int | None)
        assert_type(event.parked_at, float)
        assert_type(event.deadline, float | None)
        assert_type(event.finished_at, float | None)
        assert_type(event.wait, float | None)
        assert_type(event.lateness, float | None)
        assert_type(event.outcome, Outcome)
        assert_type(event.error, BaseException | None)
        assert_type(event.reason, object)


async def operations() -> None:
    fetch = Fetch(b"")
    assert_type(await fetch, bytes)
    assert_type(fetch.result(), bytes)
    assert_type(fetch.on_complete(), bytes)
    assert_type(fetch.try_complete(), bool)
    assert_type(fetch.force_complete(), bool)
    assert_type(fetch.cancel(), bool)
    assert_type(fetch.cancel("shutdown"), bool)
    assert_type(fetch.extend(None), bool)
    assert_type(fetch.extend(1), bool)
    assert_type(fetch.extend_to(1.5), bool)
    assert_type(fetch.extend_to(None), bool)
    assert_type(fetch.outcome, Outcome)
    assert_type(fetch.expired, bool)
    assert_type(fetch.expired_by_closing, bool)
    assert_type(fetch.is_completed, bool)
    assert_type(fetch.scheduled, bool)
    assert_type(fetch.timeout, float | None)
    assert_type(fetch.keys, tuple[Hashable, ...])
    assert_type(await asyncio.gather(fetch, Count(None)), tuple[bytes, int])
    task: TimerTask = fetch
    assert_type(task.cancel(), bool)
    assert_type(fetch.outcome is Outcome.PENDING, bool)
    assert_type(Outcome("expired"), Outcome)


def next_name() -> str | None:
    return "name"


async def rooms(names: list[str]) -> None:
    async with Purgatory[Fetch]("fetch", max_parked=5, max_parked_per_key=2, observers=[Listener()]) as purgatory:
        assert_type(purgatory, Purgatory[Fetch])
        assert_type(await purgatory.park(Fetch(b""), ["a", ("b", 1)]), bytes)
        assert_type(await purgatory.park(Count(None), {"a": 1500, ("b", 1): 0.5}), int)
        assert_type(purgatory.try_complete_else_watch(Fetch(b""), iter(["a"])), bool)
        assert_type(purgatory.try_complete_else_watch(Fetch(b""), {"a": 1}), bool)
        assert_type(purgatory.check_and_complete("a"), int)
        assert_type(purgatory.check_and_complete("a", 17.5), int)
        purgatory.check_soon(("b", 1))
        purgatory.check_threadsafe(None)
        assert_type(purgatory.check_and_complete("a", limit=1), int)
        assert_type(purgatory.check_and_complete("a", 1500, limit=None), int)
        purgatory.check_soon("a", 1500)
        purgatory.check_threadsafe("a", 0.5)
        purgatory.check_all()
        assert_type(purgatory.keys(), Iterator[Hashable])
        assert_type(purgatory.is_watched("a"), bool)
        assert_type(purgatory.cancel_for_key("a"), list[Fetch])
        assert_type(await purgatory.acancel_for_key("a"), list[Fetch])
        assert_type(purgatory.cancel_for_key("a", reason="shutdown"), list[Fetch])
        assert_type(await purgatory.acancel_for_key("a", reason=object()), list[Fetch])
        assert_type(await purgatory.afail_for_key("a", ValueError()), int)
        assert_type(await purgatory.afail_for_key("a", ConnectionError), int)
        assert_type([fetch.data for fetch in purgatory.cancel_for_key("a")], list[bytes])
        assert_type(purgatory.fail_for_key("a", PurgatoryFull("full")), int)
        assert_type(purgatory.fail_for_key("a", lambda: PurgatoryFull("full")), int)
        assert_type(await purgatory.wait_until(list[int], keys=["a"], timeout=None), bool)
        assert_type(await purgatory.wait_until(lambda: 1, keys={"a": 3}, timeout=1), bool)
        assert_type(await purgatory.wait_until(lambda: 1, keys=["a"], deadline=None), bool)
        assert_type(await purgatory.wait_until(lambda: 1, keys=["a"], deadline=purgatory.timer.time()), bool)
        assert_type(await purgatory.wait_until(lambda: 1, key="a", timeout=1, kind="GET /orders"), bool)
        assert_type(await purgatory.wait_until(lambda: 1, key=None, deadline=None), bool)
        assert_type(await purgatory.wait_value(names.pop, key=("a", 1), timeout=None), str | None)
        assert_type(await purgatory.wait_value(next_name, keys=["a"], deadline=5.0, kind="name"), str | None)
        assert_type(
            await purgatory.wait_value(next_name, keys={"a": 5}, timeout=1, on_abandoned=names.append), str | None
        )
        assert_type(await purgatory.wait_value(lambda: names.pop() if names else None, key="a", deadline=1), str | None)
        assert_type(await purgatory.park(Fetch(b""), key="a"), bytes)
        assert_type(purgatory.check("a", 5, limit=1), int)
        assert_type(purgatory.watched, int)
        assert_type(purgatory.num_delayed, int)
        assert_type(len(purgatory), int)
        assert_type(purgatory.name, str)
        assert_type(purgatory.closed, bool)
        assert_type(purgatory.hot_keys(), list[tuple[Hashable, int]])
        assert_type(purgatory.hot_keys(3), list[tuple[Hashable, int]])
        assert_type(purgatory.parked_events(), list[Event])
        assert_type(purgatory.dump(), Dump)
        assert_type(purgatory.dump(limit=None)["operations"], Any)
        assert_type(purgatory.timer, SystemTimer)
        await purgatory.aclose(grace=1.5)


def numbers(purgatory: Purgatory[Fetch]) -> None:
    statistics = purgatory.statistics()
    assert_type(statistics, Statistics)
    assert_type(statistics.name, str)
    assert_type(statistics.parked + statistics.watched + statistics.keys + statistics.num_delayed, int)
    assert_type(statistics.subscribed, int)
    assert_type(statistics.submitted + statistics.immediate + statistics.completed + statistics.expired, int)
    assert_type(statistics.expired_by_closing + statistics.refused, int)
    assert_type(statistics.refused_by_key + statistics.refused_by_client, int)
    assert_type(statistics.cancelled + statistics.failed + statistics.observers_detached, int)
    assert_type(statistics.wait, Quantiles)
    assert_type(statistics.lateness, Quantiles)
    assert_type(statistics.wait.count, int)
    assert_type((statistics.wait.p50, statistics.wait.p99), tuple[float, float])
    assert_type((statistics.wait.p999, statistics.wait.max), tuple[float, float])
    assert_type(COMPILED, bool)


async def parts(first: "asyncio.Future[int]", second: "asyncio.Task[int]", room: Purgatory[Fetch]) -> None:
    def report(outcomes: list[int | BaseException]) -> None:
        assert_type(outcomes, list[int | BaseException])

    assert_type(when_all([first, second], 1.5), DelayedFuture[int])
    assert_type(when_all([first], None, report, purgatory=room), DelayedFuture[int])
    assert_type(await when_all([first], 1.5), list[int | BaseException])
    assert_type(await room.when_all([second], 1.5, report), list[int | BaseException])
    assert_type(DelayedFuture([first], 1.5).futures, tuple[asyncio.Future[int], ...])


async def mixed(number: asyncio.Task[int], text: asyncio.Task[str], fetch: Fetch) -> None:
    # The results of several types have a type in common; mypy finds object, pyright int | str | BaseException.
    for result in await when_all([number, text], 1.5):
        print(result)
    async with Purgatory("default") as room:  # without the type of its operations
        assert_type(room, Purgatory[DelayedOperation[Any]])
        print(await room.when_all([number, text], None))
        # print() takes objects, and the result is one.
        print(await room.park(fetch, ["a"]), await room.park(fetch, key="a"))
        print(await room.wait_value(next_name, key="a", timeout=1))
        assert_type(await room.park(fetch, key="a"), bytes)
        operation: DelayedOperation[object] = fetch
        room.try_complete_else_watch(operation, ["a"])


async def values() -> None:
    async with ThresholdPurgatory("high watermarks", max_parked=5, observers=[Listener()]) as watermarks:
        assert_type(watermarks, ThresholdPurgatory)
        assert_type(await watermarks.wait("orders-0", 1500, timeout=5.0), Any)
        assert_type(watermarks.maybe_complete("orders-0", 1502), int)
        assert_type(watermarks.complete_all(), int)
        assert_type(watermarks.fail_all(ValueError("truncated")), int)
        assert_type(watermarks.fail_all(lambda: ValueError("truncated")), int)
        assert_type(watermarks.num_waiting + len(watermarks), int)
        assert_type(watermarks.purgatory, Purgatory[Any])
        assert_type(watermarks.statistics(), Statistics)
        assert_type(watermarks.dump(), Dump)
        await watermarks.aclose(grace=1)


async def timers(clock: Clock) -> None:
    async with SystemTimer(tick_ms=7, wheel_size=5, clock=clock, turn_budget_ms=0.5) as timer:
        assert_type(timer, SystemTimer)
        assert_type(timer.call_later(1, print, "x"), TimerTask)
        assert_type(timer.fail_after(1), asyncio.Future[NoReturn])
        assert_type(timer.expire_due(5), int)
        assert_type(await timer.advance_clock(), int)
        assert_type(await timer.advance_clock(1.5), int)
        assert_type(timer.next_expiration_ms, int | None)
        assert_type(timer.size + timer.cascades, int)
        timer.start()
        assert_type(timer.running, bool)
        assert_type(timer.time(), float)
        assert_type(timer.wheel, TimingWheel)
        assert_type(timer.wheel.overflow_wheel, TimingWheel | None)
        assert_type(timer.wheel.levels(), list[TimingWheel])
        assert_type(timer.wheel.occupancy(), list[tuple[int, int]])
        # Machine words in the compiled core; callers see ints.
        whole: int = timer.wheel.tick_ms + timer.wheel.wheel_size + timer.wheel.interval_ms
        whole += timer.wheel.current_time_ms + TimerTask(5).delay_ms
        timer.add(TimerTask(whole))
        assert_type(TimerTask(5).expiration_ms, int | None)
        assert_type(Purgatory[Fetch]("fetch", timer=timer).timer, SystemTimer)


async def blocks(timer: SystemTimer) -> None:
    async with timer.timeout(2.0) as deadline:
        assert_type(deadline, Timeout)
        assert_type(deadline.when(), float | None)
        assert_type(deadline.expired(), bool)
        deadline.reschedule(timer.time() + 1)
        deadline.reschedule(None)
    async with timer.timeout(None), timer.timeout_at(timer.time() + 1), timer.timeout_at(None):
        pass


def buckets(bucket: TimerTaskList) -> Iterator[TimerTask]:
    bucket.add(TimerTask(5))
    assert_type(bucket.remove(TimerTask(5)), bool)
    assert_type(list(bucket), list[TimerTask])
    yield from bucket


async def virtual() -> None:
    clock = VirtualClock(5)
    assert_type(clock.time(), float)
    assert_type(clock.now_ms(), int)
    assert_type(await clock.advance_to_next(), bool)
    await clock.advance(3)
    await clock.advance_to(17.5)
    await clock.sleep(0.5)
    callback: Callable[[], object] = list
    assert_type(clock.call_at(5, callback), Alarm)
    clock.call_at(5, callback).cancel()
    assert_type(clock.rings, int)
    assert_type(Purgatory[Fetch]("test", clock=clock), Purgatory[Fetch])


async def test_with_the_fixtures(virtual_clock: VirtualClock, purgatory_leak_check: None) -> None:
    async with Purgatory[Fetch]("test", clock=virtual_clock):
        await virtual_clock.advance(30.0)


def errors(full: PurgatoryFull) -> AsyncIterator[int] | None:
    assert_type(full.limit, int)
    assert_type(full.key, object)
    family: list[type[PurgatoryError]] = [PurgatoryFull, PurgatoryClosed, OperationCancelled]
    assert_type(family.pop(), type[PurgatoryError])
    return None
