"""Fixtures of the tests of aio."""

from collections.abc import AsyncIterator

import pytest

from purgatory import ThresholdPurgatory
from purgatory.testing import VirtualClock


@pytest.fixture
async def marks(clock: VirtualClock) -> AsyncIterator[ThresholdPurgatory]:
    """Return an open purgatory in virtual time."""
    async with ThresholdPurgatory("high watermark", clock=clock) as marks:
        yield marks
        marks.purgatory._check()
