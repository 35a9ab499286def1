"""Idempotent producers: what a partition remembers of each, so that a batch that is sent twice is stored once."""

from collections import OrderedDict, deque
from typing import NamedTuple

from .codes import Code
from .records import NO_PRODUCER, Batch, Rejected

__all__ = ["Producers"]

_REMEMBERED_BATCHES = 5  # as many as a client may have under way
_SEQUENCES = 1 << 31  # they begin again at 0 after 2**31 - 1


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


class Producers:
    """The producers of one partition; of more than ``limit`` the longest silent are forgotten."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._producers: OrderedDict[int, _Producer] = OrderedDict()

    def duplicate_of(self, batch: Batch) -> tuple[int, int] | None:
        """Base and last offset of the same batch sent before, or None: it is new and in order.

        Raises :class:`Rejected` for a batch out of order and for one from an epoch that is over.  A producer that is
        not known (any more) may begin with any sequence.
        """
        producer = self._producers.get(batch.producer_id)
        if batch.producer_id == NO_PRODUCER or producer is None:
            return None
        if batch.producer_epoch < producer.epoch:
            raise Rejected(Code.INVALID_PRODUCER_EPOCH, f"epoch {batch.producer_epoch} is over: {producer.epoch}")
        if batch.producer_epoch > producer.epoch:
            if batch.first_sequence:
                raise Rejected(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, "a new epoch begins with sequence 0")
            return None
        last_sequence = _last_sequence(batch)
        for written in producer.written:
            if (written.first_sequence, written.last_sequence) == (batch.first_sequence, last_sequence):
                return written.base_offset, written.last_offset
        expected = (producer.written[-1].last_sequence + 1) % _SEQUENCES
        if batch.first_sequence != expected:
            reason = f"sequence {batch.first_sequence} of producer {batch.producer_id}, expected {expected}"
            raise Rejected(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, reason)
        return None

    def remember(self, batch: Batch) -> None:
        """The batch, placed, is in the log."""
        if batch.producer_id == NO_PRODUCER:
            return
        producer = self._producers.get(batch.producer_id)
        if producer is None or producer.epoch != batch.producer_epoch:
            producer = self._producers[batch.producer_id] = _Producer(batch.producer_epoch)
        written = _Written(batch.first_sequence, _last_sequence(batch), batch.base_offset, batch.last_offset)
        producer.written.append(written)
        self._producers.move_to_end(batch.producer_id)
        if len(self._producers) > self._limit:
            self._producers.popitem(last=False)


def _last_sequence(batch: Batch) -> int:
    return (batch.first_sequence + batch.number - 1) % _SEQUENCES
