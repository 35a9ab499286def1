"""A coroutine instead of a plain value raises TypeError, is closed, and completes nothing."""

import asyncio
import functools
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from purgatory import DelayedOperation, Outcome, Purgatory, SystemTimer, TimerTask
from purgatory.core.timer.coroutines import is_coroutine_function
from purgatory.testing import VirtualClock
from tests.helpers import Op, check
from tests.sansio import QuietPurgatory


async def _ready() -> bool:
    return True


class _Callable:
    async def __call__(self) -> bool:
        return True

    async def method(self) -> bool:
        return True


class _Compiled:
    """A function that another compiler has made: it has the code of a Python function, and is none."""

    def __init__(self, function: Any) -> None:
        self.__code__ = function.__code__


class _Partial(functools.partial[Any]):
    """A class of the user's own, as libraries have."""


async def _generator() -> AsyncIterator[bool]:
    yield True


class AsyncTry(Op):
    """An operation whose condition is a coroutine."""

    async def try_complete(self) -> bool:  # type: ignore[override]
        return True


class AsyncComplete(Op):
    """An operation whose result is a coroutine."""

    async def on_complete(self) -> Any:
        return "never"


class AsyncExpiration(Op):
    """An operation whose ``on_expiration`` is a coroutine."""

    async def on_expiration(self) -> None:  # type: ignore[override]
        raise AssertionError("it is not awaited")


# The predicate of wait_until


@pytest.mark.parametrize(
    "predicate", [_ready, _Callable().method, functools.partial(functools.partial(_ready)), _generator]
)
async def test_a_coroutine_function_is_no_predicate(purgatory: Purgatory[Op], predicate: Any) -> None:
    """The call refuses a coroutine function as the predicate, and submits nothing."""
    with pytest.raises(TypeError, match="predicate must be a plain function, got the coroutine function"):
        await purgatory.wait_until(predicate, keys=["a"], timeout=5)
    check(purgatory, submitted=0, parked=0)


@pytest.mark.parametrize("predicate", [lambda: _ready(), _Callable()])
async def test_a_predicate_that_returns_a_coroutine_fails_at_once(purgatory: Purgatory[Op], predicate: Any) -> None:
    """The first try raises TypeError to the caller."""
    with pytest.raises(TypeError, match="predicate must return whether the condition holds, got a coroutine"):
        await purgatory.wait_until(predicate, keys=["a"], timeout=5)
    check(purgatory, parked=0, failed=1)


async def test_a_predicate_that_returns_a_coroutine_later_fails_then(
    purgatory: Purgatory[Op], clock: VirtualClock
) -> None:
    """If the predicate returns a coroutine in a check, the waiter raises TypeError."""
    answers: list[Any] = [False, None]
    task = asyncio.create_task(
        purgatory.wait_until(lambda: answers.pop(0) if answers else _ready(), keys=["a"], timeout=5)
    )
    await clock.settle()
    assert purgatory.check_and_complete("a") == 0
    assert purgatory.check_and_complete("a") == 0
    with pytest.raises(TypeError, match="predicate must return whether the condition holds, got a coroutine"):
        await task
    check(purgatory, parked=0, failed=1)


@pytest.mark.parametrize(("value", "held"), [(1, True), ([1], True), (0, False), (None, False), ("", False)])
async def test_what_is_true_or_false_is_a_condition(
    purgatory: Purgatory[Op], clock: VirtualClock, value: Any, held: bool
) -> None:
    """A predicate and a ``try_complete`` may return anything that is true or false."""

    class Returns(DelayedOperation[bool]):
        def try_complete(self) -> bool:
            return value  # type: ignore[no-any-return]

    waiting = asyncio.create_task(purgatory.wait_until(lambda: value, keys=["a"], timeout=5))
    assert purgatory.try_complete_else_watch(Returns(5), ["a"]) is held  # type: ignore[arg-type]
    await clock.advance(5)
    assert await waiting is held


# The hooks of an operation


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (AsyncTry, r"^AsyncTry.try_complete\(\) must return whether the condition holds, got a coroutine"),
        (AsyncComplete, r"^AsyncComplete.on_complete\(\) must return the result, got a coroutine"),
    ],
)
async def test_a_hook_that_is_a_coroutine_reaches_the_caller_of_the_first_try(
    purgatory: Purgatory[Op], kind: type[Op], message: str
) -> None:
    """Submitted or parked, the operation fails, and the caller gets the TypeError."""
    op = kind(5, ready=True)
    with pytest.raises(TypeError, match=message):
        purgatory.try_complete_else_watch(op, ["a"])
    with pytest.raises(TypeError, match=message):
        op.result()
    with pytest.raises(TypeError, match=message):
        await purgatory.park(kind(5, ready=True), ["a"])
    check(purgatory, parked=0, watched=0, failed=2, immediate=0)


