"""Kafka's purgatory experiment (``TestPurgatoryPerformance``), with the first design and with this one.

Requests arrive at random (Poisson) at a target rate.  Each waits on ``keys`` keys out of ``key-space-size``, with a
timeout.  It becomes complete after a latency drawn from a log-normal distribution that is defined by its 50th and 75th
percentiles; then its first key is checked.  A request whose latency is longer than the timeout expires.  The published
experiment has 1,000,000 requests, a timeout of 200 ms, and two settings for (pct75, pct50): (60, 20) ms, where most
requests complete in time, and (400, 200) ms, where half of them expire.

    python -m benchmarks.experiment --sweep                    all designs, both latencies, doubling the rate
    python -m benchmarks.experiment --design new --rate 20000  one run

The command prints the target rate, the actual rate, and the CPU time of the process.  The third design, ``none``, has
no purgatory: it shows the cost of arrivals, latencies, and the loop.  A design is saturated when it serves less than
95% of the target rate.
"""

import argparse
import asyncio
import gc
import heapq
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from purgatory import DelayedOperation, Purgatory

from .delay_queue_purgatory import DelayQueuePurgatory
from .machine import describe
from .measure import new_loop
from .row import grouped, quantile

__all__ = ["DESIGNS", "LATENCIES", "Parameters", "Run", "in_turn", "perform", "sweep"]

LATENCIES = ((60.0, 20.0), (400.0, 200.0))  # (pct75, pct50) in ms, as published
SATURATED = 0.95
DRAWN = 1 << 16  # the number of random numbers and keys that are drawn in advance and then reused


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters, named as in Kafka's benchmark.  Times are in ms."""

    num: int = 1_000_000
    rate: float = 10_000.0
    keys: int = 3
    key_space_size: int = 100
    timeout: float = 200.0
    pct50: float = 20.0
    pct75: float = 60.0
    seed: int = 1

    def check(self) -> None:
        """Raise ValueError if a parameter is out of range."""
        if self.num < 1 or self.rate <= 0 or self.keys < 1 or self.timeout <= 0:
            raise ValueError("num, rate, keys and timeout must be above 0")
        if self.keys > self.key_space_size:
            raise ValueError(f"{self.keys} different keys do not fit into a key space of {self.key_space_size}")
        if not 0 < self.pct50 < self.pct75:
            raise ValueError(f"0 < pct50 < pct75 must hold, not {self.pct50} and {self.pct75}")

    def latencies(self, rng: random.Random, number: int) -> list[float]:
        """Return latencies in seconds.

        A log-normal distribution has median exp(mu) and 75th percentile exp(mu + 0.6745 sigma).
        """
        mu = math.log(self.pct50)
        sigma = (math.log(self.pct75) - mu) / statistics.NormalDist().inv_cdf(0.75)
        return [rng.lognormvariate(mu, sigma) / 1000 for _ in range(number)]

    def gaps(self, rng: random.Random, number: int) -> list[float]:
        """Return the seconds between arrivals of a Poisson process."""
        return [rng.expovariate(self.rate) for _ in range(number)]


class _Request(DelayedOperation[None]):
    """A request that completes when its latency has passed."""

    __slots__ = ("completes_at", "key", "tally")

    def __init__(self, timeout: float, key: Hashable, completes_at: float, tally: "_Tally") -> None:
        super().__init__(timeout)
        self.key = key
        self.completes_at = completes_at
        self.tally = tally

    def try_complete(self) -> bool:
        return time.monotonic() >= self.completes_at

    def on_complete(self) -> None:
        tally = self.tally
        if self.expired:
            tally.expired += 1
        else:
            tally.completed += 1
            tally.late.append(time.monotonic() - self.completes_at)


class _Tally:
    """How requests ended, and how late each completed one was."""

    def __init__(self) -> None:
        self.completed = 0
        self.expired = 0
        self.late: list[float] = []

    @property
    def ended(self) -> int:
        return self.completed + self.expired


class _NoPurgatory:
    """No purgatory: a check completes its operation directly, and the heap of latencies expires the others."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def try_complete_else_watch(self, operation: DelayedOperation[Any], keys: Iterable[Hashable]) -> bool:
        return operation.try_complete() and operation.force_complete()


DESIGNS: dict[str, Any] = {"new": Purgatory, "first": DelayQueuePurgatory, "none": _NoPurgatory}


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run."""

    design: str
    parameters: Parameters
    elapsed: float
    cpu: float
    completed: int
    expired: int
    late_p99: float

    @property
    def actual_rate(self) -> float:
        """The requests per second up to the last arrival, excluding the last timeout."""
        return self.parameters.num / max(1e-9, self.elapsed - self.parameters.timeout / 1000)

    @property
    def saturated(self) -> bool:
        return self.actual_rate < SATURATED * self.parameters.rate


def perform(design: str, parameters: Parameters, loop: str = "asyncio") -> Run:
    """Run the experiment once."""
    parameters.check()
    event_loop = new_loop(loop)
    gc.collect()
    gc.freeze()
    try:
        return event_loop.run_until_complete(_perform(design, parameters))
    finally:
        gc.unfreeze()
        event_loop.close()


async def _perform(design: str, parameters: Parameters) -> Run:
    tally = _Tally()
    async with DESIGNS[design](f"{design} design") as purgatory:
        cpu, elapsed = await _serve(purgatory, parameters, tally, bare=design == "none")
    assert tally.ended == parameters.num, f"{tally.ended} of {parameters.num} requests were answered"
    late = quantile(tally.late, 0.99) if tally.late else 0.0
    return Run(design, parameters, elapsed, cpu, tally.completed, tally.expired, late)


