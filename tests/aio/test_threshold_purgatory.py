"""``ThresholdPurgatory``: tasks wait for a value to reach their threshold."""

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import Event, Observer, PurgatoryClosed, PurgatoryFull, SystemTimer, ThresholdPurgatory
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Recorder


@pytest.fixture
async def marks(clock: VirtualClock) -> AsyncIterator[ThresholdPurgatory]:
    """Return an open purgatory in virtual time."""
    async with ThresholdPurgatory("high watermark", clock=clock) as marks:
        yield marks
        marks.purgatory._check()


async def waiting(marks: ThresholdPurgatory, *waits: tuple[Any, ...]) -> list["asyncio.Task[Any]"]:
    """Return tasks in ``wait``, each with (key, threshold) or (key, threshold, timeout)."""
    tasks = [asyncio.ensure_future(marks.wait(key, *rest, *[None] * (2 - len(rest)))) for key, *rest in waits]
    await asyncio.sleep(0)
    return tasks


async def test_those_whose_threshold_is_reached_are_answered_with_the_value(marks: ThresholdPurgatory) -> None:
    """A value at or above the threshold answers a task with that value; the other tasks continue to wait."""
    low, exact, high = await waiting(marks, ("log", 5), ("log", 10), ("log", 11))
    assert marks.num_waiting == len(marks) == 3
    assert marks.maybe_complete("log", 10) == 2
    assert [await low, await exact] == [10, 10]
    assert marks.num_waiting == 1
    assert not high.done()
    assert marks.maybe_complete("log", 12.5) == 1
    assert await high == 12.5
    assert marks.statistics().keys == 0


async def test_it_is_true_although_no_task_waits(marks: ThresholdPurgatory) -> None:
    """Code such as ``given or ThresholdPurgatory(...)`` uses the purgatory that it was given."""
    assert len(marks) == 0
    assert marks


async def test_each_key_has_its_own_value(marks: ThresholdPurgatory) -> None:
    """The value of one key does not affect the tasks on another key."""
    first, second = await waiting(marks, ("a", 5), ("b", 5))
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
    (first,) = await waiting(marks, ("log", 5))
    marks.maybe_complete("log", 6)
    marks.maybe_complete("log", 2)
    assert await first == 6
    (second,) = await waiting(marks, ("log", 5))
    assert marks.maybe_complete("log", 4) == 0
    assert not second.done()
    assert marks.maybe_complete("log", 5) == 1
    assert await second == 5


async def test_a_value_is_not_kept(marks: ThresholdPurgatory) -> None:
    """The purgatory stores nothing for a key without waiting tasks."""
    assert marks.maybe_complete("log", 100) == 0
    (task,) = await waiting(marks, ("log", 5))
    assert not task.done()
    task.cancel()


async def test_a_wait_that_times_out_raises(marks: ThresholdPurgatory, clock: VirtualClock) -> None:
    """At the deadline, ``wait`` raises TimeoutError with the key and the threshold in the message."""
    (task,) = await waiting(marks, ("log", 1500, 0.5))
    await clock.advance(0.499)
    assert not task.done()
    await clock.advance(0.001)
    with pytest.raises(TimeoutError, match=r"'log' did not reach 1500 in time \(0\.5 s\)"):
        await task
    assert marks.num_waiting == 0
    assert marks.statistics().expired == 1


async def test_complete_all_answers_every_task(marks: ThresholdPurgatory) -> None:
    """Tasks on every key, whatever their threshold, receive None."""
    tasks = await waiting(marks, ("a", 1), ("b", 10**12), ("b", float("inf")))
    assert marks.complete_all() == 3
    assert await asyncio.gather(*tasks) == [None, None, None]
    assert marks.complete_all() == 0


async def test_fail_all_fails_every_task(marks: ThresholdPurgatory) -> None:
    """Tasks on every key raise the given exception."""
    tasks = await waiting(marks, ("a", 1), ("b", 10**12))
    error = Boom("not the leader any more")
    assert marks.fail_all(error) == 2
    assert await asyncio.gather(*tasks, return_exceptions=True) == [error, error]
    assert marks.statistics().failed == 2
    with pytest.raises(TypeError, match="instance"):
        marks.fail_all(Boom)  # type: ignore[arg-type]


async def test_fail_all_withdraws_operations_of_cancelled_tasks(marks: ThresholdPurgatory) -> None:
    """As in ``fail_for_key``, an operation whose task is cancelled in the same turn is withdrawn and not counted."""
    gone, stays = await waiting(marks, ("a", 1), ("b", 1))
    gone.cancel()
    error = Boom("not the leader any more")
    assert marks.fail_all(error) == 1
    statistics = marks.statistics()
    assert (statistics.failed, statistics.cancelled) == (1, 1)
    answers = await asyncio.gather(gone, stays, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1] is error


