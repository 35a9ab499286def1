"""The ASGI application of an inspector: its routes, what it refuses, and its budget.

==================  =================================================================================================
``GET /``           the page, with ``page.css`` and ``page.js``
``GET /events``     frames as server-sent events; 503 if there are too many viewers
``GET /state.json`` one frame.  ``?key=TEXT`` searches keys; ``?id=ID`` lists the operations on a key that a frame
                    shows, and ``?kind=KIND`` those of one kind, at most ``?rows=N``; ``?room=NAME`` selects the
                    purgatory, by default the first one
``POST /withdraw``  withdraw the operations on one key, if ``authorize`` allows it
``POST /fail``      fail the operations on one key, if ``authorize`` allows it
==================  =================================================================================================

Budget
======

Frames are taken for all viewers together, at most one per second, and only while there are viewers.  All work that
reads the purgatories runs in :class:`Slices`, one request at a time, so that all requests together take at most a
twentieth of the loop's time.  If too many requests are waiting for their turn, further requests get 503.

The search for the servers, whose stop ends the streams, is part of this work.  It lists the tasks of the loop in one
turn, so there is only one search for each address at which viewers arrive, unless one of the servers has ended since.
"""

import asyncio
import contextlib
import inspect
import ipaddress
import json
import logging
import math
import re
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextvars import Context
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qsl

from purgatory.asgi.origin import host_names, refusal
from purgatory.asgi.responses import respond, send_if_connected
from purgatory.asgi.servers import ServerSearch, begun_to_stop, serving_frame_of
from purgatory.asgi.signals import StopListener
from purgatory.asgi.types import Receive, Scope, Send
from purgatory.texts import safe_repr, shortened

from .collector import MOST_ROWS, ROWS, Collector, NoAnswerError, UnknownKeyError
from .slices import Slices

__all__ = ["InspectorAction", "InspectorApp"]

_LOGGER = logging.getLogger("purgatory.asgi.inspector")
_FOLDER: Final = files(__package__) / "page"  # a package may be in a zip file
_FILES: Final = {
    "/": ("page.html", b"text/html; charset=utf-8"),
    "/page.css": ("page.css", b"text/css; charset=utf-8"),
    "/page.js": ("page.js", b"text/javascript; charset=utf-8"),
}
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", _POLICY),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
_INTERVAL: Final = 1.0  # seconds between frames
_PATIENCE: Final = 2.0  # seconds for which one request may search
_MOST_WAITING: Final = 16  # requests that may wait for their turn
_LONGEST_BODY: Final = 16_384
_LONGEST_QUERY: Final = 8_192
_RETRY: Final = 1.0  # seconds after which a browser reconnects
_BLOCKED: Final = 0.5  # seconds by which a timer is late if the loop was blocked
_LINGER: Final = 10.0  # after this many seconds without a viewer or a request, the collector rests
_HOST: Final = re.compile(r"(?:(?P<name>[\w.-]+)|\[(?P<address>[^\]]+)\])(?::\d+)?", re.ASCII)
_MOST_ADDRESSES: Final = 100  # that are remembered
_SEARCHED: Final = 16  # coroutines that are visited before the search for the servers examines its budget
_CLOSED_EVERY: Final = 0.1  # seconds until the streams notice that the purgatories are closed or the server is stopping


class InspectorAction:
    """A change that a viewer requests; :func:`inspector` passes it to ``authorize``.

    ``verb``: "withdraw" or "fail".  ``room``: the name of the purgatory.  ``key``: the key itself.  ``scope``: the ASGI
    scope of the request.  ``headers``: the headers of the request, with names in lower case.  If a header occurs
    several times, its values are joined with ", ", as HTTP joins them, so no value hides another.
    """

    __slots__ = ("headers", "key", "room", "scope", "verb")

    def __init__(self, verb: str, room: str, key: Any, scope: Scope) -> None:
        self.verb: str = verb
        self.room: str = room
        self.key: Any = key
        self.scope: Scope = scope
        self.headers: Mapping[str, str] = _joined(scope.get("headers", ()))

    def __repr__(self) -> str:
        return f"<InspectorAction {self.verb} {shortened(safe_repr(self.key))} of {self.room!r}>"


