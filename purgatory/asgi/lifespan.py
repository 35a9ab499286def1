"""Opening purgatories with an application, and closing them when the server is told to stop."""

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from contextvars import Context
from typing import Any, TypeAlias

from purgatory import Purgatory, PurgatoryClosed
from purgatory.core.timer.units import duration_ms

from .rooms import Room, purgatory_of, report_not_open
from .servers import graceful_timeout
from .signals import StopListener
from .types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["PurgatoryLifespan", "purgatory_lifespan"]

_LOGGER = logging.getLogger("purgatory.asgi")

Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]


def purgatory_lifespan(
    room: Room, *others: Room, grace: float = 0.0, lifespan: Lifespan | None = None
) -> "PurgatoryLifespan":
    """Create a lifespan that opens the purgatories and closes them when the server is told to stop.

    ``room``, ``others``: the purgatories, or relays in place of their purgatories.

    ::

        app = FastAPI(lifespan=purgatory_lifespan(room))
        app = FastAPI(lifespan=purgatory_lifespan(room, grace=2.0, lifespan=own))    # with the application's own
        app = purgatory_lifespan(room).wrap(app)                                     # any other ASGI application

    When a server receives SIGTERM or SIGINT, it waits for its open requests before it notifies the application.
    Therefore, at startup, each signal handler is replaced by one that closes the purgatories and then calls the
    original handler: every parked request is answered while the server is still serving.  From then on, a request that
    waits with a timeout above 0 gets :class:`PurgatoryClosed`, even if its condition holds.  The original handlers are
    restored at shutdown.  If a worker stops without a signal because it has served as many requests as
    ``--limit-max-requests`` or ``--max-requests`` allows, the purgatories close when the worker begins to stop.

    Pass a :class:`purgatory.relay.Relay` in place of its purgatory: both are opened, the purgatory closes at the
    signal, and the relay closes at the end of the lifespan, after the application's own lifespan, so that requests in
    progress can still check keys in the other workers.

    ``grace``: the number of seconds for which parked operations may still end as usual, as in :meth:`Purgatory.aclose`;
    after that, the remaining operations expire.  ``grace`` adds to the time that the server takes to exit.  Keep it
    below the server's own graceful timeout, after which the server drops the requests without a response; if the
    lifespan can read that timeout, it shortens a longer ``grace`` and logs a warning.  A second signal does not shorten
    ``grace``, but some servers then exit at once and cancel their requests, and granian may hang.  ``lifespan``: the
    application's own lifespan, entered when the purgatories are open and left when every operation has been answered.

    Signal handlers are chained only in the main thread.  In other threads, and if no handler is installed before the
    application starts, the purgatories close when uvicorn begins to stop or, on other servers, when the lifespan ends.
    A purgatory can be opened only once: create a new application, with new purgatories, for every test that runs its
    lifespan.  Raises TypeError and ValueError for invalid arguments.
    """
    return PurgatoryLifespan((room, *others), grace, lifespan)


