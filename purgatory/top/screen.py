"""A frame as lines of text, the same in a terminal and in a pipe."""

import textwrap
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

__all__ = ["ORDERS", "Line", "View", "chosen_room", "clock_time", "duration", "render", "room_names"]

ORDERS: Final = {"w": "watchers", "t": "total_wait", "e": "expired"}
"""The sort orders of the purgatory's keys, by the keystroke that selects each of them."""
_ORDER_TEXTS: Final = {"watchers": "waiting operations", "total_wait": "total wait", "expired": "expired, of a sample"}
_MOST_FAILURES: Final = 3
_LEAST_WIDTH: Final = 20
_UNITS: Final = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


class Line(NamedTuple):
    """A line of the screen, and its style: "", "title", "head", "critical", "warning", "note", "chosen", or "quiet"."""

    text: str
    style: str = ""


class View(NamedTuple):
    """What the user has chosen.

    ``room``: the name of a purgatory, or "" for the fullest one.  ``order``: the sort order of its keys.  ``search``: a
    string that the keys to show must contain, or "".
    """

    room: str = ""
    order: str = "watchers"
    search: str = ""


def duration(seconds: float) -> str:
    """Return a duration with two or three digits and its unit."""
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.{1 if seconds < 10 * size else 0}f} {unit}"
    return f"{seconds * 1000:.{1 if 0 < seconds < 0.01 else 0}f} ms"


def clock_time(at: float, now: float) -> str:
    """Return a time from ``time.time()`` in this machine's time zone, with the date if ``now`` has a different one."""
    local, today = datetime.fromtimestamp(at).astimezone(), datetime.fromtimestamp(now).astimezone().date()
    return local.strftime("%H:%M:%S %Z" if local.date() == today else "%Y-%m-%d %H:%M:%S %Z")


def room_names(frame: dict[str, Any]) -> list[str]:
    """Return the names of those purgatories in the frame that can be shown."""
    return [room["name"] for room in frame["rooms"] if not room.get("silent")]


def render(
    frame: dict[str, Any], view: View, *, width: int, rows: int, searched: dict[str, Any] | None = None
) -> list[Line]:
    """Return the lines of the screen, each of at most ``width`` characters, with about ``rows`` keys and operations.

    ``searched``: the result of the view's search, which the screen shows instead of the hot keys.
    """
    worker = frame["worker"]
    lines = [
        Line(
            f"{frame['title']}: worker {worker['pid']} on {worker['host']}, watched for {duration(worker['uptime'])}, "
            f"longest recent turn {duration(frame['loop']['lag'])}",
            "title",
        )
    ]
    if not frame["findings"]:
        lines.append(Line("Nothing stands out.", "quiet"))
    for finding in frame["findings"]:
        where = f"{finding['room']}: " if finding["room"] is not None and len(frame["rooms"]) > 1 else ""
        text = _printable(f"{finding['level'].upper()}  {where}{finding['text']}")
        # A finding is the reason to look, so it is never cut.
        parts = (
            [text] if len(text) <= width else textwrap.wrap(text, max(width, _LEAST_WIDTH), subsequent_indent="    ")
        )
        lines += [Line(part, finding["level"]) for part in parts]
    lines += _relays(frame)
    lines += _workers(frame)
    room = chosen_room(frame, view)
    lines += _rooms(frame, room)
    if room is not None:
        # The deadline and the errors come first: they must be visible without a larger terminal.
        lines += _oldest(room, frame["time"])
        lines += _failures(room, rows)
        if searched is not None:
            lines += _found(room, searched, view.search, rows)
        else:
            lines += _keys(room, view, rows)
            lines += _kinds(room)
            longest = room["longest"][:rows]
            lines += _operations(longest, f"LONGEST WAITING, {len(longest)} of {room['parked']:,}")
        lines += _checks(room, rows)
    return [Line(_cut(line.text, width), line.style) for line in lines]


def chosen_room(frame: dict[str, Any], view: View) -> dict[str, Any] | None:
    """Return the purgatory in the frame that the screen shows, or None if no purgatory answers."""
    rooms: list[dict[str, Any]] = [room for room in frame["rooms"] if not room.get("silent")]
    for room in rooms:
        if room["name"] == view.room:
            return room
    return max(rooms, key=_parked, default=None)


def _parked(room: dict[str, Any]) -> int:
    parked: int = room["parked"]
    return parked


def _relays(frame: dict[str, Any]) -> Iterable[Line]:
    for relay in frame["relays"]:
        state = "connected" if relay["connected"] else "NOT CONNECTED"
        lag = "" if relay["lag"] is None else f", ping {duration(relay['lag'])}"
        yield Line(
            f"relay of {relay['purgatory']}: {state} through {relay['transport']}{lag}, "
            f"other relays: {relay['peers']}, losses: {relay['losses']}, keys to send: {relay['pending']}, "
            f"to read: {relay['stale']}",
            "" if relay["connected"] else "critical",
        )


