"""Chapter 6: the service, monitored and tested."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Query, Response

from purgatory import Purgatory
from purgatory.asgi import Wait, health, inspector, install_errors, purgatory_lifespan, waiting

room = Purgatory("jobs", max_parked=1_000, max_parked_per_key=20)
progress: dict[str, int] = {}
results: dict[str, str] = {}
pool = ThreadPoolExecutor(4)
Seen = Annotated[int, Query(ge=-10, le=100)]  # any other number gets 422

app = FastAPI(lifespan=purgatory_lifespan(room, grace=2.0))  # waits may still succeed for two seconds
install_errors(app)
app.mount("/healthz", health(room))
app.mount("/purgatory", inspector(room))  # for operators only: it has no authentication of its own


def work(job: str) -> None:
    for percent in range(1, 101):
        time.sleep(0.05)  # the work itself
        if percent == 100:
            results[job] = f"the result of {job}"
        progress[job] = percent
        room.check_threadsafe(job, percent)


@app.post("/jobs", status_code=202)
def start() -> str:
    job = uuid.uuid4().hex
    progress[job] = 0
    pool.submit(work, job)
    return job


@app.get("/jobs/{job}")
async def status(job: str, wait: Annotated[Wait, Depends(waiting(room, longest=55))], seen: Seen = -10) -> int:
    if job not in progress:
        raise HTTPException(404)
    goal = min(seen + 10, 100)
    if not await wait.until(lambda: progress[job] >= goal, keys={job: goal}):
        wait.raise_if_closing()
    return progress[job]


@app.get("/jobs/{job}/result", response_model=str)
async def result(job: str, wait: Annotated[Wait, Depends(waiting(room, longest=55))]) -> str | Response:
    if job not in progress:
        raise HTTPException(404)
    found = await wait.value(lambda: results.get(job), keys={job: 100})
    if found is None:
        wait.raise_if_closing()
        return Response(status_code=204)
    return found
