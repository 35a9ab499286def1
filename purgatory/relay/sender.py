"""The keys and pings to send, and the task that sends them."""

import asyncio
from collections.abc import Hashable
from typing import Any

from .codec import encode_everything, encode_keys, encode_ping
from .pending import PendingKeys
from .timing import wake
from .transport import Transport

__all__ = ["Sender"]


class Sender:
    """Publishes pending keys and pings.

    Keys stay pending until the engine has accepted them: if publishing fails or is cancelled, the keys are sent over
    the next connection.  ``origin`` is the ID that every payload carries.
    """

    def __init__(self, transport: Transport, max_keys: int) -> None:
        self.origin = ""
        self.pending: PendingKeys = PendingKeys(max_keys)
        self.keys_sent: int = 0
        self.messages_sent: int = 0
        self.everything_sent: int = 0
        self._transport = transport
        self._ping: int | None = None
        self._busy = False
        self._wake = asyncio.Event()
        self._idle: asyncio.Future[None] | None = None

    def __bool__(self) -> bool:
        """Whether there is anything that the engine has not accepted yet."""
        return self._busy or bool(self.pending)

    def add(self, key: Hashable, value: float | None) -> None:
        """Send the key at the end of this turn of the loop."""
        self.pending.add(key, value)
        self._wake.set()

    def ping(self, number: int) -> None:
        """Send a ping before any further keys."""
        self._ping = number
        self._wake.set()

    def when_idle(self) -> "asyncio.Future[None]":
        """Return a future that is done when everything has been sent; cancel it when it is no longer needed."""
        self._idle = asyncio.get_running_loop().create_future()
        self._wake.set()
        return self._idle

    async def run(self) -> None:
        """Send for the lifetime of one connection, that is, until the task is cancelled.

        The ``while`` loop also examines ``task.cancelling()``, because a client library may swallow the CancelledError.
        """
        task = asyncio.current_task()
        assert task is not None
        while not task.cancelling():
            if self._ping is not None:
                await self._send_ping()
            elif self.pending:
                await self._send_pending(task)
            else:
                if self._idle is not None:
                    wake(self._idle)
                self._wake.clear()
                await self._wake.wait()

    async def _send_ping(self) -> None:
        number, self._ping = self._ping, None
        if number is not None:
            await self._publish(encode_ping(self.origin, number))

    async def _send_pending(self, task: "asyncio.Task[Any]") -> None:
        everything = self.pending.take_everything()
        entries = self.pending.take()
        taken = 0
        self._busy = True
        try:
            if everything:
                await self._publish(encode_everything(self.origin))
                everything = False
                self.everything_sent += 1
            for payload, carried in encode_keys(self.origin, entries, self._transport.max_payload):
                await self._send_ping()
                if task.cancelling():
                    break
                await self._publish(payload)
                taken += len(carried)
                if payload == encode_everything(self.origin):
                    self.everything_sent += 1
                else:
                    self.keys_sent += len(carried)
        finally:
            self._busy = False
            if everything:
                self.pending.add_everything()
            for key, value in entries[taken:]:
                self.pending.add(key, value)

    async def _publish(self, payload: str) -> None:
        await self._transport.publish(payload)
        self.messages_sent += 1
