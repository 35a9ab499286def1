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

__all__ = ["Options", "parse"]

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_DEFAULT_SPEED = 40.0
_WEB_SPEED = 10.0
_WEB_DURATION = 24 * 3600.0
_WEB_PORT = 8000
_DEFAULTS = Scenario()


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run.

    ``speed``: maximum speed of the virtual clock as a multiple of real time; None: no limit.  ``real_time``: use a real
    clock.  ``web_port``: port of the live page, or None for no page.
    """

    scenario: Scenario
    real_time: bool
    speed: float | None
    loop: str
    plain: bool
    picture: Path | None
    journal: Path | None
    web_port: int | None = None


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Parse the command line.  On an error, print the reason and exit with code 2."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.picture is not None and given.picture.suffix not in (".svg", ".png"):
        parser.error(f"--picture must end with .svg or .png, got {given.picture.name!r}")
    if given.picture is not None and not given.picture.absolute().parent.is_dir():
        parser.error(f"--picture: directory {given.picture.parent} does not exist")
    if given.real_time and given.speed is not None:
        parser.error("--speed and --real-time cannot be combined")
    if given.port is not None and not given.web:
        parser.error("--port requires --web")
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
    return Options(
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
        description="Simulate consumer groups that join, rebalance, crash, and return. The requests to their group"
        " coordinator wait in purgatories. Durations are in seconds, or have a unit: 500ms, 10m, 2h.",
        epilog="Runs with the same settings and seed end with the same fingerprint.",
    )
    add = parser.add_argument_group("scenario").add_argument
    add("--groups", type=int, default=_DEFAULTS.groups, help="number of groups (%(default)s)")
    add("--members", type=int, default=_DEFAULTS.members, help="members per group (%(default)s)")
    add("--duration", type=_duration, help="duration in simulated time (10m; 24h with --web)")
    add("--seed", type=int, default=_DEFAULTS.seed, help="seed of all random numbers (%(default)s)")
    add("--arrivals", type=Path, metavar="FILE.csv", help="recorded arrivals: columns arrived_at and optionally group")
    add(
        "--arrival-median",
        type=_duration,
        default=_DEFAULTS.arrival_median,
        help="median of the log-normal arrivals (4s)",
    )
    add("--arrival-sigma", type=float, default=_DEFAULTS.arrival_sigma, help="sigma of the arrivals (%(default)s)")
    add("--spread", type=_duration, default=_DEFAULTS.spread, help="time within which the groups start (30s)")
    add("--late", type=float, default=_DEFAULTS.late, help="share of members that arrive much later (%(default)s)")
    add("--static", type=float, default=_DEFAULTS.static, help="share of static members (%(default)s)")
    for name, what in (("crash", "crashes"), ("leave", "clean exits"), ("slow", "delayed rejoins")):
        default = getattr(_DEFAULTS, f"{name}_rate")
        add(f"--{name}-rate", type=float, default=default, help=f"{what} per member and hour (%(default)s)")
    add("--downtime", type=_duration, default=_DEFAULTS.downtime, help="mean duration of an absence or a delay (40s)")
    add("--stay-away", type=float, default=_DEFAULTS.stay_away, help="share of members that never return (%(default)s)")

    add = parser.add_argument_group("group protocol").add_argument
    add("--session-timeout", type=_duration, default=_DEFAULTS.session_timeout, help="(45s)")
    add("--heartbeat-interval", type=_duration, default=_DEFAULTS.heartbeat_interval, help="(15s)")
    add("--rebalance-timeout", type=_duration, default=_DEFAULTS.rebalance_timeout, help="(60s)")
    add("--initial-rebalance-delay", type=_duration, default=_DEFAULTS.initial_rebalance_delay, help="(3s)")

    add = parser.add_argument_group("run and output").add_argument
    add("--speed", type=_speed, help="multiple of real time, or 'max' (40; 10 with --web)")
    add("--real-time", action="store_true", help="use a real clock instead of the virtual one")
    add("--loop", choices=["asyncio", "uvloop"], default="asyncio", help="event loop (%(default)s)")
    add("--plain", action="store_true", help="print lines instead of a live table, as without a terminal")
    add("--picture", type=Path, metavar="FILE", help="write the timeline of the first groups as .svg or .png")
    add("--web", action="store_true", help="serve a live page of the groups and purgatories")
    add("--port", type=_port, help=f"port of the live page on 127.0.0.1; 0 selects a free port ({_WEB_PORT})")
    add("--journal", type=Path, metavar="DIR", help="write the journal of every operation as Parquet files")
    return parser


def _duration(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"duration must be a number, or like 500ms, 10m, or 2h, got {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"port must be an integer from 0 to 65535, got {text!r}")
    return int(text)


def _speed(text: str) -> float | str:
    if text == "max":
        return text
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.0 < speed < float("inf"):
        raise argparse.ArgumentTypeError(f"speed must be a number above 0 or 'max', got {text!r}")
    return speed
