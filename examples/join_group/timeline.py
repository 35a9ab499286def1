"""The timeline of the first groups as a picture, with one row per member and time running to the right."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from examples.group import GroupState

from .canvas import GENERATIONS, Canvas, PngCanvas, SvgCanvas
from .recorder import GroupTrack, Status, StatusChange
from .simulation import Simulation

__all__ = ["draw", "new_canvas", "write_picture"]

_WIDTH = 1200.0
_LEFT = 64.0
_RIGHT = 24.0
_TOP = 92.0
_BOTTOM = 34.0
_ROW = 11.0
_BAR = 8.0
_STRIP = 15.0
_GAP = 30.0
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)

_LEGEND = (
    ("waiting", "waiting: its request is parked"),
    (GENERATIONS[0], "member; each generation has a color"),
    ("crashed", "crashed, not detected yet"),
    ("removed", "removed, not aware of it yet"),
    ("gone", "not a member"),
)


@dataclass(frozen=True, slots=True)
class _Scale:
    """The conversion from time to x coordinate."""

    end_ms: int

    def x(self, at_ms: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * min(at_ms, self.end_ms) / self.end_ms


def new_canvas(path: Path, width: float, height: float, title: str) -> Canvas:
    """Return a canvas for the type of the file.  Raise ImportError if a PNG file needs matplotlib."""
    if path.suffix == ".svg":
        return SvgCanvas(width, height, title)
    try:
        return PngCanvas(width, height, title)
    except ImportError as error:
        raise ImportError("a .png file needs matplotlib: pip install matplotlib (a .svg file does not)") from error


def write_picture(path: Path, simulation: Simulation) -> None:
    """Draw the timeline of the first groups and save it."""
    record = simulation.record
    height = _TOP + sum(_STRIP + _ROW * len(track.rows) + _GAP for track in record.tracks.values()) + _BOTTOM
    shown, total = len(record.tracks), len(simulation.plans)
    title = f"{shown} of {total} groups" if shown < total else f"{total} group{'s' if total > 1 else ''}"
    canvas = new_canvas(path, _WIDTH, height, f"{title}: waiting, active, and removed members")
    draw(canvas, height, title, simulation)
    canvas.save(path)


def draw(canvas: Canvas, height: float, title: str, simulation: Simulation) -> None:
    """Draw the complete picture."""
    record = simulation.record
    scale = _Scale(max(1, round(simulation.scenario.duration * 1000)))
    canvas.rect(0, 0, _WIDTH, height, "ground")
    canvas.text(_LEFT, 34, title, "strong", 19)
    canvas.text(
        _LEFT + 9 * len(title) + 24,
        34,
        f"seed {simulation.scenario.seed}; each row is a member, and each line across the rows is a rebalance",
        "faint",
        13,
    )
    _draw_legend(canvas)
    _draw_time(canvas, scale, height)
    top = _TOP
    for group_id, track in record.tracks.items():
        _draw_group(canvas, scale, top, _label(group_id, track, simulation), track)
        top += _STRIP + _ROW * len(track.rows) + _GAP


def _label(group_id: str, track: GroupTrack, simulation: Simulation) -> str:
    shown, total = len(track.rows), len(simulation.plans[group_id])
    return group_id if shown == total else f"{group_id}: the first {shown} of {total} members"


def _draw_legend(canvas: Canvas) -> None:
    x = _LEFT
    for ink, what in _LEGEND:
        if ink == "gone":
            canvas.line(x, 57, x + 22, 57, ink, 1.5)
        else:
            canvas.rect(x, 52, 22, 10, ink)
        canvas.text(x + 29, 61, what, "faint", 12)
        x += 29 + 6.4 * len(what) + 22


def _draw_time(canvas: Canvas, scale: _Scale, height: float) -> None:
    step = next((step for step in _STEPS if scale.end_ms / 1000 / step <= 12), _STEPS[-1])
    for second in range(0, scale.end_ms // 1000 + 1, step):
        x = scale.x(second * 1000)
        canvas.line(x, _TOP - 10, x, height - _BOTTOM, "grid")
        canvas.text(x, height - _BOTTOM + 16, _clock(second), "faint", 11, "middle")


def _clock(second: int) -> str:
    hours, rest = divmod(second, 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _draw_group(canvas: Canvas, scale: _Scale, top: float, label: str, track: GroupTrack) -> None:
    bottom = top + _STRIP + _ROW * len(track.rows)
    canvas.text(_LEFT, top - 5, label, "strong", 12)
    for number, (name, row) in enumerate(track.rows.items()):
        y = top + _STRIP + _ROW * number
        canvas.text(_LEFT - 8, y + _BAR, name.rpartition("-")[2], "faint", 9, "end")
        _draw_row(canvas, scale, y, row.changes)
    _draw_states(canvas, scale, top, bottom, track)


def _draw_row(canvas: Canvas, scale: _Scale, y: float, changes: list[StatusChange]) -> None:
    ends = [*(change.at_ms for change in changes[1:]), scale.end_ms]
    for change, until_ms in zip(changes, ends, strict=False):  # a member that never arrived has no changes
        x, to_x = scale.x(change.at_ms), scale.x(until_ms)
        if to_x - x < 0.05:
            continue
        if change.status is Status.GONE:
            canvas.line(x, y + _BAR / 2, to_x, y + _BAR / 2, "gone", 1.5)
        else:
            canvas.rect(x, y, to_x - x, _BAR, _ink(change))


def _ink(change: StatusChange) -> str:
    if change.status is Status.MEMBER:
        return _generation_ink(change.generation)
    return str(change.status.value)


def _generation_ink(generation: int) -> str:
    return GENERATIONS[(generation - 1) % len(GENERATIONS)]


def _draw_states(canvas: Canvas, scale: _Scale, top: float, bottom: float, track: GroupTrack) -> None:
    """Draw the strip above the rows: the state of the group and the numbers of its generations."""
    ends = [*(at_ms for at_ms, _, _ in track.states[1:]), scale.end_ms]
    for (at_ms, state, generation), until_ms in zip(track.states, ends, strict=False):
        x, to_x = scale.x(at_ms), scale.x(until_ms)
        if state is GroupState.COMPLETING_REBALANCE:
            canvas.line(x, top, x, bottom - (_ROW - _BAR), "barrier", 1.0)
        if to_x - x < 0.05:
            continue
        if state is GroupState.PREPARING_REBALANCE:
            canvas.rect(x, top, to_x - x, _STRIP - 5, "waiting")
        elif state is not GroupState.EMPTY:
            canvas.rect(x, top, to_x - x, _STRIP - 5, _generation_ink(generation))
            if to_x - x > 14:
                canvas.text(x + 4, top + 8.5, str(generation), "#ffffff", 9)
