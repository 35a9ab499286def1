"""``DelayedFuture``: the operation behind ``when_all``, which leaves no callback on a future after it has ended."""

import asyncio
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import DelayedFuture, Event, Observer, Outcome, Purgatory
from purgatory.testing import VirtualClock
from tests.helpers import Boom, futures


async def test_each_of_a_thousand_futures_is_read_about_once(purgatory: Purgatory[Any]) -> None:
    """All tries together call ``done()`` of each future about once, not once per try."""
    reads = 0

    class Counted(asyncio.Future[Any]):
        def done(self) -> bool:
            nonlocal reads
            reads += 1
            return super().done()

    many = [Counted(loop=asyncio.get_running_loop()) for _ in range(1000)]
    waiting = purgatory.when_all(many, 10)
    for future in many:
        future.set_result(None)
    await waiting
    assert reads < 10_000


async def test_a_future_keeps_nothing_of_an_operation_that_has_ended(purgatory: Purgatory[Any], no_gc: None) -> None:
    """A future that stays pending does not reference the operation or its callback."""

    class CallLaterTask:
        def __call__(self, _: Any) -> None:
            pass

    (future,) = futures(1)
    callback = CallLaterTask()
    freed = weakref.ref(callback)
    purgatory.when_all([future], 10, callback).cancel()
    del callback
    await asyncio.sleep(0)
    assert freed() is None
    future.set_result(None)


