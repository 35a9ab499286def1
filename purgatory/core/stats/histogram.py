"""A log-linear histogram of whole milliseconds, for quantiles at a fixed cost.

The idea is HdrHistogram's (Gil Tene): each value below 64 has a separate cell; above that, every power of two is split
into 32 cells, so a cell is never wider than 1/32 of its values.  Recording takes one index computation and one
increment, and the memory is bounded by the largest value seen: about 1,000 cells for a wait of a year.
"""

from bisect import bisect_left
from itertools import accumulate
from typing import Final

from mypy_extensions import i64

from purgatory.core.timer.units import to_seconds
from purgatory.events import Quantiles

__all__ = ["Histogram", "quantiles_between"]

_LINEAR_BITS: Final = 6  # values below 2**6 are exact
_HALF_CELLS: Final = 32  # cells per power of two above that


class Histogram:
    """Counts durations in milliseconds and returns their quantiles in seconds."""

    __slots__ = ("_cells", "_run", "_run_length", "count", "max_ms")

    def __init__(self) -> None:
        self._cells: list[int] = [0] * (1 << _LINEAR_BITS)
        self._run: i64 = 0  # a value and how many times it was recorded in a row: equal values are counted here first
        self._run_length: i64 = 0
        self.count: i64 = 0
        self.max_ms: i64 = 0

    def record(self, value_ms: i64) -> None:
        """Count one duration; a negative duration, which only the clock's resolution can cause, counts as 0."""
        self.count += 1
        if value_ms != self._run:
            self._end_run()
            self._run = value_ms
            if value_ms > self.max_ms:
                self.max_ms = value_ms
        self._run_length += 1

    def _end_run(self) -> None:
        index = _index(max(self._run, 0))
        cells = self._cells
        if index >= len(cells):
            cells.extend([0] * (index + 1 - len(cells)))
        cells[index] += self._run_length
        self._run_length = 0

    def quantile_ms(self, fraction: float) -> int:
        """Return the smallest upper cell edge that ``fraction`` of the values do not exceed, or 0 if there are no
        values.

        The method changes nothing, so another thread may call it.
        """
        total: int = self.count
        wanted = total * fraction
        run: int = max(self._run, 0)
        run_length: int = self._run_length
        seen = 0
        for index, in_cell in enumerate(self._cells):
            edge_ms = _upper_edge_ms(index)
            found = in_cell
            if run_length and run <= edge_ms:
                found += run_length
                run_length = 0
            seen += found
            if found and seen >= wanted:
                return min(edge_ms, self.max_ms)
        return self.max_ms

    def cells(self) -> list[int]:
        """Return a copy of the cells, for :func:`quantiles_between`.  The method changes nothing."""
        cells = list(self._cells)
        if self._run_length:
            index = _index(max(self._run, 0))
            if index >= len(cells):
                cells.extend([0] * (index + 1 - len(cells)))
            cells[index] += self._run_length
        return cells

    def quantiles(self) -> Quantiles:
        """Return p50, p99, p99.9, and the maximum, in seconds."""
        if not self.count:
            return Quantiles()
        return Quantiles(
            count=self.count,
            p50=to_seconds(self.quantile_ms(0.5)),
            p99=to_seconds(self.quantile_ms(0.99)),
            p999=to_seconds(self.quantile_ms(0.999)),
            max=to_seconds(self.max_ms),
        )


def quantiles_between(before: list[int], after: list[int], max_ms: int) -> Quantiles:
    """Return the quantiles of the values recorded between two copies of the cells; no quantile is above ``max_ms``.

    ``max`` is the edge of a cell, or ``max_ms``.
    """
    counts = [count - (before[index] if index < len(before) else 0) for index, count in enumerate(after)]
    total = sum(counts)
    if total <= 0:
        return Quantiles()
    seen = list(accumulate(counts))  # values up to and including each cell
    edges = []
    for fraction in (0.5, 0.99, 0.999, 1.0):
        cell = bisect_left(seen, total * fraction)
        edges.append(to_seconds(min(_upper_edge_ms(cell), max_ms)))
    return Quantiles(count=total, p50=edges[0], p99=edges[1], p999=edges[2], max=edges[3])


def _index(value: int) -> int:
    shift = max(value.bit_length() - _LINEAR_BITS, 0)
    return shift * _HALF_CELLS + (value >> shift)


def _upper_edge_ms(index: int) -> int:
    if index < 2 * _HALF_CELLS:
        return index
    shift = index // _HALF_CELLS - 1
    return ((index - shift * _HALF_CELLS + 1) << shift) - 1
