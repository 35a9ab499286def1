"""The broker's log: segments of batches, with reads, deletion and searches."""

import struct
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")


from examples.broker.storage.log import Log, Read
from examples.broker.storage.record_batch import Batch, SearchBudget, parse_batch, placed
from tests.examples.broker.request_harness import LIMIT, make_batch, parsed, values_in


def filled(batches: int, *, segment_bytes: int = 1 << 20) -> Log:
    log = Log(segment_bytes)
    for number in range(batches):
        log.append(placed(parsed(b"%04d" % number, b"x", timestamp=1000 * number), log.end_offset, 0))
    return log


def batches(read: Read) -> list[bytes]:
    """Return the batches of a read."""
    found, data = [], read.data
    while data:
        size = 12 + struct.unpack_from(">i", data, 8)[0]
        found.append(data[:size])
        data = data[size:]
    return found


def test_a_read_returns_whole_batches_from_the_one_that_holds_the_offset() -> None:
    """A read from an offset inside a batch returns the whole batch."""
    log = filled(5)
    read = log.read(3, log.end_offset, LIMIT, True)
    assert [values_in(data)[0] for data in batches(read)] == [b"0001", b"0002", b"0003", b"0004"]
    assert read.size == log.bytes_between(3, log.end_offset) == len(read.data)


def test_a_read_ends_where_it_is_told() -> None:
    """Records from the given offset on are neither read nor counted."""
    log = filled(5)
    assert len(batches(log.read(0, 6, LIMIT, True))) == 3
    assert log.bytes_between(0, 6) == log.read(0, 6, LIMIT, True).size
    assert batches(log.read(10, 10, LIMIT, True)) == []


def test_the_first_batch_may_exceed_the_limit_and_no_other() -> None:
    """If at least one batch is requested, exactly one may exceed the limit."""
    log = filled(5)
    assert len(batches(log.read(0, 10, 1, True))) == 1
    assert len(batches(log.read(0, 10, 1, False))) == 0


def test_a_read_stays_within_its_segment() -> None:
    """A full segment is closed; later batches are in another segment."""
    size = len(make_batch([b"0000", b"x"]))
    log = filled(5, segment_bytes=2 * size)
    assert [len(batches(log.read(offset, 10, LIMIT, True))) for offset in (0, 4, 8)] == [2, 2, 1]
    assert log.on_older_segment(0, 10)
    assert log.on_older_segment(0, 4)
    assert not log.on_older_segment(8, 10)


def test_deleting_lets_go_of_whole_segments_and_moves_the_start() -> None:
    """The start may lie inside a segment; segments entirely before it are freed."""
    size = len(make_batch([b"0000", b"x"]))
    log = filled(6, segment_bytes=2 * size)
    log.delete_before(5)
    assert (log.start_offset, log.size, log.second_segment()) == (5, 4 * size, 8)
    log.delete_before(12)
    assert (log.start_offset, log.end_offset, log.size) == (12, 12, 0)
    log.append(placed(parsed(b"new"), 12, 0))
    assert values_in(batches(log.read(12, 13, LIMIT, True))[0]) == [b"new"]


@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    segment_bytes=st.integers(1, 600),
    start=st.integers(0, 50),
    ask=st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 700), st.booleans()),
)
def test_reading_equals_looking_at_every_batch(
    counts: list[int], segment_bytes: int, start: int, ask: tuple[int, int, int, bool]
) -> None:
    """For any sizes, a read returns the batches of one segment from the offset on that fit the limits."""
    log = Log(segment_bytes)
    segments: list[list[Batch]] = [[]]
    for count in counts:
        batch = placed(parsed(*[b"x"] * count, timestamp=1000 * log.end_offset), log.end_offset, 0)
        held = sum(len(earlier.data) for earlier in segments[-1])
        if held and held + len(batch.data) > segment_bytes:
            segments.append([])
        segments[-1].append(batch)
        log.append(batch)
    log.delete_before(min(start, log.end_offset - 1))
    offset, below = (min(max(asked, log.start_offset), log.end_offset) for asked in ask[:2])
    segment = next((batches for batches in segments if batches[-1].last_offset >= offset), segments[-1])
    wanted = [batch.data for batch in segment if batch.last_offset >= offset and batch.last_offset < below]
    fits = [data for number, data in enumerate(wanted) if len(b"".join(wanted[: number + 1])) <= ask[2]]
    expected = fits or wanted[: int(ask[3])]
    assert batches(log.read(offset, below, ask[2], ask[3])) == expected
    if offset <= below:
        assert log.bytes_between(offset, below) == sum(map(len, wanted))


