"""A wait of zero: the operation is tried once, and expires if its condition does not hold."""

from typing import Any

import pytest

from purgatory import Outcome, PurgatoryError
from purgatory.testing import ManualClock
from tests.helpers import Boom, Op, Recorder, check
from tests.sansio import RecordingHooks, make_purgatory


def interrupt(_: Any) -> None:
    """Interrupt, as Ctrl-C does."""
    raise KeyboardInterrupt


def boom(_: Any) -> None:
    """Fail."""
    raise Boom


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("keys", [["a"], ("a", "b"), {"a": 3}])
def test_its_result_is_that_of_its_only_try(ready: bool, keys: Any) -> None:
    """It is not counted, and no observer is notified."""
    observer = Recorder()
    room = make_purgatory(ManualClock(), observers=[observer])
    op = Op(0.0, name="answer", ready=ready)
    assert room._core.try_without_parking(op, keys) == "answer"
    assert op.calls == (["try", "complete"] if ready else ["try", "complete", "expire"])
    assert op.outcome is (Outcome.COMPLETED if ready else Outcome.EXPIRED)
    assert observer.events == []
    check(room, submitted=0, parked=0)


@pytest.mark.parametrize("held", [1, ["something"], 0, [], None])
def test_its_condition_may_return_any_object(held: Any) -> None:
    """As in every other try, the truth value counts."""
    room = make_purgatory(ManualClock())
    op = Op(0.0, name="answer", ready=held)
    assert room._core.try_without_parking(op, ["a"]) == "answer"
    assert op.outcome is (Outcome.COMPLETED if held else Outcome.EXPIRED)


def test_a_condition_that_is_a_coroutine_is_refused() -> None:
    """The error names the method of its class."""

    class Async(Op):
        async def try_complete(self) -> bool:  # type: ignore[override]
            return True

    room = make_purgatory(ManualClock())
    op = Async(0.0)
    with pytest.raises(TypeError, match=r"^Async\.try_complete\(\) must return whether the condition holds"):
        room._core.try_without_parking(op, ["a"])
    assert op.outcome is Outcome.FAILED


def test_a_condition_that_raises_fails_it() -> None:
    """The exception reaches the caller, who can read it from the operation, too."""
    room = make_purgatory(ManualClock())
    op = Op(0.0, on_try=boom)
    with pytest.raises(Boom):
        room._core.try_without_parking(op, ["a"])
    assert op.outcome is Outcome.FAILED
    assert op.calls == ["try"]
    with pytest.raises(Boom):
        op.result()
    assert "FAILED" in repr(op)
    check(room, submitted=0, failed=0)


def test_an_operation_that_has_ended_is_refused() -> None:
    """The message names the operation, and its outcome stands."""
    room = make_purgatory(ManualClock())
    op = Op(0.0, name="answer", ready=True)
    assert room._core.try_without_parking(op, ["a"]) == "answer"
    with pytest.raises(ValueError, match="operation must be new, got "):
        room._core.try_without_parking(op, ["a"])
    assert (op.outcome, op.calls) == (Outcome.COMPLETED, ["try", "complete"])


def test_an_interrupt_changes_nothing() -> None:
    """The operation is as new, and the next call tries it again."""
    room = make_purgatory(ManualClock())
    op = Op(0.0, name="answer", ready=True, on_try=interrupt)
    with pytest.raises(KeyboardInterrupt):
        room._core.try_without_parking(op, ["a"])
    assert op.outcome is Outcome.PENDING
    op._on_try = lambda _: None
    assert room._core.try_without_parking(op, ["a"]) == "answer"


def test_on_expiration_that_raises_is_reported() -> None:
    """The outcome stands and the caller has the result; only an interrupt reaches the caller."""
    reported: list[tuple[type[BaseException], object]] = []

    class Recording(RecordingHooks):
        def report(self, error: BaseException, operation: Any) -> None:
            reported.append((type(error), operation))

    room = make_purgatory(ManualClock(), hooks=Recording())
    op = Op(0.0, name="answer", on_expiration=boom)
    assert room._core.try_without_parking(op, ["a"]) == "answer"
    assert reported == [(Boom, op)]
    interrupted = Op(0.0, on_expiration=interrupt)
    with pytest.raises(KeyboardInterrupt):
        room._core.try_without_parking(interrupted, ["a"])
    assert interrupted.outcome is Outcome.EXPIRED


def test_on_complete_that_raises_fails_it() -> None:
    """Whether it completes or expires, the caller gets the exception, once."""
    room = make_purgatory(ManualClock())
    for ready in (True, False):
        op = Op(0.0, ready=ready, on_complete=boom)
        with pytest.raises(Boom):
            room._core.try_without_parking(op, ["a"])
        assert op.outcome is Outcome.FAILED
    assert room.reported == []


@pytest.mark.parametrize("ready", [True, False])
def test_the_exception_of_on_complete_reaches_the_caller_itself(ready: bool) -> None:
    """Only awaiters, whose futures cannot carry it, receive another one in its place."""
    stop = StopIteration("end")

    def end(_: Any) -> None:
        raise stop

    room = make_purgatory(ManualClock())
    op = Op(0.0, ready=ready, on_complete=end)
    with pytest.raises(StopIteration) as raised:
        room._core.try_without_parking(op, ["a"])
    assert raised.value is stop
    with pytest.raises(PurgatoryError) as wrapped:
        op.result()
    assert wrapped.value.__cause__ is stop


@pytest.mark.parametrize("ready", [True, False])
def test_a_refusal_leaves_it_as_new(ready: bool) -> None:
    """It takes the place of the expiration only: a condition that holds is answered."""
    room = make_purgatory(ManualClock())
    op = Op(0.0, name="answer", ready=ready)

    def refuse() -> None:
        raise Boom

    if ready:
        assert room._core.try_without_parking(op, ["a"], refuse=refuse) == "answer"
    else:
        with pytest.raises(Boom):
            room._core.try_without_parking(op, ["a"], refuse=refuse)
        assert (op.outcome, op.calls) == (Outcome.PENDING, ["try"])
        op.ready = True
        assert room._core.try_without_parking(op, ["a"]) == "answer"
