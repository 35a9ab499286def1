"""Wait in a request handler until a condition holds, the deadline passes, or the client disconnects."""

import inspect
import math
import sys
import weakref
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, MutableMapping
from functools import partial
from typing import Annotated, Any, TypeVar, overload

from purgatory import DelayedOperation, OperationCancelled, Purgatory, PurgatoryClosed
from purgatory.aio.purgatory import finish
from purgatory.core.operation.lifecycle import is_new, not_new, result_of
from purgatory.core.operation.operation import set_deadline
from purgatory.core.operation.wait_until import MISSING, keys_of_call, until_wait, value_wait
from purgatory.core.purgatory import no_operation
from purgatory.core.timer.base_timer import has_passed
from purgatory.core.timer.coroutines import is_coroutine_function
from purgatory.core.timer.task import NOT_QUEUED
from purgatory.core.timer.units import deadline_ms, duration_ms, to_seconds

from .asked import InvalidWait, asked, validated_longest
from .clients import TooManyWaits, client_of, places_of
from .connection import ClientDisconnected, Connection, pending_connection
from .etag import entity_tag, is_known_in
from .responses import close_reason
from .rooms import Room, purgatory_of, report_not_open
from .route import kind_of
from .types import CLOSING, CONNECTION, HEADERS, Message, Receive, Scope

__all__ = ["Wait", "waiting"]

T = TypeVar("T")
V = TypeVar("V", int, str)


