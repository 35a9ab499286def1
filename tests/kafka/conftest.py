"""The real broker, started once for all tests that need it."""

from collections.abc import Iterator

import pytest

from benchmarks.real_kafka import RealKafka
from tests.kafka.jars import jars


@pytest.fixture(scope="session")
def real_kafka() -> Iterator[RealKafka]:
    """A real broker whose groups form at once and whose sessions may be short."""
    jars()
    with RealKafka(group_initial_rebalance_delay_ms=0, group_min_session_timeout_ms=100) as broker:
        yield broker
