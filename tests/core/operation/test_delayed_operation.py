"""What a subclass of an operation or a timer task may do, and what errors say about those that do it wrong.

These tests run on the compiled and on the interpreted core: both give the same answers.
"""

import dataclasses
from typing import Any

import pytest

from purgatory import DelayedOperation, Outcome, TimerTask
from purgatory.core.timer.base_timer import BaseTimer
from purgatory.testing import ManualClock
from tests.helpers import Op
from tests.sansio import QuietPurgatory, make_purgatory, pass_time


class Runner(DelayedOperation[str]):
    """An operation of a job, with a method of its own that has the name of the timer's."""

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self.ran = 0

    def run(self) -> None:
        self.ran += 1

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> str:
        return "late"


class Forgetful(DelayedOperation[None]):
    """It does not call ``super().__init__()``."""

    def __init__(self) -> None:
        pass

    def try_complete(self) -> bool:
        return True


class ForgetfulTask(TimerTask):
    """It does not call ``super().__init__()``."""

    def __init__(self) -> None:
        pass


@dataclasses.dataclass(frozen=True)
class Frozen(DelayedOperation[None]):
    """Its fields cannot be assigned."""

    offset: int

    def __post_init__(self) -> None:
        super().__init__(5.0)


@dataclasses.dataclass(frozen=True)
class FrozenTask(TimerTask):
    """Its fields cannot be assigned."""

    offset: int

    def __post_init__(self) -> None:
        super().__init__(5)


@dataclasses.dataclass(eq=False)
class Plain(DelayedOperation[None]):
    """An operation that is a dataclass."""

    offset: int

    def __post_init__(self) -> None:
        super().__init__(5.0)

    def try_complete(self) -> bool:
        return self.offset > 0


def test_an_operation_with_a_method_run_expires() -> None:
    """The timer does not call that method, which belongs to the subclass."""
    clock = ManualClock()
    room = make_purgatory(clock)
    op = Runner(5.0)
    room.try_complete_else_watch(op, ["a"])
    pass_time(clock, room, 5000)
    assert op.outcome is Outcome.EXPIRED
    assert op.result() == "late"
    assert op.ran == 0


def test_a_missing_super_init_is_named(room: QuietPurgatory) -> None:
    """Not an attribute of the library that the author of the class does not know."""
    with pytest.raises(RuntimeError, match=r"^Forgetful\.__init__\(\) must call super\(\)\.__init__\(timeout\)$"):
        room.try_complete_else_watch(Forgetful(), ["a"])
    with pytest.raises(RuntimeError, match=r"^ForgetfulTask\.__init__\(\) must call super\(\)\.__init__\(delay_ms\)$"):
        room._core.timer.add(ForgetfulTask())
    room._check()
    assert room.statistics().submitted == 0


def test_an_omitted_timeout_is_named() -> None:
    """The error names the class, and says what waits for ever."""
    incomplete: Any = Op.__mro__[1]
    with pytest.raises(TypeError, match=r"^DelayedOperation\(\) takes a timeout in seconds, got none: timeout=None"):
        incomplete()


@pytest.mark.parametrize(("values", "named"), [((1, 2), {}), ((1,), {"timeout": 2}), ((), {"delay": 1})])
def test_wrong_arguments_name_the_class_of_the_constructor(values: tuple[int, ...], named: dict[str, int]) -> None:
    """As Python does for a class that inherits its constructor: DelayedOperation, and no function of the library."""
    inherits: Any = type("Inherits", (DelayedOperation,), {})
    with pytest.raises(TypeError, match=r"\bDelayedOperation(\.__init__)?\(\)") as caught:
        inherits(*values, **named)
    assert "_begin" not in str(caught.value)
    assert not hasattr(inherits, "DelayedOperation")


@pytest.mark.parametrize("kind", [Frozen, FrozenTask])
def test_a_frozen_dataclass_is_refused(kind: Any) -> None:
    """Compiled code could assign its fields, interpreted code could not."""
    for _ in range(2):
        with pytest.raises(TypeError, match=rf"^{kind.__name__} must not be a frozen dataclass: the timer assigns"):
            kind(3)


def test_a_dataclass_may_be_an_operation(room: QuietPurgatory) -> None:
    """Its fields come on top of those of the library."""
    op = Plain(0)
    assert room.try_complete_else_watch(op, ["a"]) is False
    op.offset = 1
    assert room.check("a") == 1


