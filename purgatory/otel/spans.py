"""OpenTelemetry traces: a span for each parked operation."""

import contextlib

from purgatory.aio.end_observer import EndObserver
from purgatory.events import Event

try:
    from opentelemetry.trace import (
        Span,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TracerProvider,
        get_current_span,
        get_tracer,
    )
except ImportError as _missing:
    raise ImportError("purgatory.otel needs OpenTelemetry: pip install 'aiopurgatory[otel]'") from _missing

__all__ = ["Tracing", "outcome_of", "tracing"]


class Tracing(EndObserver):
    """The observer that :func:`tracing` returns."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = get_tracer("purgatory", tracer_provider=tracer_provider)
        # The spans of the parked operations, with their parents: (instance, op_id) -> span, parent.
        self._spans: dict[tuple[int | None, int], tuple[Span, SpanContext]] = {}

    def parked(self, event: Event) -> None:
        """Start a span; its parent is the current span of the code that parks the operation."""
        parent = get_current_span().get_span_context()
        span = self._tracer.start_span(f"wait {event.purgatory}", kind=SpanKind.INTERNAL)
        if not span.is_recording():
            return  # the trace is not sampled, or the application has no SDK
        span.set_attribute("purgatory.name", event.purgatory)
        span.set_attribute("purgatory.operation.kind", event.kind)
        span.set_attribute("purgatory.key.count", len(event.keys))
        self._spans[event.instance, event.op_id] = span, parent

    def ended(self, event: Event) -> None:
        """Record the outcome and, if the operation failed, the status ERROR and the exception; then end the span."""
        found = self._spans.pop((event.instance, event.op_id), None)
        if found is None:
            return  # it completed at once, or its span does not record
        span, parent = found
        try:
            span.set_attribute("purgatory.outcome", outcome_of(event))
            if event.wait is not None:
                span.set_attribute("purgatory.operation.wait.duration", event.wait)
            if event.lateness is not None:
                span.set_attribute("purgatory.operation.late.duration", event.lateness)
            if isinstance(event.reason, str):
                span.set_attribute("purgatory.cancel.reason", event.reason)
            completer = get_current_span().get_span_context()
            if completer.is_valid and completer != parent:
                span.add_link(completer)
            if event.error is not None:
                _record(span, event.error)
        finally:
            span.end()

    def trace_id(self, instance: int | None, op_id: int) -> str | None:
        """Return the trace ID of a parked operation as 32 hexadecimal digits, or None if the trace is not recorded."""
        found = self._spans.get((instance, op_id))
        return None if found is None else format(found[0].get_span_context().trace_id, "032x")


def outcome_of(event: Event) -> str:
    """Return the outcome as an attribute value; an expiration caused by closing the purgatory has a separate value."""
    return "expired_by_closing" if event.expired_by_closing else event.outcome.value


def _record(span: Span, error: BaseException) -> None:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    span.set_attribute("error.type", name)
    span.set_status(Status(StatusCode.ERROR, name))
    with contextlib.suppress(Exception):  # recording formats the exception, whose code may raise
        span.record_exception(error)


def tracing(tracer_provider: TracerProvider | None = None) -> Tracing:
    """Return an observer that creates a span for each parked operation.

    ::

        purgatory = Purgatory("fetch", observers=[tracing()])

    The span is named ``wait fetch``, after the purgatory.  It starts when the operation is parked and ends when the
    operation ends.  Its parent is the current span of the code that parks the operation.  If the code that ends the
    operation has a different current span, the operation's span has a link to that span.  An operation that completes
    at once has no span.  If a span does not record because the trace is not sampled, the span is not kept.

    =====================================  ======  ====================================================================
    attribute                              type    meaning
    =====================================  ======  ====================================================================
    ``purgatory.name``                     string  the name of the purgatory
    ``purgatory.operation.kind``           string  the class of the operation, or the ``kind`` argument of a wait
    ``purgatory.key.count``                int     the number of keys on which it is parked
    ``purgatory.outcome``                  string  completed, expired, expired_by_closing, cancelled, or failed
    ``purgatory.operation.wait.duration``  double  seconds from parking to the end, on the purgatory's clock
    ``purgatory.operation.late.duration``  double  seconds from the deadline to the end, if it expired
    ``purgatory.cancel.reason``            string  the reason given to ``cancel()``, if it is a str
    ``error.type``                         string  the class of the exception of a failed operation
    =====================================  ======  ====================================================================

    The span of a failed operation has the status ERROR and the exception as an event; all other outcomes leave the
    status unset.  One observer serves any number of purgatories.

    ``tracer_provider``: by default, the global tracer provider.
    """
    return Tracing(tracer_provider)
