"""Job status with a long poll; a thread does the work: ``uvicorn examples.job_status:app``."""

import asyncio
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Query

from purgatory import Purgatory
from purgatory.asgi import Wait, health, install_errors, purgatory_lifespan, waiting


@dataclass
class Job:
    id: str
    progress: int = 0


room = Purgatory("jobs", max_parked=1_000, max_parked_per_key=20)
jobs: dict[str, Job] = {}
pool = ThreadPoolExecutor(4)
Seen = Annotated[int, Query(ge=-10, le=100)]  # any other number gets 422
app = FastAPI(lifespan=purgatory_lifespan(room))
install_errors(app)
app.mount("/healthz", health(room))


def work(job: Job) -> None:
    for job.progress in range(1, 101):
        time.sleep(0.05)
        room.check_threadsafe(job.id, job.progress)


@app.post("/jobs", status_code=202)
async def start() -> Job:
    job = jobs[job.id] = Job(uuid.uuid4().hex)
    asyncio.get_running_loop().run_in_executor(pool, work, job)
    return job


@app.get("/jobs/{job_id}")  # GET /jobs/7?wait=30&seen=40, or the header Prefer: wait=30
async def status(job_id: str, wait: Annotated[Wait, Depends(waiting(room, longest=55))], seen: Seen = -10) -> Job:
    if (job := jobs.get(job_id)) is None:
        raise HTTPException(404)
    goal = min(seen + 10, 100)
    await wait.until(lambda: job.progress >= goal, keys={job_id: goal})  # timeout: what the client asked for
    return job
