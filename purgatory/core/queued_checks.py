"""The checks that callbacks request while they run: they wait until the outermost call has nothing else to do.

If a check in a callback tried the next operation immediately, and the callback of that one did the same, a chain of
100,000 operations would need as many stack frames.  So there are two rules:

1.  While user code runs on behalf of the purgatory (``busy``), a check is only queued.
2.  The call that made it busy, and no other, runs the queue in order before it returns.

The queue belongs to the purgatory's core, which runs it; this class is the state of that.
"""

from collections import deque
from collections.abc import Hashable
from typing import Any

from mypy_extensions import i64

from .watch.validation import UNLIMITED

__all__ = ["QueuedChecks"]


class QueuedChecks:
    """The queue, and the progress of the check that runs.

    ``waiting``: the key, the value and the limit of each.  ``busy``: user code runs on behalf of the purgatory.
    ``left``: how many more operations the running check may complete, if it has a limit.
    """

    __slots__ = ("busy", "left", "waiting")

    def __init__(self) -> None:
        self.busy: bool = False
        self.left: i64 = 0
        self.waiting: deque[tuple[Hashable, Any, int]] = deque()

    def add(self, key: Hashable, value: Any, limit: i64) -> None:
        """Queue a check."""
        self.waiting.append((key, value, limit))

    def pop(self) -> tuple[Hashable, Any, int]:
        """Take the next check out: key, value, limit."""
        return self.waiting.popleft()

    def resume(self, key: Hashable, value: Any, limit: i64) -> None:
        """Put back the check that an interrupt has ended, for the operations that it has not tried."""
        left = limit if limit == UNLIMITED else self.left
        if left > 0:
            self.waiting.appendleft((key, value, left))
