"""Context variables: the context in which each hook runs, and that the library keeps no context alive."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

import pytest

from purgatory import Event, Observer, Purgatory, SystemTimer
from purgatory.testing import VirtualClock
from purgatory.types import Clock, MonotonicClock
from tests.helpers import Boom, Op, futures

REQUEST: ContextVar[Any] = ContextVar("REQUEST")


class Traced(Op):
    """An operation that records the request in whose context each hook runs."""

    def __init__(self, timeout: float | None = 5, **given: Any) -> None:
        super().__init__(timeout, **given)
        self.seen: list[tuple[str, str]] = []

    def try_complete(self) -> bool:
        self.seen.append(("try", REQUEST.get("none")))
        return super().try_complete()

    def on_complete(self) -> Any:
        self.seen.append(("complete", REQUEST.get("none")))
        return super().on_complete()

    def on_expiration(self) -> None:
        self.seen.append(("expire", REQUEST.get("none")))


class Watching(Observer):
    """An observer that records the request in whose context each event arrives."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def parked(self, event: Event) -> None:
        self.seen.append(("parked", REQUEST.get("none")))

    def completed(self, event: Event) -> None:
        self.seen.append(("completed", REQUEST.get("none")))

    def expired(self, event: Event) -> None:
        self.seen.append(("expired", REQUEST.get("none")))

    def cancelled(self, event: Event) -> None:
        self.seen.append(("cancelled", REQUEST.get("none")))


