"""Waiting until a version differs from the one that the client has: ``If-None-Match`` and ``ETag``."""

import asyncio
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, Response
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request

from purgatory import Purgatory
from purgatory.asgi import PurgatoryErrorMiddleware, Wait, install_errors, waiting
from purgatory.asgi.types import Receive, Scope, Send
from purgatory.relay import MemoryTransport, Relay
from purgatory.testing import VirtualClock
from tests.asgi.tools import Call, http_scope


class Config:
    """A version, and an application that waits for another one than the client has."""

    def __init__(self, room: Purgatory[Any], version: Any = 41) -> None:
        self.room = room
        self.version = version
        self.results: list[Any] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.results.append(
            await Wait(self.room, scope, receive).changed(lambda: self.version, key="config", timeout=30)
        )
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def change(self, version: Any) -> None:
        """Change the version."""
        self.version = version
        self.room.check_and_complete("config")

    def get(self, *known: str) -> Call:
        """Request it with these ``If-None-Match`` headers."""
        return Call(PurgatoryErrorMiddleware(self), knowing(http_scope(), *known))


def knowing(scope: Scope, *known: str) -> Scope:
    """Return the scope with ``If-None-Match`` headers."""
    return {**scope, "headers": [(b"if-none-match", each.encode("latin-1")) for each in known]}


@pytest.fixture
def config(purgatory: Purgatory[Any]) -> Config:
    """Return a configuration of version 41."""
    return Config(purgatory)


@pytest.mark.parametrize("known", [[], [""], ['"40"'], ['"4", "1"'], ["41"], ['"40', '"'], ["W/41"]])
async def test_another_version_is_news_at_once(config: Config, known: list[str]) -> None:
    """Without the header, with other tags, and with a malformed header, the current version is returned."""
    call = config.get(*known)
    await call.task
    assert (config.results, call.headers["etag"]) == ([41], '"41"')


@pytest.mark.parametrize("known", [['"41"'], ['W/"41"'], ['"40", "41"'], ['"40"', '"41"'], ['"a,b" ,"41"']])
async def test_the_clients_version_waits_for_the_next(config: Config, clock: VirtualClock, known: list[str]) -> None:
    """The comparison is weak; each tag of each header counts; a check without a change wakes nobody."""
    call = config.get(*known)
    await clock.settle()
    config.change(41)
    await clock.settle()
    assert config.results == []
    config.change(42)
    await call.task
    assert (config.results, call.headers["etag"]) == ([42], '"42"')


async def test_a_star_knows_every_version(config: Config, clock: VirtualClock) -> None:
    """``If-None-Match: *`` waits for the first version."""
    config.version = None
    calls = [config.get("*"), config.get()]
    await clock.settle()
    config.change("v-1")
    await calls[1].task
    await clock.advance(30.0)
    await calls[0].task
    assert config.results == ["v-1", None]


async def test_without_a_change_the_result_is_none(config: Config, clock: VirtualClock) -> None:
    """At the deadline the result is None, and the response has the tag of the current version, if there is one."""
    call = config.get('"41"')
    await clock.advance(30.0)
    await call.task
    assert (config.results, call.headers["etag"]) == ([None], '"41"')
    config.version = None
    call = config.get()
    await clock.advance(30.0)
    await call.task
    assert "etag" not in call.headers


async def test_a_version_that_the_client_has_not_received_gets_no_tag(
    config: Config, clock: VirtualClock, purgatory: Purgatory[Any]
) -> None:
    """The version changed without a check, or a relay has ignored it: a tag would make the client skip it for ever."""
    call = config.get('"41"')
    await clock.settle()
    config.version = 42  # no check
    await clock.advance(30.0)
    await call.task
    assert (config.results, "etag" in call.headers) == ([None], False)

    async def refresh(keys: list[str]) -> dict[str, int]:
        return dict.fromkeys(keys, 7)

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        wait = Wait(relay, scope, receive)
        config.results.append(await wait.changed(lambda: relay.state.get("a", 7), key="a", timeout=0))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with Relay(purgatory, MemoryTransport(), refresh=refresh) as relay:
        for known, tag in (([], None), (['"3"'], None), (['"7"'], '"7"')):
            call = Call(PurgatoryErrorMiddleware(read), knowing(http_scope(), *known))
            await call.task
            assert (config.results[-1], call.headers.get("etag")) == (None, tag)


