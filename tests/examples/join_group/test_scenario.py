"""Plans, recorded arrivals and the command line of the join-group simulator."""

from pathlib import Path
from typing import Any

import pytest

from examples.join_group.arrivals import ArrivalsError, read_arrivals
from examples.join_group.cli import parse
from examples.join_group.scenario import EventKind, Scenario, plan_groups


def test_the_same_seed_plans_the_same_lives() -> None:
    """The seed determines all random numbers."""
    scenario = Scenario(groups=3, members=5)
    assert plan_groups(scenario) == plan_groups(scenario)
    assert plan_groups(scenario) != plan_groups(Scenario(groups=3, members=5, seed=2))


def test_the_plans_of_a_group_do_not_depend_on_the_others() -> None:
    """With more groups, the plans of the existing groups do not change."""
    few, many = plan_groups(Scenario(groups=3, members=5)), plan_groups(Scenario(groups=9, members=5))
    assert list(many.values())[:3] == list(few.values())


def test_a_plan_keeps_to_the_settings() -> None:
    """Without a rate there are no events, with a share of 1 all members are static, and no event is after the end."""
    quiet = plan_groups(Scenario(crash_rate=0, leave_rate=0, slow_rate=0, static=1.0))
    assert all(not plan.events and plan.instance_id for plans in quiet.values() for plan in plans)
    wild = plan_groups(Scenario(crash_rate=100, leave_rate=0, slow_rate=100, static=0.0, stay_away=0.0))
    events = [event for plans in wild.values() for plan in plans for event in plan.events]
    assert {event.kind for event in events} == {EventKind.CRASH, EventKind.SLOW}
    assert all(sum(event.after for event in plan.events) < 600 for plans in wild.values() for plan in plans)
    assert all(event.pause is not None for event in events)


def test_who_stays_away_is_struck_once() -> None:
    """A member that leaves permanently has no later events."""
    plans = plan_groups(Scenario(crash_rate=100, slow_rate=0, stay_away=1.0))
    assert all(len(plan.events) <= 1 for some in plans.values() for plan in some)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"groups": 0}, "groups must be at least 1, got 0"),
        ({"duration": 0.0}, "duration must be a number of seconds above 0, got 0.0"),
        ({"spread": -1.0}, "spread must be a finite number, at least 0, got -1.0"),
        ({"arrival_sigma": 1000.0}, "arrival_sigma must be between 0 and 5, got 1000.0"),
        ({"crash_rate": 4000.0}, "crash_rate must be 0 to 3600 per member and hour, got 4000.0"),
        ({"static": 1.5}, "static must be between 0 and 1, got 1.5"),
        ({"heartbeat_interval": 45.0}, "session_timeout must be finite and above heartbeat_interval=45.0, got 45.0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    """The message contains the name of the setting and its valid range."""
    with pytest.raises(ValueError, match=said):
        Scenario(**settings)


def test_recorded_arrivals_in_seconds(tmp_path: Path) -> None:
    """Times count from the earliest one and are sorted within their groups; other columns are ignored."""
    path = tmp_path / "a.csv"
    path.write_text("group,host,arrived_at\nb,x,12.5\na,y,10\na,z,9.5\n")
    assert read_arrivals(path) == {"b": (3.0,), "a": (0.0, 0.5)}


def test_recorded_arrivals_as_dates(tmp_path: Path) -> None:
    """Dates may have a time zone; without a column for the group, the group has the name of the file."""
    path = tmp_path / "restart.csv"
    path.write_text("arrived_at\n2025-01-31T12:00:01.5\n2025-01-31T13:00:00+01:00\n")
    assert read_arrivals(path) == {"restart": (0.0, 1.5)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must contain the column 'arrived_at'"),
        ("group,time\na,1\n", "must contain the column 'arrived_at'"),
        ("arrived_at\n", "contains no arrivals"),
        ("group,arrived_at\na,1\n,2\n", "line 3: the group is missing"),
        ("group,arrived_at\na\n", "line 2: arrived_at is missing"),
        ("arrived_at\nsoon\n", "line 2: arrived_at must be a number of seconds or a date .* got 'soon'"),
        ("arrived_at\nnan\n", "line 2: arrived_at must be a finite number"),
        ("arrived_at\n1\n2025-01-31\n", "line 3: arrived_at must be seconds in all lines or dates in all lines"),
        ("arrived_at\n\x00\n", "a.csv"),
        ("arrived_at\n\udcff\n", "is not a CSV file"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """The message contains the file, the line and the error."""
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ArrivalsError, match=said):
        read_arrivals(path)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    """A missing file is reported without a traceback."""
    with pytest.raises(ArrivalsError, match="cannot be read: No such file"):
        read_arrivals(tmp_path / "none.csv")


def test_the_command_line_says_it_all(tmp_path: Path) -> None:
    """The command line accepts durations with units, the seed, the speed, and the arrivals."""
    path = tmp_path / "a.csv"
    path.write_text("arrived_at\n1\n2\n")
    arguments = ["--duration", "2h", "--downtime", "500ms", "--seed", "7", "--speed", "max"]
    options = parse([*arguments, "--arrivals", str(path)])
    assert (options.scenario.duration, options.scenario.downtime, options.scenario.seed) == (7200.0, 0.5, 7)
    assert options.speed is None
    assert options.scenario.arrivals == {"a": (0.0, 1.0)}
    assert parse([]).speed == 40.0
    assert parse(["--speed", "2.5"]).speed == 2.5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--groups", "0"], "groups must be at least 1, got 0"),
        (["--duration", "10x"], "duration must be a number, or like 500ms, 10m, or 2h, got '10x'"),
        (["--speed", "0"], "speed must be a number above 0"),
        (["--speed", "fast"], "speed must be a number above 0"),
        (["--speed", "2", "--real-time"], "--speed and --real-time cannot be combined"),
        (["--picture", "p.gif"], "must end with .svg or .png"),
        (["--picture", "/not/there/p.svg"], "directory /not/there does not exist"),
        (["--arrivals", "/not/there.csv"], "cannot be read"),
    ],
)
def test_a_bad_command_line_says_what_was_meant(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 2, and the error is one sentence."""
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