async def _serve(purgatory: Any, parameters: Parameters, tally: _Tally, *, bare: bool) -> tuple[float, float]:
    """Submit requests, and check the key of each after its latency; return CPU time and elapsed seconds."""
    rng = random.Random(parameters.seed)
    drawn = min(DRAWN, parameters.num)
    gaps, latencies = parameters.gaps(rng, drawn), parameters.latencies(rng, drawn)
    all_keys = [tuple(rng.sample(range(parameters.key_space_size), parameters.keys)) for _ in range(drawn)]
    timeout = parameters.timeout / 1000
    due: list[tuple[float, int, _Request]] = []
    arrived = 0
    arrival = time.monotonic() + gaps[0]
    cpu, begun = time.process_time(), time.monotonic()
    while tally.ended < parameters.num:
        now = time.monotonic()
        portion = 0
        while arrived < parameters.num and arrival <= now and portion < 100:
            latency, keys = latencies[arrived % drawn], all_keys[arrived % drawn]
            request = _Request(timeout, keys[0], now + latency, tally)
            purgatory.try_complete_else_watch(request, keys)
            if latency < timeout or bare:
                heapq.heappush(due, (now + min(latency, timeout), arrived, request))
            arrived += 1
            portion += 1
            arrival += gaps[arrived % drawn]
        while due and due[0][0] <= now:
            _, _, request = heapq.heappop(due)
            if not bare:
                purgatory.check_and_complete(request.key)
            elif request.completes_at <= now:
                request.force_complete()
            else:
                request.run()
        more = arrived < parameters.num
        await asyncio.sleep(0 if more and arrival <= now else _pause(now, arrival, due, more))
    return time.process_time() - cpu, time.monotonic() - begun


def _pause(now: float, arrival: float, due: list[tuple[float, int, _Request]], more: bool) -> float:
    """Return the seconds until the next event, but at least one millisecond, which is the resolution of the loop."""
    following = [arrival] if more else []
    if due:
        following.append(due[0][0])
    return max(0.001, min(following, default=now + 0.01) - now)


def sweep(design: str, parameters: Parameters, seconds: float, rates: Iterable[float]) -> Iterator[Run]:
    """Run at rising rates until one is saturated; each run has ``num`` requests, but takes at most ``seconds``."""
    for rate in rates:
        number = min(parameters.num, round(rate * seconds)) if seconds else parameters.num
        run = perform(design, replace(parameters, rate=rate, num=number))
        yield run
        if run.saturated:
            return


def in_turn(sweeps: list[Iterator[Run]]) -> Iterator[Run]:
    """Alternate between the sweeps, run by run, so that other load on the machine affects all designs equally."""
    while sweeps:
        for each in tuple(sweeps):
            run = next(each, None)
            if run is None:
                sweeps.remove(each)
            else:
                yield run


HEAD = (
    f"{'design':7} {'pct75/50':>9} {'target/s':>9} {'actual/s':>9} {'CPU s':>7} {'us/request':>10}"
    f" {'completed':>10} {'expired':>9} {'late p99':>9}"
)


def line(run: Run) -> str:
    """Return one row of the table under HEAD."""
    given = run.parameters
    return (
        f"{run.design:7} {given.pct75:4g}/{given.pct50:<4g} {grouped(given.rate):>9} {grouped(run.actual_rate):>9}"
        f" {run.cpu:7.2f} {run.cpu / given.num * 1e6:10.2f} {grouped(run.completed):>10} {grouped(run.expired):>9}"
        f" {run.late_p99 * 1e3:6.1f} ms{'  saturated' if run.saturated else ''}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiment", description=__doc__.partition("\n")[0])
    default = Parameters()
    parser.add_argument("--num", type=int, default=default.num, help="requests (%(default)s)")
    parser.add_argument(
        "--rate", type=float, default=default.rate, help="requests per second; the first rate of a sweep (%(default)g)"
    )
    parser.add_argument("--keys", type=int, default=default.keys, help="keys of each request (%(default)s)")
    parser.add_argument(
        "--key-space-size", type=int, default=default.key_space_size, help="different keys (%(default)s)"
    )
    parser.add_argument("--timeout", type=float, default=default.timeout, help="ms (%(default)g)")
    parser.add_argument("--pct50", type=float, default=default.pct50, help="median latency, ms (%(default)g)")
    parser.add_argument("--pct75", type=float, default=default.pct75, help="75th percentile, ms (%(default)g)")
    parser.add_argument("--design", choices=[*DESIGNS, "all"], default="all")
    parser.add_argument("--sweep", action="store_true", help="both latencies; double the rate until saturation")
    parser.add_argument("--seconds", type=float, default=0.0, help="in a sweep: the approximate length of each run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the runs to a file")
    options = parser.parse_args(arguments)
    names = ("num", "rate", "keys", "key_space_size", "timeout", "pct50", "pct75")
    given = Parameters(**{name: getattr(options, name) for name in names})
    try:
        given.check()
    except ValueError as error:
        parser.error(str(error))
    designs = list(DESIGNS) if options.design == "all" else [options.design]
    runs = []
    print(HEAD)
    for pct75, pct50 in LATENCIES if options.sweep else ((given.pct75, given.pct50),):
        chosen = replace(given, pct75=pct75, pct50=pct50)
        rates = [given.rate * 2**step for step in range(10)] if options.sweep else [given.rate]
        seconds = options.seconds if options.sweep else 0.0
        for run in in_turn([sweep(design, chosen, seconds, rates) for design in designs]):
            print(line(run), flush=True)
            runs.append(run)
    if options.json is not None:
        saved = [{**asdict(run), "actual_rate": run.actual_rate, "saturated": run.saturated} for run in runs]
        options.json.write_text(json.dumps({"machine": describe(), "runs": saved}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
