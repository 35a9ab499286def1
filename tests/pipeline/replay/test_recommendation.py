"""The recommended setting, and the reasons."""

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from purgatory.pipeline.replay.recommendation import recommend


def row(tick_ms: int, wheel_size: int, cpu_us: float, late_p99_ms: float, heap: float = 1.0) -> dict[str, Any]:
    counted = {"cpu_us": cpu_us, "late_p99_ms": late_p99_ms, "late_max_ms": late_p99_ms}
    counted |= {"stall_p99_ms": 300.0, "stall_max_ms": 700.0}
    return {"tick_ms": tick_ms, "wheel_size": wheel_size, "heap_operations": heap, "cascades": 0.5, **counted}


def test_the_cheapest_setting_that_is_punctual_is_recommended() -> None:
    """Too late is out; the least CPU wins; within 5 % the finer tick, then fewer heap operations."""
    best, headline, reasons = recommend([row(1, 20, 5.0, 0), row(5, 20, 4.0, 4), row(20, 20, 2.0, 19)], 10)
    assert (best, headline) == ({"tick_ms": 5, "wheel_size": 20}, "Take tick_ms=5, wheel_size=20")
    assert "1 of 3 settings exceed it." in reasons
    best, _, reasons = recommend([row(1, 20, 4.1, 0), row(1, 64, 4.15, 0, heap=0.5), row(5, 20, 4.0, 4)], 10)
    assert best == {"tick_ms": 1, "wheel_size": 64}
    assert any("3 of the settings within this limit need the same CPU time" in reason for reason in reasons)
    best, _, reasons = recommend([row(5, 20, 4.0, 4), row(20, 20, 2.0, 19)], 1)
    assert best == {"tick_ms": 5, "wheel_size": 20}
    assert "No setting achieves that. This one has the lowest lateness." in reasons