async def test_repr_shows_how_many_are_pending(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The ``repr`` shows the number of pending futures, and the outcome after the end."""
    first, second = futures(2)
    waiting = purgatory.when_all([first, second], 1.5)
    first.set_result(1)
    assert repr(waiting) == "<DelayedFuture PENDING 1 of 2 pending timeout=1.5>"
    await clock.advance(2)
    assert repr(waiting) == "<DelayedFuture EXPIRED 0 of 2 pending timeout=1.5>"
    assert repr(purgatory.when_all([first], None)) == "<DelayedFuture COMPLETED 0 of 1 pending timeout=None>"


Ending = Callable[[Purgatory[Any], "DelayedFuture[Any]", "asyncio.Future[Any]"], object]


ENDINGS: dict[str, Ending] = {
    "cancel": lambda purgatory, waiting, first: waiting.cancel(),
    "cancel_for_key": lambda purgatory, waiting, first: purgatory.cancel_for_key(first),
    "fail_for_key": lambda purgatory, waiting, first: purgatory.fail_for_key(first, Boom()),
    "force_complete": lambda purgatory, waiting, first: waiting.force_complete(),
    "expiry": lambda purgatory, waiting, first: purgatory.timer.expire_due(purgatory.timer.clock.now_ms() + 5000),
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_every_ending_removes_the_callbacks(purgatory: Purgatory[Any], ending: str) -> None:
    """After every kind of ending, no pending future has a callback of the purgatory."""
    first, second = futures(2)
    waiting = purgatory.when_all([first, second, first], 5)
    assert [len(future._callbacks) for future in (first, second)] == [1, 1]  # type: ignore[attr-defined]
    ENDINGS[ending](purgatory, waiting, first)
    assert waiting.outcome is not Outcome.PENDING
    assert [future._callbacks for future in (first, second) if not future.done()] in ([], [None, None], [[], []])


async def test_closing_and_a_callback_that_raises_remove_them_too(clock: VirtualClock) -> None:
    """A task among the futures, pending for one more turn, keeps no callback of a failed operation."""

    def boom(_: object) -> None:
        raise Boom

    async def sleep() -> None:
        await clock.sleep(100)

    failing, answered = asyncio.ensure_future(sleep()), asyncio.ensure_future(sleep())
    async with Purgatory[Any]("test", clock=clock) as purgatory:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        failed = purgatory.when_all([failing], 5, boom)
        purgatory.timer.expire_due(clock.now_ms() + 5000)
        assert failed.outcome is Outcome.FAILED
        closed = purgatory.when_all([answered], 5)
    assert closed.outcome is Outcome.EXPIRED
    assert not failing._callbacks  # type: ignore[attr-defined]
    assert not answered._callbacks  # type: ignore[attr-defined]
    await asyncio.gather(failing, answered, return_exceptions=True)


@pytest.mark.slow
async def test_a_long_lived_future_accumulates_no_callbacks(purgatory: Purgatory[Any]) -> None:
    """Ten thousand operations on a future, in sequence and at the same time, leave its callbacks unchanged."""
    shutdown, ready = futures(2)
    shutdown.add_done_callback(purgatory.check_and_complete)
    before = list(shutdown._callbacks)  # type: ignore[attr-defined]
    for _ in range(10_000):
        purgatory.when_all([shutdown, ready], None).cancel()
    assert shutdown._callbacks == before  # type: ignore[attr-defined]
    waiting = [purgatory.when_all([shutdown], None) for _ in range(10_000)]
    assert len(shutdown._callbacks) == len(before) + 1  # type: ignore[attr-defined]
    for operation in waiting[1:]:
        operation.cancel()
    assert len(shutdown._callbacks) == len(before) + 1  # type: ignore[attr-defined]
    waiting[0].cancel()
    assert shutdown._callbacks == before  # type: ignore[attr-defined]
    assert not purgatory._done_callbacks._counts


async def test_the_others_on_a_future_are_still_answered(purgatory: Purgatory[Any]) -> None:
    """An operation that ends leaves the callback for other operations on the future; a later one adds a new
    callback.
    """
    (future,) = futures(1)
    left, stays = purgatory.when_all([future], None), purgatory.when_all([future], None)
    left.cancel()
    gone = purgatory.when_all([future], None)
    gone.cancel()
    late = purgatory.when_all([future], None)
    future.set_result("x")
    assert await stays == ["x"]
    assert await late == ["x"]
    assert not purgatory._done_callbacks._counts


async def test_a_future_that_others_wait_for_does_not_keep_the_callbacks_of_the_next(purgatory: Purgatory[Any]) -> None:
    """The callback of the first future stays for another operation, and that of the second future is removed."""
    shared, own = futures(2)
    stays = purgatory.when_all([shared], None)
    purgatory.when_all([shared, own], None).cancel()
    assert not own._callbacks  # type: ignore[attr-defined]
    assert list(purgatory._done_callbacks._counts.items()) == [(shared, 1)]
    stays.cancel()


async def test_one_that_ends_while_it_is_handed_over_leaves_none(clock: VirtualClock) -> None:
    """If an observer cancels the operation while it is parked, no callback is added."""

    class Withdraws(Observer):
        def parked(self, event: Event) -> None:
            event.operation.cancel()

    async with Purgatory[Any]("test", clock=clock, observers=[Withdraws()]) as purgatory:
        (future,) = futures(1)
        assert purgatory.when_all([future], 5).outcome is Outcome.CANCELLED
        assert not future._callbacks  # type: ignore[attr-defined]


async def test_a_callback_that_cannot_be_removed_is_reported(
    purgatory: Purgatory[Any], reported: list[dict[str, Any]]
) -> None:
    """A foreign callback whose comparison raises is reported and does not prevent an answer."""

    class Hostile:
        def __call__(self, _: object) -> None: ...

        def __eq__(self, other: object) -> bool:
            raise Boom

        __hash__ = None  # type: ignore[assignment]

    hostile, usual = futures(2)
    hostile.add_done_callback(Hostile())
    hostile.add_done_callback(Hostile())
    waiting = purgatory.when_all([hostile, usual], 5)
    answer = asyncio.ensure_future(_answer(waiting))
    await asyncio.sleep(0)
    assert waiting.cancel()
    assert await answer == "OperationCancelled"
    assert [type(context["exception"]) for context in reported] == [Boom]
    assert not usual._callbacks  # type: ignore[attr-defined]


async def _answer(waiting: "DelayedFuture[Any]") -> str:
    try:
        await waiting
    except Exception as error:
        return type(error).__name__
    return "answered"


@pytest.mark.usefixtures("no_gc")
async def test_a_delayed_future_can_be_weakly_referenced(purgatory: Purgatory[Any]) -> None:
    """The reference is cleared when the operation has ended and nothing else holds it."""
    (future,) = futures(1)
    operation = purgatory.when_all([future], 5)
    gone = weakref.ref(operation)
    assert gone() is operation
    future.set_result(1)
    assert await operation == [1]
    del operation
    assert gone() is None
