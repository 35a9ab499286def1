"""The brokers, started once for all tests that need them, and a Spark session with the Kafka connector."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.real_kafka import RealKafka
from tests.kafka.jars import connector, jars
from tests.pipeline.settings import SETTINGS


@pytest.fixture(scope="session")
def real_kafka() -> Iterator[RealKafka]:
    """A real broker whose groups form at once and whose sessions may be short."""
    jars()
    with RealKafka(group_initial_rebalance_delay_ms=0, group_min_session_timeout_ms=100) as broker:
        yield broker


@pytest.fixture(scope="session")
def broker() -> Iterator[str]:
    """The address of an example broker that forms groups at once."""
    command = [sys.executable, "-m", "examples.broker", "--port", "0", "--initial-rebalance-delay", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session of its own on the one Spark of the test run, with the Kafka connector."""
    pytest.importorskip("pyspark", "4.2", reason="the extra 'spark' is not installed")
    found = connector()
    from purgatory.pipeline.spark.session import spark_session

    with spark_session("local[2]", SETTINGS) as shared:
        session = shared.newSession()
        for jar in found.split(os.pathsep):
            session.sql(f"ADD JAR '{jar}'")
        session.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        yield session
