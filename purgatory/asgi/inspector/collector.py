"""Frames: everything that an inspector shows, as a dict for JSON."""

import asyncio
import contextlib
import os
import platform
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from purgatory import COMPILED, PurgatoryError, __version__
from purgatory.core.operation.private_key import PrivateKey
from purgatory.core.timer.units import to_seconds
from purgatory.texts import shortened

from .findings import findings
from .loop_lag import LoopLag
from .loops import other_loop
from .room_view import KeyIds, RoomView, timer_view
from .slices import SHARE, Slices

if TYPE_CHECKING:
    from purgatory import Purgatory
    from purgatory.relay import Relay

__all__ = ["MOST_ROWS", "ROWS", "Collector", "NoAnswerError", "UnknownKeyError"]

T = TypeVar("T")

ROWS: Final = 30
MOST_ROWS: Final = 500
MOST_KEYS: Final = 50
_MOST_WORKERS: Final = 100
_PATIENCE: Final = 5.0  # seconds within which another thread must answer
_LONGEST_REASON: Final = 300


class UnknownKeyError(LookupError):
    """The key of an action is not watched, or its ID was not shown recently."""


class NoAnswerError(Exception):
    """The purgatory's loop runs in another thread and did not answer; the message states what has happened."""


class Collector:
    """Takes frames of purgatories and relays.

    A purgatory is read in its own event loop if that loop runs in another thread; otherwise, it is read in the caller's
    loop.
    """

    def __init__(self, rooms: Sequence["Purgatory[Any]"], relays: Sequence["Relay"], history: float) -> None:
        self._ids = KeyIds()
        self._views = [
            RoomView(number, room, [relay for relay in relays if relay._purgatory is room], history, self._ids)
            for number, room in enumerate(rooms)
        ]
        self._relays = relays
        self._began = time.monotonic()
        self._lags: dict[int, LoopLag] = {}  # by the id() of the event loop
        self._number = 0

    @property
    def closed(self) -> bool:
        """Whether every purgatory is closed."""
        return all([view.room.closed for view in self._views])

    async def frame(self, until: float) -> dict[str, Any]:
        """Take a frame.  ``until``: the time, on the ``time.monotonic()`` clock, at which incomplete surveys pause."""
        rooms = []
        for left, view in zip(range(len(self._views), 0, -1), self._views, strict=True):
            now = time.monotonic()
            rooms.append(await self._take_if_answering(view, now + max(0.0, until - now) / left))
        self._number += 1
        frame = {
            "version": 1,
            "number": self._number,
            "time": time.time(),
            "worker": self.worker(),
            "loop": {"lag": max([room["lag"] for room in rooms if room is not None], default=0.0)},
            "rooms": [
                {"name": shortened(view.room.name), "silent": True} if room is None else room
                for view, room in zip(self._views, rooms, strict=True)
            ],
            "timers": await self._timers([view for view, room in zip(self._views, rooms, strict=True) if room]),
            "relays": [_relay(relay) for relay in self._relays],
            "workers": [worker for relay in self._relays for worker in _workers(relay)],
            "cost": {
                "busy": sum([room["cost"]["busy"] for room in rooms if room is not None]),
                "longest": max([room["cost"]["longest"] for room in rooms if room is not None], default=0.0),
                "share": SHARE,
            },
        }
        frame["findings"] = findings(frame)
        return frame

    def worker(self) -> dict[str, Any]:
        """Return what identifies this process."""
        return {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "python": platform.python_version(),
            "purgatory": __version__,
            "compiled": COMPILED,
            "uptime": round(time.monotonic() - self._began, 1),
        }

    async def operations(self, room: int, until: float, rows: int, kind: str | None) -> dict[str, Any]:
        """Return the purgatory's operations, of one kind or of all kinds, that have waited the longest."""
        view = self._views[room]

        async def take() -> dict[str, Any]:
            slices = Slices()
            found, complete = await view.rows_of_kind(slices, until, rows, kind)
            return {"operations": await view.rows(found, slices), "complete": complete}

        return await self._in_loop_of(view, take)

    async def search(self, room: int, text: str, until: float, rows: int) -> dict[str, Any]:
        """Return the keys of a purgatory that contain the text, and the operations on the best match."""
        view = self._views[room]

        async def take() -> dict[str, Any]:
            return await view.search(text, Slices(), until, MOST_KEYS, rows)

        return await self._in_loop_of(view, take)

    async def operations_on(self, room: int, identity: str, rows: int) -> dict[str, Any]:
        """Return the operations on a key that a frame shows."""
        view = self._views[room]
        try:
            key = self.find_key(room, identity, None)
        except UnknownKeyError:
            return {"keys": [], "operations": [], "complete": True}

        async def take() -> dict[str, Any]:
            keys, found = await view.rows_of_key(key, Slices(), rows)
            return {"keys": keys, "operations": found, "complete": True}

        return await self._in_loop_of(view, take)

    def room_number(self, name: str | None) -> int | None:
        """Return the number of the purgatory with this name or, without a name, the number of the first one.

        ``name``: the full name or the shown one.  :func:`inspector` ensures that the shown names differ.
        """
        if name is None:
            return 0
        for view in self._views:
            if name in (view.room.name, shortened(view.room.name)):
                return view.number
        return None

    def find_key(self, room: int, identity: str | None, key: str | int | None) -> Any:
        """Return the key whose ID a frame shows, or the given key (a str or an int).  Raises UnknownKeyError."""
        if identity is not None:
            found = self._ids.find(identity)
            if found is None or found[0] != room:
                raise UnknownKeyError("the id of the key was not shown recently")
            return found[1]
        if not self._views[room].room.is_watched(key):
            raise UnknownKeyError("no operation waits on the key")
        return key

    def validate_key(self, key: Any) -> None:
        """Raise UnknownKeyError for the key of a lock, because only the holder may hand over the lock."""
        if isinstance(key, PrivateKey):
            raise UnknownKeyError("the key belongs to a lock or a quorum, whose waiters cannot be ended")

    async def withdraw(self, room: int, key: Any, reason: str) -> int:
        """Withdraw the operations on the key; return how many were withdrawn."""
        view = self._views[room]

        async def end() -> int:
            return len(await view.room.acancel_for_key(key, reason=reason[:_LONGEST_REASON]))

        return await self._in_loop_of(view, end)

    async def fail(self, room: int, key: Any, reason: str) -> int:
        """Make the operations on the key fail with a PurgatoryError; return how many failed."""
        view = self._views[room]

        async def end() -> int:
            return await view.room.afail_for_key(key, partial(PurgatoryError, reason[:_LONGEST_REASON]))

        return await self._in_loop_of(view, end)

    def name_of(self, room: int) -> str:
        """Return the name of a purgatory."""
        return self._views[room].room.name

    def leave_out(self, seconds: float) -> None:
        """Leave the inspector's own work in this turn of the running loop out of the loop's longest turn."""
        lag = self._lags.get(id(asyncio.get_running_loop()))
        if lag is not None:
            lag.leave_out(seconds)

    def rest(self) -> None:
        """Detach the observers and drop the collected data, because no viewer is connected any longer."""
        for view in self._views:
            loop = other_loop(view.room)
            if loop is None:
                view.forget()
            else:
                loop.call_soon_threadsafe(view.forget, context=Context())
        for lag in self._lags.values():
            lag.stop()
        self._lags.clear()
        self._ids.clear()

    async def _take(self, view: RoomView, until: float) -> dict[str, Any]:
        lag = self._lags.setdefault(id(asyncio.get_running_loop()), LoopLag())
        lag.start()
        slices = Slices()
        view.endings.begin()
        await view.checks.begin(slices)
        await view.survey(slices, until, ROWS)
        seen = await view.view(slices)
        slices.end()
        seen["lag"] = lag.longest()
        seen["cost"] = {"busy": slices.busy, "longest": slices.longest}
        return seen

    async def _take_if_answering(self, view: RoomView, until: float) -> dict[str, Any] | None:
        try:
            return await self._in_loop_of(view, self._take, view, until)
        except NoAnswerError:
            return None

    async def _in_loop_of(self, view: RoomView, make: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        """Run a coroutine in the purgatory's loop.  Raises NoAnswerError if that loop runs in another thread and does
        not answer.  If the coroutine has not begun by then, it never begins.
        """
        loop = other_loop(view.room)
        if loop is None:
            return await make(*arguments)
        permit: Future[None] = Future()

        async def run() -> T:
            if not permit.set_running_or_notify_cancel():
                raise asyncio.CancelledError
            return await make(*arguments)

        future = asyncio.run_coroutine_threadsafe(run(), loop)
        try:
            async with asyncio.timeout(_PATIENCE):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            done = "nothing was done" if permit.cancel() else "the request may have been carried out in part"
            raise NoAnswerError(
                f"the thread of the purgatory has not answered within {_PATIENCE:g} s, and {done}"
            ) from None
        finally:
            permit.cancel()

    async def _timers(self, answering: list[RoomView]) -> list[dict[str, Any]]:
        """Return the timers of these purgatories, each of which is read in its own loop; leave out a timer whose thread
        does not answer.
        """
        by_timer: dict[int, list[RoomView]] = {}
        for view in answering:
            by_timer.setdefault(id(view.room.timer), []).append(view)
        timers = []
        for views in by_timer.values():
            with contextlib.suppress(NoAnswerError):
                timers.append(await self._in_loop_of(views[0], _view_timer, views))
        return timers


async def _view_timer(views: list[RoomView]) -> dict[str, Any]:
    return timer_view(views[0].room.timer, views)


def _workers(relay: "Relay[Any, Any]") -> Iterator[dict[str, Any]]:
    """Yield the other workers that the relay has heard from within the last three heartbeats."""
    now_ms = relay._clock.now_ms()
    for worker, heard_ms in relay._receiver.workers(now_ms - 3 * relay._heartbeat_ms)[:_MOST_WORKERS]:
        name = shortened(worker)
        yield {
            "name": name,
            "purgatory": shortened(relay._purgatory.name),
            "ago": to_seconds(max(0, now_ms - heard_ms)),
        }


def _relay(relay: "Relay") -> dict[str, Any]:
    """Return the state of a relay."""
    statistics = relay.statistics()
    loss = statistics.last_loss
    return {
        "purgatory": shortened(statistics.purgatory),
        "transport": type(relay._transport).__name__,
        "last_loss": None if loss is None else shortened(loss, _LONGEST_REASON),
        "last_loss_ago": None if loss is None else to_seconds(max(0, relay._clock.now_ms() - relay._last_loss_ms)),
        **{
            name: getattr(statistics, name)
            for name in (
                "connected", "lag", "peers", "connects", "losses", "resyncs", "sent", "received", "unreadable",
                "pending", "stale", "reads", "failed_reads",
            )
        },
    }  # fmt: skip
