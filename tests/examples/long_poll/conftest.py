"""Fixtures of the long poll tests; they import it when a test uses it, because the extra may be missing."""

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import pytest

from purgatory import Purgatory
from purgatory.testing import VirtualClock

if TYPE_CHECKING:
    from examples.long_poll.parameters import Limits
    from tests.examples.long_poll.harness import AppHarness


@pytest.fixture
async def make_harness(clock: VirtualClock) -> "AsyncIterator[Callable[..., AppHarness]]":
    """Return a function that creates harnesses with given limits; close them at the end."""
    from examples.long_poll.app import LongPoll
    from examples.long_poll.fetch import Fetch
    from examples.long_poll.topics import Topics
    from tests.examples.long_poll.harness import AppHarness

    harnesses: list[AppHarness] = []

    def make(
        *,
        retain_bytes: int = 10_000,
        max_topics: int = 10,
        limits: "Limits | None" = None,
        max_parked: int | None = None,
        max_parked_per_key: int | None = None,
    ) -> "AppHarness":
        purgatory = Purgatory[Fetch]("test", clock=clock, max_parked=max_parked, max_parked_per_key=max_parked_per_key)
        topics = Topics(retain_bytes=retain_bytes, max_topics=max_topics)
        harnesses.append(AppHarness(clock, LongPoll(purgatory, topics, limits=limits, retry_after=7)))
        return harnesses[-1]

    yield make
    for harness in harnesses:
        harness.purgatory._check()
        await harness.purgatory.aclose()


@pytest.fixture
def harness(make_harness: "Callable[..., AppHarness]") -> "AppHarness":
    """Return a harness without limits."""
    return make_harness()
