"""Produce (0), versions 0-7; effectively 3-7, because records must be in batches (message format 2).

Parks: ``DelayedProduce``, for acks=-1, until the followers have the batches.

A request with acks=0 gets no response; the broker reports an error by closing the connection.  With acks=1, the broker
answers when the batch is in the log.  With acks=-1, a partition gets REQUEST_TIMED_OUT if its followers do not have the
batch within the timeout, but the batch stays in the log.  If an idempotent producer sends the batch again, it gets the
same offset and waits for the followers again.

A batch whose header states a timestamp more than an hour ahead of the broker's clock is rejected, because every lookup
by time would end at that batch.

If a request lists a partition twice, the last batch counts, as in Kafka.

Not supported: transactions, message formats 0 and 1, ``min.insync.replicas``, log-append time, and throttling.
"""

import time
from collections.abc import Sequence
from typing import Any

from kafka.protocol.producer import ProduceRequest, ProduceResponse

from examples.broker.protocol.error_codes import Code
from examples.broker.storage.partition import Partition
from examples.broker.storage.record_batch import Rejected, parse_batch
from purgatory import DelayedOperation

from .api import PARKED_BYTES, Api, Call, CloseConnection

_IN_THE_LOG = (Code.NONE, Code.REQUEST_TIMED_OUT)
_ACKS_NONE, _ACKS_LEADER, _ACKS_ALL = 0, 1, -1
_MAX_MS_AHEAD = 3_600_000  # ahead of the clock, as in Kafka


class Written:
    """The outcome for the batch of one partition.  ``behind``: the offset that all replicas must reach with acks=-1."""

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
        """Whether the operation need not wait for this partition: it is replicated or deleted, or it has an error."""
        partition = self.partition
        return (
            partition is None or self.code is not Code.NONE or partition.gone or partition.high_watermark >= self.behind
        )


class DelayedProduce(DelayedOperation[None]):
    """Wait until the batch of every partition is on all replicas or has failed."""

    __slots__ = ("_ready", "_written")

    def __init__(self, written: Sequence[Written], timeout: float) -> None:
        super().__init__(timeout)
        self._written = written
        self._ready = 0  # the number of leading partitions that are replicated; these are not checked again

    def try_complete(self) -> bool:
        while self._ready < len(self._written) and self._written[self._ready].replicated:
            self._ready += 1
        return self._ready == len(self._written)

    def on_complete(self) -> None:
        for written in self._written:
            partition = written.partition
            if partition is not None and partition.gone:
                written.code = Code.UNKNOWN_TOPIC_OR_PARTITION
            elif not written.replicated:
                written.code = Code.REQUEST_TIMED_OUT


async def answer(call: Call, request: Any) -> ProduceResponse | None:
    known_acks = request.acks in (_ACKS_NONE, _ACKS_LEADER, _ACKS_ALL)
    by_topic: dict[str, dict[int, Any]] = {}
    for topic in request.topic_data:
        by_topic.setdefault(topic.name, {}).update((sent.index, sent) for sent in topic.partition_data)
    topics = [
        (name, [_write(call, name, sent, known_acks) for sent in partitions.values()])
        for name, partitions in by_topic.items()
    ]
    del by_topic
    everything = [written for _, partitions in topics for written in partitions]
    if request.acks == _ACKS_NONE:
        for written in everything:
            if written.code is not Code.NONE:
                raise CloseConnection(f"acks=0 to {written.topic[:249]!r}-{written.index}: {written.code.name}")
        return None
    if request.acks == _ACKS_ALL:
        waits_for = {
            written.partition.key: written.behind
            for written in everything
            if written.partition is not None and not written.replicated
        }
        if waits_for:
            timeout = max(request.timeout_ms, 0) / 1000
            del request  # the log has the records: do not keep a second copy while the request waits
            call.hold(len(everything) * PARKED_BYTES)
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
            batch = parse_batch(
                sent.records, call.broker.settings.max_message_bytes, int(time.time() * 1000) + _MAX_MS_AHEAD
            )
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
                        base_offset=written.base_offset if written.code in _IN_THE_LOG else -1,
                        log_append_time_ms=-1,
                        log_start_offset=-1 if written.partition is None else written.partition.log.start_offset,
                    )
                    for written in partitions
                ],
            )
            for name, partitions in topics
        ],
    )


API = Api(0, 7, ProduceRequest, answer, lasting=True)
