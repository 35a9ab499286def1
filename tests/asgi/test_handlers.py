"""Behavior that handlers of a web application rely on: context variables, coroutine predicates, assigned jobs."""

import asyncio
from collections import deque
from contextvars import ContextVar
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, HTTPException

from purgatory import DelayedOperation, Purgatory
from purgatory.asgi import ClientDisconnected, Wait, install_errors, purgatory_lifespan, waiting
from purgatory.testing import VirtualClock
from tests.asgi.tools import Call
from tests.helpers import check

user: ContextVar[str] = ContextVar("user", default="nobody")


class Job(DelayedOperation[str]):
    """An operation that takes a job from the queue and returns it if no task receives it."""

    __slots__ = ("_jobs",)

    def __init__(self, jobs: "Jobs") -> None:
        super().__init__(30.0)
        self._jobs = jobs

    def try_complete(self) -> bool:
        self._jobs.tried += 1
        return bool(self._jobs.queue)

    def on_complete(self) -> str:
        return "" if self.expired else self._jobs.queue.popleft()

    def on_abandoned(self, result: str) -> None:
        if result:
            self._jobs.give_back(result)


class Jobs:
    """A queue of jobs over HTTP."""

    def __init__(self, room: Purgatory[Any]) -> None:
        self.room = room
        self.queue: deque[str] = deque()
        self.tried = 0
        self.app = FastAPI()
        install_errors(self.app)

        @self.app.get("/job")
        async def take(wait: Annotated[Wait, Depends(waiting(room))]) -> str:
            return await wait.park(Job(self), ["jobs"])

    def add(self, job: str) -> None:
        """Add a job and check the queue."""
        self.queue.append(job)
        self.room.check_and_complete("jobs", limit=1)

    def give_back(self, job: str) -> None:
        """Return a job to the front of the queue."""
        self.queue.appendleft(job)
        self.room.check_and_complete("jobs", limit=1)


async def test_a_request_sees_no_context_variable_of_another(clock: VirtualClock) -> None:
    """A request sees no context variable of another request, even if that one started the purgatory's timer."""
    room = Purgatory[Any]("test", clock=clock)  # not entered: there is no lifespan
    app = FastAPI()
    seen: list[str] = []

    class Seen(DelayedOperation[str]):
        def try_complete(self) -> bool:
            return False

        def on_complete(self) -> str:
            seen.append(user.get())
            return user.get()

    @app.get("/{name}")
    async def endpoint(name: str, wait: Annotated[Wait, Depends(waiting(room))]) -> str:
        user.set(name)
        await wait.park(Seen(1.0), ["a"])
        return user.get()

    calls = [Call.get(app, f"/{name}") for name in ("alice", "bob")]
    await clock.advance(1.0)
    await asyncio.gather(*(call.task for call in calls))
    assert [call.json for call in calls] == ["alice", "bob"]
    assert seen == ["nobody", "nobody"]
    await room.aclose()


async def test_a_coroutine_function_is_no_predicate(purgatory: Purgatory[Any]) -> None:
    """A coroutine function as the predicate raises TypeError instead of returning True at once."""
    app = FastAPI()

    async def ready() -> bool:
        return False

    @app.get("/")
    async def endpoint(wait: Annotated[Wait, Depends(waiting(purgatory))]) -> bool:
        try:
            return await wait.until(ready, keys=["a"], timeout=1.0)
        except TypeError as error:
            raise HTTPException(500, str(error)) from None

    call = Call.get(app)
    await call.task
    assert "predicate must be a plain function, got the coroutine function" in call.json["detail"]


@pytest.mark.parametrize("how", ["hang up", "cancel"])
async def test_a_job_whose_worker_leaves_goes_to_the_next_one(
    purgatory: Purgatory[Any], clock: VirtualClock, how: str
) -> None:
    """The next worker receives the job, even if the first worker leaves in the turn in which it was assigned the
    job.
    """
    jobs = Jobs(purgatory)
    first, second = Call.get(jobs.app, "/job"), Call.get(jobs.app, "/job")
    await clock.settle()
    if how == "hang up":
        first.hang_up()
        jobs.add("dig")
    else:
        jobs.add("dig")
        first.task.cancel()
    await clock.settle()
    await asyncio.wait([first.task])
    await second.task
    assert (second.status, second.json) == (200, "dig")
    assert not jobs.queue
    check(purgatory, parked=0, completed=2)


async def test_one_job_tries_one_of_many_workers(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The worker that arrived first receives the job, and the others are not tried."""
    jobs = Jobs(purgatory)
    calls = [Call.get(jobs.app, "/job") for _ in range(300)]
    await clock.settle()
    assert len(purgatory) == 300
    jobs.tried = 0
    jobs.add("dig")
    await calls[0].task
    assert (calls[0].json, jobs.tried, len(purgatory)) == ("dig", 1, 299)
    await clock.advance(30.0)
    await asyncio.gather(*(call.task for call in calls))


async def test_a_lifespan_ends_what_waits_with_an_answer(clock: VirtualClock) -> None:
    """At shutdown, a client with a poll of 30 s is answered immediately."""
    room = Purgatory[Any]("test", clock=clock)
    jobs = Jobs(room)
    before = clock.time()
    async with purgatory_lifespan(room)(jobs.app):
        call = Call.get(jobs.app, "/job")
        await clock.settle()
    await call.task
    assert (call.status, call.json) == (200, "")
    assert clock.time() == before


async def test_the_task_that_reads_the_messages_has_the_context_of_its_request(clock: VirtualClock) -> None:
    """It calls the application's own receive(), and belongs to this request alone."""
    seen: list[str] = []

    async def receive() -> dict[str, Any]:
        seen.append(user.get())
        return {"type": "http.disconnect"}

    async with Purgatory[Any]("jobs", clock=clock) as room:
        user.set("ann")
        wait = Wait(room, {"type": "http", "method": "GET", "path": "/", "headers": []}, receive)
        with pytest.raises(ClientDisconnected):
            await wait.until(lambda: False, key="jobs", timeout=30.0)
    assert seen == ["ann"]
