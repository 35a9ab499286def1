"""The amount of work in one turn of the loop, with a work time that the test sets."""

from collections.abc import Callable

import pytest

from purgatory.aio.turn_budget import TurnBudget
from purgatory.types import Clock


class WorkClock(Clock):
    """A clock whose work time the test sets; with a budget of one second all sums are exact."""

    def __init__(self) -> None:
        self.at = 1000.0

    def work_time(self) -> float:
        return self.at


@pytest.fixture
def work_clock() -> WorkClock:
    return WorkClock()


@pytest.fixture
def slices(work_clock: WorkClock) -> TurnBudget:
    return TurnBudget(work_clock, 1000.0)


def until_over(slices: TurnBudget, each: Callable[[], object] = lambda: None) -> list[int]:
    """Return the portions of one turn."""
    portions = []
    while True:
        portions.append(slices.portion())
        each()
        if slices.over():
            return portions


def test_portions_double_while_they_are_cheap(slices: TurnBudget) -> None:
    """Portions double from one to thirty-two; a turn ends after about a thousand units even if no time has passed."""
    portions = until_over(slices)
    assert portions == [1, 2, 4, 8, 16] + [32] * 32


def test_portions_halve_when_they_are_costly(slices: TurnBudget, work_clock: WorkClock) -> None:
    """A portion is costly above an eighth of the budget, not at an eighth; the smallest portion is one."""
    for _ in range(6):
        slices.over()
    work_clock.at += 0.125
    assert not slices.over()
    assert slices.portion() == 32
    sizes = []
    for _ in range(6):
        work_clock.at += 0.126
        assert not slices.over()
        sizes.append(slices.portion())
    assert sizes == [16, 8, 4, 2, 1, 1]
    assert {type(size) for size in sizes} == {int}


def test_a_turn_ends_with_its_budget(slices: TurnBudget, work_clock: WorkClock) -> None:
    """A turn ends exactly when its budget is used up."""
    work_clock.at += 0.9995
    assert not slices.over()
    work_clock.at += 0.0005
    assert slices.over()


def test_a_turn_that_cost_little_is_followed_by_a_longer_one(slices: TurnBudget, work_clock: WorkClock) -> None:
    """Each turn is a quarter longer than the last one, as long as the number and not the time ends the turns."""
    turns = []
    for _ in range(3):
        turns.append(sum(until_over(slices)))
        slices.resume()
        assert slices._done == 0
    assert turns == [1055, 1280, 1600]


@pytest.mark.parametrize(("calls", "limit"), [(5, 16), (6, 31)])
def test_a_turn_that_set_much_free_is_followed_by_a_shorter_one(
    slices: TurnBudget, work_clock: WorkClock, calls: int, limit: int
) -> None:
    """If the work after a turn took more than one and a half budgets, the next turn is half as long, at least
    sixteen.
    """
    for _ in range(calls):
        slices.over()
    work_clock.at += 1.5
    slices.resume()
    assert slices.portion() == 32
    slices.resume()
    for _ in range(3):
        work_clock.at += 0.25
        slices.over()
    slices.resume()
    again = TurnBudget(work_clock, 1000.0)
    for _ in range(calls):
        again.over()
    work_clock.at += 1.75
    again.resume()
    assert again.portion() == limit
    assert not again.over() or limit < 32


def test_after_a_pause_the_budget_begins_anew(slices: TurnBudget, work_clock: WorkClock) -> None:
    """After any pause of the loop, the next turn has its whole budget."""
    work_clock.at += 50
    slices.resume()
    work_clock.at += 0.9
    assert not slices.over()
    work_clock.at += 0.1
    assert slices.over()


def test_a_portion_is_a_whole_number_however_the_turns_change(slices: TurnBudget, work_clock: WorkClock) -> None:
    """The smallest turn grows by a quarter, like all others, and a portion of it can count a list."""
    for _ in range(5):
        slices.over()
    work_clock.at += 1.75
    slices.resume()
    turns = []
    for _ in range(4):
        portions = until_over(slices)
        assert {type(portion) for portion in portions} == {int}
        turns.append(max(portions))
        slices.resume()
    assert turns == [16, 20, 25, 31]