class _Error(Exception):
    """A response with a status and a detail."""

    def __init__(self, status: int, detail: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


class _HangUpError(Exception):
    """The client disconnected before its request was complete."""


class _Desk:
    """The state for one event loop: the viewers, the latest frame, and the lock for reading the purgatories."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.waiting = 0
        self.viewers = 0
        self.frame = b""
        self.taken_at = -math.inf
        self.number = 0
        self.news: asyncio.Event = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.stopping = False  # a server in this loop has been told to stop while there were viewers
        self.resting: asyncio.TimerHandle | None = None
        self.slices = Slices()  # of the search for the servers, since the latest frame
        self.servers: list[weakref.ref[Any]] = []  # the coroutines of those that were found
        self.addresses: set[str] = set()  # those at which viewers arrived
        self.unsearched = False  # a server may have started since the last search
        self.search: ServerSearch | None = None

    def arrive(self, scope: Scope) -> None:
        """Have the servers searched for if the viewer's server may have started since the last search."""
        address = repr(scope.get("server"))
        serving = [found for found in self.servers if serving_frame_of(found) is not None]
        if address not in self.addresses or len(serving) < len(self.servers):
            if len(self.addresses) >= _MOST_ADDRESSES:
                self.addresses.clear()
            self.addresses.add(address)
            self.servers = serving
            self.unsearched = True


class InspectorApp:
    """See :func:`purgatory.asgi.inspector`.

    The application is a class, not a function, because Starlette would call a function endpoint with a request.
    """

    def __init__(
        self,
        collector: Collector,
        title: str,
        authorize: Callable[[InspectorAction], Any] | None,
        allowed_hosts: Iterable[str] | None,
        local: bool,
        max_viewers: int,
    ) -> None:
        self._collector = collector
        self._title = title
        self._authorize = authorize
        self._allowed_hosts = host_names(allowed_hosts)
        self._local = local  # allows only names that no foreign site can have
        self._max_viewers = max_viewers
        self._files = {path: ((_FOLDER / name).read_bytes(), kind) for path, (name, kind) in _FILES.items()}
        self._desks: dict[int, tuple[asyncio.AbstractEventLoop, _Desk]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] not in ("http", "websocket"):
            raise RuntimeError(f"inspector() answers HTTP requests, got a scope of type {scope['type']!r}")
        try:
            await self._answer(scope, receive, send)
        except _Error as error:
            await respond(scope, send, error.status, error.detail, (*_HEADERS, *error.headers))
        except NoAnswerError as error:
            await respond(scope, send, 504, str(error), _HEADERS)
        except _HangUpError:
            return  # no client reads the answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._validate_source(scope)
        path = _path(scope)
        if scope["type"] == "websocket" or (path not in _ROUTES and path != ""):
            raise _Error(404, "there is no such page")
        allowed = _ROUTES.get(path, _GET)
        if scope["method"] not in allowed:
            raise _Error(405, "the method is not allowed", (b"allow", ", ".join(allowed).encode()))
        if path == "":
            # Relative links need the slash.  A leading "//" would name another host.
            place = "/" + (scope.get("root_path", "") + "/").lstrip("/")
            raise _Error(307, "the page ends with a slash", (b"location", place.encode("utf-8", "replace")))
        if path in self._files:
            await self._send(scope, send, *self._files[path])
        elif path == "/events":
            await self._events(scope, receive, send)
        elif path == "/state.json":
            await self._send(scope, send, await self._state(scope), b"application/json")
        else:
            body = await self._act(path[1:], scope, receive)
            await self._send(scope, send, body, b"application/json")

    async def _send(self, scope: Scope, send: Send, body: bytes | None, kind: bytes) -> None:
        length = [] if body is None else [(b"content-length", b"%d" % len(body))]
        headers = [(b"content-type", kind), *length, *_HEADERS]
        await send_if_connected(send, {"type": "http.response.start", "status": 200, "headers": headers})
        sent = b"" if body is None or scope["method"] == "HEAD" else body
        await send_if_connected(send, {"type": "http.response.body", "body": sent})

    def _validate_source(self, scope: Scope) -> None:
        """Raise an error unless the request is for an allowed host and does not come from a page on another site."""
        if (refused := refusal(scope, self._allowed_hosts)) is not None:
            raise _Error(*refused)
        hosts = _headers(scope, b"host")
        if self._local and not (len(hosts) == 1 and _is_local(hosts[0])):
            raise _Error(400, "the host of the request is not served here: pass allowed_hosts to inspector()")
        for site in _headers(scope, b"sec-fetch-site"):
            # Other sites may link to the page but must not load the page or its data.
            links = _headers(scope, b"sec-fetch-mode") == ["navigate"] and _path(scope) in ("", "/")
            if site not in ("same-origin", "none") and not links:
                raise _Error(403, "the request was sent by a page from another origin")

    # Reading

    def _desk(self) -> _Desk:
        """Return the desk of the running loop.  Drop the desks of closed loops."""
        loop = asyncio.get_running_loop()
        found = self._desks.get(id(loop))
        if found is None or found[0] is not loop:
            self._desks = {
                identity: (other, desk) for identity, (other, desk) in self._desks.items() if not other.is_closed()
            }
            found = self._desks[id(loop)] = (loop, _Desk())
        return found[1]

    @contextlib.asynccontextmanager
    async def _turn(self, desk: _Desk) -> AsyncIterator[float]:
        """Wait until this request may read the purgatories; yield the deadline for its search.  Raise a 503 if too many
        requests are waiting.
        """
        if desk.waiting >= _MOST_WAITING:
            raise _Error(503, "too many requests are waiting for the inspector", (b"retry-after", b"1"))
        desk.waiting += 1
        try:
            async with desk.turn:
                yield time.monotonic() + _PATIENCE
        finally:
            desk.waiting -= 1

    async def _take(self, desk: _Desk, until: float) -> None:
        """Take a frame and make it the latest one."""
        self._looking(desk)
        frame = await self._collector.frame(until)
        frame["title"] = self._title
        frame["viewers"] = desk.viewers
        frame["authorize"] = self._authorize is not None
        cost, slices = frame["cost"], desk.slices
        cost["busy"] += slices.busy
        cost["longest"] = max(cost["longest"], slices.longest)
        desk.slices = Slices()
        desk.frame = json.dumps(frame, separators=(",", ":")).encode()
        desk.taken_at = time.monotonic()
        desk.number += 1
        desk.news.set()
        desk.news = asyncio.Event()

    async def _state(self, scope: Scope) -> bytes | None:
        """Return the JSON, or None for a HEAD request: its sender is between two frames and still looking."""
        query = _query(scope)
        desk = self._desk()
        if scope["method"] == "HEAD":
            self._looking(desk)
            return None
        if not query:
            if time.monotonic() - desk.taken_at >= _INTERVAL:
                async with self._turn(desk) as until:
                    if time.monotonic() - desk.taken_at >= _INTERVAL:  # no other request has taken a frame since then
                        await self._take(desk, until)
            return desk.frame
        rows = _number(query.get("rows"))
        room = self._collector.room_number(query.get("room"))
        if room is None:
            raise _Error(404, "there is no such purgatory")
        answer: dict[str, Any] = {"version": 1, "time": time.time(), "worker": self._collector.worker(), "rows": rows}
        async with self._turn(desk) as until:
            if "id" in query:
                answer.update(await self._collector.operations_on(room, query["id"], rows))
            elif "key" in query:
                answer.update(await self._collector.search(room, query["key"], until, rows))
            else:
                answer.update(await self._collector.operations(room, until, rows, query.get("kind")))
        return json.dumps(answer, separators=(",", ":")).encode()

    def _looking(self, desk: _Desk) -> None:
        """Record a viewer or a request, and rest when there has been neither for several seconds."""
        if desk.resting is not None:
            desk.resting.cancel()
        loop = asyncio.get_running_loop()
        due = loop.time() + _LINGER
        desk.resting = loop.call_at(due, self._unseen, desk, due, context=Context())

    def _unseen(self, desk: _Desk, due: float) -> None:
        """Rest, or continue if the loop was blocked: it has not yet read the requests that arrived in the meantime."""
        if asyncio.get_running_loop().time() - due < _BLOCKED:
            self._rest(desk)
        else:
            self._looking(desk)

    def _rest(self, desk: _Desk) -> None:
        """Let the collector rest, unless the desk of another running loop will let it rest later."""
        if desk.resting is not None:
            desk.resting.cancel()
            desk.resting = None
        if desk.search is not None:  # it refers to tasks
            desk.search = None
            desk.unsearched = True
        desks = list(self._desks.values())  # another thread may add one
        if not any(loop.is_running() for loop, other in desks if other.resting is not None):
            self._collector.rest()

    # Watching

    async def _events(self, scope: Scope, receive: Receive, send: Send) -> None:
        from purgatory.asgi.server_sent_events import EventSourceResponse  # imports Starlette if it is installed

        desk = self._desk()
        if desk.viewers >= self._max_viewers:
            raise _Error(503, "too many viewers", (b"retry-after", b"5"))
        headers = {name.decode(): value.decode() for name, value in _HEADERS}
        desk.arrive(scope)
        desk.viewers += 1  # counted first, because a viewer that does not read can delay the response's end forever
        try:
            await EventSourceResponse(self._frames(desk), headers=headers, retry=_RETRY)(scope, receive, send)
        finally:
            desk.viewers -= 1
            if not desk.viewers and desk.task is not None:
                desk.task.cancel()
                desk.task = None

    async def _frames(self, desk: _Desk) -> AsyncGenerator[bytes, None]:
        """Yield the frames until the purgatories close or the server stops; skip frames if the viewer is slow."""
        if desk.task is None or desk.task.done():
            # The task gets an empty context, because it outlives this viewer's request.
            task = Context().run(asyncio.get_running_loop().create_task, self._watch(desk))
            desk.task = task
        shown = 0 if time.monotonic() - desk.taken_at < _INTERVAL else desk.number
        while not (desk.number == shown and desk.task.done()):
            if desk.number == shown:
                await desk.news.wait()
            else:
                shown = desk.number
                yield desk.frame

    async def _watch(self, desk: _Desk) -> None:
        """Take frames while there are viewers, and take a last one when the purgatories have closed or the server
        stops.

        The server waits for the open streams before it ends the lifespan, so a purgatory that the lifespan closes
        without :func:`purgatory_lifespan` would stay open for as long as there are viewers.
        """
        desk.stopping = False

        def stop() -> None:
            desk.stopping = True

        listener = StopListener(stop, of_lifespan=False)
        try:
            listener.start()
            for found in desk.servers:
                self._watch_server(desk, listener, found)
            closed = False
            # A viewer that has just left may come back at once.
            await self._pause(desk, desk.taken_at + _INTERVAL)
            while not closed:
                began = time.monotonic()
                closed = self._ended(desk)
                async with desk.turn:
                    await self._take(desk, began + _INTERVAL)
                    if not closed:
                        await self._find_servers(desk, listener, began + _INTERVAL)
                if not closed:
                    await self._pause(desk, began + _INTERVAL)
        except Exception:
            _LOGGER.exception("the inspector could not take a frame")
        finally:
            listener.stop()
            if desk.search is not None:  # the next viewer continues it, and then begins another one
                desk.unsearched = True
            desk.news.set()
            desk.news = asyncio.Event()

    async def _find_servers(self, desk: _Desk, listener: StopListener, until: float) -> None:
        """Begin or continue the search for the servers, until it is complete or the given time has come."""
        slices = desk.slices
        if desk.search is None:
            if not desk.unsearched:
                return
            desk.unsearched = False
            slices.resume()
            began = time.perf_counter()
            desk.search = ServerSearch()
            self._collector.leave_out(time.perf_counter() - began)
            await slices.pause()
        search = desk.search
        slices.resume()
        while search.step(_SEARCHED):
            await slices.pause_if_due()
            if time.monotonic() >= until or self._ended(desk):
                break
        else:
            desk.search = None
        slices.end()
        while search.found:
            found = search.found.pop()
            desk.servers.append(found)
            self._watch_server(desk, listener, found)

    def _watch_server(self, desk: _Desk, listener: StopListener, found: "weakref.ref[Any]") -> None:
        frame = serving_frame_of(found)
        if frame is not None:
            listener.watch(frame)
            desk.stopping = desk.stopping or begun_to_stop(found)

    def _ended(self, desk: _Desk) -> bool:
        return desk.stopping or self._collector.closed

    async def _pause(self, desk: _Desk, until: float) -> None:
        """Sleep until the given time on the ``time.monotonic()`` clock, or until the streams must end."""
        while (left := until - time.monotonic()) > 0 and not self._ended(desk):  # noqa: ASYNC110 - the purgatories may belong to another thread
            await asyncio.sleep(min(left, _CLOSED_EVERY))

    # Acting

    async def _act(self, verb: str, scope: Scope, receive: Receive) -> bytes:
        if self._authorize is None:
            raise _Error(403, "the inspector was created without authorize, so it changes nothing")
        content_types = _headers(scope, b"content-type")
        # A form on another site can send other content types without a preflight request.
        if len(content_types) != 1 or content_types[0].partition(";")[0].strip().lower() != "application/json":
            raise _Error(415, "the body must be application/json")
        order = _order(await _body(receive))
        room = self._collector.room_number(order.get("room"))
        if room is None:
            raise _Error(404, "there is no such purgatory")
        try:
            key = self._collector.find_key(room, order.get("id"), order.get("key"))
            self._collector.validate_key(key)
        except UnknownKeyError as error:
            raise _Error(404, str(error)) from None
        name = self._collector.name_of(room)
        action = InspectorAction(verb, name, key, scope)
        allowed = self._authorize(action)
        if inspect.isawaitable(allowed):
            allowed = await allowed
        if allowed is not True:
            _LOGGER.warning("refused: %r", action)
            raise _Error(403, "authorize does not allow it")
        reason = order.get("reason") or f"{verb} by an operator"
        act = self._collector.withdraw if verb == "withdraw" else self._collector.fail
        try:
            ended = await act(room, key, reason)
        except NoAnswerError as error:
            _LOGGER.warning("%s: %r, reason %r: %s", verb, action, reason[:300], error)
            raise
        _LOGGER.warning("%s: %r ended %d operations, reason %r", verb, action, ended, reason[:300])
        return json.dumps({"ended": ended}).encode()


_GET: Final = ("GET", "HEAD")
_ROUTES: Final[dict[str, tuple[str, ...]]] = {
    "/": _GET,
    "/page.css": _GET,
    "/page.js": _GET,
    "/events": _GET,
    "/state.json": _GET,
    "/withdraw": ("POST",),
    "/fail": ("POST",),
}


def _path(scope: Scope) -> str:
    """Return the path relative to the path at which the inspector is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    # Servers and frameworks disagree on whether the path contains the root path.
    if root and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    return path.rstrip("/") or path  # Litestar adds a slash to the path within a mounted application


def _headers(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for header, value in scope.get("headers", ()) if header == name]


def _joined(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers with names in lower case, and the values of a name joined as HTTP joins them."""
    found: dict[str, str] = {}
    for raw, value in headers:
        name = raw.decode("latin-1").lower()
        before = f"{found[name]}{'; ' if name == 'cookie' else ', '}" if name in found else ""
        found[name] = before + value.decode("latin-1")
    return found


def _is_local(host: str) -> bool:
    """Return whether the host is an address or a name that no foreign site can have, such as a name without a dot.

    A DNS rebinding attack needs a name that the attacker has registered.  If a page is opened by address, its origin is
    that address.
    """
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = (match["name"] or "").lower().removesuffix(".")
    if name and "." not in name:
        return True
    try:
        ipaddress.ip_address(name or match["address"])
    except ValueError:
        return name.endswith(".localhost")
    return True


def _query(scope: Scope) -> dict[str, str]:
    """Return the parameters.  Raise a 400 if one is unknown or given twice, because a filter must not be ignored."""
    raw: bytes = scope.get("query_string", b"")
    if len(raw) > _LONGEST_QUERY:
        raise _Error(414, "the query is too long")
    found: dict[str, str] = {}
    for name, value in parse_qsl(raw.decode("latin-1"), keep_blank_values=True):
        if name not in ("room", "key", "id", "kind", "rows"):
            raise _Error(400, "a parameter must be room, key, id, kind, or rows")
        if name in found:
            raise _Error(400, f"{name} must be given once")
        found[name] = value
    return found


def _number(text: str | None) -> int:
    """Return the number of rows, at most MOST_ROWS."""
    if text is None:
        return ROWS
    if not (text.isascii() and text.isdecimal()):
        raise _Error(400, "rows must be an integer, at least 0")
    return MOST_ROWS if len(text) > 9 else min(int(text), MOST_ROWS)


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _HangUpError
        part: bytes = message.get("body", b"")
        body += part
        if len(body) > _LONGEST_BODY:
            raise _Error(413, "the body is too long")
        if not message.get("more_body", False):
            return body


def _order(body: bytes) -> dict[str, Any]:
    """Return the body of an action: ``room``, ``reason``, and ``id`` or ``key``."""
    try:
        order = json.loads(body)
    except (ValueError, RecursionError):
        order = None
    if not isinstance(order, dict):
        raise _Error(400, "the body must be a JSON object")
    if ("id" in order) == ("key" in order):
        raise _Error(400, "the body must have either id or key")
    for name in order:
        if name not in ("room", "reason", "id", "key"):
            raise _Error(400, "a field must be room, reason, id, or key")
        kinds: tuple[type, ...] = (str, int) if name == "key" else (str,)
        if type(order[name]) not in kinds:
            raise _Error(400, f"{name} must be a {' or an '.join([kind.__name__ for kind in kinds])}")
    return order
