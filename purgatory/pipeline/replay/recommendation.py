"""Recommend a tick and a wheel size, given the costs of each setting in a replay."""

from typing import Any, Final

__all__ = ["NEAR", "recommend"]

NEAR: Final = 1.05  # CPU times closer than this are considered equal


def recommend(rows: list[dict[str, Any]], budget_ms: float) -> tuple[dict[str, int], str, tuple[str, ...]]:
    """Return the recommended tick and wheel size, a headline, and the reasons.

    Only settings for which the p99 of the tick's lateness is within the budget are considered.  The lateness of stalls
    does not count, because no setting changes how long the loop was busy.  The setting with the lowest CPU time wins.
    CPU times that differ from it by at most 5% are considered equal, because two runs differ by more.  Among these
    settings, the finest tick wins, then the fewest heap operations, and then the smallest wheel.
    """
    within = [row for row in rows if row["late_p99_ms"] <= budget_ms]
    reasons = [f"Acceptable lateness of the tick: p99 of at most {budget_ms:g} ms."]
    if not within:
        best = min(rows, key=lambda row: (row["late_p99_ms"], row["cpu_us"]))
        reasons.append("No setting achieves that. This one has the lowest lateness.")
    else:
        least = min(row["cpu_us"] for row in within)
        near = [row for row in within if row["cpu_us"] <= least * NEAR]
        best = min(near, key=lambda row: (row["tick_ms"], row["heap_operations"], row["wheel_size"]))
        out = len(rows) - len(within)
        if out:
            reasons.append(f"{out} of {len(rows)} settings exceed it.")
        if len(near) > 1:
            reasons.append(
                f"{len(near)} of the settings within this limit need the same CPU time within 5%,"
                f" at least {least:.2f} us per operation."
                " Of these, this one has the finest tick, and then the fewest heap operations."
            )
        else:
            reasons.append(
                f"Of the settings within this limit, it needs the least CPU time, {least:.2f} us per operation."
            )
    reasons.append(
        f"It costs {best['cascades']:.2f} cascades and {best['heap_operations']:.3f} heap operations per operation;"
        f" the tick's lateness is {best['late_p99_ms']:g} ms at p99, and at most {best['late_max_ms']:g} ms."
    )
    if best["stall_max_ms"]:
        reasons.append(
            f"In the recording, the event loop was busy: expiries came {best['stall_p99_ms']:g} ms after the tick at"
            f" p99, and at most {best['stall_max_ms']:g} ms. This adds to each setting, and no setting changes it."
        )
    chosen = {"tick_ms": best["tick_ms"], "wheel_size": best["wheel_size"]}
    return chosen, f"Take tick_ms={chosen['tick_ms']}, wheel_size={chosen['wheel_size']}", tuple(reasons)
