"""Payloads: encoded notices can be decoded, and any other payload is understood or refused."""

import json
from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.relay.codec import (
    DEEPEST,
    Entry,
    decode,
    encode_everything,
    encode_keys,
    encode_ping,
    is_key,
    validate_key,
    validate_value,
)

KEYS: st.SearchStrategy[Hashable] = st.recursive(
    st.text() | st.text(st.characters(codec=None)) | st.integers(),
    lambda keys: st.tuples(keys, keys) | st.tuples(keys),
    max_leaves=5,
)
VALUES = st.none() | st.integers() | st.floats(allow_nan=False)
ENTRIES = st.lists(st.tuples(KEYS, VALUES), max_size=20)


def _nested(depth: int) -> Hashable:
    key: Hashable = "key"
    for _ in range(depth):
        key = (key,)
    return key


@given(ENTRIES, st.integers(60, 400))
def test_entries_arrive_as_they_were_sent(entries: list[Entry], max_payload: int) -> None:
    """Every entry arrives once and in order; from an entry that does not fit on, "every key" arrives instead."""
    read: list[Entry] = []
    carried: list[Entry] = []
    for payload, part in encode_keys("origin", entries, max_payload):
        carried += part
        notice = decode(payload)
        assert notice.origin == "origin"
        assert notice.ping is None
        if notice.entries is None:
            assert any(len(json.dumps([key, value])) > max_payload - 40 for key, value in part)
            break
        assert notice.entries == part
        read += notice.entries
    assert carried == entries
    assert read == entries[: len(read)]


@given(ENTRIES, st.integers(60, 400))
def test_no_payload_is_longer_than_the_engine_allows(entries: list[Entry], max_payload: int) -> None:
    """Each payload has at most the maximum number of bytes, and is ASCII."""
    for payload, _ in encode_keys("0123456789abcdef", entries, max_payload):
        assert payload.isascii()
        assert len(payload.encode()) <= max_payload