def test_a_parked_operation_is_not_initialised_again(room: QuietPurgatory) -> None:
    """It would leave its keys without telling them.  One that has ended, or was never parked, may start over."""
    op = Op(5.0)
    op.__init__(7.0)  # type: ignore[misc]
    room.try_complete_else_watch(op, ["a"])
    with pytest.raises(ValueError, match=r"operation must be new, got <Op PENDING on .*>, which is parked already"):
        op.__init__(9.0)  # type: ignore[misc]
    assert op.timeout == 7.0
    room._check()
    op.cancel()
    op.__init__(9.0)  # type: ignore[misc]
    room.try_complete_else_watch(op, ["a"])
    assert op.timeout == 9.0


def test_the_delay_is_an_int() -> None:
    """Wherever it is given, and with one text, which says what it was."""
    task = TimerTask(5)
    message = r"^delay_ms must be an int of milliseconds, got {}$"
    wrong: Any
    for wrong, shown in ((1.5, r"1\.5"), ("x", "'x'"), (None, "None")):
        with pytest.raises(TypeError, match=message.format(shown)):
            TimerTask(wrong)
        with pytest.raises(TypeError, match=message.format(shown)):
            task.delay_ms = wrong
    with pytest.raises(ValueError, match=r"^delay_ms must be at most 10\*\*18"):
        task.delay_ms = 10**19
    assert task.delay_ms == 5
    task.delay_ms = 7
    assert task.delay_ms == 7


def test_the_delay_of_an_operation_is_not_assigned() -> None:
    """``extend`` moves the deadline, and the gauge of the operations with a deadline stays exact."""
    room = make_purgatory(ManualClock())
    new, parked = Op(5.0), Op(None)
    room.try_complete_else_watch(parked, ["a"])
    for op in (new, parked):
        with pytest.raises(AttributeError, match=r"^delay_ms of an operation cannot be assigned: extend\(\) "):
            op.delay_ms = 1000
    assert (new.timeout, parked.timeout) == (5.0, None)
    parked.cancel()
    room._check()
    assert room.num_delayed == 0


def test_only_tasks_are_added_to_a_timer() -> None:
    """A class is not a task either."""
    timer = BaseTimer(1, 20, ManualClock())
    wrong: Any
    for wrong, shown in (("x", "'x'"), (TimerTask, ".*TimerTask"), (None, "None")):
        with pytest.raises(TypeError, match=rf"^task must be a TimerTask, got {shown}"):
            timer.add(wrong)
    with pytest.raises(TypeError, match=r"^now_ms must be an int, got 1\.5$"):
        timer.expire_due(1.5)
    assert timer.size == 0


def test_only_operations_with_a_deadline_are_added_to_a_timer(room: QuietPurgatory) -> None:
    """By hand, outside a purgatory: with a timeout or an absolute deadline.  A parked one has its place already."""
    timer = room._core.timer
    with pytest.raises(ValueError, match=r"^task must have a deadline, got <Op PENDING timeout=None>"):
        timer.add(Op(None))
    parked = Op(5.0)
    room.try_complete_else_watch(parked, ["a"])
    other = BaseTimer(1, 20, ManualClock())
    for into in (timer, other):
        with pytest.raises(ValueError, match=r"^task must not be parked, got <Op PENDING on .*>: extend\(\) moves"):
            into.add(parked)
    room._check()
    relative, absolute, passed = Op(1.0), Op(None), Op(0.0)
    start_ms = timer.clock.now_ms()
    absolute.extend_to(start_ms / 1000 + 2.0)
    for op in (relative, absolute, passed):
        timer.add(op)
    assert timer.expire_due(start_ms) == 1
    assert [relative.expiration_ms, absolute.expiration_ms] == [start_ms + 1000, start_ms + 2000]
    assert timer.expire_due(start_ms + 2000) == 2
    assert all(op.expired for op in (relative, absolute, passed))


def test_the_delay_of_an_absolute_deadline() -> None:
    """Before parking it is that of no timeout; it is never a code of the library."""
    op = Op(7.0)
    op.extend_to(5.0)
    assert op.delay_ms == -1
    assert op.timeout is None
    assert repr(op) == "<Op PENDING deadline=5>"
    op.extend_to(None)
    assert repr(op) == "<Op PENDING timeout=None>"
