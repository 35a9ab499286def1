"""Draw the pictures of the documentation: ``python docs/drawings.py``.

The script draws the pictures from the library: the life of an operation from the table of endings, and the wheels from
a real timer that the script advances step by step.  One test draws the pictures again and compares them with the saved
ones; another compares the layers with the folders in the package.
"""

import sys
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from purgatory import SystemTimer, TimerTask
from purgatory.core.operation.lifecycle import ENDINGS
from purgatory.relay.connection import State
from purgatory.testing import VirtualClock

INK, FAINT, PAPER = "#1f2933", "#5f6b78", "#fbfbf9"
COLOURS = {
    "PENDING": "#5b6b7c",
    "COMPLETED": "#1b7f5c",
    "EXPIRED": "#b3701a",
    "CANCELLED": "#6b5aa8",
    "FAILED": "#b2343f",
}
DARK = {  # in dark mode, the second color replaces the first
    INK: "#e6e9ed",
    FAINT: "#9aa4af",
    PAPER: "#181d23",
    "#d9dde2": "#343c46",
    "#e6e9ec": "#2d343d",
    "#e9ecef": "#2d343d",
    "#47535f": "#b4bdc7",
}
DARK_TEXT = {COLOURS["COMPLETED"]: "#4cc38a"}  # for text on the panel
FONT = "font-family='Inter, Helvetica, Arial, sans-serif'"


def _at_night() -> str:
    rules = [f"[fill='{day}']{{fill:{night}}}[stroke='{day}']{{stroke:{night}}}" for day, night in DARK.items()]
    rules += [f"text[fill='{day}']{{fill:{night}}}" for day, night in DARK_TEXT.items()]
    return f"<style>@media (prefers-color-scheme:dark){{{''.join(rules)}}}</style>"


class Drawing:
    """An SVG picture on its own panel, in the page's light or dark colors."""

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
        """Write text at a point.  Options are SVG attributes with ``_`` in place of ``-``."""
        more = "".join(f" {name.replace('_', '-')}='{value}'" for name, value in options.items())
        self.parts.append(f"<text x='{x:g}' y='{y:g}' font-size='{size}' fill='{colour}'{more}>{escape(words)}</text>")

    def box(self, x: float, y: float, width: float, height: float, fill: str, stroke: str = "none") -> None:
        """Draw a rounded rectangle."""
        self.parts.append(
            f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='5' fill='{fill}' stroke='{stroke}'/>"
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float, colour: str = INK) -> None:
        """Draw an arrow; it is curved unless it is horizontal."""
        middle = (x1 + x2) / 2
        path = f"M{x1:g} {y1:g} C{middle:g} {y1:g} {middle:g} {y2:g} {x2:g} {y2:g}"
        self.parts.append(f"<path d='{path}' fill='none' stroke='{colour}' stroke-width='1.5' marker-end='url(#tip)'/>")

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = FAINT, dash: str = "") -> None:
        """Draw a thin line."""
        dashes = f" stroke-dasharray='{dash}'" if dash else ""
        self.parts.append(f"<line x1='{x1:g}' y1='{y1:g}' x2='{x2:g}' y2='{y2:g}' stroke='{colour}'{dashes}/>")

    def finish(self) -> str:
        """Return the content of the SVG file."""
        return "\n".join([*self.parts, "</svg>", ""])


