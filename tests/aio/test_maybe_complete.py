"""``maybe_complete``: a value answers the tasks whose threshold it reaches."""

import asyncio
import contextlib
from contextvars import ContextVar
from typing import Any

import pytest

from purgatory import Event, Observer, ThresholdPurgatory
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import Boom, wait_after, wait_in_tasks


async def test_those_whose_threshold_is_reached_are_answered_with_the_value(marks: ThresholdPurgatory) -> None:
    """A value at or above the threshold answers a task with that value; the other tasks continue to wait."""
    low, exact, high = await wait_in_tasks(marks, ("log", 5), ("log", 10), ("log", 11))
    assert marks.num_waiting == len(marks) == 3
    assert marks.maybe_complete("log", 10) == 2
    assert [await low, await exact] == [10, 10]
    assert marks.num_waiting == 1
    assert not high.done()
    assert marks.maybe_complete("log", 12.5) == 1
    assert await high == 12.5
    assert marks.statistics().keys == 0


async def test_each_key_has_its_own_value(marks: ThresholdPurgatory) -> None:
    """The value of one key does not affect the tasks on another key."""
    first, second = await wait_in_tasks(marks, ("a", 5), ("b", 5))
    assert marks.maybe_complete("a", 100) == 1
    assert await first == 100
    assert not second.done()
    second.cancel()


async def test_first_come_first_answered(marks: ThresholdPurgatory) -> None:
    """Tasks are answered in order of arrival, not in order of thresholds."""
    order: list[int] = []

    async def wait(threshold: int) -> None:
        await marks.wait("log", threshold, None)
        order.append(threshold)

    tasks = [asyncio.ensure_future(wait(threshold)) for threshold in (7, 3, 9, 1)]
    await asyncio.sleep(0)
    assert marks.maybe_complete("log", 9) == 4
    await asyncio.gather(*tasks)
    assert order == [7, 3, 9, 1]


async def test_a_lower_value_revokes_no_answer(marks: ThresholdPurgatory) -> None:
    """A lower value does not revoke an answer; a later task waits until the value rises again."""
    (first,) = await wait_in_tasks(marks, ("log", 5))
    marks.maybe_complete("log", 6)
    marks.maybe_complete("log", 2)
    assert await first == 6
    (second,) = await wait_in_tasks(marks, ("log", 5))
    assert marks.maybe_complete("log", 4) == 0
    assert not second.done()
    assert marks.maybe_complete("log", 5) == 1
    assert await second == 5


async def test_a_value_is_not_kept(marks: ThresholdPurgatory) -> None:
    """The purgatory stores nothing for a key without waiting tasks."""
    assert marks.maybe_complete("log", 100) == 0
    (task,) = await wait_in_tasks(marks, ("log", 5))
    assert not task.done()
    task.cancel()


@pytest.mark.parametrize(("key", "value"), [([], 5), ("log", "5"), ("log", float("nan")), ("log", None)])
async def test_bad_values_are_refused(marks: ThresholdPurgatory, key: Any, value: Any) -> None:
    """A bad value raises with and without waiting tasks, and the tasks continue to wait."""
    (task,) = await wait_in_tasks(marks, ("log", 5))
    with pytest.raises((TypeError, ValueError)):
        marks.maybe_complete(key, value)
    assert marks.num_waiting == 1
    assert marks.maybe_complete("log", 5) == 1
    assert await task == 5


async def test_values_given_by_an_observer_are_queued(clock: VirtualClock) -> None:
    """Values from an observer are applied in order, without nesting, and counted by the outermost call."""

    class Chain(Observer):
        def __init__(self) -> None:
            self.counts: list[int] = []

        def completed(self, event: Event) -> None:
            number = len(self.counts) + 1
            self.counts.append(purgatories[0].maybe_complete(number, number))

    chain = Chain()
    purgatories: list[ThresholdPurgatory] = []
    async with ThresholdPurgatory("marks", clock=clock, observers=[chain]) as marks:
        purgatories.append(marks)
        tasks = await wait_in_tasks(marks, *((number, number) for number in range(2000)))
        assert marks.maybe_complete(0, 0) == 2000
        assert await asyncio.gather(*tasks) == list(range(2000))
    assert set(chain.counts) == {0}


