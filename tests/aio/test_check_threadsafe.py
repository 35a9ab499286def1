"""``check_threadsafe`` can be called from any thread, wakes the loop once for many calls, and raises without a loop."""

import asyncio
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any

import pytest
import uvloop

from purgatory import Outcome, Purgatory
from purgatory.aio.coalesced_checks import LoopChecks
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, park


class CountingLoop:
    """A proxy of the event loop that counts the wake-ups."""

    def __init__(self, purgatory: Purgatory[Any]) -> None:
        assert purgatory._loop is not None
        self.loop = purgatory._loop
        self.wake_ups = 0
        purgatory._loop = self  # type: ignore[assignment]

    def is_closed(self) -> bool:
        return self.loop.is_closed()

    def call_soon_threadsafe(self, callback: Callable[[], None], *, context: Context) -> object:
        self.wake_ups += 1
        return self.loop.call_soon_threadsafe(callback, context=context)


def in_a_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the function in another thread while the loop is blocked; return its result or raise its error."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


async def test_another_thread_completes_an_operation(clock: VirtualClock) -> None:
    """The check runs in the loop's thread; its result reaches the awaiting task."""
    async with Purgatory[Op]("threads", clock=clock) as purgatory:
        threads: list[int] = []
        operation = park(purgatory, "key", name="x", on_try=lambda _: threads.append(threading.get_ident()))
        threads.clear()
        operation.ready = True
        in_a_thread(purgatory.check_threadsafe, "key")
        assert operation.calls == []
        assert await operation == "x"
        assert threads == [threading.get_ident()]


