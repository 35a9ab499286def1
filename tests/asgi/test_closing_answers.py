"""A wait that ends because the server stops differs from a wait without news."""

import asyncio
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, Response

from purgatory import Purgatory, PurgatoryClosed, SystemTimer
from purgatory.asgi import Wait, install_errors, waiting
from purgatory.testing import VirtualClock
from tests.asgi.tools import Call, http_scope
from tests.helpers import Op


async def no_message() -> Any:
    """Receive nothing."""
    await asyncio.Event().wait()


async def test_one_line_of_a_handler_makes_the_difference(clock: VirtualClock) -> None:
    """No news: 204, poll again.  The server stops: 503 with Retry-After, and the connection closes."""
    room = Purgatory[Any]("test", clock=clock)
    news: list[int] = []
    app = FastAPI()
    install_errors(app)

    @app.get("/")
    async def read(wait: Annotated[Wait, Depends(waiting(room, longest=55))]) -> Any:
        if not await wait.until(lambda: news, key="news"):
            wait.raise_if_closing()
            return Response(status_code=204)
        return news

    calls = [Call.get(app, "/?wait=5"), Call.get(app, "/?wait=9")]
    await clock.advance(5.0)
    await room.aclose()
    calls.append(Call.get(app))  # it need not wait, so it is answered as usual
    await asyncio.gather(*(call.task for call in calls))
    assert [call.status for call in calls] == [204, 503, 204]
    assert [call.headers.get("connection") for call in calls] == [None, "close", "close"]
    assert 1 <= int(calls[1].headers["retry-after"]) <= 5


async def test_it_is_known_for_each_wait(clock: VirtualClock) -> None:
    """``expired_by_closing`` belongs to the last wait: it is False after a value, a deadline, and a wait of zero."""
    room = Purgatory[Any]("test", clock=clock)
    async with room:
        wait = Wait(room, http_scope(), no_message)
        assert not wait.expired_by_closing
        await wait.until(lambda: True, key="a", timeout=1)
        assert not wait.expired_by_closing
        expires = asyncio.ensure_future(wait.until(lambda: False, key="a", timeout=1))
        await clock.advance(1.0)
        await expires
        assert not wait.expired_by_closing
        wait.raise_if_closing()
        ends = asyncio.ensure_future(wait.park(Op(), key="a"))
        await clock.settle()
        await room.aclose()
        await ends
        assert wait.expired_by_closing
        with pytest.raises(PurgatoryClosed):
            wait.raise_if_closing()
        await wait.until(lambda: False, key="a", timeout=0)
        assert not wait.expired_by_closing


async def test_closing_the_timer_alone_is_named(clock: VirtualClock) -> None:
    """A wait with a deadline on a shared timer expires when the timer closes, and the error says so."""
    timer = SystemTimer(clock=clock)
    async with Purgatory[Any]("test", timer=timer) as room:
        wait = Wait(room, http_scope(), no_message)
        ends = asyncio.ensure_future(wait.until(lambda: False, key="a", timeout=30))
        await clock.settle()
        await timer.aclose()
        assert await ends is False
        assert wait.expired_by_closing
        with pytest.raises(PurgatoryClosed, match=r"^the timer of purgatory 'test' closed while the request waited$"):
            wait.raise_if_closing()


async def test_a_wait_that_ends_by_itself_during_the_grace_is_not_expired_by_closing(clock: VirtualClock) -> None:
    """During the grace, a value and a deadline end waits as usual."""
    room = Purgatory[Any]("test", clock=clock)
    ready: list[int] = []
    waits = [Wait(room, http_scope(), no_message) for _ in range(3)]
    async with room:
        tasks = [
            asyncio.ensure_future(wait.until(lambda: bool(ready), key=key, timeout=timeout))
            for wait, key, timeout in zip(waits, "aab", (30, 1, 30), strict=True)
        ]
        await clock.settle()
        closing = asyncio.ensure_future(room.aclose(grace=5.0))
        await clock.advance(1.0)
        ready.append(1)
        room.check_and_complete("a")
        await clock.advance(4.0)
        await closing
        assert await asyncio.gather(*tasks) == [True, False, False]
        assert [wait.expired_by_closing for wait in waits] == [False, False, True]
