"""Draw the pictures of the documentation: ``python docs/drawings.py``.

They are drawn from the library: the life of an operation from its table of endings, the wheels from a real timer that
is driven step by step.  A test draws them again and compares.
"""

import sys
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from purgatory import SystemTimer, TimerTask
from purgatory.endings import ENDINGS
from purgatory.testing import VirtualClock

INK, FAINT, PAPER = "#1f2933", "#5f6b78", "#fbfbf9"
COLOURS = {
    "PENDING": "#5b6b7c",
    "COMPLETED": "#1b7f5c",
    "EXPIRED": "#b3701a",
    "CANCELLED": "#6b5aa8",
    "FAILED": "#b2343f",
}
DARK = {  # on a dark ground: what is drawn in the first colour is drawn in the second
    INK: "#e6e9ed",
    FAINT: "#9aa4af",
    PAPER: "#181d23",
    "#d9dde2": "#343c46",
    "#e6e9ec": "#2d343d",
    "#e9ecef": "#2d343d",
    "#47535f": "#b4bdc7",
}
DARK_TEXT = {COLOURS["COMPLETED"]: "#4cc38a"}  # of words that stand on the panel
FONT = "font-family='Inter, Helvetica, Arial, sans-serif'"


def _at_night() -> str:
    rules = [f"[fill='{day}']{{fill:{night}}}[stroke='{day}']{{stroke:{night}}}" for day, night in DARK.items()]
    rules += [f"text[fill='{day}']{{fill:{night}}}" for day, night in DARK_TEXT.items()]
    return f"<style>@media (prefers-color-scheme:dark){{{''.join(rules)}}}</style>"


