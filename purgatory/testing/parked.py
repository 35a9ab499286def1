"""Waiting in a test until requests are parked."""

import asyncio
from typing import Any

from purgatory.aio.purgatory import Purgatory
from purgatory.events import Event

__all__ = ["parked"]


async def parked(room: Any, number: int = 1) -> None:
    """Return when at least ``number`` operations are parked; with 0, when none is.

    ::

        polling = browser.submit(client.get, "/orders?wait=30")     # in a thread, with FastAPI's TestClient
        client.portal.call(parked, room)                            # in the event loop of the application

    The purgatory wakes it, so nothing polls, and a test needs no sleep.  ``room``: a purgatory or a relay.  Raises
    TypeError if ``room`` is neither, or if ``number`` is not an int; ValueError if ``number`` is negative.
    """
    purgatory = room if isinstance(room, Purgatory) else getattr(room, "_purgatory", None)
    if not isinstance(purgatory, Purgatory):
        raise TypeError(f"room must be a Purgatory or a Relay, got {room!r}")
    if type(number) is not int:
        raise TypeError(f"number must be an int, got {number!r}")
    if number < 0:
        raise ValueError(f"number must be at least 0, got {number!r}")
    waker = _Waker()
    notifier = purgatory._core._notifier
    notifier.attach(waker)
    try:
        while not (len(purgatory) >= number > 0 or (number == 0 and not len(purgatory))):
            await waker.next_event()
    finally:
        notifier.detach(waker)


class _Waker:
    """An observer that wakes a task at every event.  The task looks at the purgatory in a later turn of the loop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    async def next_event(self) -> None:
        """Return after the next event."""
        await self._event.wait()
        self._event.clear()

    def _wake(self, _: Event) -> None:
        self._event.set()

    parked = completed = expired = cancelled = failed = _wake
