"""Limiting the waits of one client address."""

import asyncio
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI

from purgatory import Outcome, Purgatory, PurgatoryFull
from purgatory.asgi import TooManyWaits, Wait, install_errors, waiting
from purgatory.asgi.clients import places_of
from purgatory.relay import MemoryTransport, Relay
from purgatory.testing import VirtualClock
from tests.asgi.tools import Call, http_scope
from tests.helpers import Op, check


def make_app(room: Purgatory[Any], ready: list[int]) -> FastAPI:
    """Return an application in which each address may wait twice."""
    app = FastAPI()
    install_errors(app)

    @app.get("/")
    async def read(wait: Annotated[Wait, Depends(waiting(room, per_client=2))], timeout: float = 30) -> bool:
        return await wait.until(lambda: bool(ready), key="a", timeout=timeout)

    return app


def come(app: FastAPI, host: str | None, target: str = "/") -> Call:
    """Send a request from an address."""
    scope = http_scope(target)
    scope["client"] = None if host is None else (host, 1)
    return Call(app, scope, {"type": "http.request", "body": b"", "more_body": False})


async def test_a_client_above_its_limit_is_refused(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The third wait of an address gets 429, and other addresses wait; a wait that ends frees its place."""
    ready: list[int] = []
    app = make_app(purgatory, ready)
    calls = [come(app, "10.0.0.1") for _ in range(2)]
    await clock.settle()
    refused = come(app, "10.0.0.1")
    await refused.task
    assert (refused.status, refused.json) == (429, {"detail": "too many requests from this client are waiting"})
    assert "retry-after" in refused.headers
    calls += [come(app, "10.0.0.2") for _ in range(2)]
    await clock.settle()
    assert len(purgatory) == 4
    calls[0].hang_up()
    calls[1].task.cancel()
    await clock.settle()
    calls += [come(app, "10.0.0.1") for _ in range(2)]
    await clock.settle()
    assert len(purgatory) == 4
    ready.append(1)
    purgatory.check("a")
    await asyncio.wait([call.task for call in calls])
    assert len(places_of(purgatory)) == 0
    check(purgatory, submitted=6, completed=4, cancelled=2, refused=1, refused_by_key=0, refused_by_client=1)


async def test_a_request_that_need_not_wait_is_never_refused(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Above the limit, the condition is tried once; a wait of zero takes no place."""
    ready: list[int] = []
    app = make_app(purgatory, ready)
    waits = [come(app, "10.0.0.1") for _ in range(2)]
    await clock.settle()
    at_once = come(app, "10.0.0.1", "/?timeout=0")
    await at_once.task
    assert at_once.json is False
    ready.append(1)
    holds = come(app, "10.0.0.1")
    await holds.task
    assert holds.json is True
    purgatory.check("a")
    await asyncio.gather(*(call.task for call in waits))


async def test_a_network_is_one_client(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The addresses of an IPv6 network of 64 bits count together, and a mapped address counts as the IPv4 address."""
    app = make_app(purgatory, [])
    groups = (
        ["2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:0:1::%eth0"],
        ["2001:db8:0:1::1", "2001:db8:0:1::2", "2001:db8:0:1::3"],
        ["::ffff:10.0.0.1", "10.0.0.1", "::ffff:a00:1"],
        ["no:address", "no:address", "no:address"],
    )
    for group in groups:
        calls = [come(app, host, "/?timeout=5") for host in group]
        await clock.settle()
        assert [call.status for call in calls] == [None, None, 429]
    assert len(purgatory) == 8
    await clock.advance(5.0)
    assert len(places_of(purgatory)) == 0


@pytest.mark.parametrize("client", [None, ("", 0), [None, None], "absent"])
async def test_connections_without_an_address_are_one_client(
    purgatory: Purgatory[Any], clock: VirtualClock, caplog: pytest.LogCaptureFixture, client: Any
) -> None:
    """As on a Unix socket behind a proxy: the limit holds for all of them together, and one warning names the cause."""
    app = make_app(purgatory, [])

    def come_without() -> Call:
        scope = http_scope("/?timeout=5")
        scope["client"] = client
        if client == "absent":
            del scope["client"]
        return Call(app, scope, {"type": "http.request", "body": b"", "more_body": False})

    with_address = come(app, "10.0.0.1", "/?timeout=5")
    await clock.settle()
    assert caplog.records == []
    calls = [come_without() for _ in range(4)]
    await clock.settle()
    assert [call.status for call in (with_address, *calls)] == [None, None, None, 429, 429]
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("purgatory.asgi", "WARNING")
    assert record.getMessage().startswith("purgatory 'test': a connection has no client address")
    assert "uvicorn: --forwarded-allow-ips '*'" in record.getMessage()
    await clock.advance(5.0)
    assert len(places_of(purgatory)) == 0


async def test_the_error_names_the_client(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """TooManyWaits is a PurgatoryFull with the address as its key; the operation is still new, and no hook has run."""

    async def no_message() -> Any:
        await asyncio.Event().wait()

    wait = Wait(purgatory, {**http_scope(), "client": ("10.0.0.1", 1)}, no_message, per_client=1)
    first = asyncio.ensure_future(wait.park(Op(), key="a"))
    await clock.settle()
    refused = Op()
    with pytest.raises(TooManyWaits, match=r"client 10\.0\.0\.1 has 1 waits in purgatory 'test'") as raised:
        await wait.park(refused, key="a")
    assert isinstance(raised.value, PurgatoryFull)
    assert (raised.value.limit, raised.value.key) == (1, "10.0.0.1")
    assert (refused.outcome, refused.calls) == (Outcome.PENDING, ["try"])
    first.cancel()
    await asyncio.wait([first])
    again = asyncio.ensure_future(wait.park(refused, key="a"))
    await clock.settle()
    assert len(purgatory) == 1, "the operation can be parked later"
    again.cancel()
    await asyncio.wait([again])


async def test_a_refusal_changes_no_operation_of_a_relay(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """As without the relay: the operation is still new, and no hook has run."""

    async def no_message() -> Any:
        await asyncio.Event().wait()

    async with Relay(purgatory, MemoryTransport()) as relay:
        wait = Wait(relay, {**http_scope(), "client": ("10.0.0.1", 1)}, no_message, per_client=1)
        first = asyncio.ensure_future(wait.park(Op(), key="a"))
        await clock.settle()
        refused = Op()
        with pytest.raises(TooManyWaits):
            await wait.park(refused, key="a")
        assert (refused.outcome, refused.calls) == (Outcome.PENDING, ["try"])
        first.cancel()
        await asyncio.wait([first])
        again = asyncio.ensure_future(wait.park(refused, key="a"))
        await clock.settle()
        assert len(purgatory) == 1
        again.cancel()
        await asyncio.wait([again])


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "2"])
def test_the_limit_is_a_positive_int(limit: Any) -> None:
    """Anything else is refused when the dependency is created."""
    with pytest.raises((TypeError, ValueError), match="per_client must be a positive int or None, got"):
        waiting(Purgatory[Any]("test"), per_client=limit)
