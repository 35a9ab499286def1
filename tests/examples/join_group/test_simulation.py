"""Runs of the join-group simulator are reproducible and complete."""

import asyncio
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from examples.group import Group, GroupState, Removal
from examples.join_group.__main__ import main
from examples.join_group.canvas import INKS
from examples.join_group.loop_monitor import LoopMonitor
from examples.join_group.recorder import Recorder, Status
from examples.join_group.scenario import Scenario
from examples.join_group.simulation import Simulation
from examples.join_group.terminal import plain_line, quantiles
from examples.join_group.timeline import write_picture
from purgatory.types import MonotonicClock

LIVELY = Scenario(groups=6, members=6, duration=300.0, crash_rate=6.0, leave_rate=6.0, slow_rate=6.0, downtime=20.0)


async def _run(scenario: Scenario, steps: int = 1) -> Simulation:
    """Run a simulation in virtual time in this number of steps, and check the invariants at the end."""
    simulation = Simulation(scenario)
    async with simulation.running():
        for step in range(1, steps + 1):
            await simulation.advance_to(scenario.duration * step / steps)
        simulation.view()
        for purgatory in simulation.coordinator.purgatories:
            purgatory._check()
    return simulation


@pytest.mark.slow
async def test_the_same_settings_give_the_same_run() -> None:
    """All events are the same for any steps of the clock; another seed gives another run."""
    first, second = await _run(LIVELY), await _run(LIVELY, steps=37)
    assert first.record.fingerprint == second.record.fingerprint
    assert list(first.record.latencies_ms) == list(second.record.latencies_ms)
    other = await _run(Scenario(groups=6, members=6, duration=300.0, seed=2))
    assert other.record.fingerprint != first.record.fingerprint


