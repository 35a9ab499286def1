"""OpenTelemetry metrics for purgatories, timers, and relays.

::

    async with Purgatory("fetch") as purgatory:
        observe(purgatory)

Each collection reads ``statistics()``, so operations cost no more than they do without metrics.  A purgatory that has
been freed is no longer reported.  Names and units follow the semantic conventions: namespaces are singular, units are
UCUM codes, and all metrics have a ``purgatory.name`` attribute.

=====================================  ================  ===============  ===========================================
instrument                             kind              unit             in Kafka
=====================================  ================  ===============  ===========================================
``purgatory.operation.parked``         up-down counter   ``{operation}``
``purgatory.operation.delayed``        up-down counter   ``{operation}``  ``NumDelayedOperations``
``purgatory.operation.subscribed``     up-down counter   ``{operation}``
``purgatory.watch.count``              up-down counter   ``{watch}``      ``PurgatorySize``
``purgatory.key.count``                up-down counter   ``{key}``
``purgatory.operation.ended``          counter           ``{operation}``  ``ExpiresPerSec`` is the rate of ``expired``
``purgatory.operation.immediate``      counter           ``{operation}``
``purgatory.operation.refused``        counter           ``{operation}``
``purgatory.operation.wait.quantile``  gauge             ``s``
``purgatory.operation.late.quantile``  gauge             ``s``
``purgatory.key.watchers``             gauge             ``{operation}``
``purgatory.observer.detached``        counter           ``{observer}``
``purgatory.timer.size``               up-down counter   ``{task}``
``purgatory.timer.cascades``           counter           ``{task}``
=====================================  ================  ===============  ===========================================

``parked`` includes ``subscribed``, the operations of ``changes()``, which never complete.  ``ended`` has a
``purgatory.outcome`` attribute: completed, expired, expired_by_closing (only after a purgatory has closed), cancelled,
or failed.  ``immediate`` counts the completed operations that did not wait; without this number, these operations could
hide the fact that no waiting operation completes.  ``refused`` has a ``purgatory.limit`` attribute: max_parked,
max_parked_per_key, or (only after a client has been refused) per_client.  The quantiles have a ``quantile`` attribute
(0.5, 0.99, 0.999, or 1) and cover the time since the last collection that was a minute ago or longer.
``key.watchers`` has a ``purgatory.key`` attribute, a string of at most 120 characters, and is reported only on request.
Of the busiest keys, those with the same text are one series, the sum of their watchers.  Quantiles from several
processes cannot be combined.  If you need to combine them, attach a :class:`Durations` as an observer: it records
histograms, at the cost of one call per operation.
"""

import time
import weakref
from collections.abc import Callable, Hashable, Iterable
from heapq import nlargest
from typing import TYPE_CHECKING, Any, TypeVar

from purgatory.aio.end_observer import EndObserver
from purgatory.aio.purgatory import Purgatory
from purgatory.aio.system_timer import SystemTimer
from purgatory.core.operation.private_key import shown_key
from purgatory.core.stats.histogram import quantiles_between
from purgatory.core.watch.watcher_lists import SHARDS
from purgatory.events import Event, Outcome, Quantiles, Statistics
from purgatory.texts import key_text, safe_repr

from .spans import outcome_of

try:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter
except ImportError as _missing:
    raise ImportError("purgatory.otel needs OpenTelemetry: pip install 'aiopurgatory[otel]'") from _missing

if TYPE_CHECKING:
    from purgatory.relay import Relay, RelayStatistics

__all__ = ["Durations", "observe", "observe_relays"]

_SCOPE = "purgatory"
_QUANTILES = (("0.5", "p50"), ("0.99", "p99"), ("0.999", "p999"), ("1", "max"))
_OUTCOMES = tuple(outcome.value for outcome in Outcome if outcome is not Outcome.PENDING)
_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)

_now = time.monotonic
_WINDOW = 60.0  # seconds
_STEP = 10.0
_TOLERANCE = 1.0  # collections are not exactly a minute apart
_MOST_HOT_KEYS = 100
_MOST_VISITED = 100_000

