"""A frame as lines of text: the same in a terminal and in a pipe."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

__all__ = ["ORDERS", "Line", "View", "duration", "render", "room_names"]

ORDERS: Final = {"w": "watchers", "t": "total_wait", "e": "expired"}
"""The orders of the keys, by the key of the keyboard that chooses them."""
_ORDER_TEXTS: Final = {"watchers": "waiting operations", "total_wait": "total wait", "expired": "expired, of a sample"}
_UNITS: Final = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


class Line(NamedTuple):
    """A line of the screen, and its style: "", "title", "head", "critical", "warning", "note", "chosen" or "quiet"."""

    text: str
    style: str = ""


class View(NamedTuple):
    """What the user has chosen: the name of a purgatory, or "" for the fullest, and the order of its keys."""

    room: str = ""
    order: str = "watchers"


def duration(seconds: float) -> str:
    """Return a duration with two or three digits and its unit."""
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.{1 if seconds < 10 * size else 0}f} {unit}"
    return f"{seconds * 1000:.{1 if 0 < seconds < 0.01 else 0}f} ms"


def room_names(frame: dict[str, Any]) -> list[str]:
    """Return the names of the purgatories of the frame that can be shown."""
    return [room["name"] for room in frame["rooms"] if not room.get("silent")]


def render(frame: dict[str, Any], view: View, *, width: int, rows: int) -> list[Line]:
    """Return the lines of the screen, at most ``width`` characters each, with about ``rows`` keys and operations."""
    worker = frame["worker"]
    lines = [
        Line(
            f"{frame['title']}: worker {worker['pid']} on {worker['host']}, watched for {duration(worker['uptime'])}, "
            f"longest recent turn {duration(frame['loop']['lag'])}",
            "title",
        )
    ]
    for finding in frame["findings"]:
        where = f"{finding['room']}: " if finding["room"] is not None and len(frame["rooms"]) > 1 else ""
        lines.append(Line(f"{finding['level'].upper()}  {where}{finding['text']}", finding["level"]))
    lines += _relays(frame)
    lines += _workers(frame)
    room = _chosen(frame, view)
    lines += _rooms(frame, room)
    if room is not None:
        lines += _keys(room, view, rows)
        lines += _kinds(room)
        lines += _operations(room, rows)
        lines += _failures(room, rows)
    return [Line(_cut(line.text, width), line.style) for line in lines]


def _chosen(frame: dict[str, Any], view: View) -> dict[str, Any] | None:
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
            f"relay of {relay['purgatory']}: {state} through {relay['transport']}{lag}, {relay['peers']} other relays, "
            f"{relay['losses']} losses, {relay['pending']} keys to send, {relay['stale']} to read",
            "" if relay["connected"] else "critical",
        )


def _workers(frame: dict[str, Any]) -> Iterable[Line]:
    workers = frame.get("workers", [])
    if workers:
        names = [f"{worker['name']} ({duration(worker['ago'])} ago)" for worker in workers]
        yield Line(f"other workers: {', '.join(names)}")


def _rooms(frame: dict[str, Any], chosen: dict[str, Any] | None) -> list[Line]:
    head = (
        "PURGATORY", "WAITING", "KEYS", "LIMIT", "DONE/s", "EXPIRED/s", "FAILED/s", "REFUSED/s",
        "WAIT p50", "p99", "LATE p99",
    )  # fmt: skip
    table: list[Sequence[str]] = [head]
    styles = []
    for room in frame["rooms"]:
        if room.get("silent"):
            table.append((room["name"], "its thread does not answer", *[""] * 9))
            styles.append("critical")
            continue
        rates, wait, late = room["rates"], room["minute"]["wait"], room["minute"]["lateness"]
        table.append(
            (
                room["name"] + (" (closed)" if room["closed"] else ""),
                f"{room['parked']:,}",
                f"{room['keys']:,}",
                _full(room),
                *[_rate(rates[name]) for name in ("completed", "expired", "failed", "refused")],
                *[duration(wait[name]) if wait["count"] else "-" for name in ("p50", "p99")],
                duration(late["p99"]) if late["count"] else "-",
            )
        )
        styles.append("chosen" if room is chosen and len(frame["rooms"]) > 1 else "")
    return [Line(""), *_table(table, styles, left=1)]


def _keys(room: dict[str, Any], view: View, rows: int) -> list[Line]:
    found = room["hot"][view.order][:rows]
    title = Line(f"KEYS of {room['name']} by {_ORDER_TEXTS[view.order]}", "title")
    if view.order == "expired":
        table: list[Sequence[str]] = [("KEY", "EXPIRED", "ENDED", "SHARE")]
        table += [
            (_key(key), f"{key['expired']:,}", f"{key['ended']:,}", f"{100 * key['expired'] / key['ended']:.0f}%")
            for key in found
        ]
    else:
        table = [("KEY", "WAITING", "TOTAL WAIT", "OLDEST")]
        table += [
            (_key(key), f"{key['watchers']:,}", duration(key["total_wait"]), duration(key["oldest"])) for key in found
        ]
    if not found:
        return [Line(""), title, Line("none", "quiet")]
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
    partly = f"so far, {survey['visited']:,} of {room['parked']:,} operations are visited"
    return [
        Line(""),
        *_table(table, [""] * len(kinds), left=1),
        *([] if survey["complete"] else [Line(partly, "quiet")]),
    ]


def _operations(room: dict[str, Any], rows: int) -> list[Line]:
    found = room["longest"][:rows]
    title = Line(f"LONGEST WAITING, {len(found)} of {room['parked']:,}", "title")
    table: list[Sequence[str]] = [("WAITED", "ENDS IN", "TASK", "KIND", "KEYS")]
    for row in found:
        left = "never" if row["left"] is None else duration(max(0.0, row["left"]))
        keys = ", ".join([_key(key) for key in row["keys"]])
        more = f" and {row['more_keys']} more" if row["more_keys"] else ""
        trace = f"  trace {row['trace_id']}" if row["trace_id"] else ""
        task = "awaits" if row["awaited"] else "none"
        table.append((duration(row["waited"]), left, task, row["kind"], f"{keys}{more}{trace}"))
    if not found:
        return []
    return [Line(""), title, *_table(table, [""] * len(found), left=5)]


def _failures(room: dict[str, Any], rows: int) -> list[Line]:
    found = room["failures"][:rows]
    if not found:
        return []
    lines = [
        Line(f"{failure['kind']}{' on ' if failure['key'] else ''}{failure['key']}: {failure['error']}")
        for failure in found
    ]
    return [Line(""), Line("LAST FAILURES", "title"), *lines]


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


def _rate(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def _table(rows: Sequence[Sequence[str]], styles: Sequence[str], *, left: int) -> list[Line]:
    """Return aligned columns, the first ``left`` of them to the left, and a line of headings."""
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
