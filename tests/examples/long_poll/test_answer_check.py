"""The answer check of the soak test finds every inconsistency, and reports nothing else."""

from collections.abc import Callable
from typing import Any

import pytest

from examples.long_poll.soak.answer_check import AnswerCheck, Asked, Counts

_AT_REST = {
    "parked": 0,
    "watched": 0,
    "keys": 0,
    "num_delayed": 0,
    "submitted": 0,
    "completed": 0,
    "expired": 0,
    "cancelled": 0,
    "failed": 0,
}


def asked(*, offset: int = 0, min_bytes: int = 3, max_wait: float = 1.0, sent_at: float = 100.0) -> Asked:
    return Asked("a", offset, min_bytes, max_wait, sent_at)


def answer(*values: str, offset: int = 0) -> dict[str, Any]:
    messages = [{"offset": number, "value": value} for number, value in enumerate(values, offset)]
    return {"topic": "a", "messages": messages, "next_offset": offset + len(values)}


def books(**changes: int) -> dict[str, int]:
    return _AT_REST | changes


def test_nothing_wrong_is_found_where_nothing_is_wrong() -> None:
    """A response in time, a timeout, a disconnect, a rejection and a post are counted, without a failure."""
    answers = AnswerCheck()
    answers.answered(asked(), answer("one", "two"), 100.5)
    answers.posted("a", 1, "two", 100.6)
    answers.answered(asked(offset=2), answer(offset=2), 101.25)
    answers.turned_away(asked(), 503, "1")
    answers.counts.hung_up += 1
    answers.check_at_rest(books(submitted=3, completed=1, expired=1, cancelled=1))
    answers.check_exactly(books(), books(submitted=2, completed=1, expired=1), Counts())
    assert answers.wrong == []
    assert answers.counts == Counts(filled=1, timed_out=1, hung_up=1, turned_away=1, posted=1)
    assert answers.counts.requests == 4
    assert answers.lateness == [0.25]
    assert answers.end_of("a") == 2


def test_who_hangs_up_may_have_crossed_his_answer() -> None:
    """If a client disconnects, the server may report any outcome, or none."""
    for seen in ({"completed": 1}, {"expired": 1}, {"cancelled": 1}, {}):
        answers = AnswerCheck()
        answers.counts.hung_up = 1
        answers.check_at_rest(books(submitted=len(seen), **seen))
        assert answers.wrong == []


def test_an_answer_at_the_end_may_be_early_and_a_connection_may_break() -> None:
    """While the server is stopping, early responses and lost connections are allowed."""
    answers = AnswerCheck()
    answers.stopping_since = 100.0
    answers.answered(asked(), answer(), 100.1)
    answers.cut_off(asked(), "gone")
    answers.cut_off(None, "gone")
    assert answers.wrong == []
    assert (answers.counts.timed_out, answers.counts.cut_off) == (1, 1)


def lost_wake_up(answers: AnswerCheck) -> None:
    answers.posted("a", 0, "enough", 100.9)
    answers.answered(asked(), answer(), 101.1)


def changed_message(answers: AnswerCheck) -> None:
    answers.posted("a", 0, "one", 100.0)
    answers.answered(asked(), answer("two"), 100.5)


def skipped_message(answers: AnswerCheck) -> None:
    answers.answered(asked(), answer("two", offset=1), 100.5)


def filled_by_expiry(answers: AnswerCheck) -> None:
    answers.answered(asked(), answer("enough"), 101.1)
    answers.check_exactly(books(), books(submitted=1, expired=1), Counts())


@pytest.mark.parametrize(
    ("what", "complaint"),
    [
        (lambda answers: answers.answered(asked(), answer(), 100.9), "early"),
        (lost_wake_up, "timed out with 0 bytes although 6 were available"),
        (changed_message, "message 0 of a was 'one', and is 'two'"),
        (skipped_message, "offset must be 0, got 1"),
        (lambda answers: answers.answered(asked(), answer("one") | {"next_offset": 5}, 100.5), "next_offset is 5"),
        (lambda answers: answers.turned_away(asked(), 500, None), "status 500"),
        (lambda answers: answers.turned_away(asked(), 429, None), "without Retry-After"),
        (lambda answers: answers.cut_off(asked(), "gone"), "no response"),
        (
            lambda answers: answers.check_at_rest(books(parked=1, submitted=1)),
            "parked must be 0 while no request waits, got 1",
        ),
        (lambda answers: answers.check_at_rest(books(watched=1)), "watched must be 0 while no request waits, got 1"),
        (lambda answers: answers.check_at_rest(books(submitted=1)), "do not add up"),
        (lambda answers: answers.check_at_rest(books(submitted=1, failed=1)), "do not add up"),
        (lambda answers: answers.check_at_rest(books(submitted=1, completed=1)), "completed must be 0 to 0, got 1"),
        (lambda answers: answers.check_at_rest(books(submitted=1, expired=1)), "expired must be 0 to 0, got 1"),
        (lambda answers: answers.check_at_rest(books(submitted=1, cancelled=1)), "cancelled must be 0 to 0, got 1"),
        (
            lambda answers: answers.check_exactly(books(), books(submitted=1, expired=1), Counts()),
            "expired must increase by 0, got 1",
        ),
        (
            lambda answers: answers.check_exactly(books(), books(submitted=1), Counts()),
            "submitted must increase by 0, got 1",
        ),
        (
            lambda answers: answers.check_exactly(books(), books(cancelled=1), Counts()),
            "cancelled must increase by 0, got 1",
        ),
        (filled_by_expiry, "completed must increase by 1, got 0"),
    ],
)
def test_what_cannot_be_true_is_found(what: Callable[[AnswerCheck], None], complaint: str) -> None:
    """Each kind of inconsistency is reported."""
    answers = AnswerCheck()
    what(answers)
    assert any(complaint in line for line in answers.wrong), answers.wrong


def test_a_message_that_came_too_late_is_no_lost_wake_up() -> None:
    """A write that was acknowledged after the deadline proves no lost wake-up."""
    answers = AnswerCheck()
    answers.posted("a", 0, "enough", 101.05)
    answers.answered(asked(), answer(), 101.1)
    assert answers.wrong == []


def test_complaints_are_not_without_number() -> None:
    """The number of reported failures is limited, so a broken server does not exhaust the memory."""
    answers = AnswerCheck()
    for _ in range(1000):
        answers.complain("again")
    assert len(answers.wrong) == 20
