"""Virtual time: when alarms ring, how tasks settle, and that the result is the same on every loop."""

import asyncio
from collections import deque
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.testing import VirtualClock
from purgatory.testing import virtual_clock as testing
from tests.helpers import Boom, Op


async def test_it_stands_still() -> None:
    """The time changes only by the given amount."""
    clock = VirtualClock(5.0)
    assert clock.time() == 5.0
    await asyncio.sleep(0.001)
    assert clock.time() == 5.0
    await clock.advance(0.0005)
    assert (clock.now_ms(), clock.ceil_ms()) == (5000, 5001)
    await clock.advance_to(7.5)
    assert clock.time() == 7.5


async def test_it_does_not_go_back() -> None:
    """A negative step and an earlier time are refused, and a bad time changes nothing."""
    clock = VirtualClock(5.0)
    for bad in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="seconds"):
            await clock.advance(bad)
    with pytest.raises(ValueError, match="does not go back"):
        await clock.advance_to(4.9)
    with pytest.raises(ValueError, match="start"):
        VirtualClock(-1)
    assert clock.time() == 5.0


async def test_everything_fires_in_the_order_of_its_time(clock: VirtualClock) -> None:
    """One advance goes from alarm to alarm and lets tasks run in between, even if alarms cause others."""
    log: list[tuple[str, float]] = []
    async with Purgatory[Op]("test", clock=clock) as purgatory:

        async def client(name: str, *timeouts: float) -> None:
            for timeout in timeouts:
                await purgatory.park(Op(timeout), [name])
                log.append((name, clock.time() - 1000))

        tasks = [
            asyncio.create_task(client("a", 10, 5, 0.5)),
            asyncio.create_task(client("b", 3, 9)),
            asyncio.create_task(client("c", 12)),
        ]
        await clock.advance(30)
        await asyncio.gather(*tasks)
    assert log == [("b", 3), ("a", 10), ("c", 12), ("b", 12), ("a", 15), ("a", 15.5)]
    assert clock.time() == 1030


async def test_sleeping_in_virtual_time(clock: VirtualClock) -> None:
    """``sleep()`` wakes in order, can be cancelled, and takes no real time."""
    log: list[str] = []

    async def sleeper(name: str, delay: float) -> None:
        await clock.sleep(delay)
        log.append(name)

    tasks = [asyncio.create_task(sleeper(*pair)) for pair in (("b", 2), ("a", 1), ("now", 0), ("never", 3))]
    await clock.advance(1)
    assert log == ["now", "a"]
    tasks[3].cancel()
    await clock.advance(10)
    assert log == ["now", "a", "b"]
    assert clock.next_alarm_ms is None
    with pytest.raises(ValueError, match="delay"):
        await clock.sleep(-1)


async def test_a_sleeper_cancelled_as_it_wakes(clock: VirtualClock) -> None:
    """A sleeper that is cancelled in the turn in which it wakes stays cancelled, and no error is reported."""
    task = asyncio.create_task(clock.sleep(1))
    clock_settled = asyncio.create_task(clock.settle())
    await clock_settled
    clock.call_at(clock.now_ms() + 1000, task.cancel)
    await clock.advance(1)
    assert task.done()
    sleepers: list[asyncio.Task[None]] = []
    clock.call_at(clock.now_ms() + 1000, lambda: sleepers[0].cancel())
    sleepers.append(asyncio.create_task(clock.sleep(1)))
    await clock.advance(1)
    assert sleepers[0].cancelled()


async def test_cancelled_sleepers_leave_nothing_behind(clock: VirtualClock) -> None:
    """Neither their wake-ups nor the times of these are kept until the time has come, and the others still wake."""
    first = clock.call_at(1_005_000, lambda: None)
    for delay in range(300):
        sleepers = [asyncio.create_task(clock.sleep(seconds)) for seconds in (3600, 3600, 4000 + delay)]
        await asyncio.sleep(0)
        for sleeper in sleepers:
            sleeper.cancel()
        await asyncio.wait(sleepers)
    assert list(clock._alarms) == [1_005_000]
    assert len(clock._times) < 100
    other = asyncio.create_task(clock.sleep(3600))
    await asyncio.sleep(0)
    first.cancel()
    first.cancel()
    assert clock.next_alarm_ms == 4_600_000
    await clock.advance(3600)
    assert other.done()
    assert not clock._alarms
    assert clock.next_alarm_ms is None


