"""Notices from code without an event loop: Celery tasks, scripts, cron jobs, Django views, and threads."""

import asyncio
import atexit
import contextlib
import contextvars
import copy
import logging
import os
import selectors
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from purgatory.core.timer.units import to_seconds
from purgatory.errors import PurgatoryClosed
from purgatory.texts import type_name

from .addresses import described
from .notices import entries_of, payloads_of
from .timing import seconds_ms
from .transactions import SYNC_CONNECTIONS, after_commit, is_async, is_sync
from .transport import Transport

__all__ = ["Notifier"]

_LOGGER: Final = logging.getLogger("purgatory.relay")
_MOST_KEYS: Final = 10_000  # in one notice; more keys become "check every key"
_Entries = Mapping[Hashable, float | None]
_CANCEL_S: Final = 1.0  # seconds in which a client library can clean up after a timeout
_FREED_S: Final = 1.0  # seconds for closing a connection that nothing has closed


class Notifier:
    """Checks keys in every process that has a relay on the same channel, from code without an event loop.

    ::

        notifier = Notifier(RedisTransport(url, channel="orders"))
        notifier.check("o-1", 1502)                   # after the commit

        with Session(engine) as session, session.begin():
            session.execute(...)
            notifier.check_in(session, ["o-1"])       # with the commit

    A notifier connects when it is first used and keeps the connection.  A forked process opens its own connection, so
    a notifier may be created before a server forks its workers.  Any number of threads may use a notifier; they take
    turns.  If the engine has closed an idle connection, the notifier opens a new one and tries once more.  The
    connection is closed by :meth:`close`, when the notifier is freed, or when the program ends.

    ``transport``: any transport that a relay accepts; the notifier uses a copy of it, so a relay and a notifier can
    receive the same object.  A :class:`MemoryTransport` reaches the relays of the same process.  A
    :class:`UnixTransport` has no engine: a notice counts as accepted when the sockets of all workers have accepted it,
    even if there are no workers at that time.  ``timeout``: the number of seconds that a call may take.
    """

    def __init__(self, transport: Transport, *, timeout: float = 5.0) -> None:
        if not isinstance(transport, Transport):
            raise TypeError(f"transport must have listen, publish, aclose, and max_payload, got {described(transport)}")
        self._timeout = to_seconds(seconds_ms(timeout, "timeout"))
        self._closed = False
        self._begin(transport)
        _notifiers.add(self)

    def _begin(self, transport: Transport) -> None:
        """Start without a connection, initially and in a forked process."""
        self._transport = copy.copy(transport)
        # A signal handler may call a method while the same thread is running another method, so the lock is reentrant.
        self._lock = threading.RLock()
        self._is_publishing = False
        self._runner: asyncio.Runner | None = None
        self._when_freed: weakref.finalize[..., Notifier] | None = None  # set together with the runner
        self._has_published = False

    def check(self, key: Hashable, value: float | None = None) -> None:
        """Check the key in every process; return when the engine has accepted the notice.

        ``value``: a number that only rises, such as an offset.  Call the method after the change has been committed.

        Raises TypeError or ValueError for a key or a value that cannot be relayed; the client library's error if the
        engine cannot be reached or refuses the notice; TimeoutError after ``timeout`` seconds; RuntimeError in a thread
        with a running event loop, which the call would block; and PurgatoryClosed after :meth:`close`.
        """
        self._require_no_loop("check")
        self._publish(entries_of({key: value}))

    def check_in(self, connection: Any, keys: Iterable[Hashable] | Mapping[Any, float]) -> None:
        """Check the keys in every process when the transaction of ``connection`` commits, but not if it is rolled back.

        ``connection``: a psycopg connection or cursor, an SQLAlchemy ``Session``, ``scoped_session``, or
        ``Connection``, or a Django connection.  ``keys`` may map keys to values.

        With :class:`PostgresTransport`, the notice is part of the transaction.  With the other transports, it is sent
        after the commit; this requires an SQLAlchemy session or a Django connection.  If a session is joined to an
        outer transaction, it commits too early: call :meth:`check` after the outer commit instead.  If sending fails,
        the change has already been committed, so the error is written to the log; the other processes find the change
        at their next resync.  Each call sends its notice separately, within ``timeout`` seconds.

        Raises TypeError for any other connection (the message names what to call instead), and the errors that
        :meth:`check` raises for keys.
        """
        self._require_no_loop("check_in")
        if is_async(connection):
            raise TypeError(f"{SYNC_CONNECTIONS}, got {described(connection)}; for this one, use relay.check_in")
        entries = entries_of(keys)
        publish_in: Callable[[Any, str], None] | None = getattr(self._transport, "publish_in_sync", None)
        if publish_in is not None:
            for payload in payloads_of(entries, _MOST_KEYS, self._transport.max_payload):
                publish_in(connection, payload)
        elif not after_commit(connection, lambda: self._publish_after_commit(entries)):
            kind = (
                "does not announce its commits" if is_sync(connection) else "is not a connection that check_in supports"
            )
            raise TypeError(
                "with this transport, connection must be an SQLAlchemy session or a Django connection;"
                f" commit, and then call check: {described(connection)} {kind}"
            )

    def close(self) -> None:
        """Close the connection.

        The method is idempotent.  It may be called while an event loop is running; the call then blocks the loop for a
        moment.  It may be called in a signal handler; if the handler has interrupted a call to the notifier, that call
        closes the connection when it ends.
        """
        with self._lock:
            self._closed = True
            if not self._is_publishing:
                self._close_runner()

    def _close_runner(self) -> None:
        connection = self._take_runner()
        if connection is None:
            return
        if _is_loop_running():  # a thread can run only one loop at a time
            thread = threading.Thread(target=self._end, args=connection, name="purgatory-notifier-close")
            thread.start()
            thread.join()
        else:
            self._end(*connection)

    def _end(self, runner: asyncio.Runner, transport: Transport) -> None:
        try:
            _end(runner, transport, self._timeout)
        except Exception as error:
            _LOGGER.warning("the transport of a notifier was not closed: %s", error)

    def _take_runner(self) -> tuple[asyncio.Runner, Transport] | None:
        """Return the runner and the transport, and forget the runner; return None if there is no runner."""
        runner, self._runner = self._runner, None
        if runner is None:
            return None
        assert self._when_freed is not None
        self._when_freed.detach()
        return runner, self._transport

    def _close_at_exit(self) -> None:
        """Close the connection, unless a daemon thread uses it."""
        if self._lock.acquire(blocking=False):
            try:
                connection = self._take_runner()
                if connection is not None:
                    _end_quietly(*connection)
            finally:
                self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "new" if self._runner is None else "used"
        return f"<Notifier {state} through {type_name(self._transport)}>"

    # Inside

    def _require_no_loop(self, name: str) -> None:
        if _is_loop_running():
            raise RuntimeError(
                f"Notifier.{name} blocks, and an event loop runs in this thread: use relay.{name}, or asyncio.to_thread"
            )

    def _publish_after_commit(self, entries: _Entries) -> None:
        try:
            self._require_no_loop("check_in")
            self._publish(entries)
        except Exception as error:
            _LOGGER.warning("a notice after a commit was not sent: %s: %s", type(error).__name__, error)

    def _publish(self, entries: _Entries) -> None:
        until = time.monotonic() + self._timeout
        if not self._lock.acquire(timeout=self._timeout):
            raise TimeoutError(f"other threads have used the notifier for {self._timeout:g} s")
        try:
            if self._is_publishing:
                raise RuntimeError(
                    "check was called during a call to the notifier that this signal handler has interrupted"
                )
            if self._closed:
                raise PurgatoryClosed("the notifier is closed")
            self._publish_all(entries, until)
        finally:
            self._lock.release()

    def _publish_all(self, entries: _Entries, until: float) -> None:
        self._is_publishing = True
        try:
            while True:
                max_payload = self._transport.max_payload
                try:
                    for payload in payloads_of(entries, _MOST_KEYS, max_payload):
                        self._publish_on_live_connection(payload, until)
                    return
                except Exception as error:
                    # The attempt may have shown that the engine accepts only smaller payloads; if so, divide again.
                    if isinstance(error, TimeoutError) or self._transport.max_payload >= max_payload:
                        raise
        finally:
            self._is_publishing = False
            if self._closed:  # by a signal handler, in the meantime
                self._close_runner()

    def _publish_on_live_connection(self, payload: str, until: float) -> None:
        may_be_stale = self._has_published
        try:
            self._publish_one(payload, until)
        except TimeoutError:
            raise
        except Exception:
            if not may_be_stale:
                raise
            self._publish_one(payload, until)

    def _publish_one(self, payload: str, until: float) -> None:
        self._has_published = False  # after a call that raised, a transport opens a new connection
        if self._runner is None:
            runner = asyncio.Runner(loop_factory=_private_loop)
            # A runner keeps the context in which its loop is created, and with it, whatever the caller's context holds.
            contextvars.Context().run(runner.get_loop)
            self._when_freed = weakref.finalize(self, _close_freed, runner, self._transport)
            self._when_freed.atexit = False  # _close_at_exit closes the connection then, unless a thread uses it
            self._runner = runner
        publish = self._transport.publish(payload)
        if not self._runner.run(_at_most(publish, max(0.0, until - time.monotonic()))):
            if full := getattr(self._transport, "_full_sockets", None):
                raise TimeoutError(
                    f"within {self._timeout:g} s, these workers have not read the notice: {', '.join(full)}"
                )
            raise TimeoutError(f"the engine has not accepted the notice within {self._timeout:g} s")
        self._has_published = True