def life() -> str:
    """Draw how an operation ends, from the table in ``purgatory.core.operation.lifecycle``."""
    drawing = Drawing(870, 92 + 82 * len(ENDINGS), "The life of an operation")
    drawing.text(24, 36, "The life of an operation", 18, font_weight="600")
    drawing.text(
        24, 58, "An operation leaves PENDING exactly once. A second attempt to end it returns False.", 13, FAINT
    )
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
    """Draw the path of a 450 ms task through the wheels of a real timer."""
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
    drawing = Drawing(860, 126 + 128 * len(moments), "A task with a delay of 450 ms cascades twice")
    drawing.text(24, 36, "A task with a delay of 450 ms, on wheels of 20 buckets", 18, font_weight="600")
    drawing.text(24, 58, "The timer wakes three times: the task cascades twice and then runs.", 13, FAINT)
    for number, (now_ms, level, start_ms, end_ms, tick_ms) in enumerate(moments):
        y = 92 + 128 * number
        drawing.text(24, y + 22, f"at {now_ms} ms", 15, font_weight="600")
        drawing.text(24, y + 42, f"level {level}", 12, FAINT)
        drawing.text(24, y + 58, f"buckets of {tick_ms} ms", 12, FAINT)
        slot = start_ms // tick_ms % slots
        for index in range(slots):
            x = left + index * width / slots
            drawing.box(x, y, width / slots - 3, 44, COLOURS["EXPIRED"] if index == slot else "#e9ecef")
        x = left + slot * width / slots
        span = f"{start_ms} ms" if tick_ms == 1 else f"{start_ms} .. {end_ms - 1} ms"
        drawing.text(x + width / slots / 2 - 1, y + 62, span, 12, text_anchor="middle")
        following = (
            f"bucket expires at {start_ms} ms: the task runs"
            if number + 1 == len(moments)
            else f"bucket expires at {start_ms} ms: the task moves to a finer wheel"
        )
        drawing.text(left + width + 10, y + 26, "", 12)
        drawing.text(left, y + 88, following, 13, COLOURS["COMPLETED"] if "runs" in following else INK)
        if number + 1 < len(moments):
            drawing.line(24, y + 108, 836, y + 108, "#e6e9ec")
    drawing.text(24, 126 + 128 * len(moments) - 18, f"cascades: {timer.cascades}", 12, FAINT)
    return drawing.finish()


CANCELLING = (
    (
        "The task is cancelled, then the condition holds",
        (
            ("task.cancel()", "cancels its future; the task has not run yet"),
            ("check_and_complete(key)", "withdraws the operation of the cancelled task"),
            ("the task runs", "park() raises CancelledError"),
        ),
        "CANCELLED",
        "on_complete() does not run, so there is no result to lose",
    ),
    (
        "The condition holds, then the task is cancelled",
        (
            ("check_and_complete(key)", "runs on_complete() and sets the future's result"),
            ("task.cancel()", "the future is done; the task is still cancelled"),
            ("the task runs", "park() raises CancelledError"),
        ),
        "COMPLETED",
        "the outcome stands; on_abandoned(result) receives the result",
    ),
)


def cancelling() -> str:
    """Draw what happens when a task is cancelled and its operation ends in one turn of the event loop."""
    drawing = Drawing(860, 400, "Cancellation and completion in the same turn of the event loop")
    drawing.text(24, 36, "Cancellation and completion in the same turn of the event loop", 18, font_weight="600")
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


LAYERS = (  # as in tests/project/test_layout.py, from the lowest layer to the highest
    ("core/timer", "The timer", "TimerTask, TimerTaskList, DelayQueue, TimingWheel, TimerCore, BaseTimer"),
    ("core/operation", "Operations and how they end", "Operation, DelayedOperation, lifecycle, stack guard"),
    ("core/watch", "Watchers of keys", "WatcherLists, WatchList, WatchCursor, thresholds, validation"),
    ("core/stats", "Statistics and observers", "Counters, Histogram, ObserverNotifier, RecordBuffer"),
    ("core", "The purgatory without an event loop", "PurgatoryCore, Hooks, BasePurgatory"),
    ("aio", "The event loop", "Purgatory, SystemTimer, Timeout, DelayedFuture, ThresholdPurgatory"),
)
OPTIONAL = ("asgi", "relay", "journal", "pipeline", "conditions", "otel", "testing")


