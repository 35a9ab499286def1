"""Closing: the ``aclose`` call that closes the purgatory, the calls that wait for it, and the steps of closing."""

import asyncio
import contextlib
from collections.abc import Awaitable
from contextvars import Context
from itertools import islice
from typing import TYPE_CHECKING, Any

from .turn_budget import TurnBudget

if TYPE_CHECKING:
    from .purgatory import Purgatory

__all__ = ["Closing", "PurgatoryClosing"]


class Closing:
    """The call that closes a purgatory or a timer.  Later calls in the same event loop wait for it.

    If the loop is closed before the call ends, the garbage collector closes the coroutine of the call.  A coroutine
    that is being closed must not wait, and the garbage collector must not run callbacks, so the next call continues
    where this one stopped.
    """

    __slots__ = ("_ended", "dropped")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ended = loop.create_future()
        self.dropped: bool = False

    def answers(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether another call in the loop must wait for this one, instead of closing anything."""
        return not self.dropped and (self._ended.done() or self._ended.get_loop() is loop)

    async def ended(self) -> bool:
        """Wait for the end; return False if the coroutine was closed before everything was answered."""
        await asyncio.shield(self._ended)
        return not self.dropped

    async def wait_for(self, awaitable: Awaitable[Any]) -> None:
        """Wait, and note whether the coroutine is closed meanwhile."""
        try:
            await awaitable
        except GeneratorExit:
            self.dropped = True
            raise

    def end(self) -> None:
        """Wake the calls that wait; do nothing if their loop is closed."""
        if not self._ended.get_loop().is_closed():
            self._ended.set_result(None)


class PurgatoryClosing:
    """How a purgatory closes.

    1.  New operations are refused.
    2.  The subscriptions of ``changes()`` end, in slices.
    3.  During the grace, operations end as usual; the end of the last one ends the grace.
    4.  All other operations expire by closing, in slices.  If the call is cancelled, they expire in one turn.
    5.  The purgatory's own timer closes.  The calls that wait return.
    """

    __slots__ = ("_call", "_empty", "_purgatory")

    def __init__(self, purgatory: "Purgatory[Any]") -> None:
        self._purgatory = purgatory
        self._call: Closing | None = None
        self._empty: asyncio.Future[None] | None = None  # done when the last operation has left

    async def close(self, grace_ms: int) -> None:
        """See :meth:`Purgatory.aclose`."""
        purgatory = self._purgatory
        loop = purgatory._reaper.bind()
        while self._call is not None and self._call.answers(loop):
            if await self._call.ended():
                return
        purgatory._core.closed = True
        call = self._call = Closing(loop)  # also after a loop was closed during the first call
        try:
            await self._end_subscriptions(call)
            if grace_ms and len(purgatory):
                await call.wait_for(self._wait_until_empty(grace_ms))
            slices = self._slices()
            while Context().run(purgatory._core.expire_some, slices.portion()):
                if slices.over():
                    await call.wait_for(slices.next_turn())
        finally:
            try:
                if not call.dropped:
                    self._expire_all()
            finally:
                try:
                    if purgatory._own_timer is not None and not call.dropped:
                        await call.wait_for(purgatory._own_timer.aclose())
                finally:
                    call.end()

    def emptied(self) -> None:
        """End the grace, because the last operation has left, or the time is up."""
        if self._empty is not None and not self._empty.done():
            with contextlib.suppress(RuntimeError):  # its loop is closed
                self._empty.set_result(None)

    def _slices(self) -> TurnBudget:
        timer = self._purgatory.timer
        return TurnBudget(timer.clock, timer.turn_budget_ms)

    async def _end_subscriptions(self, call: Closing) -> None:
        subscriptions = self._purgatory._subscriptions
        slices = self._slices()
        while subscriptions:
            for subscription in list(islice(subscriptions.values(), slices.portion())):
                Context().run(subscription.end)
            if slices.over():
                await call.wait_for(slices.next_turn())

    def _expire_all(self) -> None:
        """Expire all operations now; an interrupt propagates after all other operations are answered."""
        interrupt: BaseException | None = None
        while waiting := len(self._purgatory):
            try:
                Context().run(self._purgatory._core.expire_some, 1024)
            except BaseException as error:
                interrupt = error
            if len(self._purgatory) == waiting:
                break
        if interrupt is not None:
            raise interrupt

    async def _wait_until_empty(self, grace_ms: int) -> None:
        own = self._purgatory._own_timer
        if own is not None and not own.running and not own.closed:  # a closed one has no deadlines left to keep
            own.start()
        empty = self._empty = asyncio.get_running_loop().create_future()
        clock = self._purgatory.timer.clock
        alarm = clock.call_at(clock.ceil_ms() + grace_ms, self.emptied)
        try:
            await empty
        finally:
            alarm.cancel()
            self._empty = None if self._empty is empty else self._empty  # that of a call in the next loop
