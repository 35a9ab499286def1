"""``park`` and ``wait_until``: a task submits an operation and waits for the answer."""

import asyncio

import pytest

from purgatory import Outcome, Purgatory, PurgatoryError
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, check


async def test_park_returns_the_result(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """``park`` returns the result of ``on_complete``: at once, on a check, or on expiry."""
    assert await purgatory.park(Op(5, name="now", ready=True), ["a"]) == "now"
    later, never = Op(5, name="later"), Op(5, name="never")
    tasks = [asyncio.create_task(purgatory.park(op, ["a"])) for op in (later, never)]
    await clock.settle()
    later.ready = True
    purgatory.check_and_complete("a")
    assert await tasks[0] == "later"
    await clock.advance(5)
    assert await tasks[1] == "never"
    assert never.expired


async def test_an_operation_that_gives_up_in_its_first_try(purgatory: Purgatory[Op]) -> None:
    """An operation that cancels itself during its first try has no result, and its parker gets an error."""
    with pytest.raises(PurgatoryError, match="Op was cancelled before it completed"):
        await purgatory.park(Op(5, on_try=lambda op: op.cancel()), ["a"])
    check(purgatory, parked=0, cancelled=1)


async def test_what_the_first_try_raises_reaches_the_parker(purgatory: Purgatory[Op]) -> None:
    """If the first try raises, ``park`` raises the exception, and the operation is FAILED."""

    def boom(_: Op) -> None:
        raise Boom

    for op in (Op(5, on_try=boom), Op(5, ready=True, on_complete=boom)):
        with pytest.raises(Boom):
            await purgatory.park(op, ["a"])
        assert op.outcome is Outcome.FAILED
    check(purgatory, submitted=2, parked=0, failed=2, watched=0, immediate=0)


async def test_without_a_future_the_operation_is_withdrawn(purgatory: Purgatory[Op]) -> None:
    """If the loop cannot create the future for the answer, the operation is withdrawn."""

    def exhausted() -> None:
        raise MemoryError

    op = Op(5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "create_future", exhausted)
        with pytest.raises(MemoryError):
            await purgatory.park(op, ["a"])
    assert op.outcome is Outcome.CANCELLED
    check(purgatory, parked=0, watched=0, num_delayed=0, cancelled=1)


async def test_wait_until_returns_whether_the_predicate_held(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """``wait_until`` returns True if the predicate holds, at once or later, and False at the deadline."""
    state = {"ready": True}
    assert await purgatory.wait_until(lambda: state["ready"], keys=["a"], timeout=5) is True
    state["ready"] = False
    true, false = (
        asyncio.create_task(purgatory.wait_until(lambda: state["ready"], keys=[key], timeout=5)) for key in "ab"
    )
    await clock.settle()
    state["ready"] = True
    assert purgatory.check_and_complete("a") == 1
    assert await true is True
    state["ready"] = False
    await clock.advance(5)
    assert await false is False


async def test_a_predicate_that_raises_reaches_the_waiter(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """A predicate that raises fails only its own wait."""
    state: dict[str, int] = {"x": 1}
    task = asyncio.create_task(purgatory.wait_until(lambda: 1 // state["x"] == 5, keys=["a"], timeout=5))
    other = asyncio.create_task(purgatory.wait_until(lambda: state["x"] == 0, keys=["a"], timeout=5))
    await clock.settle()
    state["x"] = 0
    assert purgatory.check_and_complete("a") == 1
    with pytest.raises(ZeroDivisionError):
        await task
    assert await other
