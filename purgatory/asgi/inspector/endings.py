"""A sample of the operations that end: which keys expire, and what fails.

An observer costs time for every operation, so this one is attached only while somebody looks, and detaches itself after
some hundred events until the next frame.  Its counts are therefore shares of a sample; the totals are in
``statistics()``.
"""

import time
from collections import deque
from collections.abc import Hashable
from typing import Any, Final

from purgatory import Purgatory
from purgatory.core.watch.validation import is_plain
from purgatory.events import Event, Observer, Outcome
from purgatory.texts import error_text, key_text

__all__ = ["EndedKey", "Endings"]

_EVENTS_PER_FRAME: Final = 300
_MOST_KEYS: Final = 1000
_MOST_FAILURES: Final = 10
_GENERATION: Final = 60.0  # seconds
_MOST_KEYS_OF_EVENT: Final = 4


class EndedKey:
    """How many operations of the sample ended on a key, and how many of them expired."""

    __slots__ = ("ended", "expired", "key")

    def __init__(self, key: Hashable) -> None:
        self.key: Hashable = key
        self.ended: int = 0
        self.expired: int = 0


class Endings(Observer):
    """Samples the endings of a purgatory: for the last one or two minutes, with bounded memory."""

    def __init__(self, room: Purgatory[Any]) -> None:
        self._notifier = room._core._notifier
        self._left = 0
        self._attached = False
        self._keys: dict[Hashable, EndedKey] = {}
        self._previous: dict[Hashable, EndedKey] = {}
        self._turned = time.monotonic()
        self.failures: deque[tuple[float, str, str, str]] = deque(maxlen=_MOST_FAILURES)

    def begin(self) -> None:
        """Sample the next events.  Call it in the loop of the purgatory, outside its callbacks."""
        now = time.monotonic()
        if now - self._turned >= _GENERATION:
            self._previous = self._keys if now - self._turned < 2 * _GENERATION else {}
            self._keys = {}
            self._turned = now
        self._left = _EVENTS_PER_FRAME
        if not self._attached:
            self._attached = True
            self._notifier.attach(self)

    def end(self) -> None:
        """Detach the observer."""
        if self._attached:
            self._attached = False
            self._notifier.detach(self)

    def by_expired(self, number: int) -> list[EndedKey]:
        """Return the keys of the sample on which most operations expired, most first."""
        merged: dict[Hashable, EndedKey] = {}
        for generation in (self._previous, self._keys):
            for identity, found in generation.items():
                total = merged.setdefault(identity, EndedKey(found.key))
                total.ended += found.ended
                total.expired += found.expired
        hot = [found for found in merged.values() if found.expired]
        hot.sort(key=lambda found: (found.expired, found.expired / found.ended), reverse=True)
        return hot[:number]

    def completed(self, event: Event) -> None:
        self._count(event)

    def expired(self, event: Event) -> None:
        self._count(event)

    def cancelled(self, event: Event) -> None:
        self._count(event)

    def failed(self, event: Event) -> None:
        keys = ", ".join([key_text(key) for key in event.keys[:_MOST_KEYS_OF_EVENT]])
        text = "" if event.error is None else error_text(event.error)
        self.failures.append((time.time(), event.kind, keys, text))
        self._count(event)

    def _count(self, event: Event) -> None:
        self._left -= 1
        if self._left <= 0:
            self.end()
        for key in event.keys[:_MOST_KEYS_OF_EVENT]:
            # Hashing another key would run the code of the user.
            identity: Hashable = key if is_plain(key) else (key_text(key),)
            found = self._keys.get(identity)
            if found is None:
                if len(self._keys) >= _MOST_KEYS:
                    continue
                found = self._keys[identity] = EndedKey(key)
            found.ended += 1
            found.expired += event.outcome is Outcome.EXPIRED