async def test_wake_ups_that_are_cancelled_at_their_own_time(clock: VirtualClock) -> None:
    """A callback cancels a later wake-up of the same time, and one that is already due when it is requested."""
    rung: list[str] = []

    def first() -> None:
        rung.append("first")
        second.cancel()
        clock.call_at(1_001_000, lambda: rung.append("now")).cancel()

    clock.call_at(1_001_000, first)
    second = clock.call_at(1_001_000, lambda: rung.append("second"))
    clock.call_at(1_001_000, lambda: rung.append("third"))
    await clock.advance(1)
    assert rung == ["first", "third"]
    assert clock.next_alarm_ms is None


async def test_a_callback_that_raises_leaves_the_others_their_wake_ups(clock: VirtualClock) -> None:
    """The error reaches the task that moves the time, and the next move calls the others."""

    def fail() -> None:
        raise Boom

    rung: list[str] = []
    clock.call_at(1_001_000, fail)
    clock.call_at(1_001_000, lambda: rung.append("second"))
    with pytest.raises(Boom):
        await clock.advance(1)
    await clock.advance(1)
    assert rung == ["second"]


async def test_going_from_alarm_to_alarm(clock: VirtualClock) -> None:
    """``advance_to_next`` stops at each alarm, and reports when there is none."""
    rung: list[float] = []
    for delay_ms in (5, 1, 3):
        clock.call_at(clock.now_ms() + delay_ms, lambda: rung.append(clock.time()))
    while await clock.advance_to_next():
        pass
    assert rung == [1000.001, 1000.003, 1000.005]
    assert clock.rings == 3


async def test_one_task_moves_the_time(clock: VirtualClock) -> None:
    """A second concurrent advance is refused."""
    refused: list[str] = []

    async def also() -> None:
        try:
            await clock.advance(1)
        except RuntimeError as error:
            refused.append(str(error))

    clock.call_at(clock.now_ms() + 10, lambda: None)
    task = asyncio.create_task(also())
    await clock.advance(1)
    await task
    assert refused == ["the clock is already being advanced: only one task may move the time"]


