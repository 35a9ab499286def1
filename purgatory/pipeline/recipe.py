"""The parameters of a generated journal, in a separate module so that help texts can show them without numpy."""

from dataclasses import dataclass
from typing import Final

__all__ = ["Recipe"]

_BOUNDS: Final = {
    "rows": (1, 10**10),
    "seed": (0, 2**63 - 1),
    "keys": (1, 10**7),  # the keys are held in memory, and so are the rows of a file
    "skew": (0, 10),
    "dropped": (0, 10**8),
    "rows_per_file": (1, 10**7),
}
_GREATEST: Final = {"rate": 10**9, "median_wait": 31_536_000, "spread": 10}
_LONGEST_S: Final = 3_153_600_000


@dataclass(frozen=True, slots=True)
class Recipe:
    """The parameters of a generated journal.

    ``rate`` is in operations per second.  ``skew`` is the exponent of the Zipf distribution of the ``keys``; 0 makes
    the distribution uniform.  ``median_wait`` is in seconds, and ``spread`` is the standard deviation of the logarithm
    of the wait.  ``immediate``, ``cancelled``, and ``failed`` are shares.  ``unique`` is the share of the operations
    that wait on a key that no other operation has.  ``dropped`` is the number of dropped rows that each file records.
    """

    rows: int
    seed: int = 1
    rate: float = 1_000.0
    keys: int = 10_000
    skew: float = 1.1
    median_wait: float = 0.4
    spread: float = 1.8
    immediate: float = 0.05
    cancelled: float = 0.02
    failed: float = 0.01
    unique: float = 0.0
    dropped: int = 0
    rows_per_file: int = 250_000

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be from {least} to {most:,}, got {getattr(self, name)}")
        for name, most in _GREATEST.items():
            if not 0 < getattr(self, name) <= most:
                raise ValueError(f"{name} must be more than 0 and at most {most:,}, got {getattr(self, name)}")
        seconds = self.rows / self.rate
        if seconds > _LONGEST_S:
            raise ValueError(f"rows / rate must be at most {_LONGEST_S:,} seconds, a hundred years, got {seconds:g}")
        shares = (self.immediate, self.cancelled, self.failed)
        if not all(0 <= share <= 1 for share in shares) or sum(shares) > 1:
            raise ValueError(f"immediate, cancelled, and failed must be shares, together at most 1, got {shares}")
        if not 0 <= self.unique <= 1:
            raise ValueError(f"unique must be a share, at least 0 and at most 1, got {self.unique}")
