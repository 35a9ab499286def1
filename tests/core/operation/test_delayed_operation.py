"""A ``DelayedOperation``: what a subclass may do, and what errors say about those that do it wrong.

These tests run on the compiled and on the interpreted core: both give the same answers.
"""

import dataclasses
import inspect
import sys
from typing import Any, Self

import pytest

from purgatory import COMPILED, DelayedOperation, TimerTask
from purgatory.core.operation import operation
from purgatory.core.timer import task
from tests.helpers import Op
from tests.sansio import QuietPurgatory


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


@pytest.mark.parametrize("kind", [Frozen, FrozenTask])
def test_compiled_code_validates_a_class_before_it_assigns(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each class once, as long as no other class comes between."""
    monkeypatch.setattr(task, "COMPILED", True)
    monkeypatch.setattr(operation, "COMPILED", True)
    for _ in range(2):
        assert TimerTask(5).delay_ms == 5
    with pytest.raises(TypeError, match=rf"^{kind.__name__} must not be a frozen dataclass"):
        kind(3)


@pytest.mark.skipif(COMPILED, reason="compiled code assigns the fields itself")
def test_an_error_of_the_class_that_refuses_a_field_is_raised() -> None:
    class Stubborn(TimerTask):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(f"no {name}")

    with pytest.raises(AttributeError, match=r"^no _delay_ms$"):
        Stubborn(5)


def test_a_dataclass_may_be_an_operation(room: QuietPurgatory) -> None:
    """Its fields come on top of those of the library."""
    op = Plain(0)
    assert room.try_complete_else_watch(op, ["a"]) is False
    op.offset = 1
    assert room.check("a") == 1


def test_signatures() -> None:
    """``inspect.signature`` reads the constructor that a class has or inherits, or the ``__call__`` of an operation."""

    class Inheriting(DelayedOperation[None]):
        def __call__(self, called: int) -> None: ...

    class Constructed(DelayedOperation[None]):
        def __init__(self, order: int) -> None:
            super().__init__(order)

    class Made(DelayedOperation[None]):
        def __new__(cls, *orders: int) -> Self:
            return super().__new__(cls)

    class Calling(type):
        def __call__(cls, called: int) -> Any: ...

    class Called(DelayedOperation[None], metaclass=Calling): ...

    assert list(inspect.signature(DelayedOperation).parameters) == ["timeout"]
    assert list(inspect.signature(Called).parameters) == ["called"]
    if not COMPILED or sys.version_info < (3, 13):  # later versions refuse the inherited __init__
        assert list(inspect.signature(Made).parameters) == ["orders"]
    assert list(inspect.signature(Inheriting).parameters) == ["timeout"]
    assert list(inspect.signature(Constructed).parameters) == ["order"]
    assert list(inspect.signature(Inheriting(None)).parameters) == ["called"]
    assert list(Inheriting.__signature__.parameters) == ["timeout"]  # whichever way this version of inspect goes
    assert [kind.__signature__ for kind in (Called, Made, Constructed)] == [None, None, None]
    with pytest.raises(AttributeError, match=r"^__signature__$"):
        _ = Inheriting(None).__signature__
