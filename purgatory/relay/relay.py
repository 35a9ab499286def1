"""The relay, through which a check in one process also reaches the operations in the other processes.

A purgatory lives in one process.  If several workers serve the same users, the state can change in one worker while the
request is parked in another.  The relay sends the *keys* of a check, not the data, through an engine that the
application already uses; each worker then reads the state itself.  Checks are idempotent, so it is sufficient that each
notice arrives at least once, and notices for the same key can be coalesced.

Why no wake-up is lost
======================

1.  While the connection is up, the engine delivers every notice that it has accepted.
2.  A notice that the engine has not accepted stays pending and is sent over the next connection.
3.  When a connection is lost, for whatever reason, notices may be lost with it.  Therefore, when the *next*
    subscription is confirmed, every watched key is refreshed and checked.  This refresh reads all changes made before
    that moment; the notices of later changes arrive through the subscription.
4.  If a set of pending keys grows too large, it becomes "every key": memory is bounded, and no key is missed.
5.  If a connection is dead but reports no error, pings are lost too, and the relay drops the connection.
6.  As a safety net, every watched key is refreshed and checked every ``resync_every`` seconds, whether or not the relay
    is connected.
"""

import asyncio
import contextvars
import logging
import os
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Self, TypeVar, overload

from purgatory import Clock, DelayedOperation, Purgatory, PurgatoryClosed
from purgatory.aio.exact_alarm import ExactAlarm
from purgatory.core.operation.wait_until import MISSING, WaitUntil, WaitValue, keys_of_call, until_wait, value_wait
from purgatory.core.timer.units import duration_ms, to_seconds
from purgatory.core.watch.validation import validate_iterable
from purgatory.errors import RelayLost
from purgatory.types import Alarm

from .addresses import described
from .codec import is_key, validate_key, validate_value
from .connection import Connection, State
from .notices import entries_of, payloads_of
from .receiver import Receiver
from .refresh import Refresher
from .sender import Sender
from .state import NEVER, RelayWait
from .statistics import RelayStatistics
from .timing import backoff_ms, end_tasks, new_jitter, seconds_ms, sleep_ms, wait_until, wake
from .transactions import ASYNC_CONNECTIONS, after_commit, is_sync
from .transport import TransactionalTransport, Transport

__all__ = ["Relay"]

T = TypeVar("T")
if TYPE_CHECKING:  # the defaults of PEP 696: a relay without annotations is a Relay[Any, Any]
    import typing_extensions

    K = typing_extensions.TypeVar("K", default=Any)
    V = typing_extensions.TypeVar("V", default=Any)
else:
    K = TypeVar("K")
    V = TypeVar("V")

_LOGGER = logging.getLogger("purgatory.relay")
_LONGEST_HOST: Final = 40  # characters of the host in an origin; every payload contains an origin
_FIRST_PING_S: Final = 1.0  # how long entry waits for the first ping, on the loop's clock; no test depends on it
_MOST_REASONS: Final = 10  # the number of reasons that are logged for one outage
_NUMBER: Final = re.compile(r"\d+")
_SLICE: Final = 100  # keys and operations handled in one turn of the loop by the task that makes operations fail


def _new_origin() -> str:
    """Return an ID that differs for each relay and shows an operator which process the relay belongs to."""
    host = re.sub(r"[^A-Za-z0-9._-]", "", socket.gethostname())[:_LONGEST_HOST]
    return f"{secrets.token_hex(8)}:{os.getpid()}@{host}"


