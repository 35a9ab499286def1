"""The live view in a terminal, and the user's keystrokes."""

import codecs
import contextlib
import os
import re
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, NoReturn, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from .client import STAY, Client, ServiceError
from .screen import ORDERS, Line, View, chosen_room, render, room_names

__all__ = ["Keyboard", "State", "pressed", "show"]

_STYLES: Final = {
    "title": "bold", "head": "bright_black", "quiet": "bright_black", "critical": "bold red", "warning": "yellow",
    "note": "cyan", "chosen": "bold cyan",
}  # fmt: skip
_HELP: Final = "w, t, e: keys by waiting, total wait, expired   /: search   n: next purgatory   space: pause   q: quit"
_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_LONGEST_SEARCH: Final = 200
_MOST_ROWS: Final = 50
_END: Final = "\x04"  # Control-D, and the end of the input
_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[ -~])")  # what an arrow or a function key sends
_BEGUN: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")
_REST_WITHIN: Final = 0.05  # seconds within which the rest of a sequence arrives; otherwise, Escape was pressed


class State(NamedTuple):
    """What the user has chosen, and whether the view is paused or ended.

    ``typed``: the text of a search that the user is typing, or None.
    """

    view: View
    paused: bool = False
    ended: bool = False
    typed: str | None = None


class Keyboard:
    """The user's keystrokes inside a ``with`` block, one at a time and without Enter.

    Keys that send a sequence of characters, such as the arrows, are ignored.
    """

    def __init__(self) -> None:
        self._closing = contextlib.ExitStack()
        self._decoder = codecs.getincrementaldecoder(sys.stdin.encoding or "utf-8")("replace")
        self._keys: deque[str] = deque()

    def __enter__(self) -> Self:
        self._closing.enter_context(_single_keys())
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def key(self, timeout: float) -> str:
        """Return the next keystroke, or an empty string if no key is pressed within ``timeout`` seconds."""
        if not self._keys:
            text = self._read(timeout)
            while _BEGUN.search(text) and (rest := self._read(_REST_WITHIN)):
                text += rest
            self._keys += _SEQUENCE.sub("", text)
        return self._keys.popleft() if self._keys else ""

    def _read(self, timeout: float) -> str:
        """Return what was typed.  The text layer of ``sys.stdin`` would keep bytes that ``select()`` does not see."""
        ready, _, _ = select.select([sys.stdin], [], [], max(0.0, timeout))
        if not ready:
            return ""
        try:
            typed = os.read(sys.stdin.fileno(), 1024)
        except OSError:  # the terminal has been closed
            typed = b""
        return self._decoder.decode(typed) if typed else _END


@contextlib.contextmanager
def _single_keys() -> Iterator[None]:
    """Make the terminal pass on each keystroke at once, without echoing it."""
    import termios  # not on Windows
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _exiting_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit, so that the terminal is restored.  Leave other handlers in place."""

    def leave(number: int, _: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # a second signal would interrupt the cleanup
        raise SystemExit(128 + number)

    in_main_thread = threading.current_thread() is threading.main_thread()
    own = [number for number in _SIGNALS if in_main_thread and signal.getsignal(number) is signal.SIG_DFL]
    for number in own:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in own:
            signal.signal(number, signal.SIG_DFL)


def pressed(state: State, key: str, frame: dict[str, Any] | None) -> State:
    """Return the state after the user has pressed a key."""
    if state.typed is not None:
        return _typed(state, state.typed, key)
    if key == "/":
        return state._replace(typed="")
    if key == "\x1b":
        return state._replace(view=state.view._replace(search=""))
    if key in ("q", _END):
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


def _typed(state: State, typed: str, key: str) -> State:
    """Return the state after a keystroke while the user types a search: Enter starts the search, and Escape ends it."""
    if key in ("\r", "\n"):
        return state._replace(view=state.view._replace(search=typed), typed=None)
    if key in ("\x1b", _END):
        return state._replace(view=state.view._replace(search=""), typed=None)
    if key in ("\x7f", "\x08"):
        return state._replace(typed=typed[:-1])
    return state._replace(typed=(typed + key)[:_LONGEST_SEARCH]) if key.isprintable() else state


def show(
    client: Client, view: View, interval: float, rows: int | None, keyboard: Keyboard, console: Console | None = None
) -> int:
    """Show frames until the user quits; return the exit status.  If the service stops answering, the screen shows the
    error.
    """
    console = Console(highlight=False) if console is None else console
    state = State(view)
    frame: dict[str, Any] | None = None
    searched: dict[str, Any] | None = None
    trouble = ""
    with _exiting_on_signals(), keyboard, Live(console=console, screen=True, auto_refresh=False) as live:
        due = 0.0
        while not state.ended:
            if time.monotonic() >= due and not state.paused:
                try:
                    frame, trouble = client.frame(), ""
                    text = state.view.search
                    with client.showing():
                        room = chosen_room(frame, state.view)
                        searched = client.search(room["name"], text, _MOST_ROWS) if text and room is not None else None
                except ServiceError as error:
                    trouble = str(error)
                due = time.monotonic() + interval
            shown = searched if state.view.search else None
            try:
                with client.showing():
                    screen = _screen(console, frame, shown, state, trouble, rows)
            except ServiceError as error:
                frame, searched, trouble = None, None, str(error)
                screen = _screen(console, None, None, state, trouble, rows)
            live.update(screen, refresh=True)
            if not state.paused:
                client.stay()
            before = state.view
            left = interval if state.paused else due - time.monotonic()
            state = pressed(state, keyboard.key(min(left, STAY)), frame)
            if state.view.search and (state.view.search, state.view.room) != (before.search, before.room):
                searched, due = None, 0.0
    return 0


def _screen(
    console: Console,
    frame: dict[str, Any] | None,
    searched: dict[str, Any] | None,
    state: State,
    trouble: str,
    rows: int | None,
) -> Group:
    width, height = console.size
    if rows is None:
        rows = max(3, (height - 22) // 2)
    lines = [] if frame is None else render(frame, state.view, width=width, rows=rows, searched=searched)
    if trouble:
        lines.insert(0, Line(f"{trouble}; trying again", "critical"))
    status = "PAUSED   " if state.paused else ""
    asked = _HELP if state.typed is None else f"search: {state.typed}_   Enter: search   Escape: all keys"
    shown = [*lines[: height - 1], *[Line("")] * (height - 1 - len(lines)), Line(f"{status}{asked}", "quiet")]
    return Group(*[Text(line.text, style=_STYLES.get(line.style, ""), no_wrap=True) for line in shown])
