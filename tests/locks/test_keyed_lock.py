"""A lock for each key: order, deadlines, cancellation, closing, and what is kept."""

import asyncio
import copy
import gc
import itertools
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import OperationCancelled, Purgatory, PurgatoryClosed, PurgatoryFull, SystemTimer
from purgatory.locks import KeyedLock
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, park


async def hold(locks: KeyedLock, key: Any, log: list[Any], name: Any, until: "asyncio.Event | None" = None) -> None:
    """Note when a block begins, and leave it when the event is set."""
    async with locks(key):
        log.append(name)
        if until is not None:
            await until.wait()


async def waiters(locks: KeyedLock, clock: VirtualClock, number: int, key: Any = "k") -> list["asyncio.Task[Any]"]:
    """Return tasks that wait for the key, which is held, in order."""
    tasks = [asyncio.create_task(locks.acquire(key)) for _ in range(number)]
    await clock.settle()
    return tasks


def granted(tasks: list["asyncio.Task[Any]"]) -> list[int]:
    """Return the numbers of the tasks that have the lock."""
    return [number for number, task in enumerate(tasks) if task.done() and not task.cancelled() and task.result()]


# Taking and giving


async def test_one_task_at_a_time_for_each_key(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """A block excludes others with the same key, and no others."""
    locks = KeyedLock(purgatory)
    inside: list[str] = []
    most: dict[str, int] = {}

    async def work(key: str) -> None:
        async with locks(key, timeout=100.0):
            inside.append(key)
            most[key] = max(most.get(key, 0), inside.count(key))
            await clock.sleep(1)
            inside.remove(key)

    tasks = [asyncio.create_task(work(key)) for key in "aabab"]
    await clock.settle()
    assert sorted(inside) == ["a", "b"]
    await clock.advance(3)
    await asyncio.gather(*tasks)
    assert most == {"a": 1, "b": 1}
    assert len(locks) == 0


async def test_the_order_of_arrival_is_kept_and_no_task_overtakes(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """A task that asks while others wait comes last, also in the turn in which the lock is released."""
    locks = KeyedLock(purgatory)
    log: list[Any] = []
    await locks.acquire("k")
    tasks = [asyncio.create_task(hold(locks, "k", log, number)) for number in range(5)]
    await clock.settle()
    locks.release("k")
    assert locks.locked("k")
    with pytest.raises(TimeoutError):
        await locks.acquire("k", timeout=0)
    await hold(locks, "k", log, "last")
    assert log == [0, 1, 2, 3, 4, "last"]
    await asyncio.gather(*tasks)


async def test_a_release_hands_over_at_once(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Between a release and the next step of the waiter the lock is the waiter's."""
    locks = KeyedLock(purgatory)
    await locks.acquire("k")
    tasks = await waiters(locks, clock, 2)
    locks.release("k")
    locks._check()
    assert locks.locked("k")
    assert len(purgatory) == 1
    await clock.settle()
    assert granted(tasks) == [0]
    locks.release("k")
    await clock.settle()
    assert granted(tasks) == [0, 1]
    locks.release("k")
    assert len(locks) == 0


async def test_a_free_lock_is_taken_without_a_turn_of_the_loop(purgatory: Purgatory[Any]) -> None:
    """Nothing is submitted, and no other task runs."""
    locks = KeyedLock(purgatory)
    others: list[int] = []
    asyncio.get_running_loop().call_soon(others.append, 1)
    async with locks("k"):
        assert locks.locked("k")
        assert not locks.locked("other")
    assert not locks.locked("k")
    assert await locks.acquire("k")
    locks.release("k")
    assert others == []
    assert purgatory.statistics().submitted == 0


async def test_an_exception_in_the_block_releases(purgatory: Purgatory[Any]) -> None:
    """The exception propagates."""
    locks = KeyedLock(purgatory)
    with pytest.raises(Boom):
        async with locks("k"):
            raise Boom
    assert len(locks) == 0


async def test_an_acquisition_can_be_entered_again_and_shared(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The object that a call returns holds nothing between its blocks, and several tasks may enter it."""
    locks = KeyedLock(purgatory)
    acquisition = locks("k", timeout=5)
    log: list[int] = []

    async def work(number: int) -> None:
        for _ in range(2):
            async with acquisition:
                await clock.sleep(1)
                log.append(number)

    tasks = [asyncio.create_task(work(number)) for number in range(2)]
    await clock.advance(5)
    await asyncio.gather(*tasks)
    assert log == [0, 1, 0, 1]
    assert len(locks) == 0


@pytest.mark.parametrize("key", ["k", 7, ("a", 1), None, 1.5, frozenset("a")], ids=repr)
async def test_any_hashable_is_a_key(purgatory: Purgatory[Any], clock: VirtualClock, key: Any) -> None:
    """The lock is handed over and forgotten, whatever the key is."""
    locks = KeyedLock(purgatory)
    await locks.acquire(key)
    (task,) = await waiters(locks, clock, 1, key)
    locks.release(key)
    assert await task
    locks.release(key)
    assert len(locks) == 0


async def test_two_locks_of_one_purgatory_are_independent(purgatory: Purgatory[Any]) -> None:
    """The same key can be held in both."""
    first, second = KeyedLock(purgatory), KeyedLock(purgatory)
    async with first("k"), second("k"):
        assert first.locked("k")


# Time


async def test_the_timeout_is_the_time_to_acquire(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """A wait ends with TimeoutError after it, and a lock that is held is not affected."""
    locks = KeyedLock(purgatory)
    async with locks("k", timeout=5):
        task = asyncio.create_task(locks.acquire("k", timeout=2.5))
        await clock.advance(2.499)
        assert not task.done()
        await clock.advance(0.001)
        with pytest.raises(TimeoutError, match=r"^the wait for the lock on 'k' timed out \(timeout 2\.5 s\)$"):
            await task
        await clock.advance(100)
        assert locks.locked("k")
        locks._check()
    assert len(locks) == 0


async def test_a_deadline_is_a_time_of_the_clock(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """``deadline`` counts in seconds of ``timer.time()``."""
    locks = KeyedLock(purgatory)
    async with locks("k"):
        task = asyncio.create_task(hold(locks, "k", [], 1))
        late = asyncio.create_task(locks.acquire("k", deadline=purgatory.timer.time() + 3))
        await clock.advance(2.999)
        assert not late.done()
        await clock.advance(0.001)
        with pytest.raises(TimeoutError, match=r"^the wait for the lock on 'k' reached its deadline$"):
            await late
    await task


@pytest.mark.parametrize("limit", [{"timeout": 0}, {"deadline": 0.0}, {"deadline": 1000.0}], ids=repr)
async def test_without_time_it_does_not_wait(clock: VirtualClock, limit: dict[str, float]) -> None:
    """A free lock is taken; otherwise TimeoutError, also in a full or closed purgatory, and nothing is counted."""
    purgatory = Purgatory[Any]("test", clock=clock, max_parked=1)
    locks = KeyedLock(purgatory)
    assert await asyncio.create_task(locks.acquire("k", **limit))
    park(purgatory, "other")
    with pytest.raises(TimeoutError):
        await locks.acquire("k", **limit)
    await purgatory.aclose()
    with pytest.raises(TimeoutError):
        await locks.acquire("k", **limit)
    assert purgatory.statistics().submitted == 1


# Cancellation


async def test_a_cancelled_waiter_leaves_the_queue(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The others keep their order, and the last one leaves nothing behind."""
    locks = KeyedLock(purgatory)
    await locks.acquire("k")
    tasks = await waiters(locks, clock, 3)
    tasks[0].cancel()
    tasks[2].cancel()
    await clock.settle()
    assert len(purgatory) == 1
    locks.release("k")
    await clock.settle()
    assert granted(tasks) == [1]
    locks.release("k")
    assert len(locks) == 0


@pytest.mark.parametrize("order", ["granted, then cancelled", "cancelled, then granted"])
@pytest.mark.parametrize("others", [0, 1, 2])
async def test_a_waiter_cancelled_in_the_turn_of_its_grant_passes_the_lock_on(
    purgatory: Purgatory[Any], clock: VirtualClock, order: str, others: int
) -> None:
    """The lock is never lost: the next waiter gets it, or it is free and forgotten."""
    locks = KeyedLock(purgatory)
    await locks.acquire("k")
    tasks = await waiters(locks, clock, 1 + others)
    if order.startswith("granted"):
        locks.release("k")
        tasks[0].cancel()
    else:
        tasks[0].cancel()
        locks.release("k")
    await clock.settle()
    assert tasks[0].cancelled()
    locks._check()
    assert granted(tasks) == ([1] if others else [])
    for _ in range(others):
        locks.release("k")
        await clock.settle()
    assert granted(tasks) == list(range(1, others + 1))
    assert len(locks) == 0


async def test_a_waiter_cancelled_in_the_turn_of_its_expiry_gives_nothing_back(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """It never had the lock, so its holder keeps it."""
    locks = KeyedLock(purgatory)
    await locks.acquire("k")
    task = asyncio.create_task(locks.acquire("k", timeout=1.0))
    await clock.settle()
    assert purgatory.timer.expire_due(clock.now_ms() + 1001) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    locks._check()
    assert locks.locked("k")
    locks.release("k")
    assert len(locks) == 0


async def test_all_waiters_cancelled_in_the_turn_of_the_release(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The lock is free."""
    locks = KeyedLock(purgatory)
    await locks.acquire("k")
    tasks = await waiters(locks, clock, 3)
    for task in tasks:
        task.cancel()
    locks.release("k")
    await clock.settle()
    assert len(locks) == 0
    assert len(purgatory) == 0


async def test_a_release_in_a_callback_of_the_purgatory(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The grant follows before the outermost call returns; a task that asks meanwhile does not overtake."""
    locks = KeyedLock(purgatory)
    await locks.acquire("k")
    tasks = await waiters(locks, clock, 1)
    seen: list[bool] = []

    def release(_: Op) -> None:
        locks.release("k")
        seen.append(locks.locked("k"))

    operation = park(purgatory, "other", on_complete=release)
    operation.force_complete()
    assert seen == [True]
    locks._check()
    assert locks.locked("k")
    await clock.settle()
    assert granted(tasks) == [0]
    tasks += await waiters(locks, clock, 1)

    def release_and_cancel(_: Op) -> None:
        locks.release("k")
        tasks[1].cancel()

    park(purgatory, "other", on_complete=release_and_cancel).force_complete()
    await clock.settle()
    assert tasks[1].cancelled()
    assert len(locks) == 0


# Misuse


async def test_a_task_cannot_take_a_lock_twice(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """It would wait for itself: RuntimeError at once, also after a hand-over; another key is no problem."""
    locks = KeyedLock(purgatory)

    async def twice() -> None:
        async with locks("k"), locks("other"):
            with pytest.raises(RuntimeError, match="this task already has the lock on 'k'"):
                await locks.acquire("k", timeout=0)
            with pytest.raises(RuntimeError, match="this task already has the lock on 'k'"):
                async with locks("k"):
                    pass
            with pytest.raises(RuntimeError, match="this task already has the lock on 'other'"):
                await locks.acquire("other", timeout=0)

    async with locks("k"):
        task = asyncio.create_task(twice())
        await clock.settle()
    await task
    assert len(locks) == 0


async def test_releasing_what_is_not_held(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """RuntimeError, and nothing changes; another task may release, as with ``asyncio.Lock``."""
    locks = KeyedLock(purgatory)
    with pytest.raises(RuntimeError, match=r"^the lock on 'k' is not held$"):
        locks.release("k")
    (task,) = [asyncio.create_task(locks.acquire("k"))]
    await task
    locks.release("k")
    with pytest.raises(RuntimeError, match=r"^the lock on 'k' is not held$"):
        locks.release("k")
    with pytest.raises(RuntimeError, match=r"^the lock on 'k' is not held$"):
        async with locks("k"):
            locks.release("k")
    assert len(locks) == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"timeout": -1}, ValueError, "timeout"),
        ({"timeout": "1"}, TypeError, "timeout"),
        ({"timeout": float("nan")}, ValueError, "timeout"),
        ({"deadline": "1"}, TypeError, "deadline"),
        ({"timeout": 1, "deadline": 1.0}, TypeError, r"^acquire\(\) takes a timeout or a deadline, got both"),
    ],
    ids=repr,
)
async def test_bad_times_are_refused_also_for_a_free_lock(
    purgatory: Purgatory[Any], arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    """The error names the parameter, and nothing is taken."""
    locks = KeyedLock(purgatory)
    with pytest.raises(error, match=message):
        await locks.acquire("k", **arguments)
    with pytest.raises(error, match=message):
        async with locks("k", **arguments):
            pass
    assert len(locks) == 0


async def test_bad_arguments_are_refused(purgatory: Purgatory[Any]) -> None:
    """A key that is unhashable, a room that is none, and a kind that is no text."""
    locks = KeyedLock(purgatory)
    with pytest.raises(TypeError, match="unhashable"):
        await locks.acquire(["k"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^room must be a Purgatory, got 3$"):
        KeyedLock(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^kind must be a nonempty str, got ''$"):
        KeyedLock(purgatory, kind="")
    for how in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="KeyedLock must not be copied or pickled"):
            how(locks)


@pytest.mark.parametrize("call", ["acquire", "acquire held", "release"])
async def test_another_thread_is_refused(purgatory: Purgatory[Any], clock: VirtualClock, call: str) -> None:
    """RuntimeError that names the thread-safe calls, before anything changes."""
    locks = KeyedLock(purgatory)
    if call != "acquire":
        await locks.acquire("k")
    tasks = await waiters(locks, clock, 1) if call == "release" else []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            if call == "release":
                locks.release("k")
            else:
                asyncio.run(locks.acquire("k"))
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(errors) == 1
    assert "call_soon_threadsafe" in str(errors[0])
    locks._check()
    assert locks.locked("k") == (call != "acquire")
    if tasks:
        locks.release("k")
        await clock.settle()
        assert granted(tasks) == [0]


def test_a_lock_in_a_purgatory_without_a_loop() -> None:
    """It can be made and used before the purgatory is entered, and in one loop after another."""
    room = Purgatory[Any]("test", clock=VirtualClock())
    locks = KeyedLock(room)

    async def use() -> None:
        async with locks("k"):
            task = asyncio.create_task(locks.acquire("k"))
            await asyncio.sleep(0)
        assert await task
        locks.release("k")

    asyncio.run(use())
    asyncio.run(use())
    assert len(locks) == 0
    asyncio.run(room.aclose())


@pytest.mark.parametrize("others", [0, 1])
def test_a_waiter_whose_loop_was_closed_gets_no_lock(others: int) -> None:
    """Its task never runs again, so the lock goes to the next waiter, or is free."""
    room = Purgatory[Any]("test", clock=VirtualClock())
    locks = KeyedLock(room)
    left: list[asyncio.Task[Any]] = []

    async def first() -> None:
        await locks.acquire("k")
        left.append(asyncio.create_task(locks.acquire("k")))
        await asyncio.sleep(0)

    async def second() -> None:
        tasks = [asyncio.create_task(locks.acquire("k")) for _ in range(others)]
        await asyncio.sleep(0)
        locks.release("k")
        await asyncio.gather(*tasks)
        assert locks.locked("k") == bool(others)
        for _ in range(others):
            locks.release("k")
        async with locks("k"):
            pass
        await room.aclose()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(first())
    loop.close()
    asyncio.run(second())
    left[0]._log_destroy_pending = False  # type: ignore[attr-defined]
    left[0].get_coro().close()  # type: ignore[union-attr]  # the collector might end the inner coroutines first
    left.clear()
    gc.collect()
    assert len(locks) == 0


# Closing


async def test_a_free_lock_can_be_taken_in_a_closed_purgatory(clock: VirtualClock) -> None:
    """Requests still run while a server stops; only waiting is refused."""
    purgatory = Purgatory[Any]("test", clock=clock)
    locks = KeyedLock(purgatory)
    await purgatory.aclose()
    async with locks("k", timeout=5):
        task = asyncio.create_task(locks.acquire("k", timeout=5))
        await clock.settle()
        with pytest.raises(PurgatoryClosed):
            await task
        locks._check()
    assert len(locks) == 0


@pytest.mark.parametrize("timeout", [None, 5.0, 0.5])
async def test_waiters_get_purgatory_closed(clock: VirtualClock, timeout: float | None) -> None:
    """Not TimeoutError, whatever their timeout; the holder is not affected and releases later."""
    purgatory = Purgatory[Any]("test", clock=clock)
    locks = KeyedLock(purgatory)
    await locks.acquire("k")
    task = asyncio.create_task(locks.acquire("k", timeout=timeout))
    await clock.settle()
    await purgatory.aclose()
    with pytest.raises(PurgatoryClosed, match=r"^purgatory 'test' was closed while a task waited for the lock on 'k'$"):
        await task
    locks._check()
    assert locks.locked("k")
    locks.release("k")
    assert len(locks) == 0


async def test_waiters_of_a_timer_that_closes(clock: VirtualClock) -> None:
    """If only the timer closes, waiters with a deadline get PurgatoryClosed, and the others wait on."""
    async with SystemTimer(clock=clock) as timer:
        purgatory = Purgatory[Any]("test", timer=timer)
        locks = KeyedLock(purgatory)
        await locks.acquire("k")
        limited = asyncio.create_task(locks.acquire("k", timeout=5))
        tasks = await waiters(locks, clock, 1)
    with pytest.raises(PurgatoryClosed, match=r"^the timer of purgatory 'test' was closed while a task waited"):
        await limited
    locks.release("k")
    await clock.settle()
    assert granted(tasks) == [0]
    locks.release("k")
    await purgatory.aclose()


async def test_a_release_during_the_grace_hands_over(clock: VirtualClock) -> None:
    """The waiter gets the lock in the closing purgatory, and its deadline within the grace is a TimeoutError."""
    purgatory = Purgatory[Any]("test", clock=clock)
    locks = KeyedLock(purgatory)
    await locks.acquire("k")
    tasks = await waiters(locks, clock, 2)
    brief = asyncio.create_task(locks.acquire("k", timeout=1))
    await clock.settle()
    closing = asyncio.create_task(purgatory.aclose(grace=5))
    await clock.advance(2)
    with pytest.raises(TimeoutError):
        await brief
    locks.release("k")
    await clock.settle()
    assert granted(tasks) == [0]
    await clock.advance(3)
    await closing
    with pytest.raises(PurgatoryClosed):
        await tasks[1]
    locks.release("k")
    assert len(locks) == 0


# In the purgatory


async def test_waiters_count_against_the_limits(clock: VirtualClock) -> None:
    """PurgatoryFull, also for one key; its key is the user's."""
    async with Purgatory[Any]("test", clock=clock, max_parked=3, max_parked_per_key=2) as purgatory:
        locks = KeyedLock(purgatory)
        await locks.acquire("k")
        tasks = await waiters(locks, clock, 2)
        with pytest.raises(PurgatoryFull, match="key 'k' of purgatory 'test' is full") as raised:
            await asyncio.create_task(locks.acquire("k"))
        assert raised.value.key == "k"
        await locks.acquire("other")
        tasks += await waiters(locks, clock, 1, "other")
        await locks.acquire("third")
        with pytest.raises(PurgatoryFull, match="purgatory 'test' is full"):
            await asyncio.create_task(locks.acquire("third"))
        locks._check()
        for task in tasks:
            task.cancel()
        await clock.settle()


async def test_a_waiter_that_is_ended_from_outside(clock: VirtualClock) -> None:
    """It gets OperationCancelled, and there is no second holder if it is forced."""
    purgatory = Purgatory[Any]("test", clock=clock)
    locks = KeyedLock(purgatory)
    await locks.acquire("k")
    tasks = await waiters(locks, clock, 2)
    parked = [event.operation for event in purgatory.parked_events()]
    parked[0].cancel("reason")
    with pytest.raises(RuntimeError, match="force_complete"):
        parked[1].force_complete()
    await clock.settle()
    with pytest.raises(OperationCancelled, match=r"^acquire was cancelled .* reason: 'reason', parked on \['k'\]$"):
        await tasks[0]
    with pytest.raises(RuntimeError, match="force_complete"):
        await tasks[1]
    locks._check()
    locks.release("k")
    assert len(locks) == 0
    await purgatory.aclose()


@pytest.mark.usefixtures("no_gc")
async def test_waits_leave_no_garbage(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Whether a wait is granted, cancelled or times out, reference counting frees everything."""
    locks = KeyedLock(purgatory)
    gc.collect()
    await locks.acquire("k")
    tasks = await waiters(locks, clock, 2)
    late = asyncio.create_task(locks.acquire("k", timeout=1))
    await clock.advance(1)
    tasks[0].cancel()
    await clock.settle()
    locks.release("k")
    await clock.settle()
    locks.release("k")
    outcomes: Any = await asyncio.gather(*tasks, late, return_exceptions=True)
    assert [type(outcome).__name__ for outcome in outcomes] == ["CancelledError", "bool", "TimeoutError"]
    del tasks, late, outcomes
    await clock.settle()
    assert gc.collect() == 0


class Sulky:
    """A key whose hash and comparison can be made to raise, and that can call something when it is compared."""

    raises = False

    def __init__(self, name: str = "", compared: Callable[[], object] = lambda: None) -> None:
        self.name = name
        self.compared = compared

    def __hash__(self) -> int:
        if self.raises:
            raise Boom
        return 1

    def __eq__(self, other: object) -> bool:
        if self.raises:
            raise Boom
        self.compared()
        return isinstance(other, Sulky) and other.name == self.name


async def test_a_key_that_raises_at_the_release(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The end of a block does not ask the key: the lock is handed over, and in the end it is forgotten."""
    locks = KeyedLock(purgatory)
    key = Sulky()
    other = Sulky("other")
    tasks: list[asyncio.Task[Any]] = []
    await locks.acquire(other)
    async with locks(key):
        tasks.append(asyncio.create_task(hold(locks, key, [], None)))
        await clock.settle()
        key.raises = other.raises = True
    await clock.settle()
    assert tasks[0].result() is None
    assert len(locks) == 1
    with pytest.raises(Boom):
        locks.release(other)
    assert len(locks) == 1
    other.raises = False
    locks.release(other)
    assert len(locks) == 0
    locks._check()


async def test_keys_with_the_same_hash(purgatory: Purgatory[Any]) -> None:
    """They are different keys, in whatever order they are released; equal ones are the same key."""
    for order in itertools.permutations(range(3)):
        locks = KeyedLock(purgatory)
        for name in "abc":
            await locks.acquire(Sulky(name))
        for released, number in enumerate(order):
            assert [locks.locked(Sulky(name)) for name in "abc"] == [at not in order[:released] for at in range(3)]
            locks.release(Sulky("abc"[number]))
            locks._check()
            assert len(locks) == 2 - released


async def test_a_key_that_takes_and_releases_while_it_is_compared(purgatory: Purgatory[Any]) -> None:
    """What the comparison does counts: no lock is taken twice, and none is lost."""
    locks = KeyedLock(purgatory)
    first, second = Sulky("a"), Sulky("b")
    await locks.acquire(first)
    await locks.acquire(second)
    first.compared = lambda: (setattr(first, "compared", int), locks.release(first))
    assert not locks.locked(Sulky("a")), "released while it was compared, it is not the lock of the key any more"
    assert locks.locked(Sulky("b"))
    first.compared = lambda: None
    await locks.acquire(first)
    second.compared = lambda: (setattr(second, "compared", int), take(locks, "c"))
    assert locks.locked(Sulky("c")), "taken while the last other key was compared"
    locks._check()
    assert len(locks) == 3


def take(locks: KeyedLock, name: str) -> None:
    """Take a free lock at once."""
    with pytest.raises(StopIteration):
        locks.acquire(Sulky(name)).send(None)


def test_its_texts(clock: VirtualClock) -> None:
    """``repr`` shows the purgatory and how many keys are in use."""
    locks = KeyedLock(Purgatory[Any]("test", clock=clock))
    assert repr(locks) == "<KeyedLock in 'test' keys=0>"
    assert repr(locks("k")) == "<Acquisition of 'k' in <KeyedLock in 'test' keys=0>>"
    assert locks, "true, although its length is 0"


class _Slow(Purgatory[Any]):
    """Its ``park`` gives the other tasks a turn before it parks."""

    async def park(self, *arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(0)
        return await super().park(*arguments, **options)


async def test_a_release_before_the_waiter_is_parked_is_not_lost(clock: VirtualClock) -> None:
    """The lock is released after the waiter has found it taken, and before the waiter is parked."""
    async with _Slow("room", clock=clock) as room:
        locks = KeyedLock(room)
        await locks.acquire("k")
        waiter = asyncio.ensure_future(locks.acquire("k", timeout=1.0))
        later = asyncio.ensure_future(locks.acquire("k"))
        loop = asyncio.get_running_loop()
        loop.call_soon(locks.release, "k")
        await clock.settle()
        assert (waiter.done(), later.done(), locks.locked("k")) == (True, False, True)
        locks.release("k")
        await clock.settle()
        assert later.done()
        locks.release("k")
        assert len(locks) == 0
        locks._check()
