"""The operations behind ``wait_until`` and ``wait_value``: their conditions, their times, and their results."""

import asyncio
from typing import Any

import pytest

from purgatory import OperationCancelled, Outcome, Purgatory, PurgatoryError
from purgatory.core.operation.wait_until import MISSING, value_wait
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import Boom, Op, check
from tests.sansio import make_purgatory, pass_time


async def test_a_future_is_a_value_like_any_other(purgatory: Purgatory[Op]) -> None:
    """Only a coroutine is refused: a predicate may return a future to state that the future exists."""
    future = asyncio.get_running_loop().create_future()
    assert await purgatory.wait_until(lambda: future, keys=["a"], timeout=5)


async def test_a_predicate_is_callable(purgatory: Purgatory[Op]) -> None:
    """A predicate that is not callable raises TypeError."""
    with pytest.raises(TypeError, match="predicate must be callable"):
        await purgatory.wait_until(True, keys=["a"], timeout=5)  # type: ignore[arg-type]


async def test_the_results_of_waits(clock: VirtualClock) -> None:
    """Waits return False and None when the purgatory closes, and their tasks are answered."""
    async with Purgatory[Any]("test", clock=clock) as purgatory:
        until = asyncio.create_task(purgatory.wait_until(lambda: False, key="a", timeout=None))
        await clock.settle()
    assert await until is False
    check(purgatory, expired_by_closing=1, expired=0)


async def test_wait_until_a_deadline(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """``wait_until`` returns False at the deadline and True before; None means no deadline."""
    flag = False
    deadline = purgatory.timer.time() + 5
    waits = [
        asyncio.create_task(purgatory.wait_until(lambda: flag, keys=[key], deadline=when))
        for key, when in (("a", deadline), ("b", None))
    ]
    await clock.advance(4.999)
    assert not waits[0].done()
    await clock.advance(0.001)
    assert waits[0].done()
    assert await waits[0] is False
    flag = True
    purgatory.check_and_complete("b")
    assert await waits[1] is True
    assert await purgatory.wait_until(lambda: True, keys=["a"], deadline=0) is True


@pytest.mark.parametrize(
    ("arguments", "got"),
    [({}, "neither"), ({"timeout": None, "deadline": None}, "both"), ({"timeout": 1, "deadline": 5}, "both")],
)
async def test_wait_until_takes_a_timeout_or_a_deadline(
    purgatory: Purgatory[Any], arguments: dict[str, Any], got: str
) -> None:
    """``wait_until`` needs exactly one of the two; otherwise it raises TypeError and does not call the predicate."""
    with pytest.raises(TypeError, match=f"a timeout or a deadline, got {got}"):
        await purgatory.wait_until(lambda: 1 / 0, keys=["a"], **arguments)


async def test_a_wait_drops_the_exception_that_its_task_has(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Code that still holds the wait, such as an observer, gets an error that says so; other endings are kept."""

    def raise_when_armed() -> None:
        if armed:
            raise Boom

    armed = False
    task = asyncio.create_task(purgatory.wait_until(raise_when_armed, key="a", timeout=5))
    cancelled = asyncio.create_task(purgatory.wait_until(lambda: False, key="b", timeout=5))
    await clock.settle()
    waits = [event.operation for event in purgatory.parked_events()]
    armed = True
    assert purgatory.check("a") == 0
    with pytest.raises(Boom):
        await task
    with pytest.raises(PurgatoryError, match=r"^the wait has failed, and its task has received the exception$"):
        waits[0].result()
    cancelled.cancel()
    await asyncio.wait([cancelled])
    with pytest.raises(OperationCancelled) as caught:
        waits[1].result()
    assert caught.value.reason is None


def test_a_wait_that_could_not_complete_waits_for_another_value() -> None:
    """If the clock is interrupted after ``get`` has returned, the value is given back, and is not the later result."""

    class Interrupted(ManualClock):
        def now_ms(self) -> int:
            if armed:
                raise KeyboardInterrupt
            return super().now_ms()

    armed = False
    given_back: list[str] = []
    clock = Interrupted(1_000_000)
    room = make_purgatory(clock)
    wait = value_wait(room._core.timer, lambda: "value" if armed else None, 5, MISSING, None, given_back.append)
    room.try_complete_else_watch(wait, ["a"])
    armed = True
    with pytest.raises(KeyboardInterrupt):
        room.check("a")
    armed = False
    assert given_back == ["value"]
    assert wait.outcome is Outcome.PENDING
    pass_time(clock, room, 5000)
    assert wait.outcome is Outcome.EXPIRED
    assert wait.result() is None
    room._check()