_Read = Callable[[Statistics], Iterable[tuple[float, dict[str, str]]]]


def observe(*purgatories: Purgatory[Any], meter: Meter | None = None, hot_keys: int = 0) -> None:
    """Report these purgatories and their timers to OpenTelemetry, in addition to the ones from earlier calls.

    ``purgatories``: the purgatories to observe.

    ``meter``: by default, a meter of the global meter provider.  ``hot_keys``: how many of each purgatory's busiest
    keys to report, at most 100, because each is a separate time series.  A collection visits at most 100,000 keys; the
    next collection continues with the keys after them.  If the meter already reports a purgatory, it is not reported
    twice; the latest ``hot_keys`` applies.

    Raises ValueError if no purgatory is given, or if one of them has the same name as another open purgatory that the
    meter reports, because their series would be indistinguishable.  If the other purgatory is closed, it is no longer
    reported.  Raises TypeError for an argument that is not a purgatory.
    """
    if not purgatories:
        raise ValueError("observe() must get at least one purgatory, got none")
    for purgatory in purgatories:
        if not isinstance(purgatory, Purgatory):
            raise TypeError(
                f"observe() takes purgatories, each as an argument, got {safe_repr(purgatory)}; relays are for"
                " observe_relays()"
            )
    if type(hot_keys) is not int or not 0 <= hot_keys <= _MOST_HOT_KEYS:
        raise ValueError(f"hot_keys must be an int from 0 to {_MOST_HOT_KEYS}, got {hot_keys!r}")
    if meter is None:
        meter = get_meter(_SCOPE)
    reader = _of_meter(_readers, meter)
    new = reader is None
    if reader is None:
        reader = _Reader()
    reader.add(purgatories, hot_keys)
    if new:
        _readers[meter] = reader
        for name, unit, text, read in _GAUGES:
            meter.create_observable_up_down_counter(name, [reader.callback(read)], unit, text)
        for name, unit, text, read in _COUNTERS:
            meter.create_observable_counter(name, [reader.callback(read)], unit, text)
        for which, (name, text) in enumerate(_DURATIONS):
            meter.create_observable_gauge(name, [reader.quantiles(which)], "s", text)
        meter.create_observable_up_down_counter(
            "purgatory.timer.size", [reader.timer_sizes], "{task}", "Tasks on the timer"
        )
        meter.create_observable_counter(
            "purgatory.timer.cascades", [reader.timer_cascades], "{task}", "Tasks moved to a finer wheel"
        )
    if hot_keys and not reader.reports_keys:
        reader.reports_keys = True
        meter.create_observable_gauge(
            "purgatory.key.watchers", [reader.hot_keys], "{operation}", "Operations that wait on a hot key"
        )


def observe_relays(*relays: "Relay", meter: Meter | None = None) -> None:
    """Report these relays to OpenTelemetry, in addition to the ones from earlier calls.

    ``relays``: the relays to observe.  ``meter``: as in :func:`observe`.

    =================================  =======  ================  ======================================================
    instrument                         kind     unit              attributes besides ``purgatory.name``
    =================================  =======  ================  ======================================================
    ``purgatory.relay.connected``      gauge    ``1``
    ``purgatory.relay.lag``            gauge    ``s``
    ``purgatory.relay.peers``          gauge    ``{relay}``
    ``purgatory.relay.pending``        gauge    ``{key}``
    ``purgatory.relay.stale``          gauge    ``{key}``
    ``purgatory.relay.read.quantile``  gauge    ``s``             ``quantile``: 0.5, 0.99, 0.999, 1
    ``purgatory.relay.connects``       counter  ``{connection}``
    ``purgatory.relay.losses``         counter  ``{connection}``
    ``purgatory.relay.resyncs``        counter  ``{resync}``
    ``purgatory.relay.collapsed``      counter  ``{set}``
    ``purgatory.relay.unreadable``     counter  ``{message}``
    ``purgatory.relay.keys``           counter  ``{key}``         ``purgatory.relay.direction``: sent, received
    ``purgatory.relay.messages``       counter  ``{message}``     ``purgatory.relay.direction``: sent, received
    ``purgatory.relay.reads``          counter  ``{read}``        ``purgatory.relay.outcome``: completed, failed
    =================================  =======  ================  ======================================================

    Raises ValueError if no relay is given, or if the purgatory of one of them has the same name as the open purgatory
    of another relay that the meter reports.  Raises TypeError for an argument that is not a relay.
    """
    if not relays:
        raise ValueError("observe_relays() must get at least one relay, got none")
    for relay in relays:
        if not isinstance(getattr(relay, "_purgatory", None), Purgatory):  # relays belong to an optional part
            raise TypeError(
                f"observe_relays() takes relays, each as an argument, got {safe_repr(relay)}; purgatories are for"
                " observe()"
            )
    if meter is None:
        meter = get_meter(_SCOPE)
    observed = _of_meter(_relays, meter)
    if observed is not None:
        observed.add(relays)
        return
    observed = _Relays()
    observed.add(relays)
    _relays[meter] = observed
    for name, unit, text, read in _RELAY_GAUGES:
        meter.create_observable_gauge(f"purgatory.relay.{name}", [observed.callback(read)], unit, text)
    for name, unit, text, read in _RELAY_COUNTERS:
        meter.create_observable_counter(f"purgatory.relay.{name}", [observed.callback(read)], unit, text)


