"""Fixtures of the broker tests; they import the broker when a test uses it, because the extra may be missing."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from purgatory.testing import VirtualClock

if TYPE_CHECKING:
    from tests.examples.broker.request_harness import RequestHarness


@pytest.fixture
async def harness(clock: VirtualClock) -> "AsyncIterator[RequestHarness]":
    """Yield a broker with topics t (two partitions), solo (no followers) and stalled; nothing may stay parked."""
    from examples.broker.broker import Broker
    from tests.examples.broker.request_harness import SETTINGS, RequestHarness

    async with Broker(SETTINGS, clock=clock) as broker:
        broker.topics.create("t", 2)
        broker.topics.create("solo", 1, 1)
        broker.topics.create("stalled")
        yield RequestHarness(broker)
        for purgatory in (broker.produce, broker.fetch, broker.delete_records):
            assert len(purgatory) == 0, f"{purgatory} at the end of the test"