def test_a_read_stays_what_it_is_when_the_log_goes_on() -> None:
    """Neither later appends nor later deletions change the result of a read."""
    log = filled(2)
    read = log.read(0, 4, LIMIT, True)
    expected = read.data
    log.append(placed(parsed(b"more"), log.end_offset, 0))
    log.delete_before(log.end_offset)
    assert log.size == 0
    assert read.data == expected
    assert [values_in(data)[0] for data in batches(read)] == [b"0000", b"0001"]


def test_the_log_keeps_little_more_than_the_bytes_it_was_given() -> None:
    """Even small batches cost only their own bytes and a few dozen for the index."""
    batch, number = parsed(b"x", b"y"), 10_000
    tracemalloc.start()
    try:
        log = Log(1 << 20)
        for offset in range(0, 2 * number, 2):
            log.append(placed(batch, offset, 0))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert log.size == number * len(batch.data)
    assert held < 1.3 * log.size + 64 * number


@given(
    batches=st.lists(st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=3), st.booleans()), max_size=6),
    segment_bytes=st.sampled_from([1, 200, 1000]),
    start=st.integers(0, 20),
    ask=st.tuples(st.integers(0, 10), st.integers(0, 20)),
)
@example(batches=[([9, 0, 0], False), ([9], False)], segment_bytes=1000, start=1, ask=(5, 4))
@example(batches=[([9, 0, 0], False)], segment_bytes=1000, start=1, ask=(5, 3))
def test_looking_for_a_timestamp_equals_looking_at_every_record(
    batches: list[tuple[list[int], bool]], segment_bytes: int, start: int, ask: tuple[int, int]
) -> None:
    """The search returns the first readable record that is not older, whatever the order of the timestamps.

    For a compressed batch that may contain one, it returns the first offset of the batch.
    """
    log, known = Log(segment_bytes), []
    for timestamps, packed in batches:
        base, last, youngest = log.end_offset, log.end_offset + len(timestamps) - 1, max(timestamps)
        data = make_batch([b"x" * 300] * len(timestamps), timestamps=timestamps, codec=int(packed))
        log.append(placed(parse_batch(data, LIMIT), base, 0))
        known.append((base, last, youngest, packed, list(enumerate(timestamps, base))))
    log.delete_before(min(start, log.end_offset))
    timestamp, below = ask[0], min(ask[1], log.end_offset)
    expected = None
    for base, last, youngest, packed, records in known:
        if youngest < timestamp or last < log.start_offset:
            continue
        if last >= below:
            break
        if packed:
            expected = (max(base, log.start_offset), youngest)
            break
        fitting = [record for record in records if record[0] >= log.start_offset and record[1] >= timestamp]
        if fitting:
            expected = fitting[0]
            break
    assert log.find_timestamp(timestamp, below, SearchBudget(1000)) == expected


def test_a_timestamp_is_looked_for_below_the_given_offset_only() -> None:
    """A record that cannot be read yet is not found."""
    log = filled(3)
    assert log.find_timestamp(1000, 6, SearchBudget(1000)) == (2, 1000)
    assert log.find_timestamp(1500, 6, SearchBudget(1000)) == (4, 2000)
    assert log.find_timestamp(1500, 4, SearchBudget(1000)) is None
    assert log.find_timestamp(9999, 6, SearchBudget(1000)) is None
    log.delete_before(3)
    assert log.find_timestamp(0, 6, SearchBudget(1000)) == (3, 1001)
