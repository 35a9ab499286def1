"""The purgatory of :mod:`benchmarks.shutdown_app`, and what a server writes to its standard output."""

import dataclasses
import json
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from purgatory import Event, Observer, Purgatory

__all__ = ["Reporter", "events", "limit", "own", "room", "say"]


def say(*words: object) -> None:
    """Write one line in one piece, because several workers share the pipe."""
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


class Reporter(Observer):
    """Write a line when an operation is parked, is withdrawn, or expires."""

    def parked(self, event: Event) -> None:
        """Report that an operation waits."""
        say("parked", os.getpid(), *event.keys)

    def cancelled(self, event: Event) -> None:
        """Report that an operation was withdrawn."""
        say("withdrawn", os.getpid(), *event.keys)

    def expired(self, event: Event) -> None:
        """Report that the deadline of an operation has passed or that the purgatory is closing."""
        say("expired", os.getpid(), *event.keys)


def limit(name: str) -> int | None:
    """Return a limit from the environment."""
    return int(os.environ[name]) if name in os.environ else None


room = Purgatory[Any](
    "served",
    max_parked=limit("MAX_PARKED"),
    max_parked_per_key=limit("MAX_PARKED_PER_KEY"),
    observers=[Reporter()],
)
events: list[str] = []


@asynccontextmanager
async def own(_: Any) -> AsyncIterator[None]:
    """Write the statistics when every operation has been answered."""
    say("ready", os.getpid(), threading.current_thread() is threading.main_thread())
    yield
    say("statistics", json.dumps(dataclasses.asdict(room.statistics())))
