"""``fail_for_key``: every operation on a key fails with an error, at once."""

import asyncio
import traceback
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from purgatory import Outcome, Purgatory, PurgatoryError
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Doing, Op, check, park, park_in_tasks


def _error_of(operation: Op) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        operation.result()
    return caught.value


async def test_failing_a_key_gives_every_task_the_exception(purgatory: Purgatory[Op]) -> None:
    """``fail_for_key`` fails every operation on the key and returns their number."""
    ops = [Op(5) for _ in range(3)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
    assert purgatory.fail_for_key("a", Boom("all")) == 3
    assert purgatory.fail_for_key("a", Boom("none")) == 0
    for op in ops:
        assert op.outcome is Outcome.FAILED
        with pytest.raises(Boom, match="all"):
            op.result()
    check(purgatory, parked=0, failed=3)


@pytest.mark.parametrize("error", ["text", 3, KeyboardInterrupt(), KeyboardInterrupt, str, object])
async def test_an_error_that_is_no_exception_changes_nothing(purgatory: Purgatory[Op], error: Any) -> None:
    """TypeError, at once and in slices, before any operation ends."""
    operation = park(purgatory, "a")
    with pytest.raises(TypeError, match="error must be an exception or a function that returns one, got "):
        purgatory.fail_for_key("a", error)
    with pytest.raises(TypeError, match="error must be an exception or a function that returns one, got "):
        await purgatory.afail_for_key("a", error)
    assert operation.outcome is Outcome.PENDING


async def test_a_coroutine_function_is_refused(purgatory: Purgatory[Op]) -> None:
    """It would be called, not awaited; no operation ends."""

    async def error() -> Exception:
        raise AssertionError("it is never awaited")

    operation = park(purgatory, "a")
    with pytest.raises(TypeError, match="error must be a plain function, got the coroutine function"):
        purgatory.fail_for_key("a", error)  # type: ignore[arg-type]
    assert operation.outcome is Outcome.PENDING


# A function that returns a new exception for each operation


@pytest.mark.parametrize("in_slices", [False, True])
async def test_a_report_of_one_task_shows_nothing_of_another(purgatory: Purgatory[Op], in_slices: bool) -> None:
    """With a function, a task that waits while it handles an error does not pass that error to the other tasks."""
    reports: dict[str, str] = {}

    async def request(user: str) -> None:
        try:
            try:
                if user == "alice":
                    raise KeyError(f"the secret of {user}")
            except KeyError:
                await purgatory.wait_value(lambda: None, key="db", timeout=5)
            await purgatory.wait_value(lambda: None, key="db", timeout=5)
        except ConnectionError:
            reports[user] = traceback.format_exc()

    tasks = [asyncio.create_task(request(user)) for user in ("alice", "bob")]
    await asyncio.sleep(0)
    if in_slices:
        assert await purgatory.afail_for_key("db", lambda: ConnectionError("the database is gone")) == 2
    else:
        assert purgatory.fail_for_key("db", lambda: ConnectionError("the database is gone")) == 2
    await asyncio.gather(*tasks)
    assert "the secret of alice" in reports["alice"]
    assert "alice" not in reports["bob"]
    assert "the database is gone" in reports["bob"]


async def test_a_function_is_called_for_each_operation_that_fails(
    purgatory: Purgatory[Op], clock: VirtualClock
) -> None:
    """In the order of arrival; not for an operation whose task has been cancelled or that has ended."""
    made: list[Boom] = []

    def make() -> Boom:
        made.append(Boom(len(made)))
        if len(made) == 1:
            ops[2].cancel()
        return made[-1]

    ops = [Op(5) for _ in range(4)]
    tasks = await park_in_tasks(purgatory, clock, *ops)
    tasks[1].cancel()
    assert purgatory.fail_for_key("a", make) == 2
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [answers[0], answers[3]] == made
    assert [op.outcome for op in ops] == [Outcome.FAILED, Outcome.CANCELLED, Outcome.CANCELLED, Outcome.FAILED]
    check(purgatory, parked=0, failed=2, cancelled=2)


async def test_an_exception_class_is_a_function(purgatory: Purgatory[Op]) -> None:
    """Each operation gets a new instance; a class that cannot be called without arguments fails it with that error."""
    ops = [park(purgatory, key) for key in "aab"]
    assert purgatory.fail_for_key("a", Boom) == 2
    first, second = (_error_of(op) for op in ops[:2])
    assert isinstance(first, Boom)
    assert isinstance(second, Boom)
    assert first is not second
    assert purgatory.fail_for_key("b", UnicodeDecodeError) == 1  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="5 arguments"):
        ops[2].result()


