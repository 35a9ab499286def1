"""The references of objects to their classes: a class that a function defines is freed, with what its methods use."""

import gc
import sys
import sysconfig
import weakref
from contextlib import suppress
from typing import Any

import pytest

from purgatory import Clock, DelayedOperation, Purgatory, SystemTimer, TimerTask
from purgatory.types import Alarm, RecordBuffer
from tests.helpers import Boom

pytestmark = pytest.mark.skipif(
    not hasattr(sys, "getrefcount") or bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="without the GIL, and in PyPy, references to classes are not counted in this way",
)


class Body:
    """The body of a request."""


class Slots(DelayedOperation[None]):
    """An operation without a dictionary."""

    __slots__ = ("other",)

    other: Any


class Deeper(Slots):
    """A subclass of a subclass, with a dictionary."""


class Refused(Deeper):
    """An operation whose constructor fails at its end."""

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        raise Boom


class Unfinished(Deeper):
    """An operation whose constructor fails at its beginning."""

    def __init__(self, timeout: float) -> None:
        raise Boom


class Finalized(Deeper):
    """An operation with a finalizer, which gives it a dictionary."""

    def __del__(self) -> None:
        self.seen = True


class Task(TimerTask):
    """A task of a timer."""

    other: Any


class Plain(Deeper):
    """An operation that nothing else has validated."""


def forget() -> None:
    """Make the compiled core forget the class that it validated last, and collect what is left."""
    TimerTask(1)
    gc.collect()


BASES: list[tuple[type[Any], tuple[Any, ...]]] = [
    (DelayedOperation, (5,)),
    (Slots, (5,)),
    (TimerTask, (5,)),
    (Clock, ()),
    (Alarm, (None,)),
    (RecordBuffer, ()),
    (SystemTimer, ()),
    (Purgatory, ("test",)),
]


@pytest.mark.parametrize("cycle", [False, True], ids=["alone", "cycle"])
@pytest.mark.parametrize(("base", "arguments"), BASES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_class_that_a_function_defines_is_freed(base: type[Any], arguments: tuple[Any, ...], cycle: bool) -> None:
    """The collector frees the class, its objects, and what its methods use, even if the class refers to an object."""

    def handle(body: Body) -> list[weakref.ref[Any]]:
        class Local(base):  # type: ignore[misc]
            latest: Any

            def use(self) -> Body:
                return body

        for _ in range(10):
            local = Local(*arguments)
        if cycle:
            Local.latest = local
        return [weakref.ref(body), weakref.ref(Local)]

    gone = handle(Body())
    forget()
    assert [reference() for reference in gone] == [None, None]


@pytest.mark.parametrize("kind", [Slots, Deeper, Refused, Unfinished, Finalized, Task])
def test_an_object_holds_one_reference_to_its_class(kind: type[Any]) -> None:
    """Each object takes one reference and gives it back, however it ends; the class remains."""

    def make() -> Any:
        with suppress(Boom):
            return kind(5)
        return None

    made = make() is not None
    forget()
    before = sys.getrefcount(kind)
    several = [make() for _ in range(100)]
    assert sys.getrefcount(kind) >= before + 100 * made
    several.clear()
    forget()
    assert sys.getrefcount(kind) == before
    if made:
        for _ in range(100):
            one, other = make(), make()
            one.other, other.other = other, one
        called: list[object] = []
        observed = [weakref.ref(make(), called.append) for _ in range(100)]
        assert called == observed
        for _ in range(100):
            make().__class__ = Plain if issubclass(kind, Deeper) else kind
        del one, other
        forget()
        assert sys.getrefcount(kind) == before