class PurgatoryLifespan:
    """The result of :func:`purgatory_lifespan`: a lifespan for Starlette and FastAPI.  For other applications, use
    :meth:`wrap`.
    """

    def __init__(self, rooms: tuple[Room, ...], grace: float, lifespan: Lifespan | None) -> None:
        # Duplicates are removed by identity, because both a relay and its purgatory may be given.
        self._purgatories = {id(purgatory): purgatory for purgatory in map(purgatory_of, rooms)}.values()
        self._relays = {id(room): room for room in rooms if id(room) not in map(id, self._purgatories)}.values()
        duration_ms(grace, "grace")
        if lifespan is not None and not callable(lifespan):
            raise TypeError(f"lifespan must be callable with the application, got {lifespan!r}")
        self._grace = grace
        self._lifespan = lifespan

    def __call__(self, app: Any) -> AbstractAsyncContextManager[Any]:
        """Open the purgatories, yield what the application's own lifespan yields, and close them."""
        return self._lifespan_context(app)

    @asynccontextmanager
    async def _lifespan_context(
        self, app: Any, inner: AbstractAsyncContextManager[None] | None = None
    ) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            for purgatory in self._purgatories:
                if purgatory.closed:
                    raise PurgatoryClosed(
                        f"purgatory {purgatory.name!r} is closed, and a purgatory can be opened only once: make the"
                        " application and its purgatory in a function, and call this function for each lifespan, as in"
                        " each test"
                    )
                await stack.enter_async_context(purgatory)
            closing = _Closing(tuple(self._purgatories), _grace_within_server(self._grace))
            watch = StopListener(closing.begin)
            stack.callback(watch.stop)
            watch.start()
            for relay in self._relays:
                await stack.enter_async_context(relay)
            state = None
            if self._lifespan is not None:
                state = await stack.enter_async_context(self._lifespan(app))
            if inner is not None:
                await stack.enter_async_context(inner)
            try:
                yield state
            finally:
                await closing.end()

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """Wrap an ASGI application, whether or not it handles the lifespan protocol itself.

        If the application raises before it receives ``lifespan.startup``, it does not handle the protocol; the error is
        logged, and the application's requests are served anyway.  Any later error reaches the server as a failed
        startup or a failed shutdown.  An error between startup and shutdown is also reported to the loop's exception
        handler at once; the purgatories stay open until the server shuts down.
        """

        async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                await self._run(app, scope, receive, send)
                return
            for room in self._purgatories:
                if room._loop is None:
                    report_not_open(room)
            await app(scope, receive, send)

        return wrapped

    async def _run(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        phase = "startup"
        try:
            async with self._lifespan_context(app, _lifespan_of(app, scope)) as state:
                if isinstance(state, Mapping) and "state" in scope:
                    scope["state"].update(state)
                await send({"type": "lifespan.startup.complete"})
                phase = "shutdown"
                await receive()
        except Exception as error:
            await send({"type": f"lifespan.{phase}.failed", "message": _text_of(error)})
            raise
        await send({"type": "lifespan.shutdown.complete"})


def _grace_within_server(grace: float) -> float:
    """Return the grace period, shortened (with a warning) if the server would drop its requests before the period ends.

    One second or a tenth of the server's timeout, whichever is longer, is left for the responses.
    """
    limit = graceful_timeout() if grace else None
    if limit is None or grace < limit[1]:
        return grace
    name, seconds = limit
    shorter = max(0.0, seconds - max(1.0, seconds / 10))
    _LOGGER.warning(
        "grace=%g is not below %s=%g, after which the server drops all requests unanswered: grace is shortened to %g",
        *(grace, name, seconds, shorter),
    )
    return shorter


class _ReportedFailure(RuntimeError):
    """The application sent ``lifespan.startup.failed`` or ``lifespan.shutdown.failed``."""


def _text_of(error: Exception) -> str:
    """Return the text for the server's log.  After a failure message, servers ignore the error itself."""
    return str(error) if isinstance(error, _ReportedFailure) else "".join(traceback.format_exception(error))


@asynccontextmanager
async def _lifespan_of(app: ASGIApp, scope: Scope) -> AsyncIterator[None]:
    """Run the application's own lifespan protocol and raise its errors."""
    own = _OwnLifespan(app, scope)
    try:
        await own.start()
        yield
        await own.stop()
    finally:
        await own.cancel()


class _OwnLifespan:
    """The lifespan of a wrapped application.  This object sends and receives the messages that a server would."""

    def __init__(self, app: ASGIApp, scope: Scope) -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._replies: asyncio.Queue[Message] = asyncio.Queue()
        self._received = False  # if the application raises before that, it does not support the protocol
        self._supported = False
        self._raised = False  # its error, or the failure that it sent, has been raised here
        self._task = asyncio.get_running_loop().create_task(self._run(app, scope))
        self._task.add_done_callback(self._ended)

    async def start(self) -> None:
        """Start the application.  Raises its error if the startup fails."""
        self._supported = await self._ask("startup")

    async def stop(self) -> None:
        """Shut down the application.

        Raises the application's error if the shutdown fails or if the application has raised an exception since its
        startup.
        """
        if self._supported:
            await self._ask("shutdown")

    async def cancel(self) -> None:
        """Cancel the application's lifespan if it is still running."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self, app: ASGIApp, scope: Scope) -> None:
        try:
            await app(scope, self._receive, self._replies.put)
        finally:
            self._replies.put_nowait({"type": "ended"})

    async def _receive(self) -> Message:
        message = await self._messages.get()
        self._received = True
        return message

    async def _ask(self, kind: str) -> bool:
        """Send ``lifespan.startup`` or ``lifespan.shutdown``; return whether the application completed it."""
        self._messages.put_nowait({"type": f"lifespan.{kind}"})
        reply = await self._replies.get()
        if reply["type"] == f"lifespan.{kind}.failed":
            self._raised = True
            raise _ReportedFailure(reply.get("message") or f"the application's {kind} failed")
        completed = bool(reply["type"] == f"lifespan.{kind}.complete")
        # The application may also have raised right after its reply.
        if self._received and self._task.done() and (completed or reply["type"] == "ended"):
            self._raised = True
            self._task.result()
        return completed

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Report an error that can no longer be raised to a caller."""
        error = None if task.cancelled() else task.exception()
        if error is None or self._raised:
            return
        if self._supported:
            message = "the application's lifespan ended with an error"
            task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})
        else:
            _LOGGER.info("the application does not support the lifespan protocol", exc_info=error)


class _Closing:
    """Closes purgatories once, at the signal or at the end of the lifespan."""

    def __init__(self, rooms: tuple[Purgatory[Any], ...], grace: float) -> None:
        self._rooms = rooms
        self._grace = grace
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to close the purgatories, unless closing has already begun.

        A second signal changes nothing: a supervisor and its parent may each send one.
        """
        if self._task is None:
            # create_task(context=...) is not used: a task factory need not accept a context, and a task copies the
            # current context.
            self._task = Context().run(asyncio.get_running_loop().create_task, self._close())

    async def end(self) -> None:
        """Close the purgatories; return when every operation has been answered."""
        self.begin()
        assert self._task is not None
        await asyncio.shield(self._task)

    async def _close(self) -> None:
        outcomes = await asyncio.gather(
            *(room.aclose(grace=self._grace) for room in self._rooms), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
