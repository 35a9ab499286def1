"""Waiting until requests are parked, in a test."""

import asyncio
import contextlib
from typing import Any

from purgatory.aio.end_observer import EndObserver
from purgatory.aio.purgatory import Purgatory
from purgatory.events import Event

__all__ = ["parked"]


async def parked(room: Any, number: int = 1) -> None:
    """Wait until at least ``number`` operations are parked or, if ``number`` is 0, until no operation is parked.

    ::

        polling = browser.submit(client.get, "/orders?wait=30")     # in a thread, with FastAPI's TestClient
        client.portal.call(parked, room)                            # in the event loop of the application

    The purgatory wakes the waiting task, so there is no polling, and a test need not sleep.  ``room``: a purgatory or a
    relay.  Raises TypeError if ``room`` is neither, or if ``number`` is not an int; ValueError if ``number`` is
    negative; RuntimeError if the purgatory's event loop is running in another thread; and PurgatoryClosed if the
    purgatory has closed, so that no operation can be parked.
    """
    purgatory = room if isinstance(room, Purgatory) else getattr(room, "_purgatory", None)
    if not isinstance(purgatory, Purgatory):
        raise TypeError(f"room must be a Purgatory or a Relay, got {room!r}")
    if type(number) is not int:
        raise TypeError(f"number must be an int, got {number!r}")
    if number < 0:
        raise ValueError(f"number must be at least 0, got {number!r}")
    waker = _Waker(purgatory)
    notifier = purgatory._core._notifier
    notifier.attach(waker)
    try:
        while waker.validate_loop() and not (len(purgatory) >= number > 0 or (number == 0 and not len(purgatory))):
            if number:
                purgatory._core.validate_open()
            await waker.next_event()
    finally:
        notifier.detach(waker)
        waker.end()


class _Waker(EndObserver):
    """Wakes a task at every event and when the purgatory closes, even if the purgatory belongs to another loop.  The
    task examines the purgatory in a later turn of its loop.

    The object is an observer.  It is also registered as a subscription, so that closing the purgatory ends this
    object.
    """

    def __init__(self, purgatory: Purgatory[Any]) -> None:
        self._purgatory = purgatory
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        purgatory._subscriptions[id(self)] = self  # type: ignore[assignment]

    def validate_loop(self) -> bool:
        """Return True.  Raises RuntimeError if the purgatory's loop is running in another thread."""
        loop = self._purgatory.timer._loop
        if loop is not None and loop is not self._loop and loop.is_running():
            raise RuntimeError(
                "the event loop of this purgatory is running in another thread: call parked() there, with FastAPI's"
                " TestClient as client.portal.call(parked, room)"
            )
        return True

    async def next_event(self) -> None:
        """Return after the next event."""
        await self._event.wait()
        self._event.clear()

    def parked(self, event: Event) -> None:
        self._wake()

    def ended(self, event: Event) -> None:
        self._wake()

    def end_some(self, number: int) -> int:
        """Leave the subscriptions, which counts as one of the ``number`` steps that closing requests."""
        self.end()
        return 1

    def end(self) -> None:
        """Leave the subscriptions, and wake the task."""
        self._purgatory._subscriptions.pop(id(self), None)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._event.set)
