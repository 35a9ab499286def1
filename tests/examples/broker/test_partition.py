"""The watermarks, followers and retention of a partition."""

from typing import Any

import pytest

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")


from examples.broker.settings import Settings
from examples.broker.storage.partition import Partition
from purgatory import SystemTimer
from purgatory.testing import VirtualClock
from tests.examples.broker.request_harness import make_batch, parsed


class WatermarkRecorder:
    """A partition that counts how often its watermarks moved."""

    def __init__(self, timer: SystemTimer, topic: str = "t", **settings: Any) -> None:
        self.moves: list[tuple[int, int]] = []
        self.partition = Partition((topic, 0), settings.pop("followers", 2), Settings(**settings), timer, self.moved)

    def moved(self, partition: Partition, everyone: bool) -> None:
        assert not everyone
        self.moves.append((partition.high_watermark, partition.low_watermark))


async def test_the_high_watermark_follows_the_slowest_follower(clock: VirtualClock) -> None:
    """A record can be read when all followers have copied it, and not before."""
    async with SystemTimer(clock=clock) as timer:
        watch = WatermarkRecorder(timer, replication_delay=0.05)
        partition = watch.partition
        assert partition.append(parsed(b"a", b"b")) == (0, 1)
        await clock.advance(0.049)
        assert partition.high_watermark == 0
        await clock.advance(0.001)
        assert partition.high_watermark == 2
        assert watch.moves == [(2, 0)]


async def test_a_follower_copies_what_there_was_when_it_began(clock: VirtualClock) -> None:
    """Records that are appended during a copy are part of the next copy."""
    async with SystemTimer(clock=clock) as timer:
        watch = WatermarkRecorder(timer, replication_delay=0.05)
        watch.partition.append(parsed(b"a"))
        await clock.advance(0.03)
        watch.partition.append(parsed(b"b"))
        await clock.advance(0.1)
        assert watch.moves == [(1, 0), (2, 0)]


async def test_without_followers_the_high_watermark_is_the_end(clock: VirtualClock) -> None:
    """A partition with one replica acknowledges at once."""
    async with SystemTimer(clock=clock) as timer:
        watch = WatermarkRecorder(timer, followers=0)
        watch.partition.append(parsed(b"a"))
        assert watch.partition.high_watermark == 1


async def test_a_stalled_partition_never_advances_until_it_is_resumed(clock: VirtualClock) -> None:
    """Followers of a stalled topic copy nothing; such a topic always has a follower."""
    async with SystemTimer(clock=clock) as timer:
        watch = WatermarkRecorder(timer, "stalled", followers=0)
        watch.partition.append(parsed(b"a"))
        await clock.advance(60.0)
        assert watch.partition.high_watermark == 0
        watch.partition.resume()
        await clock.advance(1.0)
        assert watch.partition.high_watermark == 1


async def test_the_low_watermark_waits_for_the_followers(clock: VirtualClock) -> None:
    """The leader deletes at once; the low watermark moves when the followers have deleted too."""
    async with SystemTimer(clock=clock) as timer:
        partition = WatermarkRecorder(timer).partition
        partition.append(parsed(b"a", b"b"))
        await clock.advance(1.0)
        partition.delete_before(1)
        assert (partition.log.start_offset, partition.low_watermark) == (1, 0)
        await clock.advance(1.0)
        assert partition.low_watermark == 1


async def test_retention_deletes_the_oldest_segments_that_are_replicated(clock: VirtualClock) -> None:
    """A partition keeps its size limit, except for records that followers do not have."""
    size = len(make_batch([b"a"]))
    async with SystemTimer(clock=clock) as timer:
        partition = WatermarkRecorder(timer, segment_bytes=size, retention_bytes=3 * size).partition
        for _ in range(5):
            partition.append(parsed(b"a"))
        assert partition.log.start_offset == 0
        await clock.advance(1.0)
        partition.append(parsed(b"a"))
        assert partition.log.size == 3 * size
        assert partition.log.start_offset == 3
