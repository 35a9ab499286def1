"""One worker: FastAPI, a purgatory, and a relay through Unix sockets or Postgres.

========================================  ==================================================================
``GET /orders/{order}?after=3&wait=25``   waits until the version is above 3; 204 after 25 seconds
``PUT /orders/{order}?status=paid``       changes the order and answers the readers in every worker
``GET /ready``                            200 while the relay is connected, otherwise 503
``GET /workers``                          the latest report of every worker
``GET /``                                 the live page
========================================  ==================================================================

The orders are in Postgres if the ``ORDERS_DSN`` variable contains an address; otherwise, they are in the folder
``ORDERS_FOLDER``.  ``ORDERS_HOSTS`` contains the host names that the application accepts, separated by spaces; without
the variable, it accepts all hosts.  A page from another site cannot change an order.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from pydantic import StringConstraints

from purgatory import DelayedOperation, Purgatory
from purgatory.asgi import OriginCheckMiddleware, Wait, install_errors, purgatory_lifespan, waiting
from purgatory.relay import Relay

from .store import Order, Store, Unavailable, figures_of


def _store() -> Store:
    if "ORDERS_DSN" in os.environ:
        from .postgres_store import PostgresStore

        return PostgresStore(os.environ["ORDERS_DSN"])
    from .sqlite_store import SqliteStore

    return SqliteStore(Path(os.environ["ORDERS_FOLDER"]))


# In Postgres, a string cannot contain NUL.  If refresh() looked up such a string, the query for all orders would fail.
Text = Annotated[str, StringConstraints(max_length=100, pattern=r"^[^\x00]*$")]
MAX_VERSION = 2**31 - 1  # the largest value of the column

store = _store()
room = Purgatory[Any]("orders", max_parked=10_000)


async def refresh(orders: list[Any]) -> dict[Any, Order]:
    """Read orders that have changed.  The relay keeps them while readers wait for them."""
    return await store.orders(orders)


class Newer(DelayedOperation[Order | None]):
    """Wait until this worker has read the order with a version above ``after``.  The result is the order, or None."""

    def __init__(self, order: str, after: int, timeout: float) -> None:
        super().__init__(timeout)
        self.order = order
        self.after = after
        self.found: Order | None = None

    def try_complete(self) -> bool:
        read = relay.state.get(self.order)
        if read is not None and read.version > self.after:
            self.found = read
        return self.found is not None

    def on_complete(self) -> Order | None:
        return self.found


relay = Relay(room, store.transport, refresh=refresh, heartbeat=5.0, resync_every=30.0)


@contextlib.asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Open the database and the relay, and report the state of this worker for the page."""
    async with store, relay:
        reporting = asyncio.create_task(_report())
        try:
            yield
        finally:
            reporting.cancel()
            await asyncio.wait([reporting])


async def _report() -> None:
    while True:
        # If the database is not available, retry in the next second.
        with contextlib.suppress(Unavailable):
            await store.report(_figures())
        await asyncio.sleep(1.0)


def _figures() -> dict[str, Any]:
    return figures_of(os.getpid(), len(room), room.statistics().completed, relay.statistics())


app = FastAPI(title="orders", lifespan=purgatory_lifespan(room, lifespan=lifespan))
install_errors(app)
app.add_middleware(
    OriginCheckMiddleware, allowed_hosts=os.environ["ORDERS_HOSTS"].split() if "ORDERS_HOSTS" in os.environ else None
)


@app.exception_handler(Unavailable)
async def unavailable(_request: Request, _error: Exception) -> JSONResponse:
    """Answer with 503 while the database is unavailable.  Waiting readers keep waiting until their deadlines."""
    return JSONResponse({"error": f"{store.name} is not available"}, 503, headers={"Retry-After": "1"})


@app.get("/orders/{order}")
async def read(
    order: Text,
    wait: Annotated[Wait, Depends(waiting(relay))],
    after: Annotated[int, Query(ge=0, le=MAX_VERSION)] = 0,
    seconds: Annotated[float, Query(alias="wait", ge=0.0, le=60.0)] = 25.0,
) -> Any:
    """Return the order when its version is above ``after``, or 204 after ``wait`` seconds."""
    if seconds:
        found = await wait.park(Newer(order, after, seconds), [order])
    else:  # the relay reads only orders on which a request waits
        now = (await store.orders([order])).get(order)
        found = now if now is not None and now.version > after else None
    if found is None:
        return Response(status_code=204)
    return {"order": order, "version": found.version, "status": found.status, "worker": os.getpid()}


@app.put("/orders/{order}")
async def change(order: Text, status: Text) -> dict[str, Any]:
    """Change the order, and answer its readers in every worker."""
    version = await store.change(relay, order, status)
    return {"order": order, "version": version, "worker": os.getpid()}


@app.get("/ready")
async def ready() -> Response:
    """Return 200 if this worker receives the changes of the other workers, otherwise 503."""
    return Response(status_code=200 if relay.connected else 503)


@app.get("/workers")
async def workers(response: Response) -> list[dict[str, Any]]:
    """Return the latest report of every worker; if the database is unavailable, only this worker's, with 503."""
    try:
        return await store.workers()
    except Unavailable:
        response.status_code = 503
        return [{**_figures(), "age_s": 0.0}]


@app.get("/")
async def page() -> FileResponse:
    """Return the live page."""
    return FileResponse(Path(__file__).with_name("page.html"))
