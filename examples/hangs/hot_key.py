"""A hot key: all requests wait on one key, so each check tries all of them, and the key's limit is reached."""

from collections.abc import Sequence
from typing import Any

from purgatory import Clock

from .service import Service

__all__ = ["HotKey"]

_LIMIT = 2000


class HotKey(Service):
    """Inboxes of many users, all on the key ``inboxes``."""

    def __init__(self, clock: Clock | None = None, observers: Sequence[Any] = ()) -> None:
        super().__init__(clock, observers, max_parked_per_key=_LIMIT)
        self._messages: dict[int, int] = {}

    async def read(self, user: int) -> bool:
        """Handle ``GET /inboxes/{user}``: wait for a message to the user."""
        return await self.room.wait_until(
            lambda: self._messages.get(user, 0) > 0,
            key="inboxes",  # the key should be f"inbox-{user}"
            timeout=300.0,
            kind="GET /inboxes/{user}",
        )

    def write(self, user: int) -> None:
        """Store a message."""
        self._messages[user] = 1
        self.room.check("inboxes")

    def tick(self, second: int) -> None:
        for user in range(100 * second, 100 * second + 100):
            self.request(self.read(user))
        self.write(100 * second)
