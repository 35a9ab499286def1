"""Chapter 1: a long poll."""

from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException

from purgatory import Purgatory
from purgatory.asgi import Wait, purgatory_lifespan, waiting

room = Purgatory("jobs")
progress: dict[str, int] = {}

app = FastAPI(lifespan=purgatory_lifespan(room))


@app.put("/jobs/{job}")
async def report(job: str, percent: int) -> int:
    progress[job] = percent
    return room.check(job)  # answers the requests that wait on this key; returns how many


@app.get("/jobs/{job}")
async def status(job: str, wait: Annotated[Wait, Depends(waiting(room, longest=55))], seen: int = -1) -> int:
    if job not in progress:
        raise HTTPException(404)
    await wait.until(lambda: progress[job] > seen, key=job)
    return progress[job]
