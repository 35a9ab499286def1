"""The broker without its connections: topics, groups, and the purgatories in which requests wait.

========================  ===================================  =======================================================
purgatory                 key -> threshold                     waits for
========================  ===================================  =======================================================
``produce``               partition -> offset after the        high watermark: all replicas have the batches
                          batch
``fetch``                 partition -> offset after the        high watermark: ``min_bytes`` are readable
                          first requested record
``delete_records``        partition -> new start of the log    low watermark: all replicas have deleted
``join, sync,``           group, or member                     see ``examples.group``
``heartbeat``
========================  ===================================  =======================================================

All six purgatories share one timer, which also runs the follower delays and the connection timeouts.
"""

import itertools
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from examples.broker.storage.committed_offsets import Offsets
from examples.broker.storage.partition import Key, Partition
from examples.broker.storage.topics import Topics
from examples.group import GroupCoordinator
from purgatory import Observer, Purgatory, Statistics, SystemTimer
from purgatory.types import Clock

from .settings import Settings

__all__ = ["Broker"]


_MAX_IMMEDIATE_CHECKS = 1000  # operations, or partitions of fetches, to check in one turn of the event loop


class Broker:
    """One broker: it leads all its partitions and coordinates all groups.

    ``node_id``, ``host``, ``port``: the address that Metadata returns; the server sets the port.  ``clock``: the clock
    of the timer.  ``observers``: the observers of all purgatories.
    """

    node_id = 1
    cluster_id = "purgatory-example"

    def __init__(
        self, settings: Settings | None = None, *, clock: Clock | None = None, observers: Sequence[Observer] = ()
    ) -> None:
        self.settings = settings = Settings() if settings is None else settings
        self.host = settings.advertised_host or settings.host
        self.port = settings.port
        self.timer = SystemTimer(clock=clock)
        self.produce: Purgatory[Any] = Purgatory("produce", timer=self.timer, observers=observers)
        self.fetch: Purgatory[Any] = Purgatory("fetch", timer=self.timer, observers=observers)
        self.delete_records: Purgatory[Any] = Purgatory("delete_records", timer=self.timer, observers=observers)
        self.topics = Topics(settings, self.timer, self._moved)
        self.offsets = Offsets(settings.max_committed, settings.max_committed_bytes, settings.max_committed_group_bytes)
        self.groups = GroupCoordinator(self.timer, settings.group, observers=observers)
        self.producer_ids = itertools.count(1000)
        self.fetch_partitions = 0  # the total number of partitions in all parked fetches

    async def __aenter__(self) -> Self:
        await self.timer.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.answer_all()
        await self.timer.aclose()

    async def answer_all(self) -> None:
        """Accept no further requests, and answer every parked request as if it had timed out."""
        for purgatory in (self.produce, self.fetch, self.delete_records):
            await purgatory.aclose()
        await self.groups.aclose()

    def statistics(self) -> list[Statistics]:
        """Return the statistics of all purgatories."""
        own = (self.produce, self.fetch, self.delete_records)
        return [purgatory.statistics() for purgatory in (*own, *self.groups.purgatories)]

    def may_park_fetch(self, partitions: int) -> bool:
        """Return whether a fetch of ``partitions`` partitions may wait.

        An append may have to check all partitions of all parked fetches, so the number of these partitions is limited.
        Above the limit, a fetch may still wait if its partitions are within one connection's equal share of the limit.
        One client with many partitions therefore cannot prevent the fetches of other clients from waiting.
        """
        limit = self.settings.max_parked_partitions
        return self.fetch_partitions + partitions <= limit or partitions * self.settings.max_connections <= limit

    def _moved(self, partition: Partition, check_all: bool) -> None:
        """Check the operations that wait for the watermarks of a partition.

        ``check_all``: ignore the thresholds, because an error may complete any operation.  With many parked operations,
        the checks run in slices in later turns of the event loop: answering thousands of requests in one turn would
        delay all other requests by more than the thresholds save.
        """
        key = partition.key
        high, low = (None, None) if check_all else (partition.high_watermark, partition.low_watermark)
        _check(self.produce, len(self.produce), key, high)
        _check(self.fetch, self.fetch_partitions, key, high)
        _check(self.delete_records, len(self.delete_records), key, low)


def _check(purgatory: Purgatory[Any], work: int, key: Key, watermark: int | None) -> None:
    if work < _MAX_IMMEDIATE_CHECKS:
        purgatory.check_and_complete(key, watermark)
    else:
        purgatory.check_soon(key, watermark)