class Durations(EndObserver):
    """An observer that records in histograms how long operations waited and how late they expired.

    The histograms are ``purgatory.operation.wait.duration``, with the attributes ``purgatory.name``,
    ``purgatory.outcome``, and ``purgatory.operation.kind``, and ``purgatory.operation.late.duration``, with
    ``purgatory.name``; both are in seconds.

    The buckets are only a default: an SDK view can make the histograms exponential, and Prometheus stores exponential
    histograms that it receives through OTLP as native histograms.
    """

    def __init__(self, meter: Meter | None = None) -> None:
        if meter is None:
            meter = get_meter(_SCOPE)
        self._wait = meter.create_histogram(
            "purgatory.operation.wait.duration",
            "s",
            "Time from parking to the end",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._late = meter.create_histogram(
            "purgatory.operation.late.duration",
            "s",
            "Time from the deadline to the expiry",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )

    def ended(self, event: Event) -> None:
        """Record the wait and, if the operation expired at its deadline, the lateness."""
        if event.wait is not None:
            attributes = {
                "purgatory.name": event.purgatory,
                "purgatory.outcome": outcome_of(event),
                "purgatory.operation.kind": event.kind,
            }
            self._wait.record(event.wait, attributes)
        if event.lateness is not None:
            self._late.record(event.lateness, {"purgatory.name": event.purgatory})


class _Window:
    """The quantiles over about a minute, computed from copies of the histograms.

    They depend on the time, not on the reader, so several readers see the same window.  It begins at the last of the
    copies that are a minute old, or with the first copy, when the purgatory was observed.
    """

    __slots__ = ("_copies",)

    def __init__(self, purgatory: Purgatory[Any]) -> None:
        self._copies = [_copy_of(purgatory)]  # replaced, because other threads iterate over it

    def quantiles(self, purgatory: Purgatory[Any]) -> tuple[Quantiles, Quantiles]:
        """Return the quantiles of the waits and of the lateness."""
        now, wait, late = latest = _copy_of(purgatory)
        copies = self._copies
        while len(copies) > 1 and now - copies[1][0] >= _WINDOW - _TOLERANCE:
            copies = copies[1:]
        _, wait_before, late_before = copies[0]
        self._copies = [*copies, latest] if now - copies[-1][0] >= _STEP - _TOLERANCE else copies
        counters = purgatory._core.counters
        return (
            quantiles_between(wait_before, wait, counters.wait.max_ms),
            quantiles_between(late_before, late, counters.lateness.max_ms),
        )


def _copy_of(purgatory: Purgatory[Any]) -> tuple[float, list[int], list[int]]:
    counters = purgatory._core.counters
    return _now(), counters.wait.cells(), counters.lateness.cells()


class _HotKeys:
    """The keys with the most watchers, for a collection that may run in another thread.

    A collection visits no more than about 100,000 keys, and the next collection continues with the keys after them; if
    there are fewer keys, each collection visits all of them.
    """

    __slots__ = ("_best", "_last", "_shard")

    def __init__(self) -> None:
        self._shard = 0
        self._best: list[tuple[int, int, Hashable]] = []  # from the current pass
        self._last: list[tuple[int, int, Hashable]] = []  # from the last complete pass

    def find(self, purgatory: Purgatory[Any], number: int) -> list[tuple[Hashable, int]]:
        """Return at most ``number`` keys with their numbers of watchers, in descending order."""
        lists = purgatory._core.watcher_lists
        visited = 0
        while self._shard < SHARDS and visited < _MOST_VISITED:
            counts = lists.counts_of_shard(self._shard)
            visited += len(counts)
            place = self._shard << 32  # orders equal counts, because keys cannot be compared
            some = [(count, place + index, key) for index, (key, count) in enumerate(counts)]
            self._best = nlargest(number, [*self._best, *some], key=_first_two)
            self._shard += 1
        if self._shard == SHARDS:
            self._shard, self._last, self._best = 0, self._best, []
            return [(key, count) for count, _, key in self._last]
        # The current pass has already found the keys of these shards, perhaps at other places.
        ahead = [item for item in self._last if item[1] >> 32 >= self._shard]
        return [(key, count) for count, _, key in nlargest(number, [*ahead, *self._best], key=_first_two)]


def _first_two(item: tuple[int, int, Hashable]) -> tuple[int, int]:
    return item[0], -item[1]


class _Observed:
    """A purgatory that a meter reports, held by a weak reference."""

    __slots__ = ("hot_keys", "keys", "reference", "window")

    def __init__(self, purgatory: Purgatory[Any], hot_keys: int, window: _Window) -> None:
        self.reference = weakref.ref(purgatory)
        self.hot_keys = hot_keys
        self.window = window
        self.keys = _HotKeys()


class _Reader:
    """Holds weak references to the purgatories and reads their figures at each collection, possibly in another thread.

    Each meter has only one reader, because the SDK would ignore a second instrument with the same name and meter.
    """

    def __init__(self) -> None:
        self._observed: list[_Observed] = []  # replaced, not modified, because another thread may iterate over it
        self.reports_keys = False

    def add(self, purgatories: Iterable[Purgatory[Any]], hot_keys: int) -> None:
        """Also report these purgatories, or raise ValueError and change nothing."""
        named = {purgatory.name: (purgatory, observed) for purgatory, observed in self._living()}
        for purgatory in purgatories:
            other, before = named.get(purgatory.name, (purgatory, None))
            if other is not purgatory and not other.closed:
                raise ValueError(f"purgatories must have different names, got {purgatory.name!r} twice")
            window = before.window if before is not None and other is purgatory else _Window(purgatory)
            named[purgatory.name] = purgatory, _Observed(purgatory, hot_keys, window)
        self._observed = [observed for _, observed in named.values()]

    def _living(self) -> list[tuple[Purgatory[Any], _Observed]]:
        return [(found, observed) for observed in self._observed if (found := observed.reference()) is not None]

    def quantiles(self, which: int) -> Callable[[CallbackOptions], Iterable[Observation]]:
        """Return a callback that observes the quantiles of the waits (``which`` is 0) or of the lateness (1)."""

        def observations(_: CallbackOptions) -> Iterable[Observation]:
            for purgatory, observed in self._living():
                found = observed.window.quantiles(purgatory)[which]
                for quantile, field in _QUANTILES:
                    attributes = {"purgatory.name": purgatory.name, "quantile": quantile}
                    yield Observation(getattr(found, field), attributes)

        return observations

    def callback(self, read: _Read) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observations(_: CallbackOptions) -> Iterable[Observation]:
            for purgatory, _observed in self._living():
                for value, attributes in read(purgatory.statistics()):
                    yield Observation(value, {"purgatory.name": purgatory.name, **attributes})

        return observations

    def timer_sizes(self, _: CallbackOptions) -> Iterable[Observation]:
        for name, timer in self._timers():
            yield Observation(timer.size, {"purgatory.name": name})

    def timer_cascades(self, _: CallbackOptions) -> Iterable[Observation]:
        for name, timer in self._timers():
            yield Observation(timer.cascades, {"purgatory.name": name})

    def _timers(self) -> Iterable[tuple[str, SystemTimer]]:
        """Yield each timer once, under the name of the first purgatory that uses it."""
        seen = set()
        for purgatory, _ in self._living():
            if id(purgatory.timer) not in seen:
                seen.add(id(purgatory.timer))
                yield purgatory.name, purgatory.timer

    def hot_keys(self, _: CallbackOptions) -> Iterable[Observation]:
        for purgatory, observed in self._living():
            if observed.hot_keys:
                # Of several observations with the same attributes, the SDK would keep only the last one.
                watchers: dict[str, int] = {}
                for key, number in observed.keys.find(purgatory, observed.hot_keys):
                    text = key_text(shown_key(key))
                    watchers[text] = watchers.get(text, 0) + number
                for text, number in watchers.items():
                    yield Observation(number, {"purgatory.name": purgatory.name, "purgatory.key": text})


class _Relays:
    """Does the same as :class:`_Reader`, but for relays."""

    def __init__(self) -> None:
        self._relays: list[weakref.ref[Relay]] = []

    def add(self, relays: "Iterable[Relay]") -> None:
        named = {relay._purgatory.name: relay for relay in self._living()}
        for relay in relays:
            name = relay._purgatory.name
            other = named.get(name, relay)
            if other is not relay and not other._purgatory.closed:
                raise ValueError(f"relays must have purgatories of different names, got {name!r} twice")
            named[name] = relay
        self._relays = [weakref.ref(relay) for relay in named.values()]

    def _living(self) -> "list[Relay]":
        return [relay for reference in self._relays if (relay := reference()) is not None]

    def callback(self, read: "_ReadRelay") -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observations(_: CallbackOptions) -> Iterable[Observation]:
            for relay in self._living():
                statistics = relay.statistics()
                for value, attributes in read(statistics):
                    yield Observation(value, {"purgatory.name": statistics.purgatory, **attributes})

        return observations


_readers: "weakref.WeakKeyDictionary[Meter, _Reader]" = weakref.WeakKeyDictionary()
_relays: "weakref.WeakKeyDictionary[Meter, _Relays]" = weakref.WeakKeyDictionary()
_O = TypeVar("_O")


def _of_meter(observed: "weakref.WeakKeyDictionary[Meter, _O]", meter: Meter) -> _O | None:
    """Return what the meter already reports.

    Until the application sets a meter provider, each call to ``get_meter()`` returns a new stand-in.  Stand-ins with
    the same name pass their instruments on to the same meter.
    """
    for other, found in list(observed.items()):
        stand_ins = _is_stand_in(other) and _is_stand_in(meter)
        if _real(other) is _real(meter) or (stand_ins and _scope(other) == _scope(meter)):
            return found
    return None


def _scope(meter: Meter) -> tuple[str, str | None, str | None]:
    return meter.name, meter.version, meter.schema_url


def _real(meter: Meter) -> Any:
    return getattr(meter, "_real_meter", None) or meter


def _is_stand_in(meter: Meter) -> bool:
    return getattr(meter, "_real_meter", meter) is None


def _outcomes(statistics: Statistics) -> Iterable[tuple[float, dict[str, str]]]:
    for outcome in _OUTCOMES:
        yield getattr(statistics, outcome), {"purgatory.outcome": outcome}
    if statistics.expired_by_closing:  # a purgatory closes only once; until then, zeros would mean nothing
        yield statistics.expired_by_closing, {"purgatory.outcome": "expired_by_closing"}


def _refusals(statistics: Statistics) -> Iterable[tuple[float, dict[str, str]]]:
    by_key, by_client = statistics.refused_by_key, statistics.refused_by_client
    yield statistics.refused - by_key - by_client, {"purgatory.limit": "max_parked"}
    yield by_key, {"purgatory.limit": "max_parked_per_key"}
    if by_client:  # only purgatories of web applications have this limit
        yield by_client, {"purgatory.limit": "per_client"}


_GAUGES: tuple[tuple[str, str, str, _Read], ...] = (
    ("purgatory.operation.parked", "{operation}", "Operations that wait", lambda s: [(s.parked, {})]),
    ("purgatory.operation.delayed", "{operation}", "Operations with a deadline", lambda s: [(s.num_delayed, {})]),
    (
        "purgatory.operation.subscribed",
        "{operation}",
        "Operations of changes(), which wait but never complete",
        lambda s: [(s.subscribed, {})],
    ),
    ("purgatory.watch.count", "{watch}", "Pairs of an operation and a key it waits on", lambda s: [(s.watched, {})]),
    ("purgatory.key.count", "{key}", "Keys with at least one waiting operation", lambda s: [(s.keys, {})]),
)
_COUNTERS: tuple[tuple[str, str, str, _Read], ...] = (
    ("purgatory.operation.ended", "{operation}", "Operations that have ended", _outcomes),
    (
        "purgatory.operation.immediate",
        "{operation}",
        "Operations that completed without waiting",
        lambda s: [(s.immediate, {})],
    ),
    ("purgatory.operation.refused", "{operation}", "Operations that a limit refused", _refusals),
    (
        "purgatory.observer.detached",
        "{observer}",
        "Observers that raised and were detached",
        lambda s: [(s.observers_detached, {})],
    ),
)
_DURATIONS = (
    ("purgatory.operation.wait.quantile", "Time from parking to the end, over the last minute"),
    ("purgatory.operation.late.quantile", "Time from deadline to expiry, over the last minute"),
)

_ReadRelay = Callable[["RelayStatistics"], Iterable[tuple[float, dict[str, str]]]]


def _both_ways(sent: int, received: int) -> Iterable[tuple[float, dict[str, str]]]:
    return [(sent, {"purgatory.relay.direction": "sent"}), (received, {"purgatory.relay.direction": "received"})]


def _relay_reads(statistics: "RelayStatistics") -> Iterable[tuple[float, dict[str, str]]]:
    yield statistics.reads, {"purgatory.relay.outcome": "completed"}
    yield statistics.failed_reads, {"purgatory.relay.outcome": "failed"}


def _relay_read_times(statistics: "RelayStatistics") -> Iterable[tuple[float, dict[str, str]]]:
    for quantile, field in _QUANTILES:
        yield getattr(statistics.read_duration, field), {"quantile": quantile}


_RELAY_GAUGES: tuple[tuple[str, str, str, _ReadRelay], ...] = (
    ("connected", "1", "Whether the relay is connected to its engine", lambda s: [(int(s.connected), {})]),
    ("lag", "s", "Time of a ping through the engine and back", lambda s: [] if s.lag is None else [(s.lag, {})]),
    ("peers", "{relay}", "Other relays that were heard from recently", lambda s: [(s.peers, {})]),
    ("pending", "{key}", "Keys that wait to be sent", lambda s: [(s.pending, {})]),
    ("stale", "{key}", "Keys that wait to be refreshed", lambda s: [(s.stale, {})]),
    ("read.quantile", "s", "Duration of a call to refresh", _relay_read_times),
)
_RELAY_COUNTERS: tuple[tuple[str, str, str, _ReadRelay], ...] = (
    ("connects", "{connection}", "Confirmed subscriptions", lambda s: [(s.connects, {})]),
    ("losses", "{connection}", "Connections, and attempts to connect, that failed", lambda s: [(s.losses, {})]),
    ("resyncs", "{resync}", "Requests to check all watched keys", lambda s: [(s.resyncs, {})]),
    ("collapsed", "{set}", "Sets of keys that became every key", lambda s: [(s.collapsed, {})]),
    ("unreadable", "{message}", "Messages that could not be read", lambda s: [(s.unreadable, {})]),
    ("keys", "{key}", "Keys relayed", lambda s: _both_ways(s.sent, s.received)),
    ("messages", "{message}", "Messages relayed", lambda s: _both_ways(s.messages_sent, s.messages_received)),
    ("reads", "{read}", "Calls to refresh", _relay_reads),
)