async def test_a_task_that_never_rests_is_told(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that loops over ``sleep(0)`` causes an error instead of a hang."""
    monkeypatch.setattr("purgatory.testing.virtual_clock._MOST_TURNS", 1000)

    async def spin() -> None:
        while True:  # noqa: ASYNC110 - what a task must not do
            await asyncio.sleep(0)

    task = asyncio.create_task(spin())
    told = await asyncio.gather(clock.advance(1), clock.settle(), return_exceptions=True)
    assert [type(error) for error in told] == [RuntimeError, RuntimeError]
    assert {str(error) for error in told} == {"the tasks have not come to rest within 1000 turns of the loop"}
    task.cancel()


async def test_several_may_settle_at_once(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that settle do not keep each other awake, and each waits until all other work is done."""
    monkeypatch.setattr("purgatory.testing.virtual_clock._MOST_TURNS", 1000)
    log: list[str] = []

    async def work() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        log.append("worked")

    async def settle() -> None:
        await clock.settle()
        log.append("settled")

    async with asyncio.TaskGroup() as group:
        group.create_task(settle())
        group.create_task(work())
        group.create_task(settle())
        await clock.advance(1)
        log.append("advanced")
    assert sorted(log) == ["advanced", "settled", "settled", "worked"]
    assert log[0] == "worked"


async def test_who_settles_goes_on_before_the_time_moves(clock: VirtualClock) -> None:
    """The work of a task after it has settled happens at the same virtual time."""
    log: list[tuple[str, float]] = []

    async def publish(ready: asyncio.Event) -> None:
        await clock.settle()
        log.append(("settled", clock.time()))
        ready.set()

    async def wait(ready: asyncio.Event) -> None:
        await ready.wait()
        for _ in range(3):
            await asyncio.sleep(0)
        log.append(("told", clock.time()))

    async def sleep(delay: float) -> None:
        await clock.sleep(delay)
        log.append(("slept", clock.time()))

    ready = asyncio.Event()
    tasks = [asyncio.create_task(job) for job in (publish(ready), wait(ready), sleep(1), sleep(2))]
    await clock.advance(10)
    assert log == [("settled", 1000), ("told", 1000), ("slept", 1001), ("slept", 1002)]
    assert all(task.done() for task in tasks)


async def test_those_who_settle_go_on_in_one_order_on_every_loop(clock: VirtualClock) -> None:
    """The order is that of the loop's turn; a cancelled task is notified before the time changes."""
    log: list[Any] = []

    async def settle(name: str, steps: int) -> None:
        for _ in range(steps):
            await asyncio.sleep(0)
        await clock.settle()
        log.append((name, clock.time()))

    async def cancelled() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await clock.advance_to_next()
        except asyncio.CancelledError:
            log.append(("cancelled", clock.time()))

    clock.call_at(clock.now_ms() + 5000, lambda: log.append(("rung", clock.time())))
    tasks = [asyncio.create_task(job) for job in (settle("later", 1), settle("first", 0), cancelled())]
    await clock.advance(10)
    assert log == [("cancelled", 1000), ("later", 1000), ("first", 1000), ("rung", 1005)]
    assert all(task.done() for task in tasks)


async def test_tasks_within_tasks_are_settled_too(clock: VirtualClock) -> None:
    """An answer through gather, shield, wait and task groups arrives at its virtual time."""

    async def leaf() -> float:
        await clock.sleep(1)
        for _ in range(3):
            await asyncio.sleep(0)
        return clock.time()

    async def nested(depth: int) -> float:
        if depth == 0:
            return await leaf()
        if depth % 3 == 0:
            (time,) = await asyncio.gather(nested(depth - 1))
            return time
        if depth % 3 == 1:
            return await asyncio.shield(asyncio.create_task(nested(depth - 1)))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(nested(depth - 1))
        return task.result()

    log: list[tuple[float, float]] = []

    async def outermost() -> None:
        log.append((await nested(10), clock.time()))

    clock.call_at(clock.now_ms() + 5000, lambda: None)
    task = asyncio.create_task(outermost())
    await clock.advance(10)
    assert log == [(1001, 1001)]
    await task


async def test_two_clocks_may_move_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each clock fires its alarms in order, and neither blocks the other."""
    monkeypatch.setattr("purgatory.testing.virtual_clock._MOST_TURNS", 1000)
    clocks = VirtualClock(), VirtualClock(100.0)
    log: list[tuple[int, float]] = []

    async def sleep(number: int) -> None:
        for _ in range(3):
            await clocks[number].sleep(1)
            log.append((number, clocks[number].time()))

    async with asyncio.TaskGroup() as group:
        for number in (0, 1):
            group.create_task(sleep(number))
        for moved in clocks:
            group.create_task(moved.advance(5))
    assert [clock.time() for clock in clocks] == [5, 105]
    assert [time for number, time in log if number == 0] == [1, 2, 3]
    assert [time for number, time in log if number == 1] == [101, 102, 103]


async def test_a_task_that_settles_again_and_again_is_told(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a task settles repeatedly, the time cannot advance, so an error is raised instead of a hang."""
    monkeypatch.setattr("purgatory.testing.virtual_clock._MOST_TURNS", 1000)

    async def spin() -> None:
        while True:
            await clock.settle()

    task = asyncio.create_task(spin())
    with pytest.raises(RuntimeError, match="have not come to rest within 1000 turns"):
        await clock.advance(1)
    task.cancel()


@pytest.mark.slow
async def test_many_tasks(clock: VirtualClock) -> None:
    """One advance serves a thousand tasks."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        tasks = [asyncio.create_task(purgatory.park(Op(number / 100, name="x"), [number])) for number in range(1000)]
        await clock.advance(10)
        assert [task.done() for task in tasks] == [True] * 1000


async def test_plain_callbacks_are_settled_too(clock: VirtualClock) -> None:
    """A chain of checks without time or tasks is complete when ``advance`` returns."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        ops = [Op(None) for _ in range(300)]
        for op in ops:
            purgatory.try_complete_else_watch(op, ["a"])
        purgatory.check_soon("a")
        await clock.advance(0.001)
        assert {op.calls.count("try") for op in ops} == {2}


async def test_chains_of_any_length_are_settled(clock: VirtualClock) -> None:
    """A chain of callbacks, and one of ``sleep(0)`` among many tasks, are over before the time moves, on every loop."""
    loop, log = asyncio.get_running_loop(), []

    def call(left: int) -> None:
        if left:
            loop.call_soon(call, left - 1)
        else:
            log.append(("called", clock.time()))

    async def spin() -> None:
        for _ in range(100):
            await asyncio.sleep(0)
        log.append(("spun", clock.time()))

    waiting = [asyncio.create_task(clock.sleep(1)) for _ in range(300)]
    loop.call_soon(call, 200)
    spinning = asyncio.create_task(spin())
    await clock.advance(1)
    assert log == [("spun", 1000), ("called", 1000)]
    assert spinning.done()
    assert all(task.done() for task in waiting)


async def test_a_loop_that_hides_its_callbacks(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """On such a loop the tasks are examined, so shorter chains are settled before the time moves, too."""
    monkeypatch.setattr(testing, "_ready_callbacks", lambda loop: None)
    log: list[tuple[str, float]] = []

    async def spin() -> None:
        for _ in range(50):
            await asyncio.sleep(0)
        log.append(("spun", clock.time()))

    async def settle() -> None:
        await clock.settle()
        log.append(("settled", clock.time()))

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        log.append(("slept", clock.time()))

    async with Purgatory[Op]("test", clock=clock) as purgatory, asyncio.TaskGroup() as group:
        for job in (spin(), settle(), sleep(1), sleep(2)):
            group.create_task(job)
        parked = group.create_task(purgatory.park(Op(1.5), ["a"]))
        await clock.advance(1.75)
        assert log == [("spun", 1000), ("settled", 1000), ("slept", 1001)]
        assert parked.done()
        await clock.advance(1)
    assert log[3:] == [("slept", 1002)]


def test_the_ready_callbacks_of_another_loop_are_not_guessed() -> None:
    """A deque of the loop that does not receive its callbacks is not taken for the one that does."""

    class Loop:
        def __init__(self) -> None:
            self.other: deque[object] = deque([1])

        def call_soon(self, callback: object) -> asyncio.Future[object]:
            return asyncio.Future(loop=held)

    held = asyncio.new_event_loop()
    loop: Any = Loop()
    assert testing._ready_callbacks(loop) is None
    held.close()


async def test_many_tasks_on_a_loop_that_hides_its_callbacks(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than 200 tasks are not examined; they wake in the order of their times nevertheless."""
    monkeypatch.setattr(testing, "_ready_callbacks", lambda loop: None)
    tasks = [asyncio.create_task(clock.sleep(number % 3 + 1)) for number in range(300)]
    for second in (1, 2, 3):
        await clock.advance(1)
        assert sum(task.done() for task in tasks) == 100 * second


def test_a_loop_that_is_closed_while_somebody_settles_is_let_go_of() -> None:
    """The loop does not block a later ``settle`` on another loop, and it can be freed."""
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        task: Any = asyncio.create_task(VirtualClock().settle())
        task._log_destroy_pending = False  # the test drops this task while it is pending
        await asyncio.sleep(0)

    loop.run_until_complete(begin())
    loop.close()
    assert loop in testing._SETTLING
    asyncio.run(VirtualClock().advance(1))
    assert testing._SETTLING == {}
