"""The checks that callbacks request while they run; the checks wait until the outermost call has nothing else to do.

If a check in a callback tried the next operation immediately, and that operation's callback did the same, a chain of
100,000 operations would need as many stack frames.  There are therefore two rules:

1.  While user code runs on behalf of the purgatory (``busy``), a check is only queued.
2.  Only the call that set ``busy`` runs the queue, in order, before it returns.

The queue belongs to the purgatory's core, which runs it; this class contains only the state.

While a viewer is connected, an inspector records which keys are checked.  A separate flag would cost every check an
additional test, so ``busy`` has a third value: a check tests ``busy`` anyway and distinguishes the other two values
only if ``busy`` is not zero.
"""

from collections import deque
from collections.abc import Hashable
from typing import Any, Final

from mypy_extensions import i64

from .watch.validation import UNLIMITED

__all__ = ["QueuedChecks"]

_MOST_NOTED: Final = 1000


class QueuedChecks:
    """The queue, and the progress of the running check.

    ``waiting``: the key, value, and limit of each queued check.  ``any``: whether there is a queued check, stored
    separately because testing a bool costs less than testing a deque.  ``busy``: 1 while user code runs on behalf of
    the purgatory, otherwise the value of ``rest``: 0, or -1 while checks are recorded.  ``left``: how many more
    operations the running check may complete, if it has a limit.  ``noted``: the recorded checks, as pairs of a key and
    whether an operation waited on that key.
    """

    __slots__ = ("any", "busy", "left", "noted", "rest", "waiting")

    def __init__(self) -> None:
        self.any: bool = False
        self.busy: i64 = 0
        self.rest: i64 = 0
        self.noted: list[tuple[Hashable, bool]] = []
        self.left: i64 = 0
        self.waiting: deque[tuple[Hashable, Any, int]] = deque()

    def add(self, key: Hashable, value: Any, limit: i64) -> None:
        """Queue a check."""
        self.waiting.append((key, value, limit))
        self.any = True

    def pop(self) -> tuple[Hashable, Any, int]:
        """Remove and return the next check: key, value, and limit."""
        check = self.waiting.popleft()
        self.any = len(self.waiting) > 0
        return check

    def resume(self, key: Hashable, value: Any, limit: i64) -> None:
        """Put back a check that was interrupted before it had tried all operations."""
        left = limit if limit == UNLIMITED else self.left
        if left > 0:
            self.waiting.appendleft((key, value, left))
            self.any = True

    # The records for an inspector

    def note_into(self, noted: list[tuple[Hashable, bool]]) -> None:
        """Record the next thousand checks in the list.  Call this method outside the purgatory's callbacks."""
        self.noted = noted
        self._rest_at(-1)

    def note(self, key: Hashable, watched: bool) -> None:
        """Record a check.  Call this method only while ``rest`` is not 0."""
        self.noted.append((key, watched))
        if len(self.noted) >= _MOST_NOTED:
            self._rest_at(0)

    def end_notes(self) -> None:
        """Stop recording checks and drop the list."""
        self.noted = []
        self._rest_at(0)

    def _rest_at(self, rest: i64) -> None:
        self.rest = rest
        if self.busy <= 0:
            self.busy = rest