def layers() -> str:
    """Draw the layers of the package, from the optional parts down to the timer."""
    drawing = Drawing(860, 108 + 62 * (len(LAYERS) + 1), "The layers of the package")
    drawing.text(24, 36, "The layers of the package", 18, font_weight="600")
    drawing.text(24, 58, "A module imports only from its own layer and from the layers below.", 13, FAINT)
    y = 78
    for number, name in enumerate(OPTIONAL):
        x = 160 + number * 97
        drawing.box(x, y, 90, 50, "#e9ecef")
        drawing.text(x + 45, y + 30, name, 13, text_anchor="middle", font_weight="600")
    drawing.text(24, y + 22, "optional parts", 13, font_weight="600")
    drawing.text(24, y + 40, "imported by no layer", 11, FAINT)
    for folder, subject, names in reversed(LAYERS):
        y += 62
        is_core = folder.startswith("core")
        if folder == "core":  # the top one of the compiled layers
            y += 12
            drawing.line(24, y - 12, 836, y - 12, FAINT, "4 4")
            drawing.text(24, y + 10, "synchronous", 12, font_weight="600")
            for line, words in enumerate(("time is an argument", "no asyncio", "compiled by mypyc")):
                drawing.text(24, y + 28 + 16 * line, words, 11, FAINT)
        elif folder == "aio":
            drawing.text(24, y + 22, "asynchronous", 12, font_weight="600")
            drawing.text(24, y + 40, "awaits, reads the time", 11, FAINT)
        drawing.box(160, y, 672, 50, COLOURS["PENDING"] if is_core else COLOURS["COMPLETED"])
        drawing.text(176, y + 21, folder + "/", 14, "#fff", font_weight="600")
        drawing.text(326, y + 21, subject, 13, "#fff")
        drawing.text(176, y + 40, names, 12, "#e7ebef")
    return drawing.finish()


# How a wait ends: the event, what ``wait.value`` does then, and what the client receives with ``install_errors``.
ENDS_OF_A_WAIT = (
    ("a check, and get() returns a value", "returns the value", "200", "COMPLETED"),
    ("the deadline passes", "returns None", "204: your choice", "EXPIRED"),
    ("the purgatory closes", "returns None; raise_if_closing() raises", "503, Retry-After", "EXPIRED"),
    ("the client disconnects", "raises ClientDisconnected", "nothing", "CANCELLED"),
    ("get() raises", "raises the exception", "500", "FAILED"),
)


def wait() -> str:
    """Draw the life of one wait in a web application."""
    drawing = Drawing(870, 146 + 74 * len(ENDS_OF_A_WAIT), "The life of a wait")
    drawing.text(24, 36, "The life of a wait", 18, font_weight="600")
    drawing.text(24, 58, 'await wait.value(get, keys={"orders": 8}) in a request with ?wait=30', 13, FAINT)
    drawing.box(24, 84, 190, 62, "#e9ecef")
    drawing.text(36, 108, "get() is called once", 14, font_weight="600")
    drawing.text(36, 130, "in the request's own task", 12, FAINT)
    drawing.text(234, 104, "a value: returned at once; nothing is parked", 13, COLOURS["COMPLETED"])
    drawing.text(234, 122, "a timeout of 0: returns None", 13)
    drawing.text(234, 140, "a limit is reached: PurgatoryFull, 503 or 429", 13)
    middle = 140 + 37 * len(ENDS_OF_A_WAIT)
    drawing.line(119, 146, 119, middle - 40, INK)
    drawing.text(130, 176, "None", 12, FAINT)
    drawing.box(24, middle - 40, 190, 80, COLOURS["PENDING"])
    drawing.text(119, middle - 14, "parked", 15, "#fff", text_anchor="middle", font_weight="600")
    drawing.text(119, middle + 6, "on its keys and on the timer", 11, "#e7ebef", text_anchor="middle")
    drawing.text(119, middle + 24, "the task sleeps", 11, "#e7ebef", text_anchor="middle")
    drawing.text(24, middle + 62, "A check that reaches the threshold", 11, FAINT)
    drawing.text(24, middle + 78, "calls get(); None: it stays parked.", 11, FAINT)
    drawing.text(640, 168, "wait.value ...", 11, FAINT)
    drawing.text(846, 168, "the client gets", 11, FAINT, text_anchor="end")
    for number, (event, effect, answer, outcome) in enumerate(ENDS_OF_A_WAIT):
        y = 204 + 70 * number
        drawing.arrow(216, middle, 282, y)
        drawing.box(292, y - 20, 112, 40, COLOURS[outcome])
        drawing.text(348, y + 5, outcome, 13, "#fff", text_anchor="middle", font_weight="600")
        drawing.text(416, y - 6, event, 13, font_weight="600")
        drawing.text(416, y + 14, effect, 13)
        drawing.text(846, y + 5, answer, 13, text_anchor="end")
        if number:
            drawing.line(292, y - 35, 846, y - 35, "#e6e9ec")
    return drawing.finish()


