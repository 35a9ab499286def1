"""Opening purgatories with an application, and closing them when the server is told to stop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from contextvars import Context
from typing import Any, TypeAlias

from purgatory import Purgatory
from purgatory.core.timer.units import duration_ms

from .signals import StopListener
from .types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["PurgatoryLifespan", "purgatory_lifespan"]

Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]


def purgatory_lifespan(
    room: Purgatory[Any], *others: Purgatory[Any], grace: float = 0.0, lifespan: Lifespan | None = None
) -> "PurgatoryLifespan":
    """Make a lifespan that opens the purgatories, and closes them when the server is told to stop.

    ::

        app = FastAPI(lifespan=purgatory_lifespan(room))
        app = FastAPI(lifespan=purgatory_lifespan(room, grace=2.0, lifespan=own))    # with the application's own
        app = purgatory_lifespan(room).wrap(app)                                     # any other ASGI application

    A server that gets SIGTERM or SIGINT waits for its open requests before it notifies the application.  So at startup
    each signal handler is replaced by one that closes the purgatories and then calls the original handler: every parked
    request is answered while the server still serves.  Requests that would have to wait from then on get
    :class:`PurgatoryClosed`.  The original handlers are restored at shutdown.

    ``grace``: seconds in which parked operations may still complete by themselves, as in :meth:`Purgatory.aclose`; the
    rest expires after it.  It adds to the time that the server takes to exit.  A second signal does not shorten it, but
    some servers then exit at once and cancel their requests.  ``lifespan``: the application's own, entered when the
    purgatories are open and left when every operation has been answered.

    Signals are chained only in the main thread.  Elsewhere, and where no handler is installed before the application
    starts, the purgatories close when the lifespan ends.  A purgatory is opened once: make a new application, with new
    purgatories, for every test that runs its lifespan.  TypeError and ValueError for bad arguments.
    """
    return PurgatoryLifespan((room, *others), grace, lifespan)


class PurgatoryLifespan:
    """The result of :func:`purgatory_lifespan`: a lifespan for Starlette and FastAPI; others use :meth:`wrap`."""

    def __init__(self, rooms: tuple[Purgatory[Any], ...], grace: float, lifespan: Lifespan | None) -> None:
        for room in rooms:
            if not isinstance(room, Purgatory):
                raise TypeError(f"room must be a Purgatory, got {room!r}")
        duration_ms(grace, "grace")
        if lifespan is not None and not callable(lifespan):
            raise TypeError(f"lifespan must be callable with the application, got {lifespan!r}")
        self._rooms = rooms
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
            for room in self._rooms:
                await stack.enter_async_context(room)
            closing = _Closing(self._rooms, self._grace)
            watch = StopListener(closing.begin)
            stack.callback(watch.stop)
            watch.start()
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
        """Wrap an ASGI application, whether or not it handles the lifespan protocol itself."""

        async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                await self._run(app, scope, receive, send)
            else:
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
            await send({"type": f"lifespan.{phase}.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.shutdown.complete"})


@asynccontextmanager
async def _lifespan_of(app: ASGIApp, scope: Scope) -> AsyncIterator[None]:
    """Run the application's own lifespan protocol.  An application that raises before startup does not support it."""
    messages: asyncio.Queue[Message] = asyncio.Queue()
    replies: asyncio.Queue[Message] = asyncio.Queue()

    async def run() -> None:
        try:
            await app(scope, messages.get, replies.put)
        finally:
            replies.put_nowait({"type": "ended"})

    async def reply_to(kind: str) -> str:
        messages.put_nowait({"type": f"lifespan.{kind}"})
        reply = await replies.get()
        if reply["type"] == f"lifespan.{kind}.failed":
            raise RuntimeError(reply.get("message") or f"the application's {kind} failed")
        return str(reply["type"])

    task = asyncio.create_task(run())
    try:
        supported = await reply_to("startup") == "lifespan.startup.complete"
        yield
        if supported:
            await reply_to("shutdown")
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieved: a failure that it reported was raised above


class _Closing:
    """Closes purgatories once, at the signal or at the end of the lifespan."""

    def __init__(self, rooms: tuple[Purgatory[Any], ...], grace: float) -> None:
        self._rooms = rooms
        self._grace = grace
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to close them, unless that has begun.

        A second signal changes nothing: a supervisor and its parent may each send one.
        """
        if self._task is None:
            # Not create_task(context=...): a task factory need not take one, and a task copies the current context.
            self._task = Context().run(asyncio.get_running_loop().create_task, self._close())

    async def end(self) -> None:
        """Close them, and return when every operation has been answered."""
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
