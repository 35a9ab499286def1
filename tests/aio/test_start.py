"""``start``: a timer starts once, and keeps what was added before."""

import asyncio

import pytest

from purgatory import Purgatory, SystemTimer
from purgatory.testing import VirtualClock
from tests.helpers import Op


def test_it_can_be_filled_before_a_loop_runs() -> None:
    """Operations that were parked before the loop was started keep their deadlines."""
    clock = VirtualClock()
    purgatory = Purgatory[Op]("test", clock=clock)
    op = Op(5)
    assert not purgatory.try_complete_else_watch(op, ["a"])

    async def main() -> None:
        async with purgatory:
            await clock.advance(5)
            assert op.expired

    asyncio.run(main())


def test_adding_between_two_runs_of_the_loop() -> None:
    """A task that is added while the loop is stopped and the reaper sleeps runs when the loop resumes."""
    loop = asyncio.new_event_loop()
    log: list[str] = []

    async def begin() -> Purgatory[Op]:
        purgatory = Purgatory[Op]("test")
        await purgatory.__aenter__()
        purgatory.timer.call_later(1000, log.append, "late")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return purgatory

    async def finish() -> None:
        await purgatory.timer.fail_after(0.02)

    try:
        purgatory = loop.run_until_complete(begin())
        purgatory.timer.call_later(0.001, log.append, "early")
        op = Op(0.002)
        purgatory.try_complete_else_watch(op, ["a"])
        purgatory._check()
        with pytest.raises(TimeoutError):
            loop.run_until_complete(finish())
        assert log == ["early"]
        assert op.expired
        loop.run_until_complete(purgatory.aclose())
    finally:
        loop.close()


async def test_starting_twice_is_starting_once(clock: VirtualClock) -> None:
    """Starting a timer twice creates one reaper."""
    async with SystemTimer(clock=clock) as timer:
        reaper = timer._reaper.task
        timer.start()
        assert timer._reaper.task is reaper
