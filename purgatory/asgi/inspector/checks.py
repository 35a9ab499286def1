"""The recently checked keys, including those on which no operation waited; they are recorded while a viewer is
connected.

If operations wait but none completes, then either their keys are not checked, or the checks name other keys, or the
conditions do not hold.  Only the checks themselves distinguish these cases.  The purgatory records the checks in a
list, at most a thousand between two frames; a frame counts them by key.
"""

from collections.abc import Hashable
from typing import Any

from purgatory import Purgatory
from purgatory.core.operation.private_key import PrivateKey
from purgatory.core.timer.units import to_seconds
from purgatory.core.watch.validation import is_plain
from purgatory.texts import key_text

from .slices import Slices

__all__ = ["CheckedKey", "Checks", "identity_of"]

_MOST_KEYS = 1000


def identity_of(key: Hashable) -> Hashable:
    """Return the key if it is plain; otherwise, return a tuple with its text, because hashing the key would run the
    user's code.
    """
    return key if is_plain(key) else (key_text(key),)


class CheckedKey:
    """The number of checks of a key, the time of its last check in ms, and whether an operation then waited on it."""

    __slots__ = ("at_ms", "checks", "key", "watched")

    def __init__(self, key: Hashable) -> None:
        self.key: Hashable = key
        self.checks: int = 0
        self.at_ms: int = 0
        self.watched: bool = False


class Checks:
    """The checks of a purgatory since the first viewer connected, by key, for the thousand most recently checked keys.

    ``total``: the number of checks.  ``watched``: the number of checks of keys on which operations waited.
    ``complete``: whether every check was counted; False if there were too many.
    """

    def __init__(self, room: Purgatory[Any]) -> None:
        self._queued = room._core.queued
        self._clock = room.timer.clock
        self._noted: list[tuple[Hashable, bool]] = []
        self._began_ms: int | None = None
        self._keys: dict[Hashable, CheckedKey] = {}
        self.total: int = 0
        self.watched: int = 0
        self.complete: bool = True

    @property
    def seconds(self) -> float | None:
        """How long the checks have been counted, in seconds; None if another inspector counts them."""
        return None if self._began_ms is None else to_seconds(self._clock.now_ms() - self._began_ms)

    async def begin(self, slices: Slices) -> None:
        """Count the checks that were recorded since the last call, and record those that follow.  Call this method in
        the purgatory's loop.
        """
        noted = self._noted
        if self._queued.noted is not noted:
            self._forget()
            if self._queued.rest:
                return  # another inspector is already recording
            self._began_ms = self._clock.now_ms()
        elif not self._queued.rest:
            self.complete = False  # the list was full
        self._noted = []
        self._queued.note_into(self._noted)
        now_ms = self._clock.now_ms()
        for key, watched in noted:
            if isinstance(key, PrivateKey):
                continue
            identity = identity_of(key)
            found = self._keys.pop(identity, None)
            if found is None:
                found = CheckedKey(key)
                if len(self._keys) >= _MOST_KEYS:
                    del self._keys[next(iter(self._keys))]
                    self.complete = False
            self._keys[identity] = found  # moves it to the end
            found.checks += 1
            found.at_ms = now_ms
            found.watched = watched
            self.total += 1
            self.watched += watched
            await slices.pause_if_due()

    def end(self) -> None:
        """Stop recording, because no viewer is connected any longer."""
        if self._queued.noted is self._noted:
            self._queued.end_notes()
        self._forget()

    def of(self, key: Hashable) -> CheckedKey | None:
        """Return the checks of a key, or None if there were none."""
        return self._keys.get(identity_of(key))

    def unwatched(self, number: int) -> list[CheckedKey]:
        """Return the keys on which no operation waited at their last check, starting with the most recently checked
        key.
        """
        found = [key for key in reversed(self._keys.values()) if not key.watched]
        return found[:number]

    def _forget(self) -> None:
        self._noted = []
        self._keys.clear()
        self._began_ms = None
        self.total = self.watched = 0
        self.complete = True