def _is_loop_running() -> bool:
    """Return whether an event loop is running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _at_most(coroutine: Coroutine[Any, Any, None], seconds: float) -> bool:
    """Run the coroutine; return False if it was cancelled because the time was up.

    If the coroutine does not end when it is cancelled, it is left behind.
    """
    task = asyncio.ensure_future(coroutine)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_S)
            return False
        task.result()
    finally:
        task.cancel()
    return True


async def _close(transport: Transport, seconds: float) -> None:
    """Cancel the tasks of a call that a signal handler has ended, close the transport, and cancel the tasks that the
    client library leaves.
    """
    await _cancel_others()
    try:
        await _at_most(transport.aclose(), seconds)
    finally:
        await _cancel_others()
        await _at_most(asyncio.get_running_loop().shutdown_asyncgens(), _CANCEL_S)


async def _cancel_others() -> None:
    """Cancel every other task of this loop.  A task that does not end is left behind."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=_CANCEL_S)


def _end(runner: asyncio.Runner, transport: Transport, seconds: float) -> None:
    """Close the transport and the loop of the runner."""
    try:
        runner.run(_close(transport, seconds))
    finally:
        runner.get_loop().close()  # not runner.close(): it waits for tasks that do not end and starts a thread


def _end_quietly(runner: asyncio.Runner, transport: Transport) -> None:
    """Close the transport and the loop of the runner soon; nothing is left to lose, so an error is not reported."""
    with contextlib.suppress(Exception):
        _end(runner, transport, _FREED_S)


