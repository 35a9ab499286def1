"""Helpers for the load programs: event loops and quantiles."""

import asyncio
from collections.abc import Callable

__all__ = ["loop_factory", "quantiles"]


def loop_factory(*, uvloop: bool) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the event loop factory: uvloop's or asyncio's."""
    if not uvloop:
        return asyncio.new_event_loop
    from uvloop import new_event_loop

    return new_event_loop


def quantiles(seconds: list[float]) -> str:
    """Format p50, p99, p99.9, and the maximum in milliseconds."""
    ranked = sorted(seconds)
    shown = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)]
    return "  ".join(
        f"{name} {ranked[min(len(ranked) - 1, int(share * len(ranked)))] * 1000:.1f} ms" for name, share in shown
    )
