"""Waiting in a handler for a value, which reaches the client or is given back."""

import asyncio
from collections import deque
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.asgi import ClientDisconnected, Wait
from purgatory.asgi.types import Receive, Scope, Send
from purgatory.testing import VirtualClock
from tests.asgi.tools import Call
from tests.helpers import check


class Jobs:
    """An application that hands over one job to each request."""

    def __init__(self, room: Purgatory[Any]) -> None:
        self.room = room
        self.queue: deque[str] = deque()
        self.results: list[Any] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wait = Wait(self.room, scope, receive)
        try:
            job = await wait.value(
                lambda: self.queue.popleft() if self.queue else None,
                key="jobs",
                timeout=30,
                on_abandoned=self.queue.appendleft,
            )
        except ClientDisconnected as error:
            job = type(error)
        self.results.append(job)

    def put(self, job: str) -> None:
        """Add a job for the requests that wait."""
        self.queue.append(job)
        self.room.check_and_complete("jobs", limit=1)


@pytest.fixture
def jobs(purgatory: Purgatory[Any]) -> Jobs:
    """Return an application without jobs."""
    return Jobs(purgatory)


async def test_the_first_value_is_returned(jobs: Jobs, clock: VirtualClock) -> None:
    """A value that is there is returned at once, otherwise the first one that comes, and None at the deadline."""
    jobs.put("now")
    calls = [Call.get(jobs) for _ in range(3)]
    await clock.settle()
    jobs.put("")
    await clock.advance(30.0)
    await asyncio.gather(*(call.task for call in calls))
    assert jobs.results == ["now", "", None]


async def test_a_value_for_a_client_that_has_disconnected_is_given_back(jobs: Jobs, clock: VirtualClock) -> None:
    """The client disconnects in the turn in which its request got the job: the next request gets it."""
    first = Call.get(jobs)
    await clock.settle()
    first.hang_up()
    jobs.put("a")
    await first.task
    await clock.settle()
    assert list(jobs.queue) == ["a"]
    await Call.get(jobs).task
    assert jobs.results == [ClientDisconnected, "a"]


async def test_a_value_whose_request_is_cancelled_is_given_back(jobs: Jobs, clock: VirtualClock) -> None:
    """The task is cancelled in the turn in which its request got the job."""
    call = Call.get(jobs)
    await clock.settle()
    jobs.put("a")
    call.task.cancel()
    await asyncio.wait([call.task])
    assert list(jobs.queue) == ["a"]


async def test_a_client_that_hangs_up_takes_no_value(jobs: Jobs, clock: VirtualClock) -> None:
    """The wait is withdrawn, and a later value stays."""
    call = Call.get(jobs)
    await clock.settle()
    call.hang_up()
    await call.task
    jobs.put("a")
    assert list(jobs.queue) == ["a"]
    check(jobs.room, parked=0, cancelled=1)
