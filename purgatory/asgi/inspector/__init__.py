"""The operator's view: a page that shows which operations wait for what, and the same data as JSON.

===================  =================================================================================
``app``              the routes, the refused requests, and the budget for requests
``collector``        a frame: everything that the page shows
``room_view``        what a frame shows about one purgatory and its timer; the search for a key
``history``          the last minutes: samples of counters and histograms
``endings``          a sample of the operations that end: keys that expire, and failures
``checks``           the checked keys, including those on which no operation waits
``findings``         what stands out in a frame, as sentences
``slices``           work that takes at most a twentieth of the loop's time
``loops``            the event loop of a purgatory, which may run in another thread
``loop_lag``         how long other work keeps the loop busy
``page/``            the page: one HTML file, one style sheet, one script
===================  =================================================================================
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from purgatory import Purgatory
from purgatory.core.timer.units import duration_ms
from purgatory.texts import shortened

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
    """Create an ASGI application that shows an operator which operations are waiting, on which keys, and since when.

    ::

        app.mount("/purgatory", inspector(room))                    # a page at /purgatory/
        app.mount("/purgatory", inspector(orders, jobs, relay=relay))

    ``GET /`` returns a live page, and ``GET /state.json`` returns the same data as JSON, which ``purgatory top`` shows
    in a terminal.

    **The application has no authentication of its own.**  Anyone who can open the page sees the keys, kinds, errors,
    and figures of all operations.  Mount the inspector on a port that only operators can reach, or behind the
    application's authentication.  It is read-only unless ``authorize`` is given; in that case, the page offers to
    withdraw or fail the operations on one key, and the application calls ``authorize(action)`` with an
    :class:`InspectorAction` for each such request.  ``authorize`` may be a coroutine function; only the result True
    allows the action.

    ``rooms``: purgatories or relays; a relay adds both itself and its purgatory.  ``relay``: a relay of one of the
    purgatories, or several relays.

    ``allowed_hosts``: the host names, without a port, under which the page may be opened; requests for other hosts get
    400, as protection against DNS rebinding.  By default, these are addresses, ``*.localhost``, and names without a
    dot, such as ``localhost``: no foreign site can use such a host name.  ``*.example.com`` allows every subdomain, and
    ``*`` or None allows every host.  Requests sent by a page from another origin get 403.

    ``title``: the heading of the page.  ``history``: the length of the history, in seconds on the timer's clock, at
    most one hour.  The purgatories are sampled every ten seconds, so that the page can show the minutes before it was
    opened; if ``history`` is 0, they are not sampled while no viewer is connected.  ``max_viewers``: how many pages may
    be open per event loop; requests for more pages get 503.

    Cost: frames are taken at most once a second, for all viewers together, and only while there are viewers.  Reading
    takes at most a twentieth of the event loop's time, in slices of half a millisecond, whatever the parameters of a
    request are.  If there are more operations than can be visited in a second, the tables are updated less often; the
    page shows their age.

    Raises TypeError for anything that is neither a purgatory nor a relay; raises ValueError if no purgatory is given,
    or if the page would show two purgatories under the same name.  The page truncates long names after 119 characters,
    and it escapes characters that are not printable.
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
    names: set[str] = set()
    for room in found:
        name = shortened(room.name)
        if name in names:
            raise ValueError(
                "purgatories must have different names in their first 119 characters, with nonprintable characters"
                f" escaped, got two that are shown as '{name}'"
            )
        names.add(name)
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
    """Return the relay.  This module does not import its class, which belongs to an optional part."""
    if not isinstance(getattr(relay, "_purgatory", None), Purgatory):
        raise TypeError(f"{expected}, got {relay!r}")
    return relay
