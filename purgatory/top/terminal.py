"""The live view in a terminal, and the keys that the user presses."""

import contextlib
import select
import sys
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from .client import Client, ServiceError
from .screen import ORDERS, Line, View, render, room_names

__all__ = ["Keyboard", "State", "pressed", "show"]

_STYLES: Final = {
    "title": "bold", "head": "bright_black", "quiet": "bright_black", "critical": "bold red", "warning": "yellow",
    "note": "cyan", "chosen": "bold cyan",
}  # fmt: skip
_HELP: Final = "w, t, e: keys by waiting, total wait, expired   n: next purgatory   space: pause   q: quit"


class State(NamedTuple):
    """What the user has chosen, and whether the view is paused or ends."""

    view: View
    paused: bool = False
    ended: bool = False


class Keyboard:
    """The keys that the user presses, one at a time and without Enter, inside a ``with`` block."""

    def __init__(self) -> None:
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._closing.enter_context(_single_keys())
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def key(self, timeout: float) -> str:
        """Return the next key; an empty text if none is pressed within ``timeout`` seconds."""
        ready, _, _ = select.select([sys.stdin], [], [], max(0.0, timeout))
        if not ready:
            return ""
        return sys.stdin.read(1) or "q"  # the end of the input


@contextlib.contextmanager
def _single_keys() -> Iterator[None]:
    """Let the terminal pass on each key at once, and not show it."""
    import termios  # not on Windows
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def pressed(state: State, key: str, frame: dict[str, Any] | None) -> State:
    """Return the state after the user has pressed a key."""
    if key in ("q", "\x04"):
        return state._replace(ended=True)
    if key == " ":
        return state._replace(paused=not state.paused)
    if key in ORDERS:
        return state._replace(view=state.view._replace(order=ORDERS[key]))
    if key in ("n", "\t") and frame is not None and (names := room_names(frame)):
        shown = state.view.room or max(frame["rooms"], key=lambda room: room.get("parked", -1))["name"]
        after = names.index(shown) + 1 if shown in names else 0
        return state._replace(view=state.view._replace(room=names[after % len(names)]))
    return state


def show(
    client: Client, view: View, interval: float, rows: int | None, keyboard: Keyboard, console: Console | None = None
) -> int:
    """Show the frames until the user ends it; return the exit status.  A service that stops answering is shown."""
    console = Console(highlight=False) if console is None else console
    state = State(view)
    frame: dict[str, Any] | None = None
    trouble = ""
    with keyboard, Live(console=console, screen=True, auto_refresh=False) as live:
        due = 0.0
        while not state.ended:
            if time.monotonic() >= due and not state.paused:
                try:
                    frame, trouble = client.frame(), ""
                except ServiceError as error:
                    trouble = str(error)
                due = time.monotonic() + interval
            live.update(_screen(console, frame, state, trouble, rows), refresh=True)
            state = pressed(state, keyboard.key(interval if state.paused else due - time.monotonic()), frame)
    return 0


def _screen(console: Console, frame: dict[str, Any] | None, state: State, trouble: str, rows: int | None) -> Group:
    width, height = console.size
    if rows is None:
        rows = max(3, (height - 22) // 2)
    lines = [] if frame is None else render(frame, state.view, width=width, rows=rows)
    if trouble:
        lines.insert(0, Line(f"{trouble}; trying again", "critical"))
    status = "PAUSED   " if state.paused else ""
    shown = [*lines[: height - 1], *[Line("")] * (height - 1 - len(lines)), Line(f"{status}{_HELP}", "quiet")]
    return Group(*[Text(line.text, style=_STYLES.get(line.style, ""), no_wrap=True) for line in shown])
