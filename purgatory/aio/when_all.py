"""Waiting for several futures at once.

This is Kafka's ``DelayedFuturePurgatory``: a request whose work is spread over other threads or machines is answered
when all parts are done or, with the results so far, when its time is up.  Kafka parks all such operations on a single
shared key and completes them from an executor as their parts finish.  Here, each future is a separate key, which is
checked when the future is done.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextvars import Context
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from purgatory.core.operation.delayed_operation import DelayedOperation
from purgatory.core.purgatory import BasePurgatory
from purgatory.core.timer.coroutines import is_coroutine, refusal, refuse_coroutine_function
from purgatory.events import Outcome
from purgatory.texts import safe_repr

from .error_reporting import report

__all__ = ["AnyFuture", "DelayedFuture", "DoneCallbacks", "WhenAll", "wait_for_all"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class AnyFuture(Protocol[T_co]):
    """An asyncio future or task, for type checkers: a list may mix tasks that return ``int`` and tasks that return
    ``str``.
    """

    def result(self) -> T_co: ...

    def get_loop(self) -> asyncio.AbstractEventLoop: ...


WhenAll: TypeAlias = Callable[[list[T | BaseException]], object]


class DelayedFuture(DelayedOperation[list[T | BaseException]]):
    """An operation that completes when all its futures are done; on expiry, pending futures fail with TimeoutError.

    **Usage.**  :meth:`Purgatory.when_all`, or, if you have no purgatory, :func:`purgatory.when_all`.

    **Implementation.**  The operation's result, which is also the argument of ``callback``, is the list of the futures'
    outcomes in the order given: the result of each future, or its exception.  If a future is pending when the operation
    expires, it fails with TimeoutError.  A pending *task* cannot be given an exception, so it is cancelled, and
    its outcome here is also TimeoutError.  A pending ``gather()`` is cancelled in the same way, together with the tasks
    that it waits for, and so is any future whose class overrides ``cancel()``; other tasks that await such a future
    receive CancelledError.

    **Calls in executors.**  Do not pass the futures that ``loop.run_in_executor()`` and ``asyncio.wrap_future()``
    return.  They cannot be distinguished from other futures, so they would also fail with TimeoutError.  If the call
    returned after that, asyncio could not deliver its result and would report an AssertionError to the loop's exception
    handler.  Pass a task that awaits the future, or ``asyncio.create_task(asyncio.to_thread(read))``.

    **Cancellation safety.**  Cancelling a task that awaits the operation affects neither the operation nor its futures.
    If the operation is cancelled, its futures are not affected, and ``callback`` is not called.

    ``futures``: futures and tasks that belong to the running loop; anything else raises TypeError or ValueError.
    ``timeout``: seconds or None.
    """

    __slots__ = ("_callback", "_pending", "futures")

    def __init__(
        self, futures: Iterable[AnyFuture[T]], timeout: float | None, callback: WhenAll[T] | None = None
    ) -> None:
        super().__init__(timeout)
        if callback is not None and not callable(callback):
            raise TypeError(f"callback must be callable, got {safe_repr(callback)}")
        refuse_coroutine_function("callback", callback)
        self.futures: tuple[asyncio.Future[T], ...] = _checked(futures)
        self._callback = callback
        self._pending = list(self.futures)

    def try_complete(self) -> bool:
        # The search starts at the end of the list.  Finished futures are not visited again, so all tries together visit
        # each future once.
        pending = self._pending
        while pending and pending[-1].done():
            pending.pop()
        return not pending

    def on_complete(self) -> list[T | BaseException]:
        outcomes = [self._outcome(future) for future in self.futures]
        self._pending.clear()
        if self._callback is not None:
            returned: object = self._callback(outcomes)
            if is_coroutine(returned):
                raise refusal(returned, "callback must return None")
        return outcomes

    def _outcome(self, future: "asyncio.Future[T]") -> T | BaseException:
        if not future.done():
            if self.expired_by_closing:
                closed = "purgatory" if self._core is None or self._core.closed else "timer"
                late = TimeoutError(f"it was still pending when the {closed} closed")
            elif self.expired and self.timeout is not None:
                late = TimeoutError(f"it was not done in time (timeout {self.timeout:g} s)")
            else:
                late = TimeoutError("it was still pending when the operation ended")
            task = isinstance(future, asyncio.Task)
            cancels = task or _has_own_cancel(future)
            try:
                if not cancels:
                    future.set_exception(late)
                else:
                    future.cancel()
                    if not task:
                        future.add_done_callback(_report, context=Context())
            except RuntimeError:
                pass  # its event loop is closed, so nothing waits for it any longer
            except Exception as raised:  # the class overrides the method; the other futures must still be answered
                report("a future of when_all() raised at the deadline", raised, future=future)
            if cancels or not future.done():
                return late
        if future.cancelled():
            return asyncio.CancelledError()
        error = future.exception()  # read here so that asyncio does not report the exception as never retrieved
        return future.result() if error is None else error

    def __repr__(self) -> str:
        pending = sum(not future.done() for future in self.futures)
        timeout = "timeout=None" if self.timeout is None else f"timeout={self.timeout:g}"
        return f"<{type(self).__name__} {self.outcome.name} {pending} of {len(self.futures)} pending {timeout}>"


class DoneCallbacks:
    """The done-callbacks of one purgatory: one for each future, however many operations wait for the future.

    ``remove_done_callback`` visits every callback of its future.  With one callback per operation, ending each of ``n``
    operations on one future would cost O(n).
    """

    __slots__ = ("_counts", "_purgatory")

    def __init__(self, purgatory: BasePurgatory) -> None:
        self._purgatory = purgatory
        self._counts: dict[asyncio.Future[Any], int] = {}

    def add(self, futures: Iterable["asyncio.Future[Any]"]) -> None:
        """Check each future's key when the future is done.  The check runs in an empty context."""
        for future in futures:
            count = self._counts.get(future, 0)
            if count == 0:
                future.add_done_callback(self._done, context=Context())
            self._counts[future] = count + 1

    def remove(self, futures: Iterable["asyncio.Future[Any]"]) -> None:
        """After an operation has ended, remove the callback from each of its futures that no other operation waits for.

        If the comparison with a foreign callback raises, the exception propagates after the other futures have been
        handled.
        """
        failed: Exception | None = None
        for future in futures:
            count = self._counts.pop(future) - 1
            if count:
                self._counts[future] = count
                continue
            try:
                future.remove_done_callback(self._done)
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed

    def _done(self, future: "asyncio.Future[Any]") -> None:
        self._purgatory.check_and_complete(future)


