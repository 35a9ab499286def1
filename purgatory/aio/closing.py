"""How a purgatory closes: the ``aclose`` call that does the work, the calls that wait for it, and the steps."""

import asyncio
import contextlib
from collections.abc import Awaitable
from contextvars import Context
from itertools import islice
from typing import TYPE_CHECKING, Any

from .coalesced_checks import CoalescedChecks
from .error_reporting import report
from .exact_alarm import ExactAlarm
from .turn_budget import TurnBudget

if TYPE_CHECKING:
    from .purgatory import Purgatory

__all__ = ["Closing", "PurgatoryClosing"]


class Closing:
    """The call that closes a purgatory or a timer.  Later calls in the same event loop wait for it.

    If the loop is closed before the call ends, the garbage collector closes the coroutine of the call.  A coroutine
    that is being closed must not wait, and the garbage collector must not run callbacks, so the next call continues
    from where this call stopped.
    """

    __slots__ = ("_ended", "dropped")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ended = loop.create_future()
        self.dropped: bool = False

    def answers(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether another call in the loop must wait for this call instead of closing anything itself."""
        return not self.dropped and (self._ended.done() or self._ended.get_loop() is loop)

    async def ended(self) -> bool:
        """Wait until this call ends; return False if its coroutine was closed before every waiter was answered."""
        await asyncio.shield(self._ended)
        return not self.dropped

    async def wait_for(self, awaitable: Awaitable[Any]) -> None:
        """Wait, and record whether the coroutine is closed in the meantime."""
        try:
            await awaitable
        except GeneratorExit:
            self.dropped = True
            raise

    def end(self) -> None:
        """Wake the waiting calls; do nothing if their loop is closed."""
        if not self._ended.get_loop().is_closed():
            self._ended.set_result(None)


class PurgatoryClosing:
    """How a purgatory closes.

    1.  New operations are refused.
    2.  The checks that were requested before the call run, in slices.
    3.  The subscriptions of ``changes()`` end, in slices.
    4.  During the grace period, operations end as usual; when the last one has ended, the grace period ends early.
        Then the checks that have been requested run.
    5.  All other operations expire, in slices.  If the call is cancelled, the requested checks run and all operations
        expire in one turn.
    6.  The purgatory's own timer closes.  The waiting calls return.
    """

    __slots__ = ("_call", "_empty", "_purgatory", "_requested")

    def __init__(self, purgatory: "Purgatory[Any]") -> None:
        self._purgatory = purgatory
        self._call: Closing | None = None
        self._empty: asyncio.Future[None] | None = None  # done when the last operation has left
        self._requested: CoalescedChecks | None = None  # the requested checks that are being tried

    async def close(self, grace_ms: int) -> None:
        """See :meth:`Purgatory.aclose`."""
        purgatory = self._purgatory
        loop = purgatory._binding.bind()
        while self._call is not None and self._call.answers(loop):
            if await self._call.ended():
                return
        core = purgatory._core
        core.closed = True
        call = self._call = Closing(loop)  # also if a loop was closed during the first call
        try:
            await self._try_requested(call)
            if purgatory._subscriptions:
                await self._end_subscriptions(call)
            if grace_ms and core.counters.parked:
                await call.wait_for(self._wait_until_empty(grace_ms))
                await self._try_requested(call)
            slices = self._slices()
            while core.counters.parked and Context().run(core.expire_some, slices.portion()):
                if slices.over():
                    await call.wait_for(slices.next_turn())
        finally:
            try:
                if not call.dropped:
                    self._expire_all()
            finally:
                try:
                    if purgatory._owns_timer and not call.dropped:
                        await call.wait_for(purgatory._timer.aclose())
                finally:
                    call.end()

    def emptied(self) -> None:
        """End the grace period because the last operation has left or the time is up."""
        if self._empty is not None and not self._empty.done():
            with contextlib.suppress(RuntimeError):  # its loop is closed
                self._empty.set_result(None)

    def _slices(self) -> TurnBudget:
        timer = self._purgatory._timer
        return TurnBudget(timer.clock, timer.turn_budget_ms)

    async def _try_requested(self, call: Closing) -> None:
        """Run, in slices, the checks that ``check_soon``, ``check_all``, and ``check_threadsafe`` have requested."""
        core = self._purgatory._core
        if core.counters.parked and core.queued.busy > 0:  # an eager task runs this in a callback, within a check
            await call.wait_for(asyncio.sleep(0))
        if self._requests_left():
            slices = self._slices()
            while self._requests_left():
                self._try_some(slices.portion())
                if slices.over():
                    await call.wait_for(slices.next_turn())
        self._requested = None

    def _requests_left(self) -> bool:
        """Return whether there are requested checks for which an operation may be waiting."""
        core = self._purgatory._core
        if core.counters.parked == 0 or core.queued.busy > 0:
            return False
        if self._requested is None:
            self._requested = self._purgatory._soon.take()
        return bool(self._requested)

    def _try_some(self, number: int) -> None:
        """Try the next ``number`` operations.  If a key raises, the error is reported, as the event loop would report
        it.
        """
        assert self._requested is not None
        try:
            Context().run(self._requested.work, number)
        except Exception as error:
            name = self._purgatory.name
            report(f"a key of purgatory {name!r} raised, and its check was left out", error)

    async def _end_subscriptions(self, call: Closing) -> None:
        subscriptions = self._purgatory._subscriptions
        slices = self._slices()
        while subscriptions:
            portion = slices.portion()
            for subscription in list(islice(subscriptions.values(), portion)):
                portion -= Context().run(subscription.end_some, portion)
                if portion <= 0:
                    break
            if slices.over():
                await call.wait_for(slices.next_turn())

    def _expire_all(self) -> None:
        """Expire all operations now; an interrupt propagates only after all other operations have been answered."""
        interrupt: BaseException | None = None
        core = self._purgatory._core
        while self._requests_left():
            try:
                self._try_some(1024)
            except BaseException as error:
                interrupt = error
        while waiting := core.counters.parked:
            try:
                Context().run(core.expire_some, 1024)
            except BaseException as error:
                interrupt = error
            if core.counters.parked == waiting:
                break
        core.watcher_lists.end_some()  # the last operations may also have ended in another way, between two turns
        for subscription in list(self._purgatory._subscriptions.values()):
            subscription.end()  # an interrupt kept it from ending; its operations have ended now
        if interrupt is not None:
            raise interrupt

    async def _wait_until_empty(self, grace_ms: int) -> None:
        timer = self._purgatory._timer
        # A closed timer has no deadlines left to keep.
        if self._purgatory._owns_timer and not timer.closed:
            self._purgatory._reaper.start()
        empty = self._empty = asyncio.get_running_loop().create_future()
        alarm = ExactAlarm(timer.clock, timer.clock.ceil_ms() + grace_ms, self.emptied)
        try:
            await empty
        finally:
            alarm.cancel()
            self._empty = None if self._empty is empty else self._empty  # otherwise, a later call has replaced it
