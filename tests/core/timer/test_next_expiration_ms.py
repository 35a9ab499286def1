"""``next_expiration_ms``: when the next bucket is due."""

import pytest

from tests.core.timer.bench import Bench
from tests.helpers import Task


@pytest.mark.parametrize("tick_ms", [1, 2, 3, 20])
def test_add_returns_the_next_wake_up(tick_ms: int) -> None:
    """``add`` returns the time of the bucket; for the next tick the rounded deadline, and for a due task the current
    time.
    """
    bench = Bench(tick_ms, start_ms=6000)
    core = bench.core
    assert core.schedule(Task(0, bench.log), 6001, 6000) == 6000 + tick_ms
    assert core.next_expiration_ms == 6000 + tick_ms
    assert core.schedule(Task(0, bench.log), 6000 + tick_ms, 6000) == 6000 + tick_ms
    far = Task(0, bench.log)
    assert core.schedule(far, 6000 + 25 * tick_ms, 6000) == 6000 + 20 * tick_ms
    assert far.expiration_ms == 6000 + 25 * tick_ms
    assert core.schedule(Task(0, bench.log), 6000, 6000) == 6000
    assert core.next_expiration_ms == 6000
