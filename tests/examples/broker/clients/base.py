"""A group member, independent of its client library, and the parts that all clients have in common."""

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["HEARTBEAT_MS", "KILLED_SESSION_MS", "PATIENCE", "SESSION_MS", "Member", "fetch_waits"]

PATIENCE = 15.0  # seconds; only a failing test waits this long
SESSION_MS = 6000  # librdkafka sends a heartbeat only once a second, whatever its interval
KILLED_SESSION_MS = 2000  # of a member that a test kills
HEARTBEAT_MS = 100


class Member:
    """A consumer in a group. ``assigned``: its current partitions. ``revoked``: all that it has lost in
    rebalances.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self.changed = changed
        self.assigned: frozenset[int] = frozenset()
        self.revoked: list[int] = []
        self.values: list[bytes] = []
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True)

    def start(self) -> "Member":
        self._thread.start()
        return self

    def close(self) -> None:
        """Leave the group, as the client does when it closes."""
        self._stop.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the client does not close"
        if self.error is not None:
            raise self.error

    def tell(self, assigned: Any) -> None:
        with self.changed:
            self.assigned = frozenset(assigned)
            self.changed.notify_all()

    def lost(self, partitions: Any) -> None:
        self.revoked += list(partitions)

    def got(self, value: bytes) -> None:
        with self.changed:
            self.values.append(value)
            self.changed.notify_all()

    def _main(self) -> None:
        try:
            self.poll_until(self._stop.is_set)
        except BaseException as error:
            self.error = error
        finally:
            self.tell(())

    def poll_until(self, stopped: Callable[[], bool]) -> None:
        raise NotImplementedError


def fetch_waits(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a fetch with the names that two of the clients use."""
    return {f"fetch_{name}": value for name, value in options.items()}
