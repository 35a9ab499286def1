"""One purgatory or timer in several event loops, one after another: deadlines and checks are kept."""

import asyncio
import gc
import sys
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from purgatory import Outcome, Purgatory, PurgatoryClosed, SystemTimer
from purgatory.testing import VirtualClock
from purgatory.types import Alarm, Clock, MonotonicClock
from tests.helpers import Op

NewLoop = Callable[[], asyncio.AbstractEventLoop]
Main = Callable[[], Coroutine[Any, Any, Any]]

NEW_LOOPS: dict[str, NewLoop] = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
both_loops = pytest.mark.parametrize("new_loop", NEW_LOOPS.values(), ids=NEW_LOOPS)


def in_runners(new_loop: NewLoop, mains: list[Main]) -> None:
    """Run each coroutine as ``asyncio.run`` does: cancel the remaining tasks, and close the loop."""
    for main in mains:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())


def in_closed_loops(new_loop: NewLoop, mains: list[Main]) -> None:
    """Close each loop with its remaining tasks; only the last loop cleans up."""
    for number, main in enumerate(mains, 1):
        loop = new_loop()
        loop.run_until_complete(main())
        if number == len(mains):
            cancel_everything(loop)
        loop.close()


def in_stopped_loops(new_loop: NewLoop, mains: list[Main]) -> None:
    """Stop each loop, and keep all loops open until the end."""
    loops = [new_loop() for _ in mains]
    for loop, main in zip(loops, mains, strict=True):
        loop.run_until_complete(main())
    for loop in loops:
        cancel_everything(loop)
        loop.close()


