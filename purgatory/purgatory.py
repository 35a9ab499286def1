"""The waiting room itself, on an event loop.  Floor 4."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from .clock import Clock
from .delayed import DelayedOperation
from .dump import Dump, dump
from .events import Observer
from .futures import DelayedFuture, WhenAll, wait_for_all
from .ledger import Ledger
from .operation import Operation, set_running_loop
from .reaper import Slices, SystemTimer, report
from .room import Room
from .rounds import Rounds
from .units import duration_ms

__all__ = ["Purgatory"]

T = TypeVar("T")
Op = TypeVar("Op", bound=DelayedOperation[Any])


set_running_loop(asyncio.get_running_loop)


class _Condition(DelayedOperation[bool]):
    """What ``wait_until`` parks."""

    __slots__ = ("_predicate",)

    def __init__(self, predicate: Callable[[], object], timeout: float | None) -> None:
        super().__init__(timeout)
        self._predicate = predicate

    def try_complete(self) -> bool:
        return bool(self._predicate())

    def on_complete(self) -> bool:
        return not self.expired


class Purgatory(Room, Generic[Op]):
    """A room where requests wait until their condition holds or their deadline passes.

    **Usage.**  ::

        async with Purgatory("fetch") as purgatory:
            answer = await purgatory.park(operation, ["orders-0"])  # in the request's handler
            purgatory.check_and_complete("orders-0")                # wherever the state changes

    **Implementation.**  Watch lists by key, and a timer of hierarchical timing wheels.  When an operation ends it
    leaves all of them at once; there is no purge.

    **Cancellation safety.**  Cancelling a task in :meth:`park` or :meth:`wait_until` withdraws its operation at once;
    if the operation ended in the same turn of the loop, its outcome stands and the task is still cancelled.

    ``name``: for people, statistics and events.  ``timer``: one that several purgatories share; it is not closed with
    any of them.  Without it the purgatory has one of its own, with ``clock``, ``tick_ms`` and ``wheel_size`` as in
    :class:`SystemTimer`.  ``max_parked``, ``max_parked_per_key``: above them :class:`PurgatoryFull`.  ``observers``:
    told of every operation's life, see :class:`purgatory.events.Observer`.
    """

    def __init__(
        self,
        name: str,
        *,
        timer: SystemTimer | None = None,
        clock: Clock | None = None,
        tick_ms: int = 1,
        wheel_size: int = 20,
        max_parked: int | None = None,
        max_parked_per_key: int | None = None,
        observers: Sequence[Observer | Ledger] = (),
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name is a str, not {name!r}")
        if timer is None:
            own = SystemTimer(tick_ms=tick_ms, wheel_size=wheel_size, clock=clock)
            own._starts_itself = True
            self._own_timer: SystemTimer | None = own
            timer = own
        else:
            if not isinstance(timer, SystemTimer):
                raise TypeError(f"timer is a SystemTimer, not {timer!r}")
            if clock is not None or tick_ms != 1 or wheel_size != 20:
                raise ValueError("give either a timer or clock, tick_ms and wheel_size: a shared timer has its own")
            self._own_timer = None
        self._reaping = timer
        contained = (Exception, asyncio.CancelledError)
        super().__init__(name, timer, contained, max_parked, max_parked_per_key, observers)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._soon = Rounds(self._desk)
        self._soon_slices: Slices | None = None
        self._soon_scheduled = False
        self._inbox: dict[Hashable, None] = {}
        self._inbox_lock = threading.RLock()  # a signal handler may ask while the loop's own thread is asking
        self._empty: asyncio.Future[None] | None = None
        self._all_answered: asyncio.Future[None] | None = None

    if TYPE_CHECKING:

        def try_complete_else_watch(self, operation: Op, keys: Iterable[Hashable] | Mapping[Any, float]) -> bool: ...

        def cancel_for_key(self, key: Hashable) -> list[Op]: ...

        def fail_for_key(self, key: Hashable, error: Exception) -> int: ...

        def hot_keys(self, n: int = 10) -> list[tuple[Hashable, int]]: ...

    @property
    def timer(self) -> SystemTimer:
        """The timer that its deadlines are on."""
        return self._reaping

    # Life

    async def __aenter__(self) -> Self:
        self._desk.check_open()
        self._loop = asyncio.get_running_loop()
        if self._own_timer is not None:
            self._own_timer.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self, *, grace: float = 0.0) -> None:
        """Close it: nothing new is taken, and everyone who waits is answered.

        What ends within ``grace`` seconds ends by itself; then the rest is expired at once, in slices.  When this
        returns, nobody waits and the reaper of its own timer is gone.  Idempotent: a second call waits for the first.
        If the closing task is cancelled, the rest is expired before the cancellation goes on.
        """
        grace_ms = duration_ms(grace, "grace")
        if self._all_answered is not None:
            await asyncio.shield(self._all_answered)
            return
        self._desk.closed = True
        self._all_answered = asyncio.get_running_loop().create_future()
        try:
            if grace_ms and len(self):
                await self._wait_until_empty(grace_ms)
            slices = Slices(self._desk.clock, self._reaping.turn_budget_ms)
            while self._desk.expire_some(slices.portion()):
                if slices.over():
                    await slices.next_turn()
        finally:
            try:
                self._expire_all()
            finally:
                try:
                    if self._own_timer is not None:
                        await self._own_timer.aclose()
                finally:
                    self._all_answered.set_result(None)

    def _expire_all(self) -> None:
        """Expire everyone now; an interrupt on the way passes through when the others are answered."""
        interrupt: BaseException | None = None
        while waiting := len(self):
            try:
                self._desk.expire_some(1024)
            except BaseException as error:
                interrupt = error
            if len(self) == waiting:
                break
        if interrupt is not None:
            raise interrupt

    async def _wait_until_empty(self, grace_ms: int) -> None:
        if not self._reaping.running and self._own_timer is not None:
            self._own_timer.start()
        self._empty = asyncio.get_running_loop().create_future()
        alarm = self._desk.clock.call_at(self._desk.clock.ceil_ms() + grace_ms, self.emptied)
        try:
            await self._empty
        finally:
            alarm.cancel()
            self._empty = None

    def emptied(self) -> None:
        if self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    # Waiting

    async def park(self, operation: DelayedOperation[T], keys: Iterable[Hashable] | Mapping[Any, float]) -> T:
        """Hand the operation over and wait for its end; return what its ``on_complete`` made.

        If the awaiting task is cancelled, the operation is withdrawn at once.  Raises what
        :meth:`try_complete_else_watch` raises, :class:`OperationCancelled` if somebody withdraws the operation, and
        the exception of one that failed.
        """
        reaper = self._reaping._reaper
        if reaper is None or reaper.done():
            self._settle_in()
        waiter = self._desk.park(operation, keys)
        if waiter is None:
            return operation.result()
        try:
            return await waiter  # type: ignore[no-any-return]
        except BaseException:
            operation._parker = None  # who waited here has left
            operation.cancel()  # only does something if it has not ended
            raise

    def _settle_in(self) -> None:
        """Before somebody waits for the first time, or when the reaper is gone: see that there is one in this loop."""
        self._desk.check_open()
        self._reaping.start()

    async def wait_until(
        self, predicate: Callable[[], object], *, keys: Iterable[Hashable] | Mapping[Any, float], timeout: float | None
    ) -> bool:
        """Wait until ``predicate()`` is true; it is called now and on every check of one of the keys.

        True: it was.  False: ``timeout`` seconds have passed.
        """
        if not callable(predicate):
            raise TypeError(f"predicate is something to call, not {predicate!r}")
        return await self.park(_Condition(predicate, timeout), keys)

    def when_all(
        self, futures: Iterable["asyncio.Future[T]"], timeout: float | None, callback: WhenAll[T] | None = None
    ) -> DelayedFuture[T]:
        """Park an operation that completes when all the futures are done; await it, or give a ``callback``, or both.

        It is handed over at once, and what :meth:`try_complete_else_watch` raises is raised here.  On expiry the
        futures that are pending fail with TimeoutError.  See :class:`purgatory.DelayedFuture`.
        """
        operation = DelayedFuture(futures, timeout, callback)
        wait_for_all(self, operation)
        if self._reaping._reaper is None and operation.scheduled:
            self._reaping.start()
        return operation

    # Checking, later

    def check_soon(self, key: Hashable) -> None:
        """Check the key once at the end of this turn of the loop, however often this is called until then.

        The checks of a turn are done in slices of the timer's ``turn_budget_ms``, the keys taking turns, so that
        neither many keys nor many watchers hold up the loop.  A key that is named again while it is being checked is
        checked again, once.  RuntimeError where no loop runs.
        """
        hash(key)
        if not self._soon_scheduled:
            asyncio.get_running_loop().call_soon(self._check_in_slices)
            self._soon_scheduled = True
        self._soon.add(key)

    def _check_in_slices(self) -> None:
        slices = self._soon_slices
        if slices is None:
            slices = self._soon_slices = Slices(self._desk.clock, self._reaping.turn_budget_ms)
        else:
            slices.resume()
        try:
            while self._soon:
                self._soon.work(slices.portion())
                if slices.over():
                    break
        finally:
            self._soon_scheduled = bool(self._soon)
            if self._soon_scheduled:
                asyncio.get_running_loop().call_soon(self._check_in_slices)
            else:
                self._soon_slices = None

    def check_threadsafe(self, key: Hashable) -> None:
        """:meth:`check_soon` from any thread; one wake-up of the loop for all that is asked before it comes round.

        Raises RuntimeError if the loop is closed, or if the purgatory has not been entered and so belongs to none.
        """
        hash(key)
        with self._inbox_lock:
            loop = self._loop
            if loop is None:
                raise RuntimeError("the purgatory belongs to no event loop yet: enter it with 'async with' first")
            if not self._inbox or loop.is_closed():
                loop.call_soon_threadsafe(self._empty_inbox)  # RuntimeError if the loop is closed
            self._inbox[key] = None

    def _empty_inbox(self) -> None:
        with self._inbox_lock:
            keys, self._inbox = self._inbox, {}
        for key in keys:
            self.check_soon(key)

    # Looking in

    def dump(self, limit: int | None = 1000) -> Dump:
        """Who waits on what, since when, until when: a dict for tools, whose ``str()`` is a table for people.

        The longest waiting come first.  Where more than ``limit`` wait, it lists some ``limit`` of them, in no
        particular choice, and takes no longer than that; None lists all.
        """
        return dump(self._desk, limit)

    # Inside

    def check_later(self, key: Hashable) -> None:
        with contextlib.suppress(RuntimeError):  # no loop runs: then there is no later
            self.check_soon(key)

    def report(self, error: BaseException, operation: Operation) -> None:
        report(f"an operation of purgatory {self.name!r} raised", error, operation=operation)

    def report_observer(self, error: BaseException, observer: object) -> None:
        report(f"an observer of purgatory {self.name!r} raised and is detached", error, observer=observer)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        gauges = f"parked={len(self)} watched={self.watched} num_delayed={self.num_delayed}"
        return f"<Purgatory {self.name!r} {state} {gauges}>"
