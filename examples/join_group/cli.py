"""The command line of the simulator."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .arrivals import read_arrivals
from .scenario import Scenario

__all__ = ["Order", "parse"]

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_DEFAULT_SPEED = 40.0
_WEB_SPEED = 10.0
_WEB_DURATION = 24 * 3600.0
_WEB_PORT = 8000
_DEFAULTS = Scenario()


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be done.

    ``speed``: how many times faster than real time the virtual clock runs at most; None: as fast as it can.
    ``real_time``: no virtual clock at all.  ``web_port``: where the live page is served; None: nowhere.
    """

    scenario: Scenario
    real_time: bool
    speed: float | None
    loop: str
    plain: bool
    picture: Path | None
    journal: Path | None
    web_port: int | None = None


def parse(arguments: Sequence[str] | None = None) -> Order:
    """What a command line asks for; a bad one ends the program with status 2 and says what was meant."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.picture is not None and given.picture.suffix not in (".svg", ".png"):
        parser.error(f"--picture writes .svg or .png, not {given.picture.name!r}")
    if given.picture is not None and not given.picture.absolute().parent.is_dir():
        parser.error(f"--picture: there is no directory {given.picture.parent}")
    if given.real_time and given.speed is not None:
        parser.error("--speed is for virtual time; --real-time has only one speed")
    if given.port is not None and not given.web:
        parser.error("--port is the live page's: give --web, too")
    if given.duration is None:
        given.duration = _WEB_DURATION if given.web else _DEFAULTS.duration
    if given.speed is None:
        given.speed = _WEB_SPEED if given.web else _DEFAULT_SPEED
    try:
        settings = {field.name: getattr(given, field.name) for field in dataclasses.fields(Scenario)}
        if given.arrivals is not None:
            settings["arrivals"] = read_arrivals(given.arrivals)
        scenario = Scenario(**settings)
    except ValueError as error:
        parser.error(str(error))
    return Order(
        scenario=scenario,
        real_time=given.real_time,
        speed=None if given.speed == "max" else given.speed,
        loop=given.loop,
        plain=given.plain,
        picture=given.picture,
        journal=given.journal,
        web_port=None if not given.web else _WEB_PORT if given.port is None else given.port,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.join_group",
        description="Simulates consumer groups that join, rebalance, crash and come back, against a group coordinator"
        " whose requests wait in purgatories. Durations are seconds, or as 500ms, 10m, 2h.",
        epilog="The same settings give the same run: same seed, same fingerprint at the end.",
    )
    add = parser.add_argument_group("what is simulated").add_argument
    add("--groups", type=int, default=_DEFAULTS.groups, help="number of groups (%(default)s)")
    add("--members", type=int, default=_DEFAULTS.members, help="members of each group (%(default)s)")
    add("--duration", type=_duration, help="how long, in simulated time (10m; 24h with --web)")
    add("--seed", type=int, default=_DEFAULTS.seed, help="of everything that is left to chance (%(default)s)")
    add("--arrivals", type=Path, metavar="FILE.csv", help="recorded arrivals: columns arrived_at and, perhaps, group")
    add("--arrival-median", type=_duration, default=_DEFAULTS.arrival_median, help="of the log-normal arrivals (4s)")
    add("--arrival-sigma", type=float, default=_DEFAULTS.arrival_sigma, help="their spread (%(default)s)")
    add("--spread", type=_duration, default=_DEFAULTS.spread, help="within which the groups start (30s)")
    add("--late", type=float, default=_DEFAULTS.late, help="share of members that come much later (%(default)s)")
    add("--static", type=float, default=_DEFAULTS.static, help="share of static members (%(default)s)")
    for name, what in (("crash", "crashes"), ("leave", "proper goodbyes"), ("slow", "times of not joining again")):
        default = getattr(_DEFAULTS, f"{name}_rate")
        add(f"--{name}-rate", type=float, default=default, help=f"{what} per member and hour (%(default)s)")
    add("--downtime", type=_duration, default=_DEFAULTS.downtime, help="mean time away, or slow (40s)")
    add("--stay-away", type=float, default=_DEFAULTS.stay_away, help="share of those who never return (%(default)s)")

    add = parser.add_argument_group("the group protocol").add_argument
    add("--session-timeout", type=_duration, default=_DEFAULTS.session_timeout, help="(45s)")
    add("--heartbeat-interval", type=_duration, default=_DEFAULTS.heartbeat_interval, help="(15s)")
    add("--rebalance-timeout", type=_duration, default=_DEFAULTS.rebalance_timeout, help="(60s)")
    add("--initial-rebalance-delay", type=_duration, default=_DEFAULTS.initial_rebalance_delay, help="(3s)")

    add = parser.add_argument_group("how it runs, and what it leaves").add_argument
    add("--speed", type=_speed, help="times real time, or 'max': only the pace (40; 10 with --web)")
    add("--real-time", action="store_true", help="no virtual clock: a minute takes a minute")
    add("--loop", choices=["asyncio", "uvloop"], default="asyncio", help="the event loop (%(default)s)")
    add("--plain", action="store_true", help="lines instead of a live table, as when the output is no terminal")
    add("--picture", type=Path, metavar="FILE", help="write the timeline of the first groups, .svg or .png")
    add("--web", action="store_true", help="serve a live page of what waits where")
    add("--port", type=_port, help=f"of the live page, on 127.0.0.1; 0: a free one ({_WEB_PORT})")
    add("--journal", type=Path, metavar="DIR", help="write the journal of every operation as Parquet files")
    return parser


def _duration(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"a duration is seconds, or as 500ms, 10m, 2h, not {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"a port is a whole number from 0 to 65535, not {text!r}")
    return int(text)


def _speed(text: str) -> float | str:
    if text == "max":
        return text
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.0 < speed < float("inf"):
        raise argparse.ArgumentTypeError(f"a speed is a number above 0, or 'max', not {text!r}")
    return speed
