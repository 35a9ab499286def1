"""Purgatories in ASGI applications: FastAPI, Starlette, and any other.

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
``servers``                      detecting that the server stops without a signal
``wait``, ``connection``         waiting in a handler, withdrawn when the client hangs up
``asked``                        how long the client is willing to wait
``clients``                      limiting how many waits one client may have
``etag``                         versions, for waits until one differs from the client's
``route``                        the kind of a wait: the method and the pattern of its route
``errors``                       responses for the exceptions of a purgatory
``health``                       the readiness probe
``origin``                       refusing other host names, and changes requested by pages of other sites
``responses``                    what the middlewares answer with
``inspector/``                   the page for operators
``server_sent_events``           the checks of a purgatory as server-sent events
===============================  ==================================================================

This package uses only the types of ASGI, and imports no framework and no server, except that ``EventSourceResponse``
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
    """Import the response, and with it Starlette if it is installed, on first access."""
    if name != "EventSourceResponse":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .server_sent_events import EventSourceResponse

    return EventSourceResponse
