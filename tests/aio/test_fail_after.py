"""``fail_after``, Kafka's expiration service: a future that fails after a delay."""

import pytest

from purgatory import PurgatoryClosed, SystemTimer
from purgatory.testing import VirtualClock


async def test_it_fails_when_the_time_has_come(clock: VirtualClock) -> None:
    """The future raises TimeoutError after the delay, and not before."""
    async with SystemTimer(clock=clock) as timer:
        future = timer.fail_after(5)
        await clock.advance(4.999)
        assert not future.done()
        await clock.advance(0.001)
        with pytest.raises(TimeoutError, match="5 s have passed"):
            await future


async def test_cancelling_it_takes_it_off_the_timer(clock: VirtualClock) -> None:
    """A cancelled future leaves the timer at once."""
    async with SystemTimer(clock=clock) as timer:
        future = timer.fail_after(5)
        assert timer.size == 1
        future.cancel()
        await clock.settle()
        assert timer.size == 0


async def test_a_future_cancelled_in_the_same_turn(clock: VirtualClock) -> None:
    """A future that is cancelled just before its deadline stays cancelled."""
    timer = SystemTimer(clock=clock)
    future = timer.fail_after(5)
    future.cancel()
    assert timer.expire_due(clock.now_ms() + 5000) == 1
    assert future.cancelled()


async def test_a_future_that_is_done_when_its_time_comes(clock: VirtualClock) -> None:
    """A future cancelled in the turn of its deadline stays cancelled, and no error is reported."""
    async with SystemTimer(clock=clock) as timer:
        future = timer.fail_after(0)
        future.cancel()
        assert timer.expire_due(clock.now_ms()) == 1
        assert future.cancelled()


async def test_a_future_that_is_done_when_its_timer_closes(clock: VirtualClock) -> None:
    """A future that is cancelled in the turn in which its timer closes stays cancelled."""
    timer = SystemTimer(clock=clock)
    cancelled, waiting = timer.fail_after(1), timer.fail_after(1)
    cancelled.cancel()
    await timer.aclose()
    assert cancelled.cancelled()
    assert isinstance(waiting.exception(), PurgatoryClosed)


async def test_each_future_of_a_closing_timer_has_its_own_exception(clock: VirtualClock) -> None:
    """Raising one exception does not change the others, whose reports belong to other tasks."""
    timer = SystemTimer(clock=clock)
    futures = [timer.fail_after(1) for _ in range(3)]
    await timer.aclose()
    errors = {future.exception() for future in futures}
    assert {type(error) for error in errors} == {PurgatoryClosed}
    assert len(errors) == 3
