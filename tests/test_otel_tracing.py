"""Traces: a span for each parked operation, below the parker's span, with a link to the completer's span."""

import asyncio
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, check, park

pytest.importorskip("opentelemetry.sdk", reason="the SDK of OpenTelemetry is not installed")

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

from purgatory.otel import tracing


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    """Return an exporter that keeps the ended spans."""
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> Iterator[TracerProvider]:
    """Return an SDK provider that exports each span at once."""
    provider = TracerProvider(shutdown_on_exit=False, resource=Resource.get_empty())
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    provider.shutdown()


def _waits(exporter: InMemorySpanExporter) -> list[Any]:
    return [span for span in exporter.get_finished_spans() if span.name.startswith("wait ")]


async def test_the_parkers_span_is_the_parent_and_the_completers_is_linked(
    clock: VirtualClock, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """One request parks and the other completes; the span of the wait connects them."""
    tracer = provider.get_tracer("test")
    async with Purgatory[Op]("fetch", clock=clock, observers=[tracing(provider)]) as purgatory:
        op = Op(5)

        async def reader() -> Any:
            with tracer.start_as_current_span("GET /orders") as span:
                return span, await purgatory.park(op, ["a", "b"])

        task = asyncio.create_task(reader())
        await clock.advance(1.5)
        assert _waits(exporter) == []
        with tracer.start_as_current_span("POST /orders") as post:
            op.ready = True
            assert purgatory.check_and_complete("a") == 1
        get, _ = await task
    (span,) = _waits(exporter)
    assert span.name == "wait fetch"
    assert span.parent == get.get_span_context()
    assert [link.context for link in span.links] == [post.get_span_context()]
    assert span.status.status_code is StatusCode.UNSET
    assert dict(span.attributes) == {
        "purgatory.name": "fetch",
        "purgatory.operation.kind": "Op",
        "purgatory.key.count": 2,
        "purgatory.outcome": "completed",
        "purgatory.operation.wait.duration": 1.5,
    }


async def test_every_outcome_ends_the_span(
    clock: VirtualClock, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """The span contains the lateness, the reason or the error; nothing is kept afterwards."""
    observer = tracing(provider)
    async with Purgatory[Op]("fetch", clock=clock, observers=[observer]) as purgatory:
        expired, cancelled, failed = (park(purgatory, name, timeout=2) for name in "abc")
        cancelled.cancel("shutdown")
        purgatory.fail_for_key("c", Boom("broken"))
        await clock.advance(2)
        assert (expired.expired, failed.is_completed) == (True, False)
        assert purgatory.try_complete_else_watch(Op(ready=True), ["a"]), "it completes at once, and has no span"
    spans = {span.attributes["purgatory.outcome"]: span for span in _waits(exporter)}
    assert sorted(spans) == ["cancelled", "expired", "failed"]
    assert len(_waits(exporter)) == 3
    assert spans["expired"].attributes["purgatory.operation.late.duration"] == 0.0
    assert spans["cancelled"].attributes["purgatory.cancel.reason"] == "shutdown"
    failure = spans["failed"]
    assert failure.attributes["error.type"] == "tests.helpers.Boom"
    assert (failure.status.status_code, failure.status.description) == (StatusCode.ERROR, "tests.helpers.Boom")
    assert [event.attributes["exception.message"] for event in failure.events] == ["broken"]
    assert all(span.status.status_code is StatusCode.UNSET for name, span in spans.items() if name != "failed")
    assert all(span.links == () and span.parent is None for span in spans.values())
    assert not observer._spans


async def test_closing_is_no_timeout(
    clock: VirtualClock, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """The span of an operation that closing ends has an outcome of its own, and the kind of a wait is its ``kind=``."""
    async with Purgatory[Any]("fetch", clock=clock, observers=[tracing(provider)]) as purgatory:
        task = asyncio.create_task(purgatory.wait_until(lambda: False, key="a", timeout=5, kind="GET /jobs/{id}"))
        await clock.settle()
    assert not await task
    (span,) = _waits(exporter)
    assert span.attributes["purgatory.outcome"] == "expired_by_closing"
    assert span.attributes["purgatory.operation.kind"] == "GET /jobs/{id}"
    assert "purgatory.operation.late.duration" not in span.attributes


async def test_the_parkers_own_span_is_not_linked(
    purgatory: Purgatory[Any], clock: VirtualClock, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """If its own request ends a wait, the span has a parent and no link."""
    async with Purgatory[Op]("fetch", clock=clock, observers=[tracing(provider)]) as room:
        with provider.get_tracer("test").start_as_current_span("GET /orders"):
            park(room, "a").force_complete()
    (span,) = _waits(exporter)
    assert span.parent is not None
    assert span.links == ()


async def test_an_unsampled_trace_costs_no_memory(clock: VirtualClock, exporter: InMemorySpanExporter) -> None:
    """A span that does not record is not kept, and nothing is exported."""
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    observer = tracing(provider)
    async with Purgatory[Op]("fetch", clock=clock, observers=[observer]) as purgatory:
        op = park(purgatory, "a")
        assert not observer._spans
        op.force_complete()
    assert exporter.get_finished_spans() == ()


async def test_one_observer_serves_several_purgatories(
    clock: VirtualClock, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Operations with the same number in purgatories with the same name have separate spans."""
    observer = tracing(provider)
    async with (
        Purgatory[Op]("fetch", clock=clock, observers=[observer]) as one,
        Purgatory[Op]("fetch", clock=clock, observers=[observer]) as two,
    ):
        first, second = park(one, "a"), park(two, "a", "b")
        first.cancel()
        second.force_complete()
    found = [
        (span.attributes["purgatory.outcome"], span.attributes["purgatory.key.count"]) for span in _waits(exporter)
    ]
    assert found == [("cancelled", 1), ("completed", 2)]


async def test_an_exception_that_cannot_be_printed_ends_the_span(
    clock: VirtualClock, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """The span has the class of the exception, and the observer stays attached."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise Boom

        __repr__ = __str__

    async with Purgatory[Op]("fetch", clock=clock, observers=[tracing(provider)]) as purgatory:
        park(purgatory, "a")
        purgatory.fail_for_key("a", Mute())
        check(purgatory, observers_detached=0, failed=1)
    (span,) = _waits(exporter)
    assert span.attributes["error.type"].endswith("Mute")
    assert span.status.status_code is StatusCode.ERROR


async def test_a_real_exporter_prints_the_span(clock: VirtualClock) -> None:
    """The console exporter of the SDK writes name, parent, link and attributes as JSON."""
    out = io.StringIO()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(
        SimpleSpanProcessor(ConsoleSpanExporter(out=out, formatter=lambda s: s.to_json(None) + "\n"))
    )
    tracer = provider.get_tracer("test")
    async with Purgatory[Op]("fetch", clock=clock, observers=[tracing(provider)]) as purgatory:
        with tracer.start_as_current_span("GET /orders"):
            op = park(purgatory, "orders", timeout=30)
        await clock.advance(2)
        with tracer.start_as_current_span("POST /orders"):
            op.force_complete()
    provider.shutdown()
    spans = {span["name"]: span for span in map(json.loads, out.getvalue().splitlines())}
    wait = spans["wait fetch"]
    assert wait["kind"] == "SpanKind.INTERNAL"
    assert wait["parent_id"] == spans["GET /orders"]["context"]["span_id"]
    assert wait["links"][0]["context"]["span_id"] == spans["POST /orders"]["context"]["span_id"]
    assert wait["attributes"]["purgatory.operation.wait.duration"] == 2.0
    assert wait["context"]["trace_id"] == spans["GET /orders"]["context"]["trace_id"]
