"""Chapter 5: several workers: ``uvicorn examples.tutorial.chapter_5:app --workers 2``."""

import asyncio
import contextlib
import json
import os
import sqlite3
import uuid
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query

from purgatory import Purgatory
from purgatory.asgi import Wait, health, install_errors, purgatory_lifespan, waiting
from purgatory.relay import Relay, UnixTransport

FOLDER = Path(os.environ.get("JOBS", "jobs"))  # every worker uses the same folder
FOLDER.mkdir(exist_ok=True)
tasks: set[asyncio.Task[None]] = set()
Seen = Annotated[int, Query(ge=-10, le=100)]  # any other number gets 422


def query(sql: str, *values: object) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(FOLDER / "jobs.sqlite", timeout=60)) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS jobs (job TEXT PRIMARY KEY, progress INTEGER)")
        return database.execute(sql, values).fetchall()


async def load(jobs: list[str]) -> dict[str, int]:
    wanted = "SELECT job, progress FROM jobs WHERE job IN (SELECT value FROM json_each(?))"
    return dict(await asyncio.to_thread(query, wanted, json.dumps(jobs)))


async def save(job: str, percent: int) -> None:
    await asyncio.to_thread(query, "INSERT OR REPLACE INTO jobs VALUES (?, ?)", job, percent)
    relay.check(job, percent)  # answers the requests in this worker and in all others


async def work(job: str) -> None:
    for percent in range(1, 101):
        await asyncio.sleep(0.05)
        await save(job, percent)


room = Purgatory("jobs", max_parked=1_000, max_parked_per_key=20)
relay = Relay(room, UnixTransport(FOLDER / "relay"), refresh=load)

app = FastAPI(lifespan=purgatory_lifespan(relay, grace=2.0))
install_errors(app)
app.mount("/healthz", health(relay))


@app.post("/jobs", status_code=202)
async def start() -> str:
    job = uuid.uuid4().hex
    await save(job, 0)
    task = asyncio.create_task(work(job))
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return job


@app.get("/jobs/{job}")
async def status(job: str, wait: Annotated[Wait, Depends(waiting(relay, longest=55))], seen: Seen = -10) -> int:
    progress = (await load([job])).get(job)
    if progress is None:
        raise HTTPException(404)
    goal = min(seen + 10, 100)
    if progress < goal:

        def reached() -> int | None:
            now = relay.state.get(job, -1)
            return now if now >= goal else None

        found = await wait.value(reached, keys={job: goal})
        if found is None:
            wait.raise_if_closing()
        else:
            progress = found
    return progress