async def test_a_cancelled_task_waits_no_longer(marks: ThresholdPurgatory) -> None:
    """Cancelling a task withdraws its operation at once."""
    first, second = await waiting(marks, ("log", 5, 10), ("log", 5, 10))
    first.cancel()
    await asyncio.sleep(0)
    assert marks.num_waiting == 1
    assert marks.maybe_complete("log", 5) == 1
    assert await second == 5
    assert first.cancelled()


async def test_closing_answers_every_task(clock: VirtualClock) -> None:
    """Waiting tasks get TimeoutError; later calls raise PurgatoryClosed."""
    async with ThresholdPurgatory("marks", clock=clock) as marks:
        (task,) = await waiting(marks, ("log", 5))
    with pytest.raises(TimeoutError, match=r" did not reach .* before the purgatory closed$"):
        await task
    with pytest.raises(PurgatoryClosed):
        await marks.wait("log", 5, 1)
    await marks.aclose()


async def test_tasks_are_answered_within_the_grace(clock: VirtualClock) -> None:
    """A task whose threshold is reached within the grace period receives the value."""
    marks = ThresholdPurgatory("marks", clock=clock)
    early, late = await waiting(marks, ("log", 5), ("log", 50))
    closing = asyncio.ensure_future(marks.aclose(grace=2))
    await clock.advance(1)
    assert marks.maybe_complete("log", 5) == 1
    await clock.advance(1)
    await closing
    assert await early == 5
    with pytest.raises(TimeoutError):
        await late


async def test_limits_hold(clock: VirtualClock) -> None:
    """The limits apply as for every purgatory."""
    async with ThresholdPurgatory("marks", clock=clock, max_parked_per_key=1) as marks:
        await waiting(marks, ("log", 5))
        with pytest.raises(PurgatoryFull, match="max_parked_per_key=1"):
            await marks.wait("log", 6, 1)
        await waiting(marks, ("other", 5))
        marks.complete_all()


async def test_a_timer_can_be_shared(clock: VirtualClock) -> None:
    """Closing the purgatory leaves a shared timer open."""
    async with SystemTimer(clock=clock) as timer:
        async with ThresholdPurgatory("marks", timer=timer) as marks:
            (task,) = await waiting(marks, ("log", 5, 1))
            await clock.advance(1)
            assert isinstance(task.exception(), TimeoutError)
        assert not timer.closed


@pytest.mark.parametrize(
    ("key", "threshold", "timeout", "error"),
    [
        ([], 5, 1, TypeError),
        ("log", "5", 1, TypeError),
        ("log", float("nan"), 1, ValueError),
        ("log", 5, -1, ValueError),
        ("log", 5, "1", TypeError),
    ],
)
async def test_bad_waits_are_refused(
    marks: ThresholdPurgatory, key: Any, threshold: Any, timeout: Any, error: type[Exception]
) -> None:
    """The call raises at once, and no operation is parked."""
    with pytest.raises(error):
        await marks.wait(key, threshold, timeout)
    assert marks.num_waiting == 0


@pytest.mark.parametrize(("key", "value"), [([], 5), ("log", "5"), ("log", float("nan")), ("log", None)])
async def test_bad_values_are_refused(marks: ThresholdPurgatory, key: Any, value: Any) -> None:
    """A bad value raises with and without waiting tasks, and the tasks continue to wait."""
    (task,) = await waiting(marks, ("log", 5))
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
        tasks = await waiting(marks, *((number, number) for number in range(2000)))
        assert marks.maybe_complete(0, 0) == 2000
        assert await asyncio.gather(*tasks) == list(range(2000))
    assert set(chain.counts) == {0}


async def test_repr_and_dump_show_the_waits(marks: ThresholdPurgatory) -> None:
    """The ``repr`` counts the waits, and the dump lists their keys and thresholds."""
    assert repr(marks) == "<ThresholdPurgatory 'high watermark' open num_waiting=0 keys=0>"
    await waiting(marks, ("orders-0", 1_000_000, 5), ("orders-1", 7.5))
    assert repr(marks) == "<ThresholdPurgatory 'high watermark' open num_waiting=2 keys=2>"
    dump = marks.dump()
    assert [operation["keys"] for operation in dump["operations"]] == [
        [{"key": "orders-0", "threshold": 1_000_000}],
        [{"key": "orders-1", "threshold": 7.5}],
    ]
    assert "orders-0 >= 1000000" in str(dump)
    json.dumps(dump)
    marks.complete_all()


