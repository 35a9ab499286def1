"""Metrics report the values of ``statistics()`` under the documented names."""

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from purgatory import DelayedOperation, Purgatory, PurgatoryFull, SystemTimer, asgi
from purgatory.events import Outcome
from purgatory.locks import KeyedLock, Quorum
from purgatory.testing import VirtualClock

pytest.importorskip("opentelemetry.sdk", reason="the extra 'otel' is not installed")
pytest.importorskip("opentelemetry.exporter.prometheus", reason="the extra 'otel' is not installed")

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from prometheus_client import REGISTRY, start_http_server

from purgatory import otel
from purgatory.otel import metrics as otel_metrics
from purgatory.relay import MemoryTransport, Relay
from tests.asgi.tools import http_scope

DOCS = Path(__file__).parent.parent / "docs"


class Wait(DelayedOperation[str]):
    """An operation that waits until its flag is set."""

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> str:
        return "done"


class Ready(Wait):
    """An operation that completes at once."""

    def try_complete(self) -> bool:
        return True


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    """Return a reader that collects on demand."""
    reader = InMemoryMetricReader()
    yield reader
    reader.shutdown()


def meter(reader: Any) -> Any:
    """Return a meter of a separate provider."""
    return MeterProvider(metric_readers=[reader], shutdown_on_exit=False).get_meter("test")


def collected(reader: InMemoryMetricReader) -> dict[str, dict[tuple[tuple[str, str], ...], Any]]:
    """Return the result of one collection: name -> attributes -> data point."""
    data = reader.get_metrics_data()
    if data is None:
        return {}
    found: dict[str, dict[tuple[tuple[str, str], ...], Any]] = {}
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points = found.setdefault(metric.name, {})
                for point in metric.data.data_points:
                    points[tuple(sorted(point.attributes.items()))] = point
    return found


async def test_the_gauges_and_totals_are_those_of_the_statistics(reader: InMemoryMetricReader) -> None:
    """Each instrument has the value of ``statistics()``."""
    clock = VirtualClock()
    async with Purgatory[Wait]("fetch", clock=clock) as purgatory:
        otel.observe(purgatory, meter=meter(reader), hot_keys=1)
        for timeout in (1.0, 2.0, None):
            purgatory.try_complete_else_watch(Wait(timeout), ["a", "b"])
        purgatory.try_complete_else_watch(Wait(None), ["b"])
        purgatory.try_complete_else_watch(Ready(None), ["b"])
        await clock.advance(1.5)
        found = collected(reader)
        name = ("purgatory.name", "fetch")
        assert found["purgatory.operation.parked"][(name,)].value == 3
        assert found["purgatory.operation.delayed"][(name,)].value == 1
        assert found["purgatory.operation.subscribed"][(name,)].value == 0
        assert found["purgatory.watch.count"][(name,)].value == 5
        assert found["purgatory.key.count"][(name,)].value == 2
        assert found["purgatory.timer.size"][(name,)].value == 1
        assert found["purgatory.timer.cascades"][(name,)].value == purgatory.timer.cascades > 0
        ended = found["purgatory.operation.ended"]
        assert {dict(key)["purgatory.outcome"]: point.value for key, point in ended.items()} == {
            "completed": 1,
            "expired": 1,
            "cancelled": 0,
            "failed": 0,
        }
        assert found["purgatory.operation.immediate"][(name,)].value == 1
        waits = found["purgatory.operation.wait.quantile"]
        assert {dict(key)["quantile"]: point.value for key, point in waits.items()} == dict.fromkeys(
            ("0.5", "0.99", "0.999", "1"), 1.0
        )
        assert found["purgatory.key.watchers"][tuple(sorted([name, ("purgatory.key", "b")]))].value == 3


async def test_the_operations_of_streams_are_reported(reader: InMemoryMetricReader) -> None:
    """They wait but never complete, so an alert must be able to leave them out."""
    async with Purgatory[Any]("fetch", clock=VirtualClock()) as room, room.changes(["a", "b"]):
        otel.observe(room, meter=meter(reader))
        room.try_complete_else_watch(Wait(None), ["a"])
        found = collected(reader)
    name = ("purgatory.name", "fetch")
    assert found["purgatory.operation.parked"][(name,)].value == 3
    assert found["purgatory.operation.subscribed"][(name,)].value == 2


