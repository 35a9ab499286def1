"""A handler of a web application that waits through a relay."""

import asyncio
from typing import Any

import pytest

from purgatory.asgi import ClientDisconnected, Wait, waiting
from purgatory.testing import VirtualClock
from tests.asgi.tools import Call
from tests.relay.kit import workers


async def test_a_handler_waits_through_the_relay(clock: VirtualClock) -> None:
    """``Wait(relay, ...)`` refreshes the key when it parks, and a notice from another process answers the client."""
    (first, second), _ = workers(clock)
    results: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        wait = await waiting(second.relay)(scope, receive)
        results.append(await wait.until(lambda: second.state.get("a", 0) >= 1, keys=["a"], timeout=30.0))

    async with first, second:
        call = Call.get(app)
        await clock.settle()
        assert second.reads == [["a"]]
        first.write("a", 1)
        first.relay.check("a")
        await clock.settle()
        assert results == [True]
        await call.task


async def test_a_stream_has_an_event_for_the_check_and_one_for_the_new_state(clock: VirtualClock) -> None:
    """In the worker that checks the key; the other worker reads it before it checks."""
    (first, second), _ = workers(clock)
    events: dict[str, list[tuple[str, Any]]] = {"first": [], "second": []}

    async def follow(name: str, worker: Any) -> None:
        async with worker.purgatory.changes(["a"]) as changes:
            async for key in changes:
                events[name].append((key, worker.state.get("a")))

    async with first, second, asyncio.TaskGroup() as tasks:
        for name, worker in (("first", first), ("second", second)):
            tasks.create_task(follow(name, worker))
        await clock.settle()
        first.write("a", 1)
        first.relay.check("a")
        await clock.settle()
        await first.purgatory.aclose()
        await second.purgatory.aclose()
    assert events["first"][-2:] == [("a", None), ("a", 1)]
    assert events["second"][-1] == ("a", 1)


async def test_a_client_that_hangs_up_is_withdrawn(clock: VirtualClock) -> None:
    """The purgatory of the relay is empty, and the handler raises ClientDisconnected."""
    (worker,), _ = workers(clock, 1)
    errors: list[Exception] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await Wait(worker.relay, scope, receive).until(lambda: False, keys=["a"], timeout=30.0)
        except ClientDisconnected as error:
            errors.append(error)

    async with worker:
        call = Call.get(app)
        await clock.settle()
        assert len(worker.purgatory) == 1
        call.hang_up()
        await clock.settle()
        assert len(worker.purgatory) == 0
        assert len(errors) == 1
        await call.task


def test_something_else_is_refused() -> None:
    """An object that is neither a purgatory nor a relay raises TypeError when the dependency is created."""
    with pytest.raises(TypeError, match="room must be a Purgatory or a Relay, got 3"):
        waiting(3)  # type: ignore[arg-type]
