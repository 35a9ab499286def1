"""Coalesced checks: the checks that ``check_soon``, ``check_all``, and ``check_threadsafe`` request.

The keys take turns in a queue.  The check of the first key tries as many of its watchers as the portion allows; if more
are left, the key moves to the end of the queue.  A key with one watcher therefore does not wait for a key with 100,000
watchers, and a key whose check is requested again and again does not delay the others.

A key is in the queue at most once, however often its check is requested.  One check serves all requests that arrive
before it begins: it uses the largest of their values, or no value if one of the requests had none, because a check
without a value tries every watcher.  If a check is requested while the key's watchers are being tried, the key is
checked once more after that check ends, starting with the first watcher.

When checks of many keys are requested together (of all watched keys, or of the keys from other threads), the keys enter
the queue one by one, between the checks, so that even a million keys do not stall the loop.

Requests from other threads
===========================

Other threads put their requests into an *inbox*, under a lock, and the first request that finds the inbox empty wakes
the loop.  The lock is reentrant because a signal handler, or a key's ``__hash__``, may interrupt a request in the same
thread.  The interrupting request goes to a separate list, because the interrupted request may already have read the old
value of its key.

While keys that were taken from the inbox are still entering the queue, the inbox is not emptied again.  Requests that
arrive faster than the checks can run are therefore merged in the inbox, so there are never more requests than keys.

The loop is woken after the lock has been released; otherwise, the loop's thread would wake only to wait for the lock.
No wake-up is lost: the flag ``waking`` is set under the lock, together with the request, and cleared under the lock
before the inbox is emptied.  Therefore, while the flag is set, one of three conditions holds: the callback that empties
the inbox is in the loop; the thread that set the flag is about to put the callback there, even if that thread is
interrupted; or keys are entering the queue.

The event loop
==============

1.  A request schedules one callback in the loop, unless one is already scheduled.
2.  The callback works for at most ``turn_budget_ms``.  If keys are left, it schedules the next callback.
3.  If the loop is closed, the callback is dropped without being called.  Nothing is then scheduled, and the next
    request, or the timer's next loop, schedules a new callback.  The callback's number distinguishes it from the
    callbacks of earlier loops.
4.  A wake-up that was left in an earlier loop does nothing if that loop runs again: a wake-up is scheduled in the new
    loop when the purgatory moves there (``move_to``), and after that move, requests wake only the new loop.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Hashable, Iterator
from contextvars import Context
from typing import TYPE_CHECKING, Any

from purgatory.core.purgatory import PurgatoryCore
from purgatory.core.watch.cursor import WatchCursor
from purgatory.core.watch.thresholds import wider
from purgatory.core.watch.watcher_lists import SHARDS

from .turn_budget import TurnBudget

if TYPE_CHECKING:
    from .purgatory import Purgatory

__all__ = ["CoalescedChecks", "LoopChecks"]

_FREED = 64  # the number of keys that are freed in one step


class _Check:
    """The check of one key.  ``again``: another check must follow, with the value ``again_value``.

    ``queued``: whether it is in the queue or in progress.  A check is neither if it could not be removed because its
    key raised.
    """

    __slots__ = ("again", "again_value", "cursor", "key", "queued", "value")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.value: Any = None
        self.cursor: WatchCursor | None = None  # None if the check has not begun
        self.queued = False
        self.again = False
        self.again_value: Any = None


class CoalescedChecks:
    """The queue of keys to check, processed in portions."""

    __slots__ = ("_checks", "_core", "_next_shard", "_queue", "_requested", "_shard_keys", "_shards_left")

    def __init__(self, core: PurgatoryCore) -> None:
        self._core = core
        self._queue: deque[_Check] = deque()
        self._checks: dict[Hashable, _Check] = {}  # the check of each key in the queue
        # Requested keys, which enter the queue one by one, and the dict that is then emptied step by step.
        self._requested: deque[tuple[Iterator[tuple[Hashable, Any]], dict[Hashable, Any]]] = deque()
        self._shard_keys: deque[Hashable] = deque()  # keys of the current shard, for add_all()
        self._next_shard = 0
        self._shards_left = 0

    def __bool__(self) -> bool:
        return bool(self._queue or self._requested or self._shard_keys or self._shards_left)

    def add(self, key: Hashable, value: Any = None) -> None:
        """Request a check of the key."""
        check = self._checks.get(key)
        if check is None:
            check = self._checks[key] = _Check(key)
        if not check.queued:
            check.queued = True
            check.value = value
            self._queue.append(check)
        elif check.cursor is None:
            check.value = wider(check.value, value)
        elif check.again:
            check.again_value = wider(check.again_value, value)
        else:
            check.again = True
            check.again_value = value

    def add_many(self, requested: dict[Hashable, Any]) -> None:
        """Request a check of each key in the dict, with its value.  The dict belongs to the queue, which empties it."""
        self._requested.append((iter(requested.items()), requested))

    def add_all(self) -> None:
        """Request a check of every watched key."""
        self._shards_left = SHARDS  # each shard once, starting with the next one

    def work(self, number: int) -> None:
        """Try the next ``number`` watchers, or all that are left."""
        while number > 0 and self:
            if self._requested:
                self._move_requested()
            if self._shard_keys or self._shards_left:
                self._move_watched()
            if not self._queue:
                number -= 1
                continue
            check = self._queue.popleft()
            cursor = check.cursor
            if cursor is None:
                try:
                    cursor = check.cursor = self._core.cursor(check.key, check.value)
                except BaseException:
                    self._forget(check)
                    raise
                queued = self._core.queued
                if queued.rest:
                    queued.note(check.key, cursor is not None)
                if cursor is None:
                    self._forget(check)
                    number -= 1
                    continue
            tried = number
            try:
                tried = self._core.check_some(cursor, number)
            finally:
                # An interrupt propagates; the cursor then continues after the interrupted operation.
                self._put_back(check, ended=tried < number or cursor.at_end())
            number -= max(tried, 1)

    def _put_back(self, check: _Check, *, ended: bool) -> None:
        if ended and not check.again:
            self._forget(check)
            return
        if ended:
            check.again = False
            check.value = check.again_value
            check.cursor = None
        self._queue.append(check)

    def _forget(self, check: _Check) -> None:
        """Remove a finished check.  If its key raises, the check is kept for the next request for that key."""
        check.cursor = None
        check.queued = False
        try:
            other = self._checks.pop(check.key, check)
            if other is not check:  # the hash of the key has changed
                self._checks.setdefault(other.key, other)
        except Exception:
            check.value = None
        if not self._queue:
            self._checks.clear()  # clear() neither hashes nor compares the keys, so no key raises here

    def _move_requested(self) -> None:
        """Take one of the keys that were requested together, and put it into the queue.

        When the last one has been taken, free the keys step by step: freeing a million keys at once stalls the loop.
        """
        self._requested.rotate(-1)
        keys, requested = self._requested[-1]
        for key, value in keys:
            self.add(key, value)
            return
        for _ in range(min(len(requested), _FREED)):
            requested.popitem()
        if not requested:
            self._requested.pop()
            if not self._requested:
                self._request_more()

    def _request_more(self) -> None:
        """Request the checks that had to wait until the keys requested together had entered the queue."""

    def _move_watched(self) -> None:
        """Move one of the watched keys into the queue."""
        while not self._shard_keys and self._shards_left:
            self._shard_keys.extend(self._core.watcher_lists.keys_of_shard(self._next_shard))
            self._shards_left -= 1
            self._next_shard = (self._next_shard + 1) % SHARDS
        if self._shard_keys:
            self.add(self._shard_keys.popleft())


class _CheckInSlices:
    """The callback that runs the due checks.  Only the event loop refers to it; closing the loop frees it without
    calling it.
    """

    __slots__ = ("_checks", "_number")

    def __init__(self, checks: "LoopChecks", number: int) -> None:
        self._checks = checks
        self._number = number

    def __call__(self) -> None:
        if self._checks._number == self._number:
            self._checks._work_in_slices()

    def __del__(self) -> None:
        if self._checks._number == self._number:
            self._checks.scheduled = False


class LoopChecks(CoalescedChecks):
    """The coalesced checks of a purgatory on an event loop.

    ``scheduled``: whether the loop holds the callback that runs them.
    """

    __slots__ = (
        "_inbox",
        "_inbox_busy",
        "_interrupting",
        "_lock",
        "_number",
        "_purgatory",
        "_slices",
        "_waking",
        "scheduled",
    )

    def __init__(self, purgatory: "Purgatory[Any]") -> None:
        super().__init__(purgatory._core)
        self._purgatory = purgatory
        self._slices: TurnBudget | None = None  # for the callbacks since the queue was last empty
        self.scheduled: bool = False
        self._number = 0  # the number of the scheduled callback
        self._inbox: dict[Hashable, float | None] = {}
        self._waking = False  # the loop has been woken, or a thread is about to wake it
        self._lock = threading.RLock()
        self._inbox_busy = False
        self._interrupting: list[tuple[Hashable, float | None]] = []  # requested while the inbox was busy

    def schedule(self) -> None:
        """Schedule the callback in the running event loop, before a request.  Raises RuntimeError if no loop runs."""
        if not self.scheduled:
            loop = self._purgatory._binding.bind()
            if not self.scheduled:  # otherwise, bind() has moved the timer to this loop and scheduled the callback
                self._schedule_in(loop)

    def add_from_thread(self, key: Hashable, value: float | None) -> None:
        """Request a check of the key, from any thread.

        Raises RuntimeError if the purgatory has no event loop yet, or if that loop is closed.
        """
        claimed = False
        try:
            with self._lock:
                loop = self._purgatory._loop
                if loop is None:
                    raise RuntimeError("the purgatory belongs to no event loop yet: enter it with 'async with' first")
                if loop.is_closed():
                    raise RuntimeError("the event loop of the purgatory is closed")
                if self._inbox_busy:
                    self._interrupting.append((key, value))
                else:
                    self._inbox_busy = True
                    try:
                        self._inbox[key] = wider(self._inbox.get(key, value), value)
                    finally:
                        self._inbox_busy = False
                if not self._waking:
                    claimed = self._waking = True
            if claimed:
                loop.call_soon_threadsafe(self._wake, context=Context())
        except BaseException:
            loop = self._purgatory._loop
            if claimed and loop is not None and not loop.is_closed():
                # Other requests, such as one from a signal handler that raised, may have relied on this thread to wake
                # the loop.
                loop.call_soon_threadsafe(self._wake, context=Context())
            elif claimed:
                self._waking = False
            raise

    def move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """Schedule, in this loop, the checks that the purgatory's previous loop did not run."""
        if self:
            self._slices = None
            self._schedule_in(loop)
        with self._lock:
            if self._purgatory._loop is not None:
                self._purgatory._loop = loop
            if self._inbox or self._interrupting:
                loop.call_soon(self._wake, context=Context())

    def take(self) -> CoalescedChecks:
        """Remove the checks that have been requested so far, and return them as a queue that no later request enters.

        Call this method outside a check.
        """
        self._empty_inbox()
        taken = CoalescedChecks(self._core)
        taken._queue, self._queue = self._queue, taken._queue
        taken._checks, self._checks = self._checks, taken._checks
        taken._requested, self._requested = self._requested, taken._requested
        taken._shard_keys, self._shard_keys = self._shard_keys, taken._shard_keys
        taken._next_shard = self._next_shard
        taken._shards_left, self._shards_left = self._shards_left, 0
        return taken

    def renew_lock(self) -> None:
        """In a child process, replace the lock, which another thread of the parent may have held at the fork.

        That thread does not run in the child: it neither releases the lock nor wakes the loop.  Resetting the flag
        ``waking`` only lets the next request wake the loop once more.
        """
        self._lock = threading.RLock()
        self._inbox_busy = False
        self._waking = False

    def after_fork(self) -> None:
        """In a child process, reset the state, because no loop calls back."""
        self.scheduled = False
        self._number += 1

    def _schedule_in(self, loop: asyncio.AbstractEventLoop) -> None:
        self._number += 1
        loop.call_soon(_CheckInSlices(self, self._number), context=Context())
        self.scheduled = True

    def _work_in_slices(self) -> None:
        slices = self._slices
        if slices is None:
            timer = self._purgatory.timer
            slices = self._slices = TurnBudget(timer.clock, timer.turn_budget_ms)
        else:
            slices.resume()
        try:
            while self:
                self.work(slices.portion())
                if slices.over():
                    break
        finally:
            self.scheduled = False  # before the queue is read: a finalizer may request a check in between
            if self:
                self._schedule_in(asyncio.get_running_loop())
            else:
                self._slices = None

    def _wake(self) -> None:
        """Empty the inbox, either now or when the keys that were taken from it earlier have entered the queue.

        Until then, all further requests for one key share one entry in the inbox.  The progress of the checks, not the
        speed of the threads, therefore limits how many requests are processed.

        In a loop to which the purgatory no longer belongs, do nothing.
        """
        if self._purgatory._timer._loop is not asyncio._get_running_loop():
            return
        if self._requested:
            self.schedule()
        else:
            self._empty_inbox()

    def _request_more(self) -> None:
        if self._waking:
            self._empty_inbox()

    def _empty_inbox(self) -> None:
        self._purgatory._binding.bind()  # this may raise, so it comes before the requests are taken
        with self._lock:
            # A finalizer may make a request between any two statements, in this thread, which holds the lock.  The flag
            # is therefore cleared first: a request from now on wakes the loop, whichever inbox it enters.
            self._waking = False
            named, self._inbox = self._inbox, {}
            interrupting, self._interrupting = self._interrupting, []
        if not named and not interrupting:
            return
        self.schedule()
        self.add_many(named)
        for key, value in interrupting:
            self.add(key, value)
