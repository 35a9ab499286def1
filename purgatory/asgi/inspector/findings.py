"""What stands out in a frame: the sentences at the top of the page.

Each rule compares numbers of the frame with a fixed bound.  A finding names what was measured and where to look next;
it is a hint, not a diagnosis.
"""

from collections.abc import Iterator
from typing import Any, Final

__all__ = ["findings"]

_LONG: Final = 30.0  # seconds
_MANY: Final = 100  # operations
_LATE: Final = 0.1  # seconds
_ORDER: Final = {"critical": 0, "warning": 1, "note": 2}

_Finding = dict[str, Any]


def findings(frame: dict[str, Any]) -> list[_Finding]:
    """Return the findings of a frame, the most serious first: each a dict of ``level``, ``room`` and ``text``."""
    found = [*_of_relays(frame), *_of_loop(frame)]
    for room in frame["rooms"]:
        if not room.get("silent"):
            found += _of_room(room)
    found.sort(key=lambda finding: _ORDER[finding["level"]])
    return found


def _finding(level: str, room: str | None, text: str) -> _Finding:
    return {"level": level, "room": room, "text": text}


def _of_relays(frame: dict[str, Any]) -> Iterator[_Finding]:
    for relay in frame["relays"]:
        room = relay["purgatory"]
        reason = f" The reason: {relay['last_loss']}." if relay["last_loss"] else ""
        if not relay["connected"]:
            yield _finding(
                "critical", room, f"The relay is not connected, so checks of other workers do not arrive.{reason}"
            )
        elif relay["losses"] and relay["losses"] >= relay["connects"]:
            yield _finding("warning", room, f"The relay has lost its connection {relay['losses']} times.{reason}")
        if relay["failed_reads"] and relay["failed_reads"] >= relay["reads"]:
            yield _finding("critical", room, f"refresh has failed {_count(relay['failed_reads'], 'time')}.")


def _of_loop(frame: dict[str, Any]) -> Iterator[_Finding]:
    lag = frame["loop"]["lag"]
    if lag >= _LATE:
        yield _finding("warning", None, f"A turn of the event loop took {_seconds(lag)}: look for blocking code.")


def _of_room(room: dict[str, Any]) -> Iterator[_Finding]:
    name, minute = room["name"], room["minute"]
    ended = sum(minute[outcome] for outcome in ("completed", "expired", "cancelled", "failed"))
    oldest = max((kind["oldest"] for kind in room["kinds"]), default=0.0)
    over = f"in the last {_seconds(minute['seconds'])}"
    if room["closed"]:
        yield _finding("note", name, f"The purgatory is closing; {_count(room['parked'], 'operation')} still wait.")
    if minute["failed"]:
        last = f" The last error: {room['failures'][0]['error']}." if room["failures"] else ""
        yield _finding("critical", name, f"{_count(minute['failed'], 'operation')} failed {over}.{last}")
    if minute["refused"]:
        yield _finding(
            "critical", name, f"{_count(minute['refused'], 'operation')} refused {over}: a limit is reached."
        )
    if room["parked"] and not minute["completed"] and minute["seconds"] >= _LONG and oldest >= _LONG:
        yield _finding(
            "critical",
            name,
            f"No operation has completed {over}, and {_count(room['parked'], 'operation')} wait: "
            "is a check of their keys missing?",
        )
    elif ended >= 10 and minute["expired"] > ended / 2:
        yield _finding(
            "warning",
            name,
            f"{_percent(minute['expired'], ended)} of the operations that ended {over} expired: "
            "timeouts are too short, or checks are missing.",
        )
    yield from _of_limits(room)
    yield from _of_keys(room)
    yield from _of_growth(room)
    late = minute["lateness"]
    if late["count"] and late["p99"] >= _LATE:
        yield _finding(
            "warning", name, f"Expirations were late by {_seconds(late['p99'])} (p99) {over}: the loop is busy."
        )
    if room["observers_detached"]:
        yield _finding("warning", name, f"{_count(room['observers_detached'], 'observer')} raised and were detached.")


def _of_limits(room: dict[str, Any]) -> Iterator[_Finding]:
    limits = room["limits"]
    for used, limit, what in (
        (room["parked"], limits["max_parked"], "max_parked"),
        (limits["fullest_key"], limits["max_parked_per_key"], "max_parked_per_key"),
    ):
        if limit is not None and used >= 0.8 * limit:
            yield _finding("warning", room["name"], f"{what} is {_percent(used, limit)} full: {used:,} of {limit:,}.")


def _of_keys(room: dict[str, Any]) -> Iterator[_Finding]:
    hot = room["hot"]["watchers"]
    if hot and hot[0]["watchers"] >= _MANY and hot[0]["watchers"] > room["parked"] / 2:
        share = _percent(hot[0]["watchers"], room["parked"])
        yield _finding("note", room["name"], f"{share} of the operations wait on one key, {hot[0]['key']}.")


def _of_growth(room: dict[str, Any]) -> Iterator[_Finding]:
    for kind in room["kinds"]:
        forgotten = min(kind["endless"], kind["unawaited"])
        if forgotten >= _MANY:
            yield _finding(
                "warning",
                room["name"],
                f"{forgotten:,} operations of kind {kind['kind']} have no deadline, and no task awaits them: "
                "only a check can end them.",
            )
        elif kind["endless"] >= _MANY:
            yield _finding(
                "warning", room["name"], f"{kind['endless']:,} operations of kind {kind['kind']} have no deadline."
            )
    window = room["window"]
    before, parked = window["parked_before"], room["parked"]
    if window["seconds"] >= 2 * _LONG and parked >= _MANY and parked >= 2 * max(before, 1) and not window["expired"]:
        yield _finding(
            "warning",
            room["name"],
            f"The number of parked operations grew from {before:,} to {parked:,} in {_seconds(window['seconds'])}, "
            "and none expired.",
        )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}%"


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
