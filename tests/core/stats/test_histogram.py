"""The histogram, compared with a sorted list."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from purgatory.core.stats.histogram import Histogram, quantiles_between
from purgatory.events import Quantiles

FRACTIONS = (0.5, 0.99, 0.999)
values = st.one_of(st.integers(-5, 130), st.integers(0, 5000), st.integers(0, 10**12))


def edge(value: int) -> int:
    """Return the greatest value in the same cell of the histogram; cells keep five bits below the first."""
    lost = max(value.bit_length() - 6, 0)
    return ((value >> lost) + 1 << lost) - 1


def quantile(recorded: list[int], fraction: float) -> int:
    """Return the expected quantile, computed from all the values."""
    ordered = sorted(max(value, 0) for value in recorded)
    return min(edge(ordered[max(math.ceil(len(ordered) * fraction), 1) - 1]), ordered[-1])


@given(st.lists(values, min_size=1, max_size=60))
@example([1])
@example([0])
@example([64, 64, 1000])
@example([127, 128, 65, 64, 63, 10**6])
@example([5, 5, 5, 2, 2, 9, 5, 5])
@example([-3, 0, -3, 7])
@example(list(range(1100)))
@example([5, 0])
@example([5, -2])
@example([1] * 2000 + [10**6])
def test_quantiles_are_those_of_the_sorted_list(recorded: list[int]) -> None:
    """Each quantile is the edge of the cell of the exact quantile, and never above the maximum."""
    histogram = Histogram()
    for value in recorded:
        histogram.record(value)
    actual = histogram.quantiles()
    assert actual.count == len(recorded)
    assert [actual.p50, actual.p99, actual.p999] == [quantile(recorded, fraction) / 1000 for fraction in FRACTIONS]
    assert actual.max == max(0, *recorded) / 1000
    for fraction in (0.0001, 0.25, 0.75, 1.0):
        assert histogram.quantile_ms(fraction) == quantile(recorded, fraction)


@given(st.lists(values, max_size=40))
def test_reading_changes_nothing(recorded: list[int]) -> None:
    """A histogram read after every value ends with the same quantiles as one read once."""
    read_often, quiet = Histogram(), Histogram()
    for value in recorded:
        read_often.record(value)
        quiet.record(value)
        read_often.quantiles()
    assert read_often.quantiles() == quiet.quantiles()


def test_an_empty_histogram() -> None:
    """All quantiles of an empty histogram are zero."""
    histogram = Histogram()
    actual = histogram.quantiles()
    assert (actual.count, actual.p50, actual.p99, actual.p999, actual.max) == (0, 0.0, 0.0, 0.0, 0.0)
    assert histogram.quantile_ms(0.5) == 0


@pytest.mark.parametrize("value", [63, 64, 65, 66, 127, 128, 131, 4095, 4096, 10**9])
def test_a_quantile_is_at_most_a_thirty_second_too_high(value: int) -> None:
    """A quantile is exact below 64 ms; above, it is never too low and at most 3.2 % too high."""
    histogram = Histogram()
    histogram.record(value)
    histogram.record(10**12)
    assert value <= histogram.quantile_ms(0.5) <= value * (1 if value < 64 else 33 / 32)


def test_the_memory_is_bounded_by_the_largest_value() -> None:
    """A wait of a year takes about nine hundred cells."""
    histogram = Histogram()
    for value in (0, 365 * 86_400_000, 5):
        histogram.record(value)
    assert len(histogram._cells) < 1000
    histogram = Histogram()
    histogram.record(365 * 86_400_000)
    assert len(histogram.cells()) < 1000


def test_the_greatest_value_between_two_copies() -> None:
    """A greater value from before the first copy does not count."""
    histogram = Histogram()
    histogram.record(10**6)
    first = histogram.cells()
    histogram.record(5)
    assert quantiles_between(first, histogram.cells(), histogram.max_ms) == Quantiles(1, 0.005, 0.005, 0.005, 0.005)


@given(st.lists(values, max_size=30), st.lists(values, min_size=1, max_size=30))
@example([], [5, 0])
@example([], [64])
@example([], [1] * 200 + [5000])
@example([], [1] * 2000 + [5000])
def test_two_copies_of_the_cells_give_the_quantiles_between_them(before: list[int], after: list[int]) -> None:
    """Only the values recorded between the copies count, and the copies change nothing."""
    histogram, alone = Histogram(), Histogram()
    for value in before:
        histogram.record(value)
    first = histogram.cells()
    assert quantiles_between(first, histogram.cells(), histogram.max_ms) == Quantiles()
    for value in after:
        histogram.record(value)
        alone.record(value)
    assert quantiles_between(first, histogram.cells(), alone.max_ms) == alone.quantiles()
    assert quantiles_between([], histogram.cells(), histogram.max_ms) == histogram.quantiles()
    assert sum(histogram.cells()) == histogram.count == len(before) + len(after)
