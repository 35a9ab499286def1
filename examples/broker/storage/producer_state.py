"""The state of idempotent producers, which lets a partition store a batch only once even if it is sent twice."""

from collections import OrderedDict, deque
from typing import NamedTuple

from examples.broker.protocol.error_codes import Code

from .record_batch import NO_PRODUCER, Batch, Rejected

__all__ = ["ProducerCount", "Producers"]

_REMEMBERED_BATCHES = 5  # the maximum number that a client may have in flight
_SEQUENCES = 1 << 31  # sequence numbers wrap around to 0 after 2**31 - 1


class _Written(NamedTuple):
    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class _Producer:
    __slots__ = ("epoch", "written")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.written: deque[_Written] = deque(maxlen=_REMEMBERED_BATCHES)


class ProducerCount:
    """The number of producers that all partitions together remember, and the limit on that number."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class Producers:
    """The producers of one partition.  Above ``limit``, the least recently active producer is removed.

    ``count``: the shared count of the producers of all partitions, and its limit.  Above that limit, when a partition
    adds a producer, it removes one of its own producers, so other partitions are not affected.
    """

    def __init__(self, limit: int, count: ProducerCount | None = None) -> None:
        self._limit = limit
        self._count = count or ProducerCount(limit)
        self._producers: OrderedDict[int, _Producer] = OrderedDict()

    def duplicate_of(self, batch: Batch) -> tuple[int, int] | None:
        """Return the base and last offsets of an earlier copy of the batch, or None if the batch is new and in order.

        Raise :class:`Rejected` if the batch is out of order or from an old epoch.  An unknown or forgotten producer may
        start with any sequence number.
        """
        producer = self._producers.get(batch.producer_id)
        if batch.producer_id == NO_PRODUCER or producer is None:
            return None
        if batch.producer_epoch < producer.epoch:
            raise Rejected(
                Code.INVALID_PRODUCER_EPOCH,
                f"producer epoch must be at least {producer.epoch}, got {batch.producer_epoch}",
            )
        if batch.producer_epoch > producer.epoch:
            if batch.first_sequence:
                raise Rejected(
                    Code.OUT_OF_ORDER_SEQUENCE_NUMBER, f"sequence of a new epoch must be 0, got {batch.first_sequence}"
                )
            return None
        last_sequence = _last_sequence(batch)
        for written in producer.written:
            if (written.first_sequence, written.last_sequence) == (batch.first_sequence, last_sequence):
                return written.base_offset, written.last_offset
        expected = (producer.written[-1].last_sequence + 1) % _SEQUENCES
        if batch.first_sequence != expected:
            reason = f"sequence of producer {batch.producer_id} must be {expected}, got {batch.first_sequence}"
            raise Rejected(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, reason)
        return None

    def remember(self, batch: Batch) -> None:
        """Remember a batch that is in the log."""
        if batch.producer_id == NO_PRODUCER:
            return
        producer = self._producers.get(batch.producer_id)
        self._count.used += producer is None
        if producer is None or producer.epoch != batch.producer_epoch:
            producer = self._producers[batch.producer_id] = _Producer(batch.producer_epoch)
        written = _Written(batch.first_sequence, _last_sequence(batch), batch.base_offset, batch.last_offset)
        producer.written.append(written)
        self._producers.move_to_end(batch.producer_id)
        full = len(self._producers) > self._limit or self._count.used > self._count.limit
        if full and len(self._producers) > 1:
            self._producers.popitem(last=False)
            self._count.used -= 1

    def clear(self) -> None:
        """Remove all producers."""
        self._count.used -= len(self._producers)
        self._producers.clear()


def _last_sequence(batch: Batch) -> int:
    return (batch.first_sequence + batch.number - 1) % _SEQUENCES
