"""The soak's ledger: it finds whatever cannot be true, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest

from examples.long_poll.ledger import Asked, Counts, Ledger

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
    """An answer in time, a time-out, a hang-up, a refusal, a post: all of them count, none is a complaint."""
    ledger = Ledger()
    ledger.answered(asked(), answer("one", "two"), 100.5)
    ledger.posted("a", 1, "two", 100.6)
    ledger.answered(asked(offset=2), answer(offset=2), 101.25)
    ledger.turned_away(asked(), 503, "1")
    ledger.counts.hung_up += 1
    ledger.check_at_rest(books(submitted=3, completed=1, expired=1, cancelled=1))
    ledger.check_exactly(books(), books(submitted=2, completed=1, expired=1), Counts())
    assert ledger.wrong == []
    assert ledger.counts == Counts(filled=1, timed_out=1, hung_up=1, turned_away=1, posted=1)
    assert ledger.counts.requests == 4
    assert ledger.lateness == [0.25]
    assert ledger.end_of("a") == 2


def test_who_hangs_up_may_have_crossed_his_answer() -> None:
    """The server may call it completed, expired or cancelled, or may never have seen it."""
    for seen in ({"completed": 1}, {"expired": 1}, {"cancelled": 1}, {}):
        ledger = Ledger()
        ledger.counts.hung_up = 1
        ledger.check_at_rest(books(submitted=len(seen), **seen))
        assert ledger.wrong == []


def test_an_answer_at_the_end_may_be_early_and_a_connection_may_break() -> None:
    """When the server is being stopped, both are as they should be."""
    ledger = Ledger()
    ledger.stopping_since = 100.0
    ledger.answered(asked(), answer(), 100.1)
    ledger.cut_off(asked(), "gone")
    ledger.cut_off(None, "gone")
    assert ledger.wrong == []
    assert (ledger.counts.timed_out, ledger.counts.cut_off) == (1, 1)


def lost_wake_up(ledger: Ledger) -> None:
    ledger.posted("a", 0, "enough", 100.9)
    ledger.answered(asked(), answer(), 101.1)


def changed_message(ledger: Ledger) -> None:
    ledger.posted("a", 0, "one", 100.0)
    ledger.answered(asked(), answer("two"), 100.5)


def skipped_message(ledger: Ledger) -> None:
    ledger.answered(asked(), answer("two", offset=1), 100.5)


def filled_by_expiry(ledger: Ledger) -> None:
    ledger.answered(asked(), answer("enough"), 101.1)
    ledger.check_exactly(books(), books(submitted=1, expired=1), Counts())


@pytest.mark.parametrize(
    ("what", "complaint"),
    [
        (lambda ledger: ledger.answered(asked(), answer(), 100.9), "early"),
        (lost_wake_up, "timed out with 0 bytes when 6 were there"),
        (changed_message, "message 0 of a is"),
        (skipped_message, "message 1 came where 0 belongs"),
        (lambda ledger: ledger.answered(asked(), answer("one") | {"next_offset": 5}, 100.5), "next_offset is 5"),
        (lambda ledger: ledger.turned_away(asked(), 500, None), "status 500"),
        (lambda ledger: ledger.turned_away(asked(), 429, None), "does not say when"),
        (lambda ledger: ledger.cut_off(asked(), "gone"), "no answer"),
        (lambda ledger: ledger.check_at_rest(books(parked=1, submitted=1)), "parked is 1"),
        (lambda ledger: ledger.check_at_rest(books(watched=1)), "watched is 1"),
        (lambda ledger: ledger.check_at_rest(books(submitted=1)), "do not balance"),
        (lambda ledger: ledger.check_at_rest(books(submitted=1, failed=1)), "do not balance"),
        (lambda ledger: ledger.check_at_rest(books(submitted=1, completed=1)), "completed is 1 where 0 came in"),
        (lambda ledger: ledger.check_at_rest(books(submitted=1, expired=1)), "expired is 1 where 0 came in"),
        (lambda ledger: ledger.check_at_rest(books(submitted=1, cancelled=1)), "cancelled is 1 where 0 came in"),
        (lambda ledger: ledger.check_exactly(books(), books(submitted=1, expired=1), Counts()), "expired went up by 1"),
        (lambda ledger: ledger.check_exactly(books(), books(submitted=1), Counts()), "submitted went up by 1"),
        (lambda ledger: ledger.check_exactly(books(), books(cancelled=1), Counts()), "cancelled went up by 1"),
        (filled_by_expiry, "completed went up by 0, and 1 is expected"),
    ],
)
def test_what_cannot_be_true_is_found(what: Callable[[Ledger], None], complaint: str) -> None:
    """Each kind of wrong is told in words."""
    ledger = Ledger()
    what(ledger)
    assert any(complaint in line for line in ledger.wrong), ledger.wrong


def test_a_message_that_came_too_late_is_no_lost_wake_up() -> None:
    """A writer who knew only after the deadline proves nothing."""
    ledger = Ledger()
    ledger.posted("a", 0, "enough", 101.05)
    ledger.answered(asked(), answer(), 101.1)
    assert ledger.wrong == []


def test_complaints_are_not_without_number() -> None:
    """A server that is altogether broken does not fill the memory of the one who looks."""
    ledger = Ledger()
    for _ in range(1000):
        ledger.complain("again")
    assert len(ledger.wrong) == 20
