"""``expiry_jitter`` spreads equal deadlines over the time before them."""

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import Outcome, Purgatory, ThresholdPurgatory
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import Op, Recorder, check, park
from tests.sansio import make_purgatory, pass_time


def _source(*numbers: float) -> Any:
    return iter(numbers).__next__


def test_deadlines_are_earlier_by_a_share_of_the_timeout() -> None:
    """The source determines the share, from zero to the fraction; events contain the shortened deadline."""
    clock = ManualClock(1_000_000)
    recorder = Recorder()
    source = _source(0.0, 0.5, 1.0)
    room = make_purgatory(clock, observers=[recorder], expiry_jitter=0.1, jitter_source=source)
    ops = [park(room, "key", timeout=30) for _ in range(3)]
    assert [event.deadline for event in recorder.seen] == [1030.0, 1028.5, 1027.0]
    assert [op.timeout for op in ops] == [30.0] * 3
    check(room, num_delayed=3)
    expired = []
    for milliseconds in (26_999, 1, 1499, 1, 1499, 1):
        pass_time(clock, room, milliseconds)
        expired.append([op.expired for op in ops])
    assert [sum(row) for row in expired] == [0, 1, 1, 2, 2, 3]
    assert [event.lateness for event in recorder.seen[3:]] == [0.0] * 3


def test_it_applies_once_when_an_operation_is_parked() -> None:
    """Jitter does not apply without a deadline, to an operation that completes at once, or to a later ``extend``."""
    source = _source(1.0, 1.0)  # the source is not called a third time
    room = make_purgatory(ManualClock(1_000_000), expiry_jitter=0.5, jitter_source=source)
    park(room, "key")
    assert room.try_complete_else_watch(Op(10, ready=True), ["key"])
    op, at = park(room, "key", timeout=10), Op()
    at.extend_to(1008)
    room.try_complete_else_watch(at, ["key"])
    assert (op.expiration_ms, at.expiration_ms) == (1_005_000, 1_004_000)
    op.extend(10)
    at.extend_to(1009)
    assert (op.expiration_ms, at.expiration_ms) == (1_010_000, 1_009_000)


def test_every_operation_with_a_deadline_takes_one_number() -> None:
    """Also one whose timeout is zero; one without a deadline takes none."""
    source = iter(range(10))
    room = make_purgatory(ManualClock(1_000_000), expiry_jitter=0.5, jitter_source=lambda: next(source) / 10)
    for timeout in (None, 0, 5, 0):
        park(room, "key", timeout=timeout)
    assert next(source) == 3


def test_a_deadline_that_it_gets_afterward_is_kept() -> None:
    """Comparing a key can run user code, which gives the operation its first deadline after the number was drawn."""

    class Extending:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            op.extend(10)
            return self is other

    room = make_purgatory(ManualClock(1_000_000), expiry_jitter=0.5, jitter_source=_source())
    op = Op()
    park(room, Extending())
    assert op.expiration_ms is None
    room.try_complete_else_watch(op, [Extending()])
    assert op.expiration_ms == 1_010_000


async def test_random_numbers_spread_a_herd(clock: VirtualClock) -> None:
    """Of a thousand operations with one timeout, few expire in the same millisecond, and none outside the range."""
    async with Purgatory[Op]("test", clock=clock, expiry_jitter=0.1) as room:
        due = [park(room, "key", timeout=30).expiration_ms or 0 for _ in range(1000)]
        assert 1_027_000 <= min(due) <= max(due) <= 1_030_000
        assert len(set(due)) > 500
        room.cancel_for_key("key")


@given(
    jitter=st.floats(0, 1),
    number=st.floats(0, 1),
    timeout_ms=st.integers(0, 10**9),
    tick_ms=st.sampled_from([1, 20]),
)
def test_it_only_shortens_and_by_no_more_than_the_fraction(
    jitter: float, number: float, timeout_ms: int, tick_ms: int
) -> None:
    """The bounds hold for every random number, and with a coarse tick."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock, tick_ms=tick_ms, expiry_jitter=jitter, jitter_source=lambda: number)
    op = park(room, "key", timeout=timeout_ms / 1000)
    assert op.expiration_ms is not None
    latest = -(-(clock.now_ms() + timeout_ms) // tick_ms) * tick_ms
    assert clock.now_ms() + timeout_ms * (1 - jitter) - 1e-3 <= op.expiration_ms <= latest
    pass_time(clock, room, timeout_ms + tick_ms)
    room._core.timer.expire_due(clock.now_ms())
    assert op.outcome is Outcome.EXPIRED
    room._check()


@pytest.mark.parametrize("jitter", [-0.1, 1.5, float("nan"), float("inf"), "0.1", None, True])
def test_a_bad_fraction_is_refused(jitter: Any) -> None:
    """A bad fraction raises TypeError or ValueError in the constructor."""
    with pytest.raises((TypeError, ValueError), match="expiry_jitter must be a number from 0 to 1"):
        Purgatory("test", expiry_jitter=jitter)
    with pytest.raises((TypeError, ValueError), match="expiry_jitter must be a number from 0 to 1"):
        ThresholdPurgatory("test", expiry_jitter=jitter)


def test_without_jitter_the_source_is_not_called() -> None:
    """Without a fraction, no deadline depends on chance."""
    room = make_purgatory(ManualClock(0), jitter_source=_source())
    assert park(room, "a", timeout=5).expiration_ms == 5_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
def test_forked_processes_jitter_differently() -> None:
    """The workers of a server would otherwise expire, and retry, at the same moments."""
    script = """
import os
from purgatory import Purgatory
from purgatory.testing import VirtualClock
from tests.helpers import Op

for _ in range(3):
    process = os.fork()
    if not process:
        room = Purgatory("p", clock=VirtualClock(), expiry_jitter=1.0)
        room.try_complete_else_watch(Op(1_000_000), ["key"])
        print(room.dump()["operations"][0]["left"], flush=True)
        os._exit(0)
    os.waitpid(process, 0)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert len(set(result.stdout.split())) == 3, result.stdout


@pytest.mark.parametrize("keys", [["a"], ["a", "b"], {"a": 3}])
@pytest.mark.parametrize("end", ["cancel", "force_complete"])
def test_an_operation_that_ends_while_the_number_is_drawn_leaves_its_keys(keys: Any, end: str) -> None:
    """A finalizer can end it there, too: it is not parked yet, and gets its keys afterward."""
    ops = [Op(5.0), Op(5.0)]
    entering = iter(ops)

    def source() -> float:
        getattr(next(entering), end)()
        return 0.5

    room = make_purgatory(ManualClock(), expiry_jitter=0.5, jitter_source=source, max_parked_per_key=1)
    for op in ops:
        assert room.try_complete_else_watch(op, keys) is (end == "force_complete")
        assert not room.is_watched("a")
    check(room, parked=0, watched=0, immediate=2 if end == "force_complete" else 0)
    room.try_complete_else_watch(Op(None), ["a"])
    assert room.check_and_complete("a") == 0
    assert [op.calls.count("try") for op in ops] == [1, 1]
