"""gRPC's asyncio server: deadlines, cancellation, status codes, and the order of a shutdown."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from purgatory import Purgatory, PurgatoryClosed, PurgatoryFull

grpc = pytest.importorskip("grpc", reason="grpcio is not installed: pip install grpcio")
grpc_aio: Any = pytest.importorskip("grpc.aio")

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "grpc.md").read_text(encoding="utf-8")
_MARGIN = 0.2
_ROUNDING = 0.01


class Service:
    """A call that waits; requests and responses are bytes, so no generated code is necessary."""

    def __init__(self, room: Purgatory[Any]) -> None:
        self.room = room
        self.ready = False
        self.timeouts: list[float] = []

    async def poll(self, _: bytes, context: Any) -> bytes:
        """Wait until the client's deadline."""
        remaining = context.time_remaining()
        timeout = 3600.0 if remaining is None else max(0.0, remaining - _MARGIN)
        self.timeouts.append(timeout)
        try:
            held = await self.room.wait_until(lambda: self.ready, keys=["orders"], timeout=timeout)
        except PurgatoryFull:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls are waiting")
        except PurgatoryClosed:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
        return b"ready" if held else b"empty"


@contextlib.asynccontextmanager
async def serve(room: Purgatory[Any], handler: Any = None) -> AsyncIterator[tuple[Service, Any, Any]]:
    """Yield the service on a free loopback port, and a client's call of it, or of another handler."""
    service = Service(room)
    server = grpc_aio.server()
    method = grpc.unary_unary_rpc_method_handler(handler or service.poll)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Orders", {"Poll": method})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc_aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            yield service, server, channel.unary_unary("/Orders/Poll")
        finally:
            await room.aclose()
            await server.stop(None)


async def parked(room: Purgatory[Any], number: int) -> None:
    """Return when this number of calls waits; only the time limit of the test ends the wait."""
    while len(room) != number:  # noqa: ASYNC110 - what is waited for comes over a socket
        await asyncio.sleep(0.001)


async def test_a_check_answers_a_call() -> None:
    """The response contains the handler's result."""
    room = Purgatory[Any]("test")
    async with room, serve(room) as (service, _, poll):
        call = poll(b"")
        waiting = asyncio.ensure_future(_result(call))
        await parked(room, 1)
        service.ready = True
        room.check_and_complete("orders")
        assert await waiting == b"ready"


async def test_the_deadline_of_the_call_is_the_timeout() -> None:
    """The server answers before the client gives up; without a deadline, the longest wait applies."""
    room = Purgatory[Any]("test")
    async with room, serve(room) as (service, _, poll):
        assert await _result(poll(b"", timeout=_MARGIN + 0.1)) == b"empty"
        # The client sends the remaining time in whole milliseconds, rounded up, and both sides round their clocks up.
        assert 0.0 <= service.timeouts[0] <= 0.1 + _ROUNDING
        call = asyncio.ensure_future(_result(poll(b"")))
        await parked(room, 1)
        assert service.timeouts[1] == 3600.0
        await room.aclose()
        assert await call == b"empty"


async def test_a_cancelled_call_is_withdrawn() -> None:
    """gRPC cancels the handler's task, also when the client's deadline passes first."""
    room = Purgatory[Any]("test")
    async with room, serve(room) as (_, _, poll):
        call = poll(b"")
        waiting = asyncio.ensure_future(_result(call))
        await parked(room, 1)
        assert call.cancel()
        await parked(room, 0)
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert room.statistics().cancelled == 1


async def test_refusals_have_a_status_code() -> None:
    """RESOURCE_EXHAUSTED when full and UNAVAILABLE when closing: clients may retry both."""
    room = Purgatory[Any]("test", max_parked=1)
    async with room, serve(room) as (_, _, poll):
        first = asyncio.ensure_future(_result(poll(b"")))
        await parked(room, 1)
        assert await _status(poll(b"")) == grpc.StatusCode.RESOURCE_EXHAUSTED
        await room.aclose()
        assert await first == b"empty"
        assert await _status(poll(b"")) == grpc.StatusCode.UNAVAILABLE


async def test_the_recipe_sends_no_names_and_limits() -> None:
    """The details of a refusal are fixed texts: a client learns neither the purgatory's name nor its limit."""
    (program,) = re.findall(r"^```python\n(.*?)^asyncio\.run\(main\(\)\)\n```$", PAGE, re.MULTILINE | re.DOTALL)
    recipe: dict[str, Any] = {}
    exec(program, recipe)
    room: Purgatory[Any] = recipe["room"]
    async with room, serve(room, recipe["poll"]) as (_, _, poll):
        calls = [asyncio.ensure_future(_result(poll(b""))) for _ in range(2)]
        await parked(room, 2)
        full = await _refused(poll(b""))
        await room.aclose()
        assert await asyncio.gather(*calls) == [b""] * 2
        closed = await _refused(poll(b""))
    assert (full.code(), full.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls are waiting")
    assert (closed.code(), closed.details()) == (grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
    for error in (full, closed):
        assert room.name not in error.details()
        assert not re.search(r"\d", error.details())


async def test_a_shutdown_answers_every_call_first() -> None:
    """With ``aclose()`` and then ``stop(grace)``, no call is aborted, and the grace is not used up."""
    room = Purgatory[Any]("test")
    async with room, serve(room) as (_, server, poll):
        calls = [asyncio.ensure_future(_result(poll(b""))) for _ in range(10)]
        await parked(room, 10)
        await asyncio.gather(room.aclose(), server.stop(3600))
        assert await asyncio.gather(*calls) == [b"empty"] * 10


async def _result(call: Any) -> bytes:
    result: bytes = await call
    return result


async def _refused(call: Any) -> Any:
    with pytest.raises(grpc_aio.AioRpcError) as caught:
        await call
    return caught.value


async def _status(call: Any) -> Any:
    return (await _refused(call)).code()
