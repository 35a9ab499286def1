"""The state of the broker's idempotent producers."""

import pytest

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")


from examples.broker.protocol.error_codes import Code
from examples.broker.storage.producer_state import Producers
from examples.broker.storage.record_batch import Batch, Rejected, placed
from tests.examples.broker.request_harness import parsed


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
    """Each of the last five batches is found again at its first offset."""
    producers = producer_with(sent(0, b"a", b"b"), sent(2), sent(3), sent(4), sent(5))
    assert producers.duplicate_of(sent(0, b"a", b"b")) == (0, 1)
    assert producers.duplicate_of(sent(5)) == (5, 5)


@pytest.mark.parametrize("sequence", [0, 7, 9])
def test_a_batch_out_of_order_is_rejected(sequence: int) -> None:
    """A batch after a gap is refused, and so is a batch that is too old to be remembered."""
    producers = producer_with(*[sent(number) for number in range(6)])
    with pytest.raises(Rejected) as caught:
        producers.duplicate_of(sent(sequence))
    assert caught.value.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_epoch_that_is_over_is_rejected_and_a_new_one_begins_at_zero() -> None:
    """Only the producer with the newest epoch is accepted."""
    producers = producer_with(sent(0, epoch=1))
    with pytest.raises(Rejected) as caught:
        producers.duplicate_of(sent(1, epoch=0))
    assert caught.value.code is Code.INVALID_PRODUCER_EPOCH
    with pytest.raises(Rejected) as caught:
        producers.duplicate_of(sent(1, epoch=2))
    assert caught.value.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.duplicate_of(sent(0, epoch=2)) is None


def test_sequences_begin_again_after_the_largest() -> None:
    """The sequence after 2**31 - 1 is 0."""
    producers = producer_with(sent((1 << 31) - 2, b"a", b"b"))
    assert producers.duplicate_of(sent(0)) is None


def test_the_longest_silent_producer_is_forgotten() -> None:
    """Above the limit, the least recently active producer is forgotten and may start with any sequence."""
    producers = Producers(2)
    for producer in (1, 2, 3):
        producers.remember(placed(sent(0, producer=producer), producer, 0))
    assert producers.duplicate_of(sent(7, producer=1)) is None
    assert producers.duplicate_of(sent(0, producer=3)) == (3, 3)