async def test_a_thread_wakes_a_loop_that_goes_on_meanwhile(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """A call in a thread completes an operation while the loop runs."""
    task = asyncio.create_task(purgatory.park(op := Op(5, name="answer"), ["a"]))
    await clock.settle()
    op.ready = True
    await asyncio.to_thread(purgatory.check_threadsafe, "a")
    assert await task == "answer"


async def test_many_calls_of_many_threads_wake_the_loop_once(clock: VirtualClock) -> None:
    """Eight threads with a thousand calls each within one turn of the loop cause one wake-up and one check per key."""
    async with Purgatory[Op]("threads", clock=clock) as purgatory:
        watchers = [park(purgatory, number) for number in range(10)]
        loop = CountingLoop(purgatory)
        begin = threading.Barrier(8)

        def call() -> None:
            begin.wait()
            for number in range(1000):
                purgatory.check_threadsafe(number % 10)

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert loop.wake_ups == 1
        await clock.settle()
        assert {len(watcher.calls) for watcher in watchers} == {1}


async def test_a_thousand_calls_in_the_thread_of_the_loop_are_one_check(
    purgatory: Purgatory[Op], clock: VirtualClock
) -> None:
    """Calls within one turn of the loop are coalesced."""
    op = Op(5)
    purgatory.try_complete_else_watch(op, ["a"])
    for _ in range(1000):
        purgatory.check_threadsafe("a")
    await clock.settle()
    assert op.calls == ["try", "try"]


async def test_the_next_turn_takes_a_new_wake_up(clock: VirtualClock) -> None:
    """A call in the next turn wakes the loop again, and its check runs."""
    async with Purgatory[Op]("threads", clock=clock) as purgatory:
        loop = CountingLoop(purgatory)
        operation = park(purgatory, "key")
        for number in range(1, 4):
            in_a_thread(purgatory.check_threadsafe, "key")
            await clock.settle()
            assert loop.wake_ups == number
            assert len(operation.calls) == number


async def test_it_may_be_called_in_the_thread_of_the_loop(clock: VirtualClock) -> None:
    """The thread of the loop may also call the method, even while an operation is being tried."""
    async with Purgatory[Op]("threads", clock=clock) as purgatory:
        second = park(purgatory, "b")
        first = park(purgatory, "a", on_complete=lambda _: purgatory.check_threadsafe("b"))
        first.ready = second.ready = True
        purgatory.check_threadsafe("a")
        await clock.settle()
        assert (first.outcome, second.outcome) == (Outcome.COMPLETED, Outcome.COMPLETED)


async def test_a_nested_call_from_a_key_comparison_does_not_deadlock(clock: VirtualClock) -> None:
    """A nested call in the same thread does not deadlock; a signal handler may also make one."""
    async with Purgatory[Op]("threads", clock=clock) as purgatory:
        operation = park(purgatory, "other")

        class Key:
            def __hash__(self) -> int:
                return 7

            def __eq__(self, other: object) -> bool:
                purgatory.check_threadsafe("other")
                return self is other

        purgatory.check_threadsafe(Key())
        purgatory.check_threadsafe(Key())
        await clock.settle()
        assert set(operation.calls) == {"try"}


@pytest.mark.parametrize(("value", "completes"), [(100, True), (None, True), (99, False)])
@pytest.mark.parametrize("interrupted_at", [1, 2, 3])
async def test_a_signal_handler_that_interrupts_a_call_is_heard(
    clock: VirtualClock, interrupted_at: int, value: int | None, completes: bool
) -> None:
    """A handler names the same key with its own value, or without one, while the interrupted call stores 3."""
    async with Purgatory[Op]("threads", clock=clock) as purgatory:

        class Key:
            hashes = 0

            def __hash__(self) -> int:
                self.hashes += 1
                if self.hashes == interrupted_at:
                    signal.raise_signal(signal.SIGUSR1)
                return 7

        key = Key()
        key.hashes = 10
        operation = Op()
        purgatory.try_complete_else_watch(operation, {key: 100})
        operation.ready = True
        previous = signal.signal(signal.SIGUSR1, lambda *_: purgatory.check_threadsafe(key, value))
        try:
            key.hashes = 0
            purgatory.check_threadsafe(key, 3)
        finally:
            signal.signal(signal.SIGUSR1, previous)
        assert key.hashes > 3
        await clock.settle()
        assert operation.calls == (["try", "try", "complete"] if completes else ["try"])


async def test_a_handler_that_raises_after_its_call_is_heard(clock: VirtualClock) -> None:
    """It ends the interrupted call before that has woken the loop."""
    async with Purgatory[Op]("threads", clock=clock) as purgatory:
        operation = park(purgatory, "key")

        class InterruptedLoop(CountingLoop):
            def call_soon_threadsafe(self, callback: Callable[[], None], *, context: Context) -> object:
                purgatory._loop = self.loop
                purgatory.check_threadsafe("key")
                raise Boom

        InterruptedLoop(purgatory)
        with pytest.raises(Boom):
            purgatory.check_threadsafe("other")
        operation.ready = True
        await clock.settle()
        assert operation.outcome is Outcome.COMPLETED


async def test_a_thread_that_wakes_the_loop_keeps_no_other_waiting(clock: VirtualClock) -> None:
    """The lock is released by then: other threads, and the loop that was woken, need not wait for that thread."""
    async with Purgatory[Op]("threads", clock=clock) as purgatory:
        operations = [park(purgatory, key) for key in ("first", "second")]

        class SlowLoop(CountingLoop):
            def call_soon_threadsafe(self, callback: Callable[[], None], *, context: Context) -> object:
                purgatory._loop = self.loop
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(purgatory.check_threadsafe, "second").result(timeout=10.0)
                return super().call_soon_threadsafe(callback, context=context)

        SlowLoop(purgatory)
        for operation in operations:
            operation.ready = True
        in_a_thread(purgatory.check_threadsafe, "first")
        await clock.settle()
        assert [operation.outcome for operation in operations] == [Outcome.COMPLETED] * 2


async def test_a_thread_that_is_interrupted_before_it_wakes_the_loop(clock: VirtualClock) -> None:
    """The requests of other threads, which rely on that thread, are heard, and so are later ones."""
    async with Purgatory[Op]("threads", clock=clock) as purgatory:

        class InterruptedLoop(CountingLoop):
            def call_soon_threadsafe(self, callback: Callable[[], None], *, context: Context) -> object:
                purgatory._loop = self.loop
                in_a_thread(purgatory.check_threadsafe, "meanwhile")
                raise Boom

        for _ in range(2):
            operations = [park(purgatory, key) for key in ("meanwhile", "later")]
            for operation in operations:
                operation.ready = True
            InterruptedLoop(purgatory)
            with pytest.raises(Boom):
                in_a_thread(purgatory.check_threadsafe, "first")
            await clock.settle()
            assert operations[0].outcome is Outcome.COMPLETED
            in_a_thread(purgatory.check_threadsafe, "later")
            await clock.settle()
            assert operations[1].outcome is Outcome.COMPLETED


async def test_a_loop_that_closes_before_it_is_woken_does_not_silence_later_requests(clock: VirtualClock) -> None:
    """The call raises, and the next one wakes the loop that the purgatory belongs to by then."""
    async with Purgatory[Op]("threads", clock=clock) as purgatory:
        operation = park(purgatory, "later")
        operation.ready = True

        class ClosingLoop(CountingLoop):
            closed = False

            def is_closed(self) -> bool:
                return self.closed

            def call_soon_threadsafe(self, callback: Callable[[], None], *, context: Context) -> object:
                self.closed = True
                raise RuntimeError("Event loop is closed")

        loop = ClosingLoop(purgatory)
        with pytest.raises(RuntimeError, match="closed"):
            in_a_thread(purgatory.check_threadsafe, "first")
        purgatory._loop = loop.loop
        in_a_thread(purgatory.check_threadsafe, "later")
        await clock.settle()
        assert operation.outcome is Outcome.COMPLETED


async def test_an_inbox_that_is_emptied_while_a_thread_wakes_the_loop(clock: VirtualClock) -> None:
    """A callback that comes before the wake-up has returned does not silence the next request."""
    async with Purgatory[Op]("threads", clock=clock) as purgatory:
        operations = [park(purgatory, key) for key in ("first", "second")]
        for operation in operations:
            operation.ready = True

        class EarlyLoop(CountingLoop):
            def call_soon_threadsafe(self, callback: Callable[[], None], *, context: Context) -> object:
                purgatory._loop = self.loop
                callback()
                return self.loop.call_soon(callback, context=context)

        EarlyLoop(purgatory)
        purgatory.check_threadsafe("first")
        in_a_thread(purgatory.check_threadsafe, "second")
        await clock.settle()
        assert [operation.outcome for operation in operations] == [Outcome.COMPLETED] * 2


@pytest.mark.parametrize("method", ["check_threadsafe", "check_soon"])
async def test_a_finalizer_may_make_a_request_between_any_two_statements(clock: VirtualClock, method: str) -> None:
    """The garbage collector may call it in the loop's thread, before or after any assignment; it loses no request."""

    class Interrupted(LoopChecks):
        """Counts the moments before and after each assignment; the finalizer's request comes in one of them."""

        __slots__ = ()

        def __setattr__(self, name: str, value: object) -> None:
            passed()
            super().__setattr__(name, value)
            passed()

    def passed() -> None:
        nonlocal moment
        moment += 1
        if moment == chosen:
            late.ready = True
            getattr(purgatory, method)("late")

    moment = chosen = 0
    while moment >= chosen:  # until the run ends before the chosen moment
        moment, chosen = 0, chosen + 1
        async with Purgatory[Op]("threads", clock=clock) as purgatory:
            first, late = park(purgatory, "first"), park(purgatory, "late")
            purgatory._soon.__class__ = Interrupted
            first.ready = True
            purgatory.check_threadsafe("first")
            await clock.settle()
            assert first.outcome is Outcome.COMPLETED
            assert late.ready == late.is_completed, f"lost at moment {chosen}"
            late.cancel()
    assert chosen > 20


async def test_a_request_inside_another_one_that_fails_is_not_lost(clock: VirtualClock) -> None:
    """The comparison of a key makes a request, and then raises: only that request remains."""

    class Requesting:
        def __hash__(self) -> int:
            return 7

        def __eq__(self, other: object) -> bool:
            if armed:
                armed.clear()
                purgatory.check_threadsafe("late")
                raise Boom
            return self is other

    armed: set[str] = set()
    async with Purgatory[Op]("threads", clock=clock) as purgatory:
        late = park(purgatory, "late")
        late.ready = True
        inbox = purgatory._soon._inbox
        purgatory.check_threadsafe(Requesting())
        armed.add("once")
        with pytest.raises(Boom):
            purgatory.check_threadsafe(Requesting())
        inbox.clear()  # what was requested before; the request of the comparison is kept elsewhere
        await clock.settle()
        assert late.outcome is Outcome.COMPLETED


async def test_an_unhashable_key_raises_in_the_calling_thread(clock: VirtualClock) -> None:
    """The call raises TypeError, and the loop is not woken."""
    async with Purgatory[Op]("threads", clock=clock) as purgatory:
        loop = CountingLoop(purgatory)
        with pytest.raises(TypeError):
            in_a_thread(purgatory.check_threadsafe, [])
        assert loop.wake_ups == 0


def test_before_it_is_entered_it_belongs_to_no_loop() -> None:
    """The RuntimeError says how to bind the purgatory to a loop."""
    with pytest.raises(RuntimeError, match="enter it with 'async with'"):
        Purgatory[Op]("threads").check_threadsafe("key")


@pytest.mark.parametrize("new_loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_every_call_on_a_closed_loop_raises(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Each call raises RuntimeError, as in asyncio, even if an earlier check is still pending."""
    loop = new_loop()
    purgatory = Purgatory[Op]("threads")

    async def enter() -> None:
        await purgatory.__aenter__()

    async def leave() -> None:
        await purgatory.aclose()

    loop.run_until_complete(enter())
    purgatory.check_threadsafe("a")  # the loop is not running: the check stays pending
    loop.run_until_complete(leave())
    purgatory.check_threadsafe("b")
    loop.close()
    for key in "abc":
        with pytest.raises(RuntimeError, match="closed"):
            in_a_thread(purgatory.check_threadsafe, key)


@pytest.mark.parametrize("new_loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_checks_requested_while_the_loop_is_stopped_run_when_it_resumes(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """A loop that is stopped and restarted loses no check."""
    loop = new_loop()
    purgatory = Purgatory[Op]("threads")
    operations: list[Op] = []

    async def enter() -> None:
        await purgatory.__aenter__()
        operations.append(park(purgatory, "key", name="x"))

    async def wait() -> str:
        answer: str = await operations[0]
        await purgatory.aclose()
        return answer

    loop.run_until_complete(enter())
    operations[0].ready = True
    in_a_thread(purgatory.check_threadsafe, "key")
    assert loop.run_until_complete(wait()) == "x"
    loop.close()


class WorkClock(VirtualClock):
    """A virtual clock whose work time the test moves."""

    worked = 1000.0

    def work_time(self) -> float:
        return self.worked


async def test_requests_that_arrive_faster_than_the_checks_are_merged() -> None:
    """Threads that request the same keys in every turn leave no backlog, so a later request does not wait behind it."""
    clock = WorkClock(1000.0)

    def work(_: Op) -> None:
        clock.worked += 0.001  # a whole turn

    async with Purgatory[Op]("threads", clock=clock) as purgatory:
        watchers = [park(purgatory, key, on_try=work) for key in range(20) for _ in range(5)]
        for _ in range(100):
            in_a_thread(lambda: [purgatory.check_threadsafe(key) for key in range(20)])
            await asyncio.sleep(0)
        before = sum(op.calls.count("try") for op in watchers)
        last = park(purgatory, "last")
        last.ready = True
        in_a_thread(purgatory.check_threadsafe, "last")
        await last
        await clock.settle()
        assert sum(op.calls.count("try") for op in watchers) - before <= 3 * len(watchers)