LIFELINES = ("client", "worker A", "engine", "worker B", "shared state")
MESSAGES = (  # from, to, what is sent, and what it means
    (0, 1, "GET /jobs/7?wait=30", ""),
    (1, 4, "refresh(['7'])", "A parks the request on key 7, and reads the state"),
    (4, 1, "{'7': 30}", "30 is below the threshold of 40: the request waits"),
    (3, 4, "UPDATE: 7 is at 40", "B changes the state"),
    (3, 2, "relay.check('7', 40)", "check: B tries its waiters, and sends a notice"),
    (2, 1, "notice: '7', 40", "notice: a key and a value, but no data"),
    (1, 4, "refresh(['7'])", "refresh: one read for all keys that are due"),
    (4, 1, "{'7': 40}", "check: A tries the waiters on key 7"),
    (1, 0, "200: 40", "the request is answered"),
)


def workers() -> str:
    """Draw how a check in one worker answers a request in another worker."""
    drawing = Drawing(1010, 116 + 46 * len(MESSAGES), "Two workers: check, notice, refresh, check")
    drawing.text(24, 36, "Two workers: check, notice, refresh, check", 18, font_weight="600")
    places = [80 + 142 * number for number in range(len(LIFELINES))]
    bottom = 100 + 46 * len(MESSAGES)
    for place, name in zip(places, LIFELINES, strict=True):
        drawing.line(place, 92, place, bottom, FAINT, "3 4")
        drawing.box(place - 56, 60, 112, 32, COLOURS["PENDING"] if name.startswith("worker") else "#e9ecef")
        ink = "#fff" if name.startswith("worker") else INK
        drawing.text(place, 81, name, 13, ink, text_anchor="middle", font_weight="600")
    for number, (start, end, label, meaning) in enumerate(MESSAGES):
        y = 126 + 46 * number
        left, right = sorted((places[start], places[end]))
        side = 3 if end > start else -3
        drawing.arrow(places[start] + side, y, places[end] - side, y)
        width = 7.2 * len(label) + 10
        drawing.box((left + right - width) / 2, y - 20, width, 15, PAPER)
        drawing.text((left + right) / 2, y - 8, label, 12, text_anchor="middle")
        word, colon, rest = meaning.partition(": ")
        if colon and word in {"check", "notice", "refresh"}:
            drawing.text(720, y + 4, f"{word}:", 12, COLOURS["COMPLETED"], font_weight="600")
            drawing.text(730 + 7.6 * len(word), y + 4, rest, 11)
        else:
            drawing.text(720, y + 4, meaning, 11)
    return drawing.finish()


SIGTERM = (  # a lane, and its spans: from, to, the words, and the color
    (
        "parked requests",
        (0, 2, "wait", "PENDING"),
        (2, 5, "can still complete", "COMPLETED"),
        (5, 5.9, "answered", "EXPIRED"),
    ),
    ("new waits", (0, 2, "are parked", "PENDING"), (2, 7, "refused: 503 with Retry-After", "CANCELLED")),
    ("GET /healthz/", (0, 2, "200", "COMPLETED"), (2, 7, "503: not ready", "CANCELLED")),
    ("the lifespan", (0, 5.9, "is running", "PENDING"), (5.9, 7, "ends", "EXPIRED")),
    ("the process", (0, 7, "serves the requests that are in progress", "PENDING")),
)
SIGTERM_MARKS = (
    (2, "SIGTERM", "closing begins"),
    (5, "grace is over", "the rest are answered"),
    (7, "exit", "normally"),
)
SIGTERM_LIMITS = ((8.5, "graceful timeout", "of the server"), (10.1, "SIGKILL", "by the supervisor"))


