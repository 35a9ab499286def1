"""Metrics of relays report the values of ``statistics()``."""

import asyncio
import gc
from typing import Any

import pytest

from purgatory.relay import MemoryTransport, Relay
from purgatory.testing import VirtualClock
from tests.relay.kit import workers

pytest.importorskip("opentelemetry.sdk", reason="the extra 'otel' is not installed")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from purgatory import Purgatory, otel


def collected(reader: InMemoryMetricReader) -> dict[str, dict[tuple[str, ...], Any]]:
    """Return the result of one collection: name -> the attributes without the purgatory's name -> value."""
    data = reader.get_metrics_data()
    found: dict[str, dict[tuple[str, ...], Any]] = {}
    for resource in data.resource_metrics if data is not None else []:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points = found.setdefault(metric.name, {})
                for point in metric.data.data_points:
                    attributes = dict(point.attributes or {})
                    assert attributes.pop("purgatory.name") == "worker"
                    points[tuple(map(str, attributes.values()))] = point.value  # type: ignore[union-attr]
    return found


async def test_a_relay_is_reported(clock: VirtualClock) -> None:
    """Each instrument has the value of ``statistics()``, connected or not."""
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader], shutdown_on_exit=False).get_meter("test")
    (first, second), (_, transport) = workers(clock)
    otel.observe_relays(second.relay, meter=meter)
    async with first, second:
        waiting = second.waits("a")
        await clock.settle()
        first.relay.check("a")
        await transport.peer().publish("rubbish")
        await clock.settle()
        statistics, found = second.relay.statistics(), collected(reader)
        assert found["purgatory.relay.connected"] == {(): 1}
        assert found["purgatory.relay.lag"] == {(): statistics.lag}
        assert found["purgatory.relay.peers"] == {(): 1}
        assert found["purgatory.relay.pending"] == found["purgatory.relay.stale"] == {(): 0}
        assert found["purgatory.relay.connects"] == {(): 1}
        assert found["purgatory.relay.losses"] == {(): 0}
        assert found["purgatory.relay.resyncs"] == {(): statistics.resyncs} == {(): 2}
        assert found["purgatory.relay.collapsed"] == {(): 0}
        assert found["purgatory.relay.unreadable"] == {(): 1}
        assert found["purgatory.relay.keys"] == {("sent",): 0, ("received",): 1}
        assert found["purgatory.relay.messages"] == {
            ("sent",): statistics.messages_sent,
            ("received",): statistics.messages_received,
        }
        assert found["purgatory.relay.reads"] == {("completed",): statistics.reads, ("failed",): 0}
        assert found["purgatory.relay.read.quantile"] == dict.fromkeys([("0.5",), ("0.99",), ("0.999",), ("1",)], 0.0)
        assert statistics.read_duration.count == statistics.reads
        transport.stop()
        await clock.settle()
        found = collected(reader)
        assert found["purgatory.relay.connected"] == {(): 0}
        assert found["purgatory.relay.losses"] == {(): 1}
        assert "purgatory.relay.lag" not in found
        waiting.cancel()
        await asyncio.wait([waiting])
    reader.shutdown()


async def test_a_relay_that_is_gone_is_not_reported(clock: VirtualClock) -> None:
    """The metrics do not keep a relay alive."""
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader], shutdown_on_exit=False).get_meter("test")
    relay: Relay | None = Relay(Purgatory[Any]("worker", clock=clock), MemoryTransport())
    assert relay is not None
    otel.observe_relays(relay, meter=meter)
    assert collected(reader)["purgatory.relay.connected"] == {(): 0}
    relay = None
    gc.collect()
    assert collected(reader).get("purgatory.relay.connected", {}) == {}
    reader.shutdown()


async def test_relays_are_named_by_their_purgatories(clock: VirtualClock) -> None:
    """No relay, or two relays with the same name, raise ValueError."""
    relays = [Relay(Purgatory[Any]("same", clock=clock), MemoryTransport()) for _ in range(2)]
    with pytest.raises(ValueError, match=r"relays must have purgatories of different names, got 'same' twice"):
        otel.observe_relays(*relays)
    with pytest.raises(ValueError, match="at least one relay"):
        otel.observe_relays()
