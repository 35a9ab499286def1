"""The operator's view: a page that shows who waits for what, and the same as JSON.

===================  =================================================================================
``app``              the routes, what is refused, and the budget of the requests
``collector``        a frame: everything that the page shows
``room_view``        what a frame shows of one purgatory and of its timer; the search for a key
``history``          the last minutes: samples of counters and histograms
``endings``          a sample of the operations that end: expired keys and failures
``findings``         what stands out, in sentences
``slices``           work that takes at most a twentieth of the time of the loop
``loops``            the event loop of a purgatory, which may run in another thread
``loop_lag``         how long other work keeps the loop busy
``page/``            the page: one HTML file, one style sheet, one script
===================  =================================================================================
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from purgatory import Purgatory
from purgatory.core.timer.units import duration_ms

from .app import InspectorAction, InspectorApp
from .collector import Collector

if TYPE_CHECKING:
    from purgatory.asgi.types import ASGIApp
    from purgatory.relay import Relay

__all__ = ["InspectorAction", "inspector"]

_LONGEST_HISTORY: Final = 3600.0


class _Local:
    """The default of ``allowed_hosts``."""

    def __repr__(self) -> str:
        return "LOCAL"


_LOCAL: Final[Any] = _Local()


def inspector(
    *rooms: "Purgatory[Any] | Relay",
    relay: "Relay | Iterable[Relay] | None" = None,
    authorize: Callable[[InspectorAction], Any] | None = None,
    allowed_hosts: Iterable[str] | None = _LOCAL,
    title: str = "Purgatory",
    history: float = 300.0,
    max_viewers: int = 32,
) -> "ASGIApp":
    """Make an ASGI application that shows an operator which operations wait, for which keys, since when.

    ::

        app.mount("/purgatory", inspector(room))                    # a page at /purgatory/
        app.mount("/purgatory", inspector(orders, jobs, relay=relay))

    ``GET /`` is a live page, and ``GET /state.json`` the same as JSON, which ``purgatory top`` shows in a terminal.

    **It has no authentication of its own.**  Everyone who can open the page sees the keys, kinds, errors, and figures
    of every operation.  Mount it on a port that only operators reach, or behind the application's authentication.  It
    reads only, unless ``authorize`` is given: then the page offers to withdraw or fail the operations on one key, and
    calls ``authorize(action)`` with an :class:`InspectorAction` for each such request.  Only the result True, also of a
    coroutine function, allows the action.

    ``rooms``: purgatories, or relays, which stand for their purgatory and themselves.  ``relay``: a relay of one of the
    purgatories, or several.

    ``allowed_hosts``: the host names, without a port, under which the page may be opened; others get 400, as
    protection against DNS rebinding.  By default these are addresses, ``*.localhost``, and names without a dot, such as
    ``localhost``, which no foreign site can have.  ``*.example.com`` allows every subdomain, and ``*`` or None every
    host.  Requests that a page of another origin sends get 403.

    ``title``: the heading of the page.  ``history``: for how many seconds of the timer's clock the purgatories are
    sampled, every ten seconds, so that the page shows the minutes before it was opened; 0: not at all while nobody
    looks, otherwise at most an hour.  ``max_viewers``: how many pages may be open per event loop; others get 503.

    Cost: frames are taken at most once a second, for all viewers together, and only while there are viewers.  Reading
    takes at most a twentieth of the time of the event loop, in slices of half a millisecond, whatever the parameters of
    a request are.  With more operations than can be visited in a second, tables are as old as the page says.

    TypeError for anything that is neither a purgatory nor a relay; ValueError for no purgatory, and for two of the same
    name, which the page could not tell apart.
    """
    found: list[Purgatory[Any]] = []
    relays: list[Any] = []
    for room in rooms:
        if isinstance(room, Purgatory):
            found.append(room)
        else:
            relays.append(_validated_relay(room, "room must be a Purgatory or a Relay"))
    if relay is not None:
        several = relay if isinstance(relay, Iterable) else [relay]
        relays += [_validated_relay(other, "relay must be a Relay") for other in several]
    relays = list({id(other): other for other in relays}.values())
    found += [other._purgatory for other in relays]
    found = list({id(room): room for room in found}.values())
    if not found:
        raise ValueError("inspector() must get at least one purgatory or relay, got none")
    names = [room.name for room in found]
    if len(set(names)) < len(names):
        raise ValueError(f"purgatories must have different names, got {names}")
    if authorize is not None and not callable(authorize):
        raise TypeError(f"authorize must be callable or None, got {authorize!r}")
    if not isinstance(title, str):
        raise TypeError(f"title must be a str, got {title!r}")
    duration_ms(history, "history")
    if history > _LONGEST_HISTORY:
        raise ValueError(f"history must be at most {_LONGEST_HISTORY:g} seconds, got {history!r}")
    if type(max_viewers) is not int or max_viewers < 1:
        raise ValueError(f"max_viewers must be a positive int, got {max_viewers!r}")
    local = allowed_hosts is _LOCAL
    collector = Collector(found, relays, history)
    return InspectorApp(collector, title, authorize, None if local else allowed_hosts, local, max_viewers)


def _validated_relay(relay: Any, expected: str) -> Any:
    """Return the relay.  This module does not import its class, which is an optional part."""
    if not isinstance(getattr(relay, "_purgatory", None), Purgatory):
        raise TypeError(f"{expected}, got {relay!r}")
    return relay