def wait_for_all(purgatory: BasePurgatory, callbacks: DoneCallbacks, operation: DelayedFuture[Any]) -> None:
    """Submit the operation, and check its key whenever one of its futures is done."""
    pending = tuple(dict.fromkeys(future for future in operation.futures if not future.done()))
    # If no future is pending, the operation completes at once, so any key will do.
    if (
        not purgatory.try_complete_else_watch(operation, pending or (operation,))
        and operation.outcome is Outcome.PENDING
    ):
        callbacks.add(pending)
        purgatory._core.call_when_ended(operation, partial(callbacks.remove, pending))


def _has_own_cancel(future: object) -> bool:
    """Return whether the future's class overrides ``cancel()``, as ``gather()`` does in order to cancel its tasks."""
    return isinstance(future, asyncio.Future) and type(future).cancel is not asyncio.Future.cancel


def _report(future: "asyncio.Future[Any]") -> None:
    """Report an error, as asyncio does for a task.  The CancelledError of a cancelled ``gather()`` is not an error."""
    error = None if future.cancelled() else future.exception()
    if error is not None and not isinstance(error, asyncio.CancelledError):
        message = "a future of when_all() failed when it was cancelled"
        future.get_loop().call_exception_handler({"message": message, "exception": error, "future": future})


def _checked(futures: Any) -> tuple[Any, ...]:
    if asyncio.isfuture(futures) or not isinstance(futures, Iterable):
        raise TypeError(f"futures must be an iterable of futures, got {safe_repr(futures)}")
    checked = tuple(futures)
    loop = asyncio.get_running_loop()
    for future in checked:
        if not asyncio.isfuture(future):
            raise TypeError(
                f"futures must be asyncio futures or tasks, got {safe_repr(future)}: wrap a coroutine in a task"
            )
        if future.get_loop() is not loop:
            raise ValueError(f"{future!r} belongs to another event loop")
    return checked
