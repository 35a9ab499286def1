"""A timer task and its delay."""

from collections.abc import Callable
from typing import Any

import pytest

from purgatory import COMPILED, TimerTask
from purgatory.core.timer import task as task_module
from purgatory.testing import ManualClock
from tests.sansio import make_purgatory


def test_a_new_task_is_not_scheduled() -> None:
    """A task that is not on a timer has no expiration and cannot be cancelled."""
    task = TimerTask(10)
    assert not task.scheduled
    assert task.expiration_ms is None
    assert not task.cancel()


class _Named(TimerTask):
    __slots__ = ("name",)

    def __init__(self, name: str, delay_ms: int) -> None:
        super().__init__(delay_ms)
        self.name = name


@pytest.mark.parametrize("make", [TimerTask, lambda delay_ms: _Named("a", delay_ms)])
def test_a_scheduled_task_is_not_initialised_again(make: Callable[[int], TimerTask]) -> None:
    """It would keep its neighbours' links to it without its own, and the closing timer would never find the end."""
    timer = make_purgatory(ManualClock())._core.timer
    task = make(10)
    TimerTask.__init__(task, 20)
    timer.add(task)
    with pytest.raises(ValueError, match=r"task must be new, got <.*>, which is on a timer"):
        TimerTask.__init__(task, 30)
    assert task.delay_ms == 20
    timer._check()
    assert task.cancel()
    TimerTask.__init__(task, 30)
    assert (task.delay_ms, task.scheduled) == (30, False)


@pytest.mark.skipif(COMPILED, reason="compiled code has the flag")
def test_compiled_code_has_a_flag_for_a_task_that_is_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot ask whether a field has a value; interpreted code, here with the flag in a dict, can."""
    timer = make_purgatory(ManualClock())._core.timer

    class Plain(TimerTask):
        def __init__(self, delay_ms: int) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(task_module, "_HAS_FLAG", True)
                super().__init__(delay_ms)

    task = Plain(10)
    task.__init__(20)  # type: ignore[misc]
    timer.add(task)
    with pytest.raises(ValueError, match="which is on a timer"):
        task.__init__(30)  # type: ignore[misc]
    assert task.cancel()


def test_a_subclass_has_a_state_of_its_own() -> None:
    """The state of an operation shares a field of a compiled task, which must not take a common name."""

    class Session(TimerTask):
        def __init__(self) -> None:
            super().__init__(10)
            self._state = "idle"

    assert Session()._state == "idle"


@pytest.mark.parametrize("delay_ms", [1.0, "1", None])
def test_a_delay_is_a_whole_number(delay_ms: object) -> None:
    """A delay in milliseconds must be an int."""
    with pytest.raises(TypeError, match=r"delay_ms|int"):
        TimerTask(delay_ms)  # type: ignore[arg-type]


def test_a_delay_has_an_end() -> None:
    """A delay that does not fit in a machine word is refused."""
    with pytest.raises(ValueError, match=r"at most 10\*\*18"):
        TimerTask(10**18 + 1)
    assert TimerTask(10**18).delay_ms == 10**18
    with pytest.raises(ValueError, match=r"at least -10\*\*18"):
        TimerTask(-(10**18) - 1)
    assert TimerTask(-(10**18)).delay_ms == -(10**18)


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
