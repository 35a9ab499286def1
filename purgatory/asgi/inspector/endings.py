"""A sample of the operations that end: on which keys they expire, and which of them fail.

An observer costs time for every operation, so this one is attached only while a viewer is connected; after a few
hundred events, it detaches itself until the next frame.  Its counts therefore describe only a sample; the totals are in
``statistics()``.
"""

import os
import sys
import sysconfig
import time
from collections import deque
from collections.abc import Hashable
from pathlib import Path
from types import CodeType
from typing import Any, Final, NamedTuple

import purgatory
from purgatory import Purgatory
from purgatory.aio.end_observer import EndObserver
from purgatory.events import Event, Outcome
from purgatory.texts import error_text, key_text, shortened

from .checks import identity_of

__all__ = ["EndedKey", "Endings", "Failure", "place_of"]

_EVENTS_PER_FRAME: Final = 300
_MOST_KEYS: Final = 1000
_MOST_FAILURES: Final = 10
_GENERATION: Final = 60.0  # seconds
_MOST_KEYS_OF_EVENT: Final = 4
_MOST_FRAMES: Final = 2000  # how many frames of a traceback are examined
_HERE: Final = str(Path(purgatory.__file__).parent) + os.sep
_INSTALLED: Final = (
    "<frozen ",
    *[sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")],
)
_LONGEST_PATH: Final = 80


class Failure(NamedTuple):
    """An operation that failed.

    ``at``: the time in seconds, as returned by ``time.time()``.  ``at_ms``: the time in ms on the clock.  ``place``:
    the file, line, and function, or an empty string.
    """

    at: float
    at_ms: int
    kind: str
    keys: str
    error: str
    place: str


def place_of(error: BaseException) -> str:
    """Return where the application raised the error: the last frame outside the installed packages.

    If there is no such frame, return the last frame outside this package, if any; without a traceback, return an empty
    string.
    """
    found: tuple[int, CodeType, int] | None = None
    traceback = error.__traceback__
    for _ in range(_MOST_FRAMES):
        if traceback is None:
            break
        code = traceback.tb_frame.f_code
        rank = 0 if code.co_filename.startswith(_HERE) else 1 if code.co_filename.startswith(_INSTALLED) else 2
        if found is None or rank >= found[0]:
            found = rank, code, traceback.tb_lineno
        traceback = traceback.tb_next
    if found is None:
        return ""
    _, code, line = found
    return f"{_short(code.co_filename)}:{line} in {shortened(code.co_name)}"


def _short(path: str) -> str:
    """Return the path relative to the folder from which Python imports the module, or only the end of a long path."""
    folders = [os.path.join(folder, "") for folder in sys.path if folder]
    folder = max([folder for folder in folders if path.startswith(folder)], key=len, default="")
    path = path[len(folder) :]
    return shortened(path if len(path) <= _LONGEST_PATH else f"…{path[1 - _LONGEST_PATH :]}")


class EndedKey:
    """How many operations in the sample ended on a key, and how many of them expired."""

    __slots__ = ("ended", "expired", "key")

    def __init__(self, key: Hashable) -> None:
        self.key: Hashable = key
        self.ended: int = 0
        self.expired: int = 0


class Endings(EndObserver):
    """Samples how the operations of a purgatory end, over the last one or two minutes, in bounded memory."""

    def __init__(self, room: Purgatory[Any]) -> None:
        self._notifier = room._core._notifier
        self._clock = room.timer.clock
        self._left = 0
        self._attached = False
        self._keys: dict[Hashable, EndedKey] = {}
        self._previous: dict[Hashable, EndedKey] = {}
        self._turned = time.monotonic()
        self.failures: deque[Failure] = deque(maxlen=_MOST_FAILURES)

    def begin(self) -> None:
        """Sample the next events.  Call this method in the purgatory's loop, outside its callbacks."""
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
        """Return the sample's keys with the most expired operations, in descending order."""
        merged: dict[Hashable, EndedKey] = {}
        for generation in (self._previous, self._keys):
            for identity, found in generation.items():
                total = merged.setdefault(identity, EndedKey(found.key))
                total.ended += found.ended
                total.expired += found.expired
        hot = [found for found in merged.values() if found.expired]
        hot.sort(key=lambda found: (found.expired, found.expired / found.ended), reverse=True)
        return hot[:number]

    def failed(self, event: Event) -> None:
        keys = ", ".join([key_text(key) for key in event.keys[:_MOST_KEYS_OF_EVENT]])
        text = "" if event.error is None else error_text(event.error)
        place = "" if event.error is None else place_of(event.error)
        self.failures.append(Failure(time.time(), self._clock.now_ms(), event.kind, keys, text, place))
        super().failed(event)

    def ended(self, event: Event) -> None:
        self._left -= 1
        if self._left <= 0:
            self.end()
        for key in event.keys[:_MOST_KEYS_OF_EVENT]:
            identity = identity_of(key)
            found = self._keys.get(identity)
            if found is None:
                if len(self._keys) >= _MOST_KEYS:
                    continue
                found = self._keys[identity] = EndedKey(key)
            found.ended += 1
            found.expired += event.outcome is Outcome.EXPIRED
