"""Produce (0), versions 0-7; records in batches (message format 2), so in effect 3-7.

Parks: ``DelayedProduce``, with acks=-1 and a batch that the followers do not have yet.

acks=0 gets no response; where something is wrong with it the connection is closed, which is the only way to tell.
acks=1 is answered when the batch is in the log.  With acks=-1 a partition whose followers do not have the batch within
the timeout says REQUEST_TIMED_OUT, and the batch stays in the log: whoever sends it again as an idempotent producer
gets its offset and waits for the followers again.

Left out: transactions, message formats 0 and 1, ``min.insync.replicas``, log-append time, throttling.
"""

import struct
from collections.abc import Sequence
from typing import Any

from kafka.protocol.producer import ProduceRequest, ProduceResponse

from purgatory import DelayedOperation

from .api import Api, Call, Hangup
from .codec import Header, Malformed
from .codes import Code
from .partition import Partition
from .records import Rejected, parse_batch

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_MOST_PARTITIONS = 10_000
_ACKS_NONE, _ACKS_LEADER, _ACKS_ALL = 0, 1, -1


class Written:
    """What became of one partition's batch.  ``behind``: the offset that all replicas must reach, with acks=-1."""

    __slots__ = ("base_offset", "behind", "code", "index", "partition", "topic")

    def __init__(self, topic: str, index: int, partition: Partition | None) -> None:
        self.topic = topic
        self.index = index
        self.partition = partition
        self.code = Code.NONE
        self.base_offset = -1
        self.behind = 0

    @property
    def replicated(self) -> bool:
        """Whether nothing is left to wait for."""
        partition = self.partition
        return (
            partition is None or self.code is not Code.NONE or partition.gone or partition.high_watermark >= self.behind
        )


class DelayedProduce(DelayedOperation[None]):
    """Waits until every partition's batch is on all replicas, or the partition has an error."""

    __slots__ = ("_written",)

    def __init__(self, written: Sequence[Written], timeout: float) -> None:
        super().__init__(timeout)
        self._written = written

    def try_complete(self) -> bool:
        return all(written.replicated for written in self._written)

    def on_complete(self) -> None:
        for written in self._written:
            partition = written.partition
            if partition is not None and partition.gone:
                written.code = Code.UNKNOWN_TOPIC_OR_PARTITION
            elif not written.replicated:
                written.code = Code.REQUEST_TIMED_OUT


async def answer(call: Call, request: Any) -> ProduceResponse | None:
    known_acks = request.acks in (_ACKS_NONE, _ACKS_LEADER, _ACKS_ALL)
    topics = [
        (topic.name, [_write(call, topic.name, sent, known_acks) for sent in topic.partition_data])
        for topic in request.topic_data
    ]
    everything = [written for _, partitions in topics for written in partitions]
    if request.acks == _ACKS_NONE:
        for written in everything:
            if written.code is not Code.NONE:
                raise Hangup(f"acks=0 to {written.topic}-{written.index}: {written.code.name}")
        return None
    if request.acks == _ACKS_ALL:
        waits_for = {
            written.partition.key: written.behind
            for written in everything
            if written.partition is not None and not written.replicated
        }
        if waits_for:
            timeout = max(request.timeout_ms, 0) / 1000
            await call.broker.produce.park(DelayedProduce(everything, timeout), waits_for)
    return _response(topics)


def _write(call: Call, topic: str, sent: Any, known_acks: bool) -> Written:
    partition = call.broker.topics.partition(topic, sent.index)
    written = Written(topic, sent.index, partition)
    if not known_acks:
        written.code = Code.INVALID_REQUIRED_ACKS
    elif partition is None:
        written.code = Code.UNKNOWN_TOPIC_OR_PARTITION
    else:
        try:
            batch = parse_batch(sent.records, call.broker.settings.max_message_bytes)
            written.base_offset, last_offset = partition.append(batch)
            written.behind = last_offset + 1
        except Rejected as rejected:
            written.code = rejected.code
    return written


def _response(topics: list[tuple[str, list[Written]]]) -> ProduceResponse:
    topic_type = ProduceResponse.TopicProduceResponse
    partition_type = topic_type.PartitionProduceResponse
    return ProduceResponse(
        throttle_time_ms=0,
        responses=[
            topic_type(
                name=name,
                partition_responses=[
                    partition_type(
                        index=written.index,
                        error_code=written.code,
                        base_offset=written.base_offset if written.code is Code.NONE else -1,
                        log_append_time_ms=-1,
                        log_start_offset=-1 if written.partition is None else written.partition.log.start_offset,
                    )
                    for written in partitions
                ],
            )
            for name, partitions in topics
        ],
    )


def glance(frame: bytes, header: Header) -> None:
    """Refuse a request that names too many partitions.

    Produce is the one request that may be large, and decoding a million empty partitions would hold the loop for
    seconds.  What cannot be followed here is left to the decoder, which says what is wrong.
    """
    at = header.end
    try:
        if header.version >= 3:
            (length,) = _INT16.unpack_from(frame, at)
            at += 2 + max(length, 0)
        (topics,) = _INT32.unpack_from(frame, at + 6)
        at += 10
        seen = topics
        while topics > 0 and seen <= _MOST_PARTITIONS:
            (length,) = _INT16.unpack_from(frame, at)
            (partitions,) = _INT32.unpack_from(frame, at + 2 + max(length, 0))
            at += 6 + max(length, 0)
            topics -= 1
            seen += max(partitions, 0)
            while partitions > 0 and seen <= _MOST_PARTITIONS:
                (length,) = _INT32.unpack_from(frame, at + 4)
                at += 8 + max(length, 0)
                partitions -= 1
    except struct.error:
        return
    if seen > _MOST_PARTITIONS:
        raise Malformed(f"ProduceRequest v{header.version} names more than {_MOST_PARTITIONS} topics and partitions")


API = Api(0, 7, ProduceRequest, answer, glance)
