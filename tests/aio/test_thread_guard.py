"""A call from another thread than that of the running event loop raises, and changes nothing."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from purgatory import Outcome, Purgatory, SystemTimer, TimerTask
from purgatory.conditions import ConditionalOperation, signal
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op

REFUSED = r"check_threadsafe\(\).*loop\.call_soon_threadsafe\(\)"


def in_a_thread(function: Callable[[], Any]) -> Any:
    """Call the function in another thread while the loop is blocked; return its result or raise its error."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def in_a_loop_of_its_own(coroutine_function: Callable[[], Any]) -> Any:
    """Run the coroutine in an event loop of another thread while this one is blocked."""
    return in_a_thread(lambda: asyncio.run(coroutine_function()))


def state(room: Purgatory[Any]) -> Any:
    """What a refused call must not have changed."""
    return room.statistics(), room.timer.size, room.timer.next_expiration_ms


CALLS: dict[str, Callable[[Purgatory[Any], Op], object]] = {
    "check_and_complete": lambda room, _: room.check_and_complete("a"),
    "check": lambda room, _: room.check("a", 3, limit=1),
    "check_and_complete of a key without watchers": lambda room, _: room.check_and_complete("none"),
    "check_soon": lambda room, _: room.check_soon("a"),
    "check_all": lambda room, _: room.check_all(),
    "try_complete_else_watch": lambda room, _: room.try_complete_else_watch(Op(5.0), ["b"]),
    "force_complete": lambda _, op: op.force_complete(),
    "cancel": lambda _, op: op.cancel(),
    "run": lambda _, op: op.run(),
    "extend": lambda _, op: op.extend(50.0),
    "extend_to": lambda _, op: op.extend_to(50.0),
    "extend_to None": lambda _, op: op.extend_to(None),
    "cancel_for_key": lambda room, _: room.cancel_for_key("a"),
    "fail_for_key": lambda room, _: room.fail_for_key("a", ValueError()),
    "when_all": lambda room, _: room.when_all([], 1.0),
    "changes": lambda room, _: room.changes(["a"]),
    "await": lambda _, op: op.__await__(),
    "timer.add": lambda room, _: room.timer.add(TimerTask(10)),
    "timer.call_later": lambda room, _: room.timer.call_later(100.0, print),
    "timer.fail_after": lambda room, _: room.timer.fail_after(1.0),
    "timer.start": lambda room, _: room.timer.start(),
    "timer.expire_due": lambda room, _: room.timer.expire_due(10**9),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_in_another_thread_is_refused_and_changes_nothing(name: str, purgatory: Purgatory[Op]) -> None:
    """RuntimeError names what to call instead, and the operation still waits."""
    op = Op(10.0)
    purgatory.try_complete_else_watch(op, ["a"])
    op.ready = True
    before = state(purgatory)
    with pytest.raises(RuntimeError, match=REFUSED):
        in_a_thread(lambda: CALLS[name](purgatory, op))
    assert state(purgatory) == before
    assert op.outcome is Outcome.PENDING
    assert purgatory.check("a") == 1
    purgatory._check()


@pytest.mark.parametrize(("condition", "value"), [("count(2)", None), ("at_least(3)", 5)])
@pytest.mark.parametrize("key", ["a", "none"])
async def test_a_signal_in_another_thread_is_refused_and_not_counted(
    purgatory: Purgatory[Any], condition: str, value: float | None, key: str
) -> None:
    """The operation has seen nothing, so the signal can be sent again in the loop's thread."""
    op = ConditionalOperation(condition, ["a"], 10.0)
    purgatory.try_complete_else_watch(op, op.wanted)
    seen = op.seen
    with pytest.raises(RuntimeError, match=REFUSED):
        in_a_thread(lambda: signal(purgatory, key, value))
    assert op.seen == seen
    purgatory.cancel_for_key("a")


COROUTINES: dict[str, Callable[[Purgatory[Any], Op], Any]] = {
    "park": lambda room, _: room.park(Op(1.0), ["b"]),
    "wait_until": lambda room, _: room.wait_until(lambda: False, keys=["b"], timeout=1.0),
    "wait_until without a deadline": lambda room, _: room.wait_until(lambda: False, keys=["b"], timeout=None),
    "acancel_for_key": lambda room, _: room.acancel_for_key("a"),
    "afail_for_key": lambda room, _: room.afail_for_key("a", ValueError()),
    "aclose": lambda room, _: room.aclose(),
    "timer.aclose": lambda room, _: room.timer.aclose(),
    "timer.timeout": lambda room, _: room.timer.timeout(1.0).__aenter__(),
}


@pytest.mark.parametrize("name", COROUTINES)
async def test_a_coroutine_in_the_loop_of_another_thread_is_refused(name: str, purgatory: Purgatory[Op]) -> None:
    """The same for what awaits, in a second event loop."""
    op = Op(10.0)
    purgatory.try_complete_else_watch(op, ["a"])
    before = state(purgatory)

    async def other() -> None:
        with pytest.raises(RuntimeError, match=REFUSED):
            await COROUTINES[name](purgatory, op)

    in_a_loop_of_its_own(other)
    assert state(purgatory) == before
    assert op.outcome is Outcome.PENDING
    assert not purgatory.closed


async def test_an_operation_cannot_be_awaited_in_the_loop_of_another_thread(purgatory: Purgatory[Op]) -> None:
    """While it waits that is refused, because nothing would wake that loop; an ended one has its result everywhere."""
    op = Op(10.0)
    purgatory.try_complete_else_watch(op, ["a"])

    async def other() -> str:
        return await asyncio.wait_for(op, 5.0)

    with pytest.raises(RuntimeError, match=REFUSED):
        in_a_loop_of_its_own(other)
    op.force_complete()
    assert in_a_loop_of_its_own(other) == await op


async def test_a_task_of_the_timer_is_not_cancelled_in_another_thread() -> None:
    """The task stays on the timer.  One that is on no timer may be cancelled anywhere."""
    async with SystemTimer() as timer:
        task = timer.call_later(10.0, print)
        with pytest.raises(RuntimeError, match=REFUSED):
            in_a_thread(task.cancel)
        assert task.scheduled
        assert task.cancel()
        assert in_a_thread(task.cancel) is False
        async with timer.timeout(10.0) as block:
            for call in (lambda: block.reschedule(None), block.run):
                with pytest.raises(RuntimeError, match=REFUSED):
                    in_a_thread(call)
            assert block.when() is not None
            assert not block.expired()


async def test_a_timer_is_read_in_another_thread_without_a_change(clock: VirtualClock) -> None:
    """Only the loop's thread drops what is empty: the buckets and the tasks that were due when they were added."""
    async with SystemTimer(clock=clock) as timer:
        core = timer._core

        def read() -> tuple[int | None, int, int]:
            assert f"next_expiration_ms={timer.next_expiration_ms}>" in repr(timer)
            return timer.next_expiration_ms, len(core._queue), len(core._ready)

        begin_ms = clock.now_ms()
        due, early, late = (timer.call_later(delay, print) for delay in (0, 0.005, 0.009))
        core._begin_call()  # a call that an interrupt ends leaves the ready tasks
        found = [in_a_thread(read)]
        for task in (due, early, late):
            task.cancel()
            found.append(in_a_thread(read))
        assert found == [(begin_ms, 2, 1), (begin_ms + 5, 2, 1), (begin_ms + 9, 2, 1), (None, 2, 1)]


def test_without_a_loop_every_thread_may_call() -> None:
    """A purgatory whose loop has not begun, or does not run now, is usable in every thread."""
    room: Purgatory[Op] = Purgatory("x")
    loop = asyncio.new_event_loop()
    for _ in range(2):
        ops = [Op(10.0), Op(10.0), Op(10.0)]
        for op in ops:
            in_a_thread(lambda op=op: room.try_complete_else_watch(op, ["a"]))
        assert in_a_thread(lambda: room.check("a")) == 0
        assert in_a_thread(ops[0].force_complete)
        assert in_a_thread(ops[1].cancel)
        assert in_a_thread(ops[2].cancel)
        loop.run_until_complete(room.__aenter__())  # the loop stops again
    loop.run_until_complete(room.aclose())
    loop.close()


def test_a_loop_that_is_started_again_in_another_thread_takes_the_purgatory_along() -> None:
    """There the calls work, and the thread that it has left is refused while it runs."""
    room: Purgatory[Op] = Purgatory("x")
    loop = asyncio.new_event_loop()
    loop.run_until_complete(room.__aenter__())
    begun, end = threading.Event(), threading.Event()

    async def there() -> None:
        op = Op(10.0)
        room.try_complete_else_watch(op, ["a"])
        op.ready = True
        assert room.check("a") == 1
        begun.set()
        await asyncio.to_thread(end.wait)

    thread = threading.Thread(target=loop.run_until_complete, args=(there(),))
    thread.start()
    begun.wait()
    with pytest.raises(RuntimeError, match=REFUSED):
        room.check("a")
    end.set()
    thread.join()
    assert room.check("a") == 0
    loop.run_until_complete(room.aclose())
    loop.close()


async def test_a_callback_of_the_loop_may_call_in_any_context(purgatory: Purgatory[Op]) -> None:
    """The loop's own thread is recognised in its callbacks and signal handlers, where no task runs."""
    op = Op(10.0)
    purgatory.try_complete_else_watch(op, ["a"])
    op.ready = True
    asyncio.get_running_loop().call_soon(purgatory.check, "a")
    assert await op == "a" or op.outcome is Outcome.COMPLETED


async def test_the_other_thread_has_check_threadsafe(purgatory: Purgatory[Op]) -> None:
    """What the error names works: the waiter is answered in the next turn, not with the next event."""
    op = Op(None)
    waiting = asyncio.ensure_future(purgatory.park(op, ["a"]))
    await asyncio.sleep(0)
    op.ready = True
    await asyncio.to_thread(purgatory.check_threadsafe, "a")
    await waiting
    assert op.outcome is Outcome.COMPLETED


async def test_an_operation_that_is_not_parked_is_ended_by_the_thread_of_its_awaiters() -> None:
    """Its awaiter would not be woken; without one, every thread may end it."""
    op = Op(10.0)
    waiting = asyncio.ensure_future(park_nowhere(op))
    await asyncio.sleep(0)
    for call in (op.force_complete, op.cancel, op.run):
        with pytest.raises(RuntimeError, match=REFUSED):
            in_a_thread(call)
    assert op.outcome is Outcome.PENDING
    op.force_complete()
    await waiting
    assert in_a_thread(Op(1.0).force_complete)
    assert in_a_thread(Op(1.0).cancel)


async def park_nowhere(op: Op) -> object:
    """Await an operation that is in no purgatory."""
    return await op


def test_a_future_that_cannot_be_answered_is_reported_after_all_others_are_answered() -> None:
    """Only a cancelled future and a closed loop are passed over: asyncio's debug mode refuses a foreign thread."""
    room: Purgatory[Op] = Purgatory("x")
    op = Op(10.0)
    begun, end = threading.Event(), threading.Event()
    awaited: list[object] = []
    contexts: list[dict[str, Any]] = []

    async def there() -> None:
        op.__await__().send(None).add_done_callback(print)  # no task, which would never continue
        begun.set()
        await asyncio.to_thread(end.wait)

    async def here() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: contexts.append(context))
        async with room:
            waiting = asyncio.ensure_future(park_nowhere(op))
            await asyncio.sleep(0)
            assert op.force_complete()
            awaited.append(await waiting)

    room.try_complete_else_watch(op, ["a"])  # it belongs to no loop yet
    thread = threading.Thread(target=asyncio.run, args=(there(),), kwargs={"debug": True})
    thread.start()
    begun.wait()
    asyncio.run(here())
    end.set()
    thread.join()
    assert awaited == [""]
    assert [str(context["exception"])[:15] for context in contexts] == ["Non-thread-safe"]
    assert contexts[0]["operation"] is op


