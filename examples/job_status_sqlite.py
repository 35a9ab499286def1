"""Job status from any worker on one machine: ``uvicorn examples.job_status_sqlite:app --workers 4``."""

import asyncio
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException, Query

from purgatory import Purgatory
from purgatory.asgi import Wait, health, install_errors, purgatory_lifespan, waiting
from purgatory.relay import Relay, UnixTransport

FOLDER = Path(os.environ.get("JOBS_FOLDER", "job-status"))  # shared by all workers
FOLDER.mkdir(mode=0o700, exist_ok=True)
Seen = Annotated[int, Query(ge=-10, le=100)]  # any other number gets 422
store = sqlite3.connect(FOLDER / "jobs.sqlite", timeout=60, isolation_level=None, check_same_thread=False)
store.execute("CREATE TABLE IF NOT EXISTS jobs (id TEXT PRIMARY KEY, progress INT)")
in_turn = ThreadPoolExecutor(1).submit  # SQLite waits for a lock only if its connection runs no other statement


async def load(jobs: list[str]) -> dict[str, int]:
    rows = in_turn(lambda: [row for job in jobs for row in store.execute("SELECT * FROM jobs WHERE id = ?", [job])])
    return dict(await asyncio.wrap_future(rows))


relay = Relay(Purgatory("jobs", max_parked=10_000), UnixTransport(FOLDER / "relay"), refresh=load)
app = FastAPI(lifespan=purgatory_lifespan(relay))
install_errors(app)
app.mount("/healthz", health(relay))


async def work(job: str) -> None:
    for progress in range(1, 101):
        await asyncio.sleep(0.05)
        await asyncio.wrap_future(in_turn(store.execute, "UPDATE jobs SET progress = ? WHERE id = ?", [progress, job]))
        relay.check(job, progress)  # answers the requests in every worker


@app.post("/jobs", status_code=202)
async def start(tasks: BackgroundTasks) -> dict[str, str]:
    await asyncio.wrap_future(in_turn(store.execute, "INSERT INTO jobs VALUES (?, 0)", [job := os.urandom(16).hex()]))
    tasks.add_task(work, job)  # an error is in the server's log
    return {"job": job}


@app.get("/jobs/{job}")  # ?wait=30&seen=40, or the header Prefer: wait=30
async def status(job: str, wait: Annotated[Wait, Depends(waiting(relay, longest=55))], seen: Seen = -10) -> int:
    progress, goal = (await load([job])).get(job), min(seen + 10, 100)
    if progress is None:
        raise HTTPException(404)
    reached = lambda: now if (now := relay.state.get(job, -1)) >= goal else None  # noqa: E731
    return await wait.value(reached, keys={job: goal}) or progress
