"""The broker without its connections: topics, groups, and the purgatories in which their requests wait.

========================  ===================================  =======================================================
purgatory                 key -> threshold                     waits for
========================  ===================================  =======================================================
``produce``               partition -> offset behind the       high watermark: all replicas have the batches
                          batch
``fetch``                 partition -> offset behind the       high watermark: there are ``min_bytes`` to read
                          first record wanted
``delete_records``        partition -> new start of the log    low watermark: all replicas have deleted
``join, sync,``           group, or member                     see ``examples.group``
``heartbeat``
========================  ===================================  =======================================================

All six share one timer, and the followers' delays and the connections' timeouts are on it as well.
"""

import itertools
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from examples.group import GroupCoordinator
from purgatory import Observer, Purgatory, Statistics, SystemTimer
from purgatory.clock import Clock

from .offsets import Offsets
from .partition import Partition
from .settings import Settings
from .topics import Topics

__all__ = ["Broker"]


_CROWD = 1000  # fetches that could be answered in one turn of the loop without anybody else noticing


class Broker:
    """One broker, the leader of all its partitions and the coordinator of all groups.

    ``node_id``, ``host``, ``port``: what it tells clients about itself; the server sets the port.  ``clock``: of its
    timer.  ``observers``: of all purgatories.
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
        self.offsets = Offsets(settings.max_committed)
        self.groups = GroupCoordinator(self.timer, settings.group, observers=observers)
        self.producer_ids = itertools.count(1000)

    async def __aenter__(self) -> Self:
        await self.timer.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.answer_all()
        await self.timer.aclose()

    async def answer_all(self) -> None:
        """Take nothing more, and give everyone who waits the answer that a timeout would give."""
        for purgatory in (self.produce, self.fetch, self.delete_records):
            await purgatory.aclose()
        await self.groups.aclose()

    def statistics(self) -> list[Statistics]:
        """Of all purgatories."""
        own = (self.produce, self.fetch, self.delete_records)
        return [purgatory.statistics() for purgatory in (*own, *self.groups.purgatories)]

    def _moved(self, partition: Partition, everyone: bool) -> None:
        """A watermark has moved: see who waited for that.  ``everyone``: an error may end any wait, so no threshold.

        Where a crowd is parked, fetches are checked in slices of a loop turn: the thresholds save less then than it
        costs everybody else to wait until thousands are answered.
        """
        key = partition.key
        high, low = (None, None) if everyone else (partition.high_watermark, partition.low_watermark)
        self.produce.check_and_complete(key, high)
        if len(self.fetch) < _CROWD:
            self.fetch.check_and_complete(key, high)
        else:
            self.fetch.check_soon(key)
        self.delete_records.check_and_complete(key, low)
