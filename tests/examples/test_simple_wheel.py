"""The wheel for teaching: rounds, cancellation, and two ways to stop."""

import random
from pathlib import Path

import pytest

import examples
from examples.simple_wheel import SimpleWheel, compare


def run(wheel: SimpleWheel, ticks: int) -> int:
    """Move the hand.  Return the number of tasks that ran."""
    return sum(wheel.tick() for _ in range(ticks))


@pytest.mark.parametrize("delay_ms", [1, 19, 20, 21, 40, 41, 399, 400, 1_000])
def test_a_task_runs_at_its_tick(delay_ms: int) -> None:
    """For any number of rounds, a task runs exactly at its tick."""
    wheel = SimpleWheel()
    run(wheel, 7)
    fired: list[int] = []
    wheel.add(delay_ms, lambda: fired.append(wheel.ticks))
    run(wheel, delay_ms - 1)
    assert fired == []
    assert run(wheel, 1) == 1
    assert fired == [7 + delay_ms]


def test_a_delay_is_rounded_up_to_a_tick() -> None:
    """With a tick of 20 ms, a task of 25 ms runs at the second tick, and a task of 0 ms at the first."""
    wheel = SimpleWheel(tick_ms=20)
    fired: list[str] = []
    wheel.add(25, lambda: fired.append("25"))
    wheel.add(0, lambda: fired.append("0"))
    run(wheel, 1)
    assert fired == ["0"]
    run(wheel, 1)
    assert fired == ["0", "25"]


def test_a_cancelled_task_does_not_run() -> None:
    """Cancelling works once, also from a callback in the same slot."""
    wheel = SimpleWheel()
    fired: list[str] = []
    tasks: list[int] = []
    wheel.add(3, lambda: wheel.cancel(tasks[0]) and fired.append("first"))
    tasks.append(wheel.add(3, lambda: fired.append("second")))
    other = wheel.add(50, lambda: fired.append("other"))
    assert wheel.cancel(other)
    assert not wheel.cancel(other)
    run(wheel, 100)
    assert fired == ["first"]
    assert len(wheel) == 0


def test_stop_drops_what_waits() -> None:
    """``stop`` drops the waiting tasks, and the wheel accepts no new ones."""
    wheel = SimpleWheel()
    wheel.add(5, lambda: pytest.fail("it was stopped"))
    assert wheel.stop() == 1
    assert wheel.stopped
    assert run(wheel, 20) == 0
    with pytest.raises(RuntimeError, match="accepts no new tasks"):
        wheel.add(1, lambda: None)


def test_drain_runs_what_waits() -> None:
    """``drain`` runs the waiting tasks, and then stops the wheel."""
    wheel = SimpleWheel()
    fired: list[int] = []
    for delay_ms in (5, 500):
        wheel.add(delay_ms, lambda at=delay_ms: fired.append(at))  # type: ignore[misc]
    wheel.drain()
    with pytest.raises(RuntimeError, match="accepts no new tasks"):
        wheel.add(1, lambda: None)
    run(wheel, 10_000)
    assert fired == [5, 500]
    assert wheel.stopped
    assert wheel.ticks == 500


def test_both_designs_run_everything_in_order() -> None:
    """Random delays fire in order, and the hierarchy needs fewer turns and touches fewer tasks."""
    wheel = SimpleWheel()
    rng = random.Random(5)
    delays = [rng.randrange(1, 5_000) for _ in range(300)]
    fired: list[int] = []
    for delay_ms in delays:
        wheel.add(delay_ms, lambda at=delay_ms: fired.append(at))  # type: ignore[misc]
    run(wheel, 5_000)
    assert fired == sorted(delays)
    (_, turns, visits, _), (_, fewer_turns, fewer_visits, _) = compare(200, 60_000, seed=3)
    assert fewer_turns * 10 < turns
    assert fewer_visits * 10 < visits


@pytest.mark.parametrize(("longest_ms", "name"), [(20, "20 ms"), (1_000, "1 s"), (60_000, "1 min")])
def test_the_page_shows_what_the_command_prints(longest_ms: int, name: str) -> None:
    """The table of the concepts page equals the output, except for the seconds."""
    page = (Path(examples.__file__).parents[1] / "docs" / "concepts.md").read_text(encoding="utf-8")
    shown = [line.split() for line in page.splitlines() if line.strip().startswith(f"{name} ")]
    rows = compare(1_000, longest_ms, seed=1)
    printed = [f"{name} {design} {turns:,} {touched:,}".split() for design, turns, touched, _ in rows]
    assert [words[:-1] for words in shown] == printed


@pytest.mark.parametrize("size", [(0, 20), (1, 1)])
def test_a_wheel_of_no_size_is_refused(size: tuple[int, int]) -> None:
    """A wheel needs a positive tick and at least two slots."""
    with pytest.raises(ValueError, match="at least"):
        SimpleWheel(*size)