async def test_every_outcome_has_a_counter(reader: InMemoryMetricReader) -> None:
    """The counter of ended operations has each outcome but PENDING as an attribute."""
    async with Purgatory[Wait]("fetch", clock=VirtualClock()) as purgatory:
        otel.observe(purgatory, meter=meter(reader))
        ended = collected(reader)["purgatory.operation.ended"]
    reported = [dict(attributes)["purgatory.outcome"] for attributes in ended]
    assert sorted(reported) == sorted(outcome.value for outcome in Outcome if outcome is not Outcome.PENDING)


async def test_closing_is_no_timeout(reader: InMemoryMetricReader) -> None:
    """What closing ends has an outcome of its own, in the counter and in the histogram of the waits."""
    clock, provided = VirtualClock(), meter(reader)
    async with Purgatory[Wait]("fetch", clock=clock, observers=[otel.Durations(provided)]) as purgatory:
        otel.observe(purgatory, meter=provided)
        for timeout in (1.0, 5.0, None):
            purgatory.try_complete_else_watch(Wait(timeout), ["a"])
        await clock.advance(1.0)
    found = collected(reader)
    ended = {dict(key)["purgatory.outcome"]: point.value for key, point in found["purgatory.operation.ended"].items()}
    assert ended == {"completed": 0, "expired": 1, "expired_by_closing": 2, "cancelled": 0, "failed": 0}
    waits = found["purgatory.operation.wait.duration"]
    assert {dict(key)["purgatory.outcome"]: point.count for key, point in waits.items()} == {
        "expired": 1,
        "expired_by_closing": 2,
    }


async def test_refusals_have_a_counter(reader: InMemoryMetricReader) -> None:
    """Each limit has its own series."""
    async with Purgatory[Wait]("fetch", clock=VirtualClock(), max_parked=2, max_parked_per_key=1) as purgatory:
        otel.observe(purgatory, meter=meter(reader))
        for key in ("a", "a", "b", "c", "d"):
            with contextlib.suppress(PurgatoryFull):
                purgatory.try_complete_else_watch(Wait(1.0), [key])
        refused = collected(reader)["purgatory.operation.refused"]
    assert {dict(key)["purgatory.limit"]: point.value for key, point in refused.items()} == {
        "max_parked": 2,
        "max_parked_per_key": 1,
    }


async def test_the_refusals_of_a_client_are_not_those_of_a_limit_of_the_purgatory(reader: InMemoryMetricReader) -> None:
    """The limit of a client has its own series, which appears with its first refusal."""

    async def receive() -> Any:
        await asyncio.Event().wait()

    async with Purgatory[Any]("fetch", clock=VirtualClock()) as purgatory:
        otel.observe(purgatory, meter=meter(reader))

        def refused() -> dict[str, int]:
            found = collected(reader)["purgatory.operation.refused"]
            return {dict(key)["purgatory.limit"]: point.value for key, point in found.items()}

        assert refused() == {"max_parked": 0, "max_parked_per_key": 0}
        wait = asgi.Wait(purgatory, http_scope(), receive, per_client=1)
        first = asyncio.ensure_future(wait.until(lambda: False, key="a", timeout=None))
        await asyncio.sleep(0)
        with pytest.raises(asgi.TooManyWaits):
            await wait.until(lambda: False, key="a", timeout=None)
        assert refused() == {"max_parked": 0, "max_parked_per_key": 0, "per_client": 1}
        first.cancel()
        await asyncio.wait([first])