@pytest.fixture
def foreign() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop in debug mode, which refuses other threads; a test starts it in a thread with :func:`started`."""
    loop = asyncio.SelectorEventLoop()
    loop.set_debug(True)
    yield loop
    loop.close()


@contextlib.contextmanager
def started(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Run the loop in a thread of its own."""
    begun = threading.Event()
    loop.call_soon(begun.set)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    begun.wait()
    yield
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


@contextlib.contextmanager
def refusals() -> Iterator[list[str]]:
    """Collect what the running loop's exception handler gets; at the end there must be one refusal of a loop."""
    contexts: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: contexts.append(context))
    messages: list[str] = []
    yield messages
    messages.extend(context["message"] for context in contexts)
    assert [str(context["exception"])[:15] for context in contexts] == ["Non-thread-safe"]


@pytest.mark.parametrize("ending", ["check", "fail_for_key"])
def test_a_parking_task_that_cannot_be_answered_is_reported(
    foreign: asyncio.AbstractEventLoop, clock: VirtualClock, ending: str
) -> None:
    """It waits in a loop that the purgatory has left and that runs again elsewhere: the operation ends all the same."""
    room: Purgatory[Op] = Purgatory("x", clock=clock)
    op = Op(None)
    coroutine = room.park(op, ["a"])

    async def there() -> None:
        coroutine.send(None).add_done_callback(print)  # no task, which would never continue

    async def here() -> None:
        async with room:
            with started(foreign), refusals() as messages:
                op.ready = True
                assert (room.check("a") if ending == "check" else room.fail_for_key("a", Boom())) == 1
            assert messages == ["an operation of purgatory 'x' raised"]
            assert op.outcome is (Outcome.COMPLETED if ending == "check" else Outcome.FAILED)
            room._check()

    foreign.run_until_complete(there())
    asyncio.run(here())
    coroutine.close()


def test_an_operation_on_a_timer_whose_awaiter_cannot_be_answered_is_reported(
    foreign: asyncio.AbstractEventLoop, clock: VirtualClock
) -> None:
    """It is in no purgatory, so the timer reports it, and runs the others that are due."""
    op, behind = Op(1.0), Op(1.0)

    async def there() -> None:
        op.__await__().send(None).add_done_callback(print)

    async def here() -> None:
        async with SystemTimer(clock=clock) as timer:
            with started(foreign), refusals() as messages:
                timer.add(op)
                timer.add(behind)
                await clock.advance(1.0)
            assert messages == ["a timer task raised"]
            assert op.expired
            assert behind.expired

    foreign.run_until_complete(there())
    asyncio.run(here())
