"""``ThresholdPurgatory``: tasks wait for a value to reach their threshold."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import Event, Observer, PurgatoryClosed, PurgatoryFull, SystemTimer, ThresholdPurgatory
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Recorder, wait_in_tasks


async def test_it_is_true_although_no_task_waits(marks: ThresholdPurgatory) -> None:
    """Code such as ``given or ThresholdPurgatory(...)`` uses the purgatory that it was given."""
    assert len(marks) == 0
    assert marks


async def test_a_wait_that_times_out_raises(marks: ThresholdPurgatory, clock: VirtualClock) -> None:
    """At the deadline, ``wait`` raises TimeoutError with the key and the threshold in the message."""
    (task,) = await wait_in_tasks(marks, ("log", 1500, 0.5))
    await clock.advance(0.499)
    assert not task.done()
    await clock.advance(0.001)
    with pytest.raises(TimeoutError, match=r"'log' did not reach 1500 in time \(timeout 0\.5 s\)"):
        await task
    assert marks.num_waiting == 0
    assert marks.statistics().expired == 1


async def test_an_observer_gives_a_wait_its_deadline(clock: VirtualClock) -> None:
    """The wait has no timeout of its own that the message could name."""

    class Limiter(Observer):
        def parked(self, event: Event) -> None:
            assert event.operation is not None
            event.operation.extend(0.5)

    async with ThresholdPurgatory("marks", clock=clock, observers=[Limiter()]) as marks:
        (task,) = await wait_in_tasks(marks, ("log", 5))
        await clock.advance(0.5)
        with pytest.raises(TimeoutError, match=r"^'log' did not reach 5 in time$"):
            await task


async def test_a_cancelled_task_waits_no_longer(marks: ThresholdPurgatory) -> None:
    """Cancelling a task withdraws its operation at once."""
    first, second = await wait_in_tasks(marks, ("log", 5, 10), ("log", 5, 10))
    first.cancel()
    await asyncio.sleep(0)
    assert marks.num_waiting == 1
    assert marks.maybe_complete("log", 5) == 1
    assert await second == 5
    assert first.cancelled()


async def test_closing_a_shared_timer_answers_the_tasks_with_a_deadline(clock: VirtualClock) -> None:
    """The error does not say that the time was up."""
    timer = SystemTimer(clock=clock)
    marks = ThresholdPurgatory("marks", timer=timer)
    (task,) = await wait_in_tasks(marks, ("log", 5, 30))
    await timer.aclose()
    with pytest.raises(TimeoutError, match=r"^'log' did not reach 5 before the timer closed$"):
        await task
    await marks.aclose()


async def test_closing_answers_every_task(clock: VirtualClock) -> None:
    """Waiting tasks get TimeoutError; later calls raise PurgatoryClosed."""
    async with ThresholdPurgatory("marks", clock=clock) as marks:
        (task,) = await wait_in_tasks(marks, ("log", 5))
    with pytest.raises(TimeoutError, match=r" did not reach .* before the purgatory closed$"):
        await task
    with pytest.raises(PurgatoryClosed):
        await marks.wait("log", 5, 1)
    await marks.aclose()


async def test_tasks_are_answered_within_the_grace(clock: VirtualClock) -> None:
    """A task whose threshold is reached within the grace period receives the value."""
    marks = ThresholdPurgatory("marks", clock=clock)
    early, late = await wait_in_tasks(marks, ("log", 5), ("log", 50))
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
        await wait_in_tasks(marks, ("log", 5))
        with pytest.raises(PurgatoryFull, match="max_parked_per_key=1"):
            await marks.wait("log", 6, 1)
        await wait_in_tasks(marks, ("other", 5))
        marks.complete_all()


async def test_a_timer_can_be_shared(clock: VirtualClock) -> None:
    """Closing the purgatory leaves a shared timer open."""
    async with SystemTimer(clock=clock) as timer:
        async with ThresholdPurgatory("marks", timer=timer) as marks:
            (task,) = await wait_in_tasks(marks, ("log", 5, 1))
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


async def test_repr_and_dump_show_the_waits(marks: ThresholdPurgatory) -> None:
    """The ``repr`` counts the waits, and the dump lists their keys and thresholds."""
    assert repr(marks) == "<ThresholdPurgatory 'high watermark' open num_waiting=0 keys=0>"
    await wait_in_tasks(marks, ("orders-0", 1_000_000, 5), ("orders-1", 7.5))
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
                        tasks += await wait_in_tasks(marks, (key, threshold, timeout))
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


async def test_a_dump_is_limited(marks: ThresholdPurgatory) -> None:
    """The dump uses the limit of the purgatory's dump."""
    await wait_in_tasks(marks, *[("a", number, 5) for number in range(1, 6)])
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
    (task,) = await wait_in_tasks(marks, ("log", 5, 10))
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match=r"loop\.call_soon_threadsafe\(\)"):
        pool.submit(calls[call]).result()
    assert marks.complete_all() == 1
    assert await task is None