class Wait:
    """Waits in a purgatory on behalf of one request or WebSocket and withdraws the operation if the client
    disconnects.

    **Usage.**  In FastAPI, use the dependency that :func:`waiting` creates.  In Starlette, use ``Wait(room, request)``;
    in a plain ASGI application, use ``Wait(room, scope, receive)``.

    **Implementation.**  While an operation waits, ``receive()`` is awaited, in a task or, if it is uvicorn's or
    Hypercorn's own ``receive()``, without a task.  If a part of the request's body or a WebSocket message arrives
    during the wait, it is buffered; the handler reads it later from the same request or WebSocket or, in plain ASGI,
    from :meth:`receive`.  When the buffer contains 1 MiB, reading stops, and a disconnect is not detected until the
    handler reads.  Therefore, read a potentially large body before you wait, and give every wait in a public endpoint a
    timeout, because a client can fill the buffer on purpose.  If a ``receive()`` is pending in a task when the wait
    ends, it is kept for the handler and the next wait, because a middleware could lose a message if the ``receive()``
    were cancelled.  The ``receive()`` ends with the task in which the Wait was created, so create the Wait in the task
    of the request.

    **Cancellation safety.**  The same as for :meth:`Purgatory.park`: cancelling the task withdraws the operation
    immediately.

    ``room``: the purgatory, or a :class:`purgatory.relay.Relay`, whose ``park`` is then used.  ``connection``: a
    Starlette or FastAPI ``Request`` or ``WebSocket``, or an ASGI scope with its ``receive``.  ``longest``: the largest
    number of seconds that the client may ask for (see :attr:`timeout`); None, the default, means that the client cannot
    choose.  ``per_client``: how many operations one client address may have in the purgatory (see :func:`waiting`).

    Raises TypeError for any other argument, and ValueError for a lifespan scope.  With ``longest``, raises
    :class:`InvalidWait` if the client's query parameter is not a number of seconds; for a Starlette request, raises
    Starlette's ``HTTPException`` or ``WebSocketException`` instead.
    """

    __slots__ = (
        "_asked",
        "_connection",
        "_expired_by_closing",
        "_given",
        "_park",
        "_per_client",
        "_preferred",
        "_response",
        "_room",
        "_scope",
    )

    def __init__(
        self,
        room: Room,
        connection: Any,
        receive: Receive | None = None,
        *,
        longest: float | None = None,
        per_client: int | None = None,
    ) -> None:
        self._room = purgatory_of(room)
        park: Any = room.park
        # None means that park is Purgatory.park itself; _wait_for() then calls its two halves directly, without another
        # coroutine.
        self._park = None if getattr(park, "__func__", None) is Purgatory.park else park
        self._given = room
        if receive is None:
            self._connection = _connection_of_request(connection)
            self._scope: Scope = connection.scope
        else:
            self._connection = _connection_of_scope(connection, receive)
            self._scope = connection
        self._response: Any = None  # FastAPI adds the headers of this object to its response
        self._expired_by_closing = False
        self._per_client = None if per_client is None else validated_per_client(per_client)
        self._asked: float | None = None
        self._preferred: int | None = None
        if longest is not None:
            most = validated_longest(longest)
            try:
                self._asked, self._preferred = asked(self._scope, most)
            except InvalidWait as error:
                raise (error if receive is not None else _refusal(self._scope, error)) from None

    @property
    def disconnected(self) -> bool:
        """Whether a disconnect has been detected, during a wait or by a read."""
        return self._connection.disconnect is not None

    @property
    def timeout(self) -> float | None:
        """The number of seconds that the client asked for.  The methods use this number as the default of ``timeout``.

        The number comes from the query parameter ``wait`` or, without it, from the header ``Prefer: wait=30`` (RFC
        7240), which the response then confirms with ``Preference-Applied``.  The number is 0 if the client does not ask
        for a wait; it is never more than ``longest``.  It is None if ``longest`` is None.
        """
        if self._preferred is not None:
            self._add_header("preference-applied", f"wait={self._preferred}")
        return self._asked

    @property
    def expired_by_closing(self) -> bool:
        """Whether the last wait ended only because the purgatory or its timer closed: the server is stopping."""
        return self._expired_by_closing

    def raise_if_closing(self) -> None:
        """Raise :class:`PurgatoryClosed` if :attr:`expired_by_closing` is True.  Call this method in a handler that
        must not report "no news" while the server is stopping.

        ``install_errors`` responds with 503 and ``Retry-After``, so clients can distinguish this case from a wait
        without news.
        """
        if self._expired_by_closing:
            closed = "purgatory" if self._room.closed else "the timer of purgatory"
            raise PurgatoryClosed(f"{closed} {self._room.name!r} closed while the request waited")

    # Coroutine functions would add a coroutine to every waiting request, so these methods are not coroutine functions.

    @overload
    def until(
        self,
        predicate: Callable[[], object],
        *,
        key: Hashable,
        timeout: float | None = ...,
        kind: str | None = None,
    ) -> Coroutine[Any, Any, bool]: ...

    @overload
    def until(
        self, predicate: Callable[[], object], *, key: Hashable, deadline: float | None, kind: str | None = None
    ) -> Coroutine[Any, Any, bool]: ...

    @overload
    def until(
        self,
        predicate: Callable[[], object],
        *,
        keys: Iterable[Hashable] | Mapping[Any, float],
        timeout: float | None = ...,
        kind: str | None = None,
    ) -> Coroutine[Any, Any, bool]: ...

    @overload
    def until(
        self,
        predicate: Callable[[], object],
        *,
        keys: Iterable[Hashable] | Mapping[Any, float],
        deadline: float | None,
        kind: str | None = None,
    ) -> Coroutine[Any, Any, bool]: ...

    def until(
        self,
        predicate: Callable[[], object],
        *,
        key: Hashable = MISSING,
        keys: Iterable[Hashable] | Mapping[Any, float] = MISSING,
        timeout: float | None = MISSING,
        deadline: float | None = MISSING,
        kind: str | None = None,
    ) -> Coroutine[Any, Any, bool]:
        """Wait until ``predicate()`` is true.  The predicate is called now and whenever one of the keys is checked.

        Return True as soon as the predicate is true, and False when the time is up or the purgatory closes;
        :attr:`expired_by_closing` distinguishes these two cases.  The parameters are the same as for
        :meth:`Purgatory.wait_until`, except for two defaults.  ``timeout``: the number of seconds that the client asked
        for (see :attr:`timeout`).  ``kind``: the request's method and the pattern of its route, such as ``GET
        /orders/{id}``, if the framework provides the route.

        If the timeout is 0, the predicate is called once, and neither a limit nor a closed purgatory refuses the call.
        Raises :class:`ClientDisconnected` if the client disconnects first, and the errors of
        :meth:`Purgatory.wait_until`.
        """
        timeout = self._default_timeout("until", timeout, deadline)
        kind = kind_of(self._scope) if kind is None else kind
        wait = until_wait(self._room._core.timer, predicate, timeout, deadline, kind)
        return self._wait_for(wait, keys_of_call("until", key, keys), wait.delay_ms == 0)

    @overload
    def value(
        self,
        get: Callable[[], T | None],
        *,
        key: Hashable,
        timeout: float | None = ...,
        kind: str | None = None,
        on_abandoned: Callable[[T], object] | None = None,
    ) -> Coroutine[Any, Any, T | None]: ...

    @overload
    def value(
        self,
        get: Callable[[], T | None],
        *,
        key: Hashable,
        deadline: float | None,
        kind: str | None = None,
        on_abandoned: Callable[[T], object] | None = None,
    ) -> Coroutine[Any, Any, T | None]: ...

    @overload
    def value(
        self,
        get: Callable[[], T | None],
        *,
        keys: Iterable[Hashable] | Mapping[Any, float],
        timeout: float | None = ...,
        kind: str | None = None,
        on_abandoned: Callable[[T], object] | None = None,
    ) -> Coroutine[Any, Any, T | None]: ...

    @overload
    def value(
        self,
        get: Callable[[], T | None],
        *,
        keys: Iterable[Hashable] | Mapping[Any, float],
        deadline: float | None,
        kind: str | None = None,
        on_abandoned: Callable[[T], object] | None = None,
    ) -> Coroutine[Any, Any, T | None]: ...

    def value(
        self,
        get: Callable[[], T | None],
        *,
        key: Hashable = MISSING,
        keys: Iterable[Hashable] | Mapping[Any, float] = MISSING,
        timeout: float | None = MISSING,
        deadline: float | None = MISSING,
        kind: str | None = None,
        on_abandoned: Callable[[T], object] | None = None,
    ) -> Coroutine[Any, Any, T | None]:
        """Wait until ``get()`` returns a value that is not None; return that value, or None if the time is up first.

        The method does the same as :meth:`Purgatory.wait_value`, with the defaults of :meth:`until`.  ``on_abandoned``:
        called with a value that the request did not receive because its task was cancelled or its client disconnected
        in the turn in which ``get`` returned the value, and as described in :meth:`purgatory.relay.Relay.wait_value`.
        """
        timeout = self._default_timeout("value", timeout, deadline)
        kind = kind_of(self._scope) if kind is None else kind
        wait = value_wait(self._room._core.timer, get, timeout, deadline, kind, on_abandoned)
        return self._wait_for(wait, keys_of_call("value", key, keys), wait.delay_ms == 0)

    @overload
    async def changed(
        self,
        version: Callable[[], V | None],
        *,
        key: Hashable,
        timeout: float | None = ...,
        kind: str | None = None,
    ) -> V | None: ...

    @overload
    async def changed(
        self, version: Callable[[], V | None], *, key: Hashable, deadline: float | None, kind: str | None = None
    ) -> V | None: ...

    @overload
    async def changed(
        self,
        version: Callable[[], V | None],
        *,
        keys: Iterable[Hashable] | Mapping[Any, float],
        timeout: float | None = ...,
        kind: str | None = None,
    ) -> V | None: ...

    @overload
    async def changed(
        self,
        version: Callable[[], V | None],
        *,
        keys: Iterable[Hashable] | Mapping[Any, float],
        deadline: float | None,
        kind: str | None = None,
    ) -> V | None: ...

    async def changed(
        self,
        version: Callable[[], V | None],
        *,
        key: Hashable = MISSING,
        keys: Iterable[Hashable] | Mapping[Any, float] = MISSING,
        timeout: float | None = MISSING,
        deadline: float | None = MISSING,
        kind: str | None = None,
    ) -> V | None:
        """Wait until ``version()`` differs from the versions in the header ``If-None-Match``; return the new version.

        ``version``: a function without parameters that returns the current version.

        ::

            if await wait.changed(lambda: config.version, key="config") is None:
                return Response(status_code=304)        # the client has the current version
            return config

        Without the header, the current version counts as new.  ``version`` returns an int or a str, or None while there
        is no version.  If the deadline passes before there is a new version, the result is None.  The response receives
        the header ``ETag`` with the new version or, without a new version, with the client's own version if that is
        still current.  ``install_errors`` adds the header to every response except redirects and errors; if ``longest``
        is passed to ``waiting``, FastAPI adds it to the response for an object that the handler returns.  The other
        parameters and the errors are the same as for :meth:`value`.  Also raises TypeError or ValueError for a version
        that an entity tag cannot contain.
        """
        if not callable(version):
            raise TypeError(f"version must be callable, got {version!r}: pass a function that returns the version")
        is_known = is_known_in(self._scope)
        current: V | None = None  # the version that the last call returned

        def news() -> V | None:
            nonlocal current
            current = version()
            return None if current is None or is_known(entity_tag(current)) else current

        given: Any = {"key": key, "keys": keys, "timeout": timeout, "deadline": deadline, "kind": kind}
        found: V | None = await self.value(version if is_coroutine_function(version) else news, **given)
        if found is None and self._given is self._room:
            current = (
                version()
            )  # with a relay, version() may read relay.state, which has dropped the key after the wait
        # If there is no new version, only the client's own version may be named, because the client lacks the content
        # of any other version.
        tag = None if current is None else entity_tag(current)
        if tag is not None and (found is not None or is_known(tag)):
            self._add_header("etag", tag)
        return found

    @overload
    def park(
        self,
        operation: DelayedOperation[T],
        keys: Iterable[Hashable] | Mapping[Any, float],
        *,
        timeout: float | None = ...,
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def park(
        self, operation: DelayedOperation[T], keys: Iterable[Hashable] | Mapping[Any, float], *, deadline: float | None
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def park(
        self, operation: DelayedOperation[T], *, key: Hashable, timeout: float | None = ...
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def park(
        self, operation: DelayedOperation[T], *, key: Hashable, deadline: float | None
    ) -> Coroutine[Any, Any, T]: ...

    def park(
        self,
        operation: DelayedOperation[T],
        keys: Iterable[Hashable] | Mapping[Any, float] = MISSING,
        *,
        key: Hashable = MISSING,
        timeout: float | None = MISSING,
        deadline: float | None = MISSING,
    ) -> Coroutine[Any, Any, T]:
        """Park the operation and return its result, as :meth:`Purgatory.park` does.

        ``timeout``, ``deadline``: replace the operation's own deadline.  Without them, the operation ends at its own
        deadline, or earlier if the client asked for a shorter wait (see :attr:`timeout`).  If there is no time to wait,
        the operation is tried once and ends without being parked.  If the call is refused, the operation keeps its own
        deadline and can be parked by another call.

        If the client disconnects first, the operation is withdrawn and :class:`ClientDisconnected` is raised.  This
        exception is also raised if the client disconnects in the turn of the loop in which the operation ends.  The
        outcome then stands, and the result is passed to :meth:`DelayedOperation.on_abandoned`.
        """
        keys = keys_of_call("park", key, keys)
        if not isinstance(operation, DelayedOperation):
            raise no_operation(operation)
        if not is_new(operation):
            raise not_new(operation)
        if deadline is not MISSING:
            if timeout is not MISSING:
                raise TypeError(f"park() takes a timeout or a deadline, got both: {timeout!r} and {deadline!r}")
            at_once = False
            if deadline is not None:
                deadline_ms(deadline, "deadline")
                at_once = has_passed(self._room._core.timer, deadline)
        elif timeout is not MISSING:
            at_once = timeout is not None and duration_ms(timeout, "timeout") == 0
        else:
            asked_for, remaining = self.timeout, self._remaining(operation)
            at_once = remaining <= 0
            if asked_for is not None and remaining > asked_for:
                timeout = asked_for
                at_once = duration_ms(asked_for, "timeout") == 0
        return self._wait_for(operation, keys, at_once, timeout, deadline)

    def _remaining(self, operation: DelayedOperation[Any]) -> float:
        """Return the number of seconds until a new operation's own deadline."""
        if operation.timeout is not None:
            return operation.timeout
        if operation._expiration_ms != NOT_QUEUED:  # set by extend_to()
            return to_seconds(operation._expiration_ms) - self._room.timer.time()
        return math.inf

    def _default_timeout(self, method: str, timeout: Any, deadline: Any) -> Any:
        if timeout is not MISSING or deadline is not MISSING:
            return timeout
        if self._asked is None:
            raise TypeError(
                f"{method}() takes a timeout or a deadline, got neither: timeout=None waits forever, and with"
                " waiting(room, longest=55) the client decides"
            )
        return self.timeout

    async def _wait_for(
        self, operation: Any, keys: Any, at_once: bool, timeout: Any = MISSING, deadline: Any = MISSING
    ) -> Any:
        """Park the operation and return its result.  ``at_once``: whether to try the operation once instead of parking
        it.  ``timeout``, ``deadline``: at most one of them, to replace the operation's own deadline.
        """
        connection, room = self._connection, self._room
        self._expired_by_closing = False
        connection.check()
        if room._loop is None and not at_once:
            report_not_open(room)
        client = None
        refused = False
        if self._per_client is not None and not at_once:
            client = client_of(self._scope)
            refused = not places_of(room).take(client, self._per_client)
        result: Any
        watched = False
        waiter = None
        own_times = None
        try:
            try:
                if timeout is not MISSING or deadline is not MISSING:
                    if not is_new(operation):  # it has been parked since park() was called
                        raise not_new(operation)
                    own_times = operation._delay_ms, operation._expiration_ms
                    if deadline is MISSING:
                        operation.extend(timeout)
                    else:
                        operation.extend_to(deadline)
                if at_once or refused:
                    attempt = getattr(self._given, "_try_without_parking", None) or room._core.try_without_parking
                    return attempt(operation, keys, partial(self._refuse, client) if refused else None)
                if self._park is not None:
                    watched = connection.watch(operation)
                    connection.check()  # a reader without a task may have read the disconnect
                    result = await self._park(operation, keys)
                elif (waiter := room._core.submit_and_wait(operation, keys)) is None:
                    result = result_of(operation)
                else:
                    try:
                        watched = connection.watch(operation)
                        result = await waiter
                    except BaseException as error:
                        again = finish(room, operation, waiter, error)
                        if again is None:
                            raise
                        result = await again
            finally:
                if watched:
                    connection.unwatch(operation)
                if client is not None and not refused:
                    places_of(room).give_back(client)
                if room.closed or room.timer.closed:
                    self._scope[CLOSING] = True
                    self._expired_by_closing = getattr(operation, "expired_by_closing", False)
        except BaseException as error:
            if own_times is not None and is_new(operation) and operation._list is None:
                set_deadline(operation, *own_times)  # refused; on a timer as a task, its deadline must not be changed
            del operation, waiter  # as in Purgatory.park()
            # An overridden park() raises ValueError for an operation that a disconnect has already withdrawn.
            if isinstance(error, OperationCancelled) or (self._park is not None and isinstance(error, ValueError)):
                connection.check()
            raise
        if connection.disconnect is not None:
            room._core.give_back(operation, operation._value)
            raise ClientDisconnected("the client disconnected when its request was answered")
        return result

    def _refuse(self, client: str | None) -> None:
        """Raise TooManyWaits and count the refusal."""
        limit = self._per_client or 0
        counters = self._room._core.counters
        counters.refused += 1
        counters.refused_by_client += 1
        message = f"client {client} has {limit} waits in purgatory {self._room.name!r}, which is the limit"
        raise TooManyWaits(message, limit=limit, key=client)

    def _add_header(self, name: str, value: str) -> None:
        """Add a header to the response, if the response is accessible."""
        headers = self._scope.get(HEADERS)
        if headers is not None:
            headers[name.encode()] = value.encode()
        if self._response is not None:
            self._response.headers[name] = value

    async def receive(self) -> Message:
        """Read the connection's next message.  From now on, a plain ASGI application must use this ``receive``."""
        return await self._connection.receive()

    def __repr__(self) -> str:
        return f"<Wait in {self._room.name!r}{' disconnected' if self.disconnected else ''}>"


class _Waiting:
    """The result of :func:`waiting`: a callable with a signature that FastAPI understands, created without importing
    Starlette.

    FastAPI passes three arguments: the request or WebSocket, for the parameter annotated with Starlette's
    ``HTTPConnection``; a response whose headers FastAPI merges into its own, for the parameter annotated with
    ``Response``; and the result of a dependency, for ``room``.  FastAPI validates ``wait`` and documents ``wait`` and
    ``Prefer`` in the schema; the values are read from the scope, in the same way as without FastAPI.  If Starlette is
    not loaded, no code needs the annotations.
    """

    def __init__(self, room: "Room | Callable[..., Any]", longest: float | None, per_client: int | None) -> None:
        # Neither a purgatory nor a relay is callable.
        self._get_room = room if callable(room) else None
        self._room = None if callable(room) else room
        if self._get_room is None:
            purgatory_of(room)
        self._per_client = None if per_client is None else validated_per_client(per_client)
        self._longest = None if longest is None else validated_longest(longest)

    @property
    def __signature__(self) -> inspect.Signature:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        requests = sys.modules.get("starlette.requests")
        annotation: Any = Any if requests is None else requests.HTTPConnection
        parameters = [inspect.Parameter("connection", kind, annotation=annotation)]
        fastapi = sys.modules.get("fastapi")
        if self._get_room is not None and fastapi is not None:
            parameters.append(
                inspect.Parameter("room", kind, annotation=Annotated[Any, fastapi.Depends(self._get_room)])
            )
        if self._longest is not None and fastapi is not None:
            of_wait = fastapi.Query(
                ge=0,
                description=f"Seconds to wait for a change, at most {self._longest:g}; a longer wait is shortened.",
            )
            of_prefer = fastapi.Header(
                alias="Prefer",
                description="`wait=30` waits for 30 seconds.  The parameter `wait` takes precedence (RFC 7240).",
            )
            parameters += [
                inspect.Parameter("response", kind, annotation=fastapi.Response),
                inspect.Parameter("wait", kind, default=0.0, annotation=Annotated[float, of_wait]),
                inspect.Parameter("prefer", kind, default=None, annotation=Annotated[str | None, of_prefer]),
            ]
        return inspect.Signature(parameters, return_annotation=Wait)

    # This method is a coroutine function, because FastAPI runs any other dependency in a thread.
    async def __call__(
        self,
        connection: Any,
        receive: Receive | None = None,
        *,
        room: Any = None,
        response: Any = None,
        wait: Any = 0,
        prefer: Any = None,
    ) -> Wait:
        if room is None:
            room = self._room
            if self._get_room is not None:
                room = self._get_room(connection)
                if inspect.isawaitable(room):
                    room = await room
        made = Wait(room, connection, receive, longest=self._longest, per_client=self._per_client)
        made._response = response
        return made

    def __repr__(self) -> str:
        longest = "" if self._longest is None else f", longest={self._longest:g}"
        return f"waiting({self._get_room or self._room!r}{longest})"


def waiting(
    room: "Room | Callable[..., Any]", *, longest: float | None = None, per_client: int | None = None
) -> _Waiting:
    """Create a dependency that passes a :class:`Wait` for the purgatory to a handler.

    ::

        @app.get("/orders")
        async def orders(wait: Annotated[Wait, Depends(waiting(room))], after: int = 0):
            if not await wait.until(lambda: log.end > after, key="orders", timeout=30):
                return Response(status_code=204)
            return log.read(after)

    ``room``: the purgatory or the relay, or a function that returns it, for routers that are written before the
    application is created.  In FastAPI, the function is a dependency like any other (for example, one that returns
    ``request.app.state.room``), and ``app.dependency_overrides`` replaces it in tests.  Define it with ``async def``,
    because FastAPI runs any other function in a thread.  Elsewhere, it is called with the request or the scope.

    ``longest``: lets the client choose how many seconds to wait, up to this number, with ``?wait=30`` or ``Prefer:
    wait=30``.  :attr:`Wait.timeout` contains the chosen number and is then the default for ``timeout``.  Proxies often
    end a request without a response after 60 seconds, so 55 is a good value.  In FastAPI, both forms appear in the
    OpenAPI schema, and a ``wait`` that is not a nonnegative number gets 422.

    ``per_client``: how many operations from one client address may wait in the purgatory at the same time, or None for
    no limit.  If a further request would have to wait, :class:`TooManyWaits` is raised, and the response is 429.
    The limit prevents one client from taking all of the places that ``max_parked`` allows, even if the client has
    disconnected without the server noticing.  The address is taken from ``scope["client"]``; for an IPv6 address, the
    limit applies to its /64 network.  Behind a proxy, make the server read the address from the proxy's headers;
    otherwise, all clients count as one.  On a Unix socket, connections have no address, and a warning is logged.

    The dependency works in path operations and in WebSocket endpoints.  Elsewhere, call it yourself: ``await
    waiting(room)(request)`` or ``await waiting(room)(scope, receive)``; both return ``Wait(room, ...)``.  Raises
    TypeError if ``room`` is not a purgatory, a relay, or a function, or if ``longest`` is neither a number nor None,
    and ValueError unless ``longest`` is finite and at least 0.
    """
    return _Waiting(room, longest, per_client)


def validated_per_client(per_client: int) -> int:
    """Return the limit.  Raises TypeError unless it is an int, and ValueError if it is below 1."""
    if type(per_client) is not int:
        raise TypeError(f"per_client must be a positive int or None, got {per_client!r}")
    if per_client < 1:
        raise ValueError(f"per_client must be a positive int or None, got {per_client!r}")
    return per_client


def _refusal(scope: Scope, error: InvalidWait) -> Exception:
    """Return the exception to which Starlette, and therefore FastAPI, responds by itself."""
    exceptions = sys.modules.get("starlette.exceptions")
    if exceptions is None:
        return error
    refusal: Exception
    if scope["type"] == "websocket":
        refusal = exceptions.WebSocketException(1008, close_reason(str(error)))
    else:
        refusal = exceptions.HTTPException(422, str(error))
    return refusal


def _connection_of_request(request: Any) -> Connection:
    """Return the connection of a Starlette request or WebSocket, and make the request read through that connection.

    Starlette reads the attribute ``_receive`` in every request and WebSocket; its own middlewares replace it in the
    same way.
    """
    receive = getattr(request, "_receive", None)
    if not callable(receive):
        raise TypeError(
            f"connection must be a Starlette Request or WebSocket, or a scope with its receive, got {request!r}"
        )
    if isinstance(receive, Connection):
        return receive
    body_read = bool(getattr(request, "_stream_consumed", False))
    connection = pending_connection(request.scope, receive)
    if connection is None:
        connection = Connection(request.scope, receive, body_read=body_read)
        if not connection.reads_without_task:
            # A streamed response whose generator waits must not call receive() beside the reader: granian answers the
            # second of two pending calls with a disconnect.
            request.scope[CONNECTION] = weakref.ref(connection)
    request._receive = connection
    return connection


def _connection_of_scope(scope: Any, receive: Receive) -> Connection:
    if not isinstance(scope, MutableMapping):
        raise TypeError(f"connection must be an ASGI scope when receive is given, got {scope!r}")
    if scope.get("type") not in ("http", "websocket"):
        raise ValueError(f"scope must be of type 'http' or 'websocket', got {scope.get('type')!r}")
    if not callable(receive):
        raise TypeError(f"receive must be callable, got {receive!r}")
    if isinstance(receive, Connection):
        return receive
    owner = getattr(receive, "__self__", None)
    if isinstance(owner, Wait):
        return owner._connection
    if isinstance(owner, Connection):
        return owner
    connection = pending_connection(scope, receive)
    if connection is None:
        connection = Connection(scope, receive)
        scope[CONNECTION] = weakref.ref(connection)  # for another Wait with the same scope, while this one waits
    return connection
