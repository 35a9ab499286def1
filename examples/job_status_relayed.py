"""Job status from any worker: ``uvicorn examples.job_status_relayed:app --workers 4``, with Redis."""

import asyncio
import os
import uuid
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Query
from redis.asyncio import Redis

from purgatory import Purgatory
from purgatory.asgi import Wait, health, install_errors, purgatory_lifespan, waiting
from purgatory.relay import RedisTransport, Relay

URL = os.environ.get("REDIS_URL", "redis://localhost:6379")
store = Redis.from_url(URL, decode_responses=True)
tasks: set[asyncio.Task[None]] = set()
Seen = Annotated[int, Query(ge=-10, le=100)]  # any other number gets 422


async def load(jobs: list[str]) -> dict[str, int]:
    rows = await store.mget([f"job:{job}" for job in jobs])
    return {job: int(row) for job, row in zip(jobs, rows, strict=True) if row is not None}


relay = Relay(Purgatory("jobs", max_parked=10_000), RedisTransport(URL, channel="jobs"), refresh=load)
app = FastAPI(lifespan=purgatory_lifespan(relay))
install_errors(app)
app.mount("/healthz", health(relay))


async def work(job: str) -> None:
    for progress in range(1, 101):
        await asyncio.sleep(0.05)
        await store.set(f"job:{job}", progress, ex=3600)
        relay.check(job, progress)  # answers the requests in every worker


@app.post("/jobs", status_code=202)
async def start() -> dict[str, str]:
    await store.set(f"job:{(job := uuid.uuid4().hex)}", 0, ex=3600)
    tasks.add(task := asyncio.create_task(work(job)))
    task.add_done_callback(tasks.discard)
    return {"job": job}


@app.get("/jobs/{job}")  # ?wait=30&seen=40, or the header Prefer: wait=30
async def status(job: str, wait: Annotated[Wait, Depends(waiting(relay, longest=55))], seen: Seen = -10) -> int:
    progress, goal = (await load([job])).get(job), min(seen + 10, 100)
    if progress is None:
        raise HTTPException(404)
    if progress < goal:
        reached = lambda: now if (now := relay.state.get(job, -1)) >= goal else None  # noqa: E731
        progress = await wait.value(reached, keys={job: goal}) or progress
    return progress
