"""The kind of a request's waits: the request's method and the pattern of its route, such as ``GET /orders/{id}``.

ASGI does not pass the route to the application, but each framework stores the matched route in the scope:

==================  ================================================================================================
FastAPI             ``scope["route"]``; for a route in an included router, the path with the prefix is in the
                    context of that inclusion, in ``scope["fastapi"]``
Starlette           ``scope["route"]``; before version 1, only ``scope["endpoint"]``
Litestar            ``scope["path_template"]``
==================  ================================================================================================

The path of a route does not contain the path at which its application is mounted.  If the application is mounted, or if
Starlette stores only the endpoint, the routes of the outermost router are searched once, and the result is kept.  If
several patterns lead to the route because its application is mounted several times, the request's path decides.

Neither the raw path of a request nor an unknown method ever becomes part of the kind, because metrics would have a
separate time series for each of them.
"""

import contextlib
import re
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Final

from .types import Scope

__all__ = ["kind_of"]

_METHODS: Final = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE"})
_MOST_KNOWN: Final = 4096  # routes of all applications in one process
_PARAMETER: Final = re.compile(r"\{(\w+)\}")

# Key: the id() of a router, and of a route, an endpoint, or an application in it.  Value: a reference to that object,
# and the patterns that lead to it, each with its regular expression.
_known: dict[tuple[int, int], tuple["weakref.ref[Any]", dict[str, str]]] = {}


def kind_of(scope: Scope) -> str | None:
    """Return the method and the pattern of the route, or None if the scope does not contain a route."""
    pattern = _pattern(scope)
    if pattern is None:
        return None
    if scope["type"] == "websocket":
        return f"WEBSOCKET {pattern}"
    method = scope.get("method")
    return f"{method if method in _METHODS else '_OTHER'} {pattern}"


def _pattern(scope: Scope) -> str | None:
    route = scope.get("route")
    if route is None:
        template = scope.get("path_template")
        if isinstance(template, str) and template:
            return template
        route = scope.get("endpoint")
        return None if route is None else _searched(scope, route)
    own = _path_of(route)
    included = scope.get("fastapi")
    if isinstance(included, dict):
        context = included.get("effective_route_context")
        if context is not None and getattr(context, "original_route", None) is route:
            own = _path_of(context) or own
    root_path = scope.get("root_path", "")
    outside = scope.get("app_root_path", root_path)  # added by the server, not by a Mount
    if own is not None and root_path != outside:  # inside a Mount
        if (whole := _searched(scope, route)) is not None:
            return whole
        mounted = _searched(scope, scope.get("app"), mount=root_path.removeprefix(outside))
        return own if mounted is None else mounted + own
    return own


def _path_of(route: Any) -> str | None:
    """Return the path of a route without its converters: ``/orders/{id}`` for ``/orders/{id:int}``."""
    path = getattr(route, "path_format", None) or getattr(route, "path", None)
    return path if isinstance(path, str) and path else None


def _searched(scope: Scope, target: Any, mount: str | None = None) -> str | None:
    """Return the complete pattern of the target's route.  The target is a route, an endpoint, or an application.

    An application may be mounted at several paths, so several patterns may lead to a route; return the pattern that
    the request's path matches.  ``mount``: the path of the mount, if the target is an application.
    """
    router = scope.get("router")
    if router is None or target is None:
        return None
    place = (id(router), id(target))
    known = _known.get(place)
    if known is not None and known[0]() is target:
        found = known[1]
    else:
        found = dict(_search(getattr(router, "routes", ()), target, "", ""))
        if found:
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            with contextlib.suppress(TypeError):  # an endpoint whose class has __slots__ is looked up every time
                _known[place] = (weakref.ref(target), found)
    first = next(iter(found), None)
    if len(found) < 2:
        return first
    path = _path_in(scope) if mount is None else mount
    return next((pattern for pattern, regex in found.items() if re.fullmatch(regex, path)), first)


def _path_in(scope: Scope) -> str:
    """Return the request's path within the outermost application."""
    path: str = scope.get("path", "")
    root_path = scope.get("root_path", "")
    if not path.startswith(root_path):
        path = root_path + path  # this version of Starlette removes the path of a mount
    return path.removeprefix(scope.get("app_root_path", root_path))


def _search(routes: Iterable[Any], target: Any, prefix: str, before: str) -> Iterator[tuple[str, str]]:
    """Yield the pattern of each route to the target, with a regular expression for the paths that it matches."""
    for route in routes or ():
        own = _path_of(route) or ""  # a Host has no path
        path = prefix + own
        if route is target or getattr(route, "endpoint", None) is target:
            yield path, before + _regex(route, own)
            continue
        inner = getattr(route, "routes", None)
        own = own.removesuffix("/{path}")  # which Starlette's Mount adds
        mounted = prefix + own
        if inner is not None and getattr(route, "app", None) is target:
            yield mounted, before + _regex(route, own)
        elif inner:
            yield from _search(inner, target, mounted, before + _regex(route, own))


def _regex(route: Any, path: str) -> str:
    """Return the regular expression for the route's path, including the expressions of its converters."""
    converters = getattr(route, "param_convertors", {})
    parts = _PARAMETER.split(path)  # literal text and names alternate
    parts[::2] = map(re.escape, parts[::2])
    parts[1::2] = [f"(?:{getattr(converters.get(name), 'regex', '[^/]+')})" for name in parts[1::2]]
    return "".join(parts)