@pytest.mark.parametrize("ending", ["check", "force", "expiry"])
async def test_a_result_that_is_a_coroutine_fails_the_operation(
    purgatory: Purgatory[Op], clock: VirtualClock, ending: str
) -> None:
    """The awaiting task gets the TypeError, as every error of ``on_complete``."""
    op = AsyncComplete(5)
    task = asyncio.create_task(purgatory.park(op, ["a"]))
    await clock.settle()
    op.ready = True
    if ending == "check":
        assert purgatory.check_and_complete("a") == 0
    elif ending == "force":
        with pytest.raises(TypeError, match="on_complete"):
            op.force_complete()
    else:
        await clock.advance(5)
    with pytest.raises(TypeError, match=r"AsyncComplete.on_complete\(\) must return the result"):
        await task
    assert op.outcome is Outcome.FAILED
    check(purgatory, parked=0, failed=1)


def test_a_try_that_returns_a_coroutine_in_a_check_fails_the_operation(room: QuietPurgatory) -> None:
    """Without an awaiting task, the TypeError is reported; the other operations on the key are still tried."""

    class Later(Op):
        def try_complete(self) -> bool:
            return _ready() if self.ready else False  # type: ignore[return-value]

    op, other = Later(), Op()
    room.try_complete_else_watch(op, ["a"])
    room.try_complete_else_watch(other, ["a"])
    op.ready = other.ready = True
    assert room.check_and_complete("a") == 1
    assert op.outcome is Outcome.FAILED
    assert [type(error) for error in room.reported] == [TypeError]
    assert str(room.reported[0]).startswith("Later.try_complete() must return whether the condition holds")


async def test_an_expiration_hook_that_is_a_coroutine_is_reported(
    purgatory: Purgatory[Op], clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """The operation has already expired, and its result stands; the TypeError is reported."""
    op = AsyncExpiration(5, name="x")
    task = asyncio.create_task(purgatory.park(op, ["a"]))
    await clock.advance(5)
    assert await task == "x"
    assert op.outcome is Outcome.EXPIRED
    (context,) = reported
    assert str(context["exception"]).startswith("AsyncExpiration.on_expiration() must return None, got a coroutine")


# Callbacks, tasks, and observers


async def _ignore(*_: Any) -> None:
    """Do nothing."""


class _AsyncTask(TimerTask):
    async def run(self) -> None:  # type: ignore[override]
        """Do nothing."""


@pytest.mark.parametrize("method", ["completed", "attached"])
def test_an_observer_with_a_coroutine_function_is_refused(method: str) -> None:
    """The error names the method, because no event would reach it."""
    kind: Any = type("Slow", (), {"completed": lambda _, event: None, method: _ignore})
    with pytest.raises(TypeError, match=rf"^Slow\.{method} must be a plain function, got the coroutine function"):
        Purgatory[Op]("test", observers=[kind()])


async def test_a_coroutine_function_is_no_callback_of_when_all(purgatory: Purgatory[Op]) -> None:
    """A coroutine function is refused at once; another function that returns a coroutine makes the operation fail."""
    with pytest.raises(TypeError, match=r"^callback must be a plain function, got the coroutine function"):
        purgatory.when_all([], 1, _ignore)
    operation: Any = None
    with pytest.raises(TypeError, match=r"^callback must return None, got a coroutine"):
        operation = purgatory.when_all([], 1, lambda results: _ignore(results))
    assert operation is None


async def test_a_coroutine_of_a_timer_task_is_reported(
    timer: SystemTimer, clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """The coroutine is closed, and the tasks after it run."""
    ran: list[int] = []
    timer.add(_AsyncTask(5))
    timer.call_later(0.005, _ignore, 1)
    timer.call_later(0.005, ran.append, 1)
    await clock.advance(0.005)
    assert ran == [1]
    assert [str(context["exception"]).partition(":")[0] for context in reported] == [
        "_AsyncTask.run() must return None, got a coroutine",
        "the callback of call_later() must return None, got a coroutine",
    ]


async def test_a_coroutine_that_runs_already_is_left_alone(purgatory: Purgatory[Op]) -> None:
    """A coroutine that has started belongs to the code that runs it; the hook is refused, and the coroutine can
    continue.
    """
    steps: list[str] = []

    async def work() -> None:
        steps.append("begun")
        await asyncio.sleep(0)
        steps.append("ended")

    coroutine: Coroutine[Any, Any, None] = work()
    coroutine.send(None)
    with pytest.raises(TypeError, match="must return the result, got a coroutine"):
        purgatory.try_complete_else_watch(Op(5, ready=True, on_complete=lambda _: coroutine), ["a"])
    with pytest.raises(StopIteration):
        coroutine.send(None)
    assert steps == ["begun", "ended"]


@pytest.mark.parametrize(
    "function",
    [
        len,
        [].append,
        str,
        _Callable,
        _Callable().__repr__,
        functools.partial(len),
        functools.partial(lambda: True),
        _Partial(len),
        _Compiled(lambda: True),
    ],
)
def test_a_plain_callable_is_no_coroutine_function(function: Any) -> None:
    """Built-in functions, classes, and methods and partials of these are accepted where a function is called."""
    assert not is_coroutine_function(function)


@pytest.mark.parametrize(
    "function",
    [
        _ready,
        _generator,
        _Callable().method,
        functools.partial(_ready),
        functools.partial(_Callable().method),
        _Partial(_ready),
        _Compiled(_ready),
    ],
)
def test_a_coroutine_function_is_recognised(function: Any) -> None:
    """Also as a method, and in a partial."""
    assert is_coroutine_function(function)
