"""Mocks of the public classes, which check arguments also where the core is compiled."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest

import purgatory
from purgatory import DelayedOperation, Outcome, Purgatory, SystemTimer, TimerTask, TimingWheel
from purgatory.testing import VirtualClock, create_autospec
from purgatory.types import Timeout

CLASSES = [
    kind
    for name in purgatory.__all__
    if inspect.isclass(kind := getattr(purgatory, name)) and not issubclass(kind, BaseException | purgatory.Observer)
]


class Request(DelayedOperation[str]):
    """An operation of the user, with a method that is not compiled."""

    def describe(self, prefix: str) -> str:
        """Return a text."""
        return prefix


class Alarm(TimerTask):
    """A timer task without a constructor of its own."""


def test_a_mock_refuses_arguments_that_the_method_would_refuse() -> None:
    """Too few, too many, and unknown arguments raise TypeError, from a compiled method as from a Python function."""
    calls: list[Callable[[Any], object]] = [
        lambda room: room.check(),
        lambda room: room.check("orders", 1, 2, 3),
        lambda room: room.check("orders", limits=1),
        lambda room: room.check_and_complete(),
        lambda room: room.is_watched(),
        lambda room: room.cancel_for_key("orders", because="late"),
        lambda room: room.try_complete_else_watch(object()),
        lambda room: room.statistics(1),
        lambda room: room.park(),
        lambda room: room.wait_until(bool, timeouts=1.0),
        lambda room: room.check_soon(),
        lambda room: room.aclose(1.0, 2.0),
    ]
    for room in (create_autospec(Purgatory, instance=True), create_autospec(Purgatory)("orders")):
        for call in calls:
            with pytest.raises(TypeError):
                call(room)


async def test_a_mock_answers_and_records_calls() -> None:
    """A method returns what the test says, the coroutine methods can be awaited, and assertions know the arguments."""
    room = create_autospec(Purgatory, instance=True)
    room.check.return_value = 2
    room.park.return_value = "data"
    assert room.check("orders", limit=2) == 2
    assert await room.park(object(), ["orders"]) == "data"
    assert isinstance(room.park, AsyncMock)
    assert not isinstance(room.check, AsyncMock)
    room.check.assert_called_once_with(key="orders", limit=2)
    with pytest.raises(AssertionError):
        room.check.assert_called_once_with("payments")


@pytest.mark.parametrize(
    "make",
    [
        lambda: create_autospec(Purgatory)(),
        lambda: create_autospec(Purgatory)("orders", "more"),
        lambda: create_autospec(SystemTimer)("name"),
        lambda: create_autospec(TimerTask)(),
        lambda: create_autospec(TimerTask)(1, 2),
        lambda: create_autospec(Alarm)(),
        lambda: create_autospec(Request)(1.0, 2.0),
        lambda: create_autospec(DelayedOperation)(delay=1.0),
        lambda: create_autospec(TimingWheel)(ticks=1),
        lambda: create_autospec(Timeout)(1),
    ],
)
def test_a_mock_of_a_class_checks_the_constructor(make: Callable[[], object]) -> None:
    """The mock of the class refuses arguments that the constructor would refuse."""
    with pytest.raises(TypeError):
        make()


def test_a_mock_of_a_class_can_be_called() -> None:
    """It returns one mock of an instance, whose methods check their arguments."""
    kind = create_autospec(Request)
    operation = kind(timeout=1.0)
    assert operation is kind.return_value
    operation.extend(5.0)
    operation.describe("a")
    for call in (operation.extend, operation.describe, operation.extend_to):
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize("kind", CLASSES, ids=[kind.__name__ for kind in CLASSES])
def test_a_mock_has_the_attributes_of_the_class_and_checks_every_method(kind: type) -> None:
    """It passes ``isinstance``, has the public names and no others, and each method checks its arguments."""
    mock = create_autospec(kind, instance=True)
    assert isinstance(mock, kind)
    assert not isinstance(mock, VirtualClock)
    assert f"spec={kind.__name__!r}" in repr(mock)
    for name in dir(kind):
        if not name.startswith("_"):
            attribute = getattr(mock, name)
            if inspect.isroutine(getattr(kind, name)):
                with pytest.raises(TypeError):
                    attribute(no_such_argument=1)
    with pytest.raises(AttributeError):
        _ = mock.chekc


def test_properties_take_the_value_that_the_test_gives() -> None:
    """A property of the class is an attribute of the mock; with ``spec_set``, nothing else can be assigned."""
    room = create_autospec(Purgatory, spec_set=True, instance=True, name="room")
    room.num_delayed = 3
    room.closed = False
    assert (room.num_delayed, room.closed) == (3, False)
    with pytest.raises(AttributeError):
        room.num_delaid = 3
    assert "room" in repr(room)


def test_a_class_without_compiled_methods_is_mocked_as_it_is() -> None:
    """No subclass is made, which an enumeration would refuse."""
    assert create_autospec(Outcome, instance=True).__class__ is Outcome


@pytest.mark.parametrize("spec", [Purgatory("orders"), "Purgatory", None, len])
def test_only_classes_can_be_mocked(spec: Any) -> None:
    """The error says what was passed."""
    with pytest.raises(TypeError, match="spec must be a class, got"):
        create_autospec(spec)


def test_any_class_without_python_functions_is_checked() -> None:
    """What the library's own classes get if they are compiled: methods and a constructor that check arguments."""
    made = create_autospec(asyncio.Future, instance=True)
    made.set_result(1)
    made.set_result.assert_called_once_with(1)
    assert isinstance(made, asyncio.Future)
    create_autospec(dict, instance=True).update(a=1)
    for call in (lambda: made.set_result(1, 2), lambda: create_autospec(asyncio.Future)(1)):
        with pytest.raises(TypeError, match="too many positional arguments"):
            call()


def test_a_constructor_in_python_is_checked() -> None:
    class Numbered(asyncio.Future[int]):
        def __init__(self, number: int) -> None:
            super().__init__()

    create_autospec(Numbered)(1).set_result(2)
    with pytest.raises(TypeError, match="missing a required argument: 'number'"):
        create_autospec(Numbered)()


def test_a_mock_is_no_registered_subclass() -> None:
    registered: list[type] = []

    class Registering(asyncio.Future[int]):
        def __init_subclass__(cls) -> None:
            registered.append(cls)

    create_autospec(Registering)
    assert registered == []
