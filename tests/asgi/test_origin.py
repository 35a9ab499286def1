"""Host names and origins: which requests are refused, and that nothing else is."""

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from purgatory.asgi import OriginCheckMiddleware
from purgatory.asgi.origin import refusal
from purgatory.asgi.types import ASGIApp, Receive, Scope, Send
from tests.asgi.tools import Call, http_scope, websocket_scope


async def served(scope: Scope, receive: Receive, send: Send) -> None:
    """Accept everything."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
    else:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def with_headers(scope: Scope, **headers: str | None) -> Scope:
    """Return the scope with these headers only; None leaves one out."""
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items() if value is not None]
    return {**scope, "headers": pairs}


async def status_of(scope: Scope, app: ASGIApp | None = None) -> int | None:
    """Return the status of the response."""
    call = Call(app or OriginCheckMiddleware(served), scope)
    await call.task
    return call.status


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8000", "localhost", "LOCALHOST.:80", "[::1]", "[::1]:8000"])
async def test_the_names_of_the_machine_are_served(host: str) -> None:
    """By default, the local names are served with any port, in either case."""
    assert await status_of(with_headers(http_scope(), host=host)) == 200


@pytest.mark.parametrize(
    "host", [None, "", "attacker.example", "127.0.0.1.attacker.example:80", "localhost@x", "[::2]"]
)
async def test_another_host_name_is_refused(host: str | None) -> None:
    """A request for another host gets 400, with any method, so a name that resolves to this machine is of no use."""
    for method in ("GET", "POST"):
        assert await status_of(with_headers(http_scope(method=method), host=host)) == 400


async def test_two_host_headers_are_refused() -> None:
    """The server and a proxy might each believe another one."""
    scope = http_scope()
    scope["headers"] = [(b"host", b"localhost"), (b"host", b"attacker.example")]
    assert await status_of(scope) == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),  # not a browser
        ({"origin": "http://localhost:8000"}, 200),
        ({"origin": "http://attacker.example"}, 403),
        ({"origin": "http://localhost:9000"}, 403),
        ({"origin": "null"}, 403),  # a sandboxed frame
        ({"origin": "http://[::1"}, 403),
        ({"sec_fetch_site": "same-origin", "origin": "https://localhost:8000"}, 200),
        ({"sec_fetch_site": "none"}, 200),  # the address bar, or a bookmark
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site", "origin": "http://localhost:8000"}, 403),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "websocket"])
async def test_changes_are_refused_to_pages_of_another_origin(
    method: str, headers: dict[str, Any], status: int
) -> None:
    """A browser's request with an unsafe method or a WebSocket needs the same origin; reading needs only the host."""
    scope = websocket_scope(denial=True) if method == "websocket" else http_scope(method=method)
    expected = 200 if method in ("GET", "HEAD") else status
    if method == "websocket":
        call = Call(OriginCheckMiddleware(served), with_headers(scope, host="localhost:8000", **headers))
        await call.task
        assert call.sent[0].get("status", 200) == expected
        assert (call.sent[0]["type"] == "websocket.accept") == (expected == 200)
    else:
        assert await status_of(with_headers(scope, host="localhost:8000", **headers)) == expected


async def test_a_websocket_is_closed_where_it_cannot_get_a_response() -> None:
    """Without the extension, the WebSocket is closed before it is accepted."""
    call = Call(OriginCheckMiddleware(served), with_headers(websocket_scope(), host="attacker.example"))
    await call.task
    assert [message["type"] for message in call.sent] == ["websocket.close"]


async def test_the_hosts_can_be_named_or_left_to_a_proxy() -> None:
    """``allowed_hosts`` replaces the local names; None allows every host, and still compares the origins."""
    scope = with_headers(http_scope(method="POST"), host="orders.example.com", origin="https://orders.example.com")
    assert await status_of(scope, OriginCheckMiddleware(served, allowed_hosts=["Orders.example.com"])) == 200
    assert await status_of(scope, OriginCheckMiddleware(served, allowed_hosts=None)) == 200
    assert (
        await status_of(
            with_headers(http_scope(), host="[::2]:1"), OriginCheckMiddleware(served, allowed_hosts=["[::2]"])
        )
        == 200
    )
    scope = with_headers(http_scope(method="POST"), host="orders.example.com", origin="https://other.example.com")
    assert await status_of(scope, OriginCheckMiddleware(served, allowed_hosts=None)) == 403
    for bad in ("localhost", [1], 3):
        with pytest.raises(TypeError, match="must be"):
            OriginCheckMiddleware(served, allowed_hosts=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("allowed", "served_names", "refused_names"),
    [
        (["*"], ["localhost", "anything.example", "[::2]", ""], []),
        (["*", "localhost"], ["anything.example"], []),
        (
            ["*.Example.com", "localhost"],
            ["orders.example.com", "a.b.example.com:80", "A.EXAMPLE.COM.", "localhost"],
            ["example.com", "notexample.com", "example.com.attacker.example", "127.0.0.1", "com", ""],
        ),
    ],
)
async def test_an_asterisk_stands_for_any_name(
    allowed: list[str], served_names: list[str], refused_names: list[str]
) -> None:
    """``*`` is every host, and ``*.example.com`` every subdomain, as for Starlette's TrustedHostMiddleware."""
    app = OriginCheckMiddleware(served, allowed_hosts=allowed)
    for status, names in ((200, served_names), (400, refused_names)):
        for name in names:
            assert await status_of(with_headers(http_scope(), host=name), app) == status, name


@pytest.mark.parametrize("name", ["*example.com", "orders.*", "*.*.example.com", "**", "a*"])
def test_an_asterisk_elsewhere_is_refused(name: str) -> None:
    """It would be taken literally, and no host has it."""
    with pytest.raises(ValueError, match=r"must be '\*', '\*\.example\.com' or have no '\*', got "):
        OriginCheckMiddleware(served, allowed_hosts=[name])


async def test_it_is_a_middleware_of_starlette() -> None:
    """``add_middleware`` accepts it, and the application's lifespan passes."""

    async def endpoint(request: Request) -> PlainTextResponse:
        return PlainTextResponse("found")

    app = Starlette(routes=[Route("/", endpoint)])
    app.add_middleware(OriginCheckMiddleware)
    assert await status_of(with_headers(http_scope(), host="localhost"), app) == 200
    assert await status_of(with_headers(http_scope(), host="elsewhere.example"), app) == 400


def test_a_long_host_costs_little() -> None:
    """A name that no DNS holds is refused before its parent domains are compared, however many it has."""

    class Counted(frozenset[str]):
        compared = 0

        def __contains__(self, name: object) -> bool:
            Counted.compared += 1
            return False

    scope = {**http_scope(), "headers": [(b"host", b"a." * 30_000 + b"example.com")]}
    assert refusal(scope, Counted()) == (400, "the host of the request is not served here")
    assert Counted.compared == 1