STEP = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from("ab"), st.integers(0, 20), st.none() | st.integers(0, 20)),
    st.tuples(st.just("value"), st.sampled_from("ab"), st.integers(0, 20)),
    st.tuples(st.just("pass"), st.integers(0, 10)),
    st.tuples(st.just("all")),
)


@given(st.lists(STEP, max_size=40))
def test_it_agrees_with_a_linear_search(steps: list[tuple[Any, ...]]) -> None:
    """In any schedule, each task gets the same answer as in a simple model that searches a list."""

    async def run() -> None:
        clock = VirtualClock()
        async with ThresholdPurgatory("marks", clock=clock) as marks:
            tasks: list[asyncio.Task[Any]] = []
            model: list[tuple[int, str, int, float]] = []  # (number, key, threshold, deadline) of the waiting tasks
            answers: dict[int, Any] = {}
            for step in steps:
                match step:
                    case ("wait", key, threshold, timeout):
                        deadline = float("inf") if timeout is None else clock.time() + timeout
                        model.append((len(tasks), key, threshold, deadline))
                        tasks += await waiting(marks, (key, threshold, timeout))
                    case ("value", key, value):
                        reached = [entry for entry in model if entry[1] == key and entry[2] <= value]
                        assert marks.maybe_complete(key, value) == len(reached)
                        answers |= dict.fromkeys((entry[0] for entry in reached), value)
                    case ("pass", seconds):
                        await clock.advance(seconds)
                    case ("all",):
                        assert marks.complete_all() == len(model)
                        answers |= dict.fromkeys((entry[0] for entry in model), None)
                await clock.settle()
                late = (entry[0] for entry in model if entry[3] <= clock.time() and entry[0] not in answers)
                answers |= dict.fromkeys(late, TimeoutError)
                model = [entry for entry in model if entry[0] not in answers]
                assert marks.num_waiting == len(model)
                marks.purgatory._check()
            marks.complete_all()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(one) if isinstance(one, Exception) else one for one in found] == [
                answers.get(number) for number in range(len(tasks))
            ]

    asyncio.run(run())


def test_every_parameter_reaches_the_purgatory(clock: VirtualClock) -> None:
    """Name, clock, tick, wheel and limits are passed on."""
    recorder = Recorder()
    marks = ThresholdPurgatory(
        "p", clock=clock, tick_ms=7, wheel_size=9, max_parked=3, max_parked_per_key=2, observers=[recorder]
    )
    beneath = marks.purgatory
    assert (beneath.name, beneath.timer.clock) == ("p", clock)
    assert (beneath.timer.wheel.tick_ms, beneath.timer.wheel.wheel_size) == (7, 9)
    assert (beneath._core._max_parked, beneath._core._max_parked_per_key) == (3, 2)
    assert beneath._core._notifier.active


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
        tasks = await waiting(marks, ("a", 1, 5))
        assert marks.maybe_complete("a", 1) == 1
        assert len(errors) == 1
        assert await tasks[0] == 1


async def test_a_dump_is_limited(marks: ThresholdPurgatory) -> None:
    """The dump uses the limit of the purgatory's dump."""
    await waiting(marks, *[("a", number, 5) for number in range(1, 6)])
    assert len(marks.dump(2)["operations"]) == 2
    assert len(marks.dump()["operations"]) == 5
    marks.complete_all()


@pytest.mark.parametrize("call", ["maybe_complete", "a key without waits", "complete_all", "fail_all"])
async def test_a_call_in_another_thread_is_refused_and_changes_nothing(marks: ThresholdPurgatory, call: str) -> None:
    """RuntimeError, also where no task waits, because the loop would not be woken; the tasks still wait."""
    calls = {
        "maybe_complete": lambda: marks.maybe_complete("log", 7),
        "a key without waits": lambda: marks.maybe_complete("other", 7),
        "complete_all": marks.complete_all,
        "fail_all": lambda: marks.fail_all(Boom()),
    }
    (task,) = await waiting(marks, ("log", 5, 10))
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match=r"loop\.call_soon_threadsafe\(\)"):
        pool.submit(calls[call]).result()
    assert marks.complete_all() == 1
    assert await task is None


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
        tasks = await waiting(marks, ("a", 5), ("b", 5), (_Equal(1), 5), (_Equal(2), 5))
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
        tasks = await waiting(marks, ("a", 5), ("b", 5))
        with pytest.raises(KeyboardInterrupt):
            marks.maybe_complete("a", 5)
        if called:
            assert marks.maybe_complete("c", 5) == 1
        assert await tasks[0] == 5
        assert await asyncio.wait_for(tasks[1], 1) == 5