def test_payloads_are_filled() -> None:
    """Ten thousand short keys need only as many messages as their bytes require."""
    entries: list[Entry] = [(f"order-{number:05}", None) for number in range(10_000)]
    payloads = [payload for payload, _ in encode_keys("0123456789abcdef", entries, 7_999)]
    size = sum(len(f'["order-{number:05}"],') for number in range(10_000))
    assert len(payloads) == -(-size // 7_999) == 21
    assert all(len(payload) > 7_900 for payload in payloads[:-1])


def test_a_key_that_is_too_long_becomes_every_key() -> None:
    """Earlier keys are sent, and "every key" replaces the rest."""
    entries: list[Entry] = [("a", 1), ("x" * 500, 2), ("b", 3)]
    payloads = list(encode_keys("o", entries, 200))
    assert [decode(payload).entries for payload, _ in payloads] == [None]
    assert payloads[0][1] == entries
    many: list[Entry] = [(f"key-{number}", None) for number in range(40)]
    *before, last = encode_keys("o", [*many, *entries], 200)
    assert before
    assert decode(last[0]).entries is None
    assert [entry for _, part in [*before, last] for entry in part] == [*many, *entries]


def test_an_integer_that_python_would_not_read_becomes_every_key() -> None:
    """Python parses at most 4300 digits, so a longer key becomes "every key"."""
    huge = 10**5000
    assert [decode(payload).entries for payload, _ in encode_keys("o", [(huge, None)], 10_000)] == [None]
    assert [decode(payload).entries for payload, _ in encode_keys("o", [((1, (huge,)), None)], 10_000)] == [None]


@pytest.mark.parametrize("key", ["\ud83d\ude00", ("a", ("b\ud83d\ude00",))])
def test_a_pair_of_surrogates_becomes_every_key(key: Hashable) -> None:
    """It would arrive as one character, which is another key."""
    assert [decode(payload).entries for payload, _ in encode_keys("o", [(key, None)], 10_000)] == [None]


@pytest.mark.parametrize("key", ["\U0001f600", "\ude00\ud83d", "\ud83d-\ude00", "é"])
def test_other_characters_travel(key: str) -> None:
    """A character beyond the first 65,536, and surrogates that are no pair."""
    assert [decode(payload).entries for payload, _ in encode_keys("o", [(key, None)], 10_000)] == [[(key, None)]]


def test_tuples_travel() -> None:
    """A tuple arrives as an equal tuple, which has the same hash."""
    key = ("orders", 7, ("eu", -1))
    ((payload, _),) = encode_keys("o", [(key, 1.5)], 1000)
    assert payload == '[1,"o","keys",[[["orders",7,["eu",-1]],1.5]]]'
    assert decode(payload).entries == [(key, 1.5)]


@pytest.mark.parametrize("key", [True, 1.0, None, b"a", frozenset({1}), ("a", None), ("a", (False,)), object(), ["a"]])
def test_other_keys_are_refused(key: object) -> None:
    """Only str, int and tuples of these are allowed; True, which is an int in Python, is refused as well."""
    assert not is_key(key)
    with pytest.raises(TypeError, match=r"a key to relay must be a str, an int, or a tuple of them, .* got "):
        validate_key(key)


def test_a_key_may_be_nested_eight_deep() -> None:
    """Eight nested tuples around a key are decoded; a ninth is refused before it is sent."""
    ((payload, _),) = encode_keys("o", [(_nested(DEEPEST), None)], 1000)
    assert decode(payload).entries == [(_nested(DEEPEST), None)]
    with pytest.raises(TypeError, match="at most 8 deep"):
        validate_key(_nested(DEEPEST + 1))


@pytest.mark.parametrize("value", ["1", True, None, 1j])
def test_values_are_numbers(value: object) -> None:
    """A value that is not a number raises TypeError."""
    with pytest.raises(TypeError, match="a value to relay must be an int or a float, got "):
        validate_value(value)


@pytest.mark.parametrize("value", [float("nan"), 10**400, -(10**400)])
def test_a_value_has_an_order_and_fits_a_float(value: float) -> None:
    """NaN has no order, and a purgatory refuses a number that does not fit in a float."""
    with pytest.raises(ValueError, match="a value to relay must be a number that fits a float, got "):
        validate_value(value)
    with pytest.raises(ValueError, match=r"an entry must be \[key\] or \[key, value\]"):
        decode(json.dumps([1, "o", "keys", [["a", value]]]))


def test_an_error_does_not_fail_on_its_own_text() -> None:
    """The message works for integers of more than 4300 digits, which Python refuses to print."""
    with pytest.raises(TypeError, match=r"a key to relay must be .*, got <tuple whose repr raised ValueError>"):
        validate_key((10**5000, None))
    with pytest.raises(ValueError, match="fits a float, got <int whose repr raised ValueError>"):
        validate_value(10**5000)


def test_everything_and_pings() -> None:
    """The two notices without keys are decoded."""
    assert decode(encode_everything("o")) == ("o", None, None)
    assert decode(encode_ping("o", 12)) == ("o", [], 12)


@pytest.mark.parametrize(
    "payload",
    [
        "", "x", "[", b"\xff\xfe\xfa", "null", "[]", "{}", '[2,"o","all"]', "[1,2,3]", '[1,"o","all",1]',
        '[1,"o","keys"]', '[1,"o","keys",{}]', '[1,"o","keys",["a"]]', '[1,"o","keys",[[]]]',
        '[1,"o","keys",[["a",1,2]]]', '[1,"o","keys",[[null]]]', '[1,"o","keys",[[true]]]', '[1,"o","keys",[[1.5]]]',
        '[1,"o","keys",[["a","b"]]]', '[1,"o","keys",[["a",true]]]', '[1,"o","keys",[["a",NaN]]]',
        '[1,"o","keys",[["a",null]]]', '[1,"o","ping","1"]', '[1,"o","ping",1.0]', '["1","o","all"]',
        '[1,null,"all"]', "[" * 100_000, '[1,"o","keys",[[' + "[" * 12 + "]" * 12 + "]]]", "1" * 5000,
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(payload: str | bytes) -> None:
    """Damaged payloads, and those of another version, raise only ValueError."""
    with pytest.raises(ValueError):  # noqa: PT011 - the text is often that of the JSON parser
        decode(payload)


@given(st.binary() | st.text())
def test_no_payload_does_harm(payload: str | bytes) -> None:
    """Any payload is decoded to a notice or raises ValueError."""
    try:
        notice = decode(payload)
    except ValueError:
        return
    assert isinstance(notice.origin, str)
