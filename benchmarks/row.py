"""A row of the table that the benchmarks print, and the budget for it."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, TypeVar

__all__ = ["Budget", "Row", "Scale", "Unavailable", "Unit", "grouped", "number", "number_of", "quantile"]

T = TypeVar("T")
Unit = Literal["ns", "us", "ms", "s", "bytes", "ratio", "count", "1/s"]


class Unavailable(Exception):
    """A section cannot be measured on this machine.  The message names what is missing."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much to measure.  ``quick``: fewer repeats, and not the largest sizes."""

    quick: bool = False

    def pick(self, full: T, quick: T) -> T:
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit on the ratio or the value of a row, for the compiled core and for the interpreted one.

    If ``interpreted`` is None, the budget applies to the compiled core only.
    """

    on: Literal["ratio", "value"]
    limit: float
    interpreted: float | None
    at_most: bool

    @classmethod
    def ratio_at_least(cls, limit: float, *, interpreted: float | None = None, compiled_only: bool = False) -> Self:
        return cls("ratio", limit, None if compiled_only else interpreted or limit, at_most=False)

    @classmethod
    def ratio_at_most(cls, limit: float) -> Self:
        return cls("ratio", limit, limit, at_most=True)

    @classmethod
    def at_most_value(cls, limit: float, *, interpreted: float | None = None, compiled_only: bool = False) -> Self:
        return cls("value", limit, None if compiled_only else interpreted or limit, at_most=True)

    def limit_for(self, *, compiled: bool) -> float | None:
        return self.limit if compiled else self.interpreted


@dataclass(slots=True)
class Row:
    """One row of the table.

    ``ratio`` is the peer's cost divided by ours, so a ratio above 1 means that ours is better.  The ratio is the median
    of the ratios of the pairs; ``low`` and ``high`` are their quartiles.  A row may define another ratio in ``what`` or
    ``note``.
    """

    section: str
    what: str
    unit: Unit
    ours: float
    peer: str = ""
    theirs: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    budget: Budget | None = None
    note: str = ""

    def judged(self) -> float | None:
        """Return the number that the budget limits, or None if there is no budget."""
        if self.budget is None:
            return None
        return self.ratio if self.budget.on == "ratio" else self.ours

    def met(self, *, compiled: bool) -> bool | None:
        """Return whether the budget is met; None if this kind of core has no budget."""
        value = self.judged()
        if self.budget is None or value is None:
            return None
        limit = self.budget.limit_for(compiled=compiled)
        if limit is None:
            return None
        return value <= limit if self.budget.at_most else value >= limit

    def budget_text(self, *, compiled: bool) -> str:
        budget = self.budget
        if budget is None:
            return ""
        limit = budget.limit_for(compiled=compiled)
        if limit is None:
            return "(compiled)"
        sign = "<=" if budget.at_most else ">="
        shown = f"{limit:g}x" if budget.on == "ratio" else number_of(limit, self.unit)
        return f"{sign} {shown}"

    def verdict(self, *, compiled: bool) -> str:
        """Return "met" or "NOT met", with the factor by which the number is within or beyond its limit."""
        met = self.met(compiled=compiled)
        value = self.judged()
        if met is None or value is None or self.budget is None:
            return ""
        limit = self.budget.limit_for(compiled=compiled)
        assert limit is not None
        if value <= 0 or limit <= 0:
            return "met" if met else "NOT met"
        better = limit / value if self.budget.at_most else value / limit
        return f"met, {better:.2f}x within" if met else f"NOT met, {1 / better:.2f}x off"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Row":
        budget = data.pop("budget")
        return cls(**data, budget=None if budget is None else Budget(**budget))


def number(value: float) -> str:
    """Return the number with three significant digits; from 1,000 on, in groups of three digits."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1000:
        digits = max(0, math.floor(math.log10(abs(value))) - 2)
        return grouped(round(value, -digits))
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}" if decimals < 5 else f"{value:.2g}"


def number_of(value: float, unit: Unit) -> str:
    """Return the number with its unit."""
    if unit == "ratio":
        return f"{number(value)}x"
    if unit == "count":
        return grouped(value)
    return f"{number(value)} {'µs' if unit == 'us' else unit}"


def grouped(value: float) -> str:
    """Return the number, rounded to an integer, in groups of three digits."""
    return f"{value:,.0f}"


def quantile(values: Sequence[float], fraction: float) -> float:
    """Return the nearest-rank quantile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(fraction * len(ordered)) - 1))]
