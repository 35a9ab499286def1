"""The broker's topics, committed offsets and settings."""

from typing import Any

import pytest

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")


from examples.broker.protocol.error_codes import Code
from examples.broker.settings import Settings
from examples.broker.storage.committed_offsets import Committed, Offsets
from examples.broker.storage.topics import Refused, Topics
from purgatory import SystemTimer


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
    """The error code contains the reason, and the topics are unchanged."""
    async with SystemTimer() as timer:
        known = await topics(timer, max_partitions=100)
        known.create("there")
        with pytest.raises(Refused) as caught:
            known.create(name, partitions, replicas)
        assert caught.value.code is code
        assert [topic.name for topic in known] == ["there"]


async def test_a_deleted_topic_makes_room_and_its_partitions_know() -> None:
    """The partition objects of a deleted topic show that it is gone; the limit counts only existing partitions."""
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
    """A commit above the limit is refused; one that replaces another is not."""
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
    """The message contains the name of the setting."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Settings(**wrong)
