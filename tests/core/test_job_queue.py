"""A queue of jobs on a purgatory: each job goes to one worker, even if workers expire or are cancelled."""

import asyncio
from collections import deque
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from purgatory import DelayedOperation, Outcome, Purgatory
from purgatory.testing import ManualClock, VirtualClock
from tests.sansio import QuietPurgatory, make_purgatory, pass_time


class Take(DelayedOperation[int | None]):
    """An operation that takes one job, or none on expiry; with ``announces`` it checks for the next job in its
    callback.
    """

    def __init__(self, room: QuietPurgatory, jobs: deque[int], timeout_ms: int | None, announces: bool) -> None:
        super().__init__(None if timeout_ms is None else timeout_ms / 1000)
        self.room = room
        self.jobs = jobs
        self.announces = announces

    def try_complete(self) -> bool:
        return bool(self.jobs)

    def on_complete(self) -> int | None:
        job = None if self.expired else self.jobs.popleft()
        if self.announces:
            assert self.room.check_and_complete("jobs", limit=1) == 0
        return job


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("work"), st.none() | st.integers(0, 300), st.booleans()),
        st.tuples(st.just("jobs"), st.integers(1, 4)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("wait"), st.integers(1, 200)),
    ),
    max_size=60,
)


@given(STEPS)
def test_no_job_is_lost_or_doubled(steps: list[Any]) -> None:
    """Workers arrive, expire and are cancelled between jobs; each job is with one worker or in the queue."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock)
    jobs: deque[int] = deque()
    workers: list[Take] = []
    made = 0
    for step in steps:
        match step:
            case ("work", timeout_ms, announces):
                workers.append(Take(room, jobs, timeout_ms, announces))
                room.try_complete_else_watch(workers[-1], ["jobs"])
            case ("jobs", number):
                idle = len(room)
                jobs.extend(range(made, made + number))
                made += number
                assert room.check_and_complete("jobs", limit=number) == min(number, idle)
            case ("cancel", number) if number < len(workers):
                workers[number].cancel()
            case ("wait", milliseconds):
                pass_time(clock, room, milliseconds)
        room._check()
        taken = [worker.result() for worker in workers if worker.outcome is Outcome.COMPLETED]
        assert sorted([*taken, *jobs]) == list(range(made))  # type: ignore[type-var]
        assert not jobs or not len(room), "a job lies in the queue while a worker waits"
    first_come = [worker.result() for worker in workers if worker.outcome is Outcome.COMPLETED]
    assert first_come == sorted(first_come)  # type: ignore[type-var]


class Park(DelayedOperation[int | None]):
    """A task that takes one job; a job that the task does not receive returns to the front of the queue."""

    def __init__(self, room: Purgatory[Any], jobs: deque[int], timeout: float | None) -> None:
        super().__init__(timeout)
        self.room = room
        self.jobs = jobs

    def try_complete(self) -> bool:
        return bool(self.jobs)

    def on_complete(self) -> int | None:
        return None if self.expired else self.jobs.popleft()

    def on_abandoned(self, result: int | None) -> None:
        if result is not None:
            self.jobs.appendleft(result)
            self.room.check_and_complete("jobs", limit=1)


PARK_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("work"), st.none() | st.integers(0, 300)),
        st.tuples(st.just("jobs"), st.integers(1, 4)),
        st.tuples(st.just("cancel the task"), st.integers(0, 30)),
        st.tuples(st.just("cancel the operation"), st.integers(0, 30)),
        st.tuples(st.just("cancel in flight"), st.integers(0, 3)),
        st.tuples(st.just("turn"), st.integers(1, 3)),
        st.tuples(st.just("wait"), st.integers(1, 200)),
    ),
    max_size=60,
)


@given(PARK_STEPS)
def test_no_job_is_lost_or_doubled_when_tasks_are_cancelled(steps: list[Any]) -> None:
    """If a task is cancelled in ``park()``, even in the turn in which it got a job, another worker gets the job."""
    asyncio.run(_tasks_that_are_cancelled(steps))


async def _tasks_that_are_cancelled(steps: list[Any]) -> None:
    clock = VirtualClock(1000.0)
    jobs: deque[int] = deque()
    tasks: list[asyncio.Task[int | None]] = []
    operations: list[Park] = []
    made = 0
    async with Purgatory[Any]("test", clock=clock) as room:
        for step in steps:
            match step:
                case ("work", timeout_ms):
                    operations.append(Park(room, jobs, None if timeout_ms is None else timeout_ms / 1000))
                    tasks.append(asyncio.create_task(room.park(operations[-1], ["jobs"])))
                case ("jobs", number):
                    jobs.extend(range(made, made + number))
                    made += number
                    room.check_and_complete("jobs", limit=number)
                case ("cancel the task", number) if number < len(tasks):
                    tasks[number].cancel()
                case ("cancel the operation", number) if number < len(tasks) and operations[number].keys:
                    operations[number].cancel("no more work")
                case ("cancel in flight", number):
                    await asyncio.sleep(0)
                    waiting = [task for task, operation in zip(tasks, operations, strict=True) if operation.keys]
                    jobs.append(made)
                    made += 1
                    room.check_and_complete("jobs", limit=1)
                    for task in waiting[:number]:
                        task.cancel()
                case ("turn", number):
                    for _ in range(number):
                        await asyncio.sleep(0)
                case ("wait", milliseconds):
                    await clock.advance(milliseconds / 1000)
            room._check()
        await clock.settle()
        assert not jobs or not len(room), "a job lies in the queue while a worker waits"
    await asyncio.gather(*tasks, return_exceptions=True)
    ended = [task for task in tasks if not task.cancelled() and task.exception() is None]
    taken = [job for task in ended if (job := task.result()) is not None]
    assert sorted([*taken, *jobs]) == list(range(made))