async def test_a_key_without_a_text_hides_no_other_key(reader: InMemoryMetricReader) -> None:
    """The key is reported by its class, and the keys after it by their texts."""

    class Key:
        def __repr__(self) -> str:
            raise RuntimeError

    async with Purgatory[Wait]("fetch", clock=VirtualClock()) as purgatory:
        otel.observe(purgatory, meter=meter(reader), hot_keys=2)
        key = Key()
        for _ in range(2):
            purgatory.try_complete_else_watch(Wait(None), [key])
        purgatory.try_complete_else_watch(Wait(None), ["a"])
        found = {
            dict(key)["purgatory.key"]: point.value
            for key, point in collected(reader)["purgatory.key.watchers"].items()
        }
    assert found == {"<Key whose repr raised RuntimeError>": 2, "a": 1}


async def test_keys_with_equal_texts_are_added_up(reader: InMemoryMetricReader) -> None:
    """The waiters of a lock, of two quorums, of a number, and of a long key do not disappear behind those of a key with
    the same text.
    """
    async with Purgatory[Any]("shop", clock=VirtualClock()) as room:
        otel.observe(room, meter=meter(reader), hot_keys=20)
        lock, first, second = KeyedLock(room), Quorum(room, need=2), Quorum(room, need=2)
        await lock.acquire("order-7")
        waiting = [lock.acquire("order-7") for _ in range(5)]
        waiting += [first.wait() for _ in range(4)]
        waiting += [second.wait() for _ in range(2)]
        for key, number in (("order-7", 1), (7, 3), ("7", 2), ("k" * 200, 3), ("k" * 201, 1)):
            waiting += [room.wait_until(lambda: False, key=key, timeout=None) for _ in range(number)]
        tasks = [asyncio.ensure_future(each) for each in waiting]
        await asyncio.sleep(0)
        found = collected(reader)["purgatory.key.watchers"]
        assert {dict(key)["purgatory.key"]: point.value for key, point in found.items()} == {
            "order-7": 6,
            "quorum": 6,
            "7": 5,
            "k" * 119 + "…": 4,
        }
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_a_key_is_counted_once_while_a_pass_over_the_keys_continues(
    reader: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key may move within its shard between two passes; neither its old place nor its old number is added."""
    monkeypatch.setattr(otel_metrics, "_MOST_VISITED", 1)
    async with Purgatory[Wait]("fetch", clock=VirtualClock()) as room:
        other, hot, last = 512, 1021, 511  # of the first shard, of the same, and of the last
        before = Wait(None)
        for operation, key in ((before, other), (Wait(None), hot), (Wait(None), hot), (Wait(None), last)):
            room.try_complete_else_watch(operation, [key])
        otel.observe(room, meter=meter(reader), hot_keys=5)

        def watchers() -> dict[str, int]:
            found = collected(reader)["purgatory.key.watchers"]
            return {dict(key)["purgatory.key"]: point.value for key, point in found.items()}

        assert watchers() == {str(other): 1, str(hot): 2}
        assert watchers() == {str(other): 1, str(hot): 2, str(last): 1}
        before.cancel()  # the hot key is now the first one in its shard
        assert watchers() == {str(hot): 2, str(last): 1}


async def test_hot_keys_are_short_texts_and_their_cost_is_bounded(
    reader: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection visits a bounded number of keys, and the next one goes on; texts are cut and printable."""
    monkeypatch.setattr(otel_metrics, "_MOST_VISITED", 10)
    async with Purgatory[Wait]("fetch", clock=VirtualClock()) as purgatory:
        otel.observe(purgatory, meter=meter(reader), hot_keys=2)
        for number in range(300):
            purgatory.try_complete_else_watch(Wait(None), [number])
        for key in ("\x1b" + "k" * 1000, "b"):
            for _ in range(5 - len(key[:2])):
                purgatory.try_complete_else_watch(Wait(None), [key])
        for _ in range(40):  # more than one pass
            found = collected(reader)["purgatory.key.watchers"]
            assert len(found) <= 2
        texts = {dict(key)["purgatory.key"]: point.value for key, point in found.items()}
    assert texts == {"\\x1b" + "k" * 115 + "…": 3, "b": 4}


async def test_quantiles_cover_the_last_minute(reader: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait of ten minutes ago does not count, whoever collects in between."""
    now = 1000.0
    monkeypatch.setattr(otel_metrics, "_now", lambda: now)
    clock = VirtualClock()
    async with Purgatory[Wait]("fetch", clock=clock) as purgatory:
        otel.observe(purgatory, meter=meter(reader))

        def waits() -> dict[str, float]:
            found = collected(reader)["purgatory.operation.wait.quantile"]
            return {dict(key)["quantile"]: point.value for key, point in found.items()}

        purgatory.try_complete_else_watch(Wait(50.0), ["a"])
        await clock.advance(50.0)
        assert waits()["1"] == 50.0
        for seconds in range(300):
            now += 1.0
            if seconds % 7 == 0:
                waits()
        assert waits()["1"] == 0.0
        purgatory.try_complete_else_watch(Wait(2.0), ["a"])
        await clock.advance(2.0)
        assert 2.0 <= waits()["1"] <= 2.07
        for _ in range(10):
            now += 5.0
            assert 2.0 <= waits()["1"] <= 2.07
        for _ in range(10):
            now += 5.0
            waits()
        assert waits()["1"] == 0.0


@pytest.mark.parametrize(("interval", "window"), [(10, 60), (45, 90), (59, 59), (60, 60), (61, 61), (120, 120)])
async def test_the_window_begins_at_the_last_collection_that_is_a_minute_old(
    reader: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch, interval: int, window: int
) -> None:
    """The same window applies to both gauges, and observing the purgatory again does not change it."""
    now = 1000.0
    monkeypatch.setattr(otel_metrics, "_now", lambda: now)
    clock = VirtualClock()
    own = meter(reader)
    async with Purgatory[Wait]("fetch", clock=clock) as purgatory:

        async def wait() -> None:
            purgatory.try_complete_else_watch(Wait(0.5), ["a"])
            await clock.advance(0.5)
            purgatory._core.counters.lateness.record(7)  # in virtual time, nothing expires late

        def maxima() -> list[bool]:
            found = collected(reader)
            return [
                any(point.value > 0 for point in found[f"purgatory.operation.{name}.quantile"].values())
                for name in ("wait", "late")
            ]

        await wait()
        otel.observe(purgatory, meter=own)
        assert maxima() == [False, False], "what happened before it was observed"
        for _ in range(5):
            now += interval
            assert maxima() == [False, False]
        await wait()
        for number in range(1, 20):
            now += interval
            otel.observe(purgatory, meter=own)
            assert maxima() == [number * interval <= window] * 2


async def test_waits_have_the_kind_and_can_be_native_histograms() -> None:
    """With the view of the documentation, the histograms are exponential, with the kind as an attribute."""
    views = [
        View(instrument_name="purgatory.operation.*.duration", aggregation=ExponentialBucketHistogramAggregation())
    ]
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], views=views)
    clock = VirtualClock()
    durations = otel.Durations(provider.get_meter("test"))
    async with Purgatory[Any]("fetch", clock=clock, observers=[durations]) as purgatory:
        waiting = purgatory.wait_until(lambda: False, key="a", timeout=0.5, kind="GET /a")
        assert await asyncio.gather(waiting, clock.advance(1.0)) == [False, None]
    found = collected(reader)["purgatory.operation.wait.duration"]
    ((attributes, point),) = found.items()
    assert dict(attributes) == {
        "purgatory.name": "fetch", "purgatory.operation.kind": "GET /a", "purgatory.outcome": "expired",
    }  # fmt: skip
    assert (point.count, point.sum, point.scale > 3) == (1, 0.5, True)
    provider.shutdown()


async def test_a_shared_timer_is_reported_once(reader: InMemoryMetricReader) -> None:
    """Two purgatories on one timer do not double its size."""
    async with SystemTimer(clock=VirtualClock()) as timer:
        one, two = Purgatory[Wait]("one", timer=timer), Purgatory[Wait]("two", timer=timer)
        otel.observe(one, two, meter=meter(reader))
        one.try_complete_else_watch(Wait(1.0), ["k"])
        assert [point.value for point in collected(reader)["purgatory.timer.size"].values()] == [1]


async def test_a_purgatory_that_is_gone_is_not_reported(reader: InMemoryMetricReader) -> None:
    """The metrics do not keep a purgatory alive."""
    import gc

    purgatory: Purgatory[Wait] | None = Purgatory("gone", clock=VirtualClock())
    assert purgatory is not None
    otel.observe(purgatory, meter=meter(reader))
    assert collected(reader)["purgatory.operation.parked"]
    purgatory = None
    gc.collect()
    assert not collected(reader).get("purgatory.operation.parked")


async def test_later_calls_add_to_the_same_meter(reader: InMemoryMetricReader) -> None:
    """A meter reports the purgatories of every call, each once, and the hot keys of the last call for each."""
    one = meter(reader)
    async with Purgatory[Wait]("a", clock=VirtualClock()) as a, Purgatory[Wait]("b", clock=VirtualClock()) as b:
        for purgatory in (a, b):
            purgatory.try_complete_else_watch(Wait(None), [1, 2])
        otel.observe(a, meter=one)
        otel.observe(b, meter=one, hot_keys=1)
        found = collected(reader)
        parked = found["purgatory.operation.parked"]
        assert {key[0][1]: point.value for key, point in parked.items()} == {"a": 1, "b": 1}
        assert [dict(key)["purgatory.name"] for key in found["purgatory.key.watchers"]] == ["b"]
        otel.observe(a, meter=one, hot_keys=2)
        found = collected(reader)
        assert len(found["purgatory.operation.parked"]) == 2
        assert sorted(dict(key)["purgatory.name"] for key in found["purgatory.key.watchers"]) == ["a", "a", "b"]
        other = Purgatory[Wait]("a", clock=VirtualClock())
        with pytest.raises(ValueError, match="must have different names, got 'a' twice"):
            otel.observe(other, meter=one)
    otel.observe(other, meter=one)
    assert [point.value for point in collected(reader)["purgatory.operation.parked"].values()] == [0, 0]
    await other.aclose()


async def test_later_calls_add_relays_to_the_same_meter(reader: InMemoryMetricReader) -> None:
    """A meter reports the relays of every call."""
    one = meter(reader)
    rooms = [Purgatory[Wait](name, clock=VirtualClock()) for name in ("a", "b", "a")]
    relays = [Relay(room, MemoryTransport()) for room in rooms]
    otel.observe_relays(relays[0], meter=one)
    otel.observe_relays(relays[1], meter=one)
    connected = collected(reader)["purgatory.relay.connected"]
    assert {key[0][1]: point.value for key, point in connected.items()} == {"a": 0, "b": 0}
    with pytest.raises(ValueError, match="purgatories of different names, got 'a' twice"):
        otel.observe_relays(relays[2], meter=one)


GLOBAL_METER = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from purgatory import Purgatory, otel

rooms = [Purgatory(name) for name in "abc"]
otel.observe(rooms[0])
otel.observe(rooms[1])
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider(metric_readers=[reader]))
otel.observe(rooms[2])
for resource in reader.get_metrics_data().resource_metrics:
    for scope in resource.scope_metrics:
        for metric in scope.metrics:
            if metric.name == "purgatory.operation.parked":
                print(sorted(point.attributes["purgatory.name"] for point in metric.data.data_points))
"""


def test_calls_before_and_after_the_global_provider_is_set() -> None:
    """Without a meter, every purgatory is reported, whether it was observed before or after the provider was set."""
    done = subprocess.run([sys.executable, "-c", GLOBAL_METER], capture_output=True, text=True, timeout=50, check=False)
    assert (done.stdout, done.stderr) == ("['a', 'b', 'c']\n", "")


async def test_durations_are_recorded_as_histograms(reader: InMemoryMetricReader) -> None:
    """The observer counts each wait with its outcome, and each late expiry."""
    clock = VirtualClock()
    async with Purgatory[Wait]("fetch", clock=clock, observers=[otel.Durations(meter(reader))]) as purgatory:
        operations = [Wait(1.0) for _ in range(4)]
        for operation in operations:
            purgatory.try_complete_else_watch(operation, ["k"])
        await clock.advance(0.25)
        operations[0].force_complete()
        operations[1].cancel()
        purgatory.fail_for_key("k", RuntimeError("no"))
        await clock.advance(1.0)
        late = Wait(0.5)
        purgatory.try_complete_else_watch(late, ["k"])
        await clock.advance(1.0)
        found = collected(reader)
        waits = {
            dict(key)["purgatory.outcome"]: point for key, point in found["purgatory.operation.wait.duration"].items()
        }
        assert {outcome: (point.count, point.sum) for outcome, point in waits.items()} == {
            "completed": (1, 0.25),
            "cancelled": (1, 0.25),
            "failed": (2, 0.5),
            "expired": (1, 0.5),
        }
        assert [point.count for point in found["purgatory.operation.late.duration"].values()] == [1]


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ([], {}, "at least one purgatory"),
        (["a", "a"], {}, "different names"),
        (["a"], {"hot_keys": -1}, "hot_keys"),
        (["a"], {"hot_keys": 101}, "hot_keys"),
    ],
)
async def test_bad_input_is_refused(names: list[str], options: dict[str, Any], message: str) -> None:
    """No purgatory, ambiguous names and bad numbers raise ValueError."""
    purgatories = [Purgatory[Wait](name, clock=VirtualClock()) for name in names]
    with pytest.raises(ValueError, match=message):
        otel.observe(*purgatories, **options)


