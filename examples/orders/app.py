"""One worker: FastAPI, a purgatory, and a relay through Postgres.

========================================  ==================================================================
``GET /orders/{order}?after=3&wait=25``   the order once its version is above 3; 204 after 25 seconds
``PUT /orders/{order}?status=paid``       change it; readers in every worker are answered
``GET /ready``                            200 while the relay is connected, else 503
``GET /workers``                          what every worker last said of itself
``GET /``                                 the live page
========================================  ==================================================================
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import psycopg
from fastapi import Depends, FastAPI, Query, Response
from fastapi.responses import FileResponse

from purgatory import DelayedOperation, Purgatory
from purgatory.asgi import Wait, install_errors, purgatory_lifespan, waiting
from purgatory.relay import PostgresTransport, Relay

from . import store

DSN = os.environ["ORDERS_DSN"]

pool = store.Pool(DSN, min_size=1, max_size=4, open=False)
room = Purgatory[Any]("orders", max_parked=10_000)
known: dict[str, store.Order] = {}  # what this worker has read of the orders that are waited for


async def refresh(orders: list[Any]) -> dict[Any, int]:
    """Read orders that have changed; their versions are the levels that readers wait for."""
    found = await store.load_orders(pool, orders)
    known.update(found)
    return {order: read.version for order, read in found.items()}


class Newer(DelayedOperation[store.Order | None]):
    """Waits until this worker has read an order with a version above ``after``; its result is that order, or None."""

    def __init__(self, order: str, after: int, timeout: float) -> None:
        super().__init__(timeout)
        self.order = order
        self.after = after

    def try_complete(self) -> bool:
        return self.order in known and known[self.order].version > self.after

    def on_complete(self) -> store.Order | None:
        return None if self.expired else known[self.order]


relay = Relay(room, PostgresTransport(DSN, channel="orders"), refresh=refresh, heartbeat=5.0, resync_every=30.0)


@contextlib.asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Open the pool and the relay, and report for the page."""
    async with pool, relay:
        reporting = asyncio.create_task(_report())
        try:
            yield
        finally:
            reporting.cancel()
            await asyncio.wait([reporting])


async def _report() -> None:
    while True:
        # Without a database there is nothing to show; the next second may have one.
        with contextlib.suppress(psycopg.Error, TimeoutError):
            completed = room.statistics().completed
            await store.report(pool, os.getpid(), len(room), completed, relay.statistics())
        await asyncio.sleep(1.0)


app = FastAPI(title="orders", lifespan=purgatory_lifespan(room, lifespan=lifespan))
install_errors(app)


@app.get("/orders/{order}")
async def read(
    order: str,
    wait: Annotated[Wait, Depends(waiting(relay))],
    after: Annotated[int, Query(ge=0)] = 0,
    seconds: Annotated[float, Query(alias="wait", ge=0.0, le=60.0)] = 25.0,
) -> Any:
    """Answer with the order once its version is above ``after``; with 204 when the time has passed."""

    try:
        found = await wait.park(Newer(order, after, seconds), {order: after + 1})
    finally:
        if not room.is_watched(order):
            known.pop(order, None)
    if found is None:
        return Response(status_code=204)
    return {"order": order, "version": found.version, "status": found.status, "worker": os.getpid()}


@app.put("/orders/{order}")
async def change(order: str, status: Annotated[str, Query(max_length=100)]) -> dict[str, Any]:
    """Change the order; the notice commits with the change."""
    async with pool.connection() as connection, connection.transaction():
        version = await store.write(connection, order, status)
        await relay.check_in(connection, {order: version})
    return {"order": order, "version": version, "worker": os.getpid()}


@app.get("/ready")
async def ready() -> Response:
    """Whether this worker hears of the changes in the others."""
    return Response(status_code=200 if relay.connected else 503)


@app.get("/workers")
async def workers() -> list[dict[str, Any]]:
    """How every worker stands."""
    return await store.load_workers(pool)


@app.get("/")
async def page() -> FileResponse:
    """The live page."""
    return FileResponse(Path(__file__).with_name("page.html"))
