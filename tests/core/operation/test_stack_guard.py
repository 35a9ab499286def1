"""Nested endings down to the interpreter's recursion limit are refused or carried through, never half done."""

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import DelayedOperation, Event, Observer, Outcome, Purgatory, ThresholdPurgatory
from purgatory.core.operation.stack_guard import ensure_stack
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, park
from tests.sansio import QuietPurgatory


class _Link(DelayedOperation[int]):
    """An operation that ends the next one of its chain in its callback."""

    __slots__ = ("extra", "next", "number")

    def __init__(self, number: int, extra: int) -> None:
        super().__init__(30.0)
        self.number = number
        self.extra = extra
        self.next: _Link | None = None

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> int:
        if self.next is not None:
            self._deeper(self.extra)
        return self.number

    def _deeper(self, frames: int) -> None:
        if frames:
            self._deeper(frames - 1)
        else:
            assert self.next is not None
            self.next.force_complete()


@pytest.mark.parametrize("extra", [0, 1, 2, 3, 5, 8, 13, 21, 34])
async def test_a_chain_of_endings_deeper_than_the_stack_leaves_no_operation_half_ended(
    clock: VirtualClock, extra: int
) -> None:
    """At the limit, an ended operation is off every list and answered, and every other operation is still parked."""
    length = sys.getrecursionlimit()
    async with Purgatory[Any]("deep", clock=clock) as purgatory:
        links = [_Link(number, extra) for number in range(length)]
        for link, following in itertools.pairwise(links):
            link.next = following
        for link in links:
            purgatory.try_complete_else_watch(link, [link.number, "all"])
        waiters = [asyncio.create_task(_answer(link)) for link in links]
        await clock.settle()
        with pytest.raises(RecursionError):
            links[0].force_complete()
        purgatory._check()
        ended = [link.number for link in links if link.outcome is not Outcome.PENDING]
        assert ended == list(range(len(ended)))
        assert 8 <= len(ended) == length - len(purgatory) < length
        for link in links:
            link.next = None
    answers = await asyncio.gather(*waiters)
    assert answers == ["too deep"] * len(ended) + list(range(len(ended), length))


async def test_functions_that_fail_the_next_key_leave_no_operation_half_ended(clock: VirtualClock) -> None:
    """A function that makes the exception for an operation may end others, as a callback may."""
    length = sys.getrecursionlimit()
    async with Purgatory[Any]("deep", clock=clock) as purgatory:
        links = [_Link(number, 0) for number in range(length)]
        waiters = [asyncio.create_task(purgatory.park(link, key=link.number)) for link in links]
        await clock.settle()

        def failing(number: int) -> Callable[[], Exception]:
            def error() -> Exception:
                purgatory.fail_for_key(number + 1, failing(number + 1))
                return Boom(number)

            return error

        assert purgatory.fail_for_key(0, failing(0)) == 1
        purgatory._check()
        ended = [link.number for link in links if link.outcome is not Outcome.PENDING]
        assert ended == list(range(len(ended)))
        assert 8 <= len(ended) == length - len(purgatory) < length
        await clock.advance(30)
    answers = await asyncio.gather(*waiters, return_exceptions=True)
    assert [type(answer) for answer in answers[: len(ended)]] == [Boom] * (len(ended) - 1) + [RecursionError]
    assert answers[len(ended) :] == list(range(len(ended), length))


async def _answer(link: _Link) -> Any:
    try:
        return await link
    except RecursionError:
        return "too deep"


class _Nest(DelayedOperation[None]):
    """An operation that completes at once and submits another one in its callback."""

    __slots__ = ("extra", "purgatory")

    def __init__(self, purgatory: Purgatory[Any], extra: int) -> None:
        super().__init__(30.0)
        self.purgatory = purgatory
        self.extra = extra

    def try_complete(self) -> bool:
        return True

    def on_complete(self) -> None:
        self._deeper(self.extra)

    def _deeper(self, frames: int) -> None:
        if frames:
            self._deeper(frames - 1)
        else:
            self.purgatory.try_complete_else_watch(_Nest(self.purgatory, self.extra), ["key"])


