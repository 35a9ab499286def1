"""The design of Kafka's first purgatory compared with ours, in Kafka's experiment at one rate: CPU time per request.

``python -m benchmarks.experiment`` sweeps the rate and has all parameters.  A run without a purgatory measures the cost
of arrivals, latencies, and the loop, and this cost is subtracted from both designs before they are compared.

The first design is interpreted Python.  With an interpreted core, the ratio shows the effect of the design alone; with
a compiled core, it also shows the effect of compilation.
"""

from collections.abc import Callable, Iterator

from .experiment import LATENCIES, Parameters, perform
from .measure import OURS, compare, rounds
from .row import Row, Scale

__all__ = ["rows"]

SECTION = "designs"
FIRST = "the first design"


def rows(scale: Scale) -> Iterator[Row]:
    """The rows of this section."""
    rate = 10_000.0
    number = scale.pick(50_000, 10_000)
    published = [
        (
            f"Kafka's experiment, (pct75, pct50) = ({pct75:g}, {pct50:g})",
            Parameters(number, rate, pct50=pct50, pct75=pct75),
        )
        for pct75, pct50 in LATENCIES
    ]
    long_timeout = Parameters(number, rate, keys=3, key_space_size=100_000, timeout=30_000, pct50=20, pct75=60)
    for what, parameters in [*published, ("the same, (60, 20), timeout 30 s, 100,000 keys", long_timeout)]:
        samples = rounds({name: _sampler(design, parameters) for name, design in _CONTENDERS.items()}, scale.pick(5, 2))
        bare = samples.pop("none")
        above = {
            name: [max(0.01, cost - least) for cost, least in zip(costs, bare, strict=True)]
            for name, costs in samples.items()
        }
        note = "CPU time per request at 10,000 a second, less that of the same run without a purgatory"
        yield from compare(SECTION, what, "us", above, note=note)


_CONTENDERS = {OURS: "new", FIRST: "first", "none": "none"}


def _sampler(design: str, parameters: Parameters) -> Callable[[], float]:
    """Return a function that measures the microseconds per request."""
    return lambda: perform(design, parameters).cpu / parameters.num * 1e6
