"""Purgatories in ASGI applications: FastAPI, Starlette, and any other framework.

::

    app = FastAPI(lifespan=purgatory_lifespan(room))    # SIGTERM answers every parked request
    install_errors(app)                                 # full: 429 or 503; closed: 503; hung up: 499
    app.mount("/healthz", health(room))                 # GET /healthz/: 503 once closing
    app.mount("/purgatory", inspector(room))            # for operators: who waits for what

    @app.get("/orders")                                 # GET /orders?wait=30&after=7, or Prefer: wait=30
    async def orders(wait: Annotated[Wait, Depends(waiting(room, longest=55))], after: int = 0):
        if not await wait.until(lambda: log.end > after, keys={"orders": after + 1}):
            wait.raise_if_closing()                     # the server stops: 503
            return Response(status_code=204)            # no news: poll again
        return log.read(after)                          # a client that hangs up withdraws its wait

    @app.get("/events")
    async def events() -> EventSourceResponse:
        return EventSourceResponse(room.changes(["orders"], heartbeat=15))

===============================  ==================================================================
``lifespan``, ``signals``        opening, and closing when the server is told to stop
``servers``                      detecting a stop for which the server received no signal
``wait``, ``connection``         waiting in a handler; a wait is withdrawn when the client hangs up
``asked``                        how long the client is willing to wait
``clients``                      limiting the number of waits per client
``etag``                         entity tags, for waiting until a version differs from the client's
``route``                        the kind of a wait: the method and the pattern of its route
``errors``                       responses for the exceptions of a purgatory
``health``                       the readiness probe
``origin``                       refusing requests for other hosts and changes from other sites
``responses``                    the responses that the middlewares send
``inspector/``                   the page for operators
``server_sent_events``           the checks of a purgatory as server-sent events
===============================  ==================================================================

This package depends only on the ASGI protocol and imports no framework or server, except that ``EventSourceResponse``
imports Starlette's ``Response`` if Starlette is installed.
"""

from typing import TYPE_CHECKING, Any

from purgatory.texts import names_of

from .asked import InvalidWait
from .clients import TooManyWaits
from .connection import ClientDisconnected
from .errors import ErrorResponse, PurgatoryErrorMiddleware, error_response, install_errors
from .health import health
from .inspector import InspectorAction, inspector
from .lifespan import purgatory_lifespan
from .origin import LOCAL_HOSTS, OriginCheckMiddleware
from .wait import Wait, waiting

if TYPE_CHECKING:
    from .server_sent_events import EventSourceResponse

__all__ = [
    "LOCAL_HOSTS",
    "ClientDisconnected",
    "ErrorResponse",
    "EventSourceResponse",
    "InspectorAction",
    "InvalidWait",
    "OriginCheckMiddleware",
    "PurgatoryErrorMiddleware",
    "TooManyWaits",
    "Wait",
    "error_response",
    "health",
    "inspector",
    "install_errors",
    "purgatory_lifespan",
    "waiting",
]


def __dir__() -> list[str]:
    return names_of(globals())


def __getattr__(name: str) -> Any:
    """Import the response class on first access; this also imports Starlette if it is installed."""
    if name != "EventSourceResponse":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .server_sent_events import EventSourceResponse

    return EventSourceResponse
