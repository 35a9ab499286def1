"""The broker's data: batches, segments, producers, followers, topics."""

import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")


from examples.broker.codes import Code
from examples.broker.log import Log, Read
from examples.broker.offsets import Committed, Offsets
from examples.broker.partition import Partition
from examples.broker.producers import Producers
from examples.broker.records import Batch, Rejected, parse_batch, placed, search_timestamp
from examples.broker.settings import Settings
from examples.broker.topics import Refused, Topics
from purgatory import SystemTimer
from purgatory.testing import VirtualClock
from tests.examples.broker_tools import make_batch, values_in

LIMIT = 1 << 20


def parsed(*values: bytes, **options: Any) -> Batch:
    return parse_batch(make_batch(values, **options), LIMIT)


def rejection(data: bytes | None, limit: int = LIMIT) -> Code:
    with pytest.raises(Rejected) as caught:
        parse_batch(data, limit)
    return caught.value.code


def changed(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


# Batches


def test_placing_a_batch_changes_its_offsets_and_not_its_checksum() -> None:
    """A batch that is placed in the log can be read at its new offsets."""
    batch = placed(parsed(b"a", b"b"), 40, 3)
    assert (batch.base_offset, batch.last_offset) == (40, 41)
    assert values_in(batch.data) == [b"a", b"b"]
    assert parse_batch(batch.data, LIMIT).number == 2
    assert struct.unpack_from(">q", batch.data)[0] == 40
    assert struct.unpack_from(">i", batch.data, 12)[0] == 3


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda data: None, Code.CORRUPT_MESSAGE),
        (lambda data: b"", Code.CORRUPT_MESSAGE),
        (lambda data: data[:30], Code.CORRUPT_MESSAGE),
        (lambda data: data[:-1], Code.CORRUPT_MESSAGE),
        (lambda data: data + data, Code.INVALID_RECORD),
        (lambda data: changed(data, len(data) - 1, b"\xff"), Code.CORRUPT_MESSAGE),
        (lambda data: changed(data, 8, b"\x7f\xff\xff\xff"), Code.CORRUPT_MESSAGE),
        (lambda data: changed(data, 8, b"\xff\xff\xff\xff"), Code.CORRUPT_MESSAGE),
        (lambda data: changed(data, 16, b"\x01"), Code.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (lambda data: changed(data, 16, b"\x03"), Code.CORRUPT_MESSAGE),
    ],
)
def test_a_damaged_batch_is_rejected_with_the_reason(damage: Any, code: Code) -> None:
    """What is no intact batch of format 2 is not taken."""
    assert rejection(damage(make_batch([b"a", b"b"]))) is code


def test_a_batch_that_is_too_large_is_rejected() -> None:
    """The limit on a batch is in its own error code."""
    assert rejection(make_batch([b"x" * 100]), 100) is Code.MESSAGE_TOO_LARGE


def test_a_timestamp_is_found_record_by_record_in_an_uncompressed_batch() -> None:
    """The first record that is not older is found; in a compressed batch its first offset has to do."""
    batch = placed(parsed(b"a", b"b", b"c", timestamp=100), 10, 0)
    assert search_timestamp(batch, 101) == (11, 101)
    packed = placed(parsed(b"a" * 999, b"b", b"c", timestamp=100, codec=1), 10, 0)
    assert search_timestamp(packed, 101) == (10, 102)


# Segments


def filled(batches: int, *, segment_bytes: int = 1 << 20) -> Log:
    log = Log(segment_bytes)
    for number in range(batches):
        log.append(placed(parsed(b"%04d" % number, b"x", timestamp=1000 * number), log.end_offset, 0))
    return log


def batches(read: Read) -> list[bytes]:
    """What was read, batch by batch."""
    found, data = [], read.data
    while data:
        size = 12 + struct.unpack_from(">i", data, 8)[0]
        found.append(data[:size])
        data = data[size:]
    return found


