"""What stands out in a frame: the sentences at the top of the page.

Each rule compares numbers from the frame with fixed bounds.  A finding states what was measured and where to look next;
it is a hint, not a diagnosis.

The operations of ``changes()`` never complete and have no deadline: they end with their streams.  The rules about
operations that do not complete or end are therefore only about the other operations.
"""

from collections.abc import Iterator
from typing import Any, Final

__all__ = ["findings"]

_LONG: Final = 30.0  # seconds
_SOON: Final = 3.0  # seconds
_MANY: Final = 100  # operations
_RECENT: Final = 120.0  # seconds; without a history, a window may go back to the start of the process
_LATE: Final = 0.1  # seconds
_ORDER: Final = {"critical": 0, "warning": 1, "note": 2}

_Finding = dict[str, Any]


def findings(frame: dict[str, Any]) -> list[_Finding]:
    """Return the findings of a frame, the most serious first; each is a dict with ``level``, ``room``, and ``text``."""
    found = [*_of_relays(frame), *_of_loop(frame)]
    for room in frame["rooms"]:
        if not room.get("silent"):
            found += _of_room(room)
    found.sort(key=lambda finding: _ORDER[finding["level"]])
    return found


def _finding(level: str, room: str | None, text: str) -> _Finding:
    return {"level": level, "room": room, "text": text}


def _of_relays(frame: dict[str, Any]) -> Iterator[_Finding]:
    minutes = {room["name"]: room["minute"] for room in frame["rooms"] if not room.get("silent")}
    for relay in frame["relays"]:
        room = relay["purgatory"]
        reason = f" The reason: {relay['last_loss']}." if relay["last_loss"] else ""
        if not relay["connected"]:
            yield _finding(
                "critical",
                room,
                "The relay is not connected: checks of other workers do not arrive, and checks of this worker do not "
                f"leave.{reason}",
            )
        minute = minutes.get(room)
        if minute is None or minute["seconds"] > _RECENT:
            continue
        over = f"in the last {_seconds(minute['seconds'])}"
        if relay["connected"] and minute["losses"]:
            times = _count(minute["losses"], "time")
            yield _finding(
                "warning", room, f"The relay lost its connection or could not connect {times} {over}.{reason}"
            )
        if minute["failed_reads"] and minute["failed_reads"] >= minute["reads"]:
            yield _finding("critical", room, f"refresh failed {_count(minute['failed_reads'], 'time')} {over}.")


def _of_loop(frame: dict[str, Any]) -> Iterator[_Finding]:
    lag = frame["loop"]["lag"]
    if lag >= _LATE:
        yield _finding("warning", None, f"A turn of the event loop took {_seconds(lag)}: look for blocking code.")


def _of_room(room: dict[str, Any]) -> Iterator[_Finding]:
    name, minute = room["name"], room["minute"]
    ended = sum(minute[outcome] for outcome in ("waited", "expired", "cancelled", "failed"))
    waiting = room["parked"] - room["subscribed"]
    oldest = max((kind["oldest"] for kind in room["kinds"] if kind["parked"] > _subscribed(kind)), default=0.0)
    over = f"in the last {_seconds(minute['seconds'])}"
    if room["closed"]:
        left = room["parked"]
        text = f"is closing; {_count(left, 'operation')} still {_wait(left)}" if left else "is closed"
        yield _finding("note", name, f"The purgatory {text}.")
    if minute["failed"]:
        yield _finding(
            "critical", name, f"{_count(minute['failed'], 'operation')} failed {over}.{_last_error(room['failures'])}"
        )
    by_client = minute["refused_by_client"]
    if refused := minute["refused"] - by_client:
        yield _finding("critical", name, f"{_count(refused, 'operation')} refused {over}: a limit was reached.")
    if by_client:
        yield _finding(
            "warning", name, f"{_count(by_client, 'operation')} refused {over}: a client reached per_client."
        )
    if waiting > 0 and not minute["waited"] and minute["seconds"] >= _LONG and oldest >= _LONG:
        yield _finding(
            "warning" if minute["completed"] else "critical",
            name,
            f"No waiting operation has completed {over}, and {_count(waiting, 'operation')} {_wait(waiting)}: "
            + _of_checks(room["checks"]),
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
        were = "was" if room["observers_detached"] == 1 else "were"
        observers = _count(room["observers_detached"], "observer")
        yield _finding("warning", name, f"{observers} raised and {were} detached.")


def _last_error(failures: list[dict[str, Any]]) -> str:
    if not failures:
        return ""
    last = failures[0]
    place = f" at {last['place']}" if last["place"] else ""
    return f" The last error, {_seconds(last['ago'])} ago: {last['error']}{place}."


def _of_checks(checks: dict[str, Any] | None) -> str:
    """Return what the recorded checks indicate about operations that wait but do not complete."""
    if checks is None:
        return "whether their keys are checked is not known, because another inspector counts the checks."
    if checks["seconds"] < _SOON:
        return "whether their keys are checked is not known yet; look again in a few seconds."
    over = f"in the last {_seconds(checks['seconds'])}"
    if not checks["total"]:
        return f"no key was checked {over}."
    if not checks["watched"] and not checks["complete"]:
        return "is a check of their keys missing?"
    if not checks["watched"]:
        other = checks["unwatched"][0]["key"]
        return f"each check {over} was for a key on which none of them waits, such as {other}."
    checked = ("" if checks["complete"] else "at least ") + _count(checks["watched"], "check")
    return f"{checked} {over} met waiting operations and completed none: do the conditions hold?"


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
        endless = kind["endless"] - _subscribed(kind)
        forgotten = min(endless, kind["unawaited"] - _subscribed(kind))
        if forgotten >= _MANY:
            yield _finding(
                "warning",
                room["name"],
                f"{forgotten:,} operations of kind {kind['kind']} have no deadline, and no task awaits them: "
                "only a check can end them.",
            )
        elif endless >= _MANY:
            yield _finding("warning", room["name"], f"{endless:,} operations of kind {kind['kind']} have no deadline.")
    window = room["window"]
    before, now = window["parked_before"] - window["subscribed_before"], room["parked"] - room["subscribed"]
    if window["seconds"] >= 2 * _LONG and now >= _MANY and now >= 2 * max(before, 1) and not window["expired"]:
        yield _finding(
            "warning",
            room["name"],
            f"The number of parked operations grew from {before:,} to {now:,} in {_seconds(window['seconds'])}, "
            "and none expired.",
        )


def _subscribed(kind: dict[str, Any]) -> int:
    """Return how many operations of the kind belong to subscriptions."""
    number: int = kind.get("subscribed", 0)
    return number


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _wait(number: int) -> str:
    return "waits" if number == 1 else "wait"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}%"


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