async def test_an_unhashable_key_is_refused_from_inside_an_observer(clock: VirtualClock) -> None:
    """An unhashable key raises at once, although the value would only be queued."""
    errors: list[TypeError] = []

    class Telling(Observer):
        def completed(self, event: Event) -> None:
            key: Any = []
            try:
                marks.maybe_complete(key, 1)
            except TypeError as error:
                errors.append(error)

    async with ThresholdPurgatory("p", clock=clock, observers=[Telling()]) as marks:
        tasks = await wait_in_tasks(marks, ("a", 1, 5))
        assert marks.maybe_complete("a", 1) == 1
        assert len(errors) == 1
        assert await tasks[0] == 1


class _Equal:
    """A key that equals others by its number, and whose comparison raises while ``broken`` is set."""

    broken = False

    def __init__(self, number: int) -> None:
        self._number = number

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        if _Equal.broken:
            raise Boom
        return isinstance(other, _Equal) and self._number == other._number


async def test_a_queued_call_that_raises_is_reported_and_the_others_run(
    clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """The outermost call, whose own key is in order, returns its count."""
    bad = _Equal(1)

    class Chain(Observer):
        def completed(self, event: Event) -> None:
            if event.keys == ("a",):
                _Equal.broken = True
                assert marks.maybe_complete(bad, 5) == 0
                assert marks.maybe_complete("b", 5) == 0

    async with ThresholdPurgatory("chain", clock=clock, observers=[Chain()]) as marks:
        tasks = await wait_in_tasks(marks, ("a", 5), ("b", 5), (_Equal(1), 5), (_Equal(2), 5))
        try:
            assert marks.maybe_complete("a", 5) == 2
        finally:
            _Equal.broken = False
        assert [await tasks[0], await tasks[1]] == [5, 5]
        assert [(type(context["exception"]), context["key"]) for context in reported] == [(Boom, bad)]
        assert marks.maybe_complete(bad, 6) == 1
        assert await tasks[2] == 6
        tasks[3].cancel()


@pytest.mark.parametrize("called", [False, True], ids=["the next turn", "the next call"])
async def test_calls_queued_before_an_interrupt_run_later(clock: VirtualClock, called: bool) -> None:
    """The interrupt propagates from the outermost call; no queued call is lost."""

    class Interrupting(Observer):
        def completed(self, event: Event) -> None:
            if event.keys == ("a",):
                assert marks.maybe_complete("b", 5) == 0
                raise KeyboardInterrupt

    async with ThresholdPurgatory("chain", clock=clock, observers=[Interrupting()]) as marks:
        tasks = await wait_in_tasks(marks, ("a", 5), ("b", 5))
        with pytest.raises(KeyboardInterrupt):
            marks.maybe_complete("a", 5)
        if called:
            assert marks.maybe_complete("c", 5) == 1
        assert await tasks[0] == 5
        assert await asyncio.wait_for(tasks[1], 1) == 5


class InterruptingOnce(Observer):
    """Interrupts the first ending of an operation on "a"."""

    armed = True

    def completed(self, event: Event) -> None:
        if self.armed and event.keys == ("a",):
            self.armed = False
            raise KeyboardInterrupt

    failed = completed


@pytest.mark.parametrize("queued", [False, True], ids=["its own call", "a queued call"])
@pytest.mark.parametrize("called", [False, True], ids=["the next turn", "the next call"])
async def test_the_waits_after_an_interrupted_one_are_completed_later(
    clock: VirtualClock, called: bool, queued: bool
) -> None:
    """No value is stored, so nothing else would complete the other waits that the value has reached."""

    class Calling(Observer):
        def completed(self, event: Event) -> None:
            if event.keys == ("first",):
                assert marks.maybe_complete("a", 5) == 0

    async with ThresholdPurgatory("marks", clock=clock, observers=[Calling(), InterruptingOnce()]) as marks:
        tasks = await wait_in_tasks(marks, ("a", 3), ("a", 4), ("a", 6), ("a", 5), ("first", 1))
        with pytest.raises(KeyboardInterrupt):
            marks.maybe_complete("first" if queued else "a", 5)
        assert marks.num_waiting == (3 if queued else 4)
        if called:
            assert marks.maybe_complete("b", 1) == 2
        else:
            await clock.settle()
        (newer,) = await wait_in_tasks(marks, ("a", 1))
        assert [task.done() and task.result() for task in tasks[:4]] == [5, 5, False, 5]
        assert not newer.done()  # it began after the interrupted call
        marks.complete_all()


async def test_a_wait_that_begins_before_the_next_turn_is_not_completed(clock: VirtualClock) -> None:
    """It has read a value below its threshold after the interrupted call, for example because of a truncation."""
    async with ThresholdPurgatory("marks", clock=clock, observers=[InterruptingOnce()]) as marks:
        tasks = await wait_in_tasks(marks, ("a", 3), ("a", 4))
        begin = asyncio.Event()
        newer = asyncio.create_task(wait_after(begin, marks.wait("a", 2, None)))
        await clock.settle()
        begin.set()
        with pytest.raises(KeyboardInterrupt):
            marks.maybe_complete("a", 5)
        await clock.settle()
        assert [task.done() and task.result() for task in tasks] == [5, 5]
        assert not newer.done()
        assert marks.complete_all() == 1
        assert await newer is None


def interrupt_the_next_reading(clock: VirtualClock) -> None:
    """Make the clock raise KeyboardInterrupt once, before the operation that reads it has ended."""

    def interrupt() -> int:
        del clock.now_ms
        raise KeyboardInterrupt

    clock.now_ms = interrupt  # type: ignore[method-assign]


async def test_a_clock_that_interrupts_leaves_its_wait_for_later(clock: VirtualClock) -> None:
    """The interrupt comes before the wait has ended, so this wait is completed later, too."""
    async with ThresholdPurgatory("marks", clock=clock) as marks:
        tasks = await wait_in_tasks(marks, ("a", 3), ("a", 4))

        interrupt_the_next_reading(clock)
        with pytest.raises(KeyboardInterrupt):
            marks.maybe_complete("a", 5)
        assert marks.num_waiting == 2
        await clock.settle()
        assert [task.done() and task.result() for task in tasks] == [5, 5]


async def test_an_error_after_an_interrupt_leaves_the_other_waits_for_later(clock: VirtualClock) -> None:
    """The turn that completes what an interrupt has left ends with an error of its own; no other wait is lost."""
    async with ThresholdPurgatory("marks", clock=clock) as marks:
        tasks = await wait_in_tasks(marks, ("a", 3), ("a", 4), ("a", 5))
        errors: list[BaseException] = [KeyboardInterrupt(), Boom()]

        def read() -> int:
            if not errors:
                del clock.now_ms
                return clock.now_ms()
            raise errors.pop(0)

        clock.now_ms = read  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            marks.maybe_complete("a", 5)
        with contextlib.suppress(Boom):
            marks.maybe_complete("b", 0)
        await clock.settle()
        assert sum(task.done() for task in tasks) == 2
        marks.complete_all()


async def test_an_error_of_the_last_wait_leaves_nothing_for_later(clock: VirtualClock) -> None:
    """The caller gets the error, and the wait continues until the next call."""
    async with ThresholdPurgatory("marks", clock=clock) as marks:
        (task,) = await wait_in_tasks(marks, ("a", 3))

        def read() -> int:
            del clock.now_ms
            raise Boom

        clock.now_ms = read  # type: ignore[method-assign]
        with pytest.raises(Boom):
            marks.maybe_complete("a", 5)
        await clock.settle()
        assert not task.done()
        assert marks.maybe_complete("a", 5) == 1
        assert await task == 5


async def test_the_next_call_counts_everything_that_interrupts_have_left(clock: VirtualClock) -> None:
    """Two interrupted calls leave a wait each, in order of arrival; the next call completes both and counts them."""
    order: list[object] = []

    class Interrupting(Observer):
        def completed(self, event: Event) -> None:
            order.append(event.keys[0])
            if event.keys[0] in {"a", "b"} and order.count(event.keys[0]) == 1:
                raise KeyboardInterrupt

    async with ThresholdPurgatory("marks", clock=clock, observers=[Interrupting()]) as marks:
        tasks = await wait_in_tasks(marks, ("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1))
        for key in ("a", "b"):
            with pytest.raises(KeyboardInterrupt):
                marks.maybe_complete(key, 5)
        assert marks.maybe_complete("c", 5) == 3
        assert order == ["a", "b", "c", "a", "b"]
        assert await asyncio.gather(*tasks) == [5] * 5


async def test_an_interrupted_wait_is_completed_before_the_later_ones(clock: VirtualClock) -> None:
    """Its own ending was interrupted, so the wait itself is kept, too, in its place."""
    async with ThresholdPurgatory("marks", clock=clock) as marks:
        order: list[int] = []

        async def wait(number: int) -> None:
            await marks.wait("a", number, None)
            order.append(number)

        tasks = [asyncio.ensure_future(wait(number)) for number in (1, 2, 3)]
        await clock.settle()

        interrupt_the_next_reading(clock)
        with pytest.raises(KeyboardInterrupt):
            marks.maybe_complete("a", 5)
        await asyncio.gather(*tasks)
        assert order == [1, 2, 3]


async def test_calls_during_the_postponed_work_are_queued_and_see_an_empty_context(clock: VirtualClock) -> None:
    """The work in the next turn belongs to no caller, and an observer's call does not run in the middle of it."""
    variable: ContextVar[str] = ContextVar("variable", default="none")
    seen: list[tuple[object, str]] = []

    class Calling(Observer):
        def completed(self, event: Event) -> None:
            seen.append((event.keys[0], variable.get()))
            if len(seen) == 1:
                raise KeyboardInterrupt
            if len(seen) == 2:
                assert marks.maybe_complete("b", 9) == 0

    async with ThresholdPurgatory("marks", clock=clock, observers=[Calling()]) as marks:
        tasks = await wait_in_tasks(marks, ("a", 1), ("a", 2), ("a", 3), ("b", 1))
        variable.set("the caller's")
        with pytest.raises(KeyboardInterrupt):
            marks.maybe_complete("a", 5)
        await asyncio.gather(*tasks)
        assert seen == [("a", "the caller's"), ("a", "none"), ("a", "none"), ("b", "none")]


def test_an_interrupt_while_no_loop_runs_propagates_unchanged(clock: ManualClock) -> None:
    """Without a running loop, there is no next turn; the next call does the rest."""
    marks = ThresholdPurgatory("marks", clock=clock, observers=[InterruptingOnce()])
    with asyncio.Runner() as runner:

        async def begin() -> list[asyncio.Task[Any]]:
            return await wait_in_tasks(marks, ("a", 1), ("a", 2))

        tasks = runner.run(begin())
        with pytest.raises(KeyboardInterrupt):
            marks.maybe_complete("a", 5)
        assert marks.maybe_complete("c", 1) == 1

        async def end() -> list[Any]:
            results = await asyncio.gather(*tasks)
            await marks.aclose()
            await marks._purgatory.timer.aclose()
            return results

        assert runner.run(end()) == [5, 5]