def test_a_read_returns_whole_batches_from_the_one_that_holds_the_offset() -> None:
    """An offset in the middle of a batch gets the whole batch."""
    log = filled(5)
    read = log.read(3, log.end_offset, LIMIT, True)
    assert [values_in(data)[0] for data in batches(read)] == [b"0001", b"0002", b"0003", b"0004"]
    assert read.size == log.bytes_between(3, log.end_offset) == len(read.data)


def test_a_read_ends_where_it_is_told() -> None:
    """Records from a given offset on are not read, nor counted."""
    log = filled(5)
    assert len(batches(log.read(0, 6, LIMIT, True))) == 3
    assert log.bytes_between(0, 6) == log.read(0, 6, LIMIT, True).size
    assert batches(log.read(10, 10, LIMIT, True)) == []


def test_the_first_batch_may_exceed_the_limit_and_no_other() -> None:
    """Where at least one is wanted, one comes, and only one."""
    log = filled(5)
    assert len(batches(log.read(0, 10, 1, True))) == 1
    assert len(batches(log.read(0, 10, 1, False))) == 0


def test_a_read_stays_within_its_segment() -> None:
    """A full segment is closed; what comes later is in another one, and an earlier offset is on an older one."""
    size = len(make_batch([b"0000", b"x"]))
    log = filled(5, segment_bytes=2 * size)
    assert [len(batches(log.read(offset, 10, LIMIT, True))) for offset in (0, 4, 8)] == [2, 2, 1]
    assert log.on_older_segment(0, 10)
    assert log.on_older_segment(0, 4)
    assert not log.on_older_segment(8, 10)


def test_deleting_lets_go_of_whole_segments_and_moves_the_start() -> None:
    """The start may lie inside a segment; what lies wholly before it is freed."""
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
    """Whatever the sizes: the batches of one segment from the offset on, as far as they are wanted and fit."""
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
    """Neither what is appended later nor what is deleted later changes what was read before."""
    log = filled(2)
    read = log.read(0, 4, LIMIT, True)
    expected = read.data
    log.append(placed(parsed(b"more"), log.end_offset, 0))
    log.delete_before(log.end_offset)
    assert log.size == 0
    assert read.data == expected
    assert [values_in(data)[0] for data in batches(read)] == [b"0000", b"0001"]


