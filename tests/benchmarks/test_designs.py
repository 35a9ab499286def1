"""The design of the first purgatory, and Kafka's experiment: the benchmark compares with a working implementation."""

import random
import statistics
from typing import Any

import pytest

from benchmarks.delay_queue_purgatory import DelayQueuePurgatory
from benchmarks.experiment import Parameters, in_turn, perform
from benchmarks.operations import Request


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _first(purge_interval: int = 1000) -> tuple[DelayQueuePurgatory, _Clock]:
    clock = _Clock()
    return DelayQueuePurgatory("first", purge_interval=purge_interval, clock=clock), clock


def test_an_operation_is_completed_once_through_either_key() -> None:
    """An operation completes once when its condition holds, whichever key is checked."""
    first, _ = _first()
    request = Request(1.0, "a")
    assert first.try_complete_else_watch(request, ["a", "b"]) is False
    assert first.check_and_complete("b") == 0
    request.ready = True
    assert first.check_and_complete("b") == 1
    assert first.check_and_complete("a") == 0
    assert request.is_completed
    assert not request.expired


def test_one_that_is_ready_does_not_wait() -> None:
    """An operation tries its condition before it watches any key."""
    first, _ = _first()
    request = Request(1.0, "a")
    request.ready = True
    assert first.try_complete_else_watch(request, ["a"]) is True
    assert (first.watched, first.num_delayed) == (0, 0)


def test_what_has_ended_stays_until_its_time_or_a_purge() -> None:
    """By design, ended operations stay on their other keys and in the heap until a purge pass removes them."""
    first, clock = _first()
    requests = [Request(1.0, "a") for _ in range(3)]
    for request in requests:
        first.try_complete_else_watch(request, ["a", "b"])
        request.ready = True
    assert first.check_and_complete("a") == 3
    assert (first.watched, first.num_delayed) == (3, 3)
    assert first.purge() == 6
    assert (first.watched, first.num_delayed) == (0, 0)
    clock.now = 2.0
    assert first.expire_due() == 0


def test_it_expires_in_the_order_of_the_deadlines_and_not_early() -> None:
    """Only due operations expire, and operations that have completed do not."""
    first, clock = _first()
    late, soon, done = Request(2.0, "a"), Request(1.0, "a"), Request(1.0, "b")
    for request in (late, soon, done):
        first.try_complete_else_watch(request, [request.key])
    done.ready = True
    first.check_and_complete("b")
    assert first.expire_due() == 0
    clock.now = 1.0
    assert first.expire_due() == 1
    assert (soon.expired, late.expired, done.expired) == (True, False, False)


def test_a_purge_pass_comes_after_so_many_requests() -> None:
    """The purge interval counts requests, as in the original."""
    first, _ = _first(purge_interval=5)
    for _ in range(4):
        first.try_complete_else_watch(Request(1.0, "a"), ["a"])
    first.expire_due()
    assert first.purges == 0
    first.try_complete_else_watch(Request(1.0, "a"), ["a"])
    first.expire_due()
    first.expire_due()
    assert first.purges == 1


def test_latencies_have_the_percentiles_they_were_given() -> None:
    """The log-normal distribution has the two given percentiles."""
    drawn = sorted(Parameters(pct50=20, pct75=60).latencies(random.Random(5), 40_000))
    assert drawn[20_000] * 1000 == pytest.approx(20, rel=0.05)
    assert drawn[30_000] * 1000 == pytest.approx(60, rel=0.05)


def test_arrivals_have_the_rate_they_were_given() -> None:
    """Arrivals follow a Poisson process: the gaps are exponential, so their mean equals their deviation."""
    gaps = Parameters(rate=500).gaps(random.Random(5), 40_000)
    assert statistics.fmean(gaps) == pytest.approx(1 / 500, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(1 / 500, rel=0.03)


@pytest.mark.parametrize(
    "wrong",
    [{"num": 0}, {"rate": 0.0}, {"keys": 101}, {"pct50": 60.0, "pct75": 20.0}, {"timeout": -1.0}],
)
def test_parameters_that_make_no_experiment_are_refused(wrong: dict[str, Any]) -> None:
    """A wrong parameter raises an error."""
    with pytest.raises(ValueError, match=r"above 0|must hold|do not fit"):
        Parameters(**wrong).check()


@pytest.mark.slow
@pytest.mark.parametrize("design", ["new", "first", "none"])
@pytest.mark.parametrize(
    ("times", "completed"),
    [({"timeout": 600_000, "pct50": 1, "pct75": 2}, 300), ({"timeout": 5, "pct50": 100_000, "pct75": 200_000}, 0)],
)
def test_every_request_of_the_experiment_is_answered(design: str, times: dict[str, Any], completed: int) -> None:
    """Each design answers all requests, by completion or by expiry, as the latency and the timeout determine."""
    run = perform(design, Parameters(num=300, rate=100_000, **times))
    assert (run.completed, run.expired) == (completed, 300 - completed)


def test_sweeps_take_turns() -> None:
    """The sweeps run alternately; when one has ended, the others continue."""
    sweeps: list[Any] = [iter("abc"), iter("1"), iter("xy")]
    assert list(in_turn(sweeps)) == ["a", "1", "x", "b", "y", "c"]