def _close_freed(runner: asyncio.Runner, transport: Transport) -> None:
    """Close the connection of a notifier that was freed, in whichever thread it was freed.

    If that thread runs an event loop, another thread closes the connection, and nothing waits for it.
    """
    if _is_loop_running():
        with contextlib.suppress(RuntimeError):  # while the interpreter ends, no thread can be started
            threading.Thread(target=_end_quietly, args=(runner, transport), name="purgatory-notifier-close").start()
    else:
        _end_quietly(runner, transport)


def _private_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop that a forked process can discard.

    The selector must not use epoll or kqueue, whose descriptor the two processes would share.
    """
    kind = getattr(selectors, "PollSelector", selectors.SelectSelector)
    return asyncio.SelectorEventLoop(kind())


_notifiers: Final["weakref.WeakSet[Notifier]"] = weakref.WeakSet()


@atexit.register
def _close_at_exit() -> None:
    """Close the connections that are left.  Threads that are not daemons have ended."""
    for notifier in list(_notifiers):
        notifier._close_at_exit()


# Forked processes

_inherited: Final[list[object]] = []  # the parent's objects: closing them here would end the parent's connections


def _begin_in_child() -> None:
    for notifier in list(_notifiers):
        _inherited.append((notifier._runner, notifier._transport))
        if notifier._when_freed is not None:
            notifier._when_freed.detach()
        notifier._begin(notifier._transport)


if hasattr(os, "register_at_fork"):  # Windows has no fork()
    os.register_at_fork(after_in_child=_begin_in_child)
