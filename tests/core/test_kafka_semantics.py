"""The behavior of Kafka's purgatory and timer, except for the documented differences."""

import asyncio
from typing import Any

from purgatory import Purgatory
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import Op, Task
from tests.sansio import QuietPurgatory, make_purgatory, pass_time


class KafkaOperation(Op):
    """An operation that completes itself in ``try_complete``, as in Kafka."""

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()


def test_requests_are_satisfied_by_checks_of_their_key(room: QuietPurgatory) -> None:
    """No request is satisfied until its condition holds; then the next check satisfies it once."""
    one, other = KafkaOperation(100), KafkaOperation(100)
    assert room.check_and_complete("test1") == 0
    assert not room.try_complete_else_watch(one, ["test1"])
    assert room.check_and_complete("test1") == 0
    assert not room.try_complete_else_watch(other, ["test2"])
    assert room.check_and_complete("test2") == 0
    for op, key in ((one, "test1"), (other, "test2")):
        op.ready = True
        assert room.check_and_complete(key) == 1
        assert room.check_and_complete(key) == 0


def test_requests_expire() -> None:
    """A request with a short timeout expires on time; one with a long timeout continues to wait."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock)
    short, long = KafkaOperation(0.02), KafkaOperation(200)
    room.try_complete_else_watch(short, ["test1"])
    room.try_complete_else_watch(long, ["test2"])
    pass_time(clock, room, 19)
    assert not short.is_completed
    pass_time(clock, room, 1)
    assert short.is_completed
    assert not long.is_completed


def test_completed_requests_are_purged_at_once(room: QuietPurgatory) -> None:
    """Kafka's watch lists keep a completed operation until their next check; here all counts decrease at once."""
    ops = [KafkaOperation(100) for _ in range(3)]
    for number, op in enumerate(ops, start=1):
        room.try_complete_else_watch(op, ["test1", "test2", "test3"][:number])
    assert (room.num_delayed, room.watched) == (3, 6)
    ops[1].ready = ops[2].ready = True
    assert ops[1].try_complete()
    assert (room.num_delayed, room.watched) == (2, 4)
    assert ops[2].try_complete()
    assert (room.num_delayed, room.watched) == (1, 1)


def test_cancelling_for_a_key_returns_the_operations(room: QuietPurgatory) -> None:
    """The operations on the key are cancelled and returned, others stay; an unknown key has none."""
    for key in ("key", "key", "key2"):
        room.try_complete_else_watch(KafkaOperation(10), [key])
    assert len(room.cancel_for_key("key")) == 2
    assert (room.num_delayed, room.watched) == (1, 1)
    assert room.cancel_for_key("key") == []


async def test_a_check_during_a_try_is_queued(clock: VirtualClock) -> None:
    """Where Kafka has a race of threads, checks are queued here, and none is lost."""
    async with Purgatory[KafkaOperation]("kafka", clock=clock) as purgatory:
        ops = [KafkaOperation(10) for _ in range(100)]
        for number, op in enumerate(ops):
            purgatory.try_complete_else_watch(op, [number])

        async def work(number: int) -> None:
            for attempt in range(20):
                await clock.sleep((number * 7 + attempt) % 10 / 1000)
                ops[number].ready = attempt == 19
                purgatory.check_and_complete(number)

        tasks = [asyncio.create_task(work(number)) for number in range(100)]
        await clock.advance(5)
        await asyncio.gather(*tasks)
        assert all(op.is_completed and op.completions == 1 for op in ops)


def test_tasks_already_expired_run_at_once() -> None:
    """Tasks with a negative delay run in the next turn of the clock, in deadline order."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock, wheel_size=3)
    output: list[Any] = []
    for delay_ms in range(-5, 0):
        room._core.timer.add(Task(delay_ms, output))
    pass_time(clock, room, 0)
    assert sorted(output) == [-5, -4, -3, -2, -1]


def test_every_task_runs_as_often_as_it_was_added() -> None:
    """A wheel of three buckets overflows many times in half a second, and no task is lost or run twice."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock, wheel_size=3)
    output: list[Any] = []
    expected = []
    for delay_ms in [*range(5), *range(10, 100), *range(10, 100), *range(100, 500)]:
        room._core.timer.add(Task(delay_ms, output))
        expected.append(delay_ms)
    pass_time(clock, room, 2000)
    assert room._core.timer.size == 0
    assert output == sorted(expected)