async def test_what_the_function_raises_is_the_answer(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """An error in the function leaves no operation without an answer."""

    def broken() -> Exception:
        raise Boom("in the function")

    op = Op(5)
    tasks = await park_in_tasks(purgatory, clock, op, Op(5))
    assert purgatory.fail_for_key("a", broken) == 2
    for task in tasks:
        with pytest.raises(Boom, match="in the function"):
            await task
    check(purgatory, parked=0, failed=2)


async def _nothing() -> None:
    raise AssertionError("it is never awaited")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: None, "error must return an exception, got None$"),
        (lambda: Boom, "error must return an exception, got <class"),
        (lambda: KeyboardInterrupt("no"), r"error must return an exception, got KeyboardInterrupt\('no'\)$"),
        (lambda: _nothing(), "error must return an exception, got a coroutine"),
        (lambda: Mock(spec=Boom), "error must return an exception, got <Mock"),
        (Mock(spec=Boom), "error must return an exception, got <Mock"),
    ],
)
async def test_what_is_no_exception_is_an_error_for_the_awaiter(
    purgatory: Purgatory[Op], clock: VirtualClock, make: Callable[[], Any], message: str
) -> None:
    """Each operation fails with a TypeError that states what the function should have returned."""
    (task,) = await park_in_tasks(purgatory, clock, Op(5))
    assert purgatory.fail_for_key("a", make) == 1
    with pytest.raises(TypeError, match=message):
        await task
    check(purgatory, parked=0, failed=1)


async def test_a_function_that_ends_the_operation_itself(purgatory: Purgatory[Op]) -> None:
    """The first outcome stands, and the operation is not counted as failed by this call."""
    op = park(purgatory, "a")

    def make() -> Exception:
        op.force_complete()
        return Boom()

    assert purgatory.fail_for_key("a", make) == 0
    assert op.outcome is Outcome.COMPLETED


async def test_a_function_that_cancels_the_task(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """The operation is withdrawn, as if the task had been cancelled before."""
    op = Op(5)
    (task,) = await park_in_tasks(purgatory, clock, op)

    def make() -> Exception:
        task.cancel()
        return Boom()

    assert purgatory.fail_for_key("a", make) == 0
    assert op.outcome is Outcome.CANCELLED
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_interrupt_in_the_function_propagates_after_the_answer(
    purgatory: Purgatory[Op], clock: VirtualClock
) -> None:
    """The operation at hand fails, as after an interrupt in ``on_complete``; the others continue to wait."""

    def make() -> Exception:
        raise KeyboardInterrupt

    ops = [Op(5), Op(5)]
    tasks = await park_in_tasks(purgatory, clock, *ops)
    with pytest.raises(KeyboardInterrupt):
        purgatory.fail_for_key("a", make)
    assert [op.outcome for op in ops] == [Outcome.FAILED, Outcome.PENDING]
    with pytest.raises(PurgatoryError, match="interrupted by KeyboardInterrupt"):
        await tasks[0]
    assert purgatory.fail_for_key("a", Boom) == 1
    with pytest.raises(Boom):
        await tasks[1]


async def test_the_event_has_the_exception_of_the_operation(clock: VirtualClock) -> None:
    """Observers see the exception that the awaiter receives."""
    seen: list[BaseException | None] = []
    async with Purgatory[Op](
        "test", clock=clock, observers=[Doing(failed=lambda event: seen.append(event.error))]
    ) as purgatory:
        ops = [park(purgatory, "a") for _ in range(2)]
        purgatory.fail_for_key("a", Boom)
        assert seen == [_error_of(op) for op in ops]
        assert seen[0] is not seen[1]
