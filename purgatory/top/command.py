"""The ``purgatory top`` command."""

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from purgatory.extras import need
from purgatory.texts import shortened

from .client import STAY, Client, ServiceError
from .screen import ORDERS, View, chosen_room, render, room_names

__all__ = ["LOOK", "main"]

LOOK: Final = 3.0
"""The number of seconds of counted checks after which plain text is printed."""
_MOST_LOOK: Final = 2.0  # seconds in addition to LOOK, for a service that is slow or whose clock does not move
_WIDTH: Final = 1_000  # for plain text that is not written to a terminal, so that reasons are complete
_ROWS: Final = 10
_EPILOG: Final = """\
In a terminal, the view is live: w, t, and e sort the keys by waiting operations, total wait, and expired operations,
/ searches for a key, n shows the next purgatory, space pauses, and q quits.  This needs rich: pip install
'aiopurgatory[top]'.
If the output is a pipe or a file, the command prints plain text, once unless --count is given.  The inspector counts
checks only while a viewer is connected, so the text appears after a few seconds.

examples:
  purgatory top localhost:8000/purgatory
  purgatory top localhost:8000/purgatory --search order-7
  purgatory top https://ops.example.com/purgatory --header "Authorization: Bearer $TOKEN" | grep CRITICAL
"""


def main(arguments: Sequence[str], prog: str = "purgatory top") -> int:
    """Run the command; return its exit status, which is 1 if the service does not answer with the last frame."""
    options = _parser(prog).parse_args(arguments)
    try:
        client = Client(options.url, dict(options.header), options.timeout)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    view = View(shortened(options.room), options.sort, options.search)
    try:
        if options.room:
            frame = client.frame()
            with client.showing():
                names = room_names(frame)
            if view.room not in names:
                raise ServiceError(f"there is no purgatory {options.room!r}, only {', '.join(map(repr, names))}")
        if options.count is None and not options.plain and sys.stdout.isatty() and sys.stdin.isatty():
            return _live(client, view, options)
        return _plain(client, view, options)
    except (ImportError, ServiceError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _live(client: Client, view: View, options: argparse.Namespace) -> int:
    need("the live view of purgatory top", "top", "rich")
    from .terminal import Keyboard, show

    client.frame()  # a wrong URL is an error, not an empty screen
    return show(client, view, options.interval, options.rows, Keyboard())


def _plain(client: Client, view: View, options: argparse.Namespace) -> int:
    print("\n".join(_lines(client, view, options, _looked(client))), flush=True)
    status = 0
    for _ in range(1, options.count or 1):
        _wait(client, options.interval)
        try:
            lines, status = _lines(client, view, options, client.frame()), 0
        except ServiceError as error:  # a loop that is blocked is one of the reasons to save frames
            lines, status = [f"error: {error}"], 1
        print("", *lines, sep="\n", flush=True)
    return status


def _lines(client: Client, view: View, options: argparse.Namespace, frame: dict[str, Any]) -> list[str]:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH
    rows, searched = options.rows or _ROWS, None
    with client.showing():
        if view.search and (room := chosen_room(frame, view)) is not None:
            searched = client.search(room["name"], view.search, rows)
        return [line.text for line in render(frame, view, width=width, rows=rows, searched=searched)]


def _wait(client: Client, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        client.stay()
        time.sleep(min(left, STAY))


def _looked(client: Client) -> dict[str, Any]:
    """Return a frame in which checks have been counted for several seconds, as a finding about checks requires."""
    frame = client.frame()
    ends = time.monotonic() + LOOK + _MOST_LOOK
    while (left := LOOK - _counted(client, frame)) > 0 and time.monotonic() < ends:
        time.sleep(min(1.0, max(0.1, left)))
        frame = client.frame()
    return frame


def _counted(client: Client, frame: dict[str, Any]) -> float:
    """Return for how many seconds the checks have been counted in each purgatory with waiting operations."""
    with client.showing():
        rooms = [room for room in frame["rooms"] if not room.get("silent") and room["parked"]]
        return min([room["checks"]["seconds"] for room in rooms if room["checks"] is not None], default=LOOK)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Show who waits for what in a service, through its inspector (purgatory.asgi.inspector).",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("url", metavar="URL", help="the URL of the inspector's page, such as localhost:8000/purgatory")
    add("--room", default="", metavar="NAME", help="the purgatory to show (the one with the most waiting operations)")
    add("--sort", choices=sorted(ORDERS.values()), default="watchers", help="the order of the keys (watchers)")
    add(
        "--search",
        default="",
        metavar="KEY",
        help="show the keys that contain this text, and the operations on the best match",
    )
    add("--rows", type=_whole, metavar="N", help="keys and operations to show (as many as fit, or 10)")
    add("--interval", type=_seconds, default=2.0, metavar="SECONDS", help="the time between two frames (2)")
    add("--count", type=_whole, metavar="N", help="print N frames as plain text, and exit")
    add("--plain", action="store_true", help="print plain text, even in a terminal")
    add("--timeout", type=_seconds, default=10.0, metavar="SECONDS", help="the time limit for an answer (10)")
    add("--header", type=_header, action="append", default=[], metavar="'NAME: VALUE'", help="a header to send")
    return parser


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 1_000_000):
        raise argparse.ArgumentTypeError(f"must be an integer, at least 1, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"must be from 0.1 to 3600 seconds, got {text!r}")
    return seconds


def _header(text: str) -> tuple[str, str]:
    # The errors do not repeat the header, which may be a password or a token.
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or not (name + value).isprintable():
        raise argparse.ArgumentTypeError("must be 'NAME: VALUE', in printable characters")
    if not name.isascii() or any(letter > "\xff" for letter in value):
        raise argparse.ArgumentTypeError("must have an ASCII name and a Latin-1 value")
    return name.strip(), value.strip()
