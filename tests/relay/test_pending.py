"""Bounded sets of keys."""

from collections.abc import Hashable

from hypothesis import given
from hypothesis import strategies as st

from purgatory.relay.pending import PendingKeys


def test_each_key_once_with_its_largest_value() -> None:
    """The largest value wins; a missing value overrides all values, because such a check tries every watcher."""
    pending = PendingKeys(10)
    for key, value in [("a", 3), ("b", 1), ("a", 7), ("a", 5), ("c", 2), ("c", None), ("c", 9)]:
        pending.add(key, value)
    assert pending
    assert len(pending) == 3
    assert pending.take() == [("a", 7), ("b", 1), ("c", None)]
    assert not pending


def test_above_the_limit_every_key_is_pending() -> None:
    """Above the limit, the set is "every key", which counts as one, whatever is added."""
    pending = PendingKeys(3)
    for number in range(3):
        pending.add(number, None)
    assert not pending.everything
    pending.add(0, None)
    assert not pending.everything
    pending.add(3, None)
    assert pending.everything
    assert pending.collapsed == 1
    for number in range(100):
        pending.add(number, None)
    assert len(pending) == 1
    assert pending.collapsed == 1
    assert pending
    assert pending.take_everything()
    assert not pending.take_everything()
    assert len(pending) == 0
    assert not pending
    pending.add("a", 1)
    assert pending.take() == [("a", 1)]


@given(st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 9))), st.integers(1, 9))
def test_it_is_the_dict_of_maxima_or_everything(added: list[tuple[int, int | None]], limit: int) -> None:
    """The set equals an unbounded dict of the largest values, or means "every key"."""
    pending = PendingKeys(limit)
    plain: dict[Hashable, float | None] = {}
    for key, value in added:
        pending.add(key, value)
        before = plain.get(key, -1)
        plain[key] = None if value is None or before is None else max(before, value)
    assert pending.everything == (len(plain) > limit)
    assert pending.take() == ([] if pending.everything else list(plain.items()))