class Relay(Generic[K, V]):
    """Relays the checks of a purgatory to the other processes that use the same channel of an engine.

    ``room``: the purgatory whose checks are relayed.  ``transport``: the transport that connects the relay to the
    engine.

    **Usage.**  ::

        relay = Relay(purgatory, PostgresTransport(dsn, channel="orders"), refresh=load)
        async with purgatory, relay:
            status = await relay.wait_value(lambda: relay.state.get("o-1"), key="o-1", timeout=30)  # in the handler
            relay.check("o-1")                                                 # wherever the state has changed

    **Implementation.**  One task maintains the connection, one listens, one sends, and, with ``refresh``, one
    refreshes.  At the end of each turn of the loop, the keys that were checked in it are sent, each key once, with
    its largest value.

    **Cancellation safety.**  The same as for :meth:`Purgatory.park`.

    ``refresh``: ``async (keys) -> {key: value}``; reads and returns the shared state of these keys; conditions find it
    in :attr:`state`.  If the state of a key is a number, the key is checked with that number as the value, and
    operations with a higher threshold are skipped.  But if a wait found the key unknown, the wait is tried at least
    once after the next read of the key that begins after the wait has begun, even if the value is below the threshold.
    For other states, for None, and for absent keys, the check has no value.  ``refresh`` is called only with watched
    keys (except for one key that was read before, while the store seems down), at most ``max_keys`` of them, and one
    call at a time; a call that takes longer than ``resync_every`` is cancelled and repeated.  If a read does not find
    the key, or finds a smaller value than a notice has announced, the key is read again until the value is found, with
    pauses that grow from 50 ms to at most 5 s.  If the value of a key is an exception, the key could not be read: its
    earlier value stays, or the key stays unknown, and it is read again after such pauses.  Without ``refresh``, a
    notice only checks the keys, so the conditions must read the shared state themselves.

    ``max_keys``: above this number of pending keys, the relay sends "check every key"; the same limit applies to the
    stale keys.  ``heartbeat``: the number of seconds within which a ping must return through the engine, and within
    which the engine must confirm a subscription.  ``resync_every``: the interval, in seconds, at which every watched
    key is refreshed and checked even if no loss was detected.  ``on_lost``: with "wait", operations keep their
    deadlines while the engine is unreachable; with "fail", operations on keys that can be relayed fail with
    :class:`RelayLost`.  ``clock``: by default, the purgatory's clock.
    """

    def __init__(
        self,
        room: Purgatory[Any],
        transport: Transport,
        *,
        refresh: Callable[[list[K]], Awaitable[Mapping[K, V | BaseException] | None]] | None = None,
        max_keys: int = 10_000,
        heartbeat: float = 10.0,
        resync_every: float = 60.0,
        on_lost: Literal["wait", "fail"] = "wait",
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(room, Purgatory):
            raise TypeError(f"room must be a Purgatory, got {described(room)}")
        if not isinstance(transport, Transport):
            raise TypeError(f"transport must have listen, publish, aclose, and max_payload, got {described(transport)}")
        if refresh is not None and not callable(refresh):
            raise TypeError(f"refresh must be an async function or None, got {described(refresh)}")
        if type(max_keys) is not int or max_keys < 1:
            raise ValueError(f"max_keys must be an int of at least 1, got {max_keys!r}")
        if on_lost not in ("wait", "fail"):
            raise ValueError(f"on_lost must be 'wait' or 'fail', got {on_lost!r}")
        if clock is not None and not isinstance(clock, Clock):
            raise TypeError(f"clock must be a purgatory.types.Clock, got {described(clock)}")
        self._heartbeat_ms = seconds_ms(heartbeat, "heartbeat")
        self._resync_ms = seconds_ms(resync_every, "resync_every")
        self._purgatory = room
        self._transport = transport
        self._clock: Clock = room.timer.clock if clock is None else clock
        self._fails = on_lost == "fail"
        self._refreshes = refresh is not None
        self._refresher = Refresher(room, refresh, max_keys, self._clock, self._resync_ms)
        self._sender = Sender(transport, max_keys)
        self._receiver = Receiver(self._refresher, self._clock, room.name)
        self._jitter = new_jitter("")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0  # in which the relay was entered
        self._connection: Connection | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failing: asyncio.Task[None] | None = None  # one of the tasks, if on_lost="fail"
        self._first_attempt: asyncio.Future[None] | None = None
        self._first_ping: asyncio.TimerHandle | None = None  # ends the wait for the first ping on entry
        self._resync_alarm: Alarm | None = None
        self._closing = False
        self._ending = False  # whether the checks of threads are dropped, too
        self._all_ended: asyncio.Future[None] | None = None
        self._waits_for_sender: asyncio.Future[None] | None = None
        self._connects = 0
        self._losses = 0
        self._last_loss: str | None = None
        self._last_loss_ms = 0
        self._logged: set[str] = set()  # the reasons logged since the relay was last connected

    @property
    def connected(self) -> bool:
        """Whether notices arrive: the subscription is confirmed, a ping has come back through the engine, and the
        connection is not known to be lost.  Use this property in a readiness probe.
        """
        connection = self._connection
        return connection is not None and connection.state is State.CONNECTED and self._process == os.getpid()

    @property
    def state(self) -> Mapping[K, V]:
        """What ``refresh`` returned for the keys on which operations wait.

        A key is absent if no operation waits on it, or if the last read did not return it.  Each read replaces the
        values of its keys.  When the last operation on a key has ended, the key's value is dropped, so read the state
        within the condition; :meth:`wait_value` returns what its condition found in the state.

        A wait through the relay is never answered from a value that was read before the wait began.  If a condition of
        :meth:`wait_until` or :meth:`wait_value` looks up one of its keys too early, it is evaluated again after the
        read, whatever it returned or raised; in the :meth:`DelayedOperation.try_complete` of your own operation
        classes, such a key is absent.  Raises RuntimeError for a relay without ``refresh``.
        """
        if not self._refreshes:
            raise RuntimeError("a relay without refresh= has no state")
        return self._refresher.state

    # Life

    async def __aenter__(self) -> Self:
        """Start the relay; wait until the first attempt to connect succeeds or fails, at most ``heartbeat`` seconds.

        After the subscription has been confirmed, the call waits at most 1 s more for the first ping to come back.
        """
        if self._closing:
            raise PurgatoryClosed("the relay is closed")
        if self._loop is not None:
            raise RuntimeError("the relay has already been entered")
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        # The origin is created here rather than in __init__, because workers that are forked after the relay was
        # created must not share an origin.
        origin = self._sender.origin = self._receiver.origin = _new_origin()
        self._jitter = new_jitter(origin)
        self._refresher.spread(self._jitter, self._jitter.randrange(5_000))
        first = self._first_attempt = self._loop.create_future()
        self._spawn(self._keep_connected, "purgatory-relay")
        if self._refreshes:
            self._spawn(self._refresher.run, "purgatory-relay-refresh")
        self._resync_later()
        try:
            await asyncio.shield(first)
        except BaseException:
            await self.aclose(grace=0.0)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self, *, grace: float = 1.0) -> None:
        """Send the pending keys within ``grace`` seconds; then end the subscription and every task.

        ``grace``: the number of seconds for sending the pending keys.

        If the engine is unreachable or takes longer, the keys that have not been sent are dropped: the other processes
        check these keys when they reconnect, or within their ``resync_every``.  Operations stay parked; close the
        purgatory to answer them.  The method is idempotent: a second call waits for the first.

        If the calling task is cancelled, nothing more is sent, and the cancellation propagates when the transport has
        closed or ``heartbeat`` seconds have passed.
        """
        grace_ms = duration_ms(grace, "grace")
        self._require_own_loop()
        if self._all_ended is not None:
            await asyncio.shield(self._all_ended)
            return
        self._closing = True
        ended = self._all_ended = asyncio.get_running_loop().create_future()
        try:
            if grace_ms:
                await asyncio.sleep(0)  # the loop makes the checks that threads have requested
                if self._connection is not None and self._connection.sends and self._sender:
                    await self._wait_until_sent(grace_ms)
        finally:
            self._ending = True
            try:
                await self._end()
            finally:
                ended.set_result(None)

    async def _wait_until_sent(self, grace_ms: int) -> None:
        sent_all = self._sender.when_idle()
        self._waits_for_sender = sent_all
        alarm = ExactAlarm(self._clock, self._clock.ceil_ms() + grace_ms, lambda: wake(sent_all))
        try:
            await sent_all
        finally:
            alarm.cancel()
            self._waits_for_sender = None

    async def _end(self) -> None:
        if self._resync_alarm is not None:
            self._resync_alarm.cancel()
        self._attempted()
        try:
            unfinished = await end_tasks(self._tasks, self._clock, 2 * self._heartbeat_ms)
            if self._connection is not None:  # it may already be lost while its tasks are still ending
                unfinished |= await end_tasks(self._connection.tasks, self._clock, self._heartbeat_ms)
            self._report_unfinished(unfinished)
        finally:
            self._connection = None
            self._receiver.close()
            self._refresher.state.clear()
            if self._loop is not None:
                await self._release_transport(self._loop)

    async def _release_transport(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the transport within ``heartbeat`` seconds.  Errors are logged, because they must not make a shutdown
        fail.

        If the calling task is cancelled, the cancellation propagates when the transport has closed or the time is up.
        Until then, a cancelled anyio scope cancels the task in every turn of the loop, so the loop does not sleep.
        """

        async def release() -> None:
            try:
                await self._transport.aclose()
            except Exception as error:
                _LOGGER.warning("the transport of purgatory %r was not closed: %s", self._purgatory.name, error)

        releasing = contextvars.Context().run(loop.create_task, release())
        until_ms = self._clock.ceil_ms() + self._heartbeat_ms
        cancelled: asyncio.CancelledError | None = None
        while not releasing.done() and self._clock.now_ms() < until_ms:
            try:
                await wait_until({releasing}, self._clock, until_ms)
            except asyncio.CancelledError as error:  # a cancelled anyio scope cancels every await in it
                cancelled = error
        if not releasing.done():
            limit = f"{to_seconds(self._heartbeat_ms):g} s"
            _LOGGER.warning("the transport of purgatory %r was not closed within %s", self._purgatory.name, limit)
            self._report_unfinished(await end_tasks([releasing], self._clock, self._heartbeat_ms))
        if cancelled is not None:
            raise cancelled

    def _require_open(self) -> None:
        if self._closing:
            raise PurgatoryClosed("the relay is closed")
        if self._loop is None:
            raise RuntimeError("the relay has not been entered: enter it with 'async with' first")
        self._require_own_loop()

    def _require_own_process(self) -> None:
        if self._loop is not None and self._process != os.getpid():
            raise RuntimeError(
                "the relay was entered before this process was forked, and belongs to the parent process: enter a relay"
                " after the fork, or use a Notifier"
            )

    def _require_own_loop(self) -> None:
        self._require_own_process()
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if self._loop is not None and running is not self._loop:
            raise RuntimeError(
                "the relay belongs to another event loop: from a thread, call check_threadsafe(), or have that loop"
                " make the call, with loop.call_soon_threadsafe()"
            )

    # Waiting

    @overload
    async def park(self, operation: DelayedOperation[T], keys: Iterable[Hashable] | Mapping[Any, float]) -> T: ...

    @overload
    async def park(self, operation: DelayedOperation[T], *, key: Hashable) -> T: ...

    async def park(
        self,
        operation: DelayedOperation[T],
        keys: Iterable[Hashable] | Mapping[Any, float] = MISSING,
        *,
        key: Hashable = MISSING,
    ) -> T:
        """Park the operation, refresh its keys, and check them, so that no change between reading and watching is
        missed.

        Raises the errors of :meth:`Purgatory.park`, and TypeError for a key that cannot be relayed, in which case
        nothing is parked.  With ``on_lost="fail"``, raises :class:`RelayLost` while the relay is not connected.
        """
        if keys is MISSING or key is not MISSING:
            keys = keys_of_call("park", key, keys)
        self._require_open()
        keys = _validated(keys)
        if self._fails and not self.connected:
            if self._last_loss is None:
                raise RelayLost("the relay has not connected yet")
            raise RelayLost(f"the relay is not connected: {self._last_loss}")
        if not self._refreshes:
            return await self._purgatory.park(operation, keys)
        wait = self._begin(operation, keys)
        try:
            return await self._purgatory.park(operation, keys)
        finally:
            self._refresher.end(wait)
            del operation  # as in Purgatory.park()

    def _begin(self, operation: DelayedOperation[Any], keys: Any) -> RelayWait:
        """Record a wait on the keys, and request a read of them.

        The state is read in a separate task, which starts when the caller awaits its operation; by then, the operation
        is parked.
        """
        state = self._refresher.state
        wait = state.begin(operation, keys)
        self._know_first(operation, wait)
        self._refresher.mark_parked(keys)
        return wait

    def _know_first(self, operation: Any, wait: RelayWait) -> None:
        """Make the condition of ``wait_until`` or ``wait_value`` ignore values found before its keys have been read."""
        state = self._refresher.state
        if isinstance(operation, WaitUntil):
            operation._predicate = state.known_only(wait, operation._predicate, False)
        elif isinstance(operation, WaitValue):
            wait.give_back = partial(self._purgatory._core.give_back, operation)
            operation._get = state.known_only(wait, operation._get, None)

    @overload
    async def wait_until(
        self, predicate: Callable[[], object], *, key: Hashable, timeout: float | None, kind: str | None = None
    ) -> bool: ...

    @overload
    async def wait_until(
        self, predicate: Callable[[], object], *, key: Hashable, deadline: float | None, kind: str | None = None
    ) -> bool: ...

    @overload
    async def wait_until(
        self,
        predicate: Callable[[], object],
        *,
        keys: Iterable[Hashable] | Mapping[Any, float],
        timeout: float | None,
        kind: str | None = None,
    ) -> bool: ...

    @overload
    async def wait_until(
        self,
        predicate: Callable[[], object],
        *,
        keys: Iterable[Hashable] | Mapping[Any, float],
        deadline: float | None,
        kind: str | None = None,
    ) -> bool: ...

    async def wait_until(
        self,
        predicate: Callable[[], object],
        *,
        key: Hashable = MISSING,
        keys: Iterable[Hashable] | Mapping[Any, float] = MISSING,
        timeout: float | None = MISSING,
        deadline: float | None = MISSING,
        kind: str | None = None,
    ) -> bool:
        """Wait as :meth:`Purgatory.wait_until` does: park, refresh the keys, and check them.

        When the call returns, the key may no longer be in :attr:`state`; to receive the value, use :meth:`wait_value`.

        With a timeout of 0 or a deadline that has passed, the predicate is called once, and nothing is read or parked;
        because no value has been read since the call began, a predicate that depends on :attr:`state` counts as false.
        """
        wait = until_wait(self._purgatory.timer, predicate, timeout, deadline, kind)
        try:
            return await self._wait(wait, keys_of_call("wait_until", key, keys))  # type: ignore[no-any-return]
        finally:
            del wait  # as in Purgatory.park()

    @overload
    async def wait_value(
        self,
        get: Callable[[], T | None],
        *,
        key: Hashable,
        timeout: float | None,
        kind: str | None = None,
        on_abandoned: Callable[[T], object] | None = None,
    ) -> T | None: ...

    @overload
    async def wait_value(
        self,
        get: Callable[[], T | None],
        *,
        key: Hashable,
        deadline: float | None,
        kind: str | None = None,
        on_abandoned: Callable[[T], object] | None = None,
    ) -> T | None: ...

    @overload
    async def wait_value(
        self,
        get: Callable[[], T | None],
        *,
        keys: Iterable[Hashable] | Mapping[Any, float],
        timeout: float | None,
        kind: str | None = None,
        on_abandoned: Callable[[T], object] | None = None,
    ) -> T | None: ...

    @overload
    async def wait_value(
        self,
        get: Callable[[], T | None],
        *,
        keys: Iterable[Hashable] | Mapping[Any, float],
        deadline: float | None,
        kind: str | None = None,
        on_abandoned: Callable[[T], object] | None = None,
    ) -> T | None: ...

    async def wait_value(
        self,
        get: Callable[[], T | None],
        *,
        key: Hashable = MISSING,
        keys: Iterable[Hashable] | Mapping[Any, float] = MISSING,
        timeout: float | None = MISSING,
        deadline: float | None = MISSING,
        kind: str | None = None,
        on_abandoned: Callable[[T], object] | None = None,
    ) -> T | None:
        """Wait as :meth:`Purgatory.wait_value` does: park, refresh the keys, and check them.

        ::

            status = await relay.wait_value(lambda: relay.state.get("o-1"), key="o-1", timeout=30)

        The result is the first value of ``get()`` that is not None and does not depend on a value that was read before
        the wait began.  At the deadline, and when the purgatory closes, the result is None.  With a timeout of 0 or a
        deadline that has passed, ``get`` is called once, and nothing is read or parked, as in :meth:`wait_until`; read
        the state yourself before such a call.

        ``on_abandoned`` is called with a value that the task does not receive, as by :meth:`Purgatory.wait_value`, and
        also with a value that was computed before the state was known: ``get`` looked up a key of this wait in
        :attr:`state`, and the key had not been read since the wait began.  After such a value, ``get`` is not called
        again until that key has been read, so ``on_abandoned`` may check the key.  After None or an error, every check
        calls ``get``.

        If ``get`` removes its value from a container, look up the state before you take anything, and take nothing if
        the key is absent.  If ``get`` takes a value first and then raises because the key is absent, the value is lost,
        and every further check before the read loses another one.
        """
        wait = value_wait(self._purgatory.timer, get, timeout, deadline, kind, on_abandoned)
        try:
            return await self._wait(wait, keys_of_call("wait_value", key, keys))  # type: ignore[no-any-return]
        finally:
            del wait  # as in Purgatory.park()

    async def _wait(self, operation: Any, keys: Any) -> Any:
        try:
            if operation.delay_ms == 0:
                return self._try_without_parking(operation, keys)
            return await self.park(operation, keys)
        finally:
            del operation  # as in Purgatory.park()

    def _try_without_parking(self, operation: Any, keys: Any, refuse: Any = None) -> Any:
        """Try the operation once, for a timeout of zero.  No read has begun since this method was called, so
        the operation finds no state.

        ``refuse``: see :meth:`PurgatoryCore.try_without_parking`.
        """
        keys = _validated(keys)
        wait = RelayWait(None, keys, NEVER)
        self._know_first(operation, wait)
        try:
            with self._refresher.state.of(wait):
                return self._purgatory._core.try_without_parking(operation, keys, refuse)
        finally:
            wait.give_back = None
            del operation

    # Checking

    def check(self, key: Hashable, value: float | None = None) -> int:
        """Check the key here at once, and in the other processes at the end of this turn of the loop.

        ``key``: a str, an int, or a tuple of such keys.

        Return the number of operations that this call completed in this process.  ``value``: a number that only rises,
        such as an offset; if one key is checked with several values, the largest is sent.  With ``refresh``, this
        process also reads the key's state if an operation still waits on the key, so it does not matter whether your
        code has already stored the change.

        Raises TypeError or ValueError for a key or a value that cannot be relayed, PurgatoryClosed if the relay is
        closed, and RuntimeError outside the relay's event loop; in another thread, call :meth:`check_threadsafe`.  In
        these cases, nothing is checked or sent.
        """
        self._require_open()
        validate_key(key)
        if value is not None:
            validate_value(value)
        self._sender.add(key, value)
        if self._refreshes:
            self._refresher.mark(key, value)
        return self._purgatory.check_and_complete(key, value)

    def check_threadsafe(self, key: Hashable, value: float | None = None) -> None:
        """Request a :meth:`check` from any thread: the relay's event loop checks the key, here and in the other
        processes.

        The method returns at once.  A check that is requested before :meth:`aclose` is sent with the pending keys; one
        that arrives after the relay has closed is dropped.  Raises TypeError or ValueError for a key or a value that
        cannot be relayed, and RuntimeError if the relay has not been entered, if its event loop is closed, or in a
        process that was forked after the relay was entered.
        """
        validate_key(key)
        if value is not None:
            validate_value(value)
        loop = self._loop
        if loop is None:
            raise RuntimeError("the relay belongs to no event loop yet: enter it with 'async with' first")
        self._require_own_process()
        loop.call_soon_threadsafe(self._check_entries, {key: value}, context=contextvars.Context())

    async def check_in(self, connection: Any, keys: Iterable[Hashable] | Mapping[Any, float]) -> None:
        """Check the keys in every process, including this one, when the transaction of ``connection`` commits.

        ``keys``: the keys that the transaction changes.

        ``connection``: a psycopg ``AsyncConnection`` or ``AsyncCursor``, an asyncpg ``Connection``, or an SQLAlchemy
        ``AsyncSession`` or ``AsyncConnection``.  ``keys`` may map keys to values.

        With :class:`PostgresTransport`, the change and the notice commit together or not at all, and the relay need not
        be connected.  If the transport does not support transactions, the connection must be an ``AsyncSession``, and
        the keys are checked after its commit, as :meth:`check` would do.

        Raises TypeError for any other connection; for a blocking connection, the message names :class:`Notifier`.
        Raises TypeError or ValueError for a key or a value that cannot be relayed.  In these cases, nothing is sent.
        """
        self._require_open()
        if is_sync(connection):
            raise TypeError(
                f"{ASYNC_CONNECTIONS}, got {described(connection)}; for a blocking one, use"
                " Notifier(transport).check_in"
            )
        entries = entries_of(keys)
        transport = self._transport
        if isinstance(transport, TransactionalTransport):
            for payload in payloads_of(entries, self._sender.pending.max_keys, transport.max_payload):
                await transport.publish_in(connection, payload)
        elif not after_commit(connection, partial(self._check_later, entries)):
            raise TypeError(
                f"check_in needs a transport with transactions, got {described(transport)}, or an AsyncSession of"
                f" SQLAlchemy, got {described(connection)}: commit, and then call check"
            )

    def _check_later(self, entries: Mapping[Hashable, float | None]) -> None:
        """Check the keys in the next turn of the loop, outside the committing code."""
        assert self._loop is not None
        self._loop.call_soon(self._check_entries, entries, context=contextvars.Context())

    def _check_entries(self, entries: Mapping[Hashable, float | None]) -> None:
        if self._ending:
            return
        for key, value in entries.items():
            self._sender.add(key, value)
            if self._refreshes:
                self._refresher.mark(key, value)
            self._purgatory.check_soon(key, value)

    # Figures

    def statistics(self) -> RelayStatistics:
        """Return the relay's current figures."""
        connection, refresher, sender, receiver = self._connection, self._refresher, self._sender, self._receiver
        lag_ms = connection.lag_ms if connection is not None and self.connected else None
        return RelayStatistics(
            purgatory=self._purgatory.name,
            connected=self.connected,
            lag=None if lag_ms is None else to_seconds(lag_ms),
            peers=receiver.peers(self._clock.now_ms() - 3 * self._heartbeat_ms),
            connects=self._connects,
            losses=self._losses,
            last_loss=self._last_loss,
            resyncs=refresher.resyncs,
            sent=sender.keys_sent,
            received=receiver.keys_received,
            messages_sent=sender.messages_sent,
            messages_received=receiver.messages_received,
            collapsed=sender.pending.collapsed + refresher.stale.collapsed,
            everything_sent=sender.everything_sent,
            everything_received=receiver.everything_received,
            unreadable=receiver.unreadable,
            pending=len(sender.pending),
            stale=refresher.waiting,
            refreshed=refresher.refreshed,
            reads=refresher.reads,
            failed_reads=refresher.failed_reads,
            read_duration=refresher.read_times.quantiles(),
        )

    def __repr__(self) -> str:
        state = "closed" if self._closing else "new" if self._loop is None else "connecting"
        state = "connected" if self.connected else state
        return f"<Relay of purgatory {self._purgatory.name!r} {state} through {type(self._transport).__name__}>"

    # The connection

    def _report_unfinished(self, tasks: "set[asyncio.Task[None]]") -> None:
        tasks = {task for task in tasks if not task.done()}  # some may have ended in the meantime
        if tasks:
            _LOGGER.error("tasks of the transport did not end when they were cancelled and are left behind: %s", tasks)

    async def _keep_connected(self) -> None:
        """Connect, and reconnect after each loss; the pause between attempts grows until a ping has returned."""
        failures = 0
        while True:
            connection = self._connection = Connection(
                self._transport,
                self._sender,
                self._receiver,
                self._has_subscribed,
                self._has_connected,
                self._clock,
                self._heartbeat_ms,
            )
            self._report_unfinished(await connection.run())
            if connection.proven:
                failures = 0
            self._lost(connection)
            failures += 1
            await sleep_ms(self._clock, backoff_ms(failures, self._jitter))

    def _has_subscribed(self) -> None:
        self._connects += 1
        if self._first_ping is None and self._first_attempt is not None and not self._first_attempt.done():
            loop = asyncio.get_running_loop()
            self._first_ping = loop.call_later(_FIRST_PING_S, self._attempted, context=contextvars.Context())

    def _has_connected(self) -> None:
        self._logged.clear()
        if self._losses:
            _LOGGER.info("the relay of purgatory %r is connected again", self._purgatory.name)
        self._stop_failing()
        self._refresher.mark_everything()
        self._attempted()

    def _lost(self, connection: Connection) -> None:
        self._losses += 1
        self._last_loss_ms = self._clock.now_ms()
        self._last_loss = f"{type(connection.reason).__name__}: {connection.reason}"  # a str keeps no frames alive
        reason = _NUMBER.sub("", self._last_loss)  # such as process IDs, which differ in every attempt
        is_news = not self._logged or not isinstance(connection.reason, ConnectionRefusedError)
        if is_news and reason not in self._logged and len(self._logged) < _MOST_REASONS:
            self._logged.add(reason)
            _LOGGER.warning("the relay of purgatory %r is not connected: %s", self._purgatory.name, self._last_loss)
        self._attempted()
        if self._waits_for_sender is not None:
            wake(self._waits_for_sender)  # the relay is closing and will not reconnect
        if self._fails and not self._closing:
            self._stop_failing()  # start over, so that operations parked in the meantime fail too
            self._failing = self._spawn(self._fail_waiters, "purgatory-relay-fail", restart=False)

    def _attempted(self) -> None:
        if self._first_ping is not None:
            self._first_ping.cancel()
        if self._first_attempt is not None:
            wake(self._first_attempt)

    async def _fail_waiters(self) -> None:
        """Fail the operations whose keys can be relayed, one slice at a time.  The task is cancelled when the
        connection is back.
        """
        keys, done = self._purgatory.keys(), 0
        for key in keys:
            done += 1
            if is_key(key):
                error = partial(RelayLost, f"the relay has lost its connection: {self._last_loss}")
                done += await self._purgatory.afail_for_key(key, error)
            if done >= _SLICE:
                done = 0
                await asyncio.sleep(0)

    def _stop_failing(self) -> None:
        """End the task that makes operations fail; operations that it has not reached continue to wait."""
        if self._failing is not None:
            self._failing.cancel()
            self._failing = None

    def _resync_later(self) -> None:
        # Resync up to a tenth of the interval early, so that workers that were started together do not always read at
        # the same time.
        delay_ms = max(1, round(self._resync_ms * (1 - self._jitter.random() / 10)))
        self._resync_alarm = self._clock.call_at(self._clock.ceil_ms() + delay_ms, self._resync)

    def _resync(self) -> None:
        self._resync_later()
        self._receiver.forget_peers(self._clock.now_ms() - 3 * self._heartbeat_ms)
        self._refresher.mark_everything()

    # Tasks

    def _spawn(
        self, run: Callable[[], Coroutine[Any, Any, None]], name: str, restart: bool = True
    ) -> asyncio.Task[None]:
        assert self._loop is not None
        # create_task(context=...) is not used: a task factory need not accept a context, and a task copies the current
        # context.
        task = contextvars.Context().run(partial(self._loop.create_task, run(), name=name))
        self._tasks.add(task)

        def ended(task: "asyncio.Task[None]") -> None:
            self._tasks.discard(task)
            if task.cancelled():
                return
            error = task.exception()
            if error is None:
                return
            message = f"a task of the relay of purgatory {self._purgatory.name!r} raised"
            task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})
            if restart and not self._closing:
                self._spawn(run, name)

        task.add_done_callback(ended)
        return task


def _validated(keys: Any) -> Any:
    """Return the keys as a mapping or a list.  Raises TypeError for a key that cannot be relayed."""
    if not isinstance(keys, Mapping):
        validate_iterable(keys)
        keys = list(keys)
    for key in keys:
        validate_key(key)
    return keys