def sigterm() -> str:
    """Draw what happens between SIGTERM and the exit of the process."""
    left, unit = 150, 78.0
    bottom = 120 + 46 * len(SIGTERM)
    drawing = Drawing(1010, bottom + 60, "From SIGTERM to the exit")
    drawing.text(24, 36, "From SIGTERM to the exit, with purgatory_lifespan(room, grace=...)", 18, font_weight="600")
    drawing.text(24, bottom + 34, "Keep this order: grace, the server's graceful timeout, SIGKILL.", 13, FAINT)
    for at, name, meaning in (*SIGTERM_MARKS, *SIGTERM_LIMITS):
        x = left + unit * at
        drawing.line(x, 96, x, bottom, FAINT, "3 4")
        drawing.text(x, 74, name, 12, text_anchor="middle", font_weight="600")
        drawing.text(x, 90, meaning, 11, FAINT, text_anchor="middle")
    for number, (lane, *spans) in enumerate(SIGTERM):
        y = 106 + 46 * number
        drawing.text(24, y + 23, lane, 13, font_weight="600")
        for start, end, words, colour in spans:
            x, width = left + unit * start, unit * (end - start)
            drawing.box(x + 1, y, width - 2, 36, COLOURS[colour])
            drawing.text(x + width / 2, y + 22, words, 12, "#fff", text_anchor="middle")
    return drawing.finish()


RELAY = {  # each state, and what the relay does in it
    State.CONNECTING: ("connects and subscribes", "connected is False"),
    State.SUBSCRIBED: ("sends keys, and a first ping", "connected is False"),
    State.CONNECTED: ("sends and receives notices; pings", "connected is True"),
    State.LOST: ("pauses for up to 5 s, at random", "connected is False"),
}
RELAY_STEPS = (
    ("the engine confirms", "the subscription"),
    ("the first ping is back:", "every key is read and checked"),
    ("a ping is not back within", "heartbeat, or the connection ends"),
)


def relay() -> str:
    """Draw the states of a relay's connection."""
    drawing = Drawing(1010, 330, "The states of a relay")
    drawing.text(24, 36, "The states of a relay's connection", 18, font_weight="600")
    drawing.text(
        24, 58, "In every state, operations keep their deadlines, and local checks answer local waiters.", 13, FAINT
    )
    places = [24 + 256 * number for number in range(len(RELAY))]
    for place, (state, (does, shows)) in zip(places, RELAY.items(), strict=True):
        colour = {"CONNECTED": "COMPLETED", "LOST": "FAILED"}.get(state.name, "PENDING")
        drawing.box(place, 128, 196, 86, COLOURS[colour])
        drawing.text(place + 98, 154, state.name, 15, "#fff", text_anchor="middle", font_weight="600")
        drawing.text(place + 98, 176, does, 11, "#fff", text_anchor="middle")
        drawing.text(place + 98, 196, shows, 11, "#e7ebef", text_anchor="middle")
    for place, (first, second) in zip(places, RELAY_STEPS, strict=False):
        drawing.arrow(place + 198, 171, place + 253, 171)
        drawing.text(place + 226, 96, first, 11, text_anchor="middle")
        drawing.text(place + 226, 112, second, 11, text_anchor="middle")
    middle = places[-1] + 98
    for x1, y1, x2, y2 in ((middle, 214, middle, 262), (middle, 262, 122, 262)):
        drawing.line(x1, y1, x2, y2, INK)
    drawing.parts.append(
        f"<path d='M122 262 L122 217' fill='none' stroke='{INK}' stroke-width='1.5' marker-end='url(#tip)'/>"
    )
    drawing.text(
        506, 256, "after the pause, it connects again; keys to send are kept meanwhile", 12, text_anchor="middle"
    )
    drawing.text(
        24,
        300,
        "In CONNECTING and SUBSCRIBED, the same faults lead to LOST. With on_lost='fail', LOST fails the",
        12,
        FAINT,
    )
    drawing.text(24, 318, "operations whose keys can be relayed. Closing ends the relay in every state.", 12, FAINT)
    return drawing.finish()


PICTURES = {
    "layers.svg": layers,
    "life.svg": life,
    "wheels.svg": wheels,
    "cancelling.svg": cancelling,
    "wait.svg": wait,
    "workers.svg": workers,
    "sigterm.svg": sigterm,
    "relay.svg": relay,
}


def main() -> None:
    """Write all pictures."""
    for name, draw in PICTURES.items():
        (HERE / "images" / name).write_text(draw(), encoding="utf-8")
        print("docs/images/" + name)


if __name__ == "__main__":
    main()
