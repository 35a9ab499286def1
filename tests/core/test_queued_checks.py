"""The queue of checks that callbacks request: ``any`` always states whether it contains a check."""

from purgatory.core.queued_checks import QueuedChecks
from purgatory.core.watch.validation import UNLIMITED


def test_a_queue_states_whether_it_contains_a_check() -> None:
    """After each change: the outermost call runs the queue only if it says so, and otherwise nothing would."""
    queued = QueuedChecks()
    assert queued.any is False
    for key in ("a", "b"):
        queued.add(key, None, UNLIMITED)
        assert queued.any is True
    assert queued.pop() == ("a", None, UNLIMITED)
    assert queued.any is True
    assert queued.pop() == ("b", None, UNLIMITED)
    assert queued.any is False
    queued.resume("b", None, UNLIMITED)
    assert queued.any is True
    assert queued.pop() == ("b", None, UNLIMITED)
    assert queued.any is False


def test_a_check_that_is_resumed_has_the_rest_of_its_limit() -> None:
    """It comes before the others; it does not continue if it has reached the limit."""
    queued = QueuedChecks()
    queued.add("b", None, UNLIMITED)
    queued.left = 2
    queued.resume("a", 7, 5)
    assert queued.pop() == ("a", 7, 2)
    queued.left = 0
    queued.resume("a", 7, 5)
    assert queued.pop() == ("b", None, UNLIMITED)
    assert queued.any is False