async def test_a_purgatory_is_told_from_a_relay(purgatory: Purgatory[Any]) -> None:
    """The error names the other function, and a list is no purgatory."""
    relay: Any = Relay(purgatory, MemoryTransport())
    room: Any = purgatory
    for other in (relay, [room]):
        with pytest.raises(TypeError, match=r"observe\(\) takes purgatories, .* got .*; relays are for observe_relays"):
            otel.observe(other)
    for other in (room, [relay]):
        with pytest.raises(TypeError, match=r"takes relays, .* got .*; purgatories are for observe\(\)"):
            otel.observe_relays(other)


def scrape() -> str:
    """Scrape the metrics over HTTP, as Prometheus does."""
    server, thread = start_http_server(0, addr="127.0.0.1")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def test_the_dashboard_and_the_alerts_ask_for_metrics_that_a_real_scrape_has() -> None:
    """Every metric and label in the Grafana dashboard and in the alert rules is in the output of the exporter."""
    prometheus = PrometheusMetricReader()
    clock = VirtualClock()
    try:
        provided = meter(prometheus)
        async with (
            Purgatory[Wait]("fetch", clock=clock, observers=[otel.Durations(provided)]) as purgatory,
            Relay(purgatory, MemoryTransport()) as relay,
        ):
            otel.observe(purgatory, meter=provided, hot_keys=3)
            otel.observe_relays(relay, meter=provided)
            purgatory.try_complete_else_watch(Wait(1.0), ["a"])
            purgatory.try_complete_else_watch(Wait(None), ["b"])
            await clock.advance(2.0)
            page = await asyncio.to_thread(scrape)
    finally:
        prometheus.shutdown()
    assert not [collector for collector in REGISTRY._collector_to_names if "Custom" in type(collector).__name__]
    offered = set(re.findall(r"^(purgatory_\w+)\{", page, re.MULTILINE)) | set(re.findall(r"(purgatory_\w+)=", page))
    dashboard = json.loads((DOCS / "metrics" / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = (DOCS / "metrics" / "alerts.yml").read_text()
    asked = {name for text in (*queries, rules) for name in re.findall(r"\bpurgatory_\w+", text)}
    assert len(asked) >= 20
    assert asked <= offered, f"not offered: {sorted(asked - offered)}; offered: {sorted(offered)}"


def test_the_table_in_the_documentation_is_complete() -> None:
    """Every instrument of the module is in the table of its docstring."""
    source = Path(otel.__file__).read_text()
    made = set(re.findall(r'"(purgatory\.(?:operation|watch|key|observer|timer)\.[a-z.]+)"', source))
    documented = set(re.findall(r"``(purgatory\.[a-z.]+)``", otel.__doc__ or ""))
    assert made - {"purgatory.operation.wait.duration", "purgatory.operation.late.duration"} <= documented