def cancel_everything(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the remaining tasks of a loop, including the reaper."""
    for task in asyncio.all_tasks(loop):
        task.cancel()
    for _ in range(3):
        loop.run_until_complete(asyncio.sleep(0))


def drop(tasks: list[asyncio.Task[Any]]) -> None:
    """Let the garbage collector close the coroutines of the tasks; pytest reports an error that one of them raises."""
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    tasks.clear()
    del task
    gc.collect()


def closing_in_a_closed_loop(new_loop: NewLoop, purgatory: Purgatory[Any]) -> list[asyncio.Task[Any]]:
    """Close a loop during the grace of ``aclose``; return the task, which will never end."""
    closing: list[asyncio.Task[Any]] = []

    async def close() -> None:
        closing.append(asyncio.create_task(purgatory.aclose(grace=3600.0)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    loop = new_loop()
    loop.run_until_complete(close())
    loop.close()
    return closing


WAYS = {"run": in_runners, "closed": in_closed_loops, "stopped": in_stopped_loops}
all_ways = pytest.mark.parametrize("way", WAYS)


class ShiftedClock(Clock):
    """The real clock, whose time a test can move forward.  Its alarms are callbacks of the loop."""

    def __init__(self) -> None:
        self.real = MonotonicClock()
        self.shift_ms = 0

    def now_ms(self) -> int:
        return self.real.now_ms() + self.shift_ms

    def call_at(self, when_ms: int, callback: Callable[[], object]) -> Alarm:
        return self.real.call_at(when_ms - self.shift_ms, callback)


async def in_time(work: Awaitable[Any]) -> Any:
    """Limit the time of the coroutine, so that a lost deadline fails the test instead of blocking it."""
    return await asyncio.wait_for(work, 20)


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Any:
    """Check that nothing is logged: no destroyed pending task, and no exception of a callback."""
    yield
    gc.collect()
    records = [*caplog.get_records("call"), *caplog.records]  # the latter are those of the teardown
    assert [record.getMessage() for record in records] == []


@all_ways
@both_loops
@pytest.mark.usefixtures("quiet")
def test_parking_goes_on_in_the_next_loop(new_loop: NewLoop, way: str) -> None:
    """Operations with and without a deadline are answered in each of three loops."""
    purgatory = Purgatory[Op]("test")
    answers: list[str] = []

    async def main() -> None:
        answers.append(await purgatory.park(Op(0.002, name="due"), ["a"]))
        waiting = asyncio.create_task(purgatory.park(op := Op(None, name="checked"), ["b"]))
        await asyncio.sleep(0)
        op.ready = True
        await asyncio.sleep(0)
        assert purgatory.check_and_complete("b") == 1
        answers.append(await waiting)
        late = Op(3600)
        purgatory.try_complete_else_watch(late, ["c"])
        purgatory._check()

    WAYS[way](new_loop, [main, main, main])
    assert answers == ["due", "checked"] * 3
    assert len(purgatory) == 3


@all_ways
@both_loops
@pytest.mark.usefixtures("quiet")
def test_deadlines_of_the_first_loop_are_kept_in_the_second(new_loop: NewLoop, way: str) -> None:
    """Operations, callbacks and futures from the first loop become due in the second loop, in order."""
    purgatory = Purgatory[Op]("test")
    timer = purgatory.timer
    order: list[Any] = []
    kept: list[Any] = []

    async def first() -> None:
        kept.append(op := Op(0.05, on_complete=lambda _: order.append("operation")))
        purgatory.try_complete_else_watch(op, ["a"])
        timer.call_later(0.06, order.append, "callback")
        kept.append(timer.fail_after(0.055))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def second() -> None:
        await purgatory.park(Op(0.1), ["b"])

    WAYS[way](new_loop, [first, second])
    if kept[1].done():
        assert isinstance(kept[1].exception(), TimeoutError)
    assert order == ["operation", "callback"]
    assert kept[0].outcome is Outcome.EXPIRED


@pytest.mark.parametrize("way", ["run", "closed"])
@pytest.mark.parametrize("turns", [0, 3])
@pytest.mark.parametrize("shared", [False, True])
@both_loops
@pytest.mark.usefixtures("quiet")
def test_a_synchronous_call_alone_rebinds_to_the_second_loop(
    new_loop: NewLoop, way: str, turns: int, shared: bool
) -> None:
    """A synchronous call moves the timer to the second loop, even if its deadline is later and the reaper never ran."""
    timer = SystemTimer() if shared else None
    purgatory = Purgatory[Op]("test", timer=timer)
    left = Op(0.03)

    async def first() -> None:
        if timer is not None:
            timer.start()
        purgatory.try_complete_else_watch(left, ["a"])
        for _ in range(turns):
            await asyncio.sleep(0)

    async def second() -> None:
        op = Op(0.06)
        purgatory.try_complete_else_watch(op, ["b"])
        await op
        assert left.outcome is Outcome.EXPIRED

    WAYS[way](new_loop, [first, second])


@all_ways
@both_loops
@pytest.mark.usefixtures("quiet")
def test_blocks_with_a_timeout_end_in_each_loop(new_loop: NewLoop, way: str) -> None:
    """``timer.timeout`` cancels its block in the second loop, even if the first loop left a later deadline."""
    timer = SystemTimer()
    ended: list[str] = []

    async def main() -> None:
        timer.call_later(0.03, int)
        await asyncio.sleep(0)
        try:
            async with timer.timeout(0.04):
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            ended.append("timeout")
        with pytest.raises(TimeoutError):
            await timer.fail_after(0.001)
        timer.call_later(3600, int)

    WAYS[way](new_loop, [main, main])
    assert ended == ["timeout", "timeout"]


@all_ways
@both_loops
@pytest.mark.usefixtures("quiet")
def test_a_check_that_is_pending_when_a_loop_ends_is_made_in_the_next(new_loop: NewLoop, way: str) -> None:
    """Checks that were requested in the last turn of a loop run when the purgatory is used again."""
    purgatory = Purgatory[Op]("test")
    soon, safe = Op(None, name="soon"), Op(None, name="safe")

    async def first() -> None:
        await purgatory.__aenter__()
        for op in (soon, safe):
            purgatory.try_complete_else_watch(op, [op.name])
        soon.ready = safe.ready = True
        asyncio.get_running_loop().call_soon(check)  # in the loop's last turn: the checks would run in the next turn

    def check() -> None:
        purgatory.check_soon("soon")
        purgatory.check_threadsafe("safe")

    async def second() -> None:
        await purgatory.park(Op(0.001), ["x"])
        assert [await soon, await safe] == ["soon", "safe"]
        for key, check in (("soon", purgatory.check_soon), ("safe", purgatory.check_threadsafe)):
            op = Op(None, name="again")
            purgatory.try_complete_else_watch(op, ["soon", "safe"])
            op.ready = True
            check(key)
            assert await op == "again"

    WAYS[way](new_loop, [first, second])


@both_loops
@pytest.mark.usefixtures("quiet")
def test_a_check_soon_in_the_next_loop_is_enough(new_loop: NewLoop) -> None:
    """A check that a closed loop did not run does not prevent the next loop from scheduling checks."""
    purgatory = Purgatory[Op]("test")
    left, other = Op(None, name="left"), Op(None, name="other")

    async def first() -> None:
        for op in (left, other):
            purgatory.try_complete_else_watch(op, [op.name])
        left.ready = other.ready = True
        asyncio.get_running_loop().call_soon(purgatory.check_soon, "left")

    async def second() -> None:
        purgatory.check_soon("other")
        assert [await left, await other] == ["left", "other"]

    in_closed_loops(new_loop, [first, second])


@all_ways
@both_loops
@pytest.mark.usefixtures("quiet")
def test_closing_in_another_loop(new_loop: NewLoop, way: str) -> None:
    """``aclose`` answers the operations that the first loop left, also with a grace, and can be repeated in a third
    loop.
    """
    purgatory = Purgatory[Op]("test")
    timer = SystemTimer()
    shared = Purgatory[Op]("shared", timer=timer)
    operations = [Op(0.01), Op(3600), Op(3600)]

    async def first() -> None:
        await purgatory.__aenter__()
        timer.start()
        for op, where in zip(operations, (purgatory, purgatory, shared), strict=True):
            where.try_complete_else_watch(op, ["a"])
        await asyncio.sleep(0)

    async def second() -> None:
        await purgatory.aclose(grace=0.02)
        await timer.aclose()
        await shared.aclose()
        assert not timer.running
        assert not purgatory.timer.running

    async def third() -> None:
        await purgatory.aclose()
        await timer.aclose()
        with pytest.raises(PurgatoryClosed):
            timer.call_later(1, int)

    WAYS[way](new_loop, [first, second, third])
    assert {op.outcome for op in operations} == {Outcome.EXPIRED}


@both_loops
def test_closing_goes_on_where_a_closed_loop_left_it(new_loop: NewLoop) -> None:
    """If a loop is closed during ``aclose``, the next call in another loop completes the closing."""
    timer = SystemTimer()
    purgatory = Purgatory[Op]("test")
    shared = Purgatory[Op]("shared", timer=timer)
    operations = [Op(3600) for _ in range(5000)]
    closing: list[Any] = []

    async def first() -> None:
        for number, op in enumerate(operations):
            (purgatory, shared)[number % 2].try_complete_else_watch(op, ["a"])
        closing.extend(asyncio.create_task(which.aclose()) for which in (purgatory, timer))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def second() -> None:
        await purgatory.aclose()
        await timer.aclose()

    loop = new_loop()
    loop.run_until_complete(first())
    loop.close()
    assert Outcome.PENDING in {op.outcome for op in operations}
    in_closed_loops(new_loop, [second])
    assert {op.outcome for op in operations} == {Outcome.EXPIRED}
    drop(closing)


@both_loops
def test_a_loop_that_runs_in_another_thread_is_an_error(new_loop: NewLoop) -> None:
    """The first call from a second loop raises RuntimeError, parks nothing, and does not affect the first loop."""
    timer = SystemTimer()
    purgatory = Purgatory[Op]("test", timer=timer)
    begun, end = threading.Event(), threading.Event()
    answers: list[Any] = []

    async def first() -> None:
        async with timer:
            begun.set()
            await asyncio.to_thread(end.wait)
            answers.append(await purgatory.park(Op(0.001, name="first"), ["a"]))

    async def second() -> None:
        for call in (timer.start, lambda: timer.call_later(1, int), lambda: timer.fail_after(1)):
            with pytest.raises(RuntimeError, match="running in another thread"):
                call()
        for waiting in (
            purgatory.park(Op(1), ["a"]),
            purgatory.aclose(),
            timer.aclose(),
            timer.timeout(1).__aenter__(),
        ):
            with pytest.raises(RuntimeError, match="running in another thread"):
                await waiting
        with pytest.raises(RuntimeError, match="running in another thread"):
            purgatory.check_soon("a")
        with pytest.raises(RuntimeError, match="running in another thread"):
            purgatory.try_complete_else_watch(Op(1), ["a"])
        with pytest.raises(RuntimeError, match="running in another thread"):
            await purgatory.park(Op(None), ["a"])
        assert len(purgatory) == 0

    thread = threading.Thread(target=in_closed_loops, args=(new_loop, [first]))
    thread.start()
    begun.wait(20)
    try:
        in_closed_loops(new_loop, [second])
    finally:
        end.set()
        thread.join()
    assert answers == ["first"]
    assert timer.size == 0


@both_loops
@pytest.mark.usefixtures("quiet")
def test_two_loops_in_turn(new_loop: NewLoop) -> None:
    """If loops take turns, the timer moves to the loop that uses it."""
    purgatory = Purgatory[Op]("test")
    loops = [new_loop(), new_loop()]
    answers: list[str] = []

    async def main() -> None:
        answers.append(await purgatory.park(Op(0.001, name="x"), ["a"]))
        purgatory.try_complete_else_watch(Op(3600), ["b"])

    for loop in loops * 3:
        loop.run_until_complete(in_time(main()))
    assert answers == ["x"] * 6
    loops[0].run_until_complete(purgatory.aclose())
    for loop in loops:
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


@both_loops
@pytest.mark.usefixtures("quiet")
def test_futures_of_a_closed_loop_keep_no_other_from_an_answer(new_loop: NewLoop) -> None:
    """``when_all``, ``fail_after`` and an awaiting task of the first loop end without an error in the second loop."""
    purgatory = Purgatory[Any]("test")
    waiting: list[Any] = []

    async def first() -> None:
        loop = asyncio.get_running_loop()
        waiting.append(purgatory.when_all([loop.create_future()], 0.01))
        future = purgatory.timer.fail_after(0.01)
        future.add_done_callback(asyncio.Future.exception)  # a slow first loop may see its end
        waiting.append(future)
        waiting.append(asyncio.create_task(purgatory.park(Op(0.01), ["a"])))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def second() -> None:
        problems: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        assert await purgatory.park(Op(0.02, name="answer"), ["b"]) == "answer"
        assert problems == []
        assert len(purgatory) == 0

    in_closed_loops(new_loop, [first, second])
    assert waiting[0].outcome is Outcome.EXPIRED
    waiting[2]._log_destroy_pending = False


@all_ways
@both_loops
@pytest.mark.usefixtures("quiet")
def test_when_all_alone_moves_the_timer_to_the_second_loop(new_loop: NewLoop, way: str) -> None:
    """Its deadline comes, although the first loop left an earlier one and need not be closed."""
    clock = VirtualClock()
    purgatory = Purgatory[Any]("test", clock=clock)
    left = Op(1)

    async def first() -> None:
        await purgatory.__aenter__()
        purgatory.try_complete_else_watch(left, ["a"])
        await clock.settle()

    async def second() -> None:
        operation = purgatory.when_all([asyncio.get_running_loop().create_future()], 60.0)
        await clock.advance(60.0)
        assert (left.outcome, operation.outcome) == (Outcome.EXPIRED, Outcome.EXPIRED)

    WAYS[way](new_loop, [first, second])


@both_loops
@pytest.mark.usefixtures("quiet")
def test_the_reaper_of_a_loop_that_stopped_for_ever_is_not_reported_as_destroyed(new_loop: NewLoop) -> None:
    """The loop is closed without running again, so the reaper that the timer left there never ends."""
    timer = SystemTimer()

    async def start() -> None:
        timer.start()
        await asyncio.sleep(0)

    first, second = new_loop(), new_loop()
    first.run_until_complete(start())
    second.run_until_complete(start())
    first.close()
    second.run_until_complete(timer.aclose())
    second.close()


@both_loops
def test_when_all_is_refused_while_the_first_loop_runs_in_another_thread(new_loop: NewLoop) -> None:
    """It raises RuntimeError, and nothing is parked, although its deadline is not the earliest."""
    purgatory = Purgatory[Any]("test")
    begun, end = threading.Event(), threading.Event()

    async def first() -> None:
        async with purgatory:
            op = Op(3600)
            purgatory.try_complete_else_watch(op, ["a"])
            begun.set()
            await asyncio.to_thread(end.wait)
            op.cancel()

    async def second() -> None:
        future = asyncio.get_running_loop().create_future()
        for timeout in (None, 7200):
            with pytest.raises(RuntimeError, match="running in another thread"):
                purgatory.when_all([future], timeout)
            assert len(purgatory) == 1

    thread = threading.Thread(target=in_closed_loops, args=(new_loop, [first]))
    thread.start()
    try:
        assert begun.wait(20)
        in_closed_loops(new_loop, [second])
    finally:
        end.set()
        thread.join()


@pytest.mark.parametrize("heartbeat", [None, 1.0])
@both_loops
def test_a_subscription_that_waited_in_a_closed_loop_affects_no_call_in_the_next(
    new_loop: NewLoop, heartbeat: float | None
) -> None:
    """A check of its key, its heartbeat, and ``aclose`` in the second loop end without an error."""
    clock = VirtualClock()
    purgatory = Purgatory[Any]("test", clock=clock)
    waiting: list[Any] = []
    problems: list[Any] = []

    async def first() -> None:
        changes: Any = purgatory.changes(["a"], heartbeat=heartbeat)
        waiting.append(asyncio.create_task(anext(changes)))
        await clock.settle()

    async def second() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        op = Op(name="other")
        purgatory.try_complete_else_watch(op, ["a"])
        task = asyncio.create_task(purgatory.park(Op(2, name="answer"), ["b"]))
        await clock.advance(2)
        assert await in_time(task) == "answer"
        op.ready = True
        assert purgatory.check_and_complete("a") == 1
        await purgatory.aclose()
        assert len(purgatory) == 0

    in_closed_loops(new_loop, [first, second])
    assert problems == []
    drop(waiting)


USES: dict[str, Callable[[Purgatory[Any]], Awaitable[object]]] = {
    "park": lambda purgatory: purgatory.park(Op(0, name="due"), ["b"]),
    "changes": lambda purgatory: purgatory.changes(["b"]).aclose(),
    "enter": lambda purgatory: purgatory.__aenter__(),
    "check_soon": lambda purgatory: asyncio.sleep(0, purgatory.check_soon("b")),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("when", ["in the first loop", "in the second loop", "after a use in the second loop"])
@all_ways
@both_loops
@pytest.mark.usefixtures("quiet")
def test_a_dropped_subscription_frees_its_place_in_the_next_loop(
    new_loop: NewLoop, way: str, when: str, use: str
) -> None:
    """It ends when the purgatory is used in the second loop, and not in the finalizer itself."""
    purgatory = Purgatory[Any]("test", max_parked=1)
    subscriptions: list[Any] = []
    parked: list[int] = []

    def free() -> None:
        parked.append(len(purgatory))
        subscriptions.clear()
        parked.append(len(purgatory))

    async def first() -> None:
        subscriptions.append(purgatory.changes(["a"]))
        if when == "in the first loop":
            asyncio.get_running_loop().call_soon(free)  # in its last turn, if it is not run again to be closed

    async def second() -> None:
        if when == "in the second loop":
            free()
        elif when == "after a use in the second loop":
            purgatory.check_soon("b")
            free()
            await asyncio.sleep(0)
        await in_time(USES[use](purgatory))
        assert len(purgatory) == 0
        await purgatory.aclose()

    WAYS[way](new_loop, [first, second])
    assert parked == [1, 1]


def resume_while_busy(
    new_loop: NewLoop, first: Main, last_turn: Callable[[], object], second: Callable[[Callable[[], None]], Any]
) -> None:
    """Stop the first loop in the turn in which ``last_turn`` is called, so that what it schedules is left in the loop;
    then run ``second`` in a loop in another thread.

    ``second`` receives a function that blocks its loop while the first loop runs again.  Nothing may raise in the first
    loop.
    """
    errors: list[Any] = []
    busy, goes_on = threading.Event(), threading.Event()

    def block() -> None:
        busy.set()
        goes_on.wait()

    def run() -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(second(block))

    loop = new_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    loop.run_until_complete(first())
    loop.call_soon(loop.stop)
    loop.call_soon(last_turn)
    loop.run_forever()
    thread = threading.Thread(target=run)
    thread.start()
    busy.wait()
    for _ in range(3):
        loop.call_soon(loop.stop)
        loop.run_forever()
    goes_on.set()
    thread.join()
    assert errors == []
    cancel_everything(loop)
    loop.close()


@both_loops
def test_a_wake_up_left_in_a_stopped_loop_takes_no_check_of_the_next(new_loop: NewLoop) -> None:
    """The request was accepted while the purgatory belonged to the second loop, which makes the check."""
    purgatory = Purgatory[Any]("test")
    outcomes: list[Outcome] = []

    async def first() -> None:
        await purgatory.__aenter__()

    async def second(block: Callable[[], None]) -> None:
        op = Op(None)
        task = asyncio.create_task(purgatory.park(op, ["a"]))
        for _ in range(9):
            await asyncio.sleep(0)  # the timer belongs to this loop, which has served the request of the first loop
        op.ready = True
        purgatory.check_threadsafe("a")  # as another thread would, while this loop is busy
        block()
        await in_time(task)
        outcomes.append(op.outcome)
        await purgatory.aclose()

    resume_while_busy(new_loop, first, lambda: purgatory.check_threadsafe("x"), second)
    assert outcomes == [Outcome.COMPLETED]


@both_loops
@pytest.mark.usefixtures("quiet")
def test_a_callback_left_in_a_stopped_loop_keeps_no_dropped_subscription_from_its_end(new_loop: NewLoop) -> None:
    """The subscription was dropped in the last turn of the first loop, and its place is freed in the second."""
    purgatory = Purgatory[Any]("test")
    subscriptions: list[Any] = []
    parked: list[int] = []

    async def first() -> None:
        subscriptions.append(purgatory.changes(["a"]))

    async def second(block: Callable[[], None]) -> None:
        purgatory.timer.start()
        block()
        await asyncio.sleep(0)
        parked.append(len(purgatory))
        await purgatory.aclose()

    resume_while_busy(new_loop, first, subscriptions.clear, second)
    assert parked == [0]


@both_loops
def test_the_last_operation_ends_after_the_loop_of_the_closing(new_loop: NewLoop) -> None:
    """If a loop is closed during the grace of ``aclose``, the last operation still ends as usual in the next loop."""
    purgatory = Purgatory[Op]("test")
    op = Op()
    purgatory.try_complete_else_watch(op, ["a"])
    closing = closing_in_a_closed_loop(new_loop, purgatory)

    async def second() -> None:
        op.ready = True
        assert purgatory.check_and_complete("a") == 1
        await purgatory.aclose()

    in_closed_loops(new_loop, [second])
    assert op.outcome is Outcome.COMPLETED
    drop(closing)


@both_loops
@pytest.mark.parametrize("grace", [0.0, 3600.0])
def test_a_dropped_closing_runs_nothing(new_loop: NewLoop, grace: float) -> None:
    """The garbage collector closes the coroutines of ``aclose``, and the next calls answer what these have left."""
    timer = SystemTimer()
    purgatory = Purgatory[Op]("test")
    shared = Purgatory[Op]("shared", timer=timer)
    operations = [Op(3600) for _ in range(20_000)]  # more than a few turns end on any machine
    closing: list[Any] = []

    async def first() -> None:
        await purgatory.__aenter__()
        timer.start()
        for number, op in enumerate(operations):
            (purgatory, shared)[number % 2].try_complete_else_watch(op, ["a"])
        await asyncio.sleep(0)
        for _ in range(2):
            closing.append(asyncio.create_task(purgatory.aclose(grace=grace)))
            closing.append(asyncio.create_task(timer.aclose()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def second() -> None:
        await purgatory.aclose()
        await timer.aclose()
        assert not purgatory.timer.running
        assert not timer.running

    loop = new_loop()
    loop.run_until_complete(first())
    loop.close()
    left = [(len(purgatory), len(shared))]
    drop(closing)
    left.append((len(purgatory), len(shared)))
    assert left[0] == left[1]
    assert min(left[0]) > 0
    in_closed_loops(new_loop, [second])
    assert {op.outcome for op in operations} == {Outcome.EXPIRED}


@both_loops
def test_a_dropped_closing_does_not_end_the_grace_of_the_next(new_loop: NewLoop) -> None:
    """An operation ends as usual within the grace of the second closing, after the first one has been dropped."""
    purgatory = Purgatory[Op]("test")
    op = Op()
    purgatory.try_complete_else_watch(op, ["a"])
    closing = closing_in_a_closed_loop(new_loop, purgatory)

    async def second() -> None:
        task = asyncio.create_task(purgatory.aclose(grace=3600.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        drop(closing)
        assert op.outcome is Outcome.PENDING
        op.ready = True
        assert purgatory.check_and_complete("a") == 1
        await in_time(task)

    in_closed_loops(new_loop, [second])
    assert op.outcome is Outcome.COMPLETED


@both_loops
def test_a_later_deadline_alone_rebinds_to_the_second_loop_without_a_reaper(new_loop: NewLoop) -> None:
    """The reaper was cancelled, and the first loop, which is not closed, still has the wake-up of an earlier task."""
    clock = ShiftedClock()
    timer = SystemTimer(clock=clock)
    fired: list[str] = []

    async def first() -> None:
        timer.start()
        timer.call_later(1000.0, fired.append, "earlier")  # however slow the machine is
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not timer.running

    async def second() -> None:
        done = asyncio.get_running_loop().create_future()
        clock.shift_ms = 999_980
        timer.call_later(20.0, done.set_result, None)
        clock.shift_ms += 20_000
        await in_time(done)
        await timer.aclose()

    in_stopped_loops(new_loop, [first, second])
    assert fired == ["earlier"]


@both_loops
def test_a_coroutine_closed_by_its_completion_in_the_second_loop(new_loop: NewLoop) -> None:
    """The result of an operation that is parked again in another loop is given back as in the first one."""
    purgatory = Purgatory[Op]("test")
    returned: list[Any] = []

    class Returned(Op):
        def on_abandoned(self, result: Any) -> None:
            returned.append(result)

    async def first() -> None:
        await purgatory.__aenter__()

    async def second() -> None:
        op = Returned(name="data", on_complete=lambda _: coroutine.close())
        coroutine = purgatory.park(op, ["key"])
        coroutine.send(None)
        coroutine.throw(RuntimeError("the future belongs to another loop"))  # as a task of this loop does
        op.ready = True
        assert purgatory.check_and_complete("key") == 1
        await asyncio.sleep(0)
        assert returned == ["data"]
        await purgatory.aclose()

    in_stopped_loops(new_loop, [first, second])


@both_loops
def test_an_operation_that_ends_before_its_task_has_changed_loops_has_its_result(new_loop: NewLoop) -> None:
    """The parking task awaits a future of the stopped loop for one turn, in which the operation completes."""
    purgatory = Purgatory[Op]("p")
    op = Op(name="data")  # a deadline would move the timer into the second loop at once

    async def first() -> None:
        await purgatory.__aenter__()

    async def second() -> None:
        task = asyncio.create_task(purgatory.park(op, ["key"]))
        await asyncio.sleep(0)
        op.ready = True
        assert purgatory.check_and_complete("key") == 1
        assert await in_time(task) == "data"
        await purgatory.aclose()

    in_stopped_loops(new_loop, [first, second])
    assert op.outcome is Outcome.COMPLETED


@both_loops
@pytest.mark.parametrize("kept", [False, True])
def test_a_value_for_a_task_of_a_closed_loop_is_given_back_once(new_loop: NewLoop, kept: bool) -> None:
    """If nothing else refers to the task, the failing answer frees it in the middle of the ending."""
    waiting: list[Any] = []
    purgatory = Purgatory[Any]("p")
    queue: list[str] = []

    async def first() -> None:
        get = lambda: queue.pop() if queue else None  # noqa: E731
        wait = purgatory.wait_value(get, key="queue", timeout=None, on_abandoned=queue.append)
        task = asyncio.create_task(wait)
        if kept:
            waiting.append(task)
        await asyncio.sleep(0)
        task._log_destroy_pending = False  # type: ignore[attr-defined]

    async def second() -> None:
        queue.append("job")
        assert purgatory.check("queue") == 1
        assert queue == ["job"]
        purgatory._check()
        await purgatory.aclose()

    in_closed_loops(new_loop, [first, second])
    if kept:
        drop(waiting)
    assert queue == ["job"]


@both_loops
@pytest.mark.parametrize("cancels", [False, True])
def test_a_result_of_an_operation_that_frees_its_task_in_a_closed_loop_is_given_back(
    new_loop: NewLoop, cancels: bool
) -> None:
    """``on_complete`` closes the coroutine that waits, or also cancels its future, before the result exists."""
    purgatory = Purgatory[Any]("p")
    returned: list[Any] = []
    coroutines: list[Any] = []

    def leave(op: Op) -> None:
        if cancels:
            assert op._park_future is not None
            op._park_future.cancel()
        coroutines.pop().close()

    class Returned(Op):
        def on_abandoned(self, result: Any) -> None:
            returned.append(result)

    op = Returned(name="data", on_complete=leave)

    async def first() -> None:
        coroutines.append(purgatory.park(op, ["key"]))
        coroutines[0].send(None)

    async def second() -> None:
        op.ready = True
        assert purgatory.check("key") == 1
        assert returned == ["data"]
        await purgatory.aclose()

    in_closed_loops(new_loop, [first, second])


WAITS: dict[str, Callable[[Purgatory[Any], Callable[[], Any]], Coroutine[Any, Any, Any]]] = {
    "park": lambda purgatory, get: purgatory.park(
        Op(name="data", on_try=lambda op: setattr(op, "ready", get())), key="k"
    ),
    "wait_until": lambda purgatory, get: purgatory.wait_until(lambda: bool(get()), key="k", timeout=None),
    "wait_value": lambda purgatory, get: purgatory.wait_value(get, key="k", timeout=None),
}


@pytest.mark.parametrize("wait", WAITS)
@both_loops
@pytest.mark.usefixtures("quiet")
def test_each_wait_changes_to_the_loop_in_which_it_is_called(new_loop: NewLoop, wait: str) -> None:
    """Without a deadline the timer stays in the stopped loop until the task awaits; the answer comes all the same."""
    purgatory = Purgatory[Any]("p")
    values: list[str] = []

    async def first() -> None:
        await purgatory.__aenter__()

    async def second() -> None:
        task = asyncio.create_task(WAITS[wait](purgatory, lambda: values[0] if values else None))
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(purgatory) == 1
        values.append("data")
        assert purgatory.check("k") == 1
        assert await in_time(task) in ("data", True)
        await purgatory.aclose()

    in_stopped_loops(new_loop, [first, second])


@types.coroutine
def remainder(coroutine: Coroutine[Any, Any, Any], first: Any) -> Any:
    """Go on with a coroutine whose first step has been made."""
    yield first
    return (yield from coroutine)


def eager(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """Start a task at once, as :func:`asyncio.eager_task_factory` does, but with every option that uvloop passes.

    Before 3.12, only the first step is made at once.
    """
    if sys.version_info >= (3, 12):
        return asyncio.Task(coroutine, loop=loop, **{**options, "eager_start": True})

    async def run() -> Any:
        return await remainder(coroutine, first)

    first = coroutine.send(None)
    return asyncio.Task(run(), loop=loop)


@both_loops
@pytest.mark.usefixtures("quiet")
def test_an_eager_task_factory_starts_one_reaper_which_runs_nothing_at_once(new_loop: NewLoop) -> None:
    """A call that starts the reaper runs no overdue task, even if the loop starts every task eagerly."""
    clock = VirtualClock(1000.0)
    purgatory = Purgatory[Op]("test", clock=clock)
    timer = purgatory.timer
    ran: list[str] = []

    def run(name: str) -> None:
        ran.append(name)
        purgatory.try_complete_else_watch(Op(1), ["b"])

    async def first() -> None:
        await purgatory.__aenter__()
        timer.call_later(1, run, "overdue")

    async def second() -> None:
        asyncio.get_running_loop().set_task_factory(eager)
        purgatory.try_complete_else_watch(Op(1, on_complete=lambda _: run("due")), ["a"])
        assert ran == []
        await clock.advance(1)
        assert ran == ["overdue", "due"]
        assert asyncio.all_tasks() - {asyncio.current_task()} == {timer._reaper.task}
        await purgatory.aclose()

    loop = new_loop()
    loop.run_until_complete(first())
    loop.close()
    clock._now_ns += 2_000_000_000
    in_closed_loops(new_loop, [second])
