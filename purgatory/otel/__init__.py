"""OpenTelemetry metrics and traces, with the ``otel`` extra, which installs only the OpenTelemetry API.

:func:`observe`, :func:`observe_relays`, and :class:`Durations` report metrics; :func:`tracing` reports spans.  The
application chooses the SDK and the exporters.
"""

from purgatory.texts import names_of

from .metrics import Durations, observe, observe_relays
from .spans import Tracing, tracing

__all__ = ["Durations", "Tracing", "observe", "observe_relays", "tracing"]


def __dir__() -> list[str]:
    return names_of(globals())