def _workers(frame: dict[str, Any]) -> Iterable[Line]:
    workers = frame.get("workers", [])
    if workers:
        names = [f"{worker['name']} ({duration(worker['ago'])} ago)" for worker in workers]
        yield Line(f"other workers: {', '.join(names)}")


def _rooms(frame: dict[str, Any], chosen: dict[str, Any] | None) -> list[Line]:
    head = (
        "PURGATORY", "WAITING", "KEYS", "LIMIT", "DONE/s", "EXPIRED/s", "FAILED/s", "REFUSED/s", "AT ONCE/s",
        "WAIT p50", "p99", "LATE p99",
    )  # fmt: skip
    table: list[Sequence[str]] = [head]
    styles = []
    spans = [room["minute"]["seconds"] for room in frame["rooms"] if not room.get("silent")]
    for room in frame["rooms"]:
        if room.get("silent"):
            table.append((room["name"], "its thread does not answer", *[""] * (len(head) - 2)))
            styles.append("critical")
            continue
        minute = room["minute"]
        wait, late = minute["wait"], minute["lateness"]
        counts = [minute[name] for name in ("waited", "expired", "failed", "refused", "immediate")]
        table.append(
            (
                room["name"] + (" (closed)" if room["closed"] else ""),
                f"{room['parked']:,}",
                f"{room['keys']:,}",
                _full(room),
                *[_rate(count, minute["seconds"]) for count in counts],
                *[duration(wait[name]) if wait["count"] else "-" for name in ("p50", "p99")],
                duration(late["p99"]) if late["count"] else "-",
            )
        )
        styles.append("chosen" if room is chosen and len(frame["rooms"]) > 1 else "")
    title = f"PURGATORIES, rates and waits of the last {max(spans, default=0.0):.0f} s"
    return [Line(""), Line(title, "title"), *_table(table, styles, left=1)]


def _oldest(room: dict[str, Any], now: float) -> list[Line]:
    """Return how long and since when the oldest operation has waited, and when it ends."""
    if not room["longest"]:
        return []
    row = room["longest"][0]
    ends = "never ends" if row["left"] is None else f"ends in {_left(row)}"
    task = "" if row["awaited"] else ", no task awaits it"
    on = ", ".join([_key(key) for key in row["keys"]])
    since = clock_time(row["since"], now)
    return [Line(f"longest waiting: {duration(row['waited'])}, since {since}, {ends}{task}: {row['kind']} on {on}")]


def _left(operation: dict[str, Any]) -> str:
    return "never" if operation["left"] is None else duration(max(0.0, operation["left"]))


def _keys(room: dict[str, Any], view: View, rows: int) -> list[Line]:
    found, none = room["hot"][view.order], "none"
    if view.order == "expired" and found:  # if one operation of a key has ended, its share means nothing
        found, none = [key for key in found if key["ended"] > 1], "no key of which several operations ended"
    found = found[:rows]
    title = Line(f"KEYS of {room['name']} by {_ORDER_TEXTS[view.order]}", "title")
    if view.order == "expired":
        table: list[Sequence[str]] = [("KEY", "EXPIRED", "ENDED", "SHARE")]
        table += [
            (_key(key), f"{key['expired']:,}", f"{key['ended']:,}", f"{100 * key['expired'] / key['ended']:.0f}%")
            for key in found
        ]
    else:
        table = [("KEY", "WAITING", "TOTAL WAIT", "OLDEST", "CHECKS")]
        for key in found:
            waits = duration(key["total_wait"]), duration(key["oldest"])
            table.append((_key(key), f"{key['watchers']:,}", *waits, _number(key["checks"])))
    if not found:
        return [Line(""), title, Line(none, "quiet")]
    return [Line(""), title, *_table(table, [""] * len(found), left=1)]


def _kinds(room: dict[str, Any]) -> list[Line]:
    kinds = room["kinds"][:5]
    if not kinds:
        return []
    table: list[Sequence[str]] = [("KIND", "WAITING", "NO DEADLINE", "NO TASK", "OLDEST")]
    for kind in kinds:
        numbers = [f"{kind[name]:,}" for name in ("parked", "endless", "unawaited")]
        table.append((kind["kind"], *numbers, duration(kind["oldest"])))
    survey = room["survey"]
    partly = f"so far, {survey['visited']:,} of {room['parked']:,} operations have been visited"
    return [
        Line(""),
        *_table(table, [""] * len(kinds), left=1),
        *([] if survey["complete"] else [Line(partly, "quiet")]),
    ]