@pytest.mark.parametrize("extra", [0, 1, 2, 3, 5, 8, 13, 21, 34])
async def test_operations_handed_over_in_each_others_callbacks_down_to_the_limit_are_all_counted(
    clock: VirtualClock, extra: int
) -> None:
    """The counters balance, and the purgatory continues to work."""
    async with Purgatory[Any]("deep", clock=clock) as purgatory:
        with pytest.raises(RecursionError):
            purgatory.try_complete_else_watch(_Nest(purgatory, extra), ["key"])
        purgatory._check()
        statistics = purgatory.statistics()
        assert statistics.parked == 0
        assert statistics.failed == statistics.submitted > 8
        following = _Link(0, 0)
        purgatory.try_complete_else_watch(following, ["key"])
        assert following.force_complete()


def _near_the_limit(call: Callable[[], object]) -> None:
    """Make the call where about 60 frames are left."""
    try:
        ensure_stack(60)
    except RecursionError:
        call()
    else:
        _near_the_limit(call)


@pytest.mark.parametrize("nested", [7, 8])
def test_from_the_eighth_on_a_nested_submission_needs_room_on_the_stack(room: QuietPurgatory, nested: int) -> None:
    """With too little room it changes nothing; the first ones are not checked."""
    innermost = Op()

    def submit(left: int) -> None:
        if left:
            park(room, "key", on_try=lambda _: submit(left - 1))
        else:
            _near_the_limit(lambda: room.try_complete_else_watch(innermost, ["key"]))

    if nested < 8:
        submit(nested)
        assert innermost.keys == ("key",)
    else:
        with pytest.raises(RecursionError):
            submit(nested)
        assert (innermost.outcome, innermost.calls) == (Outcome.PENDING, [])
    room._check()


class _Following(Observer):
    """An observer that withdraws the next operation of a chain when one is withdrawn."""

    def cancelled(self, event: Event) -> None:
        following = event.operation.next
        if following is not None:
            following.cancel()


async def test_a_chain_of_withdrawals_by_an_observer_uses_constant_stack(clock: VirtualClock) -> None:
    """Events that an observer causes are sent after the current one, so a chain may have any length."""
    length = 3 * sys.getrecursionlimit()
    async with Purgatory[Any]("deep", clock=clock, observers=[_Following()]) as purgatory:
        links = [_Link(number, 0) for number in range(length)]
        for link, following in itertools.pairwise(links):
            link.next = following
        for link in links:
            purgatory.try_complete_else_watch(link, [link.number, "all"])
        assert links[0].cancel()
        purgatory._check()
        assert all(link.outcome is Outcome.CANCELLED for link in links)
        assert len(purgatory) == 0


class _Asking(DelayedOperation[None]):
    """An operation that submits another one of its kind whenever it is tried."""

    __slots__ = ("purgatory",)

    def __init__(self, purgatory: Purgatory[Any]) -> None:
        super().__init__(30.0)
        self.purgatory = purgatory

    def try_complete(self) -> bool:
        self.purgatory.try_complete_else_watch(_Asking(self.purgatory), ["key"])
        return False


@pytest.mark.parametrize("extra", range(10))
async def test_operations_handed_over_in_each_others_tries_down_to_the_limit_are_all_counted(
    clock: VirtualClock, extra: int
) -> None:
    """A refused operation was never parked; the operations that were being tried fail."""
    async with Purgatory[Any]("deep", clock=clock) as purgatory:
        with pytest.raises(RecursionError):
            _frames_down(extra, lambda: purgatory.try_complete_else_watch(_Asking(purgatory), ["key"]))
        purgatory._check()
        statistics = purgatory.statistics()
        assert statistics.parked == 0
        assert statistics.failed == statistics.submitted > 8


def _frames_down(frames: int, call: Callable[[], Any]) -> Any:
    return _frames_down(frames - 1, call) if frames else call()


class _Digging(DelayedOperation[None]):
    """An operation whose callback nests down to the stack limit and withdraws another operation at each level."""

    __slots__ = ("level", "purgatory", "victims")

    def __init__(self, purgatory: Purgatory[Any], victims: list[_Link], level: int) -> None:
        super().__init__(30.0)
        self.purgatory = purgatory
        self.victims = victims
        self.level = level

    def try_complete(self) -> bool:
        return True

    def on_complete(self) -> None:
        if self.level:  # nested endings: from the eighth on, the remaining stack is checked
            self.purgatory.try_complete_else_watch(_Digging(self.purgatory, self.victims, self.level - 1), ["key"])
        else:
            with pytest.raises(RecursionError):
                self._dig()

    def _dig(self) -> None:
        self.victims.pop().cancel()
        self._dig()


