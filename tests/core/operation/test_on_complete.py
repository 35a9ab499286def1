"""``on_complete``: it runs once, sees how its operation ends, and returns the result."""

import asyncio
from typing import Any

import pytest

from purgatory import DelayedOperation, Purgatory, PurgatoryError
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op


def test_without_an_override_the_result_is_none() -> None:
    """An operation that only waits for its condition need not override on_complete."""

    class Bare(DelayedOperation[None]):
        def try_complete(self) -> bool:
            return True

    op = Bare(1)
    assert op.force_complete()
    assert op.result() is None


def test_completing_sees_that_it_did_not_expire() -> None:
    """In ``on_complete`` of a completion, ``expired`` is False, and ``on_expiration`` is never called."""
    seen: list[bool] = []
    op = Op(1, on_complete=lambda op: seen.append(op.expired))
    op.force_complete()
    assert seen == [False]
    assert op.calls == ["complete"]


def test_completing_from_inside_on_complete_is_second() -> None:
    """If ``on_complete`` tries to end its own operation, the attempt has no effect."""
    tried: list[bool] = []
    op = Op(on_complete=lambda op: tried.extend([op.force_complete(), op.cancel(), op.extend(1)]))
    assert op.force_complete()
    assert tried == [False, False, False]
    assert op.completions == 1


@pytest.mark.parametrize("raises", [False, True])
async def test_a_task_that_awaits_during_on_complete_gets_the_result(clock: VirtualClock, raises: bool) -> None:
    """An eager task that ``on_complete`` starts awaits the operation before it has a result."""
    waiters: list[asyncio.Future[Any]] = []

    def look(op: Op) -> str:
        waiters.append(next(op.__await__()))
        with pytest.raises(PurgatoryError, match="no result yet"):
            op.result()
        if raises:
            raise Boom
        return "answer"

    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(10, on_complete=look)
        purgatory.try_complete_else_watch(op, ["key"])
        await clock.advance(10)
        (waiter,) = waiters
        if raises:
            assert isinstance(waiter.exception(), Boom)
        else:
            assert waiter.result() == op.result() == "answer"