class Drawing:
    """An SVG picture on a panel of its own, which goes with the light or dark of the page."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'",
            f" role='img' aria-label='{escape(title, quote=True)}' {FONT}>",
            f"<title>{escape(title)}</title>",
            _at_night(),
            "<defs><marker id='tip' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7'",
            f" orient='auto'><path d='M0 0 L8 4 L0 8 z' fill='{INK}'/></marker></defs>",
        ]
        self.box(0.5, 0.5, width - 1, height - 1, PAPER, "#d9dde2")

    def text(self, x: float, y: float, words: str, size: int = 13, colour: str = INK, **options: str) -> None:
        """Write at a point; options are SVG attributes with ``_`` for ``-``."""
        more = "".join(f" {name.replace('_', '-')}='{value}'" for name, value in options.items())
        self.parts.append(f"<text x='{x:g}' y='{y:g}' font-size='{size}' fill='{colour}'{more}>{escape(words)}</text>")

    def box(self, x: float, y: float, width: float, height: float, fill: str, stroke: str = "none") -> None:
        """A rounded rectangle."""
        self.parts.append(
            f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='5' fill='{fill}' stroke='{stroke}'/>"
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float, colour: str = INK) -> None:
        """A line with a tip; it turns halfway if it is not level."""
        middle = (x1 + x2) / 2
        path = f"M{x1:g} {y1:g} C{middle:g} {y1:g} {middle:g} {y2:g} {x2:g} {y2:g}"
        self.parts.append(f"<path d='{path}' fill='none' stroke='{colour}' stroke-width='1.5' marker-end='url(#tip)'/>")

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = FAINT, dash: str = "") -> None:
        """A thin line."""
        dashes = f" stroke-dasharray='{dash}'" if dash else ""
        self.parts.append(f"<line x1='{x1:g}' y1='{y1:g}' x2='{x2:g}' y2='{y2:g}' stroke='{colour}'{dashes}/>")

    def finish(self) -> str:
        """The whole file."""
        return "\n".join([*self.parts, "</svg>", ""])


def life() -> str:
    """How an operation ends: the table in ``purgatory.operation``."""
    drawing = Drawing(870, 92 + 82 * len(ENDINGS), "The life of an operation")
    drawing.text(24, 36, "The life of an operation", 18, font_weight="600")
    drawing.text(24, 58, "PENDING is left once; whoever comes second gets False.", 13, FAINT)
    middle = 74 + 41 * len(ENDINGS)
    drawing.box(24, middle - 26, 120, 52, COLOURS["PENDING"])
    drawing.text(84, middle - 2, "PENDING", 15, "#fff", text_anchor="middle", font_weight="600")
    drawing.text(84, middle + 16, "parked on keys", 11, "#e7ebef", text_anchor="middle")
    for number, ending in enumerate(ENDINGS):
        y = 115 + 82 * number
        name = ending.outcome.name
        drawing.arrow(146, middle, 246, y)
        drawing.text(256, y - 6, ending.how, 13)
        drawing.text(256, y + 13, f"runs: {ending.runs}", 12, FAINT)
        drawing.box(600, y - 22, 116, 44, COLOURS[name])
        drawing.text(658, y + 5, name, 14, "#fff", text_anchor="middle", font_weight="600")
        drawing.text(726, y - 4, "awaiters get", 11, FAINT)
        drawing.text(726, y + 13, ending.awaiters, 12)
        if number:
            drawing.line(250, y - 41, 842, y - 41, "#e6e9ec")
    return drawing.finish()


def wheels() -> str:
    """A task of 450 ms on its way through the wheels of a real timer."""
    timer = SystemTimer(clock=VirtualClock())
    timer.add(TimerTask(450))
    moments = []
    at_ms = 0
    while timer.size:
        level, (start_ms, _) = next(
            (wheel, wheel.occupancy()[0]) for wheel in timer.wheel.levels() if wheel.occupancy()
        )
        moments.append((at_ms, level.level, start_ms, start_ms + level.tick_ms, level.tick_ms))
        at_ms = start_ms
        timer.expire_due(at_ms)
    slots, left, width = 20, 150, 620
    drawing = Drawing(860, 126 + 128 * len(moments), "A task that is due at 450 ms cascades twice")
    drawing.text(24, 36, "A task of 450 ms, in wheels of 20 slots", 18, font_weight="600")
    drawing.text(24, 58, "The clock jumps from bucket to bucket. Two cascades, three turns, and it runs.", 13, FAINT)
    for number, (now_ms, level, start_ms, end_ms, tick_ms) in enumerate(moments):
        y = 92 + 128 * number
        drawing.text(24, y + 22, f"at {now_ms} ms", 15, font_weight="600")
        drawing.text(24, y + 42, f"level {level}", 12, FAINT)
        drawing.text(24, y + 58, f"slots of {tick_ms} ms", 12, FAINT)
        slot = start_ms // tick_ms % slots
        for index in range(slots):
            x = left + index * width / slots
            drawing.box(x, y, width / slots - 3, 44, COLOURS["EXPIRED"] if index == slot else "#e9ecef")
        x = left + slot * width / slots
        span = f"{start_ms} ms" if tick_ms == 1 else f"{start_ms} .. {end_ms - 1} ms"
        drawing.text(x + width / slots / 2 - 1, y + 62, span, 12, text_anchor="middle")
        following = (
            f"due at {start_ms}: it runs"
            if number + 1 == len(moments)
            else f"due at {start_ms}: it cascades to a finer wheel"
        )
        drawing.text(left + width + 10, y + 26, "", 12)
        drawing.text(left, y + 88, following, 13, COLOURS["COMPLETED"] if "runs" in following else INK)
        if number + 1 < len(moments):
            drawing.line(24, y + 108, 836, y + 108, "#e6e9ec")
    drawing.text(24, 126 + 128 * len(moments) - 18, f"cascades: {timer.cascades}", 12, FAINT)
    return drawing.finish()


CANCELLING = (
    (
        "cancelled, then the condition holds",
        (
            ("task.cancel()", "its future is cancelled; the task has not run yet"),
            ("check_and_complete(key)", "finds that, and withdraws the operation"),
            ("the task runs", "CancelledError"),
        ),
        "CANCELLED",
        "on_complete() never ran: nothing was handed to a caller who has left",
    ),
    (
        "the condition holds, then cancelled",
        (
            ("check_and_complete(key)", "on_complete() runs, the future has its result"),
            ("task.cancel()", "comes too late for the future, not for the task"),
            ("the task runs", "CancelledError, as asyncio wants it"),
        ),
        "COMPLETED",
        "the outcome stands: result() has the answer for whoever cleans up",
    ),
)


def cancelling() -> str:
    """What happens when a task is cancelled and its operation ends, in one turn of the loop."""
    drawing = Drawing(860, 400, "Cancelled and completed in one turn of the loop")
    drawing.text(24, 36, "Cancelled and completed in one turn of the loop", 18, font_weight="600")
    for number, (title, steps, outcome, meaning) in enumerate(CANCELLING):
        y = 76 + 164 * number
        drawing.text(24, y, title, 14, font_weight="600")
        for index, step in enumerate(steps):
            x = 24 + index * 276
            drawing.box(x, y + 14, 256, 62, "#e9ecef")
            drawing.text(x + 12, y + 38, step[0], 13, font_weight="600")
            drawing.text(x + 12, y + 60, step[1], 10, "#47535f")
            if index < 2:
                drawing.arrow(x + 257, y + 45, x + 274, y + 45)
        drawing.box(24, y + 90, 116, 34, COLOURS[outcome])
        drawing.text(82, y + 112, outcome, 13, "#fff", text_anchor="middle", font_weight="600")
        drawing.text(152, y + 112, meaning, 13)
    return drawing.finish()


PICTURES = {"life.svg": life, "wheels.svg": wheels, "cancelling.svg": cancelling}


def main() -> None:
    """Write all pictures."""
    for name, draw in PICTURES.items():
        (HERE / "images" / name).write_text(draw(), encoding="utf-8")
        print("docs/images/" + name)


if __name__ == "__main__":
    main()