@pytest.mark.slow
def test_all_loops_give_the_same_run() -> None:
    """The order of events is the same on asyncio and on uvloop."""
    uvloop = pytest.importorskip("uvloop")
    runs = []
    for factory in (asyncio.SelectorEventLoop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            runs.append(runner.run(_run(LIVELY)))
    assert runs[0].record.fingerprint == runs[1].record.fingerprint
    assert runs[0].record.tracks == runs[1].record.tracks


async def test_everything_that_can_befall_a_member_does() -> None:
    """Sessions expire, members leave or are removed because they are slow, and static members return."""
    simulation = await _run(LIVELY)
    record = simulation.record
    assert {Removal.SESSION, Removal.LEFT, Removal.REBALANCE} <= record.removed.keys()
    assert record.replaced > 0
    assert record.rebalances > 6
    assert record.kept > record.joined_first > 0
    shown = {change.status for track in record.tracks.values() for row in track.rows.values() for change in row.changes}
    assert shown == set(Status)


async def test_in_peace_everyone_ends_up_with_a_share_of_its_own() -> None:
    """Without events, each group is stable and complete, and each member has a different assignment."""
    scenario = Scenario(groups=4, members=5, duration=120.0, crash_rate=0, leave_rate=0, slow_rate=0, late=0.0)
    simulation = Simulation(scenario)
    async with simulation.running():
        await simulation.advance_to(scenario.duration)
        groups: list[Group] = list(simulation.coordinator.groups.values())
        assert {group.state for group in groups} == {GroupState.STABLE}
        for group in groups:
            assert sorted(int(member.assignment) for member in group.members.values()) == list(range(5))
        assert simulation.record.removed.total() == 0


async def test_recorded_arrivals_are_kept() -> None:
    """Members of a recorded group arrive at the recorded times."""
    arrivals = {"morning": (0.0, 1.0, 2.0), "evening": (100.0,)}
    scenario = Scenario(arrivals=arrivals, duration=150.0, crash_rate=0, leave_rate=0, slow_rate=0)
    simulation = await _run(scenario)
    tracks = simulation.record.tracks
    first = [row.changes[0].at_ms for row in tracks["morning"].rows.values()]
    assert first == [0, 1000, 2000]
    assert [at_ms for at_ms, state, _ in tracks["evening"].states if state is GroupState.COMPLETING_REBALANCE] == [
        103_000
    ]


async def test_a_run_leaves_nothing_behind() -> None:
    """At the end of a run, no task of a member is left, and no operation is parked."""
    before = asyncio.all_tasks()
    simulation = await _run(LIVELY)
    assert asyncio.all_tasks() == before
    assert [len(purgatory) for purgatory in simulation.coordinator.purgatories] == [0, 0, 0]


async def test_a_defect_in_a_member_comes_to_light(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in the coroutine of a member is reported, and not treated as a leave."""

    async def broken(self: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("examples.join_group.member.SimulatedMember._work", broken)
    with pytest.raises(ZeroDivisionError):
        await _run(LIVELY)


async def test_a_run_in_real_time() -> None:
    """With a real clock, the groups form in steps of real time."""
    scenario = Scenario(
        groups=2,
        members=3,
        duration=60.0,
        spread=0.0,
        arrival_median=0.01,
        late=0.0,
        initial_rebalance_delay=0.05,
        crash_rate=0,
        leave_rate=0,
        slow_rate=0,
    )
    simulation = Simulation(scenario, clock=MonotonicClock())
    async with simulation.running():
        await simulation.advance_to(0.02)
        assert simulation.now >= 0.02
        while simulation.record.joined_first < 6 and simulation.now < scenario.duration:
            await simulation.advance_to(simulation.now + 0.01)
        assert simulation.record.joined_first == 6


async def test_the_picture_has_a_row_for_every_member(tmp_path: Path) -> None:
    """The picture is well-formed, contains groups and members, and has a color for each event in light and dark
    mode.
    """
    simulation = await _run(LIVELY)
    path = tmp_path / "timeline.svg"
    write_picture(path, simulation)
    text = path.read_text()
    root = ET.fromstring(text)
    labels = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [label for label in labels if label in simulation.plans] == list(simulation.plans)
    assert sum(1 for label in labels if re.fullmatch(r"m\d+", label or "")) == 36
    assert {f"f-{ink}" for ink in ("waiting", "crashed", "removed")} <= set(re.findall(r'class="([\w-]+)"', text))
    assert "prefers-color-scheme:dark" in text
    assert all(light in text and dark in text for light, dark in INKS.values())


async def test_a_large_group_is_drawn_in_part_and_says_so(tmp_path: Path) -> None:
    """The picture stays readable, and states what it omits."""
    simulation = await _run(Scenario(groups=2, members=80, duration=30.0))
    path = tmp_path / "timeline.svg"
    write_picture(path, simulation)
    text = path.read_text()
    assert "group-0: the first 60 of 80 members" in text
    assert "1 of 2 groups" in text


def test_a_png_without_matplotlib_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message states what to install, and no simulation has run."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["--picture", str(tmp_path / "p.png"), "--speed", "max"]) == 1
    shown = capsys.readouterr()
    assert "pip install matplotlib" in shown.err
    assert shown.out == ""


def test_a_png_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With matplotlib, the picture is written as PNG."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "p.png"
    assert main(["--groups", "1", "--members", "3", "--speed", "max", "--picture", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert str(path) in capsys.readouterr().out.replace("\n", "")


def test_a_journal_without_its_extra_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message states what to install."""
    monkeypatch.delitem(sys.modules, "purgatory.journal", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["--journal", str(tmp_path), "--speed", "max"]) == 1
    assert "aiopurgatory[journal]" in capsys.readouterr().err


def test_the_journal_has_every_operation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The journal has a row for each operation, and the run is the same as without a journal."""
    dataset = pytest.importorskip("pyarrow.parquet")
    small = ["--groups", "2", "--members", "4", "--speed", "max", "--crash-rate", "10"]
    assert main(small) == 0
    without = capsys.readouterr().out
    assert main([*small, "--journal", str(tmp_path / "journal")]) == 0
    shown = capsys.readouterr().out
    assert without.split()[-1] in shown  # the fingerprint
    handed_over = [int(number) for number in re.findall(r"^(?:join|sync|heartbeat) +(\d+)", shown, re.MULTILINE)]
    rows = dataset.ParquetDataset(tmp_path / "journal").read()
    assert rows.num_rows == sum(handed_over)
    assert {"group-0", "group-1"} == {key.split("/")[0] for keys in rows.column("keys").to_pylist() for key in keys}


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_program_shows_what_happened(loop: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal, the program prints tables at the end, with the longest turn of the loop."""
    pytest.importorskip(loop)
    assert main(["--groups", "2", "--members", "3", "--speed", "max", "--loop", loop, "--plain"]) == 0
    shown = capsys.readouterr().out
    assert "groups 2, members 6: 0:10:00 simulated" in shown
    for what in ("rebalances", "members kept", "max", "heartbeat", "longest turn", "fingerprint"):
        assert what in shown
    assert "\x1b" not in shown


def test_the_pace_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """At a speed of 100, ten seconds take at least a tenth of a second."""
    assert main(["--groups", "1", "--members", "2", "--duration", "10", "--speed", "100"]) == 0
    took = re.search(r"simulated in (\d+\.\d) s", capsys.readouterr().out)
    assert took is not None
    assert float(took[1]) >= 0.1


async def test_a_line_of_progress_tells_what_waits() -> None:
    """The line contains the groups by state, and the parked, completed and expired operations."""
    simulation = Simulation(LIVELY)
    async with simulation.running():
        await simulation.advance_to(100.0)
        line = plain_line(simulation.view())
    assert line.startswith("0:01:40")
    assert "Stable" in line
    assert "joins parked" in line


def test_the_longest_turn_leaves_out_what_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn is the CPU time between two calls of the selector, without the excluded time."""
    now = [0.0]
    monkeypatch.setattr("examples.join_group.loop_monitor.time.thread_time", lambda: now[0])
    meter = LoopMonitor()
    with meter.left_out():
        now[0] = 5.0
    now[0] = 5.25
    meter.over(0.0)
    assert meter.longest == 0.25
    now[0] = 6.0
    meter.over(5.25)
    assert (meter.longest, meter.turns) == (0.75, 2)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_turns_are_measured(loop: str) -> None:
    """A callback that blocks the loop appears in the longest turn."""
    pytest.importorskip(loop)
    meter = LoopMonitor()

    async def hold() -> None:
        import time

        meter.begin()
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        await asyncio.sleep(0.002)

    with asyncio.Runner(loop_factory=lambda: meter.new_loop(loop)) as runner:
        runner.run(hold())
    assert meter.longest >= 0.018


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_turn_does_not_grow_while_the_thread_does_not_run(loop: str) -> None:
    """A thread that is suspended for 200 ms uses no CPU time, so the turn is not long."""
    pytest.importorskip(loop)
    meter = LoopMonitor()

    async def put_aside() -> None:
        import time

        await asyncio.sleep(0.002)
        meter.begin()
        time.sleep(0.2)  # noqa: ASYNC251 (the thread must not run, whatever the loop has to do)
        await asyncio.sleep(0.002)

    with asyncio.Runner(loop_factory=lambda: meter.new_loop(loop)) as runner:
        runner.run(put_aside())
    assert meter.turns > 0
    assert meter.longest < 0.1


def test_quantiles_are_values_that_were_there() -> None:
    """The 99th percentile of a hundred values is the 99th value."""
    assert quantiles(range(1, 101), (0.5, 0.99, 1.0)) == [50, 99, 100]
    assert quantiles([7], (0.0, 1.0)) == [7, 7]


def test_a_record_counts_from_the_beginning() -> None:
    """Times count from ``begin()``, and the end of a group is not reported."""
    now = [500]
    record = Recorder(lambda: now[0], {})
    now[0] = 700
    record.begin()
    now[0] = 950
    assert record.now_ms() == 250
    group = Group("g")
    group.transition(GroupState.DEAD)
    record.state_changed(group, GroupState.EMPTY)
    assert not record.news