@pytest.mark.parametrize("how", ["item", "get"])
async def test_a_version_in_the_state_of_a_relay_is_not_read_after_the_wait(
    clock: VirtualClock, purgatory: Purgatory[Any], how: str
) -> None:
    """The state drops the key when nobody waits on it, so the tag is that of the version that the wait has seen."""
    results: list[Any] = []

    async def refresh(keys: list[str]) -> dict[str, int]:
        return dict.fromkeys(keys, 41)

    def version() -> int | None:
        return relay.state["a"] if how == "item" else relay.state.get("a")

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        results.append(await Wait(relay, scope, receive).changed(version, key="a", timeout=30))
        await send({"type": "http.response.start", "status": 304, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with Relay(purgatory, MemoryTransport(), refresh=refresh) as relay:
        call = Call(PurgatoryErrorMiddleware(read), knowing(http_scope(), '"41"'))
        await clock.settle()
        await clock.advance(30.0)
        await call.task
    assert (results, call.status, call.headers.get("etag")) == ([None], 304, '"41"')


async def test_a_version_that_is_no_function_is_refused(purgatory: Purgatory[Any]) -> None:
    """The error says what to pass."""
    wait = Wait(purgatory, http_scope(), asyncio.Queue().get)
    with pytest.raises(TypeError, match="version must be callable, got 3: pass a function that returns the version"):
        await wait.changed(3, key="a", timeout=1)  # type: ignore[call-overload]


@pytest.mark.parametrize("version", [True, 1.5, b"1", 'a"b', "a b", "", "ä", object()])
async def test_a_version_that_no_tag_can_contain_is_refused(config: Config, version: Any) -> None:
    """TypeError or ValueError, and nothing waits."""
    config.version = version
    with pytest.raises((TypeError, ValueError), match="version must"):
        await config.get().task
    assert len(config.room) == 0


async def test_a_coroutine_function_is_refused(purgatory: Purgatory[Any]) -> None:
    """The error names it."""

    async def version() -> int:
        return 1

    async def receive() -> Any:
        await asyncio.Event().wait()

    wait = Wait(purgatory, http_scope(), receive)
    with pytest.raises(TypeError, match=r"plain function, got .*version"):
        await wait.changed(version, key="a", timeout=1)  # type: ignore[type-var]


@pytest.mark.parametrize("errors", [True, False])
async def test_in_fastapi_the_client_decides_how_long(
    purgatory: Purgatory[Any], clock: VirtualClock, errors: bool
) -> None:
    """Without ``?wait=`` it is a plain conditional request; FastAPI adds the tag to a plain result by itself."""
    config = Config(purgatory)
    app = FastAPI()
    if errors:
        install_errors(app)

    @app.get("/")
    async def read(wait: Annotated[Wait, Depends(waiting(purgatory, longest=55))]) -> Any:
        if await wait.changed(lambda: config.version, key="config") is None:
            return Response(status_code=304)
        return config.version

    calls = [Call(app, knowing(http_scope(target), '"41"')) for target in ("/", "/?wait=5", "/?wait=9")]
    calls.append(Call.get(app))
    await clock.advance(5.0)
    config.change(42)
    await asyncio.gather(*(call.task for call in calls))
    assert [call.status for call in calls] == [304, 304, 200, 200]
    tags = ['"41"', '"41"'] if errors else [None, None]
    assert [call.headers.get("etag") for call in calls] == [*tags, '"42"', '"41"']


@pytest.mark.parametrize("framework", [FastAPI, Starlette])
@pytest.mark.parametrize("status", [200, 204, 303, 304, 404, 500])
async def test_an_error_after_the_wait_has_no_tag(
    purgatory: Purgatory[Any], framework: type[Starlette], status: int
) -> None:
    """The tag belongs to the content of the resource, which an error or a redirect does not contain."""
    app = framework()
    install_errors(app)
    wait_of = waiting(purgatory)

    async def read(request: Request) -> Any:
        assert await (await wait_of(request)).changed(lambda: 42, key="config", timeout=1) == 42
        raise HTTPException(status)

    app.add_route("/", read)
    call = Call(app, knowing(http_scope(), '"41"'))
    await call.task
    assert call.status == status
    assert call.headers.get("etag") == ('"42"' if status in (200, 204, 304) else None)
