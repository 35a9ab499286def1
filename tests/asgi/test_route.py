"""The kind of a wait: the method and the pattern of the route, never the path of the request."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Host, Mount, Route, Router, WebSocketRoute
from starlette.websockets import WebSocket

from purgatory import Purgatory
from purgatory.asgi import Wait, route
from purgatory.asgi.types import ASGIApp, Receive, Scope, Send
from tests.asgi.tools import Call, http_scope, websocket_scope

seen: list[str | None] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    """Begin with an empty list and without known routes."""
    seen.clear()
    route._known.clear()
    return iter([None])


async def endpoint(request: Request) -> Response:
    """Note the kind."""
    seen.append(route.kind_of(request.scope))
    return Response()


async def same_endpoint(request: Request) -> Response:
    """Note the kind, for two routes."""
    return await endpoint(request)


async def socket(websocket: WebSocket) -> None:
    """Note the kind of a WebSocket."""
    seen.append(route.kind_of(websocket.scope))
    await websocket.close()


def fastapi() -> FastAPI:
    """Return an application with routes, and with a router that it includes with a prefix."""
    app = FastAPI()
    router = APIRouter(prefix="/router")
    for each in (app, router):
        each.add_api_route("/orders/{id:path}", endpoint, methods=["GET", "POST"])
        each.add_api_websocket_route("/ws/{id}", socket)
    app.include_router(router, prefix="/api/{tenant}")
    return app


def starlette() -> Starlette:
    """Return an application with routes and mounts."""
    return Starlette(
        routes=[
            Route("/orders/{id:int}", endpoint),
            Route("/one/{id}", same_endpoint),
            Route("/two/{id}", same_endpoint),
            Mount("/mount/{x}", routes=[Route("/inner/{id}", endpoint), WebSocketRoute("/ws/{id}", socket)]),
            Mount("/fastapi/{y}", app=fastapi()),
            Host("api.example", app=Router(routes=[Route("/host/{id}", endpoint)])),
        ]
    )


@pytest.mark.parametrize(
    ("app", "target", "kind"),
    [
        (fastapi(), "/orders/7/8", "GET /orders/{id}"),
        (fastapi(), "/api/acme/router/orders/7", "GET /api/{tenant}/router/orders/{id}"),
        (starlette(), "/orders/7", "GET /orders/{id}"),
        (starlette(), "/one/7", "GET /one/{id}"),
        (starlette(), "/two/7", "GET /two/{id}"),
        (starlette(), "/mount/1/inner/7", "GET /mount/{x}/inner/{id}"),
        (starlette(), "/fastapi/1/orders/7", "GET /fastapi/{y}/orders/{id}"),
        (starlette(), "/fastapi/1/api/acme/router/orders/7", "GET /fastapi/{y}/api/{tenant}/router/orders/{id}"),
    ],
)
async def test_a_request_is_named_by_its_route(app: ASGIApp, target: str, kind: str) -> None:
    """The pattern contains the prefixes of routers and mounts, and no converters; twice, because it is kept."""
    for _ in range(2):
        call = Call.get(app, target)
        await call.task
        assert call.status == 200
    assert seen == [kind, kind]


@pytest.mark.parametrize("both", [["/v1", "/v2"], ["/v2", "/v1"]])
async def test_an_application_on_two_mounts_has_the_kind_of_each(both: list[str]) -> None:
    """The pattern is that of the mount through which the request came, whichever came first."""
    one, other = fastapi(), starlette()
    app = Starlette(
        routes=[
            *(Mount(f"{mount}/fastapi/{{x:int}}", app=one) for mount in both),
            *(Mount(f"{mount}/{{x:path}}/starlette", app=other) for mount in both),
            Mount("/in", routes=[Mount(mount, app=one) for mount in both]),
        ]
    )
    targets = {
        "/fastapi/3/orders/7/8": "/fastapi/{x}/orders/{id}",
        "/fastapi/3/api/acme/router/orders/7": "/fastapi/{x}/api/{tenant}/router/orders/{id}",
        "/a/b/starlette/mount/1/inner/7": "/{x}/starlette/mount/{x}/inner/{id}",
    }
    expected = []
    for mount in [*both, *both]:
        for target, pattern in targets.items():
            await Call.get(app, mount + target).task
            expected.append(f"GET {mount}{pattern}")
        scope = http_scope(f"/proxy/in{mount}/orders/7")
        await Call(app, {**scope, "root_path": "/proxy"}).task
        expected.append(f"GET /in{mount}/orders/{{id}}")
    assert seen == expected


async def test_an_endpoint_of_two_routes_has_the_kind_of_each() -> None:
    """Also where Starlette stores only the endpoint."""
    app = starlette()
    for name in ("two", "one"):
        scope = {**http_scope(f"/{name}/7"), "endpoint": same_endpoint, "router": app.router}
        assert route.kind_of(scope) == f"GET /{name}/{{id}}"


@pytest.mark.parametrize(
    ("app", "target", "kind"),
    [
        (fastapi(), "/ws/7", "WEBSOCKET /ws/{id}"),
        (fastapi(), "/api/acme/router/ws/7", "WEBSOCKET /api/{tenant}/router/ws/{id}"),
        (starlette(), "/mount/1/ws/7", "WEBSOCKET /mount/{x}/ws/{id}"),
        (starlette(), "/fastapi/1/ws/7", "WEBSOCKET /fastapi/{y}/ws/{id}"),
    ],
)
async def test_a_websocket_is_named_by_its_route(app: ASGIApp, target: str, kind: str) -> None:
    """A WebSocket has a route too."""
    call = Call(app, websocket_scope(target), {"type": "websocket.connect"})
    await call.task
    assert seen == [kind]


async def test_a_host_adds_no_prefix() -> None:
    """A route below a Host is named by its own path."""
    scope = http_scope("/host/7")
    scope["headers"] = [(b"host", b"api.example")]
    await Call(starlette(), scope).task
    assert seen == ["GET /host/{id}"]


async def test_a_server_behind_a_prefix_adds_no_prefix() -> None:
    """The root path of the server is not a mount."""
    scope = http_scope("/proxy/orders/7")
    scope["root_path"] = "/proxy"
    await Call(fastapi(), scope).task
    assert seen == ["GET /orders/{id}"]


async def test_the_method_is_a_known_one() -> None:
    """A route that takes every method gives one kind for all unknown ones."""

    class Endpoint:
        def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
            self.arguments = (scope, receive, send)

        def __await__(self) -> Any:
            scope, receive, send = self.arguments
            seen.append(route.kind_of(scope))
            return Response()(scope, receive, send).__await__()

    app = Starlette(routes=[Route("/{id}", Endpoint)])
    for method in ("PATCH", "X-1", "X-2"):
        await Call(app, http_scope("/7", method)).task
    assert seen == ["PATCH /{id}", "_OTHER /{id}", "_OTHER /{id}"]


@pytest.mark.parametrize("stored", [{}, {"endpoint": endpoint}, {"endpoint": endpoint, "router": Router()}])
def test_without_a_route_there_is_no_kind(stored: dict[str, Any]) -> None:
    """The raw path is not used."""
    assert route.kind_of({**http_scope("/orders/7"), **stored}) is None


def test_a_scope_with_only_an_endpoint_is_searched() -> None:
    """Starlette before version 1 stores the endpoint, and no route."""
    scope = http_scope("/orders/7")
    scope |= {"endpoint": endpoint, "router": starlette().router}
    assert route.kind_of(scope) == "GET /orders/{id}"


def test_litestar_stores_a_template() -> None:
    """Litestar stores the pattern itself."""
    scope = http_scope("/orders/7")
    scope["path_template"] = "/orders/{id:int}"
    assert route.kind_of(scope) == "GET /orders/{id:int}"


async def test_events_and_dumps_show_the_kind(purgatory: Purgatory[Any]) -> None:
    """The route is the default of ``kind``; ``kind=`` replaces it; without a route, the kind is the method's name."""
    dumped: list[str] = []

    async def wait(request: Request) -> Response:
        wait = Wait(purgatory, request)
        for kind in (None, "poll"):
            waits = wait.until(lambda: False, key="a", timeout=60, kind=kind)
            import asyncio

            task = asyncio.ensure_future(waits)
            await asyncio.sleep(0)
            dumped.append(purgatory.dump()["operations"][0]["kind"])
            task.cancel()
            await asyncio.wait([task])
        return Response()

    await Call.get(Starlette(routes=[Route("/orders/{id}", wait)]), "/orders/7").task
    assert dumped == ["GET /orders/{id}", "poll"]
