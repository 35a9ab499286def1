"""What it costs a server to notice that a client has hung up: ``python -m benchmarks.detection [--runs N]``.

The long poll of the section "server", in which each publish answers all requests on its key, runs in four forms:
``purgatory.asgi``, and ``asyncio.timeout`` with an ``Event``, each with the detection of a hang-up and without it.  The
passes of the forms alternate.  Without detection, the difference between the two forms is the cost of the wait itself;
in each form, the difference between its two costs is the cost of its detection.

The addresses of a process's objects, which chance decides, change its costs by several percent.  Therefore, the servers
are started several times.  Each interval contains the middle 95% of the values in resamples of these runs.
"""

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence

from purgatory import COMPILED

from .row import Unavailable

__all__ = ["comparison", "main"]

Costs = Mapping[str, Sequence[float]]  # by form, the µs of CPU time of a request, on average, in each run
Means = Mapping[str, float]

FORMS = {
    "wait": "purgatory.asgi",
    "undetected": "purgatory.asgi without detection",
    "event-reader": "asyncio.timeout + Event + reader task",
    "event": "asyncio.timeout + Event, without detection",
}
_DIFFERENCES: dict[str, Callable[[Means], float]] = {
    "the wait of purgatory.asgi, compared with Event": lambda means: means["undetected"] - means["event"],
    "detection in purgatory.asgi": lambda means: means["wait"] - means["undetected"],
    "detection in a task": lambda means: means["event-reader"] - means["event"],
}
_RATIOS: dict[str, Callable[[Means], float]] = {
    "purgatory.asgi / Event, both without detection": lambda means: means["undetected"] / means["event"],
    "purgatory.asgi / Event, both with detection": lambda means: means["wait"] / means["event-reader"],
}
TITLES = {False: "each publish after the answers of the previous one", True: "all publishes at once"}
_RESAMPLES = 2_000


def comparison(costs: Costs, seed: int = 1) -> list[str]:
    """Return the lines that compare the costs, which must have as many runs for each form."""
    rng, runs = random.Random(seed), len(costs["wait"])
    resamples = [rng.choices(range(runs), k=runs) for _ in range(_RESAMPLES)]

    def line(what: str, value: Callable[[Means], float], form: str) -> str:
        means = [
            {form: statistics.fmean(cost[index] for index in indexes) for form, cost in costs.items()}
            for indexes in ([*range(runs)], *resamples)
        ]
        whole, *others = map(value, means)
        others.sort()
        low, high = others[_RESAMPLES // 40], others[-1 - _RESAMPLES // 40]
        return f"  {what:<48} {whole:{form}} ({low:{form}} to {high:{form}})"

    return [
        *(line(FORMS[name], lambda means, name=name: means[name], ".1f") for name in FORMS),  # type: ignore[misc]
        *(line(what, value, ".1f") for what, value in _DIFFERENCES.items()),
        *(line(what, value, ".3f") for what, value in _RATIOS.items()),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.detection", description="The cost of noticing hang-ups."
    )
    parser.add_argument("--runs", type=int, default=8, help="how often the servers are started (8)")
    parser.add_argument("--passes", type=int, default=8, help="how often each server answers all of its requests (8)")
    parser.add_argument("--clients", type=int, default=2_000, help="waiting requests, ten on each key (2,000)")
    options = parser.parse_args(arguments)
    from .server import section

    try:
        section.prepare()
        shape = section.on_many_keys(options.clients, options.clients // 10)
        print(f"CPU time of a request in µs, {'compiled' if COMPILED else 'interpreted'} core")
        for busy, title in TITLES.items():
            runs = [section.alternating(FORMS, shape, options.passes, busy=busy) for _ in range(options.runs)]

            def means(part: str, runs: Sequence[Mapping[str, object]] = runs) -> Costs:
                return {form: [statistics.fmean(getattr(run[form], part)) for run in runs] for form in FORMS}

            for kind, part in (("in total", "cpu_us"), ("outside the garbage collector", "own_us")):
                print(f"{title}, {kind}:")
                print("\n".join(comparison(means(part))))
            print(f"{title}, how often the server slept for each request:")
            for form, sleeps in means("sleeps").items():
                print(f"  {FORMS[form]:<48} {statistics.fmean(sleeps):.3f}", flush=True)
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
