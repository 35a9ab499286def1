"""The behavior of Kafka's purgatory and timer, except for the documented differences."""

import asyncio
from typing import Any

from purgatory import Purgatory, SystemTimer
from purgatory.testing import VirtualClock
from tests.helpers import Op, Task


class KafkaOperation(Op):
    """An operation that completes itself in ``try_complete``, as in Kafka."""

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()


async def test_requests_are_satisfied_by_checks_of_their_key(clock: VirtualClock) -> None:
    """No request is satisfied until its condition holds; then the next check satisfies it once."""
    async with Purgatory[KafkaOperation]("kafka", clock=clock) as purgatory:
        one, other = KafkaOperation(100), KafkaOperation(100)
        assert purgatory.check_and_complete("test1") == 0
        assert not purgatory.try_complete_else_watch(one, ["test1"])
        assert purgatory.check_and_complete("test1") == 0
        assert not purgatory.try_complete_else_watch(other, ["test2"])
        assert purgatory.check_and_complete("test2") == 0
        for op, key in ((one, "test1"), (other, "test2")):
            op.ready = True
            assert purgatory.check_and_complete(key) == 1
            assert purgatory.check_and_complete(key) == 0


async def test_requests_expire(clock: VirtualClock) -> None:
    """A request with a short timeout expires on time; one with a long timeout continues to wait."""
    async with Purgatory[KafkaOperation]("kafka", clock=clock) as purgatory:
        short, long = KafkaOperation(0.02), KafkaOperation(200)
        purgatory.try_complete_else_watch(short, ["test1"])
        purgatory.try_complete_else_watch(long, ["test2"])
        await clock.advance(0.019)
        assert not short.is_completed
        await clock.advance(0.001)
        assert short.is_completed
        assert not long.is_completed


async def test_completed_requests_are_purged_at_once(clock: VirtualClock) -> None:
    """Kafka's watch lists keep a completed operation until their next check; here all counts decrease at once."""
    async with Purgatory[KafkaOperation]("kafka", clock=clock) as purgatory:
        ops = [KafkaOperation(100) for _ in range(3)]
        for number, op in enumerate(ops, start=1):
            purgatory.try_complete_else_watch(op, ["test1", "test2", "test3"][:number])
        assert (purgatory.num_delayed, purgatory.watched) == (3, 6)
        ops[1].ready = ops[2].ready = True
        assert ops[1].try_complete()
        assert (purgatory.num_delayed, purgatory.watched) == (2, 4)
        assert ops[2].try_complete()
        assert (purgatory.num_delayed, purgatory.watched) == (1, 1)


async def test_cancelling_for_a_key_returns_the_operations(clock: VirtualClock) -> None:
    """The operations on the key are cancelled and returned, others stay; an unknown key has none."""
    async with Purgatory[KafkaOperation]("kafka", clock=clock) as purgatory:
        for key in ("key", "key", "key2"):
            purgatory.try_complete_else_watch(KafkaOperation(10), [key])
        assert len(purgatory.cancel_for_key("key")) == 2
        assert (purgatory.num_delayed, purgatory.watched) == (1, 1)
        assert purgatory.cancel_for_key("key") == []


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


async def test_tasks_already_expired_run_at_once(clock: VirtualClock) -> None:
    """Tasks with a negative delay run in the next turn of the clock, in deadline order."""
    output: list[Any] = []
    async with SystemTimer(tick_ms=1, wheel_size=3, clock=clock) as timer:
        for delay_ms in range(-5, 0):
            timer.add(Task(delay_ms, output))
        await clock.advance(0)
    assert sorted(output) == [-5, -4, -3, -2, -1]


async def test_every_task_runs_as_often_as_it_was_added(clock: VirtualClock) -> None:
    """A wheel of three buckets overflows many times in half a second, and no task is lost or run twice."""
    output: list[Any] = []
    expected = []
    async with SystemTimer(tick_ms=1, wheel_size=3, clock=clock) as timer:
        for delay_ms in [*range(5), *range(10, 100), *range(10, 100), *range(100, 500)]:
            timer.add(Task(delay_ms, output))
            expected.append(delay_ms)
        await clock.advance(2)
        assert timer.size == 0
    assert output == sorted(expected)