async def as_request(name: Any, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run the coroutine in a separate task whose context contains the request."""

    def begin() -> "asyncio.Task[Any]":
        REQUEST.set(name)
        return asyncio.create_task(coroutine)

    return await copy_context().run(begin)


async def calling(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the function in a task."""
    return function(*arguments)


async def test_the_reaper_does_not_run_in_the_context_of_its_starter(clock: VirtualClock) -> None:
    """If request A starts the timer, operations of request B that expire later run in the context of neither."""
    purgatory = Purgatory[Any]("test", clock=clock)
    first, second = Traced(5), Traced(6)
    await as_request("A", calling(purgatory.try_complete_else_watch, first, ["a"]))
    await as_request("B", calling(purgatory.try_complete_else_watch, second, ["a"]))
    await as_request("C", clock.advance(6))
    assert first.seen == [("try", "A"), ("complete", "none"), ("expire", "none")]
    assert second.seen == [("try", "B"), ("complete", "none"), ("expire", "none")]
    await purgatory.aclose()


async def test_with_a_real_clock_expiry_runs_in_an_empty_context() -> None:
    """With the monotonic clock and a reaper that request A started, the hooks of an expiry run in an empty context."""
    purgatory = Purgatory[Any]("test")
    operation = Traced(0.001)
    await as_request("A", purgatory.park(operation, ["a"]))
    assert operation.seen == [("try", "A"), ("complete", "none"), ("expire", "none")]
    await purgatory.aclose()


async def test_a_restarted_reaper_runs_in_an_empty_context(clock: VirtualClock) -> None:
    """The context stays empty, whichever task cancels the reaper or advances the clock."""
    async with Purgatory[Any]("test", clock=clock) as purgatory:
        operation = Traced(5)
        purgatory.try_complete_else_watch(operation, ["a"])
        await clock.settle()
        reaper = purgatory.timer._reaper.task
        assert reaper is not None
        await as_request("A", calling(reaper.cancel))
        await clock.settle()
        await as_request("B", clock.advance(5))
        assert operation.seen[1:] == [("complete", "none"), ("expire", "none")]


async def test_a_task_factory_that_ignores_the_context_can_start_the_reaper(clock: VirtualClock) -> None:
    """The loop's own task factory creates the reaper's task, whatever parameters it supports."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(lambda loop, coroutine, **_: asyncio.Task(coroutine, loop=loop))  # type: ignore[arg-type]
    timer = SystemTimer(clock=clock)
    seen: list[str] = []
    await as_request("A", calling(timer.start))
    timer.call_later(1, lambda: seen.append(REQUEST.get("none")))
    await clock.advance(1)
    assert seen == ["none"]
    await timer.aclose()
    loop.set_task_factory(None)


async def test_a_check_runs_in_the_context_of_its_caller(purgatory: Purgatory[Any]) -> None:
    """The first try runs in the context of the parking request, and a check in the context of its caller."""
    operation = Traced(5)
    await as_request("A", calling(purgatory.try_complete_else_watch, operation, ["a"]))
    await as_request("B", calling(purgatory.check_and_complete, "a"))
    operation.ready = True
    await as_request("C", calling(purgatory.check_and_complete, "a"))
    assert operation.seen == [("try", "A"), ("try", "B"), ("try", "C"), ("complete", "C")]
    at_once = Traced(5, ready=True)
    await as_request("A", calling(purgatory.try_complete_else_watch, at_once, ["a"]))
    assert at_once.seen == [("try", "A"), ("complete", "A")]
    forced = Traced(5)
    purgatory.try_complete_else_watch(forced, ["a"])
    await as_request("B", calling(forced.force_complete))
    assert forced.seen[1:] == [("complete", "B")]


@pytest.mark.parametrize("method", ["check_soon", "check_threadsafe"])
async def test_a_coalesced_check_runs_in_an_empty_context(
    purgatory: Purgatory[Any], clock: VirtualClock, method: str
) -> None:
    """A check that many callers share runs in an empty context, even if it needs several slices."""
    operations = [Traced(5) for _ in range(500)]
    for operation in operations:
        purgatory.try_complete_else_watch(operation, ["a"])
        operation.seen.clear()
        operation.ready = True
    await as_request("A", calling(getattr(purgatory, method), "a"))
    await as_request("B", clock.settle())
    assert {tuple(operation.seen) for operation in operations} == {(("try", "none"), ("complete", "none"))}


async def test_closing_answers_in_an_empty_context(clock: VirtualClock) -> None:
    """An expiry runs in an empty context, whether the deadline, the purgatory or a shared timer causes it."""
    timer = SystemTimer(clock=clock)
    shared, own = Purgatory[Any]("shared", timer=timer), Purgatory[Any]("own", clock=clock)
    operations = [Traced(5), Traced(5), Traced(None)]
    for purgatory, operation in zip((shared, own, own), operations, strict=True):
        purgatory.try_complete_else_watch(operation, ["a"])
        operation.seen.clear()
    await as_request("A", own.aclose())
    await as_request("B", timer.aclose())
    assert [operation.seen for operation in operations] == [[("complete", "none"), ("expire", "none")]] * 3
    await shared.aclose()


async def test_an_abandoned_result_is_given_back_in_the_context_of_the_cancelled_task(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """``on_abandoned`` sees the variables of the parking request, not those of the completing request."""

    class Abandoned(Traced):
        def on_abandoned(self, result: Any) -> None:
            self.seen.append(("abandoned", REQUEST.get("none")))

    operation = Abandoned(5)
    task = asyncio.create_task(as_request("A", purgatory.park(operation, ["a"])))
    await clock.settle()
    operation.ready = True
    await as_request("B", complete_and_cancel(purgatory, task))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert operation.seen[-2:] == [("complete", "B"), ("abandoned", "A")]


async def complete_and_cancel(purgatory: Purgatory[Any], task: "asyncio.Task[Any]") -> None:
    """Complete the operation and cancel its task in the same turn of the loop."""
    purgatory.check_and_complete("a")
    task.cancel()


async def test_observers_run_in_the_context_of_the_cause(clock: VirtualClock) -> None:
    """``parked`` runs in the parker's context, ``completed`` in the checker's, and ``expired`` in an empty context."""
    watching = Watching()
    async with Purgatory[Any]("test", clock=clock, observers=[watching]) as purgatory:
        completes, expires = Traced(5), Traced(5)
        await as_request("A", calling(purgatory.try_complete_else_watch, completes, ["a"]))
        await as_request("B", calling(purgatory.try_complete_else_watch, expires, ["b"]))
        completes.ready = True
        await as_request("C", calling(purgatory.check_and_complete, "a"))
        await as_request("D", clock.advance(5))
    assert watching.seen == [("parked", "A"), ("parked", "B"), ("completed", "C"), ("expired", "none")]


async def test_the_callbacks_of_a_timer_run_in_an_empty_context(timer: SystemTimer, clock: VirtualClock) -> None:
    """Callbacks of ``call_later`` run in an empty context, run by the reaper or by a task that advances the timer."""
    seen: list[str] = []

    def note() -> None:
        seen.append(REQUEST.get("none"))

    await as_request("A", calling(timer.call_later, 1, note))
    await as_request("B", clock.advance(1))
    clock_of_its_own = VirtualClock()
    by_hand = SystemTimer(clock=clock_of_its_own)
    by_hand.call_later(0, note)
    await as_request("C", by_hand.advance_clock())
    by_hand.call_later(1, note)
    await as_request("D", calling(by_hand.expire_due, clock_of_its_own.now_ms() + 1000))
    assert seen == ["none", "none", "D"]
    await by_hand.aclose()


async def test_the_callback_of_when_all_runs_in_an_empty_context(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """The callback sees the variables of neither the waiting request nor the request that sets the last future."""
    seen: list[str] = []
    (future,) = futures(1)

    async def wait() -> None:
        purgatory.when_all([future], 5, lambda _: seen.append(REQUEST.get("none")))

    await as_request("A", wait())
    await as_request("B", calling(future.set_result, 1))
    await clock.settle()
    assert seen == ["none"]


async def test_an_error_of_a_cancelled_gather_is_reported_in_an_empty_context(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """The report belongs neither to the request that raises nor to the one that has completed the operation."""
    seen: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda *_: seen.append(REQUEST.get("none")))

    async def work() -> None:
        try:
            await clock.sleep(100)
        finally:
            raise Boom

    async def begin() -> "asyncio.Future[Any]":
        return asyncio.gather(work())

    waiting = purgatory.when_all([await as_request("A", begin())], None)
    await clock.settle()
    await as_request("B", calling(waiting.force_complete))
    await clock.settle()
    assert seen == ["none"]


async def test_the_predicate_of_wait_until_is_called_in_the_context_of_the_check(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """The predicate runs first in the context of the waiting task, then in the context of each check."""
    seen: list[str] = []

    def predicate() -> bool:
        seen.append(REQUEST.get("none"))
        return len(seen) == 2

    task = asyncio.create_task(as_request("A", purgatory.wait_until(predicate, keys=["a"], timeout=5)))
    await clock.settle()
    await as_request("B", calling(purgatory.check_and_complete, "a"))
    assert await task is True
    assert seen == ["A", "B"]


async def test_what_a_hook_sets_does_not_stay(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """A variable that a hook sets on expiry is not visible to the hooks of a later deadline or check."""
    dirty = Traced(1, on_complete=lambda _: REQUEST.set("left behind"))
    later, checked = Traced(2), Traced(3)
    for operation in (dirty, later, checked):
        purgatory.try_complete_else_watch(operation, ["a"])
        operation.seen.clear()
    await clock.advance(1)
    await clock.advance(1)
    checked.ready = True
    purgatory.check_soon("a")
    await clock.settle()
    assert [later.seen[-1], checked.seen[-1]] == [("expire", "none"), ("complete", "none")]


@pytest.mark.parametrize("kind", [MonotonicClock, VirtualClock])
async def test_the_callback_of_a_clock_runs_in_an_empty_context(kind: type[Clock]) -> None:
    """The callback of a wake-up, due now or later, runs in an empty context, in real and in virtual time."""
    clock = kind()
    rung: list[str] = []
    both = asyncio.get_running_loop().create_future()

    def ring() -> None:
        rung.append(REQUEST.get("none"))
        if len(rung) == 2:
            both.set_result(None)

    async def request() -> None:
        clock.call_at(clock.now_ms(), ring)
        clock.call_at(clock.ceil_ms() + 1, ring)

    await as_request("A", request())
    if isinstance(clock, VirtualClock):
        await as_request("B", clock.advance(1))
    await both
    assert rung == ["none", "none"]


@pytest.mark.parametrize("kind", [MonotonicClock, VirtualClock])
@pytest.mark.usefixtures("no_gc")
async def test_no_handle_keeps_a_context_alive(kind: type[Clock]) -> None:
    """The values of a request's variables are freed with the request, even if its operation and timers still exist."""

    class Body:
        """A value that a request stores in its context."""

    purgatory = Purgatory[Any]("test", clock=kind())
    timer = purgatory.timer
    kept: list[Any] = []
    (future,) = futures(1)

    async def request() -> None:
        purgatory.try_complete_else_watch(Op(3600), ["a"])
        kept.append(timer.call_later(3600, int))
        kept.append(timer.fail_after(3600))
        kept.append(purgatory.when_all([future], 3600))
        purgatory.check_soon("a")
        await asyncio.sleep(0)

    body = Body()
    gone = weakref.ref(body)
    context = copy_context()
    context.run(REQUEST.set, body)
    task = context.run(asyncio.create_task, request())
    await task
    del task, context, body
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert gone() is None
    for thing in kept:
        thing.cancel()
    await purgatory.aclose()
    gc.collect()


@pytest.mark.usefixtures("no_gc")
async def test_a_block_that_has_just_expired_keeps_no_context_alive() -> None:
    """If the deadline has passed on entry, the block schedules a callback, which holds no context."""
    seen: list[Context] = []
    loop = asyncio.get_running_loop()
    async with SystemTimer() as timer:
        call_soon = loop.call_soon

        def noting(callback: Any, *args: Any, context: Any = None) -> Any:
            if getattr(callback, "__self__", None) is timeout:
                seen.append(context)
            return call_soon(callback, *args, context=context)

        loop.call_soon = noting  # type: ignore[method-assign, assignment]
        timeout = timer.timeout_at(timer.time() - 1)
        with pytest.raises(TimeoutError):
            async with timeout:
                await asyncio.sleep(60)
        loop.call_soon = call_soon  # type: ignore[method-assign]
    assert [len(context) for context in seen] == [0]


async def test_a_dropped_subscription_is_withdrawn_in_an_empty_context(clock: VirtualClock) -> None:
    """The code that drops the last reference may be anywhere, so its request is not that of the withdrawal."""
    watching = Watching()
    async with Purgatory[Any]("test", clock=clock, observers=[watching]) as purgatory:
        kept = [purgatory.changes(["a"])]
        await as_request("A", calling(kept.clear))
        await clock.settle()
        assert watching.seen == [("parked", "none"), ("cancelled", "none")]