@pytest.mark.parametrize("extra", range(8))
async def test_a_withdrawal_at_the_limit_of_the_stack_is_refused_or_carried_through(
    clock: VirtualClock, extra: int
) -> None:
    """At any depth, each operation is either completely withdrawn or waits as before."""
    async with Purgatory[Any]("deep", clock=clock) as purgatory:
        links = [_Link(number, 0) for number in range(sys.getrecursionlimit())]
        for link in links:
            purgatory.try_complete_else_watch(link, [link.number, "all"])
        _frames_down(
            extra, lambda: purgatory.try_complete_else_watch(_Digging(purgatory, list(links), level=12), ["key"])
        )
        purgatory._check()
        withdrawn = [link for link in links if link.outcome is Outcome.CANCELLED]
        assert len(purgatory) == len(links) - len(withdrawn)
        assert 0 < len(withdrawn) < len(links)


async def test_a_cancellation_at_any_depth_is_refused_or_carried_through(clock: VirtualClock) -> None:
    """Inside nested endings, ``cancel()`` near the recursion limit raises before anything has changed."""
    limit = sys.getrecursionlimit()
    refused: list[int] = []

    def cancel_at(depth: int, victim: _Link) -> None:
        if depth:
            cancel_at(depth - 1, victim)
        else:
            victim.cancel()

    class Last(_Link):
        __slots__ = ()

        def on_complete(self) -> int:
            for victim in victims:
                try:
                    cancel_at(victim.number, victim)
                except RecursionError:
                    refused.append(victim.number)
            return self.number

    async with Purgatory[Any]("deep", clock=clock) as purgatory:
        victims = [_Link(number, 0) for number in range(limit)]
        links = [*[_Link(number, 0) for number in range(12)], Last(12, 0)]
        for link, following in itertools.pairwise(links):
            link.next = following
        for link in (*victims, *links):
            purgatory.try_complete_else_watch(link, ["all"])
        assert links[0].force_complete()
        purgatory._check()
        pending = [victim.number for victim in victims if victim.outcome is Outcome.PENDING]
        assert pending == refused
        assert 0 < len(refused) < limit
        assert len(purgatory) == len(pending)


def _down_to(left: int, call: Callable[[], Any]) -> Any:
    """Call the function where this many more calls fit under the recursion limit."""
    depth = 0
    frame = sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
    return _frames_down(sys.getrecursionlimit() - depth - left, call)


async def test_a_wait_whose_task_was_cancelled_is_withdrawn_even_with_little_stack_left(clock: VirtualClock) -> None:
    """Neither withdrawing an operation nor making it fail calls user code, so neither needs the stack of a callback."""
    ended: list[int] = []

    def fail_all() -> None:
        ended.append(room.fail_all(Boom()))

    def nested(level: int) -> Callable[[], Exception]:
        def error() -> Exception:
            if level:  # nested endings: from the eighth on, the remaining stack is checked before a callback
                room.fail_all(nested(level - 1))
            else:
                second.cancel()
                _down_to(60, fail_all)
            return Boom()

        return error

    async with ThresholdPurgatory("deep", clock=clock) as room:
        first, second = (asyncio.ensure_future(room.wait("a", 5, 10.0)) for _ in range(2))
        await clock.settle()
        room.fail_all(nested(10))
        assert ended == [1]  # the first; the second is withdrawn
        assert room.num_waiting == 0
        with pytest.raises(Boom):
            await first
        with pytest.raises(asyncio.CancelledError):
            await second


@pytest.mark.parametrize(("nested", "outcome"), [(7, Outcome.COMPLETED), (8, Outcome.PENDING)])
async def test_the_stack_is_checked_from_the_eighth_nested_ending_on(
    clock: VirtualClock, nested: int, outcome: Outcome
) -> None:
    """Fewer need no check, which costs time; with more, an ending that may not fit is refused before it begins."""

    class Last(_Link):
        __slots__ = ()

        def on_complete(self) -> int:
            with contextlib.suppress(RecursionError):
                _down_to(60, victim.force_complete)
            return self.number

    async with Purgatory[Any]("deep", clock=clock) as purgatory:
        victim = _Link(nested, 0)
        links = [*[_Link(number, 0) for number in range(nested - 1)], Last(nested - 1, 0)]
        for link, following in itertools.pairwise(links):
            link.next = following
        for link in (victim, *links):
            purgatory.try_complete_else_watch(link, ["all"])
        assert links[0].force_complete()
        assert all(link.outcome is Outcome.COMPLETED for link in links)
        assert victim.outcome is outcome
        purgatory._check()