def _operations(found: list[dict[str, Any]], title: str) -> list[Line]:
    table: list[Sequence[str]] = [("WAITED", "ENDS IN", "TASK", "KIND", "KEYS")]
    for row in found:
        keys = ", ".join([_key(key) for key in row["keys"]])
        more = f" and {row['more_keys']} more" if row["more_keys"] else ""
        trace = f"  trace {row['trace_id']}" if row["trace_id"] else ""
        task = "awaits" if row["awaited"] else "none"
        table.append((duration(row["waited"]), _left(row), task, row["kind"], f"{keys}{more}{trace}"))
    if not found:
        return []
    return [Line(""), Line(title, "title"), *_table(table, [""] * len(found), left=5)]


def _found(room: dict[str, Any], searched: dict[str, Any], text: str, rows: int) -> list[Line]:
    """Return the keys that a search found, and the operations on the best match."""
    title = Line(f"KEYS of {room['name']} that contain {text!r}", "title")
    partly = [] if searched["complete"] else [Line("The search stopped at its limit.", "quiet")]
    keys = searched["keys"][:rows]
    if not keys:
        return [Line(""), title, Line("No operation waits on such a key.", "quiet"), *partly]
    table: list[Sequence[str]] = [("KEY", "WAITING", "CHECKS")]
    table += [(_key(key), f"{key['watchers']:,}", _number(key["checks"])) for key in keys]
    operations = searched["operations"][:rows]
    exactly = f"No operation waits on exactly {text!r}."
    return [
        Line(""),
        title,
        *([] if searched.get("exact", True) else [Line(exactly, "warning")]),
        *_table(table, [""] * len(keys), left=1),
        *partly,
        *_operations(operations, f"WAITING on {_key(keys[0])}, {len(operations)} of {keys[0]['watchers']:,}"),
    ]


def _checks(room: dict[str, Any], rows: int) -> list[Line]:
    """Return the recorded checks, and the last checked keys on which no operation waits."""
    checks = room["checks"]
    if checks is None:
        return []
    many = "" if checks["complete"] else "at least "
    of_watched = f"{checks['watched']:,} of them of keys on which operations waited"
    lines = [
        Line(""),
        Line(f"CHECKS in {duration(checks['seconds'])}: {many}{checks['total']:,}, {of_watched}", "title"),
    ]
    unwatched = checks["unwatched"][:rows]
    if unwatched:
        table: list[Sequence[str]] = [("KEY WITHOUT OPERATIONS", "CHECKS", "LAST")]
        table += [(_key(key), f"{key['checks']:,}", f"{duration(key['ago'])} ago") for key in unwatched]
        lines += _table(table, [""] * len(unwatched), left=1)
    return lines


def _failures(room: dict[str, Any], rows: int) -> list[Line]:
    lines = []
    for failure in room["failures"][: min(rows, _MOST_FAILURES)]:
        key = f" on {failure['key']}" if failure["key"] else ""
        place = f" at {failure['place']}" if failure["place"] else ""
        lines.append(Line(f"{duration(failure['ago'])} ago: {failure['kind']}{key}: {failure['error']}{place}"))
    kept, every = len(room["failures"]), room["totals"]["failed"]
    title = f"LAST FAILURES, a sample of {kept} of {every:,}" if kept < every else "LAST FAILURES"
    return [Line(""), Line(title, "title"), *lines] if lines else []


def _number(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _key(key: dict[str, Any]) -> str:
    text: str = key["key"]
    if key["type"] not in ("str", "int"):
        return text
    threshold = key.get("threshold")
    shown = text if key["type"] == "int" else repr(text) if text == "" or text.isdecimal() or " " in text else text
    return shown if threshold is None else f"{shown} from {threshold}"


def _full(room: dict[str, Any]) -> str:
    limits = room["limits"]
    shares = [
        used / limit
        for used, limit in (
            (room["parked"], limits["max_parked"]),
            (limits["fullest_key"], limits["max_parked_per_key"]),
        )
        if limit is not None
    ]
    return f"{100 * max(shares):.0f}%" if shares else "none"


def _rate(count: int, seconds: float) -> str:
    if seconds <= 0:
        return "-"
    rate = count / seconds
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 0.05 or not count else "<0.1"


def _table(rows: Sequence[Sequence[str]], styles: Sequence[str], *, left: int) -> list[Line]:
    """Return aligned columns with a line of headings; the first ``left`` columns are left-aligned."""
    widths = [max(len(_printable(row[column])) for row in rows) for column in range(len(rows[0]))]
    widths = [min(width, 60) for width in widths]
    lines = []
    for row, style in zip(rows, ("head", *styles), strict=True):
        cells = [
            _printable(cell).ljust(width) if column < left else _printable(cell).rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(Line("  ".join(cells).rstrip(), style))
    return lines


def _printable(text: str) -> str:
    """Return the text without characters that move the cursor, whatever the service sends."""
    return text if text.isprintable() else "".join([letter if letter.isprintable() else "?" for letter in text])


def _cut(text: str, width: int) -> str:
    text = _printable(text)
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