def test_the_log_keeps_little_more_than_the_bytes_it_was_given() -> None:
    """Small batches, too, cost their own bytes and a few dozen for finding them."""
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
    """The first record from the start on that is not older, in any order of the times, if it can be read yet.

    Of a compressed batch that may have one its first offset.
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
    assert log.find_timestamp(timestamp, below) == expected


def test_a_timestamp_is_looked_for_below_the_given_offset_only() -> None:
    """What cannot be read yet is not found."""
    log = filled(3)
    assert log.find_timestamp(1000, 6) == (2, 1000)
    assert log.find_timestamp(1500, 6) == (4, 2000)
    assert log.find_timestamp(1500, 4) is None
    assert log.find_timestamp(9999, 6) is None
    log.delete_before(3)
    assert log.find_timestamp(0, 6) == (3, 1001)


# Producers


def producer_with(*batches: Batch) -> Producers:
    producers = Producers(10)
    end = 0
    for batch in batches:
        assert producers.duplicate_of(batch) is None
        producers.remember(placed(batch, end, 0))
        end += batch.number
    return producers


def sent(sequence: int, *values: bytes, epoch: int = 0, producer: int = 5) -> Batch:
    return parsed(*(values or (b"v",)), producer=(producer, epoch, sequence))


def test_a_batch_sent_twice_is_known_by_its_sequence() -> None:
    """Each of the last five batches is found again, at its first offset."""
    producers = producer_with(sent(0, b"a", b"b"), sent(2), sent(3), sent(4), sent(5))
    assert producers.duplicate_of(sent(0, b"a", b"b")) == (0, 1)
    assert producers.duplicate_of(sent(5)) == (5, 5)


@pytest.mark.parametrize("sequence", [0, 7, 9])
def test_a_batch_out_of_order_is_rejected(sequence: int) -> None:
    """A gap is refused, and so is one so old that nothing is known of it."""
    producers = producer_with(*[sent(number) for number in range(6)])
    with pytest.raises(Rejected) as caught:
        producers.duplicate_of(sent(sequence))
    assert caught.value.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_epoch_that_is_over_is_rejected_and_a_new_one_begins_at_zero() -> None:
    """The producer with the newest epoch is the only one."""
    producers = producer_with(sent(0, epoch=1))
    with pytest.raises(Rejected) as caught:
        producers.duplicate_of(sent(1, epoch=0))
    assert caught.value.code is Code.INVALID_PRODUCER_EPOCH
    with pytest.raises(Rejected) as caught:
        producers.duplicate_of(sent(1, epoch=2))
    assert caught.value.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.duplicate_of(sent(0, epoch=2)) is None


def test_sequences_begin_again_after_the_largest() -> None:
    """After 2**31 - 1 comes 0."""
    producers = producer_with(sent((1 << 31) - 2, b"a", b"b"))
    assert producers.duplicate_of(sent(0)) is None


def test_the_longest_silent_producer_is_forgotten() -> None:
    """There is a limit on what a partition remembers, and whoever is forgotten may begin anywhere."""
    producers = Producers(2)
    for producer in (1, 2, 3):
        producers.remember(placed(sent(0, producer=producer), producer, 0))
    assert producers.duplicate_of(sent(7, producer=1)) is None
    assert producers.duplicate_of(sent(0, producer=3)) == (3, 3)


# Partitions


class Watch:
    """A partition, and how often its watermarks moved."""

    def __init__(self, timer: SystemTimer, topic: str = "t", **settings: Any) -> None:
        self.moves: list[tuple[int, int]] = []
        self.partition = Partition((topic, 0), settings.pop("followers", 2), Settings(**settings), timer, self.moved)

    def moved(self, partition: Partition, everyone: bool) -> None:
        assert not everyone
        self.moves.append((partition.high_watermark, partition.low_watermark))


async def test_the_high_watermark_follows_the_slowest_follower(clock: VirtualClock) -> None:
    """A record can be read when all followers have copied it, and not before."""
    async with SystemTimer(clock=clock) as timer:
        watch = Watch(timer, replication_delay=0.05)
        partition = watch.partition
        assert partition.append(parsed(b"a", b"b")) == (0, 1)
        await clock.advance(0.049)
        assert partition.high_watermark == 0
        await clock.advance(0.001)
        assert partition.high_watermark == 2
        assert watch.moves == [(2, 0)]


async def test_a_follower_copies_what_there_was_when_it_began(clock: VirtualClock) -> None:
    """What is appended while a copy is under way comes with the next one."""
    async with SystemTimer(clock=clock) as timer:
        watch = Watch(timer, replication_delay=0.05)
        watch.partition.append(parsed(b"a"))
        await clock.advance(0.03)
        watch.partition.append(parsed(b"b"))
        await clock.advance(0.1)
        assert watch.moves == [(1, 0), (2, 0)]


async def test_without_followers_the_high_watermark_is_the_end(clock: VirtualClock) -> None:
    """A partition with one replica acknowledges at once."""
    async with SystemTimer(clock=clock) as timer:
        watch = Watch(timer, followers=0)
        watch.partition.append(parsed(b"a"))
        assert watch.partition.high_watermark == 1


async def test_a_stalled_partition_never_advances_until_it_is_resumed(clock: VirtualClock) -> None:
    """Followers of a stalled topic copy nothing; there is always one, even where none was asked for."""
    async with SystemTimer(clock=clock) as timer:
        watch = Watch(timer, "stalled", followers=0)
        watch.partition.append(parsed(b"a"))
        await clock.advance(60.0)
        assert watch.partition.high_watermark == 0
        watch.partition.resume()
        await clock.advance(1.0)
        assert watch.partition.high_watermark == 1


async def test_the_low_watermark_waits_for_the_followers(clock: VirtualClock) -> None:
    """The leader deletes at once; all have deleted when the followers have."""
    async with SystemTimer(clock=clock) as timer:
        partition = Watch(timer).partition
        partition.append(parsed(b"a", b"b"))
        await clock.advance(1.0)
        partition.delete_before(1)
        assert (partition.log.start_offset, partition.low_watermark) == (1, 0)
        await clock.advance(1.0)
        assert partition.low_watermark == 1


async def test_retention_deletes_the_oldest_segments_that_are_replicated(clock: VirtualClock) -> None:
    """A partition keeps its size, and what followers do not have is kept whatever its size."""
    size = len(make_batch([b"a"]))
    async with SystemTimer(clock=clock) as timer:
        partition = Watch(timer, segment_bytes=size, retention_bytes=3 * size).partition
        for _ in range(5):
            partition.append(parsed(b"a"))
        assert partition.log.start_offset == 0
        await clock.advance(1.0)
        partition.append(parsed(b"a"))
        assert partition.log.size == 3 * size
        assert partition.log.start_offset == 3


# Topics and offsets


async def topics(timer: SystemTimer, **settings: Any) -> Topics:
    return Topics(Settings(**settings), timer, lambda partition, everyone: None)


@pytest.mark.parametrize(
    ("name", "partitions", "replicas", "code"),
    [
        ("", 1, 1, Code.INVALID_TOPIC_EXCEPTION),
        ("..", 1, 1, Code.INVALID_TOPIC_EXCEPTION),
        ("a b", 1, 1, Code.INVALID_TOPIC_EXCEPTION),
        ("x" * 250, 1, 1, Code.INVALID_TOPIC_EXCEPTION),
        ("there", 1, 1, Code.TOPIC_ALREADY_EXISTS),
        ("new", 0, 1, Code.INVALID_PARTITIONS),
        ("new", -2, 1, Code.INVALID_PARTITIONS),
        ("new", 100, 1, Code.POLICY_VIOLATION),
        ("new", 1, 0, Code.INVALID_REPLICATION_FACTOR),
        ("new", 1, 4, Code.INVALID_REPLICATION_FACTOR),
    ],
)
async def test_a_topic_that_makes_no_sense_is_refused_and_nothing_is_created(
    name: str, partitions: int, replicas: int, code: Code
) -> None:
    """The reason is in the code, and the topics are as before."""
    async with SystemTimer() as timer:
        known = await topics(timer, max_partitions=100)
        known.create("there")
        with pytest.raises(Refused) as caught:
            known.create(name, partitions, replicas)
        assert caught.value.code is code
        assert [topic.name for topic in known] == ["there"]


async def test_a_deleted_topic_makes_room_and_its_partitions_know() -> None:
    """Whoever holds a partition of it sees that it is gone; the limit counts what is there."""
    async with SystemTimer() as timer:
        known = await topics(timer, max_partitions=2)
        known.create("a", 2)
        partition = known.partition("a", 1)
        assert partition is not None
        known.delete("a")
        assert partition.gone
        assert known.partition("a", 1) is None
        known.create("b", 2)
        with pytest.raises(Refused):
            known.delete("a")


def test_offsets_are_kept_per_group_up_to_a_limit() -> None:
    """A commit over the limit is refused; one that replaces another is not."""
    offsets = Offsets(2)
    assert offsets.commit("g", ("t", 0), Committed(1, ""))
    assert offsets.commit("h", ("t", 0), Committed(2, ""))
    assert not offsets.commit("h", ("t", 1), Committed(3, ""))
    assert offsets.commit("g", ("t", 0), Committed(4, "m"))
    assert offsets.fetch("g", ("t", 0)) == Committed(4, "m")
    assert offsets.fetch("h", ("t", 1)) is None
    assert offsets.keys("nobody") == []
    offsets.forget_topic("t")
    assert len(offsets) == 0
    assert offsets.keys("g") == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 80_000},
        {"max_frame_bytes": 0},
        {"followers": -1},
        {"replication_delay": -0.1},
        {"write_timeout": float("nan")},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    """The message names the setting."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Settings(**wrong)
