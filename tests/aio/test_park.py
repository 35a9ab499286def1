"""``park``: a task submits an operation and waits for the answer."""

import asyncio
from typing import Any

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


async def test_park_takes_one_key(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """``key=`` takes any hashable as the only key: also a str, a tuple, and None."""
    for key in ("abc", ("a", 1), None, 5):
        task = asyncio.create_task(purgatory.park(Op(5, name="answer", ready=False), key=key))
        await clock.settle()
        assert list(purgatory.keys()) == [key]
        assert purgatory.cancel_for_key(key)
        with pytest.raises(PurgatoryError):
            await task
    check(purgatory, submitted=4, cancelled=4, parked=0)


async def test_park_takes_a_key_or_keys(purgatory: Purgatory[Op]) -> None:
    """Exactly one of ``key`` and ``keys`` is given; each error names the parameter to use, and nothing is submitted."""
    park: Any = purgatory.park
    with pytest.raises(TypeError, match=r"park\(\) takes key= or keys=, got neither"):
        await park(Op(5))
    with pytest.raises(TypeError, match=r"park\(\) takes key= or keys=, got both: key='a' and keys=\['b'\]"):
        await park(Op(5), ["b"], key="a")
    with pytest.raises(TypeError, match=r"got 'orders'; for one key, a wait takes key='orders'"):
        await park(Op(5), "orders")
    with pytest.raises(
        TypeError, match=r"key must be one hashable key, got \['a'\]: for several keys use keys=\['a'\]"
    ):
        await park(Op(5), key=["a"])
    check(purgatory, submitted=0)


# The first half of ``park()``, for code that puts something between submitting and awaiting


async def test_an_operation_that_waits_gives_the_future_to_await(clock: VirtualClock) -> None:
    """The purgatory need not have been entered: its reaper runs, and the deadline ends the operation."""
    purgatory = Purgatory[Any]("test", clock=clock)
    waiter = purgatory._core.submit_and_wait(Op(2.0, on_complete=lambda _: "answer"), ["a"])
    assert waiter is not None
    await clock.advance(1.999)
    assert not waiter.done()
    await clock.advance(0.001)
    assert await waiter == "answer"
    second = purgatory._core.submit_and_wait(Op(None, on_complete=lambda _: "second"), ["a"])
    assert second is not None
    purgatory.cancel_for_key("a")
    assert second.exception() is not None
    check(purgatory, expired=1, cancelled=1)
    await purgatory.aclose()


async def test_an_operation_that_has_ended_gives_none(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Its result is in the operation."""
    operation = Op(on_complete=lambda _: "at once")
    operation.ready = True
    assert purgatory._core.submit_and_wait(operation, ["a"]) is None
    assert operation.result() == "at once"


class _Forgetful(Op):
    """It does not call ``super().__init__()``."""

    def __init__(self) -> None:
        pass


async def test_a_class_that_forgot_to_initialise_is_named(purgatory: Purgatory[Any]) -> None:
    """The error says what its constructor must do."""
    with pytest.raises(RuntimeError, match=r"_Forgetful.__init__\(\) must call super\(\).__init__\(timeout\)"):
        await purgatory.park(_Forgetful(), ["a"])
    assert len(purgatory) == 0


async def test_an_operation_on_the_timer_leaves_it_when_it_completes_at_once(purgatory: Purgatory[Any]) -> None:
    """It was added to the timer as a task, and completes in its first try, before it is parked."""
    operation = Op(5.0)
    operation.ready = True
    purgatory.timer.add(operation)
    await purgatory.park(operation, ["a"])
    assert not operation.scheduled
    assert purgatory.timer.size == 0


class _Keeps(Op):
    """An operation that stores its answer in an attribute with the name of a method."""

    def __init__(self, timeout: float, **arguments: Any) -> None:
        super().__init__(timeout, **arguments)
        self.result: Any = None  # type: ignore[method-assign]

    def on_complete(self) -> Any:
        self.result = "answer"
        return self.result


async def test_an_attribute_named_result_does_not_lose_the_answer(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """The task receives what ``on_complete`` returned, whether the operation completes at once or later."""
    assert await purgatory.park(_Keeps(5, ready=True), ["a"]) == "answer"
    assert purgatory._core.try_without_parking(_Keeps(0), ["a"]) == "answer"
    task = asyncio.create_task(purgatory.park(_Keeps(5), ["a"]))
    await clock.advance(5)
    assert await task == "answer"
